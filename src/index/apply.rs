//! The verbs that change what a rank holds: the short ways, which nearly every event takes.
//!
//! A store first puts its names into the rank's own tables (which say whether one of them was known), then locks the
//! forest to find or make the places. Nearly always the names are kept where they belong by then: behind the hold that
//! the parent ends, or first in a new one. A removal does all that its names need before it locks. What either finds
//! out of the ordinary goes the long way (`apart`).

use std::cell::Cell as Slot;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use crate::block::{Group, Tier};
use crate::hash::{EngineHash, Seed};

use super::apart::Apart;
use super::copies::Tiers;
use super::door::{Block, Found, Limits, Parent, Place, RemoveOutcome, StoreOutcome};
use super::forest::{Forest, Plan, Segment};
use super::gate::{Planning, Writing};
use super::hold::{Spot, Staged};
use super::names::{Ahead, Aim};
use super::odd::forms;
use super::rank::{Cell, Rank};
use super::tap;

/// Bounds, and what they are compared with.
#[derive(Debug)]
pub(super) struct Bounds {
    blocks_per_rank: AtomicUsize,
    blocks_in_all: AtomicUsize,
    /// What all ranks together weigh, and may weigh without asking.
    total: AtomicUsize,
}

/// So much at most may a rank weigh without asking: ranks that change at the same time would wait for each other at each
/// block.
const SPARE_WEIGHT: usize = 512;

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
    staged: Staged,
    plan: Plan,
    /// Where the staged names belong.
    placed: Vec<Placed>,
    lost: Vec<Lost>,
}

/// Blocks that were placed, whose names do not know it yet.
#[derive(Clone, Copy, Debug)]
struct Placed {
    first: Spot,
    count: u32,
    /// Their hold began with them.
    is_new: bool,
}

thread_local!(static SPARE: Slot<Option<Box<Scratch>>> = const { Slot::new(None) });

/// Blocks that lost their ordinary names.
#[derive(Clone, Copy, Debug)]
struct Lost {
    hold: u32,
    run: u32,
    from: u32,
    to: u32,
}

/// Blocks that are looked at together: bounds the scratch, whatever an engine sends.
const BATCH: usize = 4096;

/// Names that lie side by side.
const LINE: u32 = super::lines::WIDTH as u32;

/// A store of so few blocks looks at the forest first.
const FEW: usize = 2;

// === impl Bounds ===

impl Bounds {
    pub(super) fn new(limits: Limits) -> Self {
        let Limits { blocks_per_rank, blocks_in_all } = limits;
        let [blocks_per_rank, blocks_in_all] = [blocks_per_rank, blocks_in_all].map(AtomicUsize::new);
        Self { blocks_per_rank, blocks_in_all, total: AtomicUsize::new(0) }
    }

    pub(super) fn set(&self, limits: Limits) {
        self.blocks_per_rank.store(limits.blocks_per_rank, Ordering::Relaxed);
        self.blocks_in_all.store(limits.blocks_in_all, Ordering::Relaxed);
    }

    pub(super) fn has_room(&self, rank: &Rank, more: usize) -> bool {
        rank.weight + more <= self.blocks_per_rank.load(Ordering::Relaxed)
            && self.total.load(Ordering::Relaxed) + more <= self.blocks_in_all.load(Ordering::Relaxed) + rank.spare
    }

    pub(super) fn weigh(&self, rank: &mut Rank, blocks: usize) {
        rank.weight += blocks;
        match rank.spare.checked_sub(blocks) {
            Some(spare) => rank.spare = spare,
            None => {
                // Nothing to spare near the bound, and where it is small: it is exact then.
                let free = self.blocks_in_all.load(Ordering::Relaxed).saturating_sub(self.total.load(Ordering::Relaxed));
                let spare = (free >> 16).min(SPARE_WEIGHT);
                self.total.fetch_add(blocks - rank.spare + spare, Ordering::Relaxed);
                rank.spare = spare;
            }
        }
    }

