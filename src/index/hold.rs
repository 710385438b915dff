//! What one rank holds of each run under ordinary names: the names in the order of the blocks.
//!
//! An ordinary name stands at one place, with one copy, on the device, in the rank's first group. All else is odd
//! (see `odd`), and a hold only counts it.

// A pointer where there is nearly always nothing: an empty array would take three words in every run and hold.
#![allow(clippy::box_collection)]

use std::collections::HashMap;

use crate::hash::{EngineHash, Seed};

use super::ages::Moment;
use super::door::Block;
use super::forest::{NONE, room, trim};
use super::lines::{Lines, WIDTH};

/// Where a name stands: a block of one of its rank's holds.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct Spot {
    pub(super) hold: u32,
    pub(super) block: u32,
}

/// A rank's part of one run.
#[derive(Debug)]
pub(super) struct Hold {
    /// The run, [`NONE`] while this number is free.
    pub(super) run: u32,
    /// Ordinary names.
    pub(super) ordinary: u32,
    /// Odd names that stand here, by place.
    pub(super) odd: u32,
    /// Blocks from here on were never stored since `born`.
    fresh: u32,
    /// Blocks up to the last that has an ordinary name.
    len: u32,
    pub(super) seed: Seed,
    /// The lines that their names are kept in, eight blocks each.
    lines: Vec<u32>,
    /// Which of these blocks have an ordinary name, where not all have.
    gaps: Option<Box<Vec<u64>>>,
    /// Ages before this moment speak of another hold.
    born: Moment,
    /// From this block on, ages before this moment are stale. Ascending in both.
    cuts: Option<Box<Vec<(u32, Moment)>>>,
}

/// All holds of a rank by number.
#[derive(Debug, Default)]
pub(super) struct Holds {
    holds: Vec<Hold>,
    free: Vec<u32>,
    /// Blocks stored again in the middle of a hold, and when: what is older is stale.
    again: HashMap<Spot, Moment>,
    lines: Lines,
}

/// Names that are kept already, and that no hold has yet.
#[derive(Debug, Default)]
pub(super) struct Staged {
    pub(super) pieces: Vec<Piece>,
    lines: Vec<u32>,
}

/// Consecutive names of one hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Piece {
    /// Where they will stand: at the end of a hold, or first in one that has yet to begin ([`NONE`]).
    pub(super) first: Spot,
    pub(super) count: u32,
    /// Their lines are those from here on.
    lines: usize,
}

// === impl Holds ===

impl Holds {
    #[inline]
    pub(super) fn get(&self, hold: u32) -> &Hold {
        &self.holds[hold as usize]
    }

    #[inline]
    pub(super) fn get_mut(&mut self, hold: u32) -> &mut Hold {
        &mut self.holds[hold as usize]
    }

    /// Whether so many more ordinary names can be kept.
    #[inline]
    pub(super) fn has_room(&self, names: usize) -> bool {
        self.lines.has_room(names) && self.holds.len() < NONE as usize
    }

    #[inline]
    pub(super) fn lines(&self) -> &Lines {
        &self.lines
    }

    /// Begins a hold of a run.
    pub(super) fn begin(&mut self, run: u32, seed: Seed, born: Moment) -> u32 {
        let hold =
            Hold { run, ordinary: 0, odd: 0, fresh: 0, len: 0, seed, lines: Vec::new(), gaps: None, born, cuts: None };
        match self.free.pop() {
            Some(id) => {
                self.holds[id as usize] = hold;
                id
            }
            None => {
                room(&mut self.holds, 1);
                self.holds.push(hold);
                self.holds.len() as u32 - 1
            }
        }
    }

    /// Ends a hold if nothing stands there any more.
    #[inline]
    pub(super) fn end_if_empty(&mut self, id: u32) {
        let hold = &mut self.holds[id as usize];
        if hold.ordinary == 0 && hold.odd == 0 && hold.run != NONE {
            hold.run = NONE;
            hold.len = 0;
            for line in std::mem::take(&mut hold.lines) {
                self.lines.give_back(line);
            }
            hold.gaps = None;
            hold.cuts = None;
            self.free.push(id);
            if self.free.len() == self.holds.len() {
                self.holds = Vec::new();
                self.free = Vec::new();
            }
        }
    }

    /// The runs this rank holds something of.
    pub(super) fn runs(&self) -> impl Iterator<Item = u32> {
        self.holds.iter().map(|hold| hold.run).filter(|run| *run != NONE)
    }

