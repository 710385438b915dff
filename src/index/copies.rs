//! How many copies of one name lie where: per (tier, group).

use crate::block::{Group, Tier};

use super::door::Copies;

/// The copies of one name. Nearly every name has one pile, so the first lies inline.
#[derive(Debug, Default)]
pub(super) struct Piles {
    first: Pile,
    more: Vec<Pile>,
}

/// A set of tiers, one bit each by [`Tier::index`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Tiers(u8);

/// The copies on one tier in one group; none: a free entry.
#[derive(Clone, Copy, Debug, Default)]
struct Pile {
    group: Group,
    tier: u8,
    copies: u32,
}

const _: () = assert!(Tier::COUNT <= u8::BITS as usize);

// === impl Piles ===

impl Piles {
    /// Counts so many copies more; the copies that were there before.
    pub(super) fn add(&mut self, tier: Tier, group: Group, how: Copies, copies: u32) -> u32 {
        let tier = tier.index() as u8;
        let fresh = Pile { group, tier, copies: if how == Copies::Count { copies } else { copies.min(1) } };
        if let Some(pile) = self.iter_mut().find(|pile| pile.is(tier, group)) {
            let before = pile.copies;
            if how == Copies::Count {
                pile.copies = before.saturating_add(copies);
            }
            return before;
        }
        if copies == 0 {
            return 0;
        }
        if self.first.copies == 0 {
            self.first = fresh;
        } else {
            self.more.push(fresh);
        }
        0
    }

    /// Takes one copy away and says how many are left; `None` where there was none.
    pub(super) fn take(&mut self, tier: Tier, group: Group) -> Option<u32> {
        let tier = tier.index() as u8;
        let pile = self.iter_mut().find(|pile| pile.is(tier, group))?;
        pile.copies -= 1;
        let left = pile.copies;
        self.more.retain(|pile| pile.copies > 0);
        Some(left)
    }

    /// Takes every copy on a tier away, whatever its group; how many there were beyond the first of each pile.
    pub(super) fn withdraw(&mut self, tier: Tier) -> u64 {
        let tier = tier.index() as u8;
        let mut extra = 0;
        for pile in self.iter_mut().filter(|pile| pile.tier == tier) {
            extra += u64::from(pile.copies.saturating_sub(1));
            pile.copies = 0;
        }
        self.more.retain(|pile| pile.copies > 0);
        extra
    }

    /// The copies on a tier in a group.
    pub(super) fn on(&self, tier: Tier, group: Group) -> u32 {
        let tier = tier.index() as u8;
        self.iter().find(|pile| pile.is(tier, group)).map_or(0, |pile| pile.copies)
    }

    /// The tiers with a copy in any group.
    pub(super) fn tiers(&self) -> Tiers {
        self.iter().fold(Tiers::default(), |tiers, pile| Tiers(tiers.0 | 1 << pile.tier))
    }

    /// The tiers with a copy in this group.
    pub(super) fn tiers_in(&self, group: Group) -> Tiers {
        let piles = self.iter().filter(|pile| pile.group == group);
        piles.fold(Tiers::default(), |tiers, pile| Tiers(tiers.0 | 1 << pile.tier))
    }

    /// Copies beyond the first of each pile.
    pub(super) fn extra(&self) -> u64 {
        self.iter().map(|pile| u64::from(pile.copies - 1)).sum()
    }

    /// Every pile: on which tier, in which group, how many copies.
    pub(super) fn each(&self) -> impl Iterator<Item = (Tier, Group, u32)> {
        let tier = |index: u8| Tier::all().get(usize::from(index)).copied();
        self.iter().filter_map(move |pile| Some((tier(pile.tier)?, pile.group, pile.copies)))
    }

    fn iter(&self) -> impl Iterator<Item = &Pile> {
        std::iter::once(&self.first).chain(&self.more).filter(|pile| pile.copies > 0)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut Pile> {
        std::iter::once(&mut self.first).chain(&mut self.more).filter(|pile| pile.copies > 0)
    }
}

// === impl Pile ===

impl Pile {
    fn is(&self, tier: u8, group: Group) -> bool {
        self.tier == tier && self.group == group
    }
}

// === impl Tiers ===

impl Tiers {
    /// The device alone: the common case.
    pub(super) const DEVICE: Self = Self::of(Tier::Device);

    pub(super) const fn of(tier: Tier) -> Self {
        Self(1 << tier.index())
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(super) fn has(self, tier: Tier) -> bool {
        self.0 & Self::of(tier).0 != 0
    }

    /// The tiers of both.
    pub(super) fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The tiers that the other has not.
    pub(super) fn minus(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    pub(super) fn iter(self) -> impl Iterator<Item = Tier> {
        Tier::all().into_iter().filter(move |tier| self.has(*tier))
    }
}
