//! The writer's side: what a transaction changes is noted as it happens, and told when it ends.
//!
//! A rank holds a block on a tier or not: the index changes that at six places, each of which notes a *flip*. When the
//! transaction ends, flips that undo each other are struck out, and what is left becomes runs of hashes, while the
//! blocks are still in their places. What a hybrid rank's groups hold is noted before it changes, and compared then.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, PoisonError};

use crate::block::{Group, Tier};
use crate::hash::{ContentHash, EngineHash, PrefixHash};
use crate::index::apart::Apart;
use crate::index::copies::Tiers;
use crate::index::forest::Forest;
use crate::index::hold::Spot;
use crate::index::odd::{Odd, forms};
use crate::index::rank::{Cell, Rank};
use crate::worker::{RankId, Stamp};

use super::{BlockRun, Change, Delta, Queue, What};

/// A block's place: run and number.
pub(super) type At = (u32, u32);

/// What a rank's transactions note while somebody listens.
#[derive(Debug)]
pub(in crate::index) struct RankTap {
    listeners: Vec<Arc<Queue>>,
    /// Somebody wants to hear of everything that this transaction changes, not only of what ends with it.
    wants_all: bool,
    flips: Vec<Flip>,
    /// What the noted groups held at a place before this transaction.
    before: BTreeMap<At, Held>,
    /// Groups that had no note before this transaction.
    new_groups: Vec<Group>,
    are_groups_new: bool,
    changes: Vec<Change>,
    told: Told,
    /// A delta that a listener has given back, for the next to be written in its memory.
    spare: Option<Arc<Delta>>,
    /// Scratch: what is stored, by its position.
    stored: Vec<(u32, Flip)>,
}

/// Flips that are compared each with each.
const FEW_FLIPS: usize = 6;

/// Room for so many flips is kept from one transaction to the next.
const KEPT_FLIPS: usize = 256;

/// Which noted groups hold the block that ends at a place, and on which tiers; ascending.
type Held = Vec<(Group, Tiers)>;

/// What listeners know of a rank besides its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Told {
    stamp: Stamp,
    partial: bool,
    too_many_groups: bool,
}

/// Consecutive blocks of a run that are held on a tier from here on, or no longer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flip {
    run: u32,
    from: u32,
    to: u32,
    tier: Tier,
    gained: bool,
}

// === impl RankTap: listeners ===

impl RankTap {
    /// Adds a listener to a rank, once.
    pub(super) fn join(cell: &Cell, rank: &mut Rank, queue: &Arc<Queue>) {
        let told = Told::of(cell, rank);
        let tap = rank.tap.get_or_insert_with(|| {
            Box::new(Self {
                listeners: Vec::new(),
                wants_all: false,
                flips: Vec::new(),
                before: BTreeMap::new(),
                new_groups: Vec::new(),
                are_groups_new: false,
                changes: Vec::new(),
                told,
                spare: None,
                stored: Vec::new(),
            })
        });
        tap.listeners.retain(|other| other.is_open() && !Arc::ptr_eq(other, queue));
        tap.listeners.push(queue.clone());
    }

    pub(super) fn leave(rank: &mut Rank, queue: &Arc<Queue>) {
        let Some(tap) = &mut rank.tap else { return };
        tap.listeners.retain(|other| !Arc::ptr_eq(other, queue));
        if tap.listeners.is_empty() {
            rank.tap = None;
        }
    }
}

// === impl RankTap: noting ===

impl RankTap {
    /// A transaction begins.
    #[inline]
    pub(in crate::index) fn begin(&mut self) {
        self.wants_all = self.listeners.iter().any(|queue| queue.wants_all());
    }

    /// Whether somebody wants to hear of what this transaction stores.
    #[inline]
    pub(in crate::index) fn wants_all(&self) -> bool {
        self.wants_all
    }

    /// The rank holds blocks `[from, to)` of a run on a tier, which it did not.
    #[inline]
    pub(in crate::index) fn gained(&mut self, run: u32, from: u32, to: u32, tier: Tier) {
        if !self.wants_all {
            return;
        }
        self.flip(Flip { run, from, to, tier, gained: true });
    }

    /// It no longer does.
    pub(in crate::index) fn lost(&mut self, run: u32, from: u32, to: u32, tier: Tier) {
        self.flip(Flip { run, from, to, tier, gained: false });
    }

    fn flip(&mut self, next: Flip) {
        match self.flips.last_mut() {
            Some(last) if last.is_like(&next) && last.to == next.from => last.to = next.to,
            Some(last) if last.is_like(&next) && next.to == last.from => last.from = next.from,
            _ => self.flips.push(next),
        }
    }

    /// The rank holds nothing any more.
    pub(in crate::index) fn cleared(&mut self) {
        self.flips.clear();
        self.before.clear();
        self.changes.retain(|change| !matches!(change, Change::Run(_) | Change::Cleared));
        self.changes.push(Change::Cleared);
        self.told.partial = false;
    }

