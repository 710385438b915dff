//! The verbs that change what a rank holds: the short ways, which nearly every event takes.
//!
//! A store first puts its names into the rank's own table (which says whether one of them was known), then locks the
//! forest to find or make the places, and is done with the table when the transaction has unlocked. A removal does
//! all that its names need before it locks. What either finds out of the ordinary goes the long way (`apart`).

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError};

use crate::block::{Group, Tier};
use crate::hash::{EngineHash, Seed};

use super::apart::Apart;
use super::copies::Tiers;
use super::door::{Block, Found, Limits, Parent, Place, RemoveOutcome, StoreOutcome};
use super::forest::{Forest, Segment};
use super::gate::Writing;
use super::names::{Entry, MAX_HOLDS, SlotId, Spot};
use super::odd::forms;
use super::rank::{Cell, Rank};
use super::tap;

/// Bounds, and what they are compared with.
#[derive(Debug)]
pub(super) struct Bounds {
    pub(super) limits: Limits,
    /// What all ranks together weigh.
    pub(super) total: AtomicUsize,
}

/// One rank with all that its changes touch.
pub(super) struct Hands<'a> {
    pub(super) cell: &'a Arc<Cell>,
    pub(super) rank: &'a mut Rank,
    /// The forest, once this transaction has changed it; it stays locked until the commit.
    pub(super) forest: &'a mut Option<Writing<Forest>>,
    pub(super) bounds: &'a Bounds,
}

/// Memory that is used again and again: a transaction borrows its thread's, so a rank that is idle has none.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    slots: Vec<SlotId>,
    segments: Vec<Segment>,
    names: Vec<EngineHash>,
    /// Segments whose names are not in their holds yet, with the hold.
    pending: Vec<(Segment, u32)>,
    lost: Vec<Lost>,
    is_borrowed: bool,
}

thread_local!(static SPARE: RefCell<Scratch> = RefCell::default());

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

/// How many look-ups ahead a name's slot is read, so that the reads overlap.
const AHEAD: usize = 12;

/// Stands for "not known yet" in a table.
const PENDING: u32 = MAX_HOLDS as u32;

// === impl Bounds ===

