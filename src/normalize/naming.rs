//! Does the engine chain its block names?
//!
//! SGLang 0.4.9 to 0.5.5 names a page by Python's `hash(tuple(tokens))`: the same page under two parents has
//! one name. Worse, 0.5.1 to 0.5.4 send a nil parent for the first page of every radix node, though most of
//! these are no roots. No version is on the wire, but the name itself tells: tuples of integers hash the same in
//! every CPython since 3.8, so the first block of a feed settles it.
//!
//! Before 0.5.1 the first page of a prompt has a parent: the tree's root, which is named by the hash of no tokens at
//! all ([`is_root`]). That is as good as a nil, and better than one, for it is never sent by mistake.

use std::collections::HashSet;

use crate::hash::EngineHash;

use super::memory::NamingMemory;

/// How an engine names blocks, as far as its events have shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) enum Naming {
    /// No block seen yet in this epoch.
    #[default]
    Unknown,
    /// A name stands for a block and all before it.
    Chained,
    /// A name stands for a block's tokens alone.
    Unchained(Suspicion),
}

/// What may be believed of an engine whose names are not chained, so that its blocks are never overstated.
///
/// A nil parent is believed from the releases that mean it: they show themselves by a store that hangs from a
/// block other than the one announced just before, which the wrong ones never send. Until then only the first
/// store after a clear is certain to be a root. A named parent is believed while no other block can bear its
/// name: not where the name has several places, nor where a block of that name had to be dropped.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Suspicion {
    nil_is_root: bool,
    doubtful: HashSet<EngineHash>,
    overflowed: bool,
}

// === impl Naming ===

impl Naming {
    /// What is remembered of it.
    pub(super) fn memory(&self) -> NamingMemory {
        match self {
            Self::Unknown => NamingMemory::Unknown,
            Self::Chained => NamingMemory::Chained,
            Self::Unchained(suspicion) => NamingMemory::Unchained {
                nil_is_root: suspicion.nil_is_root,
                doubtful: suspicion.doubtful.iter().copied().collect(),
                overflowed: suspicion.overflowed,
            },
        }
    }

    /// The naming that was remembered.
    pub(super) fn recall(memory: &NamingMemory) -> Self {
        match memory {
            NamingMemory::Unknown => Self::Unknown,
            NamingMemory::Chained => Self::Chained,
            NamingMemory::Unchained { nil_is_root, doubtful, overflowed } => Self::Unchained(Suspicion {
                nil_is_root: *nil_is_root,
                doubtful: doubtful.iter().copied().collect(),
                overflowed: *overflowed,
            }),
        }
    }
}

// === impl Suspicion ===

impl Suspicion {
    /// Learns from a store's parent and from the last block announced before it.
    pub(super) fn learn(&mut self, parent: Option<EngineHash>, announced: Option<EngineHash>) {
        // Whoever names the root says nothing about what a nil would mean.
        if parent.is_some_and(|parent| !is_root(parent)) && announced.is_some() && parent != announced {
            self.nil_is_root = true;
        }
    }

    /// Whether a nil parent means a root; `first` is whether this is the first store after a clear.
    pub(super) fn believes_root(&self, first: bool) -> bool {
        self.nil_is_root || first
    }

    /// Whether `parent`, which the index knows in one place, can be no other block.
    pub(super) fn believes_parent(&self, parent: EngineHash) -> bool {
        !self.overflowed && !self.doubtful.contains(&parent)
    }

    /// Blocks of these names were dropped: the names no longer tell which block is meant.
    pub(super) fn doubt(&mut self, names: &[EngineHash]) {
        /// Past this many doubtful names no named parent is believed until a clear.
        const MAX_DOUBTFUL: usize = 1 << 16;
        if self.doubtful.len() + names.len() > MAX_DOUBTFUL {
            self.overflowed = true;
            self.doubtful = HashSet::new();
        } else if !self.overflowed {
            self.doubtful.extend(names);
        }
    }

    /// The cache is empty: no name is doubtful.
    pub(super) fn clear(&mut self) {
        self.doubtful.clear();
        self.overflowed = false;
    }
}

/// Whether `name` is CPython's hash of the empty tuple: SGLang's name for the root of its tree before 0.5.1.
pub(super) fn is_root(name: EngineHash) -> bool {
    !name.is_wide() && is_python_tuple_hash(name.low(), &[])
}

/// Whether `name` is CPython's hash of the tuple of these tokens (little-endian u32 bytes).
///
/// The algorithm is CPython's documented xxHash variant for tuples; the hash of a small integer is itself.
pub(super) fn is_python_tuple_hash(name: u64, tokens_le: &[u8]) -> bool {
    const PRIME_1: u64 = 11_400_714_785_074_694_791;
    const PRIME_2: u64 = 14_029_467_366_897_019_727;
    const PRIME_5: u64 = 2_870_177_450_012_600_261;
    let (tokens, _) = tokens_le.as_chunks::<4>();
    let mut acc = PRIME_5;
    for token in tokens {
        acc = acc.wrapping_add(u64::from(u32::from_le_bytes(*token)).wrapping_mul(PRIME_2));
        acc = acc.rotate_left(31).wrapping_mul(PRIME_1);
    }
    acc = acc.wrapping_add((tokens.len() as u64) ^ (PRIME_5 ^ 3_527_539));
    // -1 is CPython's error value; such a hash is replaced.
    name == if acc == u64::MAX { 1_546_275_796 } else { acc }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_under_the_named_root_does_not_make_a_nil_believable() {
        let (root, page) = (EngineHash::from_u64(5_740_354_900_026_072_187), EngineHash::from_u64(1));
        let mut suspicion = Suspicion::default();
        suspicion.learn(Some(root), Some(page));
        assert!(is_root(root) && !is_root(page) && !suspicion.believes_root(false));
    }

    #[test]
    fn the_tuple_hash_is_cpythons() {
        let le = |tokens: &[u32]| tokens.iter().flat_map(|t| t.to_le_bytes()).collect::<Vec<u8>>();
        // hash(()), hash((1, 2, 3)) and hash((0, 4294967295)) as CPython 3.11 prints them.
        assert!(is_python_tuple_hash(5_740_354_900_026_072_187, &[]));
        assert!(is_python_tuple_hash(529_344_067_295_497_451, &le(&[1, 2, 3])));
        assert!(!is_python_tuple_hash(529_344_067_295_497_452, &le(&[1, 2, 3])));
    }
}
