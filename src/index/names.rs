//! From an engine's name to where its block stands: one table per rank, written and read by its one writer only.
//!
//! A slot is eight bytes: the leading bits of the name's hash (its tag), and the place (which of the rank's holds,
//! which block of it). The name itself is kept once, in the hold; a tag that agrees is checked against it. Slots lie
//! in buckets of one cache line.
//!
//! A tag says by itself where its slot belongs: buckets are in the order of tags, a tag's bucket is the tag times the
//! number of buckets. So a table grows, shrinks and divides without reading one name, from its beginning to its end,
//! and the table of a large rank is in parts, so that it does so a part at a time, inside the caches.
//!
//! A name that finds its bucket full goes on to the next, and the buckets that it passed count it, so a search knows
//! where to stop and a removal leaves nothing behind: no tombstones, no clean-up. (Going on by a stride of the name's
//! own was no better at four fifths full, where few have to, and lost the order.)

use crate::hash::EngineHash;

use super::bucket::{Bucket, WIDTH, prefetch};

/// Bits of a slot that tell which block of a hold: a run has at most this many.
const BLOCK_BITS: u32 = 16;
/// Bits that tell which hold, of a table whose rank has few. The more holds there are, the shorter the tags.
const FEW_HOLD_BITS: u32 = 12;
const HOLD_BITS_MORE: u32 = 4;
/// Bits that tell which hold at most.
const MOST_HOLD_BITS: u32 = 24;
/// Holds whose names can be in a table: two less than fit. No slot in use is 0, and one value is [`PENDING`]'s.
pub(super) const MAX_HOLDS: usize = (1 << MOST_HOLD_BITS) - 2;
/// Blocks a run can have.
pub(super) const MAX_RUN: usize = 1 << BLOCK_BITS;

/// In place of a hold: the name's place is not known yet. Its block is a number of the caller's.
pub(super) const PENDING: u32 = u32::MAX;

/// Buckets of a part, before it is divided: 32 KiB.
const PART: usize = 512;

/// Where a name stands: a block of one of its rank's holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Spot {
    pub(super) hold: u32,
    pub(super) block: u32,
}

/// Where the search for a name begins, for as long as no slot was moved ([`Names::moves`]).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Aim {
    tag: u64,
    part: u32,
    home: u32,
}

/// The aims of a run of names, each taken some names ahead of its use, so that the reads of their buckets overlap.
#[derive(Debug)]
pub(super) struct Ahead {
    aims: [Aim; RING],
    moves: u32,
}

/// How many names ahead.
const AHEAD: usize = 12;
const RING: usize = 16;

/// A slot of the table, valid until the next insertion or removal.
#[derive(Clone, Copy, Debug)]
pub(super) struct SlotId {
    part: u32,
    slot: u32,
}

/// All slots whose tags begin alike.
#[derive(Debug, Default)]
struct Part {
    buckets: Vec<Bucket>,
    /// How many names passed each bucket because it was full. 255 means "255 or more" and stays until a rebuild.
    passed: Vec<u8>,
    len: usize,
    /// It is full with so many.
    most: usize,
    /// With fewer it is too large.
    least: usize,
    /// By how many bits.
    depth: u32,
}

/// How a slot is put together.
#[derive(Clone, Copy, Debug)]
struct Layout {
    hold_bits: u32,
    /// The bits of the tag.
    tag: u64,
}

/// The table.
#[derive(Debug)]
pub(super) struct Names {
    /// Parts by the leading bits of a tag, `1 << depth` of them; none as long as the table is empty.
    by_tag: Vec<u32>,
    depth: u32,
    parts: Vec<Part>,
    layout: Layout,
    len: usize,
    /// An engine's users choose its names within limits; they do not know this.
    key: u64,
    /// Counts the times that slots were moved by something else than their removal.
    moves: u32,
    /// Some part has become too large for what is in it.
    has_loose: bool,
}

// === impl Names: looking up ===

