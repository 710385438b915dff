//! The nouns of the index's door: what goes in, what comes out. No behaviour.

use crate::block::{Grid, Group, GroupRule, Tier};
use crate::hash::{ContentHash, EngineHash, PrefixHash, Seed};
use crate::worker::{RankId, Stamp};

/// Bounds of an index. Over a bound the blocks that the storing rank stored longest ago go, and the rank is marked
/// partial.
///
/// What is counted: for a prefix group one per engine hash and place (an engine that chains its hashes has one
/// place a name), for every other group one per (group, engine hash). Tiers and copies do not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Blocks a rank may hold.
    pub blocks_per_rank: usize,
    /// Blocks all ranks together may hold.
    pub blocks_in_all: usize,
}

/// One block of a store: its engine's name for it and our hash of its content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// The engine's name.
    pub engine: EngineHash,
    /// Our hash of its tokens.
    pub content: ContentHash,
}

/// What a run of blocks hangs from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parent {
    /// Nothing: the first block is block 0 of a prompt hashed under this seed.
    Root(Seed),
    /// A block this rank already has a name for, found in the same transaction.
    Under(Place),
}

/// A block's place in the index: opaque, valid only inside the transaction that found it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    pub(super) run: u32,
    pub(super) block: u32,
    pub(super) seed: Seed,
}

/// What [`find`](super::Tx::find) says of an engine hash that the rank knows. Where one hash names several places
/// it is the one that was stored last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Where the block stands.
    pub place: Place,
    /// The seed its chain is hashed under: children inherit it.
    pub seed: Seed,
    /// The name stands for several places (unchained engine hashes): `place` is one of them.
    pub ambiguous: bool,
}

/// Whether a block that is announced twice counts twice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Copies {
    /// Each announcement is a physical copy; a block is gone when each was removed (vLLM's way).
    #[default]
    Count,
    /// A block is held or not: one removal ends it (for engines that announce cache hits again).
    Set,
}

/// What a store did, in blocks. `added`, `copies` and `moved` together are the blocks of the run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreOutcome {
    /// Newly held on that tier in that group.
    pub added: usize,
    /// Held there before: one copy more (under [`Copies::Set`]: nothing more).
    pub copies: usize,
    /// Names that stood for other content before: the old place was released, with every copy.
    pub moved: usize,
    /// Blocks that went because a bound was reached.
    pub evicted: usize,
}

/// What a removal did, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RemoveOutcome {
    /// No longer held on that tier in that group.
    pub removed: usize,
    /// One copy less, still held.
    pub copies: usize,
    /// Names this rank does not hold there: counted and skipped.
    pub unknown: usize,
}

/// A chain of blocks from block 0, as a router asks for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Chain<'a> {
    /// By content hashes.
    Content(&'a [ContentHash]),
    /// By prefix hashes. What the hash of a block says of the blocks before it is believed: a list that no chain
    /// of blocks has is matched as one that ends like it.
    Prefix(&'a [PrefixHash]),
}

/// How much of a chain one rank holds, and no more than that.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct RankScore {
    /// Who.
    pub rank: RankId,
    /// Leading blocks held, whatever tier they lie on.
    pub blocks: u32,
    /// Leading blocks that lie on the device.
    pub device: u32,
}

/// How much of a chain one rank holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankMatch {
    /// Who.
    pub rank: RankId,
    /// How far its feed had come: the match is exactly the state after this message.
    pub stamp: Stamp,
    /// Leading blocks the engine can re-use, whatever tier they lie on (hybrid rule applied).
    pub blocks: u32,
    /// Leading blocks that lie on the device (hybrid rule applied).
    pub device: u32,
    /// Of the `blocks` leading ones, how many lie on each tier ([`Tier::index`]). A block on two tiers counts on both.
    pub tiers: [u32; Tier::COUNT],
    /// Leading blocks that lie on each tier by itself, without a break from block 0, `blocks` at most.
    pub lead: [u32; Tier::COUNT],
    /// Leading blocks that lie on each known tier or on one nearer to the device, without a break, `blocks` at most.
    pub within: [u32; Tier::KNOWN],
    /// Blocks the rank holds in all, in this scope.
    pub held: u64,
    /// A cap has made this rank forget blocks that its engine may still hold.
    pub partial: bool,
    /// A group whose rule is unknown has cut the match to what is certain.
    pub cut_by_unknown_group: bool,
}

