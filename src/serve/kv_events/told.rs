//! What a subscriber was told that a worker holds, and what is to be told next.

use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};

use crate::proto::v1;
use crate::proto::v1::change::Change;
use crate::proto::v1::event::Event;

/// One thing to tell. Blocks are (prefix hash, content hash).
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Piece {
    /// Blocks that lie one after the other, after `parent`.
    Stored { parent: Option<u64>, level: u8, block_size: u32, blocks: Vec<(u64, u64)> },
    /// Blocks that are on a level no more.
    Removed { level: u8, blocks: Vec<u64> },
    /// Everything is gone.
    Cleared,
}

/// What was told of one worker.
#[derive(Debug, Default)]
pub(super) struct Told {
    ranks: HashMap<Life, Held>,
    /// Told as stored on the device only so that others can be told after them.
    passed: HashSet<u64>,
    pieces: Vec<Piece>,
    partial: bool,
}

/// A rank of the worker in one of its lives.
type Life = (u32, u64);

/// On which tiers each block lies: one bit each.
type Tiers = HashMap<u64, u8>;

/// What one rank holds.
#[derive(Debug, Default)]
struct Held {
    block_size: u32,
    tiers: Tiers,
    /// While a snapshot is read: what was held before it.
    before: Tiers,
}

/// Levels, as the gateway numbers them: the device, and what is none of the others.
const DEVICE: u8 = 0;
const ELSEWHERE: u8 = 3;

// === impl Told ===

impl Told {
    /// Takes in what has happened. Says whether what is to be told is whole with it.
    pub(super) fn hear(&mut self, event: Event) -> bool {
        match event {
            Event::Added(_) | Event::Changed(_) => false,
            Event::Gone(gone) => {
                self.clear(life(gone.key.as_ref()), true);
                true
            }
            Event::SnapshotBegin(begin) => {
                let held = self.ranks.entry(life(begin.key.as_ref())).or_default();
                held.before = std::mem::take(&mut held.tiers);
                held.block_size = begin.grid.map_or(0, |grid| grid.block_size);
                self.partial |= begin.partial;
                false
            }
            Event::SnapshotPart(part) => {
                let life = life(part.key.as_ref());
                part.runs.iter().for_each(|run| self.run(life, run));
                false
            }
            Event::SnapshotEnd(end) => {
                let life = life(end.key.as_ref());
                let before = self.ranks.get_mut(&life).map(|held| std::mem::take(&mut held.before));
                self.lost(before.unwrap_or_default());
                true
            }
            Event::Delta(delta) => {
                let life = life(delta.key.as_ref());
                delta
                    .changes
                    .into_iter()
                    .filter_map(|change| change.change)
                    .for_each(|change| self.change(life, change));
                !delta.goes_on
            }
        }
    }

    /// Everything that is to be told since the last time.
    pub(super) fn take(&mut self) -> Vec<Piece> {
        let passed = std::mem::take(&mut self.passed);
        let blocks: Vec<u64> = passed.into_iter().filter(|block| self.levels(*block) & 1 << DEVICE == 0).collect();
        if !blocks.is_empty() {
            self.pieces.push(Piece::Removed { level: DEVICE, blocks });
        }
        std::mem::take(&mut self.pieces)
    }

    /// Whether a bound has made kvtap forget blocks of a rank that was told.
    pub(super) fn is_partial(&self) -> bool {
        self.partial
    }

    fn change(&mut self, life: Life, change: Change) {
        match change {
            Change::Cleared(_) | Change::Reset(_) => self.clear(life, false),
            Change::Grid(grid) => self.ranks.entry(life).or_default().block_size = grid.block_size,
            Change::Run(run) => self.run(life, &run),
            Change::Groups(_) | Change::Partial(_) => {}
        }
    }

    fn clear(&mut self, life: Life, is_gone: bool) {
        let Some(held) = self.ranks.get_mut(&life) else { return };
        let mut lost = std::mem::take(&mut held.tiers);
        for (block, tiers) in std::mem::take(&mut held.before) {
            *lost.entry(block).or_default() |= tiers;
        }
        if is_gone {
            self.ranks.remove(&life);
        }
        if self.ranks.values().all(|held| held.tiers.is_empty() && held.before.is_empty()) {
            self.passed.clear();
            self.pieces.push(Piece::Cleared);
        } else {
            self.lost(lost);
        }
    }

