//! The verbs that change what a rank holds: the short ways, which nearly every event takes.
//!
//! A store first plans its places, puts its names into the rank's own tables (which say whether one of them was known)
//! where they belong by that plan, then locks the forest, looks at the plan once more and makes what is missing. What it
//! finds out of the ordinary goes the long way (`apart`).

use std::cell::Cell as Slot;
use std::sync::{Arc, PoisonError};

use crate::block::{Group, Tier};
use crate::hash::{EngineHash, Seed};

use super::apart::Apart;
use super::beside::Beside;
use super::bounds::Bounds;
use super::bucket::touch_ahead;
use super::door::{Block, Found, Parent, Place, StoreOutcome};
use super::forest::{Forest, NONE};
use super::gate::{Planning, Writing};
use super::hold::{Piece, Spot, Staged};
use super::names::Ahead;
use super::odd::forms;
use super::plan::{Plan, Segment};
use super::rank::{Cell, Rank};
use super::removal::Lost;
use super::tap;

/// One rank with all that its changes touch.
pub(super) struct Hands<'a> {
    pub(super) cell: &'a Arc<Cell>,
    pub(super) rank: &'a mut Rank,
    /// The forest, once this transaction has changed it; it stays locked until the commit.
    pub(super) forest: &'a mut Option<Writing<'static, Forest>>,
    pub(super) bounds: &'a Bounds,
}

/// Memory that is used again and again: a transaction borrows its thread's, so a rank that is idle has none.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    pub(super) staged: Staged,
    plan: Plan,
    /// To which hold each staged piece belongs, once its blocks are placed.
    pub(super) placed: Vec<u32>,
    pub(super) lost: Vec<Lost>,
    /// Blocks that were stored, staged and placed, and are not in the forest yet.
    pub(super) beside: Option<Beside>,
}

thread_local!(static SPARE: Slot<Option<Box<Scratch>>> = const { Slot::new(None) });

/// Blocks that are looked at together: bounds the scratch, whatever an engine sends.
pub(super) const BATCH: usize = 1 << 14;

/// The names of so few blocks are put without asking for any ahead.
pub(super) const FEW: usize = 2;

// === impl Scratch ===

impl Scratch {
    /// Where the blocks are that were stored last, in their order, and to which holds they belong.
    pub(super) fn placed(&self) -> impl Iterator<Item = (Segment, u32)> {
        self.plan.segments.iter().copied().zip(self.placed.iter().copied())
    }
}

// === impl Hands ===

