//! The ends of what a rank stored last, by name: a decode store comes under one of them, and need not search for it.
//!
//! A few entries, each overwritten by the next end that falls on it. An entry is a guess: whether the name still
//! stands at its spot, the hold says, whose end is read by the store anyway.

use crate::hash::EngineHash;

use super::hold::Spot;

/// Sequences of one rank that decode side by side are seldom more.
const ENTRIES: usize = 64;

/// The guesses.
#[derive(Debug, Default)]
pub(super) struct Tips {
    /// None, or all of them.
    entries: Vec<(EngineHash, Spot)>,
}

impl Tips {
    pub(super) fn heap(&self) -> usize {
        self.entries.capacity() * size_of::<(EngineHash, Spot)>()
    }

    /// Where a name may stand.
    #[inline]
    pub(super) fn get(&self, name: EngineHash) -> Option<Spot> {
        self.entries.get(entry(name)).filter(|(known, _)| *known == name).map(|(_, spot)| *spot)
    }

    /// Notes the last name of a store.
    #[inline]
    pub(super) fn note(&mut self, name: EngineHash, spot: Spot) {
        if self.entries.is_empty() {
            self.entries = vec![(EngineHash::from_u64(0), Spot { hold: u32::MAX, block: 0 }); ENTRIES];
        }
        self.entries[entry(name)] = (name, spot);
    }
}

#[inline]
fn entry(name: EngineHash) -> usize {
    name.low().wrapping_mul(0x9E37_79B9_7F4A_7C15) as usize >> 58 & (ENTRIES - 1)
}