impl Names {
    pub(super) fn new() -> Self {
        Self {
            by_tag: Vec::new(),
            depth: 0,
            parts: Vec::new(),
            layout: Layout::new(FEW_HOLD_BITS),
            len: 0,
            key: fastrand::u64(..) | 1,
            moves: 0,
            has_loose: false,
        }
    }

    pub(super) fn heap(&self) -> usize {
        let parts =
            self.parts.iter().map(|part| part.buckets.capacity() * size_of::<Bucket>() + part.passed.capacity());
        parts.sum::<usize>() + self.parts.capacity() * size_of::<Part>() + self.by_tag.capacity() * size_of::<u32>()
    }

    /// Changes whenever slots may have moved, so that no [`Aim`] and no [`SlotId`] from before is valid.
    #[inline]
    pub(super) fn moves(&self) -> u32 {
        self.moves
    }

    /// Everything else is asked by this.
    #[inline]
    pub(super) fn aim(&self, name: EngineHash) -> Aim {
        let keyed = name.low() ^ name.high().rotate_left(32) ^ self.key;
        let wide = u128::from(keyed) * 0x9E37_79B9_7F4A_7C15;
        self.aim_at(((wide as u64) ^ (wide >> 64) as u64).wrapping_mul(self.key))
    }

    /// The aim of a hash, or of a slot: its tag leads it.
    #[inline]
    fn aim_at(&self, hash: u64) -> Aim {
        let tag = self.layout.tag(hash);
        // In two steps: a table of one part has no leading bits.
        let part = self.by_tag.get((hash >> 1 >> (63 - self.depth)) as usize).copied().unwrap_or(0);
        let home = self.parts.get(part as usize).map_or(0, |part| part.home(tag) as u32);
        Aim { tag, part, home }
    }

    /// Asks for a bucket ahead. A plain read does not do: it holds back what follows until it is there.
    #[inline]
    pub(super) fn touch(&self, aim: Aim) {
        if let Some(part) = self.parts.get(aim.part as usize) {
            // Only an address, which nothing is read from.
            prefetch(part.buckets.as_ptr().wrapping_add(aim.home as usize));
        }
    }

    /// Where a name stands. `is(spot)`: whether the name at that spot is this one.
    #[inline]
    pub(super) fn get(&self, aim: Aim, is: impl Fn(Spot) -> bool) -> Option<Spot> {
        let (part, layout) = (self.parts.get(aim.part as usize)?, self.layout);
        let slot = part.find(aim, layout, |slot| layout.tag(slot ^ aim.tag) == 0 && is(layout.spot(slot)))?;
        Some(layout.spot(part.slot(slot)))
    }

    /// The slot of a name that stands at a spot.
    #[inline]
    pub(super) fn slot(&self, aim: Aim, spot: Spot) -> Option<SlotId> {
        let wanted = aim.tag | self.layout.place(spot);
        let slot = self.parts.get(aim.part as usize)?.find(aim, self.layout, |slot| slot == wanted)?;
        Some(SlotId { part: aim.part, slot: slot as u32 })
    }
}

// === impl Names: changing ===

impl Names {
    /// Puts a new name at a spot; `None` where it was known already.
    #[inline]
    pub(super) fn put(&mut self, mut aim: Aim, spot: Spot, is: impl Fn(Spot) -> bool) -> Option<SlotId> {
        let layout = self.layout;
        let slot = aim.tag | layout.place(spot);
        let is = |slot| layout.tag(slot ^ aim.tag) == 0 && is(layout.spot(slot));
        if let Some(part) = self.parts.get_mut(aim.part as usize)
            && let Some(bucket) = part.buckets.get_mut(aim.home as usize)
            && let Some(passed) = part.passed.get(aim.home as usize)
        {
            // Nearly always it is settled in the first bucket.
            if bucket.holds(aim.tag, layout.tag, is).is_some() || (*passed > 0 && part.find(aim, layout, is).is_some())
            {
                return None;
            }
            if part.len < part.most
                && let Some(bucket) = part.buckets.get_mut(aim.home as usize)
                && let Some(free) = bucket.free()
            {
                bucket.0[free % WIDTH] = slot;
                part.len += 1;
                self.len += 1;
                return Some(SlotId { part: aim.part, slot: aim.home * WIDTH as u32 + free as u32 });
            }
        } else {
            self.begin();
        }
        if self.parts[aim.part as usize].is_full() {
            aim = self.grow(aim);
        }
        let slot = self.parts[aim.part as usize].put(aim, slot);
        self.len += 1;
        Some(SlotId { part: aim.part, slot: slot as u32 })
    }

