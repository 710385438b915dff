//! Who holds what, exactly.
//!
//! The one public door is [`Index`]: a feed registers a rank, gets its [`RankWriter`], and applies whole engine
//! batches as transactions; any number of readers ask [`Index::match_chain`].
//!
//! What holds, whatever stands behind the door (DESIGN: what the index answers, exactly):
//!
//! 1. A match is contiguous from block 0; a hole stops it, storing the block again heals the rest at once.
//! 2. Blocks match by content chain, never by engine hash. An engine hash that comes again for other content
//!    is moved and its old place released. An engine that does not chain its hashes names several places by one
//!    (same content, other prefix): a removal of that name withdraws them all.
//! 3. Copies count per (rank, tier, group, engine hash).
//! 4. A store under a parent the rank does not know is not applied: `find` says `None`, and the caller parks it.
//! 5. Unknown names in a removal are counted and skipped.
//! 6. Tiers are counted apart; a block gone from one still counts on another.
//! 7. A clear or a removed rank costs what that rank held.
//! 8. A reader sees a whole transaction or none of it.
//! 9. A removed rank's writer is refused ever after (generations).
//! 10. Groups are kept apart; the full-attention prefix is cut to where each other group's rule holds.
//! 11. Blocks are bounded per rank and in all; over it the oldest of the storing rank go, counted.

mod door;

pub use door::{
    Block, Chain, Copies, Found, IndexError, Limits, Parent, Place, RankMatch, RankUsage, RemoveOutcome, StoreOutcome,
};

// The door's verbs. Nothing stands behind them yet.

use std::sync::Arc;

use crate::block::{Grid, Group, GroupRule, Tier};
use crate::hash::EngineHash;
use crate::worker::{RankId, Stamp};

/// The index. Cheap to share: clone the `Arc`.
#[derive(Debug)]
pub struct Index {}

/// The one writer of one rank. Dropping it does not remove the rank.
#[derive(Debug)]
pub struct RankWriter {}

/// One engine batch being applied: invisible to readers until [`Tx::commit`], rolled forward only.
/// Dropping it without a commit publishes what was done under the old stamp.
#[derive(Debug)]
pub struct Tx<'w> {
    _writer: &'w mut RankWriter,
}

/// Which ranks a match is asked of: all of the model's, or those listed.
pub type Candidates<'a> = Option<&'a [RankId]>;

impl Index {
    /// An empty index.
    pub fn new(_limits: Limits) -> Arc<Self> {
        Arc::new(Self {})
    }

    /// Registers a rank of `model`.
    ///
    /// # Errors
    /// [`IndexError::TooManyRanks`].
    pub fn register(self: &Arc<Self>, _model: &str, _copies: Copies) -> Result<RankWriter, IndexError> {
        Err(IndexError::TooManyRanks { max: 0 })
    }

    /// Removes a rank with all it holds. Its writer is refused from now on. Unknown ranks are ignored.
    pub fn remove(&self, _rank: RankId) {}

    /// The grids on which ranks of `model` hold, or have held, blocks; ascending. `None`: no rank has this model.
    pub fn grids(&self, _model: &str) -> Option<Vec<Grid>> {
        None
    }

    /// How much of `chain` each rank of `model` on `grid` holds, into `out` (emptied first), in no particular
    /// order. Ranks that hold nothing of it are left out, unless they are listed in `candidates`.
    pub fn match_chain(
        &self,
        _model: &str,
        _grid: Grid,
        _chain: Chain<'_>,
        _candidates: Candidates<'_>,
        _out: &mut Vec<RankMatch>,
    ) {
    }

    /// What a rank holds; `None` once it was removed.
    pub fn usage(&self, _rank: RankId) -> Option<RankUsage> {
        None
    }
}

impl RankWriter {
    /// The rank.
    pub fn rank(&self) -> RankId {
        RankId { slot: 0, generation: 0 }
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// [`IndexError::WorkerGone`] once the rank was removed.
    pub fn begin(&mut self) -> Result<Tx<'_>, IndexError> {
        Err(IndexError::WorkerGone)
    }
}

impl Tx<'_> {
    /// Fixes the rank's grid, which [`Tx::store`] needs. A rank that holds no blocks may change its grid.
    ///
    /// # Errors
    /// [`IndexError::GridConflict`] where it holds blocks on another.
    pub fn set_grid(&mut self, _grid: Grid) -> Result<(), IndexError> {
        Err(IndexError::WorkerGone)
    }

    /// What a group other than the prefix group requires ([`GroupRule::Full`] groups with the rank's own grid
    /// need no note). `block_size` is that group's own, in tokens.
    pub fn note_group(&mut self, _group: Group, _rule: GroupRule, _block_size: u32) {}

    /// Looks an engine hash up among the names of this rank's prefix groups, whatever tier they lie on.
    pub fn find(&self, _hash: EngineHash) -> Option<Found> {
        None
    }

    /// Stores a run of blocks, each under the one before, the first under `parent`, in a group of rule
    /// [`GroupRule::Full`] on the rank's own grid. Without a grid nothing is stored.
    pub fn store(&mut self, _parent: Parent, _tier: Tier, _group: Group, _run: &[Block]) -> StoreOutcome {
        StoreOutcome::default()
    }

    /// Counts one copy more of blocks that this rank already has names for (offload stores, which carry no
    /// tokens). Returns how many names were unknown; those are skipped.
    pub fn store_known(&mut self, _tier: Tier, _group: Group, _hashes: &[EngineHash]) -> usize {
        0
    }

    /// Counts one copy more of blocks of a group that was noted with another rule or another block size: they
    /// are held by name only, and cut matches.
    pub fn hold(&mut self, _tier: Tier, _group: Group, _hashes: &[EngineHash]) {}

    /// Removes one copy of each name, of whatever kind of group.
    pub fn remove(&mut self, _tier: Tier, _group: Group, _hashes: &[EngineHash]) -> RemoveOutcome {
        RemoveOutcome::default()
    }

    /// Drops everything this rank holds, on every tier and in every group. The grid and the groups stay known.
    pub fn clear(&mut self) {}

    /// [`Tx::clear`], and the grid and the groups are forgotten too: another life of the engine begins.
    pub fn reset(&mut self) {}

    /// Publishes the transaction under `stamp`.
    pub fn commit(self, _stamp: Stamp) {}
}
