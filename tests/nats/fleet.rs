//! Members of a fleet: an index that is changed by hand and published, or one that follows.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use kvtap::block::{Grid, Group, Tier};
use kvtap::feed::nats::ConnectionOptions;
use kvtap::feed::status::{Board, Entry, State, Status};
use kvtap::hash::{ContentHash, EngineHash, PrefixHash, Seed};
use kvtap::index::{self, Block, Chain, Copies, Index, Parent, RankWriter};
use kvtap::relay::{Figures, Relay, RelayOptions};
use kvtap::worker::{Identity, Stamp};
use tokio::time::{Instant, sleep};

use crate::server::PATIENCE;

/// Tokens a block.
const BLOCK: u64 = 4;

/// Chains that members store blocks of: so many, so long.
pub const CHAINS: u64 = 8;
pub const DEPTH: u64 = 32;

pub struct Member {
    pub index: Arc<Index>,
    pub board: Arc<Board>,
    pub relay: Relay,
}

/// A rank that a member taps: its engine is the test.
pub struct Engine {
    writer: RankWriter,
    entry: Arc<Entry>,
    sequence: u64,
    epoch: u64,
    /// How many leading blocks of each chain it holds.
    pub depths: Vec<u64>,
    /// The same after each message, by epoch and sequence number.
    pub history: HashMap<(u64, Option<u64>), Vec<u64>>,
}

/// Quick, so that tests need not wait.
pub fn options(url: &str) -> RelayOptions {
    let mut connection = ConnectionOptions::new(url.parse().unwrap());
    connection.ping_interval = Duration::from_millis(200);
    connection.first_retry = Duration::from_millis(10);
    connection.longest_retry = Duration::from_millis(100);
    RelayOptions {
        announce: Duration::from_millis(200),
        patience: Duration::from_millis(1500),
        grace: Duration::from_secs(30),
        jitter: Duration::from_millis(20),
        ..RelayOptions::new(connection)
    }
}

impl Member {
    pub fn join(options: RelayOptions) -> Self {
        Self::join_counted(options, &Arc::default())
    }

    /// One whose figures are looked at.
    pub fn join_counted(options: RelayOptions, figures: &Arc<Figures>) -> Self {
        let (index, board) = (Index::new(index::Limits::default()), Arc::new(Board::default()));
        let relay = Relay::spawn_counted(options, &index, &board, figures);
        Self { index, board, relay }
    }

    /// A rank of its own.
    pub fn engine(&self, worker: &str, rank: u32) -> Engine {
        let writer = self.index.register("m/1", Copies::Count).unwrap();
        let identity = Identity {
            worker: worker.into(),
            address: "10.0.0.7:8000".into(),
            aliases: Arc::from(["other-name".to_owned()]),
            model: "m/1".into(),
            rank,
        };
        let entry = Arc::new(Entry::new(writer.rank(), identity, "tcp://127.0.0.1:5557".into(), None, "vllm"));
        self.board.insert(Arc::clone(&entry));
        let mut engine =
            Engine { writer, entry, sequence: 0, epoch: 1, depths: vec![0; CHAINS as usize], history: HashMap::new() };
        engine.show(State::Live);
        engine.change(|_| ());
        engine
    }

    pub fn entry(&self, worker: &str, rank: u32) -> Option<Arc<Entry>> {
        self.board.all().into_iter().find(|e| &*e.identity.worker == worker && e.identity.rank == rank)
    }

    pub async fn until(&self, worker: &str, rank: u32, what: &str, condition: impl Fn(&Status) -> bool) -> Status {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.entry(worker, rank).map(|entry| entry.status().clone());
            if let Some(status) = status.clone().filter(|status| condition(status)) {
                return status;
            }
            assert!(Instant::now() < deadline, "{worker}/{rank} was never {what}: {status:?}");
            sleep(Duration::from_millis(2)).await;
        }
    }

    pub async fn absent(&self, worker: &str, rank: u32) {
        let deadline = Instant::now() + PATIENCE;
        while self.entry(worker, rank).is_some() {
            assert!(Instant::now() < deadline, "{worker}/{rank} stays");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Leading blocks that a rank holds of each chain.
    pub fn depths(&self, entry: &Entry) -> Vec<u64> {
        (0..CHAINS)
            .map(|chain| {
                let contents: Vec<_> = (0..DEPTH).map(|depth| content(chain, depth)).collect();
                let mut found = Vec::new();
                let grid = Grid::new(BLOCK).unwrap();
                self.index.match_chain("m/1", grid, Chain::Content(&contents), Some(&[entry.rank]), &mut found);
                found.first().map_or(0, |found| u64::from(found.blocks))
            })
            .collect()
    }

    /// Waits until a rank is followed as `engine` is now, and live.
    pub async fn equal(&self, engine: &Engine) {
        let identity = &engine.entry.identity;
        let stamp = engine.stamp();
        let is = |status: &Status| {
            status.state == State::Live && (status.epoch, status.last_sequence) == (stamp.epoch, stamp.sequence)
        };
        self.until(&identity.worker, identity.rank, &format!("live at {stamp:?}"), is).await;
        let entry = self.entry(&identity.worker, identity.rank).unwrap();
        assert_eq!(self.depths(&entry), engine.depths);
        assert_eq!((&entry.identity.address, &entry.identity.aliases), (&identity.address, &identity.aliases));
    }
}

impl Engine {
    pub fn stamp(&self) -> Stamp {
        Stamp { epoch: self.epoch, sequence: self.sequence.checked_sub(1) }
    }

    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    pub fn show(&self, state: State) {
        let mut status = self.entry.status();
        status.state = state;
        status.why = format!("the test says {}", state.name());
        status.since = SystemTime::now();
    }

    fn change(&mut self, change: impl FnOnce(&mut kvtap::index::Tx<'_>)) {
        let stamp = Stamp { epoch: self.epoch, sequence: Some(self.sequence) };
        self.sequence += 1;
        self.history.insert((stamp.epoch, stamp.sequence), self.depths.clone());
        let mut tx = self.writer.begin().unwrap();
        let _ = tx.set_grid(Grid::new(BLOCK).unwrap());
        change(&mut tx);
        tx.commit(stamp);
    }

    /// Makes a chain so deep, block by block or by removing from its end.
    pub fn deepen(&mut self, chain: u64, depth: u64) {
        let before = std::mem::replace(&mut self.depths[chain as usize], depth);
        self.change(|tx| {
            if depth > before {
                let blocks: Vec<Block> =
                    (before..depth).map(|at| Block { engine: name(chain, at), content: content(chain, at) }).collect();
                let parent = match before.checked_sub(1) {
                    None => Parent::Root(Seed::PLAIN),
                    Some(last) => Parent::Under(tx.find(name(chain, last)).unwrap().place),
                };
                tx.store(parent, Tier::Device, Group(0), &blocks);
            } else {
                let gone: Vec<EngineHash> = (depth..before).map(|at| name(chain, at)).collect();
                tx.remove(Tier::Device, Group(0), &gone);
            }
        });
    }

    pub fn clear(&mut self) {
        self.depths.fill(0);
        self.change(|tx| tx.clear());
    }

    /// Another life of the engine.
    pub fn restart(&mut self) {
        self.depths.fill(0);
        self.epoch += 1;
        self.sequence = 0;
        self.change(|tx| tx.reset());
    }
}

fn content(chain: u64, depth: u64) -> ContentHash {
    ContentHash(PrefixHash::after(Some(PrefixHash(chain)), ContentHash(depth)).0)
}

fn name(chain: u64, depth: u64) -> EngineHash {
    EngineHash::from_u64(chain << 32 | depth)
}
