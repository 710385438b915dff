//! The places of one model on one grid, and who holds each.
//!
//! A place is a prefix hash: a block's content and everything before it. There are no links between places. A
//! match walks the chain it was asked and looks each prefix up, so a hole in the middle changes nothing for what
//! lies behind it, and the depth of a chain is never anybody's recursion.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::block::Tier;
use crate::hash::PrefixHash;

use super::copies::Tiers;

/// Who holds what, for one (model, grid).
#[derive(Debug, Default)]
pub(super) struct Scope {
    places: HashMap<PrefixHash, Holders>,
    /// Ranks on this grid: the scope lives as long as there is one.
    pub(super) ranks: usize,
}

/// One rank at one place, with the tiers the block lies on: at least one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    pub(super) slot: u32,
    pub(super) tiers: Tiers,
}

/// The holders of a place, ascending by slot. Most places have one holder, which needs no heap.
#[derive(Debug)]
enum Holders {
    One(Holder),
    Many(Vec<Holder>),
}

// === impl Scope ===

impl Scope {
    /// Who holds a place, ascending by slot.
    pub(super) fn holders(&self, at: PrefixHash) -> &[Holder] {
        self.places.get(&at).map_or(&[], Holders::as_slice)
    }

    /// On which tiers a rank holds a place.
    pub(super) fn tiers(&self, at: PrefixHash, slot: u32) -> Tiers {
        let holders = self.holders(at);
        let found = holders.binary_search_by_key(&slot, |holder| holder.slot).ok();
        found.and_then(|i| holders.get(i)).map_or(Tiers::default(), |holder| holder.tiers)
    }

    /// Adds a tier to those on which a rank holds a place. Says whether it was new.
    pub(super) fn gain(&mut self, at: PrefixHash, slot: u32, tier: Tier) -> bool {
        let holder = Holder { slot, tiers: Tiers::default().with(tier) };
        match self.places.entry(at) {
            Entry::Vacant(entry) => {
                entry.insert(Holders::One(holder));
                true
            }
            Entry::Occupied(mut entry) => entry.get_mut().gain(slot, tier),
        }
    }

    /// Takes a tier away from those on which a rank holds a place.
    pub(super) fn lose(&mut self, at: PrefixHash, slot: u32, tier: Tier) {
        let Some(holders) = self.places.get_mut(&at) else { return };
        if holders.lose(slot, tier) {
            self.places.remove(&at);
            give_back(&mut self.places);
        }
    }
}

// === impl Holders ===

impl Holders {
    fn as_slice(&self) -> &[Holder] {
        match self {
            Self::One(holder) => std::slice::from_ref(holder),
            Self::Many(holders) => holders,
        }
    }

    fn gain(&mut self, slot: u32, tier: Tier) -> bool {
        let fresh = Holder { slot, tiers: Tiers::default().with(tier) };
        let held = match self {
            Self::One(held) if held.slot == slot => held,
            Self::One(other) => {
                let mut both = vec![*other, fresh];
                both.sort_unstable_by_key(|holder| holder.slot);
                *self = Self::Many(both);
                return true;
            }
            Self::Many(holders) => match holders.binary_search_by_key(&slot, |holder| holder.slot) {
                Ok(i) => &mut holders[i],
                Err(i) => {
                    holders.insert(i, fresh);
                    return true;
                }
            },
        };
        let new = !held.tiers.has(tier);
        held.tiers = held.tiers.with(tier);
        new
    }

    /// Says whether nobody is left.
    fn lose(&mut self, slot: u32, tier: Tier) -> bool {
        match self {
            Self::One(held) => {
                if held.slot == slot {
                    held.tiers = held.tiers.without(tier);
                }
                held.tiers.is_empty()
            }
            Self::Many(holders) => {
                let Ok(i) = holders.binary_search_by_key(&slot, |holder| holder.slot) else { return false };
                holders[i].tiers = holders[i].tiers.without(tier);
                if holders[i].tiers.is_empty() {
                    holders.remove(i);
                    if let [last] = **holders {
                        *self = Self::One(last);
                    }
                }
                false
            }
        }
    }
}

/// Gives a table's memory back once three quarters of it lie empty; amortised, a constant per removal.
pub(super) fn give_back<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>) {
    /// Tables smaller than this are not worth the work.
    const SMALL: usize = 64;
    if map.capacity() > SMALL && map.len() < map.capacity() / 4 {
        map.shrink_to(map.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_holder_frees_the_entry_and_the_tables_memory() {
        let mut scope = Scope::default();
        for at in (0..100_000).map(PrefixHash) {
            scope.gain(at, 1, Tier::Device);
            scope.gain(at, 2, Tier::Host);
        }
        for at in (0..100_000).map(PrefixHash) {
            scope.lose(at, 1, Tier::Device);
            assert_eq!(scope.holders(at).len(), 1);
            scope.lose(at, 2, Tier::Host);
            assert!(scope.holders(at).is_empty());
        }
        assert_eq!(scope.places.len(), 0);
        assert!(scope.places.capacity() <= 64, "{} entries are still allocated", scope.places.capacity());
    }

    #[test]
    fn a_question_about_an_unknown_place_inserts_nothing() {
        let scope = Scope::default();
        assert!(scope.holders(PrefixHash(1)).is_empty() && scope.tiers(PrefixHash(1), 0).is_empty());
        assert_eq!(scope.places.capacity(), 0);
    }
}
