//! The long way: names and places one by one, with the side tables.

use crate::block::{Group, Tier};
use crate::hash::{EngineHash, Seed};

use super::bounds::Bounds;
use super::copies::{Piles, Tiers};
use super::cover::Holder;
use super::door::{Block, Copies, RemoveOutcome, StoreOutcome};
use super::forest::Forest;
use super::hold::Spot;
use super::odd::{Key, Odd, OddName, Places, forms};
use super::plan::Plan;
use super::rank::Rank;

/// One rank with all that its changes touch, locked.
pub(super) struct Apart<'a> {
    pub(super) rank: &'a mut Rank,
    pub(super) odd: &'a mut Odd,
    /// A rank without a grid has none, and no names of prefix groups either.
    pub(super) forest: Option<&'a mut Forest>,
    pub(super) seat: u32,
    pub(super) copies: Copies,
    pub(super) bounds: &'a Bounds,
}

/// What became of one block of a store.
enum Stored {
    Added,
    Copy,
    Moved,
}

/// What became of one name of a removal.
enum Taken {
    Last,
    Copy,
}

// === impl Apart: storing ===

impl Apart<'_> {
    /// Stores a run of blocks; the place of the last one.
    pub(super) fn store(
        &mut self,
        mut last: Option<(u32, u32)>,
        seed: Seed,
        tier: Tier,
        group: Group,
        blocks: &[Block],
        outcome: &mut StoreOutcome,
    ) -> Option<(u32, u32)> {
        self.choose_home(tier, group);
        let mut plan = Plan::default();
        for block in blocks {
            self.forest.as_deref_mut()?.locate(self.seat, last, std::slice::from_ref(block), &mut plan);
            let segment = plan.segments.first()?;
            let at = (segment.run, segment.from);
            match self.store_block(block, at, seed, tier, group, 1) {
                Stored::Added => outcome.added += 1,
                Stored::Copy => outcome.copies += 1,
                Stored::Moved => outcome.moved += 1,
            }
            outcome.evicted += self.keep_bounds();
            last = Some(at);
        }
        last
    }

    /// Stores a block of an export at its place; how many went because a bound was reached.
    pub(super) fn restore_block(
        &mut self,
        block: &Block,
        at: (u32, u32),
        seed: Seed,
        tier: Tier,
        group: Group,
        copies: u32,
    ) -> usize {
        self.choose_home(tier, group);
        self.store_block(block, at, seed, tier, group, copies);
        self.keep_bounds()
    }

    /// While a rank has no ordinary name, the next block on the device says which group theirs is.
    fn choose_home(&mut self, tier: Tier, group: Group) {
        if self.rank.ordinary == 0 && tier == Tier::Device {
            self.rank.home = group;
            self.odd.home = group;
        }
    }

    fn store_block(
        &mut self,
        block: &Block,
        at: (u32, u32),
        seed: Seed,
        tier: Tier,
        group: Group,
        copies: u32,
    ) -> Stored {
        self.watch(block.engine, Some(at));
        let name = block.engine;
        let is_plain = tier == Tier::Device && group == self.rank.home && copies == 1;
        let mut moved = false;
        if let Some(spot) = self.rank.spot(name) {
            let hold = self.rank.holds.get(spot.hold);
            let same_place = (hold.run, spot.block) == at && hold.seed == seed;
            if self.content(spot) != Some(block.content) {
                self.drop_ordinary(name, spot);
                moved = true;
            } else if same_place && is_plain && self.copies == Copies::Set {
                let moment = self.rank.ages.push(spot.hold, spot.block, 1);
                self.rank.holds.stored_again(spot, moment);
                return Stored::Copy;
            } else {
                self.make_odd(name, spot);
            }
        } else if self.odd.names.get(&name).is_some_and(|odd| odd.content != block.content) {
            self.drop_odd(name);
            moved = true;
        }
        let stored = if is_plain && !self.odd.names.contains_key(&name) && self.put_ordinary(block, at, seed) {
            Stored::Added
        } else {
            self.store_odd(block, at, seed, tier, group, copies)
        };
        if moved { Stored::Moved } else { stored }
    }

    /// Stores a new name the ordinary way, if its place allows.
    fn put_ordinary(&mut self, block: &Block, at: (u32, u32), seed: Seed) -> bool {
        let Some(forest) = self.forest.as_deref_mut() else { return false };
        if !forest.run(at.0).cover.tiers(self.seat, at.1).is_empty() {
            return false;
        }
        let holder = forest.holder(at.0, self.seat);
        let is_other = |holder: &Holder| self.rank.holds.get(holder.hold).seed != seed;
        if holder.is_some_and(is_other) || !self.rank.holds.has_room(1) {
            return false;
        }
        let spot = self.spot(at, seed);
        if let Some(forest) = self.forest.as_deref_mut() {
            forest.cover(at.0).gain(self.seat, at.1, Tiers::DEVICE, spot.hold);
        }
        if let Some(tap) = &mut self.rank.tap {
            tap.gained(at.0, at.1, at.1 + 1, Tier::Device);
        }
        let Rank { names, holds, ages, ordinary, .. } = &mut *self.rank;
        let moment = ages.push(spot.hold, spot.block, 1);
        holds.put(spot, block.engine, moment);
        names.put(names.aim(block.engine), holds.position(spot), block.engine, holds.lines());
        *ordinary += 1;
        self.odd.stands(spot, block.engine);
        self.bounds.weigh(self.rank, 1);
        true
    }

    fn store_odd(
        &mut self,
        block: &Block,
        at: (u32, u32),
        seed: Seed,
        tier: Tier,
        group: Group,
        copies: u32,
    ) -> Stored {
        let spot = self.spot(at, seed);
        let moment = self.rank.ages.close();
        let stored = self.odd.moment(moment);
        let names = self.odd.names.len();
        let name = self.odd.names.entry(block.engine).or_insert_with(|| OddName {
            content: block.content,
            seed,
            places: Places::One(spot),
            piles: Piles::default(),
            stored,
        });
        let before_stored = std::mem::replace(&mut name.stored, stored);
        name.seed = seed;
        let all = name.piles.tiers();
        let put = name.places.put(spot, tier, all, stored);
        let before = name.piles.add(tier, group, self.copies, copies);
        let fresh = self.odd.names.len() > names;
        self.odd.forget_age(before_stored);
        self.odd.age(stored, Key::Name(block.engine));
        if !all.has(tier) {
            self.odd.by_tier[tier.index()] += 1;
        }
        if put.new_tier {
            self.gain(spot, tier);
        }
        if fresh || put.new_place {
            self.rank.holds.get_mut(spot.hold).odd += 1;
            self.odd.stands(spot, block.engine);
            self.bounds.weigh(self.rank, 1);
        }
        self.count_copies(before, copies);
        if before == 0 { Stored::Added } else { Stored::Copy }
    }

    /// How many of the names are unknown, or stand for several places.
    pub(super) fn store_known(&mut self, tier: Tier, group: Group, hashes: &[EngineHash]) -> usize {
        hashes.iter().filter(|hash| !self.store_known_block(tier, group, **hash)).count()
    }

    fn store_known_block(&mut self, tier: Tier, group: Group, hash: EngineHash) -> bool {
        let Some(name) = self.rank.known(self.odd, hash) else { return false };
        self.watch(name, None);
        if let Some(spot) = self.rank.spot(name) {
            self.make_odd(name, spot);
        }
        let moment = self.rank.ages.close();
        let stored = self.odd.moment(moment);
        let Some(odd) = self.odd.names.get_mut(&name) else { return false };
        // Which of several places was meant cannot be known, and none may be overstated.
        let Places::One(spot) = odd.places else { return false };
        let before_stored = std::mem::replace(&mut odd.stored, stored);
        let new_tier = !odd.piles.tiers().has(tier);
        let before = odd.piles.add(tier, group, self.copies, 1);
        self.odd.forget_age(before_stored);
        self.odd.age(stored, Key::Name(name));
        if new_tier {
            self.odd.by_tier[tier.index()] += 1;
            self.gain(spot, tier);
        }
        self.count_copies(before, 1);
        true
    }

    pub(super) fn hold(&mut self, tier: Tier, group: Group, hashes: &[EngineHash]) {
        for hash in hashes {
            let is_known = |form: &EngineHash| {
                self.odd.names.contains_key(form)
                    || self.odd.others.contains_key(&(group, *form))
                    || self.rank.spot(*form).is_some()
            };
            let hash = forms(*hash).find(is_known).unwrap_or(*hash);
            self.hold_block(tier, group, hash, 1);
        }
    }

    /// Holds a block of exactly this name; how many went because a bound was reached.
    pub(super) fn hold_block(&mut self, tier: Tier, group: Group, hash: EngineHash, copies: u32) -> usize {
        self.watch(hash, None);
        let moment = self.rank.ages.close();
        let stored = self.odd.moment(moment);
        let others = self.odd.others.len();
        let other = self.odd.others.entry((group, hash)).or_default();
        let before_stored = std::mem::replace(&mut other.stored, stored);
        let before = other.piles.add(tier, group, self.copies, copies);
        if self.odd.others.len() > others {
            self.bounds.weigh(self.rank, 1);
        } else {
            self.odd.forget_age(before_stored);
        }
        self.odd.age(stored, Key::Other(group, hash));
        self.count_copies(before, copies);
        self.keep_bounds()
    }

    /// A pile of `before` copies got so many more: all but its very first are extra.
    fn count_copies(&mut self, before: u32, copies: u32) {
        if self.copies == Copies::Count {
            let after = before.saturating_add(copies);
            self.odd.extra_copies += u64::from(after.saturating_sub(1) - before.saturating_sub(1));
        }
    }

    /// An ordinary name becomes an odd one, with what it has: its age is that of the store that makes it so.
    fn make_odd(&mut self, name: EngineHash, spot: Spot) {
        let Some(content) = self.content(spot) else { return };
        let mut piles = Piles::default();
        piles.add(Tier::Device, self.rank.home, self.copies, 1);
        let seed = self.rank.holds.get(spot.hold).seed;
        let moment = self.rank.ages.close();
        let stored = self.odd.moment(moment);
        self.rank.holds.get_mut(spot.hold).odd += 1;
        self.rank.take(name, spot);
        self.rank.ordinary -= 1;
        self.odd.by_tier[Tier::Device.index()] += 1;
        self.odd.names.insert(name, OddName { content, seed, places: Places::One(spot), piles, stored });
        self.odd.age(stored, Key::Name(name));
    }
}

