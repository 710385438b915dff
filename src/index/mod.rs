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
//!
//! How it is done for now: one lock round everything. A transaction holds it from begin to commit, so a thread that
//! holds a transaction must not ask the index anything until it has committed.
//!
//! ```text
//! state   ranks by slot and generation, scopes by (model, grid)
//! scope   prefix hash -> who holds it, on which tiers        (what a match walks)
//! rank    engine hash -> content, places, copies             (what an event names)
//! apply   the verbs that change both    lookup  the match    groups  the hybrid rule
//! copies  counts by (tier, group)       ages    the oldest   carry   a rank's content, out and back in
//! model   the reference, apart from all this
//! ```

mod ages;
mod apply;
mod carry;
mod copies;
mod door;
mod groups;
mod lookup;
pub mod model;
mod rank;
mod scope;
mod state;

pub use door::{
    Block, Chain, Copies, Exported, Found, IndexError, Limits, Parent, Place, RankMatch, RankUsage, RemoveOutcome,
    StoreOutcome,
};

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::block::{Grid, Group, GroupRule, Tier};
use crate::hash::EngineHash;
use crate::worker::{RankId, Stamp};

use state::State;

/// The index. Cheap to share: clone the `Arc`.
pub struct Index {
    state: RwLock<State>,
}

/// The one writer of one rank. Dropping it does not remove the rank.
#[derive(Debug)]
pub struct RankWriter {
    index: Arc<Index>,
    rank: RankId,
}

/// One engine batch being applied: invisible to readers until [`Tx::commit`], rolled forward only.
/// Dropping it without a commit publishes what was done under the old stamp.
pub struct Tx<'w> {
    state: RwLockWriteGuard<'w, State>,
    rank: RankId,
}

/// Which ranks a match is asked of: all of the model's, or those listed.
pub type Candidates<'a> = Option<&'a [RankId]>;

// === impl Index ===

impl Index {
    /// An empty index.
    pub fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self { state: RwLock::new(State::new(limits)) })
    }

    /// Registers a rank of `model`.
    ///
    /// # Errors
    /// [`IndexError::TooManyRanks`].
    pub fn register(self: &Arc<Self>, model: &str, copies: Copies) -> Result<RankWriter, IndexError> {
        let rank = self.write().register(model, copies)?;
        Ok(RankWriter { index: self.clone(), rank })
    }

    /// Removes a rank with all it holds. Its writer is refused from now on. Unknown ranks are ignored.
    pub fn remove(&self, rank: RankId) {
        self.write().remove(rank);
    }

    /// The grids of the ranks of `model`, whether they hold blocks just now or not; ascending. `None`: no rank has
    /// this model.
    pub fn grids(&self, model: &str) -> Option<Vec<Grid>> {
        Some(self.read().model(model)?.scopes.keys().copied().collect())
    }

    /// How much of `chain` each rank of `model` on `grid` holds, into `out` (emptied first), in no particular
    /// order.
    ///
    /// Ranks that can re-use nothing of it are left out, unless they are listed in `candidates`: those always come
    /// back, once, with zeros if need be, even if they have another model or another grid or were removed.
    pub fn match_chain(
        &self,
        model: &str,
        grid: Grid,
        chain: Chain<'_>,
        candidates: Candidates<'_>,
        out: &mut Vec<RankMatch>,
    ) {
        self.read().match_chain(model, grid, chain, candidates, out);
    }

    /// What a rank holds; `None` once it was removed.
    pub fn usage(&self, rank: RankId) -> Option<RankUsage> {
        self.read().rank(rank).map(rank::Rank::usage)
    }

    /// Tells everything that a rank holds, as it is between two transactions, and the stamp of the last one; `None`
    /// once it was removed. [`Tx::restore`] takes it back, in this order.
    ///
    /// No rank of this index can be changed meanwhile: `visit` should only take down what it is told.
    pub fn export(&self, rank: RankId, visit: &mut dyn FnMut(Exported)) -> Option<Stamp> {
        self.read().rank(rank).map(|rank| rank.export(visit))
    }

    // A panic while the lock was held is a bug that has been reported already; a reader that refuses to answer ever
    // after would make it an outage.
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What an index holds may be large, and is nobody's log line.
impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").finish_non_exhaustive()
    }
}

// === impl RankWriter ===

impl RankWriter {
    /// The rank.
    pub fn rank(&self) -> RankId {
        self.rank
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// [`IndexError::WorkerGone`] once the rank was removed.
    pub fn begin(&mut self) -> Result<Tx<'_>, IndexError> {
        let state = self.index.write();
        match state.rank(self.rank) {
            Some(_) => Ok(Tx { state, rank: self.rank }),
            None => Err(IndexError::WorkerGone),
        }
    }
}

