//! A rank's life: messages decoded, normalized and indexed, beside another rank that must not notice.

use std::collections::HashSet;
use std::sync::Arc;

use kvtap::block::{Grid, Tier};
use kvtap::hash::{ContentHash, EngineHash, Seed};
use kvtap::index::{Chain, Copies, Index, Limits, RankUsage};
use kvtap::normalize::{Normalizer, Options, OrphanLimits};
use kvtap::wire::{Batch, Dialect, Event, decode, dynamo};
use kvtap::worker::{RankId, Stamp};

use super::beside::{Beside, MODEL, fair};
use super::split;

/// Blocks that a rank may hold: few enough for an input to reach.
const CAP: usize = 96;
/// Bounds of the waiting room, as small.
const ORPHANS: OrphanLimits = OrphanLimits { blocks: 24, bytes: 16 << 10 };
const CLEAR: &[u8] = b"\x92\x01\x91\x91\xb0AllBlocksCleared";
/// One block of the tokens 1 to 4.
const STORE: &[u8] = b"\x92\x01\x91\x97\xabBlockStored\x91\x2a\xc0\x94\x01\x02\x03\x04\x04\xc0\xc0";

/// The rank under test.
struct Life {
    index: Arc<Index>,
    normalizer: Normalizer,
    batch: Batch,
    /// Names announced since the last clear: what the rank may hold at most.
    announced: u64,
    /// The same, each once.
    names: HashSet<EngineHash>,
    sequence: u64,
}

/// The first byte says how to decode, whether copies count and which block size is promised; then come messages, each
/// with its length.
pub fn pipeline(bytes: &[u8]) {
    let Some((how, bytes)) = bytes.split_first() else { return };
    let index = Index::new(Limits { blocks_per_rank: CAP, blocks_in_all: 4 * CAP });
    let beside = Beside::new(&index);
    let copies = if how & 0x10 == 0 { Copies::Count } else { Copies::Set };
    let writer = index.register(MODEL, copies).expect("a rank");
    let rank = writer.rank();
    let block_size = if how & 0x20 == 0 { None } else { Some(4) };
    let normalizer = Normalizer::new(writer, Options { block_size, orphans: ORPHANS });
    let mut life = Life::new(Arc::clone(&index), normalizer);
    for message in split(bytes) {
        life.message(*how, message);
    }

    beside.unchanged();
    life.ends_well(rank);
    index.remove(rank);
    assert!(index.usage(rank).is_none(), "a removed rank still holds something");
    assert!(life.normalizer.apply(&life.batch, Stamp::default()).is_err(), "a removed rank came back");
    beside.unchanged();
}

// === impl Life ===

impl Life {
    fn new(index: Arc<Index>, normalizer: Normalizer) -> Self {
        Self { index, normalizer, batch: Batch::default(), announced: 0, names: HashSet::new(), sequence: 0 }
    }

    fn message(&mut self, how: u8, message: &[u8]) {
        let decoded = match how % 3 {
            0 => decode(Dialect::Auto, message, &mut self.batch),
            1 => decode(Dialect::Vllm, message, &mut self.batch),
            _ => dynamo::decode(message, &mut self.batch),
        };
        if decoded.is_err() {
            // What a feed does with an engine that was restarted.
            let stamp = self.next_stamp();
            self.normalizer.reset(stamp).expect("the rank is there");
            (self.announced, self.names) = (0, HashSet::new());
            assert_eq!(self.held(), (0, 0), "blocks that outlived their epoch");
            return;
        }
        for event in &self.batch.events {
            match event {
                Event::Stored(stored) => {
                    self.announced += stored.hashes.len() as u64;
                    self.names.extend(self.batch.hashes(stored.hashes));
                }
                Event::Removed(_) => {}
                Event::Cleared => (self.announced, self.names) = (0, HashSet::new()),
            }
        }
        let stamp = self.next_stamp();
        let applied = self.normalizer.apply(&self.batch, stamp).expect("the rank is there");
        assert!(applied.events <= self.batch.events.len() as u64, "more events than there were");
        let usage = self.usage();
        let (held, waiting) = self.held();
        assert!(held + waiting <= self.announced, "{held} held and {waiting} waiting of {}", self.announced);
        assert!(held <= CAP as u64 && waiting <= ORPHANS.blocks as u64, "over a bound");
        assert_eq!(usage.stamp, stamp, "the stamp of another batch");
        self.asked(&usage);
    }

    /// No answer is deeper than what is held.
    fn asked(&self, usage: &RankUsage) {
        let Some(grid) = usage.grid else { return };
        let contents: Vec<ContentHash> = self
            .batch
            .events
            .iter()
            .filter_map(|event| if let Event::Stored(stored) = event { Some(stored) } else { None })
            .flat_map(|stored| match self.batch.contents(stored.contents) {
                [] => grid.plain_contents(self.batch.tokens(stored.tokens), Seed::PLAIN),
                contents => contents.to_vec(),
            })
            .take(4 * CAP)
            .collect();
        fair(&self.index, usage, self.normalizer.rank(), &contents, self.announced - self.names.len() as u64);
    }

    /// A clear empties the rank whatever came before; a good store after it is found.
    fn ends_well(&mut self, rank: RankId) {
        decode(Dialect::Auto, CLEAR, &mut self.batch).expect("a good message");
        let stamp = self.next_stamp();
        assert!(self.normalizer.apply(&self.batch, stamp).expect("the rank is there").cleared);
        assert_eq!(self.held(), (0, 0), "a clear left something");
        let usage = self.usage();
        assert_eq!((usage.by_tier, usage.extra_copies), ([0; Tier::COUNT], 0), "a clear left something");

        let stamp = self.next_stamp();
        self.normalizer.reset(stamp).expect("the rank is there");
        decode(Dialect::Auto, STORE, &mut self.batch).expect("a good message");
        let stamp = self.next_stamp();
        self.normalizer.apply(&self.batch, stamp).expect("the rank is there");
        let grid = Grid::new(4).expect("a grid");
        let contents = grid.plain_contents(&tokens([1, 2, 3, 4]), Seed::PLAIN);
        let mut matches = Vec::new();
        self.index.match_chain(MODEL, grid, Chain::Content(&contents), Some(&[rank]), &mut matches);
        assert_eq!(matches.first().map(|found| (found.rank, found.blocks)), Some((rank, 1)), "a good store is lost");
    }

    fn usage(&self) -> RankUsage {
        self.index.usage(self.normalizer.rank()).expect("the rank is there")
    }

    /// Blocks held and blocks waiting.
    fn held(&self) -> (u64, u64) {
        let usage = self.usage();
        (usage.blocks + usage.window_blocks, self.normalizer.orphans())
    }

    fn next_stamp(&mut self) -> Stamp {
        self.sequence += 1;
        Stamp { epoch: 1, sequence: Some(self.sequence) }
    }
}

fn tokens(ids: [u32; 4]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}
