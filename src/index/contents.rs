//! The contents of a run: an array that readers walk while its one holder appends.
//!
//! Who has the forest to itself may do anything with it. Besides, one thread at a time may append behind the end where
//! there is room, while others read: what it writes lies beyond what they were told is there.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::hash::{ContentHash, PrefixHash};

use super::forest::room_for;

/// Blocks between two prefix hashes that are kept. Between them they are rolled on, at a few nanoseconds a block.
pub(super) const MARK: usize = 16;

/// Content hashes in the order of their blocks, and the prefix hash of every [`MARK`]th.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Contents, those that are there and room for more; then as many marks as these can need.
    cells: Box<[AtomicU64]>,
    len: AtomicU32,
}

impl Contents {
    /// A copy of some that has room for so many more, and for those that are likely to come after these.
    pub(super) fn with_room(have: &Self, more: usize) -> Self {
        let len = have.len();
        let most = len + room_for(len, more);
        let mut cells = Vec::with_capacity(with_marks(most));
        // What others append meanwhile belongs to the old one alone.
        cells.extend(have.as_slice()[..len].iter().map(|content| AtomicU64::new(content.0)));
        cells.resize_with(most, AtomicU64::default);
        cells.extend(have.marks()[..len.div_ceil(MARK)].iter().map(|mark| AtomicU64::new(mark.0)));
        cells.resize_with(with_marks(most), AtomicU64::default);
        Self { cells: cells.into_boxed_slice(), len: AtomicU32::new(len as u32) }
    }

    /// How many there are. What was there before is there to be read.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Acquire) as usize
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it is nothing, and has never had room for anything.
    #[inline]
    pub(super) fn is_unmade(&self) -> bool {
        self.cells.is_empty()
    }

    /// How many more there is room for.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.most() - self.len()
    }

    /// How many there can be without another piece of memory.
    #[inline]
    fn most(&self) -> usize {
        self.cells.len() - self.cells.len().div_ceil(MARK + 1)
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[ContentHash] {
        content_hashes(&self.cells[..self.len()])
    }

    /// The prefix hash of block `MARK * i`, for each of these that is there.
    #[inline]
    pub(super) fn marks(&self) -> &[PrefixHash] {
        let most = self.most();
        prefix_hashes(&self.cells[most..most + self.len().div_ceil(MARK)])
    }

    #[inline]
    pub(super) fn get(&self, block: usize) -> Option<ContentHash> {
        self.as_slice().get(block).copied()
    }

    #[inline]
    pub(super) fn first(&self) -> Option<ContentHash> {
        self.get(0)
    }

    /// Appends what there is room for, one thread at a time, while others read. With each content comes the prefix hash of
    /// its block.
    #[inline]
    pub(super) fn append_beside_readers(&self, hashes: impl Iterator<Item = (ContentHash, PrefixHash)>) {
        let most = self.most();
        let (cells, marks) = self.cells.split_at(most);
        let mut len = self.len();
        for (cell, (content, prefix)) in cells[len..].iter().zip(hashes) {
            cell.store(content.0, Ordering::Relaxed);
            if len.is_multiple_of(MARK) {
                marks[len / MARK].store(prefix.0, Ordering::Relaxed);
            }
            len += 1;
        }
        self.len.store(len as u32, Ordering::Release);
    }

    /// Keeps the first `len`, and gives memory back once a third of it lies empty.
    pub(super) fn truncate(&mut self, len: usize) {
        if len >= *self.len.get_mut() as usize {
            return;
        }
        *self.len.get_mut() = len as u32;
        let most = self.most();
        if len * 3 < most * 2 {
            let keep = len + len / 8;
            let mut cells = std::mem::take(&mut self.cells).into_vec();
            for mark in 0..len.div_ceil(MARK) {
                *cells[keep + mark].get_mut() = *cells[most + mark].get_mut();
            }
            cells.truncate(with_marks(keep));
            self.cells = cells.into_boxed_slice();
        }
    }

    pub(super) fn heap(&self) -> usize {
        self.cells.len() * size_of::<AtomicU64>()
    }
}

/// So many contents and their marks.
fn with_marks(contents: usize) -> usize {
    contents + contents.div_ceil(MARK)
}

#[inline]
#[allow(unsafe_code)]
fn content_hashes(cells: &[AtomicU64]) -> &[ContentHash] {
    // SAFETY: both are a `u64` in memory. Cells of blocks below the length are written by nobody while they are borrowed:
    // only `append_beside_readers` writes through a shared reference, and only to cells of blocks behind them. It has
    // written these before it stored the length that was loaded (release, acquire).
    unsafe { std::slice::from_raw_parts(cells.as_ptr().cast(), cells.len()) }
}

#[inline]
#[allow(unsafe_code)]
fn prefix_hashes(cells: &[AtomicU64]) -> &[PrefixHash] {
    // SAFETY: as above; a mark is written with its block.
    unsafe { std::slice::from_raw_parts(cells.as_ptr().cast(), cells.len()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(range: std::ops::Range<u64>) -> impl Iterator<Item = (ContentHash, PrefixHash)> {
        range.map(|i| (ContentHash(i), PrefixHash(!i)))
    }

    fn are(contents: &Contents, len: usize) -> bool {
        let all = contents.as_slice().iter().zip(0..).all(|(hash, i)| hash.0 == i);
        let marks = contents.marks().iter().zip((0..).step_by(MARK)).all(|(mark, i)| mark.0 == !i);
        contents.len() == len && contents.marks().len() == len.div_ceil(MARK) && all && marks
    }

    #[test]
    fn what_was_appended_is_there_and_room_is_kept_and_given_back() {
        let mut contents = Contents::default();
        for (from, to) in [(0, 1), (1, 100), (100, 101), (101, 300), (300, 1999)] {
            let more = (to - from) as usize;
            if contents.room() < more {
                contents = Contents::with_room(&contents, more);
            }
            assert!(contents.room() >= more);
            contents.append_beside_readers(hashes(from..to));
            assert!(are(&contents, to as usize));
        }
        for len in [1998, 1700, 1299, 1000, 333, 100, 17, 16, 15, 1, 0] {
            contents.truncate(len);
            assert!(are(&contents, len), "{len}");
            assert!(contents.heap() <= len * 13 + 8 * MARK, "{} bytes for {len}", contents.heap());
        }
    }

    #[test]
    fn a_reader_sees_only_what_was_written_while_another_thread_appends() {
        for _ in 0..200 {
            let contents = Contents::with_room(&Contents::default(), 900);
            contents.append_beside_readers(hashes(0..100));
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    for next in 100..900 {
                        contents.append_beside_readers(hashes(next..next + 1));
                    }
                });
                threads.spawn(|| {
                    let mut seen = 0;
                    while seen < 900 {
                        let now = contents.as_slice();
                        let marks = contents.marks();
                        assert!(
                            now.len() >= seen && now[seen..].iter().zip(seen..).all(|(hash, i)| hash.0 == i as u64)
                        );
                        assert!(marks.len() >= now.len().div_ceil(MARK));
                        assert!(marks.iter().zip((0..).step_by(MARK)).all(|(mark, i)| mark.0 == !i));
                        seen = now.len();
                    }
                });
            });
        }
    }
}
