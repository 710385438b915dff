//! The ranks of a forest, as matches report them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};

use crate::worker::{RankId, Stamp};

use super::gate::wait_until;
use super::rank::Cell;

/// What a match says of a rank besides how much it holds: as of its last transaction. Ranks that append beside each other
/// write in lines of their own.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Face {
    pub(super) rank: RankId,
    /// Odd while the rank appends beside others.
    version: AtomicU32,
    epoch: AtomicU64,
    sequence: AtomicU64,
    /// There is a sequence number.
    is_numbered: AtomicBool,
    held: AtomicU64,
    /// Blocks that it has appended beside others.
    appended: AtomicU64,
    pub(super) partial: bool,
    /// The match must be cut by the rules of its groups, which are in the cell.
    pub(super) hybrid: bool,
    pub(super) cell: Arc<Cell>,
}

/// The part of a face that may change while others read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    pub(super) stamp: Stamp,
    /// Names of prefix groups.
    pub(super) held: u64,
    /// Another number whenever it has changed.
    pub(super) version: u32,
}

/// Faces by seat. A rank has a seat for as long as it has the forest's grid.
#[derive(Debug, Default)]
pub(super) struct Seats {
    seats: Vec<Option<Face>>,
    /// The ranks alone, close together: the shortest answer needs no more.
    ranks: Vec<RankId>,
    by_rank: HashMap<RankId, u32>,
}

// === impl Seats ===

impl Seats {
    pub(super) fn take(&mut self, face: Face) -> u32 {
        let rank = face.rank;
        let seat = match self.seats.iter().position(Option::is_none) {
            Some(free) => free,
            None => {
                self.seats.push(None);
                self.ranks.push(rank);
                self.seats.len() - 1
            }
        };
        self.seats[seat] = Some(face);
        self.ranks[seat] = rank;
        self.by_rank.insert(rank, seat as u32);
        seat as u32
    }

    /// The face that leaves.
    pub(super) fn leave(&mut self, seat: u32) -> Option<Face> {
        let face = self.seats.get_mut(seat as usize).and_then(Option::take)?;
        self.by_rank.remove(&face.rank);
        Some(face)
    }

    pub(super) fn faces(&self) -> impl Iterator<Item = &Face> {
        self.seats.iter().flatten()
    }

    /// The ranks by seat; of a seat that is free, the last one that had it.
    #[inline]
    pub(super) fn ranks(&self) -> &[RankId] {
        &self.ranks
    }

    /// What is said of a rank that has a seat.
    pub(super) fn of(&self, rank: RankId) -> Option<&Face> {
        self.face(*self.by_rank.get(&rank)?)
    }

    #[inline]
    pub(super) fn face(&self, seat: u32) -> Option<&Face> {
        self.seats.get(seat as usize)?.as_ref()
    }

    pub(super) fn face_mut(&mut self, seat: u32) -> Option<&mut Face> {
        self.seats.get_mut(seat as usize)?.as_mut()
    }
}

// === impl Face ===

impl Face {
    pub(super) fn new(cell: Arc<Cell>, stamp: Stamp, held: u64, partial: bool, hybrid: bool) -> Self {
        let rank = cell.id;
        let [epoch, sequence, held, appended] = [0, 0, held, 0].map(AtomicU64::new);
        let (version, is_numbered) = (AtomicU32::new(0), AtomicBool::new(false));
        let face = Self { rank, version, epoch, sequence, is_numbered, held, appended, partial, hybrid, cell };
        face.put(stamp);
        face
    }

    fn put(&self, stamp: Stamp) {
        self.epoch.store(stamp.epoch, Ordering::Relaxed);
        self.sequence.store(stamp.sequence.unwrap_or(0), Ordering::Relaxed);
        self.is_numbered.store(stamp.sequence.is_some(), Ordering::Relaxed);
    }

    /// Which version it has, once nothing of it is changing.
    #[inline]
    pub(super) fn version(&self) -> u32 {
        let mut version = self.version.load(Ordering::Acquire);
        if !version.is_multiple_of(2) {
            // A store of a few blocks is being written down.
            wait_until(|| {
                version = self.version.load(Ordering::Acquire);
                version.is_multiple_of(2)
            });
        }
        version
    }

    /// What it says at one moment.
    #[inline]
    pub(super) fn look(&self) -> Look {
        loop {
            let version = self.version();
            let epoch = self.epoch.load(Ordering::Relaxed);
            let sequence = self.sequence.load(Ordering::Relaxed);
            let sequence = self.is_numbered.load(Ordering::Relaxed).then_some(sequence);
            let held = self.held.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if self.version.load(Ordering::Relaxed) == version {
                return Look { stamp: Stamp { epoch, sequence }, held, version };
            }
        }
    }

    #[inline]
    pub(super) fn is_like(&self, partial: bool, hybrid: bool) -> bool {
        (self.partial, self.hybrid) == (partial, hybrid)
    }

    pub(super) fn set(&mut self, stamp: Stamp, held: u64, partial: bool, hybrid: bool) {
        self.put(stamp);
        *self.held.get_mut() = held;
        (self.partial, self.hybrid) = (partial, hybrid);
    }

    /// Changes what the rank holds beside others, and what is said of it, as one: who looks in between looks again. Only
    /// the rank's own writer may.
    #[inline]
    pub(super) fn change_beside(&self, stamp: Stamp, held: u64, blocks: usize, act: impl FnOnce()) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        act();
        self.put(stamp);
        self.held.store(held, Ordering::Relaxed);
        self.appended.store(self.appended.load(Ordering::Relaxed) + blocks as u64, Ordering::Relaxed);
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }

    /// Blocks that the rank has appended beside others.
    pub(super) fn appended_beside(&self) -> u64 {
        self.appended.load(Ordering::Relaxed)
    }
}
