//! The contents of a run: an array that readers walk while its one holder appends.
//!
//! Who has the forest to itself may do anything with it. Besides, one thread at a time may append behind the end where
//! there is room, while others read: what it writes lies beyond what they were told is there.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::hash::ContentHash;

use super::forest::{room_for, trim};

/// Content hashes in the order of their blocks.
#[derive(Debug, Default)]
pub(super) struct Contents {
    /// Those that are there, and room for more.
    cells: Vec<AtomicU64>,
    len: AtomicU32,
}

impl Contents {
    /// Some contents and others behind them, with room for as many more as are likely to come.
    pub(super) fn with_room(have: &[ContentHash], more: impl ExactSizeIterator<Item = ContentHash>) -> Self {
        let len = have.len() + more.len();
        let mut cells = Vec::new();
        cells.reserve_exact(have.len() + room_for(have.len(), more.len()));
        cells.extend(have.iter().copied().chain(more).map(|hash| AtomicU64::new(hash.0)));
        fill(&mut cells);
        Self { cells, len: AtomicU32::new(len as u32) }
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

    /// How many more there is room for.
    #[inline]
    pub(super) fn room(&self) -> usize {
        self.cells.len() - self.len()
    }

    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn as_slice(&self) -> &[ContentHash] {
        let cells = &self.cells[..self.len()];
        // SAFETY: both are a `u64` in memory. The first `len` cells are written by nobody while they are borrowed: only
        // `append_beside_readers` writes through a shared reference, and only to cells behind them. It has written
        // these before it stored the `len` that was loaded (release, acquire).
        unsafe { std::slice::from_raw_parts(cells.as_ptr().cast(), cells.len()) }
    }

    #[inline]
    pub(super) fn get(&self, block: usize) -> Option<ContentHash> {
        self.as_slice().get(block).copied()
    }

    #[inline]
    pub(super) fn first(&self) -> Option<ContentHash> {
        self.get(0)
    }

    /// Appends what there is room for, one thread at a time, while others read.
    #[inline]
    pub(super) fn append_beside_readers(&self, hashes: impl Iterator<Item = ContentHash>) {
        let mut len = self.len();
        for (cell, hash) in self.cells[len..].iter().zip(hashes) {
            cell.store(hash.0, Ordering::Relaxed);
            len += 1;
        }
        self.len.store(len as u32, Ordering::Release);
    }

    /// Appends; makes room where there is too little.
    pub(super) fn extend(&mut self, hashes: impl ExactSizeIterator<Item = ContentHash>) {
        let len = *self.len.get_mut() as usize;
        if self.cells.len() - len < hashes.len() {
            self.cells.truncate(len);
            self.cells.reserve_exact(room_for(len, hashes.len()));
            fill(&mut self.cells);
        }
        self.append_beside_readers(hashes);
    }

    /// Keeps the first `len`, and gives memory back once a third of it lies empty.
    pub(super) fn truncate(&mut self, len: usize) {
        if len < *self.len.get_mut() as usize {
            *self.len.get_mut() = len as u32;
            if len * 3 < self.cells.len() * 2 {
                self.cells.truncate(len);
                trim(&mut self.cells);
                fill(&mut self.cells);
            }
        }
    }

    pub(super) fn heap(&self) -> usize {
        self.cells.capacity() * size_of::<AtomicU64>()
    }
}

/// All the memory an array has is cells.
fn fill(cells: &mut Vec<AtomicU64>) {
    cells.resize_with(cells.capacity(), AtomicU64::default);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hashes(range: std::ops::Range<u64>) -> Vec<ContentHash> {
        range.map(ContentHash).collect()
    }

    #[test]
    fn what_was_appended_is_there_and_room_is_kept_and_given_back() {
        let mut contents = Contents::with_room(&hashes(0..100), hashes(100..101).into_iter());
        assert!(contents.room() >= 8);
        contents.extend(hashes(101..300).into_iter());
        assert_eq!(contents.as_slice(), hashes(0..300));
        let heap = contents.heap();
        contents.truncate(100);
        assert_eq!(contents.as_slice(), hashes(0..100));
        assert!(contents.heap() < heap / 2);
    }

    #[test]
    fn a_reader_sees_only_what_was_written_while_another_thread_appends() {
        for _ in 0..200 {
            let contents = Contents::with_room(&hashes(0..800), hashes(800..801).into_iter());
            let all = contents.len() + contents.room();
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    for next in contents.len()..all {
                        contents.append_beside_readers(std::iter::once(ContentHash(next as u64)));
                    }
                });
                threads.spawn(|| {
                    let mut seen = 0;
                    while seen < all {
                        let now = contents.as_slice();
                        assert!(
                            now.len() >= seen && now[seen..].iter().zip(seen..).all(|(hash, i)| hash.0 == i as u64)
                        );
                        seen = now.len();
                    }
                });
            });
        }
    }
}