    pub(super) fn unweigh(&self, rank: &mut Rank, blocks: usize) {
        rank.weight -= blocks;
        let free = self.blocks_in_all.load(Ordering::Relaxed).saturating_sub(self.total.load(Ordering::Relaxed));
        let spare = (free >> 16).min(SPARE_WEIGHT);
        rank.spare += blocks;
        if rank.spare > 2 * spare || rank.weight == 0 {
            let keep = if rank.weight == 0 { 0 } else { spare };
            self.total.fetch_sub(rank.spare - keep, Ordering::Relaxed);
            rank.spare = keep;
        }
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
        let (mut last, mut behind, seed) = match parent {
            Parent::Root(seed) => (None, None, seed),
            Parent::Under(Place { run, block, hold, seed }) => (Some((run, block)), Some(Spot { hold, block }), seed),
        };
        for blocks in run.chunks(BATCH) {
            self.finish();
            let ordinary = tier == Tier::Device && group == self.rank.home && !self.rank.has_odd;
            let fits = self.bounds.has_room(self.rank, blocks.len()) && self.rank.holds.has_room(blocks.len());
            let short = if ordinary && fits { self.store_ordinary(last, behind, seed, blocks) } else { None };
            match short {
                Some((at, spot)) => {
                    outcome.added += blocks.len();
                    (last, behind) = (Some(at), Some(spot));
                }
                None => {
                    last = self.apart(|apart| apart.store(last, seed, tier, group, blocks, &mut outcome));
                    behind = None;
                }
            }
        }
        outcome
    }

    /// Stores blocks of new names where each place is the next one that this rank lacks: nearly always so. The place
    /// and the spot of the last one; `None`: it is not so, and nothing has changed.
    fn store_ordinary(
        &mut self,
        parent: Option<(u32, u32)>,
        behind: Option<Spot>,
        seed: Seed,
        blocks: &[Block],
    ) -> Option<((u32, u32), Spot)> {
        let mut planning = None;
        if blocks.len() <= FEW && self.forest.is_none() {
            // Few names wait for their buckets and nothing else; meanwhile the run is on its way.
            self.rank.names.touch(self.rank.names.aim(blocks.first()?.engine));
            let forest = planning.insert(plan(self.rank)?);
            if let Some((run, _)) = parent {
                forest.touch_run(run);
            }
        }
        let mut scratch = self.scratch();
        let placed = match self.put_names(behind, blocks, &mut scratch.staged) {
            true => self.place_names(parent, seed, blocks, planning, &mut scratch),
            false => None,
        };
        if placed.is_none() {
            self.rank.holds.unstage(&mut scratch.staged);
        }
        self.rank.scratch = Some(scratch);
        placed
    }

    /// Finds or makes the places of blocks whose names are in the table; if one is not simply the next that this rank
    /// lacks, takes the names out again.
    fn place_names(
        &mut self,
        parent: Option<(u32, u32)>,
        seed: Seed,
        blocks: &[Block],
        planning: Option<Planning<'static, Forest>>,
        scratch: &mut Scratch,
    ) -> Option<((u32, u32), Spot)> {
        let seat = self.seat();
        if self.forest.is_none() {
            let forest = match planning {
                Some(planning) => planning,
                None => plan(self.rank)?,
            };
            forest.plan(seat, parent, blocks, &mut scratch.plan);
            *self.forest = Some(forest.enter());
        } else {
            self.forest.as_ref()?.plan(seat, parent, blocks, &mut scratch.plan);
        }
        let forest = self.forest.as_mut()?;
        forest.grow(seat, blocks, &mut scratch.plan);
        let holds = &self.rank.holds;
        let is_simple = |segment: &Segment| match forest.holder(segment.run, seat) {
            None => segment.from == 0,
            Some(holder) => holder.lead == segment.from && holds.get(holder.hold).seed == seed,
        };
        let segments = &scratch.plan.segments;
        if segments.is_empty() || !segments.iter().all(is_simple) {
            self.take_names(blocks, &scratch.staged);
            return None;
        }
        let mut last = None;
        for segment in segments {
            let (holder, count) = (forest.holder(segment.run, seat), segment.to - segment.from);
            let Rank { holds, ages, tap, .. } = &mut *self.rank;
            let hold = match holder {
                Some(holder) => holder.hold,
                None => holds.begin(segment.run, seed, ages.close()),
            };
            forest.cover(segment.run).extend(seat, segment.from, segment.to, hold);
            if let Some(tap) = tap {
                tap.gained(segment.run, segment.from, segment.to, Tier::Device);
            }
            let first = Spot { hold, block: segment.from };
            scratch.placed.push(Placed { first, count, is_new: holder.is_none() });
            let spot = Spot { hold, block: segment.to - 1 };
            last = Some(((segment.run, spot.block), spot));
        }
        self.rank.ordinary += blocks.len() as u64;
        self.bounds.weigh(self.rank, blocks.len());
        last
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
        let mut scratch = self.scratch();
        let Scratch { staged, placed, .. } = &mut *scratch;
        let Rank { holds, names, ages, tips, .. } = &mut *self.rank;
        if let [Placed { first, count, is_new }] = placed[..]
            && staged.behind.map_or(is_new && first.block == 0, |next| next == first)
        {
            let last = holds.lines().name(staged.position(count as usize - 1));
            let moment = ages.push(first.hold, first.block, count);
            holds.settle(first, count, staged, moment);
            tips.note(last, Spot { block: first.block + count - 1, ..first });
        } else {
            let count: u32 = placed.iter().map(|placed| placed.count).sum();
            let kept: Vec<EngineHash> = (0..count as usize).map(|i| holds.lines().name(staged.position(i))).collect();
            let mut ahead = Ahead::new(names, kept.iter().copied());
            let mut done = 0;
            for Placed { first, count, .. } in placed.iter() {
                let part = &kept[done..done + *count as usize];
                let moment = ages.push(first.hold, first.block, *count);
                holds.put(first.hold, first.block, part.iter().copied(), moment);
                for (i, block) in (done..done + part.len()).zip(first.block..) {
                    let aim = ahead.aim(names, i, |i| kept.get(i).copied());
                    names.set(aim, staged.position(i), holds.position(Spot { hold: first.hold, block }));
                }
                done += part.len();
                if let Some(last) = part.last() {
                    tips.note(*last, Spot { hold: first.hold, block: first.block + count - 1 });
                }
            }
        }
        placed.clear();
        holds.unstage(staged);
        self.rank.scratch = Some(scratch);
    }