    /// Tells the names in slots where they stand: in the blocks of a hold from `block` on.
    #[inline]
    pub(super) fn set(&mut self, slots: &[SlotId], hold: u32, block: u32) {
        let layout = self.layout;
        for (SlotId { part, slot }, place) in slots.iter().zip(layout.place(Spot { hold, block })..) {
            let bucket =
                self.parts.get_mut(*part as usize).and_then(|part| part.buckets.get_mut(*slot as usize / WIDTH));
            if let Some(bucket) = bucket {
                let slot = &mut bucket.0[*slot as usize % WIDTH];
                *slot = layout.tag(*slot) | place;
            }
        }
    }

    /// Takes out a name that stands at a spot; whether it was there.
    #[inline]
    pub(super) fn take(&mut self, aim: Aim, spot: Spot) -> bool {
        let wanted = aim.tag | self.layout.place(spot);
        let Some(part) = self.parts.get_mut(aim.part as usize) else { return false };
        let Some(bucket) = part.buckets.get_mut(aim.home as usize) else { return false };
        if let Some(slot) = bucket.holds(aim.tag, self.layout.tag, |slot| slot == wanted) {
            bucket.0[slot % WIDTH] = 0;
            part.len -= 1;
        } else {
            let Some(slot) = part.find(aim, self.layout, |slot| slot == wanted) else { return false };
            part.take(aim, slot);
        }
        self.has_loose |= part.is_loose();
        self.len -= 1;
        true
    }

    /// Makes slots wide enough for a hold of this number.
    #[inline]
    pub(super) fn widen(&mut self, hold: u32) {
        if !self.layout.fits(hold) {
            self.widen_apart(hold);
        }
    }

    #[cold]
    fn widen_apart(&mut self, hold: u32) {
        let old = self.layout;
        while !self.layout.fits(hold) && self.layout.hold_bits < MOST_HOLD_BITS {
            self.layout = Layout::new(self.layout.hold_bits + HOLD_BITS_MORE);
        }
        let new = self.layout;
        for part in &mut self.parts {
            part.rebuild(part.buckets.len(), new, |slot| new.tag(slot) | new.place(old.spot(slot)));
        }
        self.moves += 1;
    }

    /// Gives memory back after removals, where less than a third of a part is in use.
    #[inline]
    pub(super) fn tidy(&mut self) {
        if self.has_loose || self.len == 0 {
            self.tidy_apart();
        }
    }

    #[cold]
    fn tidy_apart(&mut self) {
        let layout = self.layout;
        self.has_loose = false;
        if self.len == 0 {
            if !self.parts.is_empty() {
                *self = Self { moves: self.moves + 1, key: self.key, ..Self::new() };
            }
            return;
        }
        // All parts together would be a small part of one.
        if self.parts.len() > 1 && self.len < self.parts.len() * PART / 2 {
            let old = std::mem::take(&mut self.parts);
            self.by_tag.clear();
            self.depth = 0;
            self.begin();
            for slot in old.iter().flat_map(|part| part.all()) {
                let mut aim = self.aim_at(slot);
                if self.parts[aim.part as usize].is_full() {
                    aim = self.grow(aim);
                }
                self.parts[aim.part as usize].put(aim, slot);
            }
            self.moves += 1;
        }
        for part in self.parts.iter_mut().filter(|part| part.is_loose()) {
            part.rebuild((part.len * 3).div_ceil(WIDTH * 2), layout, |slot| slot);
            self.moves += 1;
        }
    }

