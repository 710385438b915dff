//! The ranks of a forest, as matches report them.

use std::collections::HashMap;
use std::sync::Arc;

use crate::worker::{RankId, Stamp};

use super::rank::Cell;

/// What a match says of a rank besides how much it holds: as of its last transaction.
#[derive(Clone, Debug)]
pub(super) struct Face {
    pub(super) rank: RankId,
    pub(super) stamp: Stamp,
    /// Names of prefix groups.
    pub(super) held: u64,
    pub(super) partial: bool,
    /// The match must be cut by the rules of its groups, which are in the cell.
    pub(super) hybrid: bool,
    pub(super) cell: Arc<Cell>,
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

    pub(super) fn leave(&mut self, seat: u32) {
        if let Some(face) = self.seats.get_mut(seat as usize).and_then(Option::take) {
            self.by_rank.remove(&face.rank);
        }
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