impl Bounds {
    pub(super) fn has_room(&self, weight: usize, more: usize) -> bool {
        weight + more <= self.limits.blocks_per_rank
            && self.total.load(Ordering::Relaxed) + more <= self.limits.blocks_in_all
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
            Parent::Under(place) => (Some((place.run, place.block)), place.seed),
        };
        for blocks in run.chunks(BATCH) {
            let ordinary = tier == Tier::Device && group == self.rank.home && !self.rank.has_odd;
            let fits = self.bounds.has_room(self.rank.weight, blocks.len()) && self.rank.holds.has_room();
            let short = if ordinary && fits { self.store_ordinary(last, seed, blocks) } else { None };
            match short {
                Some(at) => {
                    outcome.added += blocks.len();
                    last = Some(at);
                }
                None => last = self.apart(|apart| apart.store(last, seed, tier, group, blocks, &mut outcome)),
            }
        }
        outcome
    }

    /// Stores blocks of new names where each place is the next one that this rank lacks: nearly always so. The place
    /// of the last one; `None`: it is not so, and nothing has changed.
    fn store_ordinary(&mut self, parent: Option<(u32, u32)>, seed: Seed, blocks: &[Block]) -> Option<(u32, u32)> {
        self.finish();
        self.borrow_scratch();
        if !self.put_names(blocks) {
            return None;
        }
        let seat = self.seat();
        let mut scratch = std::mem::take(&mut self.rank.scratch);
        scratch.segments.clear();
        let forest = lock(self.forest, self.rank)?;
        forest.locate(seat, parent, blocks, &mut scratch.segments);
        let holds = &self.rank.holds;
        let simple = scratch.segments.iter().all(|segment| match forest.holder(segment.run, seat) {
            None => segment.from == 0,
            Some(holder) => holder.lead == segment.from && holds.get(holder.hold).seed == seed,
        });
        if !simple || scratch.segments.is_empty() {
            self.rank.scratch = scratch;
            self.take_names(blocks);
            return None;
        }
        let mut place = None;
        for segment in &scratch.segments {
            let hold = match forest.holder(segment.run, seat) {
                Some(holder) => holder.hold,
                None => {
                    let born = self.rank.ages.close();
                    self.rank.holds.begin(segment.run, seed, born)
                }
            };
            forest.cover(segment.run).extend(seat, segment.from, segment.to, hold);
            if let Some(tap) = &mut self.rank.tap {
                tap.gained(segment.run, segment.from, segment.to, Tier::Device);
            }
            scratch.pending.push((*segment, hold));
            place = Some((segment.run, segment.to - 1));
        }
        scratch.names.clear();
        scratch.names.extend(blocks.iter().map(|block| block.engine));
        self.rank.scratch = scratch;
        self.rank.ordinary += blocks.len() as u64;
        self.weigh(blocks.len());
        place
    }

    /// Puts names into the table, without their spots. `false` where one of them was there, and then none is put.
    fn put_names(&mut self, blocks: &[Block]) -> bool {
        let Rank { names, holds, scratch, .. } = &mut *self.rank;
        names.reserve(blocks.len(), |spot| holds.name_at(spot));
        scratch.slots.clear();
        for (i, block) in blocks.iter().enumerate() {
            if let Some(next) = blocks.get(i + AHEAD) {
                names.touch(next.engine);
            }
            let is = |spot: Spot| match spot.hold {
                PENDING => blocks.get(spot.block as usize).is_some_and(|other| other.engine == block.engine),
                _ => holds.is(spot, block.engine),
            };
            match names.get_or_put(block.engine, Spot { hold: PENDING, block: i as u32 }, is) {
                Some(Entry::New(slot)) => scratch.slots.push(slot),
                _ => {
                    self.take_names(blocks);
                    return false;
                }
            }
        }
        true
    }

    /// Takes names out again that were put without their spots.
    fn take_names(&mut self, blocks: &[Block]) {
        let Rank { names, scratch, .. } = &mut *self.rank;
        for (block, slot) in blocks.iter().zip(scratch.slots.drain(..)) {
            names.remove(block.engine, slot);
        }
    }

    /// What of a store needs no lock: the names go to their holds, and the table learns where they stand.
    pub(super) fn finish(&mut self) {
        let Rank { names, holds, ages, scratch, .. } = &mut *self.rank;
        let mut done = 0;
        for (segment, hold) in scratch.pending.drain(..) {
            let blocks = (segment.to - segment.from) as usize;
            let moment = ages.push(hold, segment.from, segment.to - segment.from);
            holds.put(hold, segment.from, scratch.names[done..done + blocks].iter().copied(), moment);
            for (block, slot) in (segment.from..).zip(&scratch.slots[done..done + blocks]) {
                names.set(*slot, Spot { hold, block });
            }
            done += blocks;
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
        self.borrow_scratch();
        let mut lost = std::mem::take(&mut self.rank.scratch.lost);
        for (i, hash) in hashes.iter().enumerate() {
            if let Some(next) = hashes.get(i + AHEAD) {
                self.rank.names.touch(*next);
            }
            match self.take_ordinary(*hash, &mut lost) {
                true => outcome.removed += 1,
                false => outcome.unknown += 1,
            }
        }
        self.rank.ordinary -= outcome.removed as u64;
        self.unweigh(outcome.removed);
        if !lost.is_empty() {
            let seat = self.seat();
            if let Some(forest) = lock(self.forest, self.rank) {
                for Lost { run, from, to, .. } in lost.drain(..) {
                    forest.cover(run).lose(seat, from, to, Tiers::DEVICE);
                    forest.touch(run);
                    if let Some(tap) = &mut self.rank.tap {
                        tap.lost(run, from, to, Tier::Device);
                    }
                }
            }
        }
        if lost.capacity() <= BATCH {
            self.rank.scratch.lost = lost;
        }
        let Rank { names, holds, .. } = &mut *self.rank;
        names.tidy(|spot| holds.name_at(spot));
        outcome
    }

    /// Takes a name out of the rank's own tables.
    #[inline]
    fn take_ordinary(&mut self, hash: EngineHash, lost: &mut Vec<Lost>) -> bool {
        let known = forms(hash).find_map(|form| self.rank.spot(form).map(|(slot, spot)| (form, slot, spot)));
        let Some((name, slot, spot)) = known else { return false };
        let Rank { names, holds, ages, .. } = &mut *self.rank;
        names.remove(name, slot);
        holds.take(spot);
        let hold = holds.get(spot.hold);
        let (run, ends) = (hold.run, hold.ordinary == 0);
        // Engines evict from the tail: one step on the forest for a whole run of names.
        match lost.last_mut() {
            Some(last) if last.run == run && last.hold == spot.hold && spot.block + 1 == last.from => {
                last.from = spot.block;
            }
            Some(last) if last.run == run && last.hold == spot.hold && spot.block == last.to => last.to += 1,
            _ => lost.push(Lost { hold: spot.hold, run, from: spot.block, to: spot.block + 1 }),
        }
        if ends {
            ages.close();
            holds.end_if_empty(spot.hold);
        }
        true
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
        rank.ordinary = 0;
        rank.odd_names = 0;
        rank.partial = false;
        rank.restoring = None;
        if let Some(tap) = &mut rank.tap {
            tap.cleared();
        }
        let weight = rank.weight;
        self.unweigh(weight);
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
        if self.rank.scratch.is_borrowed {
            SPARE.with(|spare| {
                self.rank.scratch.is_borrowed = false;
                *spare.borrow_mut() = std::mem::take(&mut self.rank.scratch);
            });
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

    fn borrow_scratch(&mut self) {
        if !self.rank.scratch.is_borrowed {
            self.rank.scratch = SPARE.take();
            self.rank.scratch.is_borrowed = true;
        }
    }

    fn seat(&self) -> u32 {
        self.rank.scope.as_ref().map_or(0, |(_, seat)| *seat)
    }

    fn weigh(&mut self, blocks: usize) {
        self.rank.weight += blocks;
        self.bounds.total.fetch_add(blocks, Ordering::Relaxed);
    }

    fn unweigh(&mut self, blocks: usize) {
        self.rank.weight -= blocks;
        self.bounds.total.fetch_sub(blocks, Ordering::Relaxed);
    }
}

/// Where a name of a rank stands. Names that are not in their holds yet are known, too.
pub(super) fn find(cell: &Cell, rank: &Rank, hash: EngineHash) -> Option<Found> {
    if rank.has_odd {
        return find_apart(cell, rank, hash);
    }
    let Scratch { names, pending, .. } = &rank.scratch;
    let is = |form: EngineHash| {
        move |spot: Spot| match spot.hold {
            PENDING => names.get(spot.block as usize) == Some(&form),
            _ => rank.holds.is(spot, form),
        }
    };
    let (_, mut spot) = forms(hash).find_map(|form| rank.names.get(form, is(form)))?;
    if spot.hold == PENDING {
        for (segment, hold) in pending {
            let blocks = segment.to - segment.from;
            if spot.block < blocks {
                spot = Spot { hold: *hold, block: segment.from + spot.block };
                break;
            }
            spot.block -= blocks;
        }
    }
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
            let (_, spot) = rank.spot(known)?;
            (spot, rank.holds.get(spot.hold).seed, 1)
        }
    };
    let place = Place { run: rank.holds.get(spot.hold).run, block: spot.block, seed };
    Some(Found { place, seed, ambiguous: places > 1 })
}

/// The forest, locked for the rest of the transaction; `None` for a rank without a grid, which has nothing in one.
#[inline]
fn lock<'f>(forest: &'f mut Option<Writing<Forest>>, rank: &Rank) -> Option<&'f mut Forest> {
    let (gate, _) = rank.scope.as_ref()?;
    Some(forest.get_or_insert_with(|| gate.write()))
}
