//! What changes a rank's table: each verb of a transaction, keeping table, scope and bounds in step.

use crate::block::{Group, Tier};
use crate::hash::{EngineHash, PrefixHash, Seed};

use super::ages::{Aged, Kind};
use super::copies::Piles;
use super::door::{Block, Copies, Limits, Parent, RemoveOutcome, StoreOutcome};
use super::rank::{Name, Places, Put, Rank, Spot, forms};
use super::scope::{Scope, give_back};

/// One rank with all that its changes touch.
pub(super) struct Hands<'a> {
    pub(super) slot: u32,
    pub(super) rank: &'a mut Rank,
    /// The scope of the rank's grid; a rank without a grid has no names either.
    pub(super) scope: Option<&'a mut Scope>,
    /// What all ranks together weigh.
    pub(super) total: &'a mut usize,
    pub(super) limits: &'a Limits,
}

/// What became of one block of a store.
pub(super) enum Stored {
    Added,
    Copy,
    Moved,
}

/// What became of one name of a removal.
enum Taken {
    Last,
    Copy,
}

// === impl Hands: storing ===

impl Hands<'_> {
    pub(super) fn store(&mut self, parent: Parent, tier: Tier, group: Group, run: &[Block]) -> StoreOutcome {
        let mut outcome = StoreOutcome::default();
        if self.rank.grid.is_none() || !self.rank.admit(group) {
            return outcome;
        }
        let (mut last, seed) = match parent {
            Parent::Root(seed) => (None, seed),
            Parent::Under(place) => (Some(place.prefix), place.seed),
        };
        for block in run {
            let spot = Spot { at: PrefixHash::after(last, block.content), parent: last };
            match self.store_block(block, spot, seed, tier, group, 1) {
                Stored::Added => outcome.added += 1,
                Stored::Copy => outcome.copies += 1,
                Stored::Moved => outcome.moved += 1,
            }
            outcome.evicted += self.keep_bounds();
            last = Some(spot.at);
        }
        outcome
    }

    pub(super) fn store_block(
        &mut self,
        block: &Block,
        spot: Spot,
        seed: Seed,
        tier: Tier,
        group: Group,
        copies: u32,
    ) -> Stored {
        let at = spot.at;
        let known = self.rank.names.get(&block.engine);
        let moved = known.is_some_and(|name| name.content != block.content);
        if moved {
            self.drop_name(block.engine);
        }
        let stored = self.age(block.engine, Kind::Prefix);
        let names = self.rank.names.len();
        let name = self.rank.names.entry(block.engine).or_insert_with(|| Name {
            content: block.content,
            seed,
            places: Places::One(spot),
            piles: Piles::default(),
            stored,
        });
        name.seed = seed;
        name.stored = stored;
        let all = name.piles.tiers();
        let Put { new_tier, new_place } = name.places.put(spot, tier, all, stored);
        let before = name.piles.add(tier, group, self.rank.copies, copies);
        let fresh = self.rank.names.len() > names;
        if !all.has(tier) {
            self.rank.by_tier[tier.index()] += 1;
        }
        if new_tier {
            self.gain(at, tier);
        }
        if fresh || new_place {
            self.weigh(1);
            if let Some(set) = &mut self.rank.names_at {
                set.insert((at, block.engine));
            }
        }
        self.count_copies(before, copies);
        match (moved, before) {
            (true, _) => Stored::Moved,
            (false, 0) => Stored::Added,
            (false, _) => Stored::Copy,
        }
    }

    pub(super) fn store_known(&mut self, tier: Tier, group: Group, hashes: &[EngineHash]) -> usize {
        if !self.rank.admit(group) {
            return hashes.len();
        }
        hashes.iter().filter(|hash| !self.store_known_block(tier, group, **hash)).count()
    }

    fn store_known_block(&mut self, tier: Tier, group: Group, hash: EngineHash) -> bool {
        let Some(hash) = self.rank.known(hash) else { return false };
        let Some(name) = self.rank.names.get(&hash) else { return false };
        // Which of several places was meant cannot be known, and none may be overstated.
        let Places::One(Spot { at, .. }) = name.places else { return false };
        let stored = self.age(hash, Kind::Prefix);
        let Some(name) = self.rank.names.get_mut(&hash) else { return false };
        name.stored = stored;
        let new_tier = !name.piles.tiers().has(tier);
        let before = name.piles.add(tier, group, self.rank.copies, 1);
        if new_tier {
            self.rank.by_tier[tier.index()] += 1;
            self.gain(at, tier);
        }
        self.count_copies(before, 1);
        true
    }

    pub(super) fn hold(&mut self, tier: Tier, group: Group, hashes: &[EngineHash]) {
        if !self.rank.admit(group) {
            return;
        }
        for hash in hashes {
            let is_known = |form: &EngineHash| {
                self.rank.names.contains_key(form) || self.rank.others.contains_key(&(group, *form))
            };
            let hash = forms(*hash).find(is_known).unwrap_or(*hash);
            self.hold_block(tier, group, hash, 1);
            self.keep_bounds();
        }
    }

    pub(super) fn hold_block(&mut self, tier: Tier, group: Group, hash: EngineHash, copies: u32) {
        let stored = self.age(hash, Kind::Other(group));
        let others = self.rank.others.len();
        let other = self.rank.others.entry((group, hash)).or_default();
        other.stored = stored;
        let before = other.piles.add(tier, group, self.rank.copies, copies);
        if self.rank.others.len() > others {
            self.weigh(1);
        }
        self.count_copies(before, copies);
    }

    /// A pile of `before` copies got so many more: all but its very first are extra.
    fn count_copies(&mut self, before: u32, copies: u32) {
        if self.rank.copies == Copies::Count {
            let after = before.saturating_add(copies);
            self.rank.extra_copies += u64::from(after.saturating_sub(1) - before.saturating_sub(1));
        }
    }
}

