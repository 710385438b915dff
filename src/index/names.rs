//! From an engine's name to where it is kept: one table per rank, written and read by its one writer only.
//!
//! A slot is four bytes: some bits of the name's hash (its tag), and the position of the name among the rank's lines.
//! The name itself is kept there once; a tag that agrees is checked against it. Slots lie in buckets of one cache
//! line, sixteen each.
//!
//! The table of a large rank is in parts, all of one size, told apart by the leading bits of the hash: a part that is
//! full is divided in two, so that it grows a part at a time, and moves every name once for each doubling.
//!
//! A name that finds its bucket full goes on to the next, and the buckets that it passed count it, so a search knows
//! where to stop and a removal leaves nothing behind: no tombstones, no clean-up. (Going on by a stride of the name's
//! own was no better at four fifths full, where few have to.)
//!
//! Tried before: slots of eight bytes with tags so long that growing reads no name. They were twice the memory, and
//! grew by a quarter at a time for that; one store in three waited for them.

use crate::hash::EngineHash;

use super::bucket::{Bucket, WIDTH, prefetch};
use super::lines::Lines;

/// Buckets of a part that is divided when it is full. Ranks hold powers of two of blocks more often than not, and
/// 8,192 names fill a part to two thirds. (At four fifths every third search went on to a second bucket, and churn took
/// a fifth more time, for one byte less a name.)
const PART: usize = 768;
/// Buckets of the smallest part.
const SMALLEST: usize = 6;
/// Parts are told apart by so many bits at most.
const MOST_DEPTH: u32 = 20;
/// Bits of a position, to begin with.
const FEW_BITS: u32 = 16;

/// Where the search for a name begins, for as long as no slot was moved ([`Names::moves`]).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Aim {
    hash: u64,
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

/// All slots whose hashes begin alike.
#[derive(Debug)]
struct Part {
    buckets: Box<[Bucket]>,
    /// How many names passed each bucket because it was full. 255 means "255 or more" and stays until a rebuild.
    passed: Box<[u8]>,
    len: usize,
    /// It is full with so many.
    most: usize,
    /// By how many bits.
    depth: u32,
}

/// A part that is new, and only filled. Its buckets fill without holes, so a number says what is free: the search for it
/// was half of the work.
struct Filling {
    part: Part,
    taken: Box<[u8]>,
}

/// The table.
#[derive(Debug)]
pub(super) struct Names {
    /// Parts by the leading bits of a hash, `1 << depth` of them; none as long as the table is empty.
    by_hash: Vec<u32>,
    depth: u32,
    parts: Vec<Part>,
    /// The bits of a slot that are the tag.
    tag: u32,
    len: usize,
    /// An engine's users choose its names within limits; they do not know this.
    key: u64,
    /// Counts the times that slots were moved by something else than their removal.
    moves: u32,
}

// === impl Names: looking up ===

impl Names {
    pub(super) fn new() -> Self {
        Self {
            by_hash: Vec::new(),
            depth: 0,
            parts: Vec::new(),
            tag: !0 << FEW_BITS,
            len: 0,
            key: fastrand::u64(..) | 1,
            moves: 0,
        }
    }

    pub(super) fn heap(&self) -> usize {
        let parts = self.parts.iter().map(|part| part.buckets.len() * (size_of::<Bucket>() + 1));
        parts.sum::<usize>() + self.parts.capacity() * size_of::<Part>() + self.by_hash.capacity() * size_of::<u32>()
    }

    /// Everything else is asked by this.
    #[inline]
    pub(super) fn aim(&self, name: EngineHash) -> Aim {
        self.aim_at(hash(self.key, name))
    }

    #[inline]
    fn aim_at(&self, hash: u64) -> Aim {
        // In two steps: a table of one part has no leading bits.
        let part = self.by_hash.get((hash >> 1 >> (63 - self.depth)) as usize).copied().unwrap_or(0);
        let home = self.parts.get(part as usize).map_or(0, |part| part.home(hash) as u32);
        Aim { hash, part, home }
    }

    /// Asks for a bucket ahead. A plain read does not do: it holds back what follows until it is there.
    #[inline]
    pub(super) fn touch(&self, aim: Aim) {
        if let Some(part) = self.parts.get(aim.part as usize) {
            // Only an address, which nothing is read from.
            prefetch(part.buckets.as_ptr().wrapping_add(aim.home as usize));
        }
    }

