//! From an engine's name to where its block stands: one table per rank, written and read by its one writer only.
//!
//! A slot is eight bytes: a tag of the name's hash, and the place (which of the rank's holds, which block of it).
//! The name itself is kept once, in the hold; a tag that agrees is checked against it. Slots lie in buckets of one
//! cache line. A name that finds its bucket full goes on by a stride of its own, and the buckets that it passed count
//! it, so a search knows where to stop and a removal leaves nothing behind: no tombstones, no clean-up. (Going on to
//! the next bucket instead made long crowds: at seven eighths full it doubled the time of a store again.)

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

/// A search on its way.
#[derive(Clone, Copy, Debug, Default)]
struct Probe {
    at: usize,
    tag: u64,
    stride: usize,
    step: usize,
}

/// Steps by a name's own stride, before a search goes from bucket to bucket.
const STRIDES: usize = 12;

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
        let mut probe = self.home(name)?;
        for _ in 0..self.probes() {
            if let Some(found) = self.find_in(probe.at, probe.tag, &is) {
                return Some(found);
            }
            if self.passed[probe.at] == 0 {
                return None;
            }
            probe.go_on(self.buckets.len());
        }
        None
    }

    /// Looks a name up and, where it is new, puts it at `spot`. There must be room ([`Names::reserve`]).
    #[inline]
    pub(super) fn get_or_put(&mut self, name: EngineHash, spot: Spot, is: impl Fn(Spot) -> bool) -> Option<Entry> {
        let home = self.home(name)?;
        if self.find_in(home.at, home.tag, &is).is_some()
            || (self.passed[home.at] != 0 && self.get(name, &is).is_some())
        {
            return Some(Entry::Known);
        }
        Some(Entry::New(self.put(home, spot)?))
    }

    #[inline]
    fn put(&mut self, mut probe: Probe, spot: Spot) -> Option<SlotId> {
        for _ in 0..self.probes() {
            let Probe { at, tag, .. } = probe;
            if let Some(free) = self.buckets[at].0.iter().position(|slot| *slot == 0) {
                self.buckets[at].0[free] = pack(tag, spot);
                self.len += 1;
                return Some(SlotId((at * WIDTH + free) as u32));
            }
            self.passed[at] = self.passed[at].saturating_add(1);
            probe.go_on(self.buckets.len());
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
        let Some(mut probe) = self.home(name) else { return };
        let end = slot.0 as usize / WIDTH;
        self.buckets[end].0[slot.0 as usize % WIDTH] = 0;
        self.len -= 1;
        while probe.at != end {
            if self.passed[probe.at] < u8::MAX {
                self.passed[probe.at] -= 1;
            }
            probe.go_on(self.buckets.len());
        }
    }

    /// Makes room for `more` names. `name_at`: the name that stands at a spot.
    pub(super) fn reserve(&mut self, more: usize, name_at: impl Fn(Spot) -> EngineHash) {
        let need = self.len + more;
        // Four fifths full at most: searches then stay within a line or two. (Seven eighths saved a byte and a half a
        // name, and doubled the time of a store on one large rank.)
        if need * 5 > self.buckets.len() * WIDTH * 4 {
            let grown = self.buckets.len() + self.buckets.len() / 4;
            self.rebuild(grown.max((need * 5).div_ceil(WIDTH * 4) + 1), name_at);
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
        // In two steps, so that neither the names' reads nor the buckets' wait for each other.
        let mut homes = [(Probe::default(), Spot { hold: 0, block: 0 }); 4 * WIDTH];
        for buckets in old.chunks(4) {
            let mut moving = 0;
            for slot in buckets.iter().flat_map(|bucket| bucket.0).filter(|slot| *slot != 0) {
                let spot = unpack(slot);
                if let Some(home) = self.home(name_at(spot)) {
                    prefetch(&self.buckets[home.at]);
                    homes[moving] = (home, spot);
                    moving += 1;
                }
            }
            for (home, spot) in &homes[..moving] {
                self.put(*home, *spot);
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

    /// Asks for a name's bucket ahead, so that the reads of a whole run overlap. A plain read does not do: it holds
    /// back what follows until it is there.
    #[inline]
    pub(super) fn touch(&self, name: EngineHash) {
        if let Some(home) = self.home(name) {
            prefetch(&self.buckets[home.at]);
        }
    }

    /// Where a search begins.
    #[inline]
    fn home(&self, name: EngineHash) -> Option<Probe> {
        let buckets = self.buckets.len() as u64;
        if buckets == 0 {
            return None;
        }
        let keyed = name.low() ^ name.high().rotate_left(32) ^ self.key;
        let wide = u128::from(keyed) * 0x9E37_79B9_7F4A_7C15;
        let mixed = ((wide as u64) ^ (wide >> 64) as u64).wrapping_mul(self.key);
        let at = ((u128::from(mixed) * u128::from(buckets)) >> 64) as usize;
        let stride = (((mixed & 0xFFFF_FFFF) * buckets) >> 32) as usize;
        Some(Probe { at, tag: mixed & ((1 << (64 - TAG_SHIFT)) - 1), stride: stride.max(1), step: 0 })
    }

    /// A search that takes so many steps has seen every bucket.
    #[inline]
    fn probes(&self) -> usize {
        self.buckets.len() + STRIDES
    }
}

// === impl Probe ===

impl Probe {
    /// Goes on to another bucket: by the name's own stride, and when that has not helped, one by one.
    #[inline]
    fn go_on(&mut self, buckets: usize) {
        self.at += if self.step < STRIDES { self.stride } else { 1 };
        self.step += 1;
        if self.at >= buckets {
            self.at -= buckets;
        }
    }
}

/// Asks for a cache line.
#[inline]
#[allow(unsafe_code)]
fn prefetch<T>(line: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it reads nothing, whatever the address, and this one is a reference's.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(std::ptr::from_ref(line).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
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
