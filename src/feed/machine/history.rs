//! What of an engine's life has been applied: how far, without which holes, and what can still be compared.

use std::collections::VecDeque;

use super::nouns::{Digest, Past, Why};
use crate::worker::Stamp;

/// How many applied messages stay comparable. Live and replayed messages overlap by less than that, since what
/// waits in the live queue is taken as fast as what the replay brings.
const RING: usize = 1024;

/// How far ahead of the last applied message a number may be and still be believed. Ten thousand messages a second take
/// five days for it, and whoever is away for that long begins anew.
const MAX_JUMP: u64 = 1 << 32;

/// How high the first number of an epoch may be. Ten thousand messages a second take three years for it.
const MAX_FIRST: u64 = 1 << 40;

/// One epoch, as far as it was applied.
#[derive(Debug, Default)]
pub(super) struct History {
    epoch: u64,
    last: Option<u64>,
    ring: VecDeque<(u64, Digest)>,
    hole: Option<Hole>,
    doubt: Option<Doubt>,
    beyond_repair: bool,
    /// The last message that is known to have cleared the cache.
    cleared: Option<u64>,
}

/// Messages of this epoch are missing; all of them stand before `before`.
#[derive(Clone, Copy, Debug)]
struct Hole {
    before: u64,
    /// The same, should what was heard beyond all that was applied prove to be a dead engine's.
    near: u64,
    why: Why,
}

/// Nothing proves that messages after `mark` belong to the same life as those up to it.
#[derive(Clone, Copy, Debug)]
struct Doubt {
    mark: u64,
    why: Why,
}

/// Where a sequence number falls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// The next one.
    Next,
    /// Past the next one.
    Ahead {
        /// How many are missing before it.
        missing: u64,
    },
    /// At or below the last one.
    Behind,
}

/// What is known of a message at or below the last one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Seen {
    /// The very message was applied.
    Same,
    /// Another message was applied under its number.
    Differs,
    /// Too old to tell, or never applied.
    Unknown,
}

// === impl History ===

impl History {
    /// What another one was.
    pub(super) fn resume(past: Past) -> Self {
        let last = past.messages.last().map(|(sequence, _)| *sequence);
        let skip = past.messages.len().saturating_sub(RING);
        let ring = past.messages.into_iter().skip(skip).collect();
        Self { epoch: past.epoch.max(1), last, ring, ..Self::default() }
    }

    /// Nothing yet, of an epoch with this number.
    pub(super) fn begin_at(epoch: u64) -> Self {
        Self { epoch, ..Self::default() }
    }

    /// What another one can go on from, if nothing is missing.
    pub(super) fn past(&self) -> Option<Past> {
        let whole = self.last.is_some() && self.flaw().is_none();
        whole.then(|| Past { epoch: self.epoch, messages: self.ring.iter().copied().collect() })
    }

    pub(super) fn last(&self) -> Option<u64> {
        self.last
    }

    /// The number after the last one; 0 at the beginning.
    pub(super) fn next(&self) -> u64 {
        self.last.map_or(0, |last| last.saturating_add(1))
    }

    pub(super) fn place(&self, sequence: u64) -> Place {
        let next = self.next();
        match sequence.checked_sub(next) {
            Some(0) => Place::Next,
            Some(missing) => Place::Ahead { missing },
            None => Place::Behind,
        }
    }

    /// Whether an engine may have come as far as this number. A corrupt or a hostile one must not become the last one
    /// that was applied: it would make every later message look like a restart, and the count of missing ones absurd.
    pub(super) fn plausible(&self, sequence: u64) -> bool {
        match self.last {
            Some(last) => sequence.saturating_sub(last) <= MAX_JUMP,
            None => sequence <= MAX_FIRST,
        }
    }

    pub(super) fn compare(&self, sequence: u64, digest: Digest) -> Seen {
        match self.ring.binary_search_by_key(&sequence, |(sequence, _)| *sequence).ok().and_then(|at| self.ring.get(at))
        {
            Some((_, ours)) if *ours == digest => Seen::Same,
            Some(_) => Seen::Differs,
            None => Seen::Unknown,
        }
    }

