//! The snapshots of one feed: loaded before it begins, taken while it runs and once more when it ends.
//!
//! When what is written:
//!
//! - Every interval, and at the end, what is held, if it is new and *whole*: everything of the epoch, or from a clear
//!   on, was applied, each message could be read, and no block waits for its parent. A feed that is not whole keeps
//!   the file it has, which was whole, and is of the same epoch.
//! - Before an epoch begins, a bare file: its number is used from now on, and the blocks of the one before are not
//!   to be had any more. So no number is ever another life's, and no file is of an epoch that has ended.
//! - A feed without a replay endpoint could never prove what it loads, so it keeps bare files only.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::Instant;

use super::machine::{Digest, Past};
use super::status::Entry;
use crate::index::Index;
use crate::normalize::{Memory, Normalizer};
use crate::snapshot::{self, Head, Owner, Refusal, Snapshot, Store, Unrestored};
use crate::worker::{Identity, Stamp};

/// Whether and how often a feed takes snapshots.
#[derive(Clone, PartialEq, Debug)]
pub struct Snapshots {
    /// Where to.
    pub store: Store,
    /// How often, where there is anything new.
    pub interval: Duration,
    /// Whether the feed begins without what its file holds, all the same under an epoch number not used before.
    pub afresh: bool,
}

/// What happens to snapshots, by outcome: the words of [`Status::snapshots`](super::status::Status::snapshots).
pub(super) const RESTORED: &str = "restored";
const WRITTEN: &str = "written";
const FAILED: &str = "failed";

/// How soon it is tried again when it is not this feed's turn.
const NOT_YET: Duration = Duration::from_millis(500);

/// The keeper of one feed's snapshots.
#[derive(Debug)]
pub(super) struct Keeper {
    snapshots: Snapshots,
    owner: Arc<Owner>,
    index: Arc<Index>,
    entry: Arc<Entry>,
    due: Instant,
    /// What the file holds; `None`: nothing that is known of.
    saved: Option<Stamp>,
    writing: Option<(Stamp, JoinHandle<io::Result<bool>>)>,
    /// What happened, by outcome.
    pub(super) outcomes: BTreeMap<&'static str, u64>,
    /// Files that were not believed, by reason.
    pub(super) refused: BTreeMap<&'static str, u64>,
}

/// How a feed begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Start {
    /// From nothing; its first epoch has this number.
    Epoch(u64),
    /// From what was held when these messages were the last.
    Resume(Past),
}

// === loading ===

impl Keeper {
    /// Loads a feed's snapshot, if there is one that can be believed, through its normalizer. `None`: the rank was
    /// removed meanwhile, or the process ends.
    pub(super) async fn load(
        snapshots: Snapshots,
        copies: crate::index::Copies,
        index: Arc<Index>,
        entry: Arc<Entry>,
        mut normalizer: Normalizer,
    ) -> Option<(Self, Start, Normalizer)> {
        let owner = Arc::new(owner(&entry.identity, &entry, copies));
        let (store, whose, afresh) = (snapshots.store.clone(), Arc::clone(&owner), snapshots.afresh);
        let loading = spawn_blocking(move || (restore(&store, &whose, afresh, &mut normalizer), normalizer));
        let (restored, normalizer) = loading.await.ok()?;
        let interval = snapshots.interval;
        let mut keeper = Self {
            snapshots,
            owner,
            index,
            entry,
            // Feeds that begin together do not all take their snapshots at once.
            due: Instant::now() + interval.mul_f64(0.5 + fastrand::f64() / 2.0),
            saved: None,
            writing: None,
            outcomes: BTreeMap::new(),
            refused: BTreeMap::new(),
        };
        let start = match restored {
            Ok(start) => start,
            Err(Unrestored::Gone) => return None,
            Err(Unrestored::Refused(refusal)) => {
                *keeper.refused.entry(refusal.reason()).or_default() += 1;
                let (feed, reason) = (&keeper.entry.identity, refusal.reason());
                tracing::warn!(%feed, reason, "The snapshot is not used: {refusal}.");
                Start::Epoch(1)
            }
        };
        match &start {
            Start::Epoch(epoch) => keeper.claim(*epoch).await,
            Start::Resume(past) => {
                keeper.saved = Some(past.stamp());
                keeper.count(RESTORED);
                let (feed, epoch, sequence) = (&keeper.entry.identity, past.epoch, past.stamp().sequence);
                tracing::info!(%feed, epoch, sequence, "A snapshot was restored; its epoch is to be proven.");
            }
        }
        Some((keeper, start, normalizer))
    }
}

fn owner(identity: &Identity, entry: &Entry, copies: crate::index::Copies) -> Owner {
    Owner {
        worker: identity.worker.to_string(),
        model: identity.model.to_string(),
        rank: identity.rank,
        endpoint: entry.endpoint.clone(),
        replay: entry.replay.clone(),
        copies,
    }
}

fn restore(store: &Store, owner: &Owner, afresh: bool, normalizer: &mut Normalizer) -> Result<Start, Unrestored> {
    let Some(bytes) = store.load(owner)? else { return Ok(Start::Epoch(1)) };
    let snapshot = Snapshot::read(&bytes, owner)?;
    if afresh {
        return Ok(Start::Epoch(snapshot.epoch.saturating_add(1)));
    }
    let restored = restore_from(snapshot, owner, normalizer);
    if let Err(Unrestored::Refused(_)) = restored {
        normalizer.reset(Stamp::default())?;
    }
    restored
}

