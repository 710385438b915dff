//! The roster: one change after another, each to its end.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Mutex;
use tokio::task::spawn_blocking;

use super::resolve::{Chosen, Resolution, resolve};
use super::retry::Retry;
use super::standing::{EntryReport, Picture, Place, Standing};
use super::wanted::{Key, Plan, Source, Wanted};
use crate::feed::nats::Plane;
use crate::feed::status::Board;
use crate::feed::{Feed, SpawnError};
use crate::index::Index;

/// What the last snapshot of a feed that changes may take.
const LAST_SNAPSHOT: Duration = Duration::from_secs(2);

/// The feeds that run, and who wants which. Clones share them.
#[derive(Clone, Debug)]
pub struct Roster {
    shared: Arc<Shared>,
}

/// What a change came to, in feeds of ranks, those behind one URL counted as one.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Changes {
    /// Begun, where nothing had run.
    pub begun: usize,
    /// Ended and begun anew, since their settings changed.
    pub changed: usize,
    /// Ended, since nobody wants them any more.
    pub withdrawn: usize,
    /// Left alone.
    pub untouched: usize,
    /// Could not be begun: each in one sentence.
    pub failed: Vec<String>,
}

/// What has become of one entry that a source put.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Put {
    /// It was not there.
    Added,
    /// It was there, otherwise.
    Changed,
    /// It was there already.
    Unchanged,
}

#[derive(Debug)]
pub(super) struct Shared {
    index: Arc<Index>,
    board: Arc<Board>,
    standing: Arc<Standing>,
    pub(super) state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    wanted: BTreeMap<Source, Vec<Wanted>>,
    running: BTreeMap<Key, Running>,
    failed: BTreeMap<Key, String>,
    retry: Retry,
    /// The process ends: nothing is begun any more.
    closed: bool,
}

#[derive(Debug)]
struct Running {
    instance: Arc<str>,
    plan: Plan,
    work: Work,
}

/// What a plan has begun.
#[derive(Debug)]
enum Work {
    Feeds(Vec<Feed>),
    Plane(Plane),
}

// === impl Roster ===