// === impl Hands: removing ===

impl Hands<'_> {
    pub(super) fn remove(&mut self, tier: Tier, group: Group, hashes: &[EngineHash]) -> RemoveOutcome {
        let mut outcome = RemoveOutcome::default();
        for hash in hashes {
            let taken = forms(*hash)
                .find_map(|form| self.take_name(tier, group, form).or_else(|| self.take_other(tier, group, form)));
            match taken {
                Some(Taken::Last) => outcome.removed += 1,
                Some(Taken::Copy) => outcome.copies += 1,
                None => outcome.unknown += 1,
            }
        }
        self.tidy();
        outcome
    }

    fn take_name(&mut self, tier: Tier, group: Group, hash: EngineHash) -> Option<Taken> {
        let name = self.rank.names.get_mut(&hash)?;
        if name.piles.on(tier, group) == 0 {
            return None;
        }
        let Places::One(Spot { at, .. }) = name.places else {
            self.withdraw(tier, hash);
            return Some(Taken::Last);
        };
        let left = name.piles.take(tier, group)?;
        if left > 0 {
            self.rank.extra_copies -= 1;
            return Some(Taken::Copy);
        }
        let tiers = name.piles.tiers();
        if !tiers.has(tier) {
            self.rank.by_tier[tier.index()] -= 1;
            self.lose(at, tier);
        }
        if tiers.is_empty() {
            self.drop_name(hash);
        }
        Some(Taken::Last)
    }

    /// A removal of a name with several places: which of them lost its block is not said, so all do.
    fn withdraw(&mut self, tier: Tier, hash: EngineHash) {
        let Some(mut name) = self.rank.names.remove(&hash) else { return };
        self.rank.extra_copies -= name.piles.withdraw(tier);
        self.rank.by_tier[tier.index()] -= 1;
        let mut left = None;
        if let Places::Many(many) = &mut name.places {
            let mut gone = 0;
            many.at.retain(|at, standing| {
                if standing.tiers.has(tier) {
                    standing.tiers = standing.tiers.without(tier);
                    self.lose(*at, tier);
                }
                if standing.tiers.is_empty() {
                    if let Some(set) = &mut self.rank.names_at {
                        set.remove(&(*at, hash));
                    }
                    gone += 1;
                }
                !standing.tiers.is_empty()
            });
            self.unweigh(gone);
            if let Some(last) = many.at.iter().max_by_key(|(_, standing)| standing.stored) {
                many.last = *last.0;
                left = Some((Spot { at: many.last, parent: last.1.parent }, many.at.len()));
            }
            give_back(&mut many.at);
        }
        match left {
            None => {}
            Some((spot, places)) => {
                if places == 1 {
                    name.places = Places::One(spot);
                }
                self.rank.names.insert(hash, name);
            }
        }
    }

    fn take_other(&mut self, tier: Tier, group: Group, hash: EngineHash) -> Option<Taken> {
        let other = self.rank.others.get_mut(&(group, hash))?;
        let left = other.piles.take(tier, group)?;
        if left > 0 {
            self.rank.extra_copies -= 1;
            return Some(Taken::Copy);
        }
        if other.piles.tiers().is_empty() {
            self.drop_other(group, hash);
        }
        Some(Taken::Last)
    }

    /// Drops everything. The grid, the groups and their notes stay.
    pub(super) fn clear(&mut self) {
        for (_, name) in std::mem::take(&mut self.rank.names) {
            for (at, tiers) in name.places.with_tiers(name.piles.tiers()) {
                for tier in tiers.iter() {
                    if let Some(scope) = self.scope.as_deref_mut() {
                        scope.lose(at, self.slot, tier);
                    }
                }
            }
        }
        self.unweigh(self.rank.weight);
        let rank = &mut *self.rank;
        rank.others = Default::default();
        rank.shared = Default::default();
        rank.ages = Default::default();
        rank.names_at = rank.names_at.is_some().then(Default::default);
        rank.by_tier = [0; Tier::COUNT];
        rank.extra_copies = 0;
        rank.partial = false;
    }

    /// Drops a name with every copy it still has.
    fn drop_name(&mut self, hash: EngineHash) {
        let Some(name) = self.rank.names.remove(&hash) else { return };
        let all = name.piles.tiers();
        self.rank.extra_copies -= name.piles.extra();
        for tier in all.iter() {
            self.rank.by_tier[tier.index()] -= 1;
        }
        for (at, tiers) in name.places.with_tiers(all) {
            for tier in tiers.iter() {
                self.lose(at, tier);
            }
            if let Some(set) = &mut self.rank.names_at {
                set.remove(&(at, hash));
            }
        }
        self.unweigh(name.places.count());
    }

    fn drop_other(&mut self, group: Group, hash: EngineHash) {
        if let Some(other) = self.rank.others.remove(&(group, hash)) {
            self.rank.extra_copies -= other.piles.extra();
            self.unweigh(1);
        }
    }

    /// Gives back the memory of what was removed.
    fn tidy(&mut self) {
        give_back(&mut self.rank.names);
        give_back(&mut self.rank.others);
        give_back(&mut self.rank.shared);
        let Rank { ages, names, others, .. } = &mut *self.rank;
        ages.sweep(names.len() + others.len(), |aged| Rank::is_live(names, others, aged));
    }
}