fn restore_from(snapshot: Snapshot<'_>, owner: &Owner, normalizer: &mut Normalizer) -> Result<Start, Unrestored> {
    let Snapshot { epoch, content } = snapshot;
    let Some(content) = content.filter(|_| owner.replay.is_some()) else { return Ok(Start::Epoch(epoch + 1)) };
    if content.head.memory.grid.is_some_and(|grid| normalizer.refuses(grid)) {
        return Err(Refusal::Owner.into());
    }
    let head = content.restore(epoch, normalizer)?;
    let messages = head.messages.into_iter().map(|(sequence, digest)| (sequence, Digest(digest)));
    Ok(Start::Resume(Past { epoch, messages: messages.collect() }))
}

// === impl Keeper ===

impl Keeper {
    /// When the next snapshot is due.
    pub(super) fn due(&self) -> Instant {
        self.due
    }

    /// Whether something is being written whose outcome is to be told.
    pub(super) fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Writes that the numbers up to `epoch` are used and nothing of them is held any more.
    pub(super) async fn claim(&mut self, epoch: u64) {
        self.settle().await;
        self.saved = None;
        let (store, owner) = (self.snapshots.store.clone(), Arc::clone(&self.owner));
        let task = spawn_blocking(move || {
            let bytes = snapshot::encode(&owner, epoch, None, |_| {});
            store.replace(&owner, &bytes).map(|()| true)
        });
        self.writing = Some((Stamp { epoch, sequence: None }, task));
        self.settle().await;
    }

    /// Takes a snapshot of what is held, `past` and `memory` being what led to it. Returns once it is taken, so that
    /// the rank can be changed again; the writing goes on.
    pub(super) async fn take(&mut self, past: Past, memory: Memory) {
        self.due = Instant::now() + self.snapshots.interval;
        let stamp = past.stamp();
        if self.saved == Some(stamp) || self.owner.replay.is_none() {
            return;
        }
        self.collect();
        let turn = Arc::clone(self.snapshots.store.turn()).try_acquire_owned();
        let (None, Ok(turn)) = (&self.writing, turn) else {
            self.due = Instant::now() + NOT_YET.mul_f64(0.5 + fastrand::f64());
            return;
        };
        self.write(past, memory, turn).await;
    }

    /// What is held is not whole: the file stays as it is.
    pub(super) fn nothing_to_take(&mut self) {
        self.due = Instant::now() + self.snapshots.interval;
    }

    /// The same, for the last time: returns once it is written.
    pub(super) async fn take_last(&mut self, past: Past, memory: Memory) {
        self.settle().await;
        if self.saved == Some(past.stamp()) || self.owner.replay.is_none() {
            return;
        }
        if let Ok(turn) = Arc::clone(self.snapshots.store.turn()).acquire_owned().await {
            self.write(past, memory, turn).await;
            self.settle().await;
        }
    }

    async fn write(&mut self, past: Past, memory: Memory, turn: tokio::sync::OwnedSemaphorePermit) {
        let (stamp, rank) = (past.stamp(), self.entry.rank);
        let messages = past.messages.iter().map(|(sequence, digest)| (*sequence, digest.0)).collect();
        let head = Head { messages, memory };
        let (store, owner, index) = (self.snapshots.store.clone(), Arc::clone(&self.owner), Arc::clone(&self.index));
        let (taken, is_taken) = oneshot::channel();
        let begun = Instant::now();
        let task = spawn_blocking(move || {
            let _turn = turn;
            let mut held = None;
            let bytes = snapshot::encode(&owner, stamp.epoch, Some(&head), |visit| {
                held = index.export(rank, visit);
                // The checksum is nothing to wait for. A feed that was stopped meanwhile does not listen any more.
                let _ = taken.send(());
            });
            if held != Some(stamp) {
                return Ok(false);
            }
            store.replace(&owner, &bytes).map(|()| true)
        });
        self.writing = Some((stamp, task));
        // An error here is the task's, which is reported when it is collected.
        let _ = is_taken.await;
        let (feed, waited_ms) = (&self.entry.identity, begun.elapsed().as_secs_f64() * 1e3);
        tracing::debug!(%feed, waited_ms, "The feed has waited for its snapshot to be taken.");
    }

    /// Counts what has been written, if it has.
    pub(super) fn collect(&mut self) {
        if let Some((stamp, task)) = &mut self.writing
            && let Some(ended) = task.now_or_never()
        {
            let stamp = *stamp;
            self.writing = None;
            self.written(stamp, ended.map_err(io::Error::other).flatten());
        }
    }

    async fn settle(&mut self) {
        if let Some((stamp, task)) = self.writing.take() {
            let ended = task.await;
            self.written(stamp, ended.map_err(io::Error::other).flatten());
        }
    }

    fn written(&mut self, stamp: Stamp, written: io::Result<bool>) {
        match written {
            Ok(true) => {
                self.saved = Some(stamp);
                self.count(WRITTEN);
            }
            // The rank was removed or changed: there is nothing to be kept.
            Ok(false) => {}
            Err(error) => {
                self.count(FAILED);
                let feed = &self.entry.identity;
                tracing::warn!(%feed, %error, "The snapshot could not be written.");
            }
        }
    }

    fn count(&mut self, outcome: &'static str) {
        *self.outcomes.entry(outcome).or_default() += 1;
    }
}