impl Hands<'_> {
    pub(super) fn store(&mut self, parent: Parent, tier: Tier, group: Group, run: &[Block]) -> StoreOutcome {
        let mut outcome = StoreOutcome::default();
        if self.rank.scope.is_none() || !self.rank.admit(group) {
            return outcome;
        }
        if self.rank.ordinary == 0 && !self.rank.has_odd && tier == Tier::Device {
            self.rank.home = group;
        }
        let (mut last, seed) = match parent {
            Parent::Root(seed) => (None, seed),
            Parent::Under(Place { run, block, seed }) => (Some((run, block)), seed),
        };
        touch_ahead(run);
        for blocks in run.chunks(BATCH) {
            self.finish();
            let ordinary = tier == Tier::Device && group == self.rank.home && !self.rank.has_odd;
            let fits = self.bounds.has_room(self.rank, blocks.len()) && self.rank.holds.has_room(blocks.len());
            if ordinary && fits {
                let at = self.store_beside(last, seed, blocks).or_else(|| self.store_ordinary(last, seed, blocks));
                if at.is_some() {
                    outcome.added += blocks.len();
                    last = at;
                    continue;
                }
            }
            last = self.apart(|apart| apart.store(last, seed, tier, group, blocks, &mut outcome));
        }
        outcome
    }

    /// Stores blocks of new names where each place is the next one that this rank lacks: nearly always so. The place of
    /// the last one; `None`: it is not so, and nothing has changed.
    pub(super) fn store_ordinary(
        &mut self,
        parent: Option<(u32, u32)>,
        seed: Seed,
        blocks: &[Block],
    ) -> Option<(u32, u32)> {
        let mut scratch = self.scratch();
        let placed = self.store_as_planned(parent, seed, blocks, &mut scratch);
        if scratch.placed.is_empty() {
            scratch.staged.clear();
            // What was made for it is not kept for whoever comes next.
            scratch.plan.contents.clear();
        }
        self.rank.scratch = Some(scratch);
        placed
    }

    fn store_as_planned(
        &mut self,
        parent: Option<(u32, u32)>,
        seed: Seed,
        blocks: &[Block],
        scratch: &mut Scratch,
    ) -> Option<(u32, u32)> {
        let Scratch { staged, plan, .. } = scratch;
        self.rank.names.touch(self.rank.names.aim(blocks.first()?.engine));
        let (gate, seat) = self.rank.scope.as_ref()?;
        let are_simple = match self.forest.as_deref() {
            Some(forest) => {
                forest.plan(*seat, parent, blocks, plan);
                pieces(self.rank, forest, *seat, seed, plan, &mut staged.pieces)
            }
            // Others plan meanwhile, too; what they have changed by the time that it matters is seen then.
            None => {
                let forest = gate.read();
                forest.plan(*seat, parent, blocks, plan);
                pieces(self.rank, &forest, *seat, seed, plan, &mut staged.pieces)
            }
        };
        if !are_simple {
            return None;
        }
        // All that is new, and above all the names, takes the most time and concerns nobody else.
        plan.make_ready(blocks, self.rank.is_named_by_prefix);
        let new = plan.segments.iter().skip(staged.pieces.len());
        staged.pieces.extend(new.map(|segment| Piece::new(Spot { hold: NONE, block: 0 }, segment.to)));
        if staged.pieces.is_empty() {
            return None;
        }
        self.rank.holds.stage(blocks, staged);
        if !self.put_names(blocks, staged) {
            return None;
        }
        if self.forest.is_none() {
            let forest = begin(self.rank)?.enter();
            let is_so = forest.is_as_planned(self.seat(), blocks, plan);
            *self.forest = Some(forest);
            if !is_so {
                self.take_names(blocks, staged);
                self.rank.holds.unstage(staged);
                return self.store_as_planned(parent, seed, blocks, scratch);
            }
        }
        self.place(parent, seed, blocks, scratch)
    }

    /// Makes the places, and covers them.
    fn place(
        &mut self,
        parent: Option<(u32, u32)>,
        seed: Seed,
        blocks: &[Block],
        scratch: &mut Scratch,
    ) -> Option<(u32, u32)> {
        let seat = self.seat();
        let forest = self.forest.as_deref_mut()?;
        forest.grow(parent, blocks, &mut scratch.plan);
        for (segment, piece) in scratch.plan.segments.iter().zip(&scratch.staged.pieces) {
            let Rank { holds, ages, tap, .. } = &mut *self.rank;
            let hold = match piece.first.hold {
                NONE => holds.begin(segment.run, seed, ages.close()),
                hold => hold,
            };
            forest.cover(segment.run).extend(seat, segment.from, segment.to, hold);
            if let Some(tap) = tap {
                tap.gained(segment.run, segment.from, segment.to, Tier::Device);
            }
            scratch.placed.push(hold);
        }
        self.rank.ordinary += blocks.len() as u64;
        self.bounds.weigh(self.rank, blocks.len());
        scratch.plan.segments.last().map(|last| (last.run, last.to - 1))
    }

    /// Says of the names that were stored last to which holds they belong: no reader looks at that, so a transaction
    /// does it when the gate is open again, unless something comes that needs it.
    #[inline]
    pub(super) fn finish(&mut self) {
        if self.rank.scratch.as_ref().is_some_and(|scratch| !scratch.placed.is_empty()) {
            self.finish_stored();
        }
    }

    fn finish_stored(&mut self) {
        self.flush();
        let mut scratch = self.scratch();
        let Scratch { staged, placed, .. } = &mut *scratch;
        let Rank { holds, ages, tips, .. } = &mut *self.rank;
        for (hold, piece) in placed.iter().zip(&staged.pieces) {
            let moment = ages.push(*hold, piece.first.block, piece.count);
            holds.settle(*hold, piece, staged, moment);
        }
        if let (Some(hold), Some(piece)) = (placed.last(), staged.pieces.last()) {
            let last = holds.lines().name(staged.position(piece, piece.count - 1));
            tips.note(last, Spot { hold: *hold, block: piece.first.block + piece.count - 1 });
        }
        placed.clear();
        staged.clear();
        self.rank.scratch = Some(scratch);
    }

    /// Puts staged names into the table. `false` where one of them was there, and then none is kept.
    fn put_names(&mut self, blocks: &[Block], staged: &mut Staged) -> bool {
        if blocks.len() <= FEW {
            return self.put_few(blocks, staged);
        }
        let Rank { names, holds, .. } = &mut *self.rank;
        let mut ahead = Ahead::new(names, blocks.iter().map(|block| block.engine));
        let mut all = blocks.iter().enumerate();
        for piece in &staged.pieces {
            for (within, (i, block)) in (0..piece.count).zip(&mut all) {
                let aim = ahead.aim(names, i, |i| blocks.get(i).map(|block| block.engine));
                if !names.put(aim, staged.position(piece, within), block.engine, holds.lines()) {
                    self.take_names(&blocks[..i], staged);
                    self.rank.holds.unstage(staged);
                    return false;
                }
            }
        }
        true
    }

    /// The same for names so few that nothing is asked for ahead: what that takes would cost more than it brings.
    #[inline]
    pub(super) fn put_few(&mut self, blocks: &[Block], staged: &mut Staged) -> bool {
        let Rank { names, holds, .. } = &mut *self.rank;
        let mut put = |(block, position): (&Block, u32)| {
            names.put(names.aim(block.engine), position, block.engine, holds.lines())
        };
        let count = blocks.iter().zip(staged.positions()).map_while(|pair| put(pair).then_some(())).count();
        if count < blocks.len() {
            self.take_names(&blocks[..count], staged);
            self.rank.holds.unstage(staged);
        }
        count == blocks.len()
    }

    /// Takes staged names out again.
    #[cold]
    pub(super) fn take_names(&mut self, blocks: &[Block], staged: &Staged) {
        let names = &mut self.rank.names;
        for (block, position) in blocks.iter().zip(staged.positions()) {
            names.take(names.aim(block.engine), position);
        }
    }

    /// Drops everything. The grid, the groups and their notes stay.
    pub(super) fn clear(&mut self) {
        self.finish();
        if let Some((_, seat)) = self.rank.scope {
            let runs: Vec<u32> = self.rank.holds.runs().collect();
            if !runs.is_empty()
                && let Some(forest) = lock(self.forest, self.rank)
            {
                for run in runs {
                    forest.cover(run).forget(seat);
                    forest.touch(run);
                }
            }
        }
        if self.rank.has_odd {
            self.apart(|apart| apart.odd.clear());
        }
        let rank = &mut *self.rank;
        rank.names = super::names::Names::new();
        rank.holds = Default::default();
        rank.ages = Default::default();
        rank.tips = Default::default();
        rank.ordinary = 0;
        rank.odd_names = 0;
        rank.partial = false;
        rank.restoring = None;
        if let Some(tap) = &mut rank.tap {
            tap.cleared();
        }
        let weight = rank.weight;
        self.bounds.unweigh(rank, weight);
    }

    /// The long way: with the forest locked, if there is one, and the odd tables.
    pub(super) fn apart<T>(&mut self, act: impl FnOnce(&mut Apart<'_>) -> T) -> T {
        self.finish();
        lock(self.forest, self.rank);
        let mut odd = self.cell.odd.write().unwrap_or_else(PoisonError::into_inner);
        let (seat, forest) = (self.rank.scope.as_ref().map_or(0, |scope| scope.1), self.forest.as_deref_mut());
        let copies = self.cell.copies;
        let mut apart = Apart { rank: self.rank, odd: &mut odd, forest, seat, copies, bounds: self.bounds };
        let done = act(&mut apart);
        apart.rank.has_odd = !apart.odd.is_empty();
        apart.rank.odd_names = apart.odd.names.len() as u64;
        apart.rank.hybrid = apart.odd.is_hybrid();
        done
    }

    /// The end of a transaction: what matches see of it besides the blocks, and what nobody holds any more.
    pub(super) fn publish(&mut self) {
        self.leave();
        self.finish();
        if let Some(scratch) = self.rank.scratch.take() {
            SPARE.set(Some(scratch));
        }
        if self.rank.ages.is_long() {
            let Rank { ages, holds, has_odd, .. } = &mut *self.rank;
            if *has_odd {
                let mut odd = self.cell.odd.write().unwrap_or_else(PoisonError::into_inner);
                odd.renumber(|moments| ages.sweep(holds, moments));
            } else {
                ages.sweep(holds, &mut []);
            }
        }
    }

    /// Shows what was done so far, and opens the gate for others.
    pub(super) fn leave(&mut self) {
        if self.rank.scope.is_some() && !self.publish_beside() {
            self.flush();
            let (stamp, held, partial) = (self.rank.stamp, self.rank.held(), self.rank.partial);
            let (hybrid, seat) = (self.rank.hybrid, self.seat());
            if let Some(forest) = lock(self.forest, self.rank) {
                if self.rank.tap.is_some() {
                    tap::resolve(self.cell, self.rank, forest, seat);
                }
                forest.settle();
                if let Some(face) = forest.seats.face_mut(seat) {
                    face.set(stamp, held, partial, hybrid);
                }
            }
        }
        *self.forest = None;
    }

    pub(super) fn scratch(&mut self) -> Box<Scratch> {
        self.rank.scratch.take().or_else(|| SPARE.take()).unwrap_or_default()
    }

    pub(super) fn seat(&self) -> u32 {
        self.rank.scope.as_ref().map_or(0, |(_, seat)| *seat)
    }
}