    fn run(&mut self, life: Life, run: &v1::BlockRun) {
        // What other groups of a hybrid model hold has no words here.
        if run.group.is_some() {
            return;
        }
        match run.kind() {
            v1::RunKind::Unspecified => {}
            v1::RunKind::Stored => self.stored(life, run, |told, block| told.gains(life, block, run.tier())),
            v1::RunKind::Passed => self.stored(life, run, |told, block| {
                (told.levels(block) == 0 && told.passed.insert(block)).then_some(DEVICE)
            }),
            v1::RunKind::Removed => {
                for block in &run.prefix_hashes {
                    self.loses(life, *block, run.tier());
                }
            }
        }
    }

    /// Tells those blocks of a run that `gains` says are new, and on which level.
    fn stored(&mut self, life: Life, run: &v1::BlockRun, gains: impl Fn(&mut Self, u64) -> Option<u8>) {
        let block_size = self.ranks.entry(life).or_default().block_size;
        let mut parent = run.parent;
        let mut goes_on = false;
        for (block, content) in run.prefix_hashes.iter().copied().zip(run.content_hashes.iter().copied()) {
            let new = gains(self, block);
            match (new, self.pieces.last_mut()) {
                (Some(_), Some(Piece::Stored { blocks, .. })) if goes_on => blocks.push((block, content)),
                (Some(level), _) => {
                    self.pieces.push(Piece::Stored { parent, level, block_size, blocks: vec![(block, content)] });
                }
                (None, _) => {}
            }
            goes_on = new.is_some();
            parent = Some(block);
        }
    }

    /// Notes that a rank holds a block on a tier. The level, where nothing was told of it there.
    fn gains(&mut self, life: Life, block: u64, tier: v1::Tier) -> Option<u8> {
        let level = level(tier);
        let had = self.levels(block) & 1 << level != 0;
        *self.ranks.entry(life).or_default().tiers.entry(block).or_default() |= bit(tier);
        let was_passed = !had && level == DEVICE && self.passed.remove(&block);
        (!had && !was_passed).then_some(level)
    }

    /// Notes that a rank holds a block on a tier no more, and tells it where that is news.
    fn loses(&mut self, life: Life, block: u64, tier: v1::Tier) {
        let Some(held) = self.ranks.get_mut(&life) else { return };
        let Entry::Occupied(mut tiers) = held.tiers.entry(block) else { return };
        if tiers.get() & bit(tier) == 0 {
            return;
        }
        *tiers.get_mut() &= !bit(tier);
        if *tiers.get() == 0 {
            tiers.remove();
        }
        if self.levels(block) & 1 << level(tier) == 0 {
            self.removed(level(tier), block);
        }
    }

    /// Tells which of these nobody holds any more.
    fn lost(&mut self, lost: Tiers) {
        for (block, tiers) in lost {
            let gone = levels(tiers) & !self.levels(block);
            for level in (DEVICE..=ELSEWHERE).filter(|level| gone & 1 << level != 0) {
                self.removed(level, block);
            }
        }
    }

    fn removed(&mut self, level: u8, block: u64) {
        match self.pieces.last_mut() {
            Some(Piece::Removed { level: last, blocks }) if *last == level => blocks.push(block),
            _ => self.pieces.push(Piece::Removed { level, blocks: vec![block] }),
        }
    }

    /// On which levels a block was told to lie: one bit each.
    fn levels(&self, block: u64) -> u8 {
        let all = self.ranks.values().flat_map(|held| [held.tiers.get(&block), held.before.get(&block)]);
        levels(all.flatten().fold(0, |all, tiers| all | tiers))
    }
}

// === impl Piece ===

