//! What was removed lately, rank by rank: so that a missing block can be explained. Bounded in bytes; the longest
//! remembered goes first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use crate::hash::PrefixHash;
use crate::index::{BlockRun, Change, Delta, What};
use crate::worker::{RankId, Stamp};

/// The memory of all ranks.
#[derive(Debug, Default)]
pub(super) struct Removals {
    ranks: BTreeMap<RankId, Memory>,
}

/// The memory of one rank.
#[derive(Debug)]
struct Memory {
    removed: VecDeque<Removal>,
    bytes: usize,
    /// What was removed before this is not remembered.
    since: SystemTime,
}

/// One removal.
#[derive(Clone, Debug)]
struct Removal {
    stamp: Stamp,
    at: SystemTime,
    what: Gone,
}

#[derive(Clone, Debug)]
enum Gone {
    Blocks(Arc<BlockRun>),
    Everything { new_epoch: bool },
}

/// Why a block that is not held now is not held, as far as is remembered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::serve) enum Found {
    /// It was removed.
    Removed(Stamp, SystemTime),
    /// Everything was dropped, and it was not removed since.
    Dropped { stamp: Stamp, at: SystemTime, new_epoch: bool },
}

/// What is remembered of one rank, at one time.
#[derive(Clone, Debug)]
pub(in crate::serve) struct Remembered {
    removed: Vec<Removal>,
    /// What was removed before this is not remembered.
    pub(in crate::serve) since: SystemTime,
}

/// Bytes that all ranks' memories may take together, and one alone.
const IN_ALL: usize = 64 << 20;
const ALONE: usize = 1 << 20;

// === impl Removals ===

impl Removals {
    /// Begins to remember what a rank removes.
    pub(super) fn begin(&mut self, rank: RankId) {
        let memory = || Memory { removed: VecDeque::new(), bytes: 0, since: SystemTime::now() };
        self.ranks.entry(rank).or_insert_with(memory);
    }

    pub(super) fn end(&mut self, rank: RankId) {
        self.ranks.remove(&rank);
    }

    /// Forgets everything: something was missed.
    pub(super) fn begin_anew(&mut self) {
        self.ranks.clear();
    }

    /// Notes what a delta removes.
    pub(super) fn note(&mut self, delta: &Delta) {
        let limit = ALONE.min(IN_ALL / self.ranks.len().max(1));
        let Some(memory) = self.ranks.get_mut(&delta.rank) else { return };
        let at = SystemTime::now();
        for change in &delta.changes {
            let what = match change {
                Change::Run(run) if matches!(run.what, What::Removed(_)) && run.group.is_none() => {
                    Gone::Blocks(Arc::new(run.clone()))
                }
                Change::Cleared => Gone::Everything { new_epoch: false },
                Change::Reset => Gone::Everything { new_epoch: true },
                _ => continue,
            };
            memory.push(Removal { stamp: delta.stamp, at, what }, limit);
        }
    }

    /// What is remembered of a rank.
    pub(super) fn of(&self, rank: RankId) -> Option<Remembered> {
        let memory = self.ranks.get(&rank)?;
        Some(Remembered { removed: memory.removed.iter().cloned().collect(), since: memory.since })
    }
}

// === impl Memory ===

impl Memory {
    fn push(&mut self, removal: Removal, limit: usize) {
        self.bytes += removal.bytes();
        self.removed.push_back(removal);
        while self.bytes > limit
            && let Some(oldest) = self.removed.pop_front()
        {
            self.bytes -= oldest.bytes();
            self.since = oldest.at;
        }
    }
}

// === impl Removal ===

impl Removal {
    fn bytes(&self) -> usize {
        let hashes =
            if let Gone::Blocks(run) = &self.what { size_of::<BlockRun>() + size_of_val(&*run.contents) } else { 0 };
        size_of::<Self>() + hashes
    }
}

// === impl Remembered ===

impl Remembered {
    /// The last that is remembered of a block that is not held now. Rolls the hashes of what was removed.
    pub(in crate::serve) fn find(&self, prefix: PrefixHash, position: u64) -> Option<Found> {
        self.removed.iter().rev().find_map(|removal| match &removal.what {
            Gone::Everything { new_epoch } => {
                Some(Found::Dropped { stamp: removal.stamp, at: removal.at, new_epoch: *new_epoch })
            }
            Gone::Blocks(run) => {
                let from = u64::from(run.position);
                let is_there = (from..from + run.contents.len() as u64).contains(&position)
                    && run.prefixes().any(|removed| removed == prefix);
                is_there.then_some(Found::Removed(removal.stamp, removal.at))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Tier;
    use crate::hash::ContentHash;

    const RANK: RankId = RankId { slot: 0, generation: 1 };

    fn removed(content: u64, blocks: usize, sequence: u64) -> Delta {
        let contents = (0..blocks as u64).map(|n| ContentHash(content + n)).collect();
        let what = What::Removed(Tier::Device);
        let run = BlockRun { what, group: None, parent: None, position: 0, contents };
        let stamp = Stamp { epoch: 1, sequence: Some(sequence) };
        Delta { rank: RANK, number: sequence, stamp, changes: vec![Change::Run(run)] }
    }

    fn sequence(found: Option<Found>) -> Option<u64> {
        match found? {
            Found::Removed(stamp, _) | Found::Dropped { stamp, .. } => stamp.sequence,
        }
    }

    #[test]
    fn the_last_removal_of_a_block_is_found_and_a_clear_hides_what_was_before() {
        let mut removals = Removals::default();
        removals.begin(RANK);
        let prefix = PrefixHash(7);
        let find = |removals: &Removals, prefix| removals.of(RANK).and_then(|known| known.find(prefix, 0));
        assert_eq!(find(&removals, prefix), None);
        removals.note(&removed(7, 3, 1));
        removals.note(&removed(7, 1, 2));
        removals.note(&removed(9, 1, 3));
        assert_eq!(sequence(find(&removals, prefix)), Some(2));
        removals.note(&Delta { changes: vec![Change::Cleared], ..removed(0, 0, 4) });
        assert!(matches!(find(&removals, prefix), Some(Found::Dropped { new_epoch: false, .. })));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_says_how_far_back_it_goes() {
        let mut removals = Removals::default();
        removals.begin(RANK);
        let begun = removals.of(RANK).unwrap().since;
        for n in 0..40 {
            removals.note(&removed(1 + n * 100_000, 8192, n));
        }
        let known = removals.of(RANK).unwrap();
        assert_eq!(known.find(PrefixHash(1), 0), None, "the oldest went");
        assert!(known.find(PrefixHash(1 + 39 * 100_000), 0).is_some());
        assert!(known.since > begun && known.removed.len() < 17, "{}", known.removed.len());
    }
}