    /// Neither has it a grid, nor groups.
    pub(in crate::index) fn reset(&mut self) {
        self.flips.clear();
        self.before.clear();
        self.new_groups.clear();
        self.are_groups_new = false;
        (self.told.partial, self.told.too_many_groups) = (false, false);
        self.changes.clear();
        self.changes.push(Change::Reset);
    }

    pub(in crate::index) fn changed(&mut self, change: Change) {
        self.changes.push(change);
    }

    /// A group is about to be noted.
    pub(in crate::index) fn noted(&mut self, group: Group, odd: &Odd) {
        self.are_groups_new = true;
        if !odd.notes.contains_key(&group) && !self.new_groups.contains(&group) {
            self.new_groups.push(group);
        }
    }
}

impl Apart<'_> {
    /// Notes what a hybrid rank's groups hold wherever a name stands, and at `at`, before that changes.
    #[inline]
    pub(in crate::index) fn watch(&mut self, name: EngineHash, at: Option<At>) {
        if self.rank.tap.is_some() && self.odd.is_hybrid() {
            self.watch_groups(name, at);
        }
    }

    #[cold]
    fn watch_groups(&mut self, name: EngineHash, at: Option<At>) {
        let mut places: Vec<At> = at.into_iter().collect();
        for form in forms(name) {
            let (ordinary, holds) = (self.rank.spot(form), &self.rank.holds);
            let odd = self.odd.names.get(&form).into_iter().flat_map(|name| name.places.iter());
            places.extend(ordinary.into_iter().chain(odd).map(|spot| (holds.get(spot.hold).run, spot.block)));
        }
        let (Some(tap), Some(forest)) = (&mut self.rank.tap, self.forest.as_deref()) else { return };
        for place in places {
            if !tap.before.contains_key(&place) {
                let mut held = held(self.odd, forest, self.seat, place);
                held.retain(|(group, _)| !tap.new_groups.contains(group));
                tap.before.insert(place, held);
            }
        }
    }
}

// === telling ===

/// Turns what was noted into changes, while the blocks are still in their places.
#[cold]
pub(in crate::index) fn resolve(cell: &Cell, rank: &mut Rank, forest: &Forest, seat: u32) {
    let is_idle = |tap: &RankTap| tap.flips.is_empty() && tap.before.is_empty() && tap.new_groups.is_empty();
    let Some(mut tap) = rank.tap.take_if(|tap| rank.hybrid || !is_idle(tap)) else { return };
    let (mut flips, mut stored) = (std::mem::take(&mut tap.flips), std::mem::take(&mut tap.stored));
    net(&mut flips);
    stored.extend(flips.iter().filter(|flip| flip.gained).map(|flip| (depth(forest, flip.run) + flip.from, *flip)));
    // Parents first. A restore stores a parent after its child where it is younger.
    stored.sort_by_key(|(position, _)| *position);
    let lost = |(run, block): At| {
        let is_here = |flip: &Flip| !flip.gained && flip.run == run && (flip.from..flip.to).contains(&block);
        flips.iter().any(is_here)
    };
    let mut passed = HashSet::new();
    for (position, flip) in stored.drain(..) {
        let is_known = |at: At| is_held(forest, seat, at) || lost(at);
        tap.changes.extend(way(forest, (flip.run, flip.from), position, is_known, &mut passed).map(Change::Run));
        let what = What::Stored(flip.tier);
        tap.changes.push(Change::Run(block_run(forest, what, None, position, flip.run, flip.from, flip.to)));
    }
    for Flip { run, from, to, tier, .. } in flips.iter().copied().filter(|flip| !flip.gained) {
        let position = depth(forest, run) + from;
        let what = What::Removed(tier);
        tap.changes.push(Change::Run(block_run(forest, what, None, position, run, from, to)));
    }
    if flips.capacity() <= KEPT_FLIPS {
        flips.clear();
        (tap.flips, tap.stored) = (flips, stored);
    }
    if rank.hybrid {
        let odd = cell.odd.read().unwrap_or_else(PoisonError::into_inner);
        tap.compare_groups(rank, &odd, forest, seat);
    }
    tap.before.clear();
    tap.new_groups.clear();
    rank.tap = Some(tap);
}