    /// Every ordinary name, where it stands, and the position it is kept at.
    pub(super) fn names(&self) -> impl Iterator<Item = (EngineHash, Spot, u32)> {
        (0u32..).zip(&self.holds).filter(|(_, hold)| hold.run != NONE).flat_map(move |(id, hold)| {
            (0..hold.len).filter(|block| hold.has(*block)).map(move |block| {
                let position = hold.position(block);
                (self.lines.name(position), Spot { hold: id, block }, position)
            })
        })
    }

    /// The position that the name at a spot is kept at; the spot has, or had last, a name.
    #[inline]
    pub(super) fn position(&self, spot: Spot) -> u32 {
        self.holds[spot.hold as usize].position(spot.block)
    }

    /// The spot of the name at a position.
    #[inline]
    pub(super) fn spot(&self, position: u32) -> Spot {
        let (hold, block) = self.lines.owner(position);
        Spot { hold, block }
    }

    #[inline]
    pub(super) fn name_at(&self, spot: Spot) -> EngineHash {
        self.lines.name(self.position(spot))
    }

    /// The position of a name, if it is the one that is kept for a spot. Whether it stands there still, the table says.
    #[inline]
    pub(super) fn position_if(&self, spot: Spot, name: EngineHash) -> Option<u32> {
        let hold = self.holds.get(spot.hold as usize).filter(|hold| spot.block < hold.len)?;
        let position = hold.position(spot.block);
        self.lines.is(position, name).then_some(position)
    }

    /// Asks for the names about a spot ahead.
    #[inline]
    pub(super) fn touch(&self, spot: Spot) {
        let hold = self.holds.get(spot.hold as usize);
        if let Some(line) = hold.and_then(|hold| hold.lines.get(spot.block as usize / WIDTH)) {
            self.lines.touch(line * WIDTH as u32);
        }
    }

    /// Whether this is the ordinary name at a spot, whatever the table says.
    #[inline]
    pub(super) fn stands(&self, spot: Spot, name: EngineHash) -> bool {
        let hold = self.holds.get(spot.hold as usize);
        hold.is_some_and(|hold| hold.run != NONE && hold.has(spot.block)) && self.position_if(spot, name).is_some()
    }

    /// Notes that blocks `[from, to)` of a hold were stored at a moment, if that is not the first time.
    #[inline]
    fn note(&mut self, id: u32, from: u32, to: u32, at: Moment) {
        let hold = &mut self.holds[id as usize];
        if from < hold.fresh {
            if from >= hold.len {
                hold.cut(from, at);
                hold.fresh = to;
            } else {
                // Ages are noted block by block here; there are few such.
                self.again.extend((from..to).map(|block| (Spot { hold: id, block }, at)));
            }
        }
        let hold = &mut self.holds[id as usize];
        hold.fresh = hold.fresh.max(to);
    }

    /// Gives a block an ordinary name, which has none yet. `at` is its moment.
    pub(super) fn put(&mut self, spot: Spot, name: EngineHash, at: Moment) {
        let Spot { hold: id, block } = spot;
        self.note(id, block, block + 1, at);
        let (hold, lines) = (&mut self.holds[id as usize], &mut self.lines);
        let end = hold.len.max(block + 1);
        hold.reach(id, end, lines);
        if block != hold.len || hold.gaps.is_some() {
            let gaps = hold.gaps();
            gaps.resize(end as usize / 64 + 1, 0);
            gaps[block as usize / 64] |= 1 << (block % 64);
        }
        lines.set(hold.position(block), name);
        hold.ordinary += 1;
        hold.len = end;
        hold.close_gaps();
    }

    /// Takes an ordinary name away.
    #[inline]
    pub(super) fn take(&mut self, spot: Spot) {
        self.take_run(spot.hold, spot.block, spot.block + 1);
    }

    /// Takes the ordinary names of blocks `[from, to)` away; each of them has one.
    #[inline]
    pub(super) fn take_run(&mut self, hold: u32, from: u32, to: u32) {
        let hold = &mut self.holds[hold as usize];
        hold.ordinary -= to - from;
        if hold.gaps.is_none() && to == hold.len {
            hold.len = from;
        } else {
            hold.take_apart(from, to);
        }
        hold.leave(&mut self.lines);
    }

    /// Notes that a block's copy was announced again.
    pub(super) fn stored_again(&mut self, spot: Spot, at: Moment) {
        self.again.insert(spot, at);
    }

    /// Whether an ordinary name stands at a spot, and the age of this moment speaks of it.
    pub(super) fn stands_since(&self, spot: Spot, at: Moment) -> bool {
        let Some(hold) = self.holds.get(spot.hold as usize) else { return false };
        hold.run != NONE
            && hold.has(spot.block)
            && at >= hold.since(spot.block)
            && self.again.get(&spot).is_none_or(|again| *again <= at)
    }