    /// The first part.
    #[cold]
    fn begin(&mut self) {
        self.parts.push(Part::of(1, 0));
        self.by_tag.push(0);
    }

    /// Makes room in a part; the aim as it is then.
    #[cold]
    fn grow(&mut self, aim: Aim) -> Aim {
        let (layout, at) = (self.layout, aim.part as usize);
        self.moves += 1;
        let grown = self.parts[at].buckets.len() * 5 / 4 + 1;
        if grown <= PART || self.parts[at].depth >= layout.most_depth() {
            self.parts[at].rebuild(grown, layout, |slot| slot);
            return self.aim_at(aim.tag);
        }
        if self.parts[at].depth == self.depth {
            self.by_tag = self.by_tag.iter().flat_map(|part| [*part, *part]).collect();
            self.depth += 1;
        }
        let other = self.parts[at].divide(layout);
        let (new, depth) = (self.parts.len() as u32, other.depth);
        self.parts.push(other);
        // Of the entries that told the part, the second half tells the other one.
        let span = 1 << (self.depth - depth);
        let first = (aim.tag >> 1 >> (63 - self.depth)) as usize & !(2 * span - 1);
        self.by_tag[first + span..first + 2 * span].fill(new);
        self.aim_at(aim.tag)
    }
}

// === impl Ahead ===

impl Ahead {
    /// Aims at the first of a run of names.
    #[inline]
    pub(super) fn new(names: &Names, run: impl Iterator<Item = EngineHash>) -> Self {
        let mut aims = [Aim::default(); RING];
        for (to, name) in aims.iter_mut().zip(run.take(AHEAD)) {
            *to = names.aim(name);
            names.touch(*to);
        }
        Self { aims, moves: names.moves }
    }

    /// The aim of name `i` of the run. `name(i)`: that name, if there are so many.
    #[inline]
    pub(super) fn aim(&mut self, names: &Names, i: usize, name: impl Fn(usize) -> Option<EngineHash>) -> Aim {
        let mut aim = self.aims[i % RING];
        if self.moves != names.moves
            && let Some(name) = name(i)
        {
            aim = names.aim(name);
        }
        if let Some(next) = name(i + AHEAD) {
            let next = names.aim(next);
            names.touch(next);
            self.aims[(i + AHEAD) % RING] = next;
        }
        aim
    }
}

// === impl Part ===

impl Part {
    #[inline]
    fn is_full(&self) -> bool {
        self.len >= self.most
    }

    #[inline]
    fn is_loose(&self) -> bool {
        self.len < self.least
    }

    /// Where the search for a tag begins.
    #[inline]
    fn home(&self, tag: u64) -> usize {
        ((u128::from(tag << self.depth) * self.buckets.len() as u128) >> 64) as usize
    }

    #[inline]
    fn slot(&self, slot: usize) -> u64 {
        self.buckets[slot / WIDTH].0[slot % WIDTH]
    }

    fn all(&self) -> impl Iterator<Item = u64> {
        self.buckets.iter().flat_map(|bucket| bucket.0).filter(|slot| *slot != 0)
    }

    /// The slot that is the one. It is asked of those only whose tags are nearly the same.
    #[inline]
    fn find(&self, aim: Aim, layout: Layout, is: impl Fn(u64) -> bool) -> Option<usize> {
        let mut at = aim.home as usize;
        loop {
            if let Some(slot) = self.buckets[at].holds(aim.tag, layout.tag, &is) {
                return Some(at * WIDTH + slot);
            }
            if self.passed[at] == 0 {
                return None;
            }
            at = self.after(at);
            // Of a few buckets each may have been passed, by names that stand in the others.
            if at == aim.home as usize {
                return None;
            }
        }
    }

    /// Puts a slot where there is room; there is some.
    #[inline]
    fn put(&mut self, aim: Aim, slot: u64) -> usize {
        let mut at = aim.home as usize;
        loop {
            if let Some(free) = self.buckets[at].free() {
                self.buckets[at].0[free] = slot;
                self.len += 1;
                return at * WIDTH + free;
            }
            self.passed[at] = self.passed[at].saturating_add(1);
            at = self.after(at);
        }
    }