/// Where a name of a rank stands.
pub(super) fn find(cell: &Cell, rank: &Rank, hash: EngineHash) -> Option<Found> {
    if rank.has_odd {
        return find_apart(cell, rank, hash);
    }
    let known = rank.tips.get(hash).filter(|spot| rank.holds.stands(*spot, hash));
    let spot = known.or_else(|| forms(hash).find_map(|form| rank.spot(form)))?;
    let hold = rank.holds.get(spot.hold);
    let place = Place { run: hold.run, block: spot.block, seed: hold.seed };
    Some(Found { place, seed: hold.seed, ambiguous: false })
}

#[cold]
fn find_apart(cell: &Cell, rank: &Rank, hash: EngineHash) -> Option<Found> {
    let odd = cell.odd.read().unwrap_or_else(PoisonError::into_inner);
    let known = rank.known(&odd, hash)?;
    let (spot, seed, places) = match odd.names.get(&known) {
        Some(name) => (name.places.last(), name.seed, name.places.count()),
        None => {
            let spot = rank.spot(known)?;
            (spot, rank.holds.get(spot.hold).seed, 1)
        }
    };
    let place = Place { run: rank.holds.get(spot.hold).run, block: spot.block, seed };
    Some(Found { place, seed, ambiguous: places > 1 })
}