impl RankTap {
    /// Tells what the noted groups hold otherwise than before.
    fn compare_groups(&mut self, rank: &Rank, odd: &Odd, forest: &Forest, seat: u32) {
        if !self.new_groups.is_empty() {
            for spot in odd.places() {
                let at = (rank.holds.get(spot.hold).run, spot.block);
                self.before.entry(at).or_insert_with(|| {
                    let mut held = held(odd, forest, seat, at);
                    held.retain(|(group, _)| !self.new_groups.contains(group));
                    held
                });
            }
        }
        let mut flips: Vec<(Group, Flip)> = Vec::new();
        for (at, before) in std::mem::take(&mut self.before) {
            let now = held(odd, forest, seat, at);
            let on = |held: &Held, group| held.iter().find(|(g, _)| *g == group).map(|(_, t)| *t).unwrap_or_default();
            for group in odd.notes.keys() {
                let (before, now) = (on(&before, *group), on(&now, *group));
                for (tiers, gained) in [(now.minus(before), true), (before.minus(now), false)] {
                    let flip = |tier| Flip { run: at.0, from: at.1, to: at.1 + 1, tier, gained };
                    flips.extend(tiers.iter().map(|tier| (*group, flip(tier))));
                }
            }
        }
        self.changes.extend(group_runs(forest, flips).map(Change::Run));
    }
}

/// Ends a transaction: whoever listens is told.
#[cold]
pub(in crate::index) fn emit(cell: &Cell, rank: &mut Rank) {
    let Some(mut tap) = rank.tap.take() else { return };
    let now = Told::of(cell, rank);
    if tap.are_groups_new || tap.told.too_many_groups != now.too_many_groups {
        tap.changes.push(groups(cell));
    }
    if tap.told.partial != now.partial {
        tap.changes.push(Change::Partial(now.partial));
    }
    if rank.gone {
        tap.changes = vec![Change::Gone];
    }
    if !tap.changes.is_empty() || (tap.wants_all && tap.told.stamp != now.stamp) {
        rank.told += 1;
        let is_stored = |change: &Change| matches!(change, Change::Run(run) if !matches!(run.what, What::Removed(_)));
        let all_stored = tap.changes.iter().all(is_stored);
        let delta = tap.delta(cell.id, rank.told, rank.stamp);
        let RankTap { listeners, spare, .. } = &mut *tap;
        listeners.retain(|queue| (all_stored && !queue.wants_all()) || queue.tell_delta(&delta, spare));
    }
    (tap.told, tap.are_groups_new) = (now, false);
    if !(rank.gone || tap.listeners.is_empty()) {
        rank.tap = Some(tap);
    }
}

impl RankTap {
    /// The changes as a delta, in the memory of one that was given back and that nobody else has, if there is one.
    fn delta(&mut self, rank: RankId, number: u64, stamp: Stamp) -> Arc<Delta> {
        if let Some(mut spare) = self.spare.take()
            && let Some(delta) = Arc::get_mut(&mut spare)
        {
            delta.changes.clear();
            std::mem::swap(&mut delta.changes, &mut self.changes);
            (delta.rank, delta.number, delta.stamp) = (rank, number, stamp);
            return spare;
        }
        Arc::new(Delta { rank, number, stamp, changes: std::mem::take(&mut self.changes) })
    }
}

/// All that is noted of a rank's groups.
pub(super) fn groups(cell: &Cell) -> Change {
    let odd = cell.odd.read().unwrap_or_else(PoisonError::into_inner);
    let notes = odd.notes.iter().map(|(group, note)| (*group, note.rule, note.block_size));
    Change::Groups { notes: notes.collect(), too_many: odd.too_many_groups }
}

/// Blocks of groups as runs, given one by one.
pub(super) fn group_runs(forest: &Forest, mut flips: Vec<(Group, Flip)>) -> impl Iterator<Item = BlockRun> {
    flips.sort_by_key(|(group, flip)| (*group, flip.tier, flip.gained, flip.run, flip.from));
    flips.dedup_by(|(group, next), (last_group, last)| {
        let goes_on = group == last_group && last.is_like(next) && last.to == next.from;
        if goes_on {
            last.to = next.to;
        }
        goes_on
    });
    flips.into_iter().map(|(group, Flip { run, from, to, tier, gained })| {
        let what = if gained { What::Stored(tier) } else { What::Removed(tier) };
        block_run(forest, what, Some(group), depth(forest, run) + from, run, from, to)
    })
}

/// The blocks of a run that a snapshot tells of a group.
pub(super) fn group_flips(odd: &Odd, forest: &Forest, seat: u32, at: At) -> impl Iterator<Item = (Group, Flip)> {
    let flip = move |tier| Flip { run: at.0, from: at.1, to: at.1 + 1, tier, gained: true };
    let held = held(odd, forest, seat, at).into_iter();
    held.flat_map(move |(group, tiers)| tiers.iter().map(move |tier| (group, flip(tier))))
}