    /// Keeps names, and puts them into the table. `false` where one of them was there, and then none is kept.
    fn put_names(&mut self, behind: Option<Spot>, blocks: &[Block], staged: &mut Staged) -> bool {
        let Rank { names, holds, .. } = &mut *self.rank;
        holds.stage(behind, blocks, staged);
        let mut ahead = Ahead::new(names, blocks.iter().map(|block| block.engine));
        for (i, block) in blocks.iter().enumerate() {
            let aim = ahead.aim(names, i, |i| blocks.get(i).map(|block| block.engine));
            if !names.put(aim, staged.position(i), block.engine, holds.lines()) {
                self.take_names(&blocks[..i], staged);
                return false;
            }
        }
        true
    }

    /// Takes names out again that were put without their places.
    #[cold]
    fn take_names(&mut self, blocks: &[Block], staged: &Staged) {
        let names = &mut self.rank.names;
        for (i, block) in blocks.iter().enumerate() {
            names.take(names.aim(block.engine), staged.position(i));
        }
    }

    pub(super) fn remove(&mut self, tier: Tier, group: Group, hashes: &[EngineHash]) -> RemoveOutcome {
        let mut outcome = RemoveOutcome::default();
        self.finish();
        if self.rank.has_odd {
            self.apart(|apart| apart.remove(tier, group, hashes, &mut outcome));
            return outcome;
        }
        if tier != Tier::Device || group != self.rank.home {
            outcome.unknown = hashes.len();
            return outcome;
        }
        let mut scratch = self.scratch();
        let lost = &mut scratch.lost;
        let mut ahead = Ahead::new(&self.rank.names, hashes.iter().copied());
        let mut open = None;
        for (i, hash) in hashes.iter().enumerate() {
            let aim = ahead.aim(&self.rank.names, i, |i| hashes.get(i).copied());
            match self.take_beside(*hash, aim, &mut open) || self.take_anywhere(*hash, &mut open, lost) {
                true => outcome.removed += 1,
                false => outcome.unknown += 1,
            }
        }
        self.close(&mut open, lost);
        self.rank.ordinary -= outcome.removed as u64;
        self.bounds.unweigh(self.rank, outcome.removed);
        if !lost.is_empty() {
            let seat = self.seat();
            if self.forest.is_none()
                && let Some(forest) = plan(self.rank)
            {
                lost.iter().for_each(|lost| forest.touch_run(lost.run));
                lost.iter().for_each(|lost| forest.run(lost.run).cover.touch());
                *self.forest = Some(forest.enter());
            }
            if let Some(forest) = self.forest {
                for Lost { run, from, to, .. } in lost.drain(..) {
                    forest.cover(run).lose(seat, from, to, Tiers::DEVICE);
                    forest.touch(run);
                    if let Some(tap) = &mut self.rank.tap {
                        tap.lost(run, from, to, Tier::Device);
                    }
                }
            }
        }
        lost.clear();
        lost.shrink_to(BATCH);
        self.rank.scratch = Some(scratch);
        self.rank.tidy();
        if self.rank.ordinary == 0 {
            self.rank.tips = Default::default();
        }
        outcome
    }

