//! What is known of each rank, read from the status board and the index: the one picture that `/status`,
//! `ListWorkers` and `kvtap workers` show.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, UNIX_EPOCH};

use serde::Serialize;

use super::discovery::Discovered;
use super::reloads::Reloads;
use crate::block::Tier;
use crate::feed::link::Waiting;
use crate::feed::status::{Board, Entry};
use crate::index::Index;
use crate::roster::{Roster, Standing};

/// This program's version.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Everything that answers are made of.
#[derive(Debug)]
pub struct Fleet {
    /// Who holds what.
    pub index: Arc<Index>,
    /// What each feed is doing.
    pub board: Arc<Board>,
    /// Who wants which feeds.
    pub standing: Arc<Standing>,
    /// What came of reading the configuration again.
    pub reloads: Arc<Reloads>,
    /// How discovery fares.
    pub discovered: Arc<Discovered>,
    /// How the relay fares.
    pub relayed: Arc<crate::relay::Figures>,
    started: Instant,
    snapshots: OnceLock<SnapshotFolder>,
}

/// The folder that snapshots go to, where one is configured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SnapshotFolder {
    /// Where it is.
    pub directory: String,
    /// Why no snapshot is taken or loaded; absent where all is well.
    pub fault: Option<String>,
}

/// One rank's feed and what is held of it. Its JSON field names are relied on by other programs.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct RankReport {
    /// The worker's name.
    pub worker: String,
    /// The address routers reach it at; empty where none is configured.
    pub address: String,
    /// Further names.
    pub aliases: Vec<String>,
    /// The model.
    pub model: String,
    /// The data-parallel rank.
    pub rank: u32,
    /// The feed's state, by its word.
    pub state: String,
    /// Why it is in that state.
    pub why: String,
    /// Since when, in milliseconds since the Unix epoch.
    pub since_unix_ms: u64,
    /// The engine's life: 1 for the first that was seen, 0 before any message.
    pub epoch: u64,
    /// The last applied sequence number of this epoch.
    pub last_seq: Option<u64>,
    /// Milliseconds since the feed was last heard.
    pub age_ms: Option<u64>,
    /// Blocks held, of groups that mean a prefix.
    pub blocks: u64,
    /// The same by tier.
    pub tiers: TierBlocks,
    /// Tokens a block, once known.
    pub block_size: Option<u32>,
    /// Tokens past a block's end that its hash covers too.
    pub lookahead: u32,
    /// Cache groups that were seen.
    pub groups: Vec<u32>,
    /// Blocks held by other groups.
    pub window_blocks: u64,
    /// Copies of blocks beyond the first.
    pub extra_copies: u64,
    /// Memory that the rank's tables take, in bytes, estimated.
    pub memory_bytes: u64,
    /// Blocks forgotten because a bound was reached.
    pub evicted_blocks: u64,
    /// Blocks that wait for their parent.
    pub orphans: u64,
    /// How often messages were found missing.
    pub gaps: u64,
    /// Messages that never came.
    pub missed: u64,
    /// Messages that came twice.
    pub duplicates: u64,
    /// Replays, whatever came of them.
    pub replays: u64,
    /// Replays by outcome.
    pub replay_outcomes: BTreeMap<String, u64>,
    /// New epochs and withdrawals by cause.
    pub resets: BTreeMap<String, u64>,
    /// What was dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Snapshots by outcome.
    pub snapshots: BTreeMap<String, u64>,
    /// Snapshots that were not believed, by reason.
    pub snapshots_refused: BTreeMap<String, u64>,
    /// Messages received.
    pub messages: u64,
    /// Bytes received.
    pub received_bytes: u64,
    /// Events applied.
    pub events: u64,
    /// What waits between socket and index, and what may.
    pub queue: Queue,
    /// Whether the socket is connected now.
    pub connected: bool,
    /// The engine, by its configured word.
    pub engine: String,
    /// The endpoint of the feed.
    pub endpoint: String,
    /// The replay endpoint, where there is one.
    pub replay_endpoint: Option<String>,
}

/// The queue between a feed's socket and the index; zeros where a feed has none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Queue {
    /// Messages that wait.
    pub messages: u64,
    /// What they hold, in bytes.
    pub bytes: u64,
    /// Messages that may wait; the next is dropped, and fetched again by replay.
    pub limit_messages: u64,
    /// Bytes that may wait.
    pub limit_bytes: u64,
}

/// Blocks by tier. A block on two tiers counts on both.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct TierBlocks {
    /// In the accelerator's memory.
    pub device: u64,
    /// In the host's memory.
    pub host: u64,
    /// On a local disk.
    pub disk: u64,
    /// On shared or remote storage.
    pub external: u64,
    /// On media that are not known.
    pub other: u64,
}

// === impl Fleet ===

impl Fleet {
    /// A fleet that starts to be served now.
    pub fn new(index: Arc<Index>, board: Arc<Board>) -> Self {
        Self {
            index,
            board,
            standing: Arc::default(),
            reloads: Arc::default(),
            discovered: Arc::default(),
            relayed: Arc::default(),
            started: Instant::now(),
            snapshots: OnceLock::new(),
        }
    }

