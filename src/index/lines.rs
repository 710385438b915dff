//! The names of a rank in the order of its holds: lines of eight, each a cache line, each of one hold.
//!
//! A name has a position: which line, which of the eight. Positions stay where they are for as long as the line
//! belongs to its hold, so the table of names needs nothing but them, and nothing is copied while a hold grows.

use crate::hash::EngineHash;

use super::bucket::prefetch;
use super::door::Block;

/// Names of a line.
pub(super) const WIDTH: usize = 8;

/// Lines of a segment: 8 KiB, and their heads. The last one is in part empty.
const SEGMENT: usize = 128;

/// Positions there can be. The table packs one into a slot beside at least six bits of a name's hash.
pub(super) const MAX_POSITIONS: usize = 1 << 26;

/// Low halves of names.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line([u64; WIDTH]);

/// What a line belongs to.
#[derive(Clone, Copy, Debug)]
struct Head {
    hold: u32,
    /// The block of its first name, a multiple of eight.
    first: u32,
}

#[derive(Debug, Default)]
struct Segment {
    lines: Vec<Line>,
    heads: Vec<Head>,
    /// The high halves, where a name of the segment has one.
    highs: Option<Box<[Line]>>,
}

/// All lines of a rank.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// All but a first one that is the only one are of full size.
    segments: Vec<Segment>,
    /// Lines that were given out at least once.
    len: usize,
    /// Of these, lines that are free. (A list of them by their heads waited for each head.)
    free: Vec<u32>,
}

// === impl Lines ===

impl Lines {
    /// Whether so many names more fit, in as many lines as they may need at worst: one each.
    #[inline]
    pub(super) fn has_room(&self, names: usize) -> bool {
        (self.used() + names + 4) * WIDTH < MAX_POSITIONS
    }

    /// Positions are below this.
    #[inline]
    pub(super) fn end(&self) -> u32 {
        (self.len * WIDTH) as u32
    }

    /// Whether so much of it is free that it should be put together again.
    #[inline]
    pub(super) fn is_loose(&self) -> bool {
        self.len > 4 * SEGMENT && self.used() * 3 < self.len
    }

    #[inline]
    fn used(&self) -> usize {
        self.len - self.free.len()
    }

    /// A line for a hold's names from block `first` on.
    #[inline]
    pub(super) fn take(&mut self, hold: u32, first: u32) -> u32 {
        let Some(line) = self.free.pop() else { return self.append(Head { hold, first }) };
        self.touch(line * WIDTH as u32);
        self.assign(line, hold, first);
        line
    }

    fn append(&mut self, head: Head) -> u32 {
        let line = self.len as u32;
        if self.len.is_multiple_of(SEGMENT) {
            let mut segment = Segment::default();
            if self.len > 0 {
                segment.lines.reserve_exact(SEGMENT);
                segment.heads.reserve_exact(SEGMENT);
            }
            self.segments.push(segment);
        }
        if let Some(segment) = self.segments.last_mut() {
            if segment.lines.len() == segment.lines.capacity() {
                // The first segment grows; it is all that a small rank has.
                let more = (segment.lines.len() / 2).max(4).min(SEGMENT - segment.lines.len());
                segment.lines.reserve_exact(more);
                segment.heads.reserve_exact(more);
                if let Some(highs) = &mut segment.highs {
                    let mut wider = std::mem::take(highs).into_vec();
                    wider.resize(segment.lines.len() + more, Line::default());
                    *highs = wider.into_boxed_slice();
                }
            }
            segment.lines.push(Line::default());
            segment.heads.push(head);
        }
        self.len += 1;
        line
    }

    /// Says which hold a line belongs to that was taken before that was known.
    #[inline]
    pub(super) fn assign(&mut self, line: u32, hold: u32, first: u32) {
        if let Some(head) = self.head_mut(line) {
            *head = Head { hold, first };
        }
    }

    #[inline]
    pub(super) fn give_back(&mut self, line: u32) {
        super::forest::room(&mut self.free, 1);
        self.free.push(line);
        if self.free.len() == self.len {
            *self = Self::default();
        }
    }

    #[inline]
    fn head_mut(&mut self, line: u32) -> Option<&mut Head> {
        self.segments.get_mut(line as usize / SEGMENT)?.heads.get_mut(line as usize % SEGMENT)
    }