    /// Where a name is kept.
    #[inline]
    pub(super) fn get(&self, aim: Aim, name: EngineHash, lines: &Lines) -> Option<u32> {
        self.parts.get(aim.part as usize)?.find(aim, self.tag, name, lines)
    }

    /// Whether most of it is empty: it should be made anew.
    #[inline]
    pub(super) fn is_loose(&self) -> bool {
        let room = match self.parts.len() {
            1 => self.parts[0].most,
            parts => parts * most(PART),
        };
        self.len * 4 < room && room > most(SMALLEST)
    }
}

// === impl Names: changing ===

impl Names {
    /// Puts a new name that is kept at a position; `false` where it was known already.
    #[inline]
    pub(super) fn put(&mut self, aim: Aim, position: u32, name: EngineHash, lines: &Lines) -> bool {
        let (tag, home) = (self.tag, aim.home as usize);
        if position < !tag
            && let Some(part) = self.parts.get_mut(aim.part as usize)
            && let (Some(bucket), Some(passed)) = (part.buckets.get(home), part.passed.get(home))
            && part.len < part.most
        {
            let leading = aim.hash as u32 & tag;
            // Nearly always it is settled in the first bucket.
            let known = bucket.holds(leading, tag, name, lines).is_some()
                || (*passed > 0 && part.find(aim, tag, name, lines).is_some());
            if !known {
                part.put(home, leading | (position + 1));
                self.len += 1;
            }
            return !known;
        }
        self.put_apart(aim, position, name, lines)
    }

    #[cold]
    fn put_apart(&mut self, mut aim: Aim, position: u32, name: EngineHash, lines: &Lines) -> bool {
        if self.get(aim, name, lines).is_some() {
            return false;
        }
        self.widen(position);
        if self.parts.is_empty() {
            self.begin(SMALLEST);
            aim = self.aim_at(aim.hash);
        }
        self.put_new(aim, position, lines);
        true
    }

    /// Puts a name that is not there, if need be into a part that has to grow.
    fn put_new(&mut self, mut aim: Aim, position: u32, lines: &Lines) {
        while self.parts[aim.part as usize].is_full() {
            self.grow(aim, lines);
            aim = self.aim_at(aim.hash);
        }
        self.parts[aim.part as usize].put(aim.home as usize, (aim.hash as u32 & self.tag) | (position + 1));
        self.len += 1;
    }

    /// Takes out a name that is kept at a position; whether it was there.
    #[inline]
    pub(super) fn take(&mut self, aim: Aim, position: u32) -> bool {
        let wanted = (aim.hash as u32 & self.tag) | (position + 1);
        let Some(part) = self.parts.get_mut(aim.part as usize) else { return false };
        let Some(bucket) = part.buckets.get_mut(aim.home as usize) else { return false };
        if let Some(slot) = bucket.find(wanted) {
            bucket.0[slot] = 0;
        } else {
            let Some((at, slot)) = part.seek(aim, wanted) else { return false };
            part.buckets[at].0[slot] = 0;
            part.forget_passing(aim.home as usize, at);
        }
        part.len -= 1;
        self.len -= 1;
        true
    }

    /// Makes the table anew, for so many names.
    pub(super) fn rebuild(&mut self, count: usize, names: impl Iterator<Item = (EngineHash, u32)>, lines: &Lines) {
        *self = Self { key: self.key, moves: self.moves + 1, ..Self::new() };
        if count == 0 {
            return;
        }
        self.widen(lines.end());
        self.reserve(count, lines);
        for (name, position) in names {
            self.put_new(self.aim(name), position, lines);
        }
    }

    /// Makes room for so many names in all at once, where more are known to come: a table that grows to them moves each of
    /// them once for every doubling. What has that room stays as it is.
    pub(super) fn reserve(&mut self, count: usize, lines: &Lines) {
        let (buckets, depth) = shape(count);
        let has_room = match self.parts.first() {
            None => count == 0,
            Some(part) => self.depth > depth || (self.depth == depth && part.buckets.len() >= buckets),
        };
        if has_room {
            return;
        }
        // No old part is told apart by more bits than the new ones are, so the names of one go to parts of their own.
        let mut made: Vec<Filling> = (0..1 << depth).map(|_| Filling::of(buckets, depth)).collect();
        for part in &self.parts {
            part.each(self.key, self.tag, lines, |hash, slot| {
                if let Some(part) = made.get_mut((hash >> 1 >> (63 - depth)) as usize) {
                    part.put(hash, slot);
                }
            });
        }
        self.by_hash = (0..1 << depth).collect();
        self.parts = made.into_iter().map(|filling| filling.part).collect();
        self.depth = depth;
        self.moves += 1;
    }

