//! Who holds what, exactly.
//!
//! The one public door is [`Index`]: a feed registers a rank, gets its [`RankWriter`], and applies whole engine
//! batches as transactions; any number of readers ask [`Index::match_chain`].
//!
//! What holds, whatever stands behind the door:
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
//! # Shape
//!
//! ```text
//! directory  rank -> cell            (model, grid) -> gate -> forest
//!
//! forest     runs: chains of blocks in flat arrays (run, contents); a child hangs from any block   shared,
//! cover      by run: which rank holds how many of its leading blocks                               behind
//! heads      (run, block, content) -> child, prefix hash -> run                                    a gate
//! seats      what a match says of a rank besides
//!
//! rank       names: engine hash -> position         lines: position -> engine hash, (hold, block)  the writer's
//!            holds: block -> position, of one run
//!            ages: what was stored first             odd: whatever is out of the ordinary          own
//!            tips: the ends of what was stored last
//!
//! plan       what a store is going to do to the forest
//! apply      the verbs, the short way    apart  the verbs, the long way    beside  the shortest of all
//! removal    the same for removals        bounds  what ranks may hold       lookup  the match    groups  its rule
//! links      the chain that a match walks down
//! carry      a rank's content out and back in
//! tap        what changes, to whoever listens        mirror  what an index needs that is told by another's tap
//! model      the reference, apart from all this
//! ```
//!
//! # Invariants
//!
//! * A rank is among the holders of a run if and only if it has a hold of it: a name stands at one of its blocks.
//! * A block has its place (run, number) for as long as somebody holds it or something behind it; places are made
//!   and ended only under the gate, and ended only at the end of a transaction.
//! * A name is in the table, or in the odd names, or unknown: never in two of them.
//! * An ordinary name's block is covered on the device; with its tail evicted first a rank's cover of a run is one
//!   number. What is rarer (copies, tiers, groups, several places, holes) lies in tables that exist only where it
//!   does.
//! * A store is planned while others read and plan, its names are put where the plan says that they belong, then it enters
//!   the forest, looks whether the plan still holds, and makes what is missing: only that keeps others out. What a plan
//!   found is there for as long as the runs have the versions that it saw, since a run's version changes whenever it is
//!   cut, ended or begun. A transaction stays in from its first change until it commits. To which holds the last store's names
//!   belong is noted after that, or as soon as something else asks.
//!
//! * Beside all that, with the gate open to everybody: a transaction that stores a block or two behind the end of a run
//!   that its rank alone holds, and does nothing else, writes into the run's spare room. Nothing is ever written
//!   where a reader may look: contents come before the length that shows them, the length before the holder's lead. A
//!   reader that wants the stamp as well checks that the rank's face has not changed meanwhile. Everything else about a run, shortening
//!   it included, takes the gate.
//!
//! # Assumed
//!
//! Engines store under the end of what they have, and evict tails first; where they do not, it is slower and never
//! wrong. Two different chains have different prefix hashes.
//!
//! A thread that holds a transaction must not ask the index anything until it has committed.

mod ages;
mod apart;
mod apply;
mod beside;
mod bounds;
mod bucket;
mod carry;
mod contents;
mod copies;
mod cover;
mod directory;
mod door;
mod forest;
mod gate;
mod groups;
mod heads;
mod hold;
mod lines;
mod links;
mod lookup;
mod mirror;
pub mod model;
mod names;
mod odd;
mod plan;
mod rank;
mod removal;
mod run;
mod runs;
mod seats;
mod tap;
mod tips;

pub use door::{
    Block, Chain, Copies, Exported, Found, IndexError, Limits, Parent, Place, RankMatch, RankScore, RankUsage,
    RemoveOutcome, StoreOutcome,
};
pub use forest::Shape;
pub use tap::{BlockRun, Change, Cut, Delta, Heard, Interest, Listener, RunContents, TapBounds, What};

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::block::{Grid, Group, GroupRule, Tier};
use crate::hash::EngineHash;
use crate::worker::{RankId, Stamp};

use apply::Hands;
use bounds::Bounds;
use directory::Directory;
use forest::Forest;
use gate::{Gate, Writing};
use rank::{Cell, Rank};

