//! The ranks that one subscription brings: each a feed of its own, with its own queue; some appear as they speak.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use super::ledger::{Ledger, Name, Numbered, Word};
use super::plane::PlaneOptions;
use crate::feed::Feed;
use crate::feed::drops::Dropped;
use crate::feed::link::{Fault, QueueSender, queue};
use crate::feed::status::Board;
use crate::index::{Index, IndexError};
use crate::worker::Identity;

/// The longest name that a subject may give a worker, in bytes.
const MAX_NAME: usize = 256;

/// Whose events a message carries.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    /// What the wire calls the worker; `None`: it does not say, and it is the configured one.
    pub(super) worker: Option<String>,
    pub(super) rank: u32,
}

/// A lane's number; none is used twice.
pub(super) type LaneId = u64;

#[derive(Debug)]
pub(super) struct Lanes {
    options: Arc<PlaneOptions>,
    index: Arc<Index>,
    board: Arc<Board>,
    ids: HashMap<Key, LaneId>,
    lanes: HashMap<LaneId, Lane>,
    next: LaneId,
    ledger: Ledger<LaneId>,
    told: Vec<(LaneId, Word)>,
    up: bool,
}

#[derive(Debug)]
struct Lane {
    queue: QueueSender,
    feed: Feed,
    heard: Instant,
    /// Appeared as it spoke, and may go as it falls silent.
    passing: bool,
    /// Our own count, where messages have none; it has been told that they have none.
    unnumbered: Option<u64>,
}

/// How a message is numbered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Count {
    /// By a publisher or stream of this name.
    Named(Numbered, Name, u64),
    /// By somebody without a name.
    Bare(u64),
    /// Not at all.
    None,
}

// === impl Lanes ===