    /// The same fleet, whose feeds `roster` decides on.
    pub fn decided_by(self, roster: &Roster) -> Self {
        Self { standing: Arc::clone(roster.standing()), ..self }
    }

    /// Says where its snapshots go, once.
    pub fn set_snapshots(&self, folder: SnapshotFolder) {
        // Said twice, the first word stands: there is one folder a process.
        let _ = self.snapshots.set(folder);
    }

    /// Where its snapshots go; `None`: it takes none.
    pub fn snapshots(&self) -> Option<&SnapshotFolder> {
        self.snapshots.get()
    }

    /// How long it has been served.
    pub fn uptime(&self) -> Duration {
        self.started.elapsed()
    }

    /// A report of every rank, by worker name and rank.
    pub fn reports(&self) -> Vec<RankReport> {
        self.board.all().iter().map(|entry| self.report(entry)).collect()
    }

    /// A report of one rank.
    pub fn report(&self, entry: &Entry) -> RankReport {
        // In this order, what the status says was applied is in the usage, too.
        let status = entry.status().clone();
        let usage = self.index.usage(entry.rank).unwrap_or_default();
        let identity = &entry.identity;
        RankReport {
            worker: identity.worker.to_string(),
            address: identity.address.to_string(),
            aliases: identity.aliases.to_vec(),
            model: identity.model.to_string(),
            rank: identity.rank,
            state: status.state.name().to_owned(),
            why: status.why.clone(),
            since_unix_ms: status.since.duration_since(UNIX_EPOCH).map_or(0, millis),
            epoch: status.epoch,
            last_seq: status.last_sequence,
            age_ms: status.last_heard.max(entry.heard()).map(|heard| millis(heard.elapsed())),
            blocks: usage.blocks,
            tiers: TierBlocks::of(&usage.by_tier),
            block_size: usage.grid.map(|grid| grid.size()),
            lookahead: usage.grid.map_or(0, |grid| grid.lookahead),
            groups: usage.groups.iter().map(|group| group.0).collect(),
            window_blocks: usage.window_blocks,
            extra_copies: usage.extra_copies,
            memory_bytes: usage.bytes,
            evicted_blocks: usage.evicted,
            orphans: status.orphans,
            gaps: status.gaps,
            missed: status.missed,
            duplicates: status.duplicates,
            replays: status.replays.values().sum(),
            replay_outcomes: owned(&status.replays),
            resets: owned(&status.resets),
            dropped: owned(&status.dropped),
            snapshots: owned(&status.snapshots),
            snapshots_refused: owned(&status.snapshots_refused),
            messages: status.messages,
            received_bytes: status.bytes,
            events: status.events,
            queue: entry.waiting().map(Queue::of).unwrap_or_default(),
            connected: status.connected,
            engine: entry.engine.to_owned(),
            endpoint: entry.endpoint.clone(),
            replay_endpoint: entry.replay.clone(),
        }
    }
}

/// Whole milliseconds, as far as 64 bits go.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn owned(counts: &BTreeMap<&'static str, u64>) -> BTreeMap<String, u64> {
    counts.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect()
}

// === impl Queue ===

impl Queue {
    fn of(waiting: Waiting) -> Self {
        Self {
            messages: waiting.messages as u64,
            bytes: waiting.bytes as u64,
            limit_messages: waiting.limits.messages as u64,
            limit_bytes: waiting.limits.bytes as u64,
        }
    }
}

// === impl TierBlocks ===

impl TierBlocks {
    /// Counts by [`Tier::index`], the unknown media put together.
    pub fn of<N: Copy + Into<u64>>(by_tier: &[N; Tier::COUNT]) -> Self {
        let mut blocks = Self::default();
        for (tier, count) in Tier::all().into_iter().zip(by_tier) {
            let count: u64 = (*count).into();
            match tier {
                Tier::Device => blocks.device = count,
                Tier::Host => blocks.host = count,
                Tier::Disk => blocks.disk = count,
                Tier::External => blocks.external = count,
                Tier::Other(_) => blocks.other += count,
            }
        }
        blocks
    }

    /// Leading blocks by [`Tier::index`]; of the unknown media, the one that leads farthest.
    pub fn leading(lead: &[u32; Tier::COUNT]) -> Self {
        let [device, host, disk, external, others @ ..] = lead.map(u64::from);
        Self { device, host, disk, external, other: others.into_iter().max().unwrap_or_default() }
    }

    /// Leading blocks within each known tier, and within any.
    pub fn within(within: &[u32; Tier::KNOWN], any: u32) -> Self {
        let [device, host, disk, external] = within.map(u64::from);
        Self { device, host, disk, external, other: any.into() }
    }

    /// Each tier's word with its count.
    pub const fn named(self) -> [(&'static str, u64); 5] {
        [
            ("device", self.device),
            ("host", self.host),
            ("disk", self.disk),
            ("external", self.external),
            ("other", self.other),
        ]
    }
}
