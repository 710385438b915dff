//! What one rank holds of each run under ordinary names: the names in the order of the blocks.
//!
//! An ordinary name stands at one place, with one copy, on the device, in the rank's first group. All else is odd
//! (see `odd`), and a hold only counts it.

// A pointer where there is nearly always nothing: an empty array would take three words in every run and hold.
#![allow(clippy::box_collection)]

use std::collections::HashMap;

use crate::hash::{EngineHash, Seed};

use super::ages::Moment;
use super::forest::{NONE, room, trim};
use super::names::{MAX_HOLDS, Spot};

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
    pub(super) seed: Seed,
    /// The low halves of the names by block, for as far as ordinary names go.
    lows: Vec<u64>,
    /// The high halves, where the engine's names have any.
    highs: Option<Box<Vec<u64>>>,
    /// Which blocks have an ordinary name, where not all have.
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

    /// Whether another hold fits whose names are ordinary.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.holds.len() < MAX_HOLDS
    }

    /// Begins a hold of a run.
    pub(super) fn begin(&mut self, run: u32, seed: Seed, born: Moment) -> u32 {
        let hold = Hold {
            run,
            ordinary: 0,
            odd: 0,
            fresh: 0,
            seed,
            lows: Vec::new(),
            highs: None,
            gaps: None,
            born,
            cuts: None,
        };
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
            hold.lows = Vec::new();
            hold.highs = None;
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

    /// Every ordinary name and where it stands.
    pub(super) fn names(&self) -> impl Iterator<Item = (EngineHash, Spot)> {
        (0u32..).zip(&self.holds).filter(|(_, hold)| hold.run != NONE).flat_map(|(id, hold)| {
            let blocks = (0..hold.lows.len() as u32).filter(|block| hold.has(*block));
            blocks.map(move |block| (hold.name(block), Spot { hold: id, block }))
        })
    }

    #[inline]
    pub(super) fn name_at(&self, spot: Spot) -> EngineHash {
        self.holds[spot.hold as usize].name(spot.block)
    }

    #[inline]
    pub(super) fn is(&self, spot: Spot, name: EngineHash) -> bool {
        self.holds.get(spot.hold as usize).is_some_and(|hold| hold.is(spot.block, name))
    }

    /// Gives blocks from `from` on ordinary names, which have none yet. `at` is their moment.
    #[inline]
    pub(super) fn put(&mut self, id: u32, from: u32, names: &[EngineHash], at: Moment) {
        let hold = &mut self.holds[id as usize];
        let to = from + names.len() as u32;
        if from < hold.fresh {
            if from as usize >= hold.lows.len() {
                hold.cut(from, at);
                hold.fresh = to;
            } else {
                // Ages are noted block by block here; there are few such.
                self.again.extend((from..to).map(|block| (Spot { hold: id, block }, at)));
            }
        }
        let hold = &mut self.holds[id as usize];
        hold.fresh = hold.fresh.max(to);
        hold.put(from, names);
    }

    /// Takes an ordinary name away.
    #[inline]
    pub(super) fn take(&mut self, spot: Spot) {
        self.holds[spot.hold as usize].take(spot.block, spot.block + 1);
    }

    /// Takes the ordinary names of blocks `[from, to)` away; each of them has one.
    #[inline]
    pub(super) fn take_run(&mut self, hold: u32, from: u32, to: u32) {
        self.holds[hold as usize].take(from, to);
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
        let end = (from + blocks).min(hold.lows.len() as u32).min(hold.stale_from(at));
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
            hold.fresh = hold.lows.len() as u32;
        }
    }

    pub(super) fn heap(&self) -> usize {
        let wide = |hold: &Hold| hold.highs.as_ref().map_or(0, |highs| highs.capacity() * 8);
        let gaps = |hold: &Hold| hold.gaps.as_ref().map_or(0, |gaps| gaps.capacity() * 8);
        let holds = self.holds.iter().map(|hold| hold.lows.capacity() * 8 + wide(hold) + gaps(hold));
        holds.sum::<usize>() + self.holds.capacity() * size_of::<Hold>()
    }
}