    /// The parts of `[from, from + blocks)` of which that is so.
    pub(super) fn standing(&self, id: u32, from: u32, blocks: u32, at: Moment, mut part: impl FnMut(u32, u32)) {
        let Some(hold) = self.holds.get(id as usize).filter(|hold| hold.run != NONE && at >= hold.born) else { return };
        let end = (from + blocks).min(hold.len).min(hold.stale_from(at));
        if hold.gaps.is_none() && self.again.is_empty() {
            if end > from {
                part(from, end - from);
            }
            return;
        }
        let mut start = None;
        for block in from..=end.max(from) {
            let stands = block < end && self.stands_since(Spot { hold: id, block }, at);
            match (stands, start) {
                (true, None) => start = Some(block),
                (false, Some(first)) => {
                    part(first, block - first);
                    start = None;
                }
                _ => {}
            }
        }
    }

    /// After a sweep no age is stale.
    pub(super) fn believe_everything(&mut self) {
        self.again = HashMap::new();
        for hold in &mut self.holds {
            hold.born = 0;
            hold.cuts = None;
            hold.fresh = hold.len;
        }
    }

    pub(super) fn heap(&self) -> usize {
        let gaps = |hold: &Hold| hold.gaps.as_ref().map_or(0, |gaps| gaps.capacity() * 8);
        let holds = self.holds.iter().map(|hold| hold.lines.capacity() * 4 + gaps(hold));
        holds.sum::<usize>() + self.holds.capacity() * size_of::<Hold>() + self.lines.heap()
    }
}

// === impl Holds: names before their places are known ===

impl Holds {
    /// Whether names can be staged at this spot: it is the end of its hold.
    #[inline]
    pub(super) fn ends_at(&self, spot: Spot, seed: Seed) -> bool {
        let hold = self.holds.get(spot.hold as usize);
        hold.is_some_and(|hold| hold.len == spot.block && hold.gaps.is_none() && hold.seed == seed)
    }

    /// Keeps the names of the pieces.
    #[inline]
    pub(super) fn stage(&mut self, names: &[Block], staged: &mut Staged) {
        let Staged { pieces, lines } = staged;
        let mut rest = names;
        for piece in pieces {
            let Spot { hold, block } = piece.first;
            let mut at = block as usize % WIDTH;
            let end = lines.len() + (at + piece.count as usize).div_ceil(WIDTH);
            piece.lines = lines.len();
            if at > 0 {
                // The last line of the hold goes on.
                lines.extend(self.holds[hold as usize].lines.last());
            }
            let begun = block - at as u32;
            for i in lines.len()..end {
                lines.push(self.lines.take(hold, begun + ((i - piece.lines) * WIDTH) as u32));
            }
            let (mut here, behind) = rest.split_at(piece.count as usize);
            for line in &lines[piece.lines..] {
                let (part, next) = here.split_at(here.len().min(WIDTH - at));
                self.lines.fill(*line, at, part);
                (here, at) = (next, 0);
            }
            rest = behind;
        }
    }

    /// The names of a piece are those of a hold from now on.
    #[inline]
    pub(super) fn settle(&mut self, id: u32, piece: &Piece, staged: &Staged, at: Moment) {
        let (from, to) = (piece.first.block, piece.first.block + piece.count);
        self.note(id, from, to, at);
        let hold = &mut self.holds[id as usize];
        let fresh = piece.fresh(staged);
        if piece.first.hold == NONE {
            for (line, first) in fresh.iter().zip((0u32..).step_by(WIDTH)) {
                self.lines.assign(*line, id, first);
            }
        }
        room(&mut hold.lines, fresh.len());
        hold.lines.extend_from_slice(fresh);
        hold.ordinary += piece.count;
        hold.len = to;
    }

    /// The names are kept no more.
    #[cold]
    pub(super) fn unstage(&mut self, staged: &mut Staged) {
        for line in staged.pieces.iter().flat_map(|piece| piece.fresh(staged)) {
            self.lines.give_back(*line);
        }
        staged.clear();
    }

    /// Puts the lines together again, in the order of holds. Every position changes.
    pub(super) fn compact(&mut self) {
        let mut lines = Lines::default();
        for (id, hold) in (0u32..).zip(&mut self.holds) {
            for (line, first) in hold.lines.iter_mut().zip((0u32..).step_by(WIDTH)) {
                let new = lines.take(id, first);
                for at in 0..WIDTH as u32 {
                    lines.set(new * WIDTH as u32 + at, self.lines.name(*line * WIDTH as u32 + at));
                }
                *line = new;
            }
            hold.lines.shrink_to_fit();
        }
        self.lines = lines;
    }
}