/// The forest, locked for the rest of the transaction; `None` for a rank without a grid, which has nothing in one.
#[inline]
pub(super) fn lock<'f>(forest: &'f mut Option<Writing<'static, Forest>>, rank: &Rank) -> Option<&'f mut Forest> {
    if forest.is_none() {
        *forest = Some(begin(rank)?.enter());
    }
    forest.as_deref_mut()
}

/// The forest, to read while no other writer changes it.
#[inline]
#[allow(unsafe_code)]
pub(super) fn begin(rank: &Rank) -> Option<Planning<'static, Forest>> {
    let (gate, _) = rank.scope.as_ref()?;
    // SAFETY: the rank's scope keeps the gate, and a rank leaves its scope only when the guard is gone (see `publish`).
    Some(unsafe { gate.plan_unbound() })
}

/// Where the names of planned blocks will stand, as far as their runs are there; `false` where a block is not simply the
/// next one that the rank lacks.
fn pieces(rank: &Rank, forest: &Forest, seat: u32, seed: Seed, plan: &Plan, pieces: &mut Vec<Piece>) -> bool {
    pieces.clear();
    for segment in &plan.segments {
        let holder = forest.holder(segment.run, seat);
        let first = Spot { hold: holder.map_or(NONE, |holder| holder.hold), block: segment.from };
        let is_next = match holder {
            None => segment.from == 0,
            Some(holder) => holder.lead() == segment.from && rank.holds.ends_at(first, seed),
        };
        if !is_next {
            return false;
        }
        pieces.push(Piece::new(first, segment.to - segment.from));
    }
    true
}
