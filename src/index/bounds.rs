//! How much ranks may hold, and do.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::door::Limits;
use super::rank::Rank;

/// Bounds, and what they are compared with.
#[derive(Debug)]
pub(super) struct Bounds {
    blocks_per_rank: AtomicUsize,
    blocks_in_all: AtomicUsize,
    /// What all ranks together weigh, and may weigh without asking.
    total: AtomicUsize,
}

/// So much at most may a rank weigh without asking: ranks that change at the same time would wait for each other at each
/// block.
const SPARE_WEIGHT: usize = 512;

// === impl Bounds ===

impl Bounds {
    pub(super) fn new(limits: Limits) -> Self {
        let Limits { blocks_per_rank, blocks_in_all } = limits;
        let [blocks_per_rank, blocks_in_all] = [blocks_per_rank, blocks_in_all].map(AtomicUsize::new);
        Self { blocks_per_rank, blocks_in_all, total: AtomicUsize::new(0) }
    }

    pub(super) fn set(&self, limits: Limits) {
        self.blocks_per_rank.store(limits.blocks_per_rank, Ordering::Relaxed);
        self.blocks_in_all.store(limits.blocks_in_all, Ordering::Relaxed);
    }

    pub(super) fn has_room(&self, rank: &Rank, more: usize) -> bool {
        rank.weight + more <= self.blocks_per_rank.load(Ordering::Relaxed)
            && (self.total.load(Ordering::Relaxed) + more).saturating_sub(rank.spare)
                <= self.blocks_in_all.load(Ordering::Relaxed)
    }

    pub(super) fn weigh(&self, rank: &mut Rank, blocks: usize) {
        rank.weight += blocks;
        match rank.spare.checked_sub(blocks) {
            Some(spare) => rank.spare = spare,
            None => {
                // Nothing to spare near the bound, and where it is small: it is exact then.
                let free =
                    self.blocks_in_all.load(Ordering::Relaxed).saturating_sub(self.total.load(Ordering::Relaxed));
                let spare = (free >> 16).min(SPARE_WEIGHT);
                self.total.fetch_add(blocks - rank.spare + spare, Ordering::Relaxed);
                rank.spare = spare;
            }
        }
    }

    pub(super) fn unweigh(&self, rank: &mut Rank, blocks: usize) {
        rank.weight -= blocks;
        let free = self.blocks_in_all.load(Ordering::Relaxed).saturating_sub(self.total.load(Ordering::Relaxed));
        let spare = (free >> 16).min(SPARE_WEIGHT);
        rank.spare += blocks;
        if rank.spare > 2 * spare || rank.weight == 0 {
            let keep = if rank.weight == 0 { 0 } else { spare };
            self.total.fetch_sub(rank.spare - keep, Ordering::Relaxed);
            rank.spare = keep;
        }
    }
}