impl Piece {
    /// Blocks that it tells of.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Stored { blocks, .. } => blocks.len(),
            Self::Removed { blocks, .. } => blocks.len(),
            Self::Cleared => 0,
        }
    }

    /// Its first blocks, at most so many; it keeps the rest.
    fn split_off(&mut self, most: usize) -> Self {
        match self {
            Self::Stored { parent, level, block_size, blocks } => {
                let rest = blocks.split_off(most.min(blocks.len()));
                let (level, block_size, blocks) = (*level, *block_size, std::mem::replace(blocks, rest));
                let last = blocks.last().map(|(block, _)| *block);
                Self::Stored { parent: std::mem::replace(parent, last), level, block_size, blocks }
            }
            Self::Removed { level, blocks } => {
                let rest = blocks.split_off(most.min(blocks.len()));
                Self::Removed { level: *level, blocks: std::mem::replace(blocks, rest) }
            }
            Self::Cleared => Self::Cleared,
        }
    }
}

/// The same in portions of at most so many blocks; no portion is empty.
pub(super) fn portions(pieces: Vec<Piece>, most: usize) -> Vec<Vec<Piece>> {
    let mut portions = Vec::new();
    let (mut portion, mut room) = (Vec::new(), most);
    for mut piece in pieces {
        while piece.len() > room {
            portion.push(piece.split_off(room));
            portions.push(std::mem::take(&mut portion));
            room = most;
        }
        room -= piece.len();
        portion.push(piece);
        if room == 0 {
            portions.push(std::mem::take(&mut portion));
            room = most;
        }
    }
    if !portion.is_empty() {
        portions.push(portion);
    }
    portions
}

fn life(key: Option<&v1::RankKey>) -> Life {
    key.map_or((0, 0), |key| (key.rank, key.life))
}

/// One bit for each tier.
fn bit(tier: v1::Tier) -> u8 {
    1u8.checked_shl((tier as u32).saturating_sub(1)).unwrap_or_default()
}

/// A tier's level: what is not known counts as elsewhere, never as the device.
const fn level(tier: v1::Tier) -> u8 {
    match tier {
        v1::Tier::Device => DEVICE,
        v1::Tier::Host => 1,
        v1::Tier::Disk => 2,
        _ => ELSEWHERE,
    }
}