    #[inline]
    fn take(&mut self, aim: Aim, slot: usize) {
        let end = slot / WIDTH;
        self.buckets[end].0[slot % WIDTH] = 0;
        self.len -= 1;
        let mut at = aim.home as usize;
        while at != end {
            if self.passed[at] < u8::MAX {
                self.passed[at] -= 1;
            }
            at = self.after(at);
        }
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() { 0 } else { at + 1 }
    }

    fn of(buckets: usize, depth: u32) -> Self {
        let buckets = buckets.max(1);
        // Four fifths full at most: searches then stay within a line or two. (Seven eighths saved a byte and a half a
        // name, and doubled the time of a store on one large rank.)
        let most = (buckets * WIDTH * 4).div_ceil(5);
        let least = if buckets > 4 { (buckets * WIDTH).div_ceil(3) } else { 0 };
        Self { buckets: vec![Bucket([0; WIDTH]); buckets], passed: vec![0; buckets], len: 0, most, least, depth }
    }

    /// Moves everything into so many buckets.
    fn rebuild(&mut self, buckets: usize, layout: Layout, anew: impl Fn(u64) -> u64) {
        let old = std::mem::replace(self, Self::of(buckets, self.depth));
        self.take_in(&old, layout, |_| true, anew);
    }

    /// Moves those whose next bit is set into another part.
    fn divide(&mut self, layout: Layout) -> Self {
        let (buckets, bit) = (self.buckets.len() * 5 / 8 + 1, 63 - self.depth);
        let old = std::mem::replace(self, Self::of(1, self.depth + 1));
        let is_upper = |slot: u64| slot >> bit & 1 == 1;
        let upper = old.all().filter(|slot| is_upper(*slot)).count();
        // Hashes are as good as random, so the halves are nearly even.
        let enough = |slots: usize| buckets.max(slots * 5 / (WIDTH * 4) + 1);
        *self = Self::of(enough(old.len - upper), old.depth + 1);
        let mut other = Self::of(enough(upper), old.depth + 1);
        self.take_in(&old, layout, |slot| !is_upper(slot), |slot| slot);
        other.take_in(&old, layout, is_upper, |slot| slot);
        other
    }

    /// Fills a part that is empty, for which there is room, with those of another that are `wanted`.
    #[inline]
    fn take_in(&mut self, old: &Self, layout: Layout, wanted: impl Fn(u64) -> bool, anew: impl Fn(u64) -> u64) {
        // Buckets fill without holes, so a number says what is free: the search for it was half of the work.
        let mut taken = vec![0u8; self.buckets.len()];
        for bucket in &old.buckets {
            for slot in bucket.0 {
                if slot == 0 || !wanted(slot) {
                    continue;
                }
                let slot = anew(slot);
                let mut at = self.home(layout.tag(slot));
                while taken[at] as usize == WIDTH {
                    self.passed[at] = self.passed[at].saturating_add(1);
                    at = self.after(at);
                }
                self.buckets[at].0[taken[at] as usize % WIDTH] = slot;
                taken[at] += 1;
                self.len += 1;
            }
        }
    }
}

// === impl Layout ===

impl Layout {
    const fn new(hold_bits: u32) -> Self {
        Self { hold_bits, tag: !0 << (hold_bits + BLOCK_BITS) }
    }

    /// The tag of a hash or of a slot.
    #[inline]
    fn tag(self, bits: u64) -> u64 {
        bits & self.tag
    }

    #[inline]
    fn fits(self, hold: u32) -> bool {
        hold < (1 << self.hold_bits) - 2
    }

    /// Parts of a table are told apart by so many bits at most: the others tell buckets and names apart.
    const fn most_depth(self) -> u32 {
        64 - self.hold_bits - BLOCK_BITS - 11
    }

    /// What of a slot is not its tag.
    #[inline]
    fn place(self, spot: Spot) -> u64 {
        let hold = if spot.hold == PENDING { (1 << self.hold_bits) - 1 } else { u64::from(spot.hold) + 1 };
        hold << BLOCK_BITS | u64::from(spot.block)
    }

