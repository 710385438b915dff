//! A few workers over one index, and the shorthand that the behaviours are written in.

use std::ops::Range;
use std::sync::Arc;

use kvtap::block::{Grid, Group, Tier};
use kvtap::hash::{ContentHash, EngineHash, PrefixHash, Seed};
use kvtap::index::{
    Block, Chain, Copies, Index, Limits, Parent, RankMatch, RankUsage, RankWriter, RemoveOutcome, StoreOutcome,
};
use kvtap::worker::{RankId, Stamp};

pub const MODEL: &str = "m";
pub const GROUP: Group = Group(0);

/// An index with nothing in it yet.
pub struct Fleet {
    pub index: Arc<Index>,
}

/// One worker, whose engine names blocks by chain, but not as any other engine does.
pub struct Worker {
    pub writer: RankWriter,
    pub index: Arc<Index>,
    accent: u64,
}

/// The contents of `blocks` of prompt number `prompt`.
pub fn prompt(prompt: u64, blocks: Range<usize>) -> Vec<ContentHash> {
    blocks.map(|i| ContentHash::of_tokens(format!("{prompt}/{i}").as_bytes(), Seed::PLAIN)).collect()
}

/// A prompt that begins as prompt 0 and goes on as another from block `at` on.
pub fn diverging(at: usize, blocks: usize) -> Vec<ContentHash> {
    diverging_to(1, at, blocks)
}

/// A prompt that begins as prompt 0 and goes on as that one from block `at` on.
pub fn diverging_to(other: u64, at: usize, blocks: usize) -> Vec<ContentHash> {
    [prompt(0, 0..at), prompt(other, at..blocks)].concat()
}

pub fn grid() -> Grid {
    Grid::new(16).expect("16 tokens a block")
}

// === impl Fleet ===

impl Fleet {
    pub fn new() -> Self {
        Self::with(Limits::default())
    }

    pub fn with(limits: Limits) -> Self {
        Self { index: Index::new(limits) }
    }

    pub fn worker(&self) -> Worker {
        self.worker_counting(Copies::Count)
    }

    pub fn worker_counting(&self, copies: Copies) -> Worker {
        let mut writer = self.index.register(MODEL, copies).expect("there is room");
        let mut tx = writer.begin().expect("it is registered");
        tx.set_grid(grid()).expect("it has no blocks");
        tx.commit(Stamp::default());
        let rank = writer.rank();
        let accent = (u64::from(rank.slot) + 1) << 32 | u64::from(rank.generation);
        Worker { writer, index: self.index.clone(), accent }
    }

    pub fn workers<const N: usize>(&self) -> [Worker; N] {
        std::array::from_fn(|_| self.worker())
    }

    /// Everybody's match, by rank.
    pub fn ask(&self, contents: &[ContentHash]) -> Vec<(RankId, u32)> {
        let mut out = Vec::new();
        self.index.match_chain(MODEL, grid(), Chain::Content(contents), None, &mut out);
        let mut by_prefix = Vec::new();
        let prefixes = PrefixHash::chain(contents);
        self.index.match_chain(MODEL, grid(), Chain::Prefix(&prefixes), None, &mut by_prefix);
        out.sort_by_key(|found| found.rank);
        by_prefix.sort_by_key(|found| found.rank);
        assert_eq!(out, by_prefix, "by content and by prefix are the same question");
        out.into_iter().map(|found| (found.rank, found.blocks)).collect()
    }
}

// === impl Worker ===

impl Worker {
    pub fn id(&self) -> RankId {
        self.writer.rank()
    }

    /// The engine's names of a chain from block 0.
    pub fn names(&self, chain: &[ContentHash]) -> Vec<EngineHash> {
        PrefixHash::chain(chain).into_iter().map(|prefix| EngineHash::from_u64(prefix.0 ^ self.accent)).collect()
    }

    /// Stores a whole chain on the device, from block 0.
    pub fn store(&mut self, chain: &[ContentHash]) -> StoreOutcome {
        self.store_on(Tier::Device, chain, 0..chain.len()).expect("a root needs no parent")
    }

    /// Stores blocks of a chain; `None` where the block before them is unknown.
    pub fn store_on(&mut self, tier: Tier, chain: &[ContentHash], blocks: Range<usize>) -> Option<StoreOutcome> {
        let names = self.names(chain);
        let run = blocks.clone().map(|i| Block { engine: names[i], content: chain[i] }).collect::<Vec<_>>();
        let mut tx = self.writer.begin().expect("it is registered");
        let parent = match blocks.start {
            0 => Parent::Root(Seed::PLAIN),
            n => Parent::Under(tx.find(names[n - 1])?.place),
        };
        let outcome = tx.store(parent, tier, GROUP, &run);
        tx.commit(Stamp::default());
        Some(outcome)
    }

    /// Removes blocks of a chain from the device.
    pub fn remove(&mut self, chain: &[ContentHash], blocks: Range<usize>) -> RemoveOutcome {
        self.remove_from(Tier::Device, chain, blocks)
    }

    pub fn remove_from(&mut self, tier: Tier, chain: &[ContentHash], blocks: Range<usize>) -> RemoveOutcome {
        let names = self.names(chain);
        let mut tx = self.writer.begin().expect("it is registered");
        let outcome = tx.remove(tier, GROUP, &names[blocks]);
        tx.commit(Stamp::default());
        outcome
    }

    pub fn clear(&mut self) {
        let mut tx = self.writer.begin().expect("it is registered");
        tx.clear();
        tx.commit(Stamp::default());
    }

    /// This worker's whole answer.
    pub fn answer(&self, chain: &[ContentHash]) -> RankMatch {
        let mut out = Vec::new();
        self.index.match_chain(MODEL, grid(), Chain::Content(chain), Some(&[self.id()]), &mut out);
        out.pop().expect("a listed rank always comes back")
    }

    /// How many leading blocks of a chain this worker holds.
    pub fn holds(&self, chain: &[ContentHash]) -> u32 {
        self.answer(chain).blocks
    }

    pub fn usage(&self) -> RankUsage {
        self.index.usage(self.id()).expect("it is registered")
    }
}
