//! The one listener of all watchers: it gives ranks their names, and keeps what happens.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::history::{Happening, History, Named};
use super::removals::{Remembered, Removals};
use crate::admin::{Fleet, RequestMetrics};
use crate::feed::status::{Entry, State};
use crate::index::{Change, Delta, Heard, Interest, Listener, TapBounds};
use crate::replica::encode;
use crate::serve::WatchLimits;
use crate::worker::RankId;

/// Listens to the index for every watcher.
#[derive(Debug)]
pub(in crate::serve) struct Hub {
    pub(in crate::serve) fleet: Arc<Fleet>,
    pub(in crate::serve) metrics: RequestMetrics,
    pub(super) stop: CancellationToken,
    pub(in crate::serve) limits: WatchLimits,
    /// Tells this server's lives of ranks from those of another.
    instance: u64,
    /// In removals, which are remembered to explain what is missing; in everything once somebody watches.
    interest: Arc<Interest>,
    told: Mutex<Told>,
    /// Moves whenever something has happened.
    news: watch::Sender<u64>,
    watchers: AtomicUsize,
    /// Somebody begins to watch: from now on states are looked at, also where the index has nothing to tell.
    began: Notify,
}

/// What was told, and who there is.
#[derive(Debug)]
pub(super) struct Told {
    pub(super) history: History,
    pub(super) ranks: BTreeMap<RankId, Arc<Named>>,
    /// Where each feed stands, and why, as of what was told last: a new rank is told with it, and whatever it comes to
    /// later is a change. It is looked at while somebody watches, and when somebody begins to.
    states: BTreeMap<RankId, (State, String)>,
    removals: Removals,
}

/// One of the watchers that may be there at one time.
#[derive(Debug)]
pub(in crate::serve) struct Seat(Arc<Hub>);

/// How often the board is looked at: for names of new ranks, and for states while somebody watches.
const LOOK: Duration = Duration::from_millis(100);

// === impl Hub ===

impl Hub {
    /// Begins to listen, until `stop`. Must be called within a tokio runtime.
    pub(in crate::serve) fn start(
        fleet: Arc<Fleet>,
        metrics: RequestMetrics,
        limits: WatchLimits,
        stop: CancellationToken,
    ) -> Arc<Self> {
        let (history, removals) = (History::new(), Removals::default());
        let told = Told { history, ranks: BTreeMap::new(), states: BTreeMap::new(), removals };
        let hub = Arc::new(Self {
            fleet,
            metrics,
            stop,
            limits,
            interest: Interest::in_removals(),
            instance: fastrand::u64(1..),
            told: Mutex::new(told),
            news: watch::Sender::new(0),
            watchers: AtomicUsize::new(0),
            began: Notify::new(),
        });
        tokio::spawn(Arc::clone(&hub).listen());
        hub
    }

    pub(super) fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves whenever something has happened.
    pub(super) fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// What is remembered of a rank's removals.
    pub(in crate::serve) fn remembered(&self, rank: RankId) -> Option<Remembered> {
        self.told().removals.of(rank)
    }

    /// A place for one more watcher, if there is one. History is kept from the first on.
    pub(in crate::serve) fn seat(self: &Arc<Self>) -> Result<Seat, Status> {
        let most = self.limits.watchers;
        let free = |watchers: usize| (watchers < most).then_some(watchers + 1);
        if self.watchers.fetch_update(Ordering::Relaxed, Ordering::Relaxed, free).is_err() {
            return Err(Status::resource_exhausted(format!(
                "grpc.watch.watchers: {most} watch already, and no more are taken"
            )));
        }
        self.metrics.watcher_came();
        // A watcher takes its snapshots after this, so every later transaction that it needs is told whole.
        self.interest.widen();
        self.told().history.keep(self.limits.history_bytes);
        if self.look_at_states() {
            self.say_so();
        }
        self.began.notify_one();
        Ok(Seat(Arc::clone(self)))
    }