/// Strikes out flips that undo each other.
fn net(flips: &mut Vec<Flip>) {
    if flips.iter().all(|flip| flip.gained) || flips.iter().all(|flip| !flip.gained) || !overlap(flips) {
        return;
    }
    let blocks = flips.iter().zip(0usize..).flat_map(|(flip, order)| {
        (flip.from..flip.to).map(move |block| (flip.run, flip.tier, block, order, flip.gained))
    });
    let mut blocks: Vec<_> = blocks.collect();
    blocks.sort_unstable();
    let mut kept: Vec<Flip> = Vec::new();
    for flips in blocks.chunk_by(|a, b| (a.0, a.1, a.2) == (b.0, b.1, b.2)) {
        // A block's flips go to and fro: of an odd number the last one stands, an even number is nothing.
        let Some((run, tier, block, _, gained)) = flips.last().copied().filter(|_| flips.len() % 2 == 1) else {
            continue;
        };
        let next = Flip { run, from: block, to: block + 1, tier, gained };
        match kept.last_mut() {
            Some(last) if last.is_like(&next) && last.to == block => last.to = next.to,
            _ => kept.push(next),
        }
    }
    *flips = kept;
}

/// Whether two flips are of the same block on the same tier.
fn overlap(flips: &[Flip]) -> bool {
    if flips.len() <= FEW_FLIPS {
        return (1..).zip(flips).any(|(next, a)| flips.iter().skip(next).any(|b| a.is_over(b)));
    }
    let mut sorted = flips.to_vec();
    sorted.sort_unstable_by_key(|flip| (flip.run, flip.tier, flip.from));
    sorted.windows(2).any(|pair| matches!(pair, [a, b] if a.is_over(b)))
}

// === reading the forest ===

/// Whether the rank in a seat holds a block.
pub(super) fn is_held(forest: &Forest, seat: u32, (run, block): At) -> bool {
    !forest.run(run).cover.tiers(seat, block).is_empty()
}

/// What the noted groups hold of the block that ends at a place.
fn held(odd: &Odd, forest: &Forest, seat: u32, (run, block): At) -> Held {
    let Some(holder) = forest.holder(run, seat) else { return Held::new() };
    let spot = Spot { hold: holder.hold, block };
    let tiers = |group| odd.group_tiers(group, spot).fold(Tiers::default(), Tiers::and);
    let held = odd.notes.keys().map(|group| (*group, tiers(*group)));
    held.filter(|(_, tiers)| !tiers.is_empty()).collect()
}

/// The number, in its prompt, of the first block of a run.
pub(super) fn depth(forest: &Forest, mut run: u32) -> u32 {
    let mut depth = 0u32;
    while let Some((above, block)) = forest.before(run, 0) {
        depth = depth.saturating_add(block + 1);
        run = above;
    }
    depth
}

/// The blocks between a place and the nearest one before it that is known or was passed already, if there are any.
pub(super) fn way(
    forest: &Forest,
    (run, block): At,
    position: u32,
    is_known: impl Fn(At) -> bool,
    passed: &mut HashSet<At>,
) -> Option<BlockRun> {
    let mut contents: Vec<ContentHash> = Vec::new();
    let mut before = forest.before(run, block);
    while let Some(at) = before.filter(|at| !is_known(*at) && !passed.contains(at)) {
        contents.extend(forest.run(at.0).contents.get(at.1 as usize));
        passed.insert(at);
        before = forest.before(at.0, at.1);
    }
    if contents.is_empty() {
        return None;
    }
    contents.reverse();
    let position = position.saturating_sub(contents.len() as u32);
    let parent = before.map(|at| prefix(forest, at));
    Some(BlockRun { what: What::Passed, group: None, parent, position, contents: contents.into() })
}

/// Blocks `[from, to)` of a run.
pub(super) fn block_run(
    forest: &Forest,
    what: What,
    group: Option<Group>,
    position: u32,
    run: u32,
    from: u32,
    to: u32,
) -> BlockRun {
    let parent = forest.before(run, from).map(|at| prefix(forest, at));
    let contents = forest.run(run).contents.as_slice().get(from as usize..to as usize).unwrap_or_default();
    BlockRun { what, group, parent, position, contents: contents.into() }
}

fn prefix(forest: &Forest, (run, block): At) -> PrefixHash {
    forest.run(run).prefix(block as usize)
}

// === impl Told ===

impl Told {
    fn of(cell: &Cell, rank: &Rank) -> Self {
        // What is noted of too many groups is odd, and nearly no rank has anything odd.
        let too_many_groups = rank.has_odd && cell.odd.read().unwrap_or_else(PoisonError::into_inner).too_many_groups;
        Self { stamp: rank.stamp, partial: rank.partial, too_many_groups }
    }
}

// === impl Flip ===

impl Flip {
    fn is_over(&self, other: &Self) -> bool {
        (self.run, self.tier) == (other.run, other.tier) && self.from < other.to && other.from < self.to
    }

    fn is_like(&self, other: &Self) -> bool {
        self.run == other.run && self.tier == other.tier && self.gained == other.gained
    }
}