    /// Makes slots wide enough for a position. Tags lose their last bits, which every slot has at the same place.
    #[inline]
    fn widen(&mut self, position: u32) {
        if position >= !self.tag {
            self.widen_apart(position);
        }
    }

    #[cold]
    fn widen_apart(&mut self, position: u32) {
        let old = self.tag;
        while position >= !self.tag {
            self.tag <<= 1;
        }
        let lost = old & !self.tag;
        for slot in self.parts.iter_mut().flat_map(|part| part.buckets.iter_mut()).flat_map(|bucket| &mut bucket.0) {
            *slot &= !lost;
        }
    }

    /// The first part.
    fn begin(&mut self, buckets: usize) {
        self.parts.push(Part::of(buckets, 0));
        self.by_hash.push(0);
        self.moves += 1;
    }

    /// Makes room in a part.
    #[cold]
    fn grow(&mut self, aim: Aim, lines: &Lines) {
        let at = aim.part as usize;
        self.moves += 1;
        let (buckets, depth) = (self.parts[at].buckets.len(), self.parts[at].depth);
        if buckets < PART || depth == MOST_DEPTH {
            let mut grown = Filling::of(buckets * 2, depth);
            self.parts[at].each(self.key, self.tag, lines, |hash, slot| grown.put(hash, slot));
            self.parts[at] = grown.part;
            return;
        }
        if depth == self.depth {
            self.by_hash = self.by_hash.iter().flat_map(|part| [*part, *part]).collect();
            self.depth += 1;
        }
        // Hashes are as good as random, so the halves are nearly even.
        let (mut lower, mut upper) = (Filling::of(PART, depth + 1), Filling::of(PART, depth + 1));
        self.parts[at].each(self.key, self.tag, lines, |hash, slot| {
            let half = if hash >> (63 - depth) & 1 == 0 { &mut lower } else { &mut upper };
            half.put(hash, slot);
        });
        self.parts[at] = lower.part;
        let new = self.parts.len() as u32;
        self.parts.push(upper.part);
        // The upper half of the places in `by_hash` that were the old part's.
        let span = 1 << (self.depth - depth - 1);
        let first = (aim.hash >> 1 >> (63 - self.depth)) as usize & !(2 * span - 1);
        self.by_hash[first + span..first + 2 * span].fill(new);
    }
}

/// Leading bits tell parts apart and find buckets, low ones are tags.
#[inline]
fn hash(key: u64, name: EngineHash) -> u64 {
    let keyed = name.low() ^ name.high().rotate_left(32) ^ key;
    let wide = u128::from(keyed) * 0x9E37_79B9_7F4A_7C15;
    let mixed = u128::from((wide as u64) ^ (wide >> 64) as u64) * u128::from(key);
    (mixed as u64) ^ (mixed >> 64) as u64
}

/// Buckets of each part, and by how many bits parts are told apart, in a table of so many names.
fn shape(count: usize) -> (usize, u32) {
    if count < most(PART) {
        let buckets = std::iter::successors(Some(SMALLEST), |buckets| Some(buckets * 2));
        return (buckets.take_while(|buckets| *buckets <= PART).find(|b| most(*b) > count).unwrap_or(PART), 0);
    }
    // Hashes are as good as random: a part has some four hundredths more than its share at most.
    let fits = |depth: &u32| count >> depth <= most(PART) - most(PART) / 24;
    (PART, (1..MOST_DEPTH).find(fits).unwrap_or(MOST_DEPTH))
}