    /// Which hold's block has the name at a position.
    #[inline]
    pub(super) fn owner(&self, position: u32) -> (u32, u32) {
        let line = position as usize / WIDTH;
        let head = &self.segments[line / SEGMENT].heads[line % SEGMENT];
        (head.hold, head.first + position % WIDTH as u32)
    }

    /// Asks for a name ahead.
    #[inline]
    pub(super) fn touch(&self, position: u32) {
        let line = position as usize / WIDTH;
        if let Some(line) = self.segments.get(line / SEGMENT).and_then(|segment| segment.lines.get(line % SEGMENT)) {
            prefetch(line);
        }
    }

    #[inline]
    pub(super) fn name(&self, position: u32) -> EngineHash {
        let (line, at) = (position as usize / WIDTH, position as usize % WIDTH);
        let segment = &self.segments[line / SEGMENT];
        let high = segment.highs.as_ref().map_or(0, |highs| highs[line % SEGMENT].0[at]);
        EngineHash::from_parts(segment.lines[line % SEGMENT].0[at], high)
    }

    #[inline]
    pub(super) fn is(&self, position: u32, name: EngineHash) -> bool {
        self.name(position) == name
    }

    #[inline]
    pub(super) fn set(&mut self, position: u32, name: EngineHash) {
        let (line, at) = (position as usize / WIDTH, position as usize % WIDTH);
        let segment = &mut self.segments[line / SEGMENT];
        segment.lines[line % SEGMENT].0[at] = name.low();
        if name.is_wide() || segment.highs.is_some() {
            let lines = segment.lines.capacity();
            let highs = segment.highs.get_or_insert_with(|| vec![Line::default(); lines].into_boxed_slice());
            highs[line % SEGMENT].0[at] = name.high();
        }
    }

    /// Sets names of one line, from its place `at` on.
    #[inline]
    pub(super) fn fill(&mut self, line: u32, at: usize, names: &[Block]) {
        let segment = &mut self.segments[line as usize / SEGMENT];
        for (kept, name) in segment.lines[line as usize % SEGMENT].0[at..].iter_mut().zip(names) {
            *kept = name.engine.low();
        }
        if segment.highs.is_some() || names.iter().any(|name| name.engine.is_wide()) {
            for (position, name) in (line * WIDTH as u32 + at as u32..).zip(names) {
                self.set(position, name.engine);
            }
        }
    }

    pub(super) fn heap(&self) -> usize {
        let highs = |segment: &Segment| segment.highs.as_ref().map_or(0, |highs| highs.len() * size_of::<Line>());
        let segments = self.segments.iter().map(|segment| {
            segment.lines.capacity() * size_of::<Line>() + segment.heads.capacity() * size_of::<Head>() + highs(segment)
        });
        segments.sum::<usize>() + self.segments.capacity() * size_of::<Segment>() + self.free.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_keep_their_names_while_lines_come_and_go() {
        let mut lines = Lines::default();
        let all: Vec<u32> = (0..2000).map(|i| lines.take(i, 8 * i)).collect();
        for line in &all {
            for at in 0..WIDTH as u32 {
                let wide = u64::from(line % 700 == 699) * 7;
                lines.set(line * 8 + at, EngineHash::from_parts(u64::from(line * 8 + at), wide));
            }
        }
        for line in all.iter().filter(|line| *line % 3 == 0) {
            lines.give_back(*line);
        }
        let again: Vec<u32> = (0..400).map(|i| lines.take(9000 + i, 0)).collect();
        assert!(again.iter().all(|line| line % 3 == 0), "free lines are used first");
        for line in all.iter().filter(|line| *line % 3 != 0) {
            let name = EngineHash::from_parts(u64::from(line * 8 + 5), u64::from(line % 700 == 699) * 7);
            assert!(lines.is(line * 8 + 5, name));
            assert_eq!(lines.owner(line * 8 + 5), (*line, 8 * line + 5));
        }
        for line in all.iter().filter(|line| *line % 3 != 0).chain(&again) {
            lines.give_back(*line);
        }
        assert_eq!(lines.heap(), 0, "nothing is left of it");
    }
}
