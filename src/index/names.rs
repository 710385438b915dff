//! From an engine's name to where its block stands: one table per rank, written and read by its one writer only.
//!
//! A slot is eight bytes: a tag of the name's hash, and the place (which of the rank's holds, which block of it).
//! The name itself is kept once, in the hold; a tag that agrees is checked against it. Slots lie in buckets of one
//! cache line. A name that finds its bucket full goes on to the next one, and the buckets that it passed count it,
//! so a search knows where to stop and a removal leaves nothing behind: no tombstones, no clean-up.

use crate::hash::EngineHash;

/// Bits of a slot that tell which block of a hold: a run has at most this many.
const BLOCK_BITS: u32 = 16;
/// Bits that tell which hold.
const HOLD_BITS: u32 = 30;
/// The rest is the tag.
const TAG_SHIFT: u32 = BLOCK_BITS + HOLD_BITS;
/// Holds a rank can have: one less than fits, so that no slot in use is 0.
pub(super) const MAX_HOLDS: usize = (1 << HOLD_BITS) - 2;
/// Blocks a run can have.
pub(super) const MAX_RUN: usize = 1 << BLOCK_BITS;

const WIDTH: usize = 8;

#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Bucket([u64; WIDTH]);

/// Where a name stands: a block of one of its rank's holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Spot {
    pub(super) hold: u32,
    pub(super) block: u32,
}

/// A slot of the table, valid until the next insertion or removal.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotId(u32);

/// What a search says.
#[derive(Clone, Copy, Debug)]
pub(super) enum Entry {
    Known,
    New(SlotId),
}

/// The table.
#[derive(Debug, Default)]
pub(super) struct Names {
    buckets: Vec<Bucket>,
    /// How many names passed each bucket because it was full. 255 means "255 or more" and stays until a rebuild.
    passed: Vec<u8>,
    len: usize,
    /// An engine's users choose its names within limits; they do not know this.
    key: u64,
}

// === impl Names ===

impl Names {
    pub(super) fn new() -> Self {
        Self { key: fastrand::u64(..) | 1, ..Self::default() }
    }

    pub(super) fn heap(&self) -> usize {
        self.buckets.capacity() * size_of::<Bucket>() + self.passed.capacity()
    }

    /// Looks a name up. `is(spot)`: whether the name at that spot is this one.
    #[inline]
    pub(super) fn get(&self, name: EngineHash, is: impl Fn(Spot) -> bool) -> Option<(SlotId, Spot)> {
        let (mut at, tag) = self.home(name)?;
        for _ in 0..self.buckets.len() {
            if let Some(found) = self.find_in(at, tag, &is) {
                return Some(found);
            }
            if self.passed[at] == 0 {
                return None;
            }
            at = self.after(at);
        }
        None
    }

    /// Looks a name up and, where it is new, puts it at `spot`. There must be room ([`Names::reserve`]).
    #[inline]
    pub(super) fn get_or_put(&mut self, name: EngineHash, spot: Spot, is: impl Fn(Spot) -> bool) -> Option<Entry> {
        let (home, tag) = self.home(name)?;
        if self.find_in(home, tag, &is).is_some() || (self.passed[home] != 0 && self.get(name, &is).is_some()) {
            return Some(Entry::Known);
        }
        Some(Entry::New(self.put(home, tag, spot)?))
    }

    #[inline]
    fn put(&mut self, mut at: usize, tag: u64, spot: Spot) -> Option<SlotId> {
        for _ in 0..self.buckets.len() {
            if let Some(free) = self.buckets[at].0.iter().position(|slot| *slot == 0) {
                self.buckets[at].0[free] = pack(tag, spot);
                self.len += 1;
                return Some(SlotId((at * WIDTH + free) as u32));
            }
            self.passed[at] = self.passed[at].saturating_add(1);
            at = self.after(at);
        }
        None
    }

    /// Moves the name in a slot.
    #[inline]
    pub(super) fn set(&mut self, slot: SlotId, spot: Spot) {
        let slot = &mut self.buckets[slot.0 as usize / WIDTH].0[slot.0 as usize % WIDTH];
        *slot = pack(*slot >> TAG_SHIFT, spot);
    }

    /// Removes the name in a slot.
    #[inline]
    pub(super) fn remove(&mut self, name: EngineHash, slot: SlotId) {
        let Some((mut at, _)) = self.home(name) else { return };
        let end = slot.0 as usize / WIDTH;
        self.buckets[end].0[slot.0 as usize % WIDTH] = 0;
        self.len -= 1;
        while at != end {
            if self.passed[at] < u8::MAX {
                self.passed[at] -= 1;
            }
            at = self.after(at);
        }
    }