/// How many names fill so many buckets: with 17 in 20 slots taken, searches still stay within a line or two.
const fn most(buckets: usize) -> usize {
    buckets * WIDTH * 17 / 20
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
        if self.moves != names.moves {
            aim = names.aim_at(aim.hash);
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
    fn of(buckets: usize, depth: u32) -> Self {
        let (passed, most) = (vec![0; buckets].into(), most(buckets));
        Self { buckets: vec![Bucket([0; WIDTH]); buckets].into(), passed, len: 0, most, depth }
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.len >= self.most
    }

    /// Where the search for a hash begins.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        (((hash << self.depth >> 32) * self.buckets.len() as u64) >> 32) as usize
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        if at + 1 == self.buckets.len() { 0 } else { at + 1 }
    }

    /// The bucket that a search goes on to. Of a few buckets each may have been passed, by names that stand in the
    /// others.
    #[inline]
    fn next(&self, home: usize, at: usize) -> Option<usize> {
        let next = self.after(at);
        (self.passed[at] > 0 && next != home).then_some(next)
    }

    /// The position of a name.
    #[inline]
    fn find(&self, aim: Aim, tag: u32, name: EngineHash, lines: &Lines) -> Option<u32> {
        let mut at = aim.home as usize;
        loop {
            if let Some(position) = self.buckets[at].holds(aim.hash as u32 & tag, tag, name, lines) {
                return Some(position);
            }
            at = self.next(aim.home as usize, at)?;
        }
    }

    /// Where exactly this slot is.
    fn seek(&self, aim: Aim, slot: u32) -> Option<(usize, usize)> {
        let mut at = aim.home as usize;
        loop {
            if let Some(found) = self.buckets[at].find(slot) {
                return Some((at, found));
            }
            at = self.next(aim.home as usize, at)?;
        }
    }

    /// Puts a slot where there is room; there is some.
    #[inline]
    fn put(&mut self, home: usize, slot: u32) {
        let mut at = home;
        loop {
            if let Some(free) = self.buckets[at].free() {
                self.buckets[at].0[free] = slot;
                self.len += 1;
                return;
            }
            self.passed[at] = self.passed[at].saturating_add(1);
            at = self.after(at);
        }
    }

    /// A name that stood in one bucket and belonged to another is gone.
    fn forget_passing(&mut self, home: usize, end: usize) {
        let mut at = home;
        while at != end {
            if self.passed[at] < u8::MAX {
                self.passed[at] -= 1;
            }
            at = self.after(at);
        }
    }

    /// Every slot with the hash of its name. The names lie anywhere, so they are asked for some slots ahead.
    fn each(&self, key: u64, tag: u32, lines: &Lines, mut each: impl FnMut(u64, u32)) {
        const AHEAD: usize = 24;
        // Whether a slot is free, no processor can foresee: without a branch.
        let (mut slots, mut taken) = (vec![0; self.buckets.len() * WIDTH], 0);
        for slot in self.buckets.iter().flat_map(|bucket| bucket.0) {
            slots[taken] = slot;
            taken += usize::from(slot != 0);
        }
        slots.truncate(taken);
        let position = |slot: u32| (slot & !tag) - 1;
        for slot in slots.iter().take(AHEAD) {
            lines.touch(position(*slot));
        }
        for (i, slot) in slots.iter().enumerate() {
            if let Some(ahead) = slots.get(i + AHEAD) {
                lines.touch(position(*ahead));
            }
            each(hash(key, lines.name(position(*slot))), *slot);
        }
    }
}

// === impl Filling ===

impl Filling {
    fn of(buckets: usize, depth: u32) -> Self {
        Self { part: Part::of(buckets, depth), taken: vec![0; buckets].into() }
    }

    /// Puts a slot where there is room; there is some.
    #[inline]
    fn put(&mut self, hash: u64, slot: u32) {
        let part = &mut self.part;
        let mut at = part.home(hash);
        while self.taken[at] as usize == WIDTH {
            part.passed[at] = part.passed[at].saturating_add(1);
            at = part.after(at);
        }
        part.buckets[at].0[self.taken[at] as usize % WIDTH] = slot;
        self.taken[at] += 1;
        part.len += 1;
    }
}

// === impl Bucket ===