/// The index. Cheap to share: clone the `Arc`.
pub struct Index {
    directory: Arc<Gate<Directory>>,
    bounds: Bounds,
    /// Whoever hears of new ranks.
    listeners: Mutex<Vec<Arc<tap::Queue>>>,
}

/// The one writer of one rank. Dropping it does not remove the rank.
pub struct RankWriter {
    index: Arc<Index>,
    cell: Arc<Cell>,
}

/// One engine batch being applied: invisible to readers until [`Tx::commit`], rolled forward only.
/// Dropping it without a commit publishes what was done under the old stamp.
pub struct Tx<'w> {
    index: &'w Index,
    cell: &'w Arc<Cell>,
    rank: MutexGuard<'w, Rank>,
    /// Its gate is kept by the rank's scope, which is left only after this.
    forest: Option<Writing<'static, Forest>>,
}

/// [`Index::score_chain`] of one model on one grid, found once.
pub struct Scorer {
    gate: Arc<Gate<Forest>>,
}

/// How often a match is tried again because one of its ranks appended a block meanwhile; then it keeps writers out.
const BESIDE_TRIES: usize = 4;

/// Which ranks a match is asked of: all of the model's, or those listed.
pub type Candidates<'a> = Option<&'a [RankId]>;

// === impl Index ===

impl Index {
    /// An empty index.
    pub fn new(limits: Limits) -> Arc<Self> {
        let (directory, bounds) = (Arc::new(Gate::new(Directory::default())), Bounds::new(limits));
        Arc::new(Self { directory, bounds, listeners: Mutex::default() })
    }

    /// Sets other bounds. A rank that is over them forgets its oldest blocks the next time it stores.
    pub fn set_limits(&self, limits: Limits) {
        self.bounds.set(limits);
    }