    #[inline]
    fn spot(self, slot: u64) -> Spot {
        let hold = (slot & !self.tag) >> BLOCK_BITS;
        let hold = if hold == (1 << self.hold_bits) - 1 { PENDING } else { (hold as u32).wrapping_sub(1) };
        Spot { hold, block: slot as u32 & (MAX_RUN as u32 - 1) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(i: usize) -> EngineHash {
        EngineHash::from_u64(i as u64)
    }

    fn grown(count: usize, spot: impl Fn(usize) -> Spot, name_at: impl Fn(Spot) -> EngineHash) -> Names {
        let mut names = Names::new();
        for i in 0..count {
            names.widen(spot(i).hold);
            let aim = names.aim(name(i));
            assert!(names.put(aim, spot(i), |at| name_at(at) == name(i)).is_some());
        }
        names
    }

    #[test]
    fn names_come_back_from_where_they_were_put_through_growth_and_removal() {
        let spot = |i: usize| Spot { hold: (i / 1000) as u32, block: (i % 1000) as u32 };
        let name_at = |at: Spot| name(at.hold as usize * 1000 + at.block as usize);
        let mut names = grown(50_000, spot, name_at);
        let full = names.heap();
        assert!(full < 50_000 * 14, "{full} bytes");
        for i in (0..50_000).rev() {
            let aim = names.aim(name(i));
            assert_eq!(names.get(aim, |at| name_at(at) == name(i)), Some(spot(i)));
            assert!(names.take(aim, spot(i)));
            assert!(!names.take(aim, spot(i)));
            names.tidy();
            assert!(names.get(names.aim(name(i)), |at| name_at(at) == name(i)).is_none());
        }
        assert_eq!(names.heap(), 0);
    }

    #[test]
    fn a_table_takes_more_holds_than_its_slots_were_made_for() {
        let spot = |i: usize| Spot { hold: i as u32, block: 7 };
        let name_at = |at: Spot| name(at.hold as usize);
        let mut names = grown(70_000, spot, name_at);
        for i in 0..70_000 {
            let aim = names.aim(name(i));
            assert_eq!(names.get(aim, |at| name_at(at) == name(i)), Some(spot(i)));
        }
        // Two thirds of it go, and what is left is where it was.
        for i in (0..70_000).filter(|i| i % 3 != 0) {
            let aim = names.aim(name(i));
            assert!(names.take(aim, spot(i)));
        }
        let before = names.heap();
        names.tidy();
        assert!(names.heap() < before, "{} of {before} bytes are left", names.heap());
        for i in 0..70_000 {
            let aim = names.aim(name(i));
            assert_eq!(names.get(aim, |at| name_at(at) == name(i)).is_some(), i % 3 == 0);
        }
    }

    #[test]
    fn a_search_ends_where_every_bucket_was_passed() {
        let spot = |i: usize| Spot { hold: 1, block: i as u32 };
        let mut names = grown(12, spot, |at| name(at.block as usize));
        let part = &mut names.parts[0];
        assert!(part.buckets.len() > 1);
        part.passed.fill(1);
        assert_eq!(names.get(names.aim(name(99)), |_| false), None);
        let aim = names.aim(name(99));
        assert!(names.put(aim, spot(99), |_| false).is_some());
        assert_eq!(names.get(aim, |at| at == spot(99)), Some(spot(99)));
    }

    #[test]
    fn a_name_that_is_known_is_not_put_again_even_while_its_place_is_pending() {
        let mut names = Names::new();
        let aim = names.aim(name(1));
        let pending = Spot { hold: PENDING, block: 3 };
        let slot = names.put(aim, pending, |_| true).expect("new");
        assert!(names.put(aim, pending, |at| at == pending).is_none());
        let spot = Spot { hold: 9, block: 8 };
        names.set(&[slot], spot.hold, spot.block);
        assert_eq!(names.get(aim, |at| at == spot), Some(spot));
    }
}