impl Bucket {
    /// The position of a name that is here.
    #[inline]
    fn holds(&self, slot: u32, tag: u32, name: EngineHash, lines: &Lines) -> Option<u32> {
        let mut like = self.like(slot, tag);
        while like != 0 {
            let slot = self.0[like.trailing_zeros() as usize % WIDTH];
            let position = (slot & !tag).wrapping_sub(1);
            if slot != 0 && lines.is(position, name) {
                return Some(position);
            }
            like &= like - 1;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(i: usize) -> EngineHash {
        EngineHash::from_u64(i as u64)
    }

    /// Lines that keep names `[0, count)` in order, and a table of them.
    fn grown(count: usize) -> (Names, Lines) {
        let (mut names, mut lines) = (Names::new(), Lines::default());
        for i in 0..count {
            if i % 8 == 0 {
                assert_eq!(lines.take(0, i as u32) as usize, i / 8);
            }
            lines.set(i as u32, name(i));
            assert!(names.put(names.aim(name(i)), i as u32, name(i), &lines));
        }
        (names, lines)
    }

    #[test]
    fn names_come_back_from_where_they_were_put_through_growth_and_removal() {
        const COUNT: usize = 100_000;
        let (mut names, lines) = grown(COUNT);
        let full = names.heap();
        assert!(full < COUNT * 11, "{full} bytes");
        assert_eq!(names.get(names.aim(name(COUNT)), name(COUNT), &lines), None);
        for i in (0..COUNT).rev() {
            let aim = names.aim(name(i));
            assert_eq!(names.get(aim, name(i), &lines), Some(i as u32));
            assert!(!names.put(aim, 7, name(i), &lines), "it is known");
            assert!(names.take(aim, i as u32));
            assert!(!names.take(aim, i as u32));
            assert_eq!(names.get(aim, name(i), &lines), None);
        }
        assert!(names.is_loose());
        names.rebuild(0, std::iter::empty(), &lines);
        assert_eq!(names.heap(), 0);
    }

    #[test]
    fn a_table_that_is_made_anew_knows_what_is_left_and_is_as_large_as_it_need_be() {
        let (mut names, lines) = grown(70_000);
        let before = names.heap();
        for i in (0..70_000).filter(|i| i % 9 != 0) {
            assert!(names.take(names.aim(name(i)), i as u32));
        }
        assert!(names.is_loose());
        let left = (0..70_000).filter(|i| i % 9 == 0).map(|i| (name(i), i as u32));
        names.rebuild(left.clone().count(), left, &lines);
        assert!(!names.is_loose());
        assert!(names.heap() * 4 < before, "{} of {before} bytes are left", names.heap());
        for i in 0..70_000 {
            let known = names.get(names.aim(name(i)), name(i), &lines);
            assert_eq!(known, (i % 9 == 0).then_some(i as u32));
        }
    }

    #[test]
    fn room_that_was_made_for_names_is_as_large_as_they_need_and_keeps_those_that_were_there() {
        for count in [0, 1, 50, 5_000, 10_443, 10_444, 40_000, 300_000] {
            for before in [0, 3, 700, 9_000, 30_000].into_iter().filter(|before| *before <= count) {
                let (mut names, mut lines) = grown(before);
                names.reserve(count, &lines);
                let (reserved, moves) = (names.heap(), names.moves);
                names.reserve(count, &lines);
                assert_eq!(names.moves, moves, "it has that room already");
                for i in before..count {
                    if i % 8 == 0 {
                        lines.take(0, i as u32);
                    }
                    lines.set(i as u32, name(i));
                    assert!(names.put(names.aim(name(i)), i as u32, name(i), &lines));
                }
                assert_eq!((names.heap(), names.moves), (reserved, moves), "{count} names after {before}: no growth");
                for i in 0..count {
                    assert_eq!(names.get(names.aim(name(i)), name(i), &lines), Some(i as u32));
                }
                let (grown, _) = grown(count);
                assert!(reserved <= 2 * grown.heap(), "{reserved} bytes for {count} names, {} else", grown.heap());
            }
        }
    }

    #[test]
    fn a_search_ends_where_every_bucket_was_passed() {
        let (mut names, mut lines) = grown(50);
        let part = &mut names.parts[0];
        assert!(part.buckets.len() > 1);
        part.passed.fill(1);
        assert_eq!(names.get(names.aim(name(99)), name(99), &lines), None);
        let line = lines.take(0, 56);
        lines.set(line * 8, name(99));
        assert!(names.put(names.aim(name(99)), line * 8, name(99), &lines));
        assert_eq!(names.get(names.aim(name(99)), name(99), &lines), Some(line * 8));
    }

    #[test]
    fn aims_taken_ahead_are_right_when_the_table_grows_under_them() {
        let (mut names, mut lines) = (Names::new(), Lines::default());
        let run: Vec<EngineHash> = (0..30_000).map(name).collect();
        for (i, name) in run.iter().enumerate() {
            if i % 8 == 0 {
                lines.take(0, i as u32);
            }
            lines.set(i as u32, *name);
        }
        let mut ahead = Ahead::new(&names, run.iter().copied());
        for (i, name) in run.iter().enumerate() {
            let aim = ahead.aim(&names, i, |i| run.get(i).copied());
            assert!(names.put(aim, i as u32, *name, &lines));
        }
        for (i, name) in run.iter().enumerate() {
            assert_eq!(names.get(names.aim(*name), *name, &lines), Some(i as u32));
        }
    }
}