    /// Registers a rank of `model`.
    ///
    /// # Errors
    /// [`IndexError::TooManyRanks`].
    pub fn register(self: &Arc<Self>, model: &str, copies: Copies) -> Result<RankWriter, IndexError> {
        let cell = self.directory.write().register(model, copies)?;
        let registered = || Heard::Registered { rank: cell.id, model: cell.model.clone() };
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|listener| listener.tell(registered()));
        Ok(RankWriter { index: self.clone(), cell })
    }

    /// Removes a rank with all it holds. Its writer is refused from now on. Unknown ranks are ignored.
    pub fn remove(&self, rank: RankId) {
        let Some(cell) = self.directory.write().unregister(rank) else { return };
        let mut tx = Tx { index: self, cell: &cell, rank: cell.lock(), forest: None };
        tx.rank.gone = true;
        tx.hands().clear();
        tx.leave_grid();
        drop(tx);
        self.directory.write().leave_model(&cell.model);
    }

    /// Every rank there is, and its model.
    pub fn ranks(&self) -> Vec<(RankId, Arc<str>)> {
        self.directory.read().ranks().map(|cell| (cell.id, cell.model.clone())).collect()
    }

    /// The grids of the ranks of `model`, whether they hold blocks just now or not; ascending. `None`: no rank has
    /// this model.
    pub fn grids(&self, model: &str) -> Option<Vec<Grid>> {
        self.directory.read().grids(model)
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
        // A rank may join this grid, with its first batch, between our two looks. After BESIDE_TRIES the match keeps
        // writers out, so that one that never stops appending cannot starve it.
        let mut tries = 0..BESIDE_TRIES;
        while !self.match_once(tries.next().is_none(), model, grid, chain, candidates, out) {}
    }

    /// Whether the answer is of one moment for each rank. `alone`: nobody changes anything meanwhile.
    fn match_once(
        &self,
        alone: bool,
        model: &str,
        grid: Grid,
        chain: Chain<'_>,
        candidates: Candidates<'_>,
        out: &mut Vec<RankMatch>,
    ) -> bool {
        out.clear();
        let wanted = candidates.map(|listed| {
            let mut listed = listed.to_vec();
            listed.sort_unstable();
            listed.dedup();
            listed
        });
        let directory = self.directory.read();
        if let Some(gate) = directory.scope(model, grid) {
            let (writing, reading);
            let forest: &Forest = if alone {
                writing = gate.write();
                &writing
            } else {
                reading = gate.read();
                &reading
            };
            let is_of_one_moment = lookup::with_walk(|walk| {
                walk.go(forest, chain);
                walk.answers(forest, grid, wanted.as_deref(), out)
            });
            if !is_of_one_moment {
                return false;
            }
            if let Some(wanted) = &wanted {
                out.sort_unstable_by_key(|found| found.rank);
                let found = out.len();
                for id in wanted {
                    let known = out[..found].binary_search_by_key(id, |found| found.rank).is_ok();
                    if let Some(face) = forest.seats.of(*id).filter(|_| !known) {
                        let look = face.look();
                        out.push(nothing(*id, look.stamp, look.held, face.partial));
                    }
                }
            }
        }
        let Some(wanted) = wanted else { return true };
        out.sort_unstable_by_key(|found| found.rank);
        let found = out.len();
        let missing = wanted.into_iter().filter(|id| out.binary_search_by_key(id, |found| found.rank).is_err());
        let missing: Vec<_> = missing.map(|id| (id, directory.cell(id).cloned())).collect();
        // Ranks that are elsewhere are locked only when nothing else is.
        drop(directory);
        for (id, cell) in missing {
            let (stamp, partial) = match &cell {
                None => (Stamp::default(), false),
                Some(cell) => {
                    let rank = cell.lock();
                    if *cell.model == *model && rank.scope.is_some() && rank.grid == Some(grid) {
                        return false;
                    }
                    (rank.stamp, rank.partial)
                }
            };
            out.push(nothing(id, stamp, 0, partial));
        }
        debug_assert!(out.len() >= found);
        true
    }

    /// How much of `chain` each rank of `model` on `grid` holds and nothing else, appended to `out`: for callers
    /// that ask often. Hybrid ranks' rules are not applied ([`Index::match_chain`] does).
    pub fn score_chain(&self, model: &str, grid: Grid, chain: Chain<'_>, out: &mut Vec<RankScore>) {
        let directory = self.directory.read();
        if let Some(gate) = directory.scope(model, grid) {
            let forest = gate.read();
            lookup::scores(&forest, chain, out);
        }
    }

    /// Whoever asks for lengths again and again, of one model on one grid, keeps this; `None`: no rank has both.
    pub fn scorer(&self, model: &str, grid: Grid) -> Option<Scorer> {
        let gate = self.directory.read().scope(model, grid)?.clone();
        Some(Scorer { gate })
    }

    /// What a rank holds; `None` once it was removed.
    pub fn usage(&self, rank: RankId) -> Option<RankUsage> {
        let cell = self.directory.read().cell(rank)?.clone();
        let rank = cell.lock();
        (!rank.gone).then(|| cell.usage(&rank))
    }

    /// Tells everything that a rank holds, as it is between two transactions, and the stamp of the last one; `None`
    /// once it was removed. [`Tx::restore`] takes it back, in this order.
    ///
    /// The rank cannot be changed meanwhile, and none that has its model and its grid while `visit` looks at a piece:
    /// it should only take down what it is told.
    pub fn export(&self, rank: RankId, visit: &mut dyn FnMut(Exported)) -> Option<Stamp> {
        let cell = self.directory.read().cell(rank)?.clone();
        let rank = cell.lock();
        (!rank.gone).then(|| carry::export(&cell, &rank, visit))
    }

    /// What a rank holds at one exact point, as a delta from nothing ([`Listener::follow`]); `None` once it was removed.
    /// Its number means something only while somebody listens.
    pub fn snapshot(&self, rank: RankId) -> Option<Delta> {
        self.with_rank(rank, |cell, rank| tap::snapshot(cell, rank))
    }

    /// A rank between two of its transactions; `None` once it was removed.
    fn with_rank<T>(&self, rank: RankId, act: impl FnOnce(&Cell, &mut Rank) -> T) -> Option<T> {
        let cell = self.directory.read().cell(rank)?.clone();
        let mut rank = cell.lock();
        (!rank.gone).then(|| act(&cell, &mut rank))
    }

    /// What has become of the blocks of a model on a grid: for tests and status pages. Looks at every run.
    pub fn shape(&self, model: &str, grid: Grid) -> Option<Shape> {
        let gate = self.directory.read().scope(model, grid)?.clone();
        let shape = gate.read().shape();
        Some(shape)
    }
}