/// The levels of tiers, one bit each.
const fn levels(tiers: u8) -> u8 {
    let elsewhere = (tiers >> ELSEWHERE != 0) as u8;
    tiers & 0b111 | elsewhere << ELSEWHERE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(rank: u32) -> Option<v1::RankKey> {
        Some(v1::RankKey { rank, ..Default::default() })
    }

    fn run(kind: v1::RunKind, tier: v1::Tier, parent: Option<u64>, blocks: &[u64]) -> Change {
        Change::Run(block_run(kind, tier, parent, blocks))
    }

    fn block_run(kind: v1::RunKind, tier: v1::Tier, parent: Option<u64>, blocks: &[u64]) -> v1::BlockRun {
        v1::BlockRun {
            kind: kind.into(),
            tier: tier.into(),
            parent,
            prefix_hashes: blocks.to_vec(),
            content_hashes: blocks.iter().map(|block| block + 100).collect(),
            ..Default::default()
        }
    }

    fn delta(told: &mut Told, rank: u32, changes: Vec<Change>) -> Vec<Piece> {
        let changes = changes.into_iter().map(|change| v1::Change { change: Some(change) }).collect();
        assert!(told.hear(Event::Delta(v1::RankDelta { key: key(rank), changes, ..Default::default() })));
        told.take()
    }

    fn stored(parent: Option<u64>, level: u8, blocks: &[u64]) -> Piece {
        Piece::Stored {
            parent,
            level,
            block_size: 0,
            blocks: blocks.iter().map(|block| (*block, block + 100)).collect(),
        }
    }

    fn removed(level: u8, blocks: &[u64]) -> Piece {
        Piece::Removed { level, blocks: blocks.to_vec() }
    }

    use v1::RunKind::{Passed, Removed, Stored};
    use v1::Tier::{Device, External, Host, Other1};

    #[test]
    fn the_first_rank_that_has_a_block_stores_it_and_the_last_one_removes_it() {
        let mut told = Told::default();
        assert_eq!(delta(&mut told, 0, vec![run(Stored, Device, None, &[1, 2])]), [stored(None, 0, &[1, 2])]);
        assert_eq!(delta(&mut told, 1, vec![run(Stored, Device, None, &[1, 2, 3])]), [stored(Some(2), 0, &[3])]);
        assert_eq!(delta(&mut told, 1, vec![run(Stored, Host, None, &[1])]), [stored(None, 1, &[1])]);
        assert_eq!(delta(&mut told, 0, vec![run(Removed, Device, None, &[1, 2])]), []);
        assert_eq!(delta(&mut told, 1, vec![run(Removed, Device, None, &[1, 2])]), [removed(0, &[1, 2])]);
        assert_eq!(delta(&mut told, 1, vec![run(Removed, Host, None, &[1])]), [removed(1, &[1])]);
        assert_eq!(delta(&mut told, 1, vec![run(Removed, Host, None, &[1])]), []);
    }

    #[test]
    fn unknown_tiers_lie_elsewhere_until_the_last_of_them_is_gone() {
        let mut told = Told::default();
        assert_eq!(delta(&mut told, 0, vec![run(Stored, External, None, &[1])]), [stored(None, 3, &[1])]);
        assert_eq!(delta(&mut told, 0, vec![run(Stored, Other1, None, &[1])]), []);
        assert_eq!(delta(&mut told, 0, vec![run(Removed, External, None, &[1])]), []);
        assert_eq!(delta(&mut told, 0, vec![run(Removed, Other1, None, &[1])]), [removed(3, &[1])]);
    }

    #[test]
    fn a_block_that_is_passed_is_told_and_taken_back_unless_somebody_holds_it() {
        let mut told = Told::default();
        let over = vec![run(Passed, v1::Tier::Unspecified, None, &[1]), run(Stored, Device, Some(1), &[2])];
        let pieces = delta(&mut told, 0, over.clone());
        assert_eq!(pieces, [stored(None, 0, &[1]), stored(Some(1), 0, &[2]), removed(0, &[1])]);
        delta(&mut told, 1, vec![run(Stored, Device, None, &[1])]);
        delta(&mut told, 0, vec![run(Removed, Device, Some(1), &[2])]);
        assert_eq!(delta(&mut told, 0, over), [stored(Some(1), 0, &[2])]);
        let then = vec![run(Passed, v1::Tier::Unspecified, None, &[7]), run(Stored, Device, None, &[7])];
        assert_eq!(delta(&mut told, 0, then), [stored(None, 0, &[7])]);
    }

    #[test]
    fn a_clear_takes_what_only_that_rank_held() {
        let mut told = Told::default();
        delta(&mut told, 0, vec![run(Stored, Device, None, &[1, 2])]);
        delta(&mut told, 1, vec![run(Stored, Device, None, &[1])]);
        assert_eq!(delta(&mut told, 0, vec![Change::Cleared(v1::Cleared {})]), [removed(0, &[2])]);
        assert!(told.hear(Event::Gone(v1::WorkerGone { key: key(1) })));
        assert_eq!(told.take(), [Piece::Cleared]);
    }

    #[test]
    fn a_snapshot_tells_the_difference_to_what_was_told_before() {
        let mut told = Told::default();
        delta(&mut told, 0, vec![run(Stored, Device, None, &[1, 2])]);
        assert!(!told.hear(Event::SnapshotBegin(v1::SnapshotBegin { key: key(0), ..Default::default() })));
        let held = block_run(Stored, Device, None, &[1, 3]);
        assert!(!told.hear(Event::SnapshotPart(v1::SnapshotPart { key: key(0), runs: vec![held] })));
        assert!(told.hear(Event::SnapshotEnd(v1::SnapshotEnd { key: key(0), ..Default::default() })));
        assert_eq!(told.take(), [stored(Some(1), 0, &[3]), removed(0, &[2])]);
    }

    #[test]
    fn portions_hold_so_many_blocks_and_a_chain_goes_on_in_the_next_one() {
        let pieces = vec![Piece::Cleared, stored(None, 0, &[1, 2, 3]), removed(0, &[4, 5])];
        let portioned = portions(pieces, 2);
        let first = vec![Piece::Cleared, stored(None, 0, &[1, 2])];
        assert_eq!(portioned, [first, vec![stored(Some(2), 0, &[3]), removed(0, &[4])], vec![removed(0, &[5])]]);
    }
}
