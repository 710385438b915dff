//! What the board shows of a subscription whose workers appear by themselves: an entry that holds nothing, for what is
//! nobody's (a connection, messages that cannot be read or have no owner).

use std::sync::Arc;
use std::time::SystemTime;

use crate::feed::Registration;
use crate::feed::drops::Dropped;
use crate::feed::status::{Board, Entry, Origin, State};
use crate::index::{Index, IndexError};

use super::plane::PlaneOptions;

#[derive(Debug)]
pub(super) struct Door {
    entry: Arc<Entry>,
    _registration: Registration,
}

// === impl Door ===

impl Door {
    pub(super) fn open(options: &PlaneOptions, index: &Arc<Index>, board: &Arc<Board>) -> Result<Self, IndexError> {
        let identity = options.identity.clone();
        let following = &options.following;
        let registration = Registration::take_empty(&identity, following.copies, index, board)?;
        let entry = Entry::new(registration.rank(), identity, options.address(), None, following.engine);
        let entry = Arc::new(entry.with_origin(Origin::None));
        board.insert(Arc::clone(&entry));
        Ok(Self { entry, _registration: registration })
    }

    pub(super) fn connected(&self, workers: usize) {
        self.change(State::Live, &format!("it holds nothing itself; ranks that have spoken: {workers}"), None);
    }

    pub(super) fn disconnected(&self, fault: &str) {
        self.change(State::Connecting, &format!("not subscribed: {fault}"), Some(fault));
    }

    fn change(&self, state: State, why: &str, fault: Option<&str>) {
        let mut status = self.entry.status();
        if status.state != state {
            status.since = SystemTime::now();
        }
        status.state = state;
        status.connected = state == State::Live;
        status.why = why.to_owned();
        status.fault = fault.map(str::to_owned);
    }

    pub(super) fn heard(&self, bytes: usize) {
        let mut status = self.entry.status();
        status.messages += 1;
        status.bytes += bytes as u64;
        status.last_heard = Some(std::time::Instant::now());
    }

    pub(super) fn reject(&self, reason: Dropped, count: u64) {
        self.entry.status().count_dropped(reason, count);
    }
}