// === impl Tx ===

impl Tx<'_> {
    /// Fixes the rank's grid, which [`Tx::store`] needs. A rank that holds no blocks of prefix groups may change
    /// its grid.
    ///
    /// # Errors
    /// [`IndexError::GridConflict`] where it holds blocks on another.
    pub fn set_grid(&mut self, grid: Grid) -> Result<(), IndexError> {
        self.state.set_grid(self.rank, grid)
    }

    /// What a group other than the prefix group requires. `block_size` is that group's own, in tokens; the last
    /// note of a group stands.
    ///
    /// [`GroupRule::Full`] groups with the rank's own grid need no note: a block that any of them holds is held.
    /// Where an engine keeps several of them and needs a block in each, note each: a noted group always binds,
    /// whether its blocks came by [`Tx::store`] or by [`Tx::hold`].
    pub fn note_group(&mut self, group: Group, rule: GroupRule, block_size: u32) {
        if let Some(rank) = self.state.rank_mut(self.rank) {
            rank.note_group(group, rule, block_size);
        }
    }

    /// Looks an engine hash up among the names of this rank's prefix groups, whatever tier they lie on. A digest
    /// that is not known itself is looked for in its integer form too ([`EngineHash::narrow`]); so it is in
    /// [`Tx::store_known`], [`Tx::hold`] and [`Tx::remove`].
    pub fn find(&self, hash: EngineHash) -> Option<Found> {
        self.state.rank(self.rank)?.find(hash)
    }

    /// Stores a run of blocks, each under the one before, the first under `parent`, in a group of rule
    /// [`GroupRule::Full`] on the rank's own grid. Without a grid nothing is stored.
    pub fn store(&mut self, parent: Parent, tier: Tier, group: Group, run: &[Block]) -> StoreOutcome {
        let hands = self.state.hands(self.rank);
        hands.map_or(StoreOutcome::default(), |mut hands| hands.store(parent, tier, group, run))
    }

    /// Counts one copy more of blocks that this rank already has names for (offload stores, which carry no
    /// tokens). Returns how many names were unknown; those are skipped, and so are names that stand for several
    /// places, because which of them was meant is not said.
    pub fn store_known(&mut self, tier: Tier, group: Group, hashes: &[EngineHash]) -> usize {
        let hands = self.state.hands(self.rank);
        hands.map_or(hashes.len(), |mut hands| hands.store_known(tier, group, hashes))
    }

    /// Counts one copy more of blocks of a group that was noted with another rule or another block size: they
    /// are held by name only, and cut matches.
    pub fn hold(&mut self, tier: Tier, group: Group, hashes: &[EngineHash]) {
        if let Some(mut hands) = self.state.hands(self.rank) {
            hands.hold(tier, group, hashes);
        }
    }

    /// Removes one copy of each name, of whatever kind of group. Of a name that stands for several places every
    /// copy on that tier goes.
    pub fn remove(&mut self, tier: Tier, group: Group, hashes: &[EngineHash]) -> RemoveOutcome {
        let hands = self.state.hands(self.rank);
        hands.map_or(RemoveOutcome::default(), |mut hands| hands.remove(tier, group, hashes))
    }

    /// Takes back one piece of an [`Index::export`]. Told all of it in its order, a rank that holds nothing and has
    /// the same [`Copies`] is what the exported one was, but for its stamp, and for what its bounds do not allow.
    ///
    /// # Errors
    /// [`IndexError::NotAnExport`] where no export says that at this point; nothing was changed then.
    pub fn restore(&mut self, piece: &Exported) -> Result<(), IndexError> {
        self.state.restore(self.rank, piece)
    }

    /// Drops everything this rank holds, on every tier and in every group. The grid and the groups stay known. The
    /// rank is no longer partial: nothing that its engine holds has been forgotten.
    pub fn clear(&mut self) {
        if let Some(mut hands) = self.state.hands(self.rank) {
            hands.clear();
        }
    }

    /// [`Tx::clear`], and the grid and the groups are forgotten too: another life of the engine begins.
    pub fn reset(&mut self) {
        self.state.reset(self.rank);
    }

    /// Publishes the transaction under `stamp`.
    pub fn commit(mut self, stamp: Stamp) {
        if let Some(rank) = self.state.rank_mut(self.rank) {
            rank.stamp = stamp;
        }
    }
}

impl fmt::Debug for Tx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").field("rank", &self.rank).finish_non_exhaustive()
    }
}
