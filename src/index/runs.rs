//! All runs of a forest, by number.

use std::ops::{Index, IndexMut};

use super::run::Run;

/// Runs on shelves that stay where they are: one array of them would be copied each time that it grew, with the gate
/// closed, a hundred megabytes of it where a million prompts are held.
#[derive(Debug, Default)]
pub(super) struct Runs {
    /// All but the last one are full.
    shelves: Vec<Vec<Run>>,
}

/// Runs of a shelf: 64 KiB.
const SHELF: usize = 512;

// === impl Runs ===

impl Runs {
    #[inline]
    pub(super) fn get(&self, run: u32) -> Option<&Run> {
        self.shelves.get(run as usize / SHELF)?.get(run as usize % SHELF)
    }

    /// Appends a run; its number.
    pub(super) fn push(&mut self, run: Run) -> u32 {
        let number = self.len() as u32;
        match self.shelves.last_mut() {
            Some(last) if last.len() < SHELF => last.push(run),
            _ => {
                let mut shelf = Vec::with_capacity(SHELF);
                shelf.push(run);
                self.shelves.push(shelf);
            }
        }
        number
    }

    pub(super) fn len(&self) -> usize {
        self.shelves.last().map_or(0, |last| (self.shelves.len() - 1) * SHELF + last.len())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Run> {
        self.shelves.iter().flatten()
    }

    /// Memory that they take, in bytes, without what they point to.
    pub(super) fn heap(&self) -> usize {
        self.shelves.len() * SHELF * size_of::<Run>() + self.shelves.capacity() * size_of::<Vec<Run>>()
    }
}

impl Index<u32> for Runs {
    type Output = Run;

    #[inline]
    fn index(&self, run: u32) -> &Run {
        &self.shelves[run as usize / SHELF][run as usize % SHELF]
    }
}

impl IndexMut<u32> for Runs {
    #[inline]
    fn index_mut(&mut self, run: u32) -> &mut Run {
        &mut self.shelves[run as usize / SHELF][run as usize % SHELF]
    }
}
