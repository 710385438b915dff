//! What could not be begun is tried again: an index that is full today has room once other feeds have gone.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::task::AbortHandle;
use tokio::time::sleep;

use super::reconcile::Shared;
use crate::backoff::Backoff;

/// The first wait, and the longest.
const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);

/// The task that tries again, if there is anything to try.
#[derive(Debug, Default)]
pub(super) struct Retry(Option<AbortHandle>);

// === impl Retry ===

impl Retry {
    /// Tries again from the first wait on, until nothing is left that could not be begun.
    ///
    /// For whoever holds the state: the task changes things only while it holds it itself, so it is never ended in
    /// the middle of a change.
    pub(super) fn begin(&mut self, shared: &Arc<Shared>) {
        self.give_up();
        self.0 = Some(tokio::spawn(run(Arc::downgrade(shared))).abort_handle());
    }

    /// Tries no more.
    pub(super) fn give_up(&mut self) {
        if let Some(task) = self.0.take() {
            task.abort();
        }
    }
}

async fn run(roster: Weak<Shared>) {
    let mut backoff = Backoff::new(FIRST, LONGEST);
    loop {
        sleep(backoff.wait()).await;
        let Some(shared) = roster.upgrade() else { return };
        let mut state = shared.state.lock().await;
        if !state.has_failed() {
            return;
        }
        state.reconcile(&shared).await;
    }
}