impl Lanes {
    pub(super) fn new(options: Arc<PlaneOptions>, index: Arc<Index>, board: Arc<Board>) -> Self {
        let ledger = Ledger::new(options.max_ranks.saturating_mul(2));
        Self {
            options,
            index,
            board,
            ids: HashMap::new(),
            lanes: HashMap::new(),
            next: 0,
            ledger,
            told: Vec::new(),
            up: false,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        self.up
    }

    pub(super) fn len(&self) -> usize {
        self.lanes.len()
    }

    /// A rank that the configuration names: it is there before it speaks.
    pub(super) fn list(&mut self, rank: u32) -> Result<(), IndexError> {
        self.spawn(Key { worker: None, rank }, false).map(|_| ())
    }

    /// The lane of `key`, which may appear now. `None`: there is no room for it, or it can have no lane.
    pub(super) fn of(&mut self, key: Key) -> Option<LaneId> {
        if let Some(id) = self.ids.get(&key) {
            return Some(*id);
        }
        let named = key.worker.as_ref().is_some_and(|name| name.len() <= MAX_NAME);
        // The index has bounds of its own.
        if named && self.lanes.len() < self.options.max_ranks { self.spawn(key, true).ok() } else { None }
    }

    fn spawn(&mut self, key: Key, passing: bool) -> Result<LaneId, IndexError> {
        let options = &self.options;
        let (sender, receiver) = queue(options.queue, CancellationToken::new().drop_guard());
        let (identity, following) = (identity(options, &key), options.following.clone());
        let feed = Feed::spawn_queued(identity, options.address(), following, receiver, &self.index, &self.board)?;
        if self.up {
            sender.connected();
        }
        let id = self.next;
        self.next += 1;
        self.ids.insert(key, id);
        self.lanes.insert(id, Lane { queue: sender, feed, heard: Instant::now(), passing, unnumbered: None });
        Ok(id)
    }

    /// The subscription stands.
    pub(super) fn connected(&mut self) {
        self.up = true;
        self.lanes.values().for_each(|lane| lane.queue.connected());
    }

    /// It does not: whatever is published meanwhile is missed.
    pub(super) fn disconnected(&mut self, fault: &str) {
        for lane in self.lanes.values() {
            let fault = Fault::Nats(fault.to_owned());
            if self.up { lane.queue.disconnected(fault) } else { lane.queue.unreachable(fault) }
        }
        self.up = false;
        self.ledger.doubt();
    }

    /// The client had no room for messages of the subscription: which ones, their numbers will show.
    pub(super) fn overrun(&mut self) {
        self.doubt("the client's own queue was full");
        self.lanes.values().for_each(|lane| lane.queue.rejected(Dropped::SlowConsumer));
    }

    /// A stream goes on where it was left.
    pub(super) fn resumed(&mut self, stream: Name) {
        let mut told = std::mem::take(&mut self.told);
        self.ledger.prove(stream, &mut told);
        self.tell(&mut told, |_| Bytes::new());
        self.told = told;
    }

    /// Something is missed, and it may have been anybody's.
    pub(super) fn missed(&self) {
        self.lanes.values().for_each(|lane| lane.queue.missed());
    }

    /// Something was missed, and nobody knows whose it was: each publisher's next number will show.
    pub(super) fn doubt(&mut self, fault: &str) {
        if self.up {
            self.disconnected(fault);
            self.connected();
        }
    }

    /// A message that cannot be read has spent its number, and may have been any rank's.
    pub(super) fn spend(&mut self, count: Count, digest: u64) {
        self.hand_out(count, digest, &[], |_| Bytes::new());
        self.missed_by_others(count, &[]);
    }

    /// Of a message that was handed to these lanes, a part may have been any other's: of its publisher or stream, if it names one.
    pub(super) fn missed_by_others(&mut self, count: Count, lanes: &[LaneId]) {
        let Count::Named(_, name, _) = count else { return self.doubt("a message could not be read") };
        let mut told = std::mem::take(&mut self.told);
        self.ledger.miss(name, lanes, &mut told);
        self.tell(&mut told, |_| Bytes::new());
        self.told = told;
    }

    /// A part of a message was for ranks that there is no room for: should one of them be followed later, it has missed that.
    pub(super) fn turned_away(&mut self, count: Count) {
        if let Count::Named(_, name, _) = count {
            self.ledger.no_beginning(name);
        }
    }

    /// Hands a message to these lanes, each its `payload`. `false`: there is no room for its publisher.
    pub(super) fn hand_out(
        &mut self,
        count: Count,
        digest: u64,
        lanes: &[LaneId],
        payload: impl Fn(LaneId) -> Bytes,
    ) -> bool {
        let now = Instant::now();
        for id in lanes {
            if let Some(lane) = self.lanes.get_mut(id) {
                lane.heard = now;
                lane.queue.heard(now);
            }
        }
        match count {
            Count::Named(numbered, name, sequence) => {
                let mut told = std::mem::take(&mut self.told);
                let taken = self.ledger.take(numbered, (name, sequence, digest), lanes, &mut told);
                self.tell(&mut told, payload);
                self.told = told;
                return taken.is_ok();
            }
            Count::Bare(sequence) => {
                for lane in lanes.iter().filter_map(|id| Some((self.lanes.get(id)?, *id))) {
                    lane.0.queue.numbered(sequence, payload(lane.1));
                }
            }
            Count::None => {
                for id in lanes {
                    let Some(lane) = self.lanes.get_mut(id) else { continue };
                    let number = match lane.unnumbered {
                        Some(last) => last.saturating_add(1),
                        None => {
                            lane.queue.unnumbered();
                            0
                        }
                    };
                    lane.unnumbered = Some(number);
                    lane.queue.numbered(number, payload(*id));
                }
            }
        }
        true
    }

    fn tell(&self, told: &mut Vec<(LaneId, Word)>, payload: impl Fn(LaneId) -> Bytes) {
        for (id, word) in told.drain(..) {
            let Some(lane) = self.lanes.get(&id) else { continue };
            match word {
                Word::OtherLife => lane.queue.other_life(),
                Word::SameLife => lane.queue.same_life(),
                Word::Missed => lane.queue.missed(),
                Word::Message(number) => lane.queue.numbered(number, payload(id)),
            }
        }
    }

    /// A message of a lane has a number that cannot be read.
    pub(super) fn unread(&self, id: LaneId, reason: Dropped) {
        self.reject(id, reason);
        if let Some(lane) = self.lanes.get(&id) {
            lane.queue.unread();
        }
    }

    /// A message of a lane was turned away, and is missing there.
    pub(super) fn lose(&self, id: LaneId, reason: Dropped) {
        self.reject(id, reason);
        if let Some(lane) = self.lanes.get(&id) {
            lane.queue.missed();
        }
    }

    /// A message that is nobody's was turned away; this lane counts it.
    pub(super) fn reject(&self, id: LaneId, reason: Dropped) {
        if let Some(lane) = self.lanes.get(&id) {
            lane.queue.rejected(reason);
        }
    }

    /// The lane of the configured worker's first rank, if it has one.
    pub(super) fn first_listed(&self) -> Option<LaneId> {
        let rank = self.options.ranks.start;
        self.ids.get(&Key { worker: None, rank }).copied()
    }

    /// Withdraws ranks that appeared, and have been silent for `silence`.
    pub(super) fn withdraw_silent(&mut self, silence: Duration) {
        let silent = |lane: &Lane| lane.passing && lane.heard.elapsed() >= silence;
        let gone: Vec<LaneId> = self.lanes.iter().filter(|(_, lane)| silent(lane)).map(|(id, _)| *id).collect();
        for id in gone {
            if let Some(lane) = self.lanes.remove(&id) {
                let feed = &lane.feed.entry().identity;
                tracing::info!(%feed, "The rank has been silent for too long: it is withdrawn.");
            }
            self.ledger.forget(id);
            self.ids.retain(|_, other| *other != id);
        }
    }

    /// Stops every feed.
    pub(super) async fn stop(mut self) {
        for (_, lane) in self.lanes.drain() {
            lane.feed.stop().await;
        }
    }
}

fn identity(options: &PlaneOptions, key: &Key) -> Identity {
    let configured = options.identity.clone();
    match &key.worker {
        None => Identity { rank: key.rank, ..configured },
        // A name from the wire is never taken for a configured one.
        Some(name) => Identity {
            worker: format!("{}/{name}", configured.worker).into(),
            address: "".into(),
            aliases: Arc::from([name.clone()]),
            model: configured.model,
            rank: key.rank,
        },
    }
}
