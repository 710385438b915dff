//! A run: a chain of blocks in flat arrays, and who holds how much of it.
//!
//! What an append beside readers touches is atomic: contents and their length, the prefix hash of the last block, the one
//! holder's lead. All else changes under the gate.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::hash::{ContentHash, PrefixHash};

use super::bucket::prefetch;
use super::contents::{Contents, MARK};
use super::cover::Cover;
use super::door::Block;
use super::forest::MAX_RUN;

/// A chain of blocks. What a match reads stands in the first of two cache lines, what tells the run from others in both.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Run {
    /// What a match compares.
    pub(super) contents: Contents,
    /// The first content, while there is any: nobody need wait for the others to know the run.
    pub(super) first: ContentHash,
    pub(super) cover: Cover,
    /// The run it hangs from, [`NONE`](super::forest::NONE) where it begins at block 0.
    pub(super) parent: u32,
    /// The block of that run.
    pub(super) parent_block: u32,
    /// Runs that hang from this one.
    pub(super) kids: u32,
    /// No kid hangs from a block behind this one.
    pub(super) last_kid: u32,
    /// Another number, and none that any run of the forest had before, whenever it was cut, or ended and another began in
    /// its place.
    pub(super) version: u32,
    /// The block from which a run came to hang last: most that part from this one part there.
    pub(super) fork: u32,
    tip: Tip,
}

const _: () = assert!(size_of::<Run>() == 128);

/// The prefix hash of the last block, if `len` is the length of the run.
#[derive(Debug, Default)]
struct Tip {
    prefix: AtomicU64,
    len: AtomicU32,
}

// === impl Run ===

impl Run {
    /// A run without blocks that hangs from that block.
    pub(super) fn behind(parent: u32, parent_block: u32, version: u32) -> Self {
        let (contents, cover, tip) = (Contents::default(), Cover::default(), Tip::default());
        let first = ContentHash(0);
        Self { contents, first, cover, parent, parent_block, kids: 0, last_kid: 0, version, fork: 0, tip }
    }

    /// Asks for a run ahead.
    #[inline]
    pub(super) fn touch(&self) {
        prefetch(self);
        prefetch(&self.parent);
    }

    /// The prefix hash of the first block.
    #[inline]
    pub(super) fn head(&self) -> Option<PrefixHash> {
        self.contents.marks().first().copied()
    }

    /// Appends blocks, whose prefix hashes those are, or takes `contents` instead, if that has any.
    pub(super) fn append(&mut self, blocks: &[Block], prefixes: &[PrefixHash], contents: Contents) {
        if contents.is_unmade() {
            if self.contents.room() < blocks.len() {
                self.contents = Contents::with_room(&self.contents, blocks.len());
            }
            self.contents.append_beside_readers(both(blocks, prefixes));
        } else {
            self.contents = contents;
        }
        if let Some(first) = self.contents.first() {
            self.first = first;
        }
        if let Some(last) = prefixes[..blocks.len()].last() {
            self.tip.set(*last, self.contents.len());
        }
    }

    /// Whether its one holder, who sits at `seat`, can append so many blocks behind `block` beside others: that is its
    /// end, they have room, and no chain goes on there in another run.
    #[inline]
    pub(super) fn can_append_beside(&self, seat: u32, block: u32, blocks: usize) -> bool {
        let len = self.contents.len();
        len == block as usize + 1
            && len + blocks <= MAX_RUN
            && self.contents.room() >= blocks
            && (self.kids == 0 || self.last_kid < block)
            && self.cover.only().is_some_and(|holder| holder.seat() == seat && holder.lead() as usize == len)
    }

    /// Asks ahead for what such an append changes.
    #[inline]
    pub(super) fn touch_end(&self) {
        self.touch();
        prefetch(self.contents.as_slice().as_ptr_range().end);
    }

    /// Appends blocks which its one holder holds from then on; others may read meanwhile. They can be appended so, and
    /// nobody else does the same.
    #[inline]
    pub(super) fn append_beside(&self, blocks: &[Block]) {
        let mut prefix = self.prefix(self.contents.len() - 1);
        self.contents.append_beside_readers(blocks.iter().map(|block| {
            prefix = prefix.then(block.content);
            (block.content, prefix)
        }));
        let len = self.contents.len();
        self.tip.set(prefix, len);
        self.cover.lengthen_only(len as u32);
    }