impl Roster {
    /// A roster that wants nothing yet.
    pub fn new(index: Arc<Index>, board: Arc<Board>) -> Self {
        let shared = Shared { index, board, standing: Arc::default(), state: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// The picture of it, for those who show it.
    pub fn standing(&self) -> &Arc<Standing> {
        &self.shared.standing
    }

    /// Replaces everything that `source` wants, and returns once that is so.
    pub async fn set(&self, source: Source, wanted: Vec<Wanted>) -> Changes {
        self.change(move |state| {
            state.wanted.insert(source, wanted);
        })
        .await
        .1
    }

    /// Adds or replaces what `source` wants of one worker, and returns once that is so.
    pub async fn put(&self, source: Source, wanted: Wanted) -> (Put, Changes) {
        self.change(move |state| {
            let entries = state.wanted.entry(source).or_default();
            match entries.iter_mut().find(|entry| entry.worker == wanted.worker) {
                Some(entry) if *entry == wanted => Put::Unchanged,
                Some(entry) => {
                    *entry = wanted;
                    Put::Changed
                }
                None => {
                    entries.push(wanted);
                    Put::Added
                }
            }
        })
        .await
    }

    /// Takes back what `source` wants of one worker; whether it wanted anything.
    pub async fn remove(&self, source: Source, worker: &str) -> (bool, Changes) {
        let worker = worker.to_owned();
        self.change(move |state| {
            let entries = state.wanted.entry(source).or_default();
            let before = entries.len();
            entries.retain(|entry| *entry.worker != *worker);
            entries.len() < before
        })
        .await
    }

    /// Drops what is held of a worker, or of those of its ranks that are listed: each feed ends and begins anew, with
    /// whatever its engine can replay and without its snapshot. Returns the ranks that were cleared: those behind
    /// one URL are cleared together.
    pub async fn clear(&self, worker: &str, ranks: &[u32]) -> Vec<u32> {
        let (shared, worker, ranks) = (Arc::clone(&self.shared), worker.to_owned(), ranks.to_vec());
        let task = tokio::spawn(async move {
            let mut state = shared.state.lock().await;
            let before: BTreeSet<Key> = state.failed.keys().cloned().collect();
            let cleared = state.clear(&shared, &worker, &ranks).await;
            state.retry_later(&before, &shared);
            cleared
        });
        task.await.unwrap_or_else(|error| {
            tracing::error!(%error, "A worker could not be cleared.");
            Vec::new()
        })
    }

    /// Ends every feed, after a last snapshot of each, where it takes any, within this time. Nothing is begun after it.
    pub async fn finish(&self, within: Duration) {
        let mut state = self.shared.state.lock().await;
        state.closed = true;
        state.retry.give_up();
        let running = std::mem::take(&mut state.running);
        join_all(running.into_values().map(|running| running.work.finish(within))).await;
    }

    async fn change<T>(&self, edit: impl FnOnce(&mut State) -> T + Send + 'static) -> (T, Changes)
    where
        T: Default + Send + 'static,
    {
        let shared = Arc::clone(&self.shared);
        // In a task of its own: whoever asked may go away, and half a change must not stay.
        let task = tokio::spawn(async move {
            let mut state = shared.state.lock().await;
            let edited = edit(&mut state);
            let before: BTreeSet<Key> = state.failed.keys().cloned().collect();
            let changes = state.reconcile(&shared).await;
            state.retry_later(&before, &shared);
            (edited, changes)
        });
        task.await.unwrap_or_else(|error| {
            tracing::error!(%error, "The feeds could not be brought in line.");
            (T::default(), Changes { failed: vec![error.to_string()], ..Changes::default() })
        })
    }
}

// === impl Put ===

impl Default for Put {
    /// Nothing has become of it.
    fn default() -> Self {
        Self::Unchanged
    }
}

// === impl State ===

impl State {
    /// Sees to it that what could not be begun is tried again: soon, where that is news.
    fn retry_later(&mut self, failed_before: &BTreeSet<Key>, shared: &Arc<Shared>) {
        if self.failed.keys().any(|key| !failed_before.contains(key)) {
            self.retry.begin(shared);
        }
    }

    /// Whether there is something to be tried again.
    pub(super) fn has_failed(&self) -> bool {
        !self.closed && !self.failed.is_empty()
    }

    /// Brings what runs in line with what is wanted.
    pub(super) async fn reconcile(&mut self, shared: &Shared) -> Changes {
        let mut changes = Changes::default();
        if self.closed {
            return changes;
        }
        let resolution = resolve(&self.wanted);
        let gone = self.take_running(|key, _| !resolution.run.contains_key(key));
        let otherwise = self.take_running(|key, running| {
            let chosen = resolution.run.get(key);
            chosen.is_some_and(|chosen| chosen.instance != running.instance || chosen.plan != running.plan)
        });
        changes.withdrawn = gone.len();
        changes.changed = otherwise.len();
        changes.untouched = self.running.len();
        for key in gone.keys() {
            tracing::info!(worker = %key.worker, rank = key.rank, "The feed is no longer wanted and is withdrawn.");
        }
        let forgotten: Vec<Plan> = gone.values().map(|running| running.plan.clone()).collect();
        // What is gone is withdrawn when this is first polled, so before any snapshot is waited for.
        let stopped = gone.into_values().map(|running| running.work.stop());
        let anew: BTreeSet<Key> = otherwise.keys().cloned().collect();
        let ended = otherwise.into_iter().map(|(key, running)| {
            let same = resolution.run.get(&key).is_some_and(|chosen| chosen.instance == running.instance);
            end(running.work, same)
        });
        tokio::join!(join_all(stopped), join_all(ended));
        forget(forgotten).await;

        let before = std::mem::take(&mut self.failed);
        for (key, chosen) in &resolution.run {
            if self.running.contains_key(key) {
                continue;
            }
            let changed = anew.contains(key);
            match self.begin(key, chosen, shared) {
                Ok(()) => {
                    changes.begun += usize::from(!changed);
                    let (worker, rank, source) = (&key.worker, key.rank, chosen.source.name());
                    let endpoint = chosen.plan.endpoint();
                    if changed {
                        tracing::info!(%worker, rank, source, endpoint, "The feed's settings changed: it starts again.");
                    } else {
                        tracing::info!(%worker, rank, source, endpoint, "The feed begins.");
                    }
                }
                Err(error) => {
                    let why = error.to_string();
                    // Said once for as long as it stays so, however often it is tried.
                    if before.get(key) != Some(&why) {
                        tracing::error!(worker = %key.worker, rank = key.rank, %error, "The feed cannot begin.");
                    }
                    changes.failed.push(format!("{}/{}: {why}", key.worker, key.rank));
                    self.failed.insert(key.clone(), why);
                }
            }
        }
        self.tell(shared, &resolution, &changes);
        changes
    }

    fn take_running(&mut self, which: impl Fn(&Key, &Running) -> bool) -> BTreeMap<Key, Running> {
        let (taken, left) = std::mem::take(&mut self.running).into_iter().partition(|(key, run)| which(key, run));
        self.running = left;
        taken
    }

    fn begin(&mut self, key: &Key, chosen: &Chosen, shared: &Shared) -> Result<(), SpawnError> {
        let work = Work::begin(&chosen.plan, shared)?;
        let running = Running { instance: Arc::clone(&chosen.instance), plan: chosen.plan.clone(), work };
        self.running.insert(key.clone(), running);
        Ok(())
    }

    async fn clear(&mut self, shared: &Shared, worker: &str, ranks: &[u32]) -> Vec<u32> {
        if self.closed {
            return Vec::new();
        }
        let listed = |rank: &u32| ranks.is_empty() || ranks.contains(rank);
        let wiped = self.take_running(|key, running| {
            let planned = running.plan.ranks();
            *key.worker == *worker && (planned.is_empty() || planned.iter().any(listed))
        });
        let mut cleared = Vec::new();
        let mut begin = Vec::new();
        let mut ended = Vec::new();
        for (key, Running { instance, plan, work }) in wiped {
            cleared.extend(plan.ranks());
            ended.push(work.stop());
            begin.push((key, instance, plan));
        }
        join_all(ended).await;
        for (key, instance, plan) in begin {
            let mut afresh = plan.clone();
            if let Plan::Rank(options) = &mut afresh
                && let Some(snapshots) = &mut options.snapshots
            {
                snapshots.afresh = true;
            }
            match Work::begin(&afresh, shared) {
                Ok(work) => {
                    tracing::info!(worker, rank = key.rank, "The feed was cleared: it begins anew.");
                    self.running.insert(key, Running { instance, plan, work });
                }
                Err(error) => {
                    tracing::error!(worker, rank = key.rank, %error, "The feed was cleared and cannot begin again.");
                    self.failed.insert(key, error.to_string());
                }
            }
        }
        cleared.sort_unstable();
        self.tell(shared, &resolve(&self.wanted), &Changes::default());
        *shared.standing.lock().changes.entry(Picture::CLEARED).or_default() += cleared.len() as u64;
        cleared
    }

    /// Writes the picture, and logs what is set aside and was not before.
    fn tell(&self, shared: &Shared, resolution: &Resolution, changes: &Changes) {
        let mut entries = Vec::new();
        for (&source, wanted) in &self.wanted {
            let verdicts = resolution.set_aside.get(&source).into_iter().flatten();
            entries
                .extend(wanted.iter().zip(verdicts).map(|(wanted, why)| self.report(source, wanted, why.as_deref())));
        }
        let mut picture = shared.standing.lock();
        for entry in entries.iter().filter(|entry| entry.place == Place::SetAside) {
            if !picture.entries.contains(entry) {
                let EntryReport { worker, source, origin, why, .. } = entry;
                tracing::warn!(worker, source = source.name(), origin, why, "The feed is set aside.");
            }
        }
        picture.entries = entries;
        let counts = [
            (Picture::BEGUN, changes.begun),
            (Picture::CHANGED, changes.changed),
            (Picture::WITHDRAWN, changes.withdrawn),
        ];
        for (what, count) in counts {
            *picture.changes.entry(what).or_default() += count as u64;
        }
    }

    fn report(&self, source: Source, wanted: &Wanted, set_aside: Option<&str>) -> EntryReport {
        let failed = wanted.plans.iter().find_map(|plan| self.failed.get(&plan.key()));
        let (place, why) = match (set_aside, failed) {
            (Some(why), _) => (Place::SetAside, why),
            (None, Some(why)) => (Place::Failed, why.as_str()),
            (None, None) => (Place::Running, ""),
        };
        let first = wanted.plans.first();
        let identity = first.and_then(|plan| plan.identities().first());
        EntryReport {
            worker: wanted.worker.to_string(),
            source,
            origin: wanted.origin.clone(),
            instance: wanted.instance.to_string(),
            place,
            why: why.to_owned(),
            model: identity.map(|identity| identity.model.to_string()).unwrap_or_default(),
            engine: first.map(|plan| plan.engine().to_owned()).unwrap_or_default(),
            address: identity.map(|identity| identity.address.to_string()).unwrap_or_default(),
            aliases: identity.map(|identity| identity.aliases.to_vec()).unwrap_or_default(),
            ranks: wanted.ranks(),
            endpoint: first.map(Plan::endpoint).unwrap_or_default(),
            replay_endpoint: first.and_then(Plan::replay),
        }
    }
}

/// Takes away the snapshots of feeds that nobody wants any more.
async fn forget(plans: Vec<Plan>) {
    let removed = spawn_blocking(move || {
        for plan in &plans {
            let Plan::Rank(options) = plan else { continue };
            let Some(snapshots) = &options.snapshots else { continue };
            let identity = &options.identity;
            if let Err(error) = snapshots.store.forget(&identity.worker, identity.rank) {
                tracing::warn!(feed = %identity, %error, "The snapshot of a feed that is no longer wanted could not be removed.");
            }
        }
    });
    if let Err(error) = removed.await {
        tracing::error!(%error, "Snapshots that are no longer wanted could not be removed.");
    }
}

/// Ends what something else takes the place of. A snapshot of the same engine is of use to that one.
async fn end(work: Work, same_engine: bool) {
    if same_engine {
        work.finish(LAST_SNAPSHOT).await;
    } else {
        work.stop().await;
    }
}

// === impl Work ===

impl Work {
    fn begin(plan: &Plan, shared: &Shared) -> Result<Self, SpawnError> {
        let (index, board) = (&shared.index, &shared.board);
        Ok(match plan {
            Plan::Rank(options) => Self::Feeds(vec![Feed::spawn((**options).clone(), index, board)?]),
            Plan::Polled(options) => Self::Feeds(Feed::spawn_polled((**options).clone(), index, board)?),
            Plan::Plane(options) => Self::Plane(Plane::spawn((**options).clone(), index, board)?),
        })
    }

    /// Withdraws it when this is first polled, and waits until that is done.
    async fn stop(self) {
        match self {
            Self::Feeds(feeds) => drop(join_all(feeds.into_iter().map(Feed::stop)).await),
            Self::Plane(plane) => plane.stop().await,
        }
    }

    /// The same, after a last snapshot of each feed, where it takes any, within this time.
    async fn finish(self, within: Duration) {
        match self {
            Self::Feeds(feeds) => drop(join_all(feeds.into_iter().map(|feed| feed.finish(within))).await),
            // What comes over NATS takes no snapshots.
            Self::Plane(plane) => plane.stop().await,
        }
    }
}
