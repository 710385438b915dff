//! Which of a rank's blocks was stored longest ago.
//!
//! A queue in the order of storing. Removing a block, or storing it again, leaves its old entry behind: an entry
//! counts only while its block still says the same moment. Once stale entries outnumber live ones they are swept
//! out, so each operation is constant, amortised, and memory follows what is held.

use std::collections::VecDeque;

use crate::block::Group;
use crate::hash::EngineHash;

/// A moment of one rank: later stores have larger ones.
pub(super) type Moment = u64;

/// The order in which a rank's blocks were stored.
#[derive(Debug, Default)]
pub(super) struct Ages {
    queue: VecDeque<Aged>,
}

/// One block at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Aged {
    pub(super) hash: EngineHash,
    pub(super) at: Moment,
    pub(super) kind: Kind,
}

/// Which of a rank's tables a block stands in.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    Prefix,
    Other(Group),
}

// === impl Ages ===

impl Ages {
    /// Notes a block as the newest. `live` blocks are held in all; `is_live` says whether an entry still counts.
    pub(super) fn push(&mut self, newest: Aged, live: usize, is_live: impl Fn(&Aged) -> bool) {
        self.queue.push_back(newest);
        self.sweep(live, is_live);
    }

    /// Sweeps stale entries out, if there are enough of them.
    pub(super) fn sweep(&mut self, live: usize, is_live: impl Fn(&Aged) -> bool) {
        /// Shorter queues are not worth the work.
        const SMALL: usize = 64;
        if self.queue.len() > SMALL + 2 * live {
            self.queue.retain(is_live);
            self.queue.shrink_to(self.queue.len() * 2);
        }
    }

    /// Every entry, live or stale, the oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Aged> {
        self.queue.iter()
    }

    /// Takes the oldest entry, live or stale.
    pub(super) fn pop(&mut self) -> Option<Aged> {
        self.queue.pop_front()
    }

    /// Bytes on the heap.
    pub(super) fn heap(&self) -> usize {
        self.queue.capacity() * size_of::<Aged>()
    }
}