    pub(super) fn truncate(&mut self, len: usize) {
        if len < self.contents.len() {
            // Whoever appends beside readers shows the length before the tip: until then a run of the old length would
            // have the tip of a block that was cut off.
            *self.tip.len.get_mut() = 0;
        }
        self.contents.truncate(len);
    }

    /// The prefix hash of a block.
    #[inline]
    pub(super) fn prefix(&self, block: usize) -> PrefixHash {
        if let Some(tip) = self.tip.of(block + 1) {
            return tip;
        }
        let mark = self.contents.marks()[block / MARK];
        let between = &self.contents.as_slice()[block / MARK * MARK + 1..block + 1];
        between.iter().fold(mark, |prefix, content| prefix.then(*content))
    }

    /// How many of `chain` stand here from the first block on. What a prefix hash says of one block it says of all
    /// before it, so the marks are bisected, and only between two of them hashes are rolled on.
    pub(super) fn same_prefixes(&self, chain: &[PrefixHash]) -> usize {
        let contents = self.contents.as_slice();
        let both = contents.len().min(chain.len());
        if both == contents.len() && both > 0 && self.prefix(both - 1) == chain[both - 1] {
            return both;
        }
        let marks = &self.contents.marks()[..both.div_ceil(MARK)];
        let (mut low, mut high) = (0, marks.len());
        while low < high {
            let mid = low + (high - low) / 2;
            if marks[mid] == chain[mid * MARK] {
                low = mid + 1;
            } else {
                high = mid;
            }
        }
        let Some(mark) = low.checked_sub(1) else { return 0 };
        let mut prefix = marks[mark];
        let mut same = mark * MARK + 1;
        while same < both {
            prefix = prefix.then(contents[same]);
            if prefix != chain[same] {
                break;
            }
            same += 1;
        }
        same
    }

    pub(super) fn heap(&self) -> usize {
        self.contents.heap() + self.cover.heap()
    }
}

/// The contents of blocks with the prefix hashes that are theirs.
#[inline]
pub(super) fn both(blocks: &[Block], prefixes: &[PrefixHash]) -> impl Iterator<Item = (ContentHash, PrefixHash)> {
    blocks.iter().map(|block| block.content).zip(prefixes.iter().copied())
}

// === impl Tip ===

impl Tip {
    /// The prefix hash of the last of `len` blocks, if it is that one.
    #[inline]
    fn of(&self, len: usize) -> Option<PrefixHash> {
        // Another thread may be changing it: what was read between two looks at the same length belongs to that.
        let is_it = |order| self.len.load(order) as usize == len;
        if !is_it(Ordering::Acquire) {
            return None;
        }
        let prefix = PrefixHash(self.prefix.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        is_it(Ordering::Relaxed).then_some(prefix)
    }

    #[inline]
    fn set(&self, prefix: PrefixHash, len: usize) {
        self.len.store(0, Ordering::Relaxed);
        fence(Ordering::Release);
        self.prefix.store(prefix.0, Ordering::Relaxed);
        self.len.store(len as u32, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::EngineHash;

    fn block(content: u64) -> Block {
        Block { engine: EngineHash::from_u64(content), content: ContentHash(content) }
    }

    #[test]
    fn the_tip_of_what_was_cut_off_is_nobodys_while_another_block_comes_in_its_place() {
        let blocks: Vec<Block> = (0..10).map(block).collect();
        let mut before = None;
        let prefixes: Vec<PrefixHash> = blocks
            .iter()
            .map(|block| {
                let prefix = PrefixHash::after(before, block.content);
                before = Some(prefix);
                prefix
            })
            .collect();
        let contents = Contents::with_room(&Contents::default(), blocks.len() + 8);
        contents.append_beside_readers(both(&blocks, &prefixes));
        let mut run = Run::behind(super::super::forest::NONE, 0, 1);
        run.append(&blocks, &prefixes, contents);
        run.truncate(9);
        // The first half of an append: the length is there, the tip is not yet.
        let other = prefixes[8].then(ContentHash(99));
        run.contents.append_beside_readers(std::iter::once((ContentHash(99), other)));
        assert_eq!(run.prefix(9), other);
        assert_eq!(run.same_prefixes(&prefixes), 9);
    }
}