// === impl Apart: removing ===

impl Apart<'_> {
    pub(super) fn remove(&mut self, tier: Tier, group: Group, hashes: &[EngineHash], outcome: &mut RemoveOutcome) {
        for hash in hashes {
            self.watch(*hash, None);
            let taken = forms(*hash)
                .find_map(|form| self.take_name(tier, group, form).or_else(|| self.take_other(tier, group, form)));
            match taken {
                Some(Taken::Last) => outcome.removed += 1,
                Some(Taken::Copy) => outcome.copies += 1,
                None => outcome.unknown += 1,
            }
        }
        self.tidy();
    }

    fn take_name(&mut self, tier: Tier, group: Group, hash: EngineHash) -> Option<Taken> {
        if let Some(spot) = self.rank.spot(hash) {
            if tier != Tier::Device || group != self.rank.home {
                return None;
            }
            self.drop_ordinary(hash, spot);
            return Some(Taken::Last);
        }
        let name = self.odd.names.get_mut(&hash)?;
        if name.piles.on(tier, group) == 0 {
            return None;
        }
        let Places::One(spot) = name.places else {
            self.withdraw(tier, hash);
            return Some(Taken::Last);
        };
        let left = name.piles.take(tier, group)?;
        if left > 0 {
            self.odd.extra_copies -= 1;
            return Some(Taken::Copy);
        }
        let tiers = name.piles.tiers();
        if !tiers.has(tier) {
            self.odd.by_tier[tier.index()] -= 1;
            self.lose(spot, tier);
        }
        if tiers.is_empty() {
            self.drop_odd(hash);
        }
        Some(Taken::Last)
    }

    /// A removal of a name with several places: which of them lost its block is not said, so all do.
    fn withdraw(&mut self, tier: Tier, hash: EngineHash) {
        let Some(name) = self.odd.names.get_mut(&hash) else { return };
        let extra = name.piles.withdraw(tier);
        let withdrawn = name.places.withdraw(tier);
        self.odd.extra_copies -= extra;
        self.odd.by_tier[tier.index()] -= 1;
        for (spot, gone) in withdrawn.lost {
            self.lose(spot, tier);
            if gone {
                self.leave(spot, hash);
            }
        }
        if withdrawn.left == 0
            && let Some(name) = self.odd.names.remove(&hash)
        {
            self.odd.forget_age(name.stored);
        }
    }

    fn take_other(&mut self, tier: Tier, group: Group, hash: EngineHash) -> Option<Taken> {
        let other = self.odd.others.get_mut(&(group, hash))?;
        let left = other.piles.take(tier, group)?;
        if left > 0 {
            self.odd.extra_copies -= 1;
            return Some(Taken::Copy);
        }
        if other.piles.tiers().is_empty() {
            self.drop_other(group, hash);
        }
        Some(Taken::Last)
    }

    fn drop_ordinary(&mut self, name: EngineHash, spot: Spot) {
        self.lose(spot, Tier::Device);
        self.rank.take(name, spot);
        self.rank.holds.end_if_empty(spot.hold);
        self.rank.ages.close();
        self.rank.ordinary -= 1;
        self.odd.stands_no_more(spot, name);
        self.bounds.unweigh(self.rank, 1);
    }

    /// Drops an odd name with every copy it still has.
    fn drop_odd(&mut self, hash: EngineHash) {
        let Some(name) = self.odd.names.remove(&hash) else { return };
        let all = name.piles.tiers();
        self.odd.extra_copies -= name.piles.extra();
        self.odd.forget_age(name.stored);
        for tier in all.iter() {
            self.odd.by_tier[tier.index()] -= 1;
        }
        for (spot, tiers) in name.places.with_tiers(all) {
            for tier in tiers.iter() {
                self.lose(spot, tier);
            }
            self.leave(spot, hash);
        }
    }

    fn drop_other(&mut self, group: Group, hash: EngineHash) {
        if let Some(other) = self.odd.others.remove(&(group, hash)) {
            self.odd.extra_copies -= other.piles.extra();
            self.odd.forget_age(other.stored);
            self.bounds.unweigh(self.rank, 1);
        }
    }

    /// An odd name stands at a place no more.
    fn leave(&mut self, spot: Spot, name: EngineHash) {
        self.odd.stands_no_more(spot, name);
        self.rank.holds.get_mut(spot.hold).odd -= 1;
        self.rank.holds.end_if_empty(spot.hold);
        self.rank.ages.close();
        self.bounds.unweigh(self.rank, 1);
    }

    fn tidy(&mut self) {
        self.odd.tidy();
        self.rank.tidy();
    }
}

