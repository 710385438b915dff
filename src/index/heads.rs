//! Runs by a hash: where a run begins. A flat table; a slot is half hash, half run.

use super::bucket::prefetch;

/// A table of runs. What a run is called by is known to the caller; the table keeps 32 bits of its hash.
#[derive(Debug, Default)]
pub(super) struct Heads {
    /// `hash << 32 | run + 1`; 0 is free. A power of two of them, or none.
    slots: Vec<u64>,
    len: usize,
}

const SMALL: usize = 16;

// === impl Heads ===

impl Heads {
    pub(super) fn heap(&self) -> usize {
        self.slots.capacity() * size_of::<u64>()
    }

    /// Asks for the slot of a hash ahead.
    #[inline]
    pub(super) fn touch(&self, hash: u32) {
        // Only an address, which nothing is read from.
        prefetch(self.slots.as_ptr().wrapping_add(hash as usize & self.slots.len().wrapping_sub(1)));
    }

    /// The run that may be the one of this hash: nothing is read to tell.
    #[inline]
    pub(super) fn guess(&self, hash: u32) -> Option<u32> {
        let slot = *self.slots.get(hash as usize & self.slots.len().wrapping_sub(1))?;
        ((slot >> 32) as u32 == hash && slot != 0).then(|| slot as u32 - 1)
    }

    /// The run of this hash that `is` the one.
    #[inline]
    pub(super) fn get(&self, hash: u32, is: impl Fn(u32) -> bool) -> Option<u32> {
        if self.slots.is_empty() {
            return None;
        }
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let slot = self.slots[at];
            if slot == 0 {
                return None;
            }
            let run = slot as u32 - 1;
            if (slot >> 32) as u32 == hash && is(run) {
                return Some(run);
            }
            at = (at + 1) & mask;
        }
    }

    pub(super) fn put(&mut self, hash: u32, run: u32) {
        // Half full at most: probes stay short, and a free slot always ends them.
        if (self.len + 1) * 2 > self.slots.len() {
            self.resize((self.slots.len() * 2).max(SMALL));
        }
        self.insert(u64::from(hash) << 32 | u64::from(run + 1));
        self.len += 1;
    }

    pub(super) fn remove(&mut self, hash: u32, run: u32) {
        if self.slots.is_empty() {
            return;
        }
        let mask = self.slots.len() - 1;
        let wanted = u64::from(hash) << 32 | u64::from(run + 1);
        let mut at = hash as usize & mask;
        while self.slots[at] != wanted {
            if self.slots[at] == 0 {
                return;
            }
            at = (at + 1) & mask;
        }
        // What stands behind moves up where that brings it no further than its home: no tombstones.
        let mut next = (at + 1) & mask;
        while self.slots[next] != 0 {
            let home = (self.slots[next] >> 32) as usize & mask;
            if (next.wrapping_sub(home) & mask) >= (next.wrapping_sub(at) & mask) {
                self.slots[at] = self.slots[next];
                at = next;
            }
            next = (next + 1) & mask;
        }
        self.slots[at] = 0;
        self.len -= 1;
        if self.len == 0 {
            self.slots = Vec::new();
        } else if self.len * 8 < self.slots.len() && self.slots.len() > SMALL {
            self.resize(self.slots.len() / 2);
        }
    }

    fn insert(&mut self, slot: u64) {
        let mask = self.slots.len() - 1;
        let mut at = (slot >> 32) as usize & mask;
        while self.slots[at] != 0 {
            at = (at + 1) & mask;
        }
        self.slots[at] = slot;
    }

    fn resize(&mut self, slots: usize) {
        let old = std::mem::replace(&mut self.slots, vec![0; slots]);
        for slot in old.into_iter().filter(|slot| *slot != 0) {
            self.insert(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_found_until_they_are_removed_and_the_table_shrinks_with_them() {
        let mut heads = Heads::default();
        let hash = |run: u32| run.wrapping_mul(2654435769) >> 7;
        for run in 0..10_000 {
            heads.put(hash(run), run);
        }
        for run in 0..10_000 {
            assert_eq!(heads.get(hash(run), |r| r == run), Some(run));
            heads.remove(hash(run), run);
            assert_eq!(heads.get(hash(run), |r| r == run), None);
            assert_eq!(heads.get(hash(9_999), |r| r == 9_999), (run != 9_999).then_some(9_999));
        }
        assert_eq!(heads.heap(), 0);
    }
}
