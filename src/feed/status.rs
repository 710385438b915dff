//! The status board: what each feed is doing, written by feeds, read by whoever answers.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Instant, SystemTime};

use dashmap::DashMap;

use super::drops::Dropped;
use super::link::{QueueGauge, Waiting};
use crate::normalize::WaitingRoom;
use crate::proto::v1;
use crate::worker::{Identity, RankId};

/// How far a feed's picture of its engine can be trusted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum State {
    /// No socket yet, or nothing known of the engine's history yet.
    #[default]
    Connecting,
    /// History is being fetched; what is held so far may lack blocks.
    Replaying,
    /// Every message from sequence 0 of this epoch on has been applied.
    Live,
    /// Messages are missing that nobody can give back; until a clear, a new epoch or a snapshot.
    Incomplete,
    /// The engine's own events cannot name blocks exactly; answers never overstate.
    Degraded,
    /// The engine stayed away beyond the grace: its blocks were withdrawn.
    Gone,
}

/// What is known of one feed.
#[derive(Clone, Debug)]
pub struct Status {
    /// Where the feed stands.
    pub state: State,
    /// One sentence: why it stands there.
    pub why: String,
    /// Since when.
    pub since: SystemTime,
    /// One life of the engine: 1 for the first that was seen; 0 before any message.
    pub epoch: u64,
    /// The last applied sequence number of this epoch.
    pub last_sequence: Option<u64>,
    /// When a message last came, as far as the feed has told; [`Entry::heard`] knows of heartbeats too.
    pub last_heard: Option<Instant>,
    /// Whether the socket is connected now.
    pub connected: bool,
    /// Where a bound socket listens, with the port that the system chose.
    pub listening: Option<String>,
    /// Why the link last broke or could not be made.
    pub fault: Option<String>,
    /// Messages received.
    pub messages: u64,
    /// Bytes received.
    pub bytes: u64,
    /// Events applied.
    pub events: u64,
    /// How often messages were found missing.
    pub gaps: u64,
    /// Messages that were missing and never came.
    pub missed: u64,
    /// Messages that came twice.
    pub duplicates: u64,
    /// Replays by outcome: `complete`, `short`, `empty`, `timeout`, `failed`.
    pub replays: BTreeMap<&'static str, u64>,
    /// New epochs and withdrawals by cause: `sequence_lower`, `digest_differs`, `replay_empty`, `unproven`, `rebuilt`,
    /// `grace_expired`, `publisher_changed` ([`Cause`](super::machine::Cause)).
    pub resets: BTreeMap<&'static str, u64>,
    /// Messages, events and blocks that were dropped, by the word of [`Dropped`].
    pub dropped: BTreeMap<&'static str, u64>,
    /// Blocks parked because their parent is unknown.
    pub orphans: u64,
    /// Snapshots by outcome: `restored`, `written`, `failed`.
    pub snapshots: BTreeMap<&'static str, u64>,
    /// Snapshots that were not believed, by reason ([`Refusal`](crate::snapshot::Refusal)).
    pub snapshots_refused: BTreeMap<&'static str, u64>,
}

/// The `engine` label of a rank that another process taps and relays to us.
pub const RELAYED: &str = "relay";

/// What the events of a rank come from, and so who may publish it into a fleet.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Origin {
    /// The engine's own socket or URL: this process taps it, and may publish for it.
    #[default]
    Engine,
    /// A subscription of NATS: every other process can subscribe to the same.
    Subscription,
    /// The process that taps the engine, which publishes the rank itself.
    Relay,
    /// Nothing: it is a subscription itself, on the board so that people see how it is. It holds no blocks, and takes no prompt.
    None,
}

/// One feed on the board.
#[derive(Debug)]
pub struct Entry {
    /// The rank's slot in the index.
    pub rank: RankId,
    /// What the worker is called.
    pub identity: Identity,
    /// The endpoint of the feed, as configured (rank offset applied).
    pub endpoint: String,
    /// The replay endpoint, where there is one.
    pub replay: Option<String>,
    /// The engine, by its configured word.
    pub engine: &'static str,
    origin: Origin,
    queue: Option<QueueGauge>,
    /// What of it waits for its parent.
    pub orphans: WaitingRoom,
    status: Mutex<Status>,
    written: [OnceLock<Box<[u8]>>; 2],
}

/// Every feed there is.
#[derive(Debug, Default)]
pub struct Board {
    entries: DashMap<RankId, Arc<Entry>>,
}

// === impl State ===

impl State {
    /// The state's word in answers and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Replaying => "replaying",
            Self::Live => "live",
            Self::Incomplete => "incomplete",
            Self::Degraded => "degraded",
            Self::Gone => "gone",
        }
    }
}