    async fn listen(self: Arc<Self>) {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut is_first = true;
        while !self.stop.is_cancelled() {
            let mut listener = self.fleet.index.listen_for(TapBounds::default(), Arc::clone(&self.interest));
            let mut nameless = BTreeSet::new();
            if !std::mem::take(&mut is_first) {
                // Something was missed. Whoever watches has to begin anew.
                let mut told = self.told();
                told.history.begin_anew();
                told.ranks.clear();
                told.states.clear();
                told.removals.begin_anew();
            }
            for (rank, _) in self.fleet.index.ranks() {
                if listener.attend(rank).is_some() {
                    self.told().removals.begin(rank);
                    nameless.insert(rank);
                }
            }
            self.name(&mut nameless);
            self.say_so();
            loop {
                let is_watched = self.watchers.load(Ordering::Relaxed) > 0;
                let heard = tokio::select! {
                    () = self.stop.cancelled() => return,
                    heard = listener.next() => heard,
                    () = self.began.notified() => continue,
                    _ = look.tick(), if is_watched || !nameless.is_empty() => {
                        let news = self.name(&mut nameless) | (is_watched && self.look_at_states());
                        if news {
                            self.say_so();
                        }
                        continue;
                    }
                };
                match heard {
                    Ok(heard) => self.heard(&listener, heard, &mut nameless),
                    Err(cut) => {
                        tracing::warn!("The watch has to begin anew: {cut}.");
                        break;
                    }
                }
            }
        }
    }

    fn heard(&self, listener: &Listener, heard: Heard, nameless: &mut BTreeSet<RankId>) {
        match heard {
            Heard::Registered { rank, .. } => {
                let is_there = listener.attend(rank).is_some();
                if is_there {
                    self.told().removals.begin(rank);
                    nameless.insert(rank);
                    self.name(nameless);
                }
            }
            Heard::Delta(delta) => {
                if nameless.contains(&delta.rank) {
                    self.name(nameless);
                }
                self.told().tell(delta, nameless);
            }
        }
        self.say_so();
    }

    fn say_so(&self) {
        self.news.send_modify(|news| *news = news.wrapping_add(1));
    }

    /// Gives names to ranks whose feeds are on the board by now. Says whether there were any.
    fn name(&self, nameless: &mut BTreeSet<RankId>) -> bool {
        let before = nameless.len();
        nameless.retain(|rank| {
            let Some(entry) = self.fleet.board.get(*rank) else { return true };
            let mut told = self.told();
            let identity = entry.identity.clone();
            let key = encode::key(&identity, *rank, self.instance);
            let named = Arc::new(Named { rank: *rank, identity, key });
            told.ranks.insert(*rank, Arc::clone(&named));
            told.states.insert(*rank, standing(&entry));
            told.history.push(Happening::Added(named));
            false
        });
        nameless.len() < before
    }

    /// Tells where a feed's state is another one than was told last. Says whether any is.
    fn look_at_states(&self) -> bool {
        let mut told = self.told();
        let Told { history, ranks, states, .. } = &mut *told;
        let before = history.end();
        for named in ranks.values() {
            let Some(entry) = self.fleet.board.get(named.rank) else { continue };
            let now = standing(&entry);
            if states.get(&named.rank) != Some(&now) {
                states.insert(named.rank, now.clone());
                history.push(Happening::Changed(Arc::clone(named), now.0, now.1));
            }
        }
        history.end() > before
    }
}

/// Where a feed stands, and why.
fn standing(entry: &Entry) -> (State, String) {
    let status = entry.status();
    (status.state, status.why.clone())
}

// === impl Told ===

impl Told {
    /// Where a rank stood when that was last told; `None`: it has no name, or is gone.
    pub(super) fn state(&self, rank: RankId) -> Option<(State, String)> {
        self.states.get(&rank).cloned()
    }

    fn tell(&mut self, delta: Arc<Delta>, nameless: &mut BTreeSet<RankId>) {
        let is_gone = delta.changes.contains(&Change::Gone);
        if is_gone {
            nameless.remove(&delta.rank);
            self.removals.end(delta.rank);
            self.states.remove(&delta.rank);
            if let Some(named) = self.ranks.remove(&delta.rank) {
                self.history.push(Happening::Gone(named));
            }
            return;
        }
        self.removals.note(&delta);
        if let Some(named) = self.ranks.get(&delta.rank) {
            self.history.push(Happening::Delta(Arc::clone(named), delta));
        }
    }
}

// === impl Seat ===

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.watchers.fetch_sub(1, Ordering::Relaxed);
        self.0.metrics.watcher_left();
    }
}