// === impl Hold ===

impl Hold {
    #[inline]
    fn name(&self, block: u32) -> EngineHash {
        let high = self.highs.as_ref().and_then(|highs| highs.get(block as usize)).copied().unwrap_or(0);
        EngineHash::from_parts(self.lows[block as usize], high)
    }

    #[inline]
    fn is(&self, block: u32, name: EngineHash) -> bool {
        self.lows.get(block as usize) == Some(&name.low())
            && match &self.highs {
                None => name.high() == 0,
                Some(highs) => highs.get(block as usize).copied().unwrap_or(0) == name.high(),
            }
    }

    /// Whether a block has an ordinary name.
    #[inline]
    pub(super) fn has(&self, block: u32) -> bool {
        match &self.gaps {
            None => (block as usize) < self.lows.len(),
            Some(gaps) => gaps.get(block as usize / 64).is_some_and(|word| word >> (block % 64) & 1 == 1),
        }
    }

    #[inline]
    fn put(&mut self, from: u32, names: &[EngineHash]) {
        self.ordinary += names.len() as u32;
        if from as usize != self.lows.len() || self.gaps.is_some() {
            return self.put_apart(from, names);
        }
        room(&mut self.lows, names.len());
        self.lows.extend(names.iter().map(|name| name.low()));
        if self.highs.is_some() || names.iter().any(|name| name.is_wide()) {
            let highs = self.highs.get_or_insert_default();
            room(highs, from as usize + names.len() - highs.len());
            highs.resize(from as usize, 0);
            highs.extend(names.iter().map(|name| name.high()));
        }
    }

    #[cold]
    fn put_apart(&mut self, from: u32, names: &[EngineHash]) {
        let len = self.lows.len();
        let gaps = self.gaps.get_or_insert_with(|| {
            let mut bits = vec![u64::MAX; len / 64];
            bits.push((1u64 << (len % 64)) - 1);
            Box::new(bits)
        });
        let end = (from as usize + names.len()).max(len);
        gaps.resize(end / 64 + 1, 0);
        for block in from as usize..from as usize + names.len() {
            gaps[block / 64] |= 1 << (block % 64);
        }
        self.lows.resize(end, 0);
        for (block, name) in (from as usize..).zip(names.iter().copied()) {
            self.lows[block] = name.low();
            if name.is_wide() || self.highs.is_some() {
                let highs = self.highs.get_or_insert_default();
                highs.resize(end, 0);
                highs[block] = name.high();
            }
        }
        self.close_gaps();
    }

    #[inline]
    fn take(&mut self, from: u32, to: u32) {
        self.ordinary -= to - from;
        if self.gaps.is_none() && to as usize == self.lows.len() {
            self.lows.truncate(from as usize);
            trim(&mut self.lows);
            if let Some(highs) = &mut self.highs {
                highs.truncate(self.lows.len());
                trim(highs);
            }
            return;
        }
        self.take_apart(from, to);
    }

    #[cold]
    fn take_apart(&mut self, from: u32, to: u32) {
        let len = self.lows.len();
        let gaps = self.gaps.get_or_insert_with(|| {
            let mut bits = vec![u64::MAX; len / 64];
            bits.push((1u64 << (len % 64)) - 1);
            Box::new(bits)
        });
        for block in from..to {
            gaps[block as usize / 64] &= !(1 << (block % 64));
        }
        let mut len = len;
        while len > 0 && gaps[(len - 1) / 64] >> ((len - 1) % 64) & 1 == 0 {
            len -= 1;
        }
        gaps.truncate(len / 64 + 1);
        self.lows.truncate(len);
        trim(&mut self.lows);
        if let Some(highs) = &mut self.highs {
            highs.truncate(len);
        }
        self.close_gaps();
    }

    fn close_gaps(&mut self) {
        if self.ordinary as usize == self.lows.len() {
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