// === impl Scorer ===

impl Scorer {
    /// What [`Index::score_chain`] says; `false`, and nothing is said, once every rank has left the model or the grid:
    /// others may have come since, which only another scorer knows of.
    pub fn score_chain(&self, chain: Chain<'_>, out: &mut Vec<RankScore>) -> bool {
        let forest = self.gate.read();
        if !forest.is_left {
            lookup::scores(&forest, chain, out);
        }
        !forest.is_left
    }
}

impl fmt::Debug for Scorer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scorer").finish_non_exhaustive()
    }
}

/// What is said of a listed rank that holds no block of the chain.
fn nothing(rank: RankId, stamp: Stamp, held: u64, partial: bool) -> RankMatch {
    let (tiers, within) = ([0; Tier::COUNT], [0; Tier::KNOWN]);
    RankMatch {
        rank,
        stamp,
        blocks: 0,
        device: 0,
        tiers,
        lead: tiers,
        within,
        held,
        partial,
        cut_by_unknown_group: false,
    }
}

/// What an index holds may be large, and is nobody's log line.
impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").finish_non_exhaustive()
    }
}

impl Drop for Index {
    /// A rank knows its forest, and the forest its ranks: whoever is still registered would keep both for good.
    fn drop(&mut self) {
        for cell in self.directory.read().cells() {
            let scope = cell.lock().scope.take();
            drop(scope);
        }
    }
}

// === impl RankWriter ===

impl RankWriter {
    /// The rank.
    pub fn rank(&self) -> RankId {
        self.cell.id
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// [`IndexError::WorkerGone`] once the rank was removed.
    pub fn begin(&mut self) -> Result<Tx<'_>, IndexError> {
        let mut rank = self.cell.lock();
        if rank.gone {
            return Err(IndexError::WorkerGone);
        }
        if let Some(tap) = &mut rank.tap {
            tap.begin();
        }
        Ok(Tx { index: &self.index, cell: &self.cell, rank, forest: None })
    }
}

impl fmt::Debug for RankWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RankWriter").field("rank", &self.rank()).finish_non_exhaustive()
    }
}

// === impl Tx ===