    /// Takes a name out of the table that stands beside those that were taken last. Engines evict block after block,
    /// so the next one is nearly always there, and need not be searched for.
    #[inline]
    fn take_beside(&mut self, name: EngineHash, aim: Aim, open: &mut Option<Lost>) -> bool {
        let Rank { names, holds, .. } = &mut *self.rank;
        let Some(open) = open else { return false };
        let mut take = |block: u32| {
            // What a hold says is old as long as a run of names is open: the table knows.
            let position = holds.position_if(Spot { hold: open.hold, block }, name);
            position.is_some_and(|position| names.take(aim, position))
        };
        if take(open.from.wrapping_sub(1)) {
            open.from -= 1;
            // Its names lie in lines anywhere: the one after the next is asked for as each is begun.
            if open.from % LINE == LINE - 1 {
                holds.touch(Spot { hold: open.hold, block: open.from.wrapping_sub(2 * LINE) });
            }
            return true;
        }
        let is_after = take(open.to);
        open.to += u32::from(is_after);
        if is_after && open.to % LINE == 1 {
            holds.touch(Spot { hold: open.hold, block: open.to + 2 * LINE });
        }
        is_after
    }

    /// Takes a name out of the table, wherever it stands.
    fn take_anywhere(&mut self, name: EngineHash, open: &mut Option<Lost>, lost: &mut Vec<Lost>) -> bool {
        let known = forms(name).find_map(|form| self.rank.spot(form).map(|spot| (form, spot)));
        let Some((name, spot)) = known else { return false };
        let Rank { names, holds, .. } = &mut *self.rank;
        names.take(names.aim(name), holds.position(spot));
        // The line of this name is still its hold's: what is closed ends before it, or behind it.
        self.close(open, lost);
        let run = self.rank.holds.get(spot.hold).run;
        *open = Some(Lost { hold: spot.hold, run, from: spot.block, to: spot.block + 1 });
        true
    }

    /// Ends a run of names that were taken: they leave their hold.
    fn close(&mut self, open: &mut Option<Lost>, lost: &mut Vec<Lost>) {
        let Some(run) = open.take() else { return };
        let Rank { holds, ages, .. } = &mut *self.rank;
        holds.take_run(run.hold, run.from, run.to);
        if holds.get(run.hold).ordinary == 0 {
            ages.close();
            holds.end_if_empty(run.hold);
        }
        lost.push(run);
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
        if self.rank.scope.is_some() {
            let (stamp, held, partial) = (self.rank.stamp, self.rank.held(), self.rank.partial);
            let (hybrid, seat) = (self.rank.hybrid, self.seat());
            if let Some(forest) = lock(self.forest, self.rank) {
                if self.rank.tap.is_some() {
                    tap::resolve(self.cell, self.rank, forest, seat);
                }
                forest.settle();
                if let Some(face) = forest.seats.face_mut(seat) {
                    (face.stamp, face.held, face.partial, face.hybrid) = (stamp, held, partial, hybrid);
                }
            }
        }
        *self.forest = None;
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

    fn scratch(&mut self) -> Box<Scratch> {
        self.rank.scratch.take().or_else(|| SPARE.take()).unwrap_or_default()
    }

    fn seat(&self) -> u32 {
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
    let place = Place { run: hold.run, block: spot.block, hold: spot.hold, seed: hold.seed };
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
    let place = Place { run: rank.holds.get(spot.hold).run, block: spot.block, hold: spot.hold, seed };
    Some(Found { place, seed, ambiguous: places > 1 })
}

/// The forest, locked for the rest of the transaction; `None` for a rank without a grid, which has nothing in one.
#[inline]
fn lock<'f>(forest: &'f mut Option<Writing<'static, Forest>>, rank: &Rank) -> Option<&'f mut Forest> {
    if forest.is_none() {
        *forest = Some(plan(rank)?.enter());
    }
    forest.as_deref_mut()
}

/// The forest, to read while no other writer changes it.
#[inline]
#[allow(unsafe_code)]
fn plan(rank: &Rank) -> Option<Planning<'static, Forest>> {
    let (gate, _) = rank.scope.as_ref()?;
    // SAFETY: the rank's scope keeps the gate, and a rank leaves its scope only when the guard is gone (see `publish`).
    Some(unsafe { gate.plan_unbound() })
}