// === impl Hands: keeping step ===

impl Hands<'_> {
    /// One name more stands at a place on a tier.
    fn gain(&mut self, at: PrefixHash, tier: Tier) {
        let Some(scope) = self.scope.as_deref_mut() else { return };
        if !scope.gain(at, self.slot, tier) {
            *self.rank.shared.entry((at, tier)).or_default() += 1;
        }
    }

    /// One name less stands at a place on a tier.
    fn lose(&mut self, at: PrefixHash, tier: Tier) {
        let Some(scope) = self.scope.as_deref_mut() else { return };
        match self.rank.shared.get_mut(&(at, tier)) {
            None => scope.lose(at, self.slot, tier),
            Some(1) => {
                self.rank.shared.remove(&(at, tier));
            }
            Some(names) => *names -= 1,
        }
    }

    /// Notes a block as the rank's newest, before it is put into its table.
    fn age(&mut self, hash: EngineHash, kind: Kind) -> u64 {
        let Rank { ages, names, others, now, .. } = &mut *self.rank;
        *now += 1;
        let newest = Aged { hash, at: *now, kind };
        let is_newest = |aged: &Aged| aged.at == newest.at;
        ages.push(newest, names.len() + others.len(), |aged| is_newest(aged) || Rank::is_live(names, others, aged));
        newest.at
    }

    fn weigh(&mut self, blocks: usize) {
        self.rank.weight += blocks;
        *self.total += blocks;
    }

    fn unweigh(&mut self, blocks: usize) {
        self.rank.weight -= blocks;
        *self.total -= blocks;
    }

    /// Lets the rank's oldest blocks go until the bounds hold again; how many went.
    pub(super) fn keep_bounds(&mut self) -> usize {
        let mut evicted = 0;
        while self.rank.weight > self.limits.blocks_per_rank || *self.total > self.limits.blocks_in_all {
            let Some(oldest) = self.rank.ages.pop() else { break };
            if !Rank::is_live(&self.rank.names, &self.rank.others, &oldest) {
                continue;
            }
            match oldest.kind {
                Kind::Prefix => self.drop_name(oldest.hash),
                Kind::Other(group) => self.drop_other(group, oldest.hash),
            }
            evicted += 1;
        }
        if evicted > 0 {
            self.rank.evicted += evicted as u64;
            self.rank.partial = true;
            // A rank at its bound stores as much as it evicts; when others filled the index it may shrink.
            give_back(&mut self.rank.names);
            give_back(&mut self.rank.others);
        }
        evicted
    }
}