impl From<State> for v1::FeedState {
    /// The state, as the protocol numbers it.
    fn from(state: State) -> Self {
        match state {
            State::Connecting => Self::Connecting,
            State::Replaying => Self::Replaying,
            State::Live => Self::Live,
            State::Incomplete => Self::Incomplete,
            State::Degraded => Self::Degraded,
            State::Gone => Self::Gone,
        }
    }
}

// === impl Status ===

impl Default for Status {
    fn default() -> Self {
        Self {
            state: State::default(),
            why: "not connected yet".to_owned(),
            since: SystemTime::now(),
            epoch: 0,
            last_sequence: None,
            last_heard: None,
            connected: false,
            listening: None,
            fault: None,
            messages: 0,
            bytes: 0,
            events: 0,
            gaps: 0,
            missed: 0,
            duplicates: 0,
            replays: BTreeMap::new(),
            resets: BTreeMap::new(),
            dropped: BTreeMap::new(),
            orphans: 0,
            snapshots: BTreeMap::new(),
            snapshots_refused: BTreeMap::new(),
        }
    }
}

impl Status {
    /// Counts what was dropped.
    pub(crate) fn count_dropped(&mut self, reason: Dropped, count: u64) {
        if count > 0 {
            *self.dropped.entry(reason.word()).or_default() += count;
        }
    }
}

// === impl Entry ===

impl Entry {
    /// A feed that has not begun, of an engine that this process taps itself.
    pub fn new(
        rank: RankId,
        identity: Identity,
        endpoint: String,
        replay: Option<String>,
        engine: &'static str,
    ) -> Self {
        let (queue, orphans) = (None, WaitingRoom::default());
        Self {
            rank,
            identity,
            endpoint,
            replay,
            engine,
            origin: Origin::Engine,
            queue,
            orphans,
            status: Mutex::default(),
            written: Default::default(),
        }
    }

    /// The same feed, whose events come from `origin`.
    #[must_use]
    pub fn with_origin(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }

    /// The same feed, whose messages wait in the queue that `gauge` looks at.
    #[must_use]
    pub fn queued(self, gauge: QueueGauge) -> Self {
        Self { queue: Some(gauge), ..self }
    }

    /// The same feed, whose blocks without a parent wait in `orphans`.
    #[must_use]
    pub fn with_orphans(self, orphans: WaitingRoom) -> Self {
        Self { orphans, ..self }
    }

    /// The identity as answers have it, brief ones and whole ones: written once, by whoever answers first.
    pub fn written(&self, brief: bool, write: impl FnOnce(&Identity) -> Box<[u8]>) -> &[u8] {
        let [whole, short] = &self.written;
        if brief { short } else { whole }.get_or_init(|| write(&self.identity))
    }

    /// What waits between its socket and the index; `None`: it has no queue.
    pub fn waiting(&self) -> Option<Waiting> {
        self.queue.as_ref().map(QueueGauge::read)
    }

    /// When anything last came from its publisher, be it a heartbeat; `None`: never, or it has no queue.
    pub fn heard(&self) -> Option<Instant> {
        self.queue.as_ref().and_then(QueueGauge::last_heard).map(tokio::time::Instant::into_std)
    }

    /// The status, locked: hold it for the moment of a read or an update only.
    pub fn status(&self) -> MutexGuard<'_, Status> {
        self.status.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a router can send it a prompt.
    pub fn is_a_rank(&self) -> bool {
        self.origin != Origin::None
    }

    /// Whether this process taps the engine itself, and may publish the rank into a fleet.
    pub fn is_first_hand(&self) -> bool {
        self.origin == Origin::Engine
    }

    /// Since when the feed has been live; `None`: it is not. Where this is the same before and after something was
    /// read from the index, that was read of a live feed.
    pub fn live_since(&self) -> Option<SystemTime> {
        let status = self.status();
        (status.state == State::Live).then_some(status.since)
    }
}

// === impl Board ===

impl Board {
    /// Puts a feed on the board.
    pub fn insert(&self, entry: Arc<Entry>) {
        self.entries.insert(entry.rank, entry);
    }

    /// Takes a feed off the board.
    pub fn remove(&self, rank: RankId) {
        self.entries.remove(&rank);
    }

    /// One feed.
    pub fn get(&self, rank: RankId) -> Option<Arc<Entry>> {
        self.entries.get(&rank).map(|entry| Arc::clone(&entry))
    }

    /// The feeds of one model, in no particular order.
    pub fn of_model(&self, model: &str) -> Vec<Arc<Entry>> {
        let of_model = self.entries.iter().filter(|entry| &*entry.identity.model == model);
        of_model.map(|entry| Arc::clone(&entry)).collect()
    }

    /// Every feed, by worker name and rank.
    pub fn all(&self) -> Vec<Arc<Entry>> {
        let mut all: Vec<_> = self.entries.iter().map(|entry| Arc::clone(&entry)).collect();
        all.sort_by(|a, b| (&a.identity.worker, a.identity.rank).cmp(&(&b.identity.worker, b.identity.rank)));
        all
    }
}