/// What one rank holds, for status pages.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RankUsage {
    /// Blocks held, of groups that mean a prefix: engine names with at least one copy anywhere.
    pub blocks: u64,
    /// The same by tier.
    pub by_tier: [u64; Tier::COUNT],
    /// Blocks held by other groups.
    pub window_blocks: u64,
    /// Copies beyond the first.
    pub extra_copies: u64,
    /// Bytes of memory that the rank's own tables take, estimated.
    pub bytes: u64,
    /// The grid, once known.
    pub grid: Option<Grid>,
    /// Groups seen, ascending.
    pub groups: Vec<Group>,
    /// Blocks forgotten because a bound was reached.
    pub evicted: u64,
    /// The last committed stamp.
    pub stamp: Stamp,
}

/// One piece of what a rank holds, of an [`export`](super::Index::export). First comes [`Exported::Rank`], then the
/// groups, then blocks, in the order in which the index that told them wants them back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exported {
    /// The rank itself.
    Rank {
        /// Its grid, once known. Without one there are no blocks of prefix groups.
        grid: Option<Grid>,
        /// Blocks forgotten because a bound was reached.
        evicted: u64,
        /// A bound has made it forget blocks that its engine may still hold.
        partial: bool,
        /// More groups were noted than there is room for.
        too_many_groups: bool,
    },
    /// A group that was seen.
    Group {
        /// Which.
        group: Group,
        /// What was noted of it: its rule, and its block size in tokens.
        note: Option<(GroupRule, u32)>,
    },
    /// A block that stands on the way to one that is told later: it is not held, or was stored again since. It is
    /// told before anything behind it, once, and is nothing that is held.
    Passed {
        /// Its content.
        content: ContentHash,
        /// The block before it, told already; `None` for block 0.
        parent: Option<PrefixHash>,
    },
    /// A block of a prefix group, on one tier.
    Block {
        /// Its engine's name for it, and its content. One name may come several times: on other tiers, in other
        /// groups, at other places.
        block: Block,
        /// The block before it, told already as a block or as passed; `None` for block 0.
        parent: Option<PrefixHash>,
        /// What its chain is hashed under.
        seed: Seed,
        /// Where it lies.
        tier: Tier,
        /// In which group.
        group: Group,
        /// How many copies of it; 0 where the name's copies on this tier were told with another of its places.
        copies: u32,
    },
    /// A block of another group, on one tier.
    Other {
        /// The group.
        group: Group,
        /// Its engine's name for it.
        engine: EngineHash,
        /// Where it lies.
        tier: Tier,
        /// How many copies of it.
        copies: u32,
    },
}

/// Why the index refuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum IndexError {
    /// The rank was removed (or its slot has a new generation): the event must not be applied.
    #[error("the worker was removed")]
    WorkerGone,
    /// The rank's blocks lie on another grid.
    #[error("block size {got}, but this worker's blocks have {have}")]
    GridConflict {
        /// The grid in force.
        have: Grid,
        /// The one that came.
        got: Grid,
    },
    /// What is to be restored is not what an export says.
    #[error("this is no export of a rank")]
    NotAnExport,
    /// No more ranks can be registered.
    #[error("more than {max} ranks")]
    TooManyRanks {
        /// The bound.
        max: usize,
    },
}

// === impl Limits ===

impl Default for Limits {
    /// 4 million blocks a rank, 64 million in all.
    fn default() -> Self {
        Self { blocks_per_rank: 4 << 20, blocks_in_all: 64 << 20 }
    }
}

// === impl IndexError ===

impl IndexError {
    /// A stable word for metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::WorkerGone => "worker_gone",
            Self::GridConflict { .. } => "block_size_conflict",
            Self::NotAnExport => "not_an_export",
            Self::TooManyRanks { .. } => "too_many_ranks",
        }
    }
}