    /// Makes room for `more` names. `name_at`: the name that stands at a spot.
    pub(super) fn reserve(&mut self, more: usize, name_at: impl Fn(Spot) -> EngineHash) {
        let need = self.len + more;
        // Seven eighths full at most: searches then stay within a line or two.
        if need * 8 > self.buckets.len() * WIDTH * 7 {
            let grown = self.buckets.len() + self.buckets.len() / 4;
            self.rebuild(grown.max((need * 8).div_ceil(WIDTH * 7) + 1), name_at);
        }
    }

    /// Gives memory back after removals, once less than a third is in use.
    pub(super) fn tidy(&mut self, name_at: impl Fn(Spot) -> EngineHash) {
        if self.buckets.len() > 4 && self.len * 3 < self.buckets.len() * WIDTH {
            self.rebuild((self.len * 3).div_ceil(WIDTH * 2), name_at);
        }
    }

    fn rebuild(&mut self, buckets: usize, name_at: impl Fn(Spot) -> EngineHash) {
        let old = std::mem::take(&mut self.buckets);
        self.buckets = vec![Bucket([0; WIDTH]); buckets];
        self.passed = vec![0; buckets];
        self.len = 0;
        for slot in old.iter().flat_map(|bucket| bucket.0).filter(|slot| *slot != 0) {
            let spot = unpack(slot);
            if let Some((home, tag)) = self.home(name_at(spot)) {
                self.put(home, tag, spot);
            }
        }
    }

    #[inline]
    fn find_in(&self, at: usize, tag: u64, is: impl Fn(Spot) -> bool) -> Option<(SlotId, Spot)> {
        let bucket = &self.buckets[at].0;
        let mut hits = 0u32;
        for (i, slot) in bucket.iter().enumerate() {
            hits |= u32::from(*slot >> TAG_SHIFT == tag) << i;
        }
        while hits != 0 {
            let i = hits.trailing_zeros() as usize;
            hits &= hits - 1;
            let slot = bucket[i];
            // A free slot looks like tag 0.
            if slot != 0 && is(unpack(slot)) {
                return Some((SlotId((at * WIDTH + i) as u32), unpack(slot)));
            }
        }
        None
    }

    /// Reads a name's bucket ahead, so that the reads of a whole run overlap.
    #[inline]
    pub(super) fn touch(&self, name: EngineHash) -> u64 {
        self.home(name).map_or(0, |(at, _)| self.buckets[at].0[0])
    }

    #[inline]
    fn home(&self, name: EngineHash) -> Option<(usize, u64)> {
        if self.buckets.is_empty() {
            return None;
        }
        let keyed = name.low() ^ name.high().rotate_left(32) ^ self.key;
        let wide = u128::from(keyed) * 0x9E37_79B9_7F4A_7C15;
        let mixed = ((wide as u64) ^ (wide >> 64) as u64).wrapping_mul(self.key);
        let at = ((u128::from(mixed) * self.buckets.len() as u128) >> 64) as usize;
        Some((at, mixed & ((1 << (64 - TAG_SHIFT)) - 1)))
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() { 0 } else { at + 1 }
    }
}

#[inline]
fn pack(tag: u64, spot: Spot) -> u64 {
    tag << TAG_SHIFT | u64::from(spot.hold + 1) << BLOCK_BITS | u64::from(spot.block)
}

#[inline]
fn unpack(slot: u64) -> Spot {
    let hold = (slot >> BLOCK_BITS) as u32 & ((1 << HOLD_BITS) - 1);
    Spot { hold: hold - 1, block: slot as u32 & (MAX_RUN as u32 - 1) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(i: usize) -> EngineHash {
        EngineHash::from_u64(i as u64)
    }

    #[test]
    fn names_come_back_from_where_they_were_put_through_growth_and_removal() {
        let mut names = Names::new();
        let spot = |i: usize| Spot { hold: (i / 1000) as u32, block: (i % 1000) as u32 };
        let name_at = |at: Spot| name(at.hold as usize * 1000 + at.block as usize);
        for i in 0..50_000 {
            names.reserve(1, name_at);
            let put = names.get_or_put(name(i), spot(i), |at| name_at(at) == name(i));
            assert!(matches!(put, Some(Entry::New(_))));
        }
        let full = names.heap();
        assert!(full < 50_000 * 16, "{full} bytes");
        for i in (0..50_000).rev() {
            let (slot, at) = names.get(name(i), |at| name_at(at) == name(i)).unwrap();
            assert_eq!(at, spot(i));
            names.remove(name(i), slot);
            names.tidy(name_at);
            assert!(names.get(name(i), |at| name_at(at) == name(i)).is_none());
        }
        assert!(names.heap() < full / 100);
    }
}
