//! What was removed lately, rank by rank: so that a missing block can be explained. Bounded in bytes, those that the
//! allocator adds included; the longest remembered goes first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::SystemTime;

use crate::hash::{ContentHash, PrefixHash};
use crate::index::{Change, Delta, What};
use crate::worker::{RankId, Stamp};

/// The memory of all ranks.
#[derive(Debug, Default)]
pub(super) struct Removals {
    ranks: BTreeMap<RankId, Memory>,
}

/// The memory of one rank.
#[derive(Debug)]
struct Memory {
    /// Never with much room to spare: a ring goes round, and touches all its room.
    removed: VecDeque<Removal>,
    /// Of all of them ([`Removal::bytes`]).
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
    /// What their run says of where they were, and no more.
    Blocks {
        parent: Option<PrefixHash>,
        position: u32,
        contents: Arc<[ContentHash]>,
    },
    Everything {
        new_epoch: bool,
    },
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

/// What contents cost beside themselves: two counters, and what the allocator puts before them.
const SHARED: usize = 24;

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
                    let contents = Arc::from(&*run.contents);
                    Gone::Blocks { parent: run.parent, position: run.position, contents }
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
        if self.removed.len() == self.removed.capacity() {
            self.removed.reserve_exact(spare(self.removed.len()));
        }
        self.removed.push_back(removal);
        while self.bytes > limit
            && let Some(oldest) = self.removed.pop_front()
        {
            self.bytes -= oldest.bytes();
            self.since = oldest.at;
        }
        // Longer runs, or more ranks than before: fewer are remembered.
        let len = self.removed.len();
        if self.removed.capacity() > 2 * (len + spare(len)) {
            self.removed.shrink_to(len + spare(len));
        }
    }
}

/// Places that are kept beside so many.
fn spare(len: usize) -> usize {
    len / 8 + 16
}

// === impl Removal ===

impl Removal {
    fn bytes(&self) -> usize {
        let hashes = if let Gone::Blocks { contents, .. } = &self.what { SHARED + size_of_val(&**contents) } else { 0 };
        let place = size_of::<Self>();
        place + place / 8 + hashes
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
            Gone::Blocks { parent, position: from, contents } => {
                let at = position.checked_sub(u64::from(*from)).and_then(|at| usize::try_from(at).ok())?;
                let upto = contents.get(..=at)?;
                let there = upto.iter().fold(*parent, |last, content| Some(PrefixHash::after(last, *content)));
                (there == Some(prefix)).then_some(Found::Removed(removal.stamp, removal.at))
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Tier;
    use crate::index::BlockRun;

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

    #[test]
    fn what_is_remembered_takes_no_more_than_its_bound_with_its_ring_and_less_where_there_are_more_ranks() {
        let taken = |memory: &Memory| {
            let places = memory.removed.capacity() * size_of::<Removal>();
            let contents = |removal: &Removal| match &removal.what {
                Gone::Blocks { contents, .. } => SHARED + size_of_val(&**contents),
                Gone::Everything { .. } => 0,
            };
            places + memory.removed.iter().map(contents).sum::<usize>()
        };
        let mut removals = Removals::default();
        removals.begin(RANK);
        let most = (0..30_000).map(|n| {
            removals.note(&removed(n, 1, n));
            taken(&removals.ranks[&RANK])
        });
        let most = most.max().unwrap();
        assert!((ALONE * 9 / 10..=ALONE + 4096).contains(&most), "{most} of {ALONE}");

        let others = (1..IN_ALL / ALONE * 8).map(|slot| RankId { slot: slot as u32, ..RANK });
        others.for_each(|rank| removals.begin(rank));
        (0..30_000).for_each(|n| removals.note(&removed(n, 1, n)));
        assert!(taken(&removals.ranks[&RANK]) < ALONE / 3, "{}", taken(&removals.ranks[&RANK]));
        assert!(removals.of(RANK).is_some_and(|known| known.find(PrefixHash(29_999), 0).is_some()));
    }
}