    /// A message at or past [`History::next`] is applied; what stands between is missing from now on, because of `why`.
    pub(super) fn apply(&mut self, sequence: u64, digest: Digest, why: Why) -> Stamp {
        self.epoch = self.epoch.max(1);
        if self.last.is_none() && sequence == 0 {
            self.hole = None;
        } else if sequence > self.next() {
            self.hole = Some(Hole { before: sequence, near: sequence, why });
        }
        if self.ring.len() == RING {
            self.ring.pop_front();
        }
        self.ring.push_back((sequence, digest));
        self.last = Some(sequence);
        Stamp { epoch: self.epoch, sequence: Some(sequence) }
    }

    /// Everything before `before` counts as holed.
    pub(super) fn puncture(&mut self, before: u64, why: Why) {
        if self.hole.is_none_or(|hole| hole.before < before) {
            self.hole = Some(Hole { before, near: before.min(self.next()), why });
        }
    }

    /// This life has not come further than what was applied: a replay has ended there, or the live feed carries that. What a link
    /// was heard to say beyond it was a dead engine's, and nothing is missing there.
    pub(super) fn reached(&mut self) {
        let next = self.next();
        if let Some(hole) = self.hole.as_mut().filter(|hole| hole.before > next) {
            hole.before = hole.near;
            self.heal();
        }
    }

    /// What comes from here on may be another life's.
    pub(super) fn doubt(&mut self, why: Why) {
        if let (Some(mark), None) = (self.last, self.doubt) {
            self.doubt = Some(Doubt { mark, why });
        }
    }

    /// A message that was applied as `sequence` has proved to be of the present life.
    pub(super) fn vouch(&mut self, sequence: u64) {
        self.doubt = self.doubt.filter(|doubt| sequence > doubt.mark);
    }

    /// Whether what was applied may be of two lives.
    pub(super) fn in_doubt(&self) -> bool {
        self.doubt.is_some()
    }

    /// No replay will ever fill the holes of this epoch.
    pub(super) fn give_up_repair(&mut self) {
        self.beyond_repair = true;
    }

    /// A replay broke off, so nobody knows what it would have brought: perhaps a clear after the holes.
    pub(super) fn hope_for_repair(&mut self) {
        self.beyond_repair = false;
    }

    /// Whether there is something to repair, and hope.
    pub(super) fn repairable(&self) -> bool {
        self.flaw().is_some() && !self.beyond_repair
    }

    /// Why not everything of this life is known to be applied.
    pub(super) fn flaw(&self) -> Option<Why> {
        self.hole.map(|hole| hole.why).or(self.doubt.map(|doubt| doubt.why))
    }

    /// The message under `stamp` cleared the cache: what was before it no longer matters.
    pub(super) fn clear(&mut self, stamp: Stamp) {
        let Some(sequence) = stamp.sequence.filter(|_| stamp.epoch == self.epoch) else { return };
        self.cleared = self.cleared.max(Some(sequence));
        self.doubt = self.doubt.filter(|doubt| sequence <= doubt.mark);
        self.heal();
    }

    /// What is missing before a clear no longer matters.
    fn heal(&mut self) {
        self.hole = self.hole.filter(|hole| self.cleared < Some(hole.before));
        if self.flaw().is_none() {
            self.beyond_repair = false;
        }
    }

    /// The message under `stamp` was lost though it came.
    pub(super) fn spoil(&mut self, stamp: Stamp) {
        if let Some(sequence) = stamp.sequence.filter(|_| stamp.epoch == self.epoch) {
            self.puncture(sequence.saturating_add(1), Why::Unreadable);
            self.beyond_repair = true;
        }
    }

    /// A message of this life has no place in it but that it came before `before`, so nobody knows what it stored or removed.
    pub(super) fn misplaced(&mut self, before: u64) {
        self.puncture(before, Why::Unplaceable);
        self.beyond_repair = true;
        self.heal();
    }

    /// Forgets everything. Returns the new epoch's number, if the old one held anything.
    pub(super) fn begin(&mut self) -> Option<u64> {
        self.ring.clear();
        self.cleared = None;
        self.hole = None;
        self.doubt = None;
        self.beyond_repair = false;
        self.last.take()?;
        self.epoch += 1;
        Some(self.epoch)
    }
}