impl Tx<'_> {
    /// Fixes the rank's grid, which [`Tx::store`] needs. A rank that holds no blocks of prefix groups may change
    /// its grid.
    ///
    /// # Errors
    /// [`IndexError::GridConflict`] where it holds blocks on another.
    #[allow(unsafe_code)]
    pub fn set_grid(&mut self, grid: Grid) -> Result<(), IndexError> {
        match self.rank.grid {
            Some(have) if have == grid => return Ok(()),
            Some(have) if self.rank.held() > 0 => return Err(IndexError::GridConflict { have, got: grid }),
            _ => {}
        }
        self.leave_grid();
        let Some(gate) = self.index.directory.write().join(&self.cell.model, grid) else {
            return Err(IndexError::WorkerGone);
        };
        // SAFETY: the gate goes into the rank's scope, and a rank leaves its scope only when the guard is gone.
        let mut forest = unsafe { gate.plan_unbound() }.enter();
        let seat = forest.seats.take(self.cell.face(&self.rank));
        self.forest = Some(forest);
        self.rank.grid = Some(grid);
        if let Some(tap) = &mut self.rank.tap {
            tap.changed(Change::Grid(grid));
        }
        self.rank.scope = Some((gate, seat));
        Ok(())
    }

    /// Takes a rank that holds no names off its grid.
    fn leave_grid(&mut self) {
        self.hands().publish();
        if let Some((gate, seat)) = self.rank.scope.take() {
            gate.write().leave(seat);
        }
        if let Some(grid) = self.rank.grid.take() {
            self.index.directory.write().leave(&self.cell.model, grid);
        }
    }

    /// What a group other than the prefix group requires. `block_size` is that group's own, in tokens; the last
    /// note of a group stands.
    ///
    /// [`GroupRule::Full`] groups with the rank's own grid need no note: a block that any of them holds is held.
    /// Where an engine keeps several of them and needs a block in each, note each: a noted group always binds,
    /// whether its blocks came by [`Tx::store`] or by [`Tx::hold`].
    pub fn note_group(&mut self, group: Group, rule: GroupRule, block_size: u32) {
        let admitted = self.rank.admit(group);
        self.hands().apart(|apart| {
            if let Some(tap) = &mut apart.rank.tap {
                tap.noted(group, apart.odd);
            }
            if admitted {
                apart.odd.home = apart.rank.home;
                let names = apart.rank.holds.names().map(|(name, spot, _)| (name, spot));
                apart.odd.note(group, rule, block_size, names);
            } else {
                apart.odd.too_many_groups = true;
            }
        });
    }

    /// Looks an engine hash up among the names of this rank's prefix groups, whatever tier they lie on. A digest
    /// that is not known itself is looked for in its integer form too ([`EngineHash::narrow`]); so it is in
    /// [`Tx::store_known`], [`Tx::hold`] and [`Tx::remove`].
    pub fn find(&mut self, hash: EngineHash) -> Option<Found> {
        self.hands().finish();
        apply::find(self.cell, &self.rank, hash)
    }

    /// Stores a run of blocks, each under the one before, the first under `parent`, in a group of rule
    /// [`GroupRule::Full`] on the rank's own grid. Without a grid nothing is stored.
    pub fn store(&mut self, parent: Parent, tier: Tier, group: Group, run: &[Block]) -> StoreOutcome {
        self.hands().store(parent, tier, group, run)
    }

    /// Counts one copy more of blocks that this rank already has names for (offload stores, which carry no
    /// tokens). Returns how many names were unknown; those are skipped, and so are names that stand for several
    /// places, because which of them was meant is not said.
    pub fn store_known(&mut self, tier: Tier, group: Group, hashes: &[EngineHash]) -> usize {
        if !self.rank.admit(group) {
            return hashes.len();
        }
        self.hands().apart(|apart| apart.store_known(tier, group, hashes))
    }

    /// Counts one copy more of blocks of a group that was noted with another rule or another block size: they
    /// are held by name only, and cut matches.
    pub fn hold(&mut self, tier: Tier, group: Group, hashes: &[EngineHash]) {
        if self.rank.admit(group) {
            self.hands().apart(|apart| apart.hold(tier, group, hashes));
        }
    }

    /// Removes one copy of each name, of whatever kind of group. Of a name that stands for several places every
    /// copy on that tier goes.
    pub fn remove(&mut self, tier: Tier, group: Group, hashes: &[EngineHash]) -> RemoveOutcome {
        self.hands().remove(tier, group, hashes)
    }

    /// Drops everything this rank holds, on every tier and in every group. The grid and the groups stay known. The
    /// rank is no longer partial: nothing that its engine holds has been forgotten.
    pub fn clear(&mut self) {
        self.hands().clear();
    }

    /// [`Tx::clear`], and the grid and the groups are forgotten too: another life of the engine begins.
    pub fn reset(&mut self) {
        self.hands().clear();
        self.hands().apart(|apart| *apart.odd = odd::Odd::default());
        self.rank.groups.clear();
        self.rank.home = Group::default();
        self.leave_grid();
        if let Some(tap) = &mut self.rank.tap {
            tap.reset();
        }
    }

    /// Publishes the transaction under `stamp`.
    pub fn commit(mut self, stamp: Stamp) {
        self.rank.stamp = stamp;
        self.rank.restoring = None;
        // The rest happens when it is dropped.
    }

    fn hands(&mut self) -> Hands<'_> {
        Hands { cell: self.cell, rank: &mut self.rank, forest: &mut self.forest, bounds: &self.index.bounds }
    }
}

impl Drop for Tx<'_> {
    fn drop(&mut self) {
        self.hands().publish();
        if self.rank.tap.is_some() {
            tap::emit(self.cell, &mut self.rank);
        }
    }
}

impl fmt::Debug for Tx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tx").field("rank", &self.cell.id).finish_non_exhaustive()
    }
}