// === impl Apart: keeping step ===

impl Apart<'_> {
    /// The rank's own number for a place.
    fn spot(&mut self, (run, block): (u32, u32), seed: Seed) -> Spot {
        let holder = self.forest.as_deref().and_then(|forest| forest.holder(run, self.seat));
        let hold = match holder {
            Some(holder) => holder.hold,
            None => {
                let born = self.rank.ages.close();
                self.rank.holds.begin(run, seed, born)
            }
        };
        Spot { hold, block }
    }

    /// The content at a spot.
    pub(super) fn content(&self, spot: Spot) -> Option<crate::hash::ContentHash> {
        let run = self.rank.holds.get(spot.hold).run;
        self.forest.as_deref()?.run(run).contents.get(spot.block as usize)
    }

    /// One name more stands at a place on a tier.
    fn gain(&mut self, spot: Spot, tier: Tier) {
        let run = self.rank.holds.get(spot.hold).run;
        let Some(forest) = self.forest.as_deref_mut() else { return };
        if forest.run(run).cover.tiers(self.seat, spot.block).has(tier) {
            *self.odd.shared.entry((spot, tier)).or_default() += 1;
        } else {
            forest.cover(run).gain(self.seat, spot.block, Tiers::of(tier), spot.hold);
            if let Some(tap) = &mut self.rank.tap {
                tap.gained(run, spot.block, spot.block + 1, tier);
            }
        }
    }

    /// One name less stands at a place on a tier.
    fn lose(&mut self, spot: Spot, tier: Tier) {
        let run = self.rank.holds.get(spot.hold).run;
        let Some(forest) = self.forest.as_deref_mut() else { return };
        match self.odd.shared.get_mut(&(spot, tier)) {
            None => {
                forest.cover(run).lose(self.seat, spot.block, spot.block + 1, Tiers::of(tier));
                forest.touch(run);
                if let Some(tap) = &mut self.rank.tap {
                    tap.lost(run, spot.block, spot.block + 1, tier);
                }
            }
            Some(1) => {
                self.odd.shared.remove(&(spot, tier));
            }
            Some(names) => *names -= 1,
        }
    }

    /// Lets the rank's oldest blocks go until the bounds hold again; how many went.
    fn keep_bounds(&mut self) -> usize {
        let mut evicted = 0;
        while !self.bounds.has_room(self.rank, 0) && self.drop_oldest() {
            evicted += 1;
        }
        if evicted > 0 {
            self.rank.evicted += evicted as u64;
            self.rank.partial = true;
            self.tidy();
        }
        evicted
    }

    fn drop_oldest(&mut self) -> bool {
        let Rank { ages, holds, .. } = &mut *self.rank;
        let ordinary = ages.oldest(holds);
        let odd = self.odd.oldest();
        match (ordinary, odd) {
            (Some((moment, spot)), odd) if odd.is_none_or(|((odd, _), _)| odd > moment) => {
                let name = self.rank.holds.name_at(spot);
                self.watch(name, None);
                self.drop_ordinary(name, spot);
                true
            }
            (_, Some((_, Key::Name(hash)))) => {
                self.watch(hash, None);
                self.drop_odd(hash);
                true
            }
            (_, Some((_, Key::Other(group, hash)))) => {
                self.watch(hash, None);
                self.drop_other(group, hash);
                true
            }
            (_, None) => false,
        }
    }
}