// === impl Staged ===

impl Staged {
    #[inline]
    pub(super) fn clear(&mut self) {
        self.pieces.clear();
        self.lines.clear();
    }

    /// The position of name `i` of a piece.
    #[inline]
    pub(super) fn position(&self, piece: &Piece, i: u32) -> u32 {
        let at = piece.first.block as usize % WIDTH + i as usize;
        self.lines[piece.lines + at / WIDTH] * WIDTH as u32 + (at % WIDTH) as u32
    }

    /// The positions of all names.
    pub(super) fn positions(&self) -> impl Iterator<Item = u32> {
        self.pieces.iter().flat_map(|piece| (0..piece.count).map(|i| self.position(piece, i)))
    }
}

// === impl Piece ===

impl Piece {
    pub(super) fn new(first: Spot, count: u32) -> Self {
        Self { first, count, lines: 0 }
    }

    /// The lines that no hold had before.
    #[inline]
    fn fresh<'s>(&self, staged: &'s Staged) -> &'s [u32] {
        let at = self.first.block as usize % WIDTH;
        let end = self.lines + (at + self.count as usize).div_ceil(WIDTH);
        &staged.lines[self.lines + usize::from(at > 0)..end]
    }
}

// === impl Hold ===

impl Hold {
    /// The position that a block's name is kept at.
    #[inline]
    fn position(&self, block: u32) -> u32 {
        self.lines[block as usize / WIDTH] * WIDTH as u32 + block % WIDTH as u32
    }

    /// Whether a block has an ordinary name.
    #[inline]
    pub(super) fn has(&self, block: u32) -> bool {
        match &self.gaps {
            None => block < self.len,
            Some(gaps) => gaps.get(block as usize / 64).is_some_and(|word| word >> (block % 64) & 1 == 1),
        }
    }

    /// Takes lines for so many blocks.
    fn reach(&mut self, id: u32, len: u32, lines: &mut Lines) {
        let have = self.lines.len();
        let more = (len as usize).div_ceil(WIDTH).saturating_sub(have);
        room(&mut self.lines, more);
        self.lines.extend((have..have + more).map(|i| lines.take(id, (i * WIDTH) as u32)));
    }

    /// Gives back the lines that are behind the last name.
    #[inline]
    fn leave(&mut self, lines: &mut Lines) {
        let keep = (self.len as usize).div_ceil(WIDTH);
        if keep < self.lines.len() {
            for line in self.lines.drain(keep..) {
                lines.give_back(line);
            }
            trim(&mut self.lines);
        }
    }

    /// Which blocks have a name; all of them so far.
    fn gaps(&mut self) -> &mut Vec<u64> {
        let len = self.len;
        self.gaps.get_or_insert_with(|| {
            let mut bits = vec![u64::MAX; len as usize / 64];
            bits.push((1u64 << (len % 64)) - 1);
            Box::new(bits)
        })
    }

    #[cold]
    fn take_apart(&mut self, from: u32, to: u32) {
        let mut len = self.len as usize;
        let gaps = self.gaps();
        for block in from..to {
            gaps[block as usize / 64] &= !(1 << (block % 64));
        }
        while len > 0 && gaps[(len - 1) / 64] >> ((len - 1) % 64) & 1 == 0 {
            len -= 1;
        }
        gaps.truncate(len / 64 + 1);
        self.len = len as u32;
        self.close_gaps();
    }

    #[inline]
    fn close_gaps(&mut self) {
        if self.gaps.is_some() && self.ordinary == self.len {
            self.gaps = None;
        }
    }

    fn cut(&mut self, from: u32, at: Moment) {
        let cuts = self.cuts.get_or_insert_default();
        while cuts.last().is_some_and(|(block, _)| *block >= from) {
            cuts.pop();
        }
        cuts.push((from, at));
    }

    fn since(&self, block: u32) -> Moment {
        let cuts = self.cuts.as_ref().map_or(&[][..], |cuts| cuts);
        let before = cuts.partition_point(|(from, _)| *from <= block);
        before.checked_sub(1).map_or(self.born, |i| cuts[i].1)
    }

    /// The first block of which an age of this moment is stale.
    fn stale_from(&self, at: Moment) -> u32 {
        let cuts = self.cuts.as_ref().map_or(&[][..], |cuts| cuts);
        cuts.get(cuts.partition_point(|(_, cut)| *cut <= at)).map_or(u32::MAX, |(from, _)| *from)
    }
}
