//! Which of a rank's blocks was stored longest ago, at eight bytes a *run* of stored blocks.
//!
//! A queue in the order of storing. An entry says which blocks of which hold were stored one after the other. What
//! was removed, or stored again later, is not searched for: the hold knows from which entry on it may be believed,
//! and what is stale is skipped, or swept out once there is enough of it.

use super::forest::MAX_RUN;
use super::hold::{Holds, Spot};

/// A position in the queue: later stores have larger ones. A sweep renumbers.
pub(super) type Moment = u64;

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Ages {
    /// `hold << 32 | first block << 16 | blocks - 1`.
    entries: Vec<u64>,
    /// Entries before this one are done with.
    front: usize,
    /// No entry may be lengthened: something else was stored in between.
    closed: bool,
    /// Sweep at this length.
    limit: usize,
}

/// Queues shorter than this are not worth a sweep.
const SMALL: usize = 64;

#[derive(Clone, Copy)]
struct Entry {
    hold: u32,
    from: u32,
    blocks: u32,
}

// === impl Ages ===

impl Ages {
    pub(super) fn heap(&self) -> usize {
        self.entries.capacity() * size_of::<u64>()
    }

    /// The moment of what is stored next, apart from the blocks of holds.
    pub(super) fn close(&mut self) -> Moment {
        self.closed = true;
        self.entries.len() as Moment
    }

    /// Notes blocks as the newest. The moment they are stored at.
    #[inline]
    pub(super) fn push(&mut self, hold: u32, from: u32, blocks: u32) -> Moment {
        if !self.closed
            && self.entries.len() > self.front
            && let Some(packed) = self.entries.last_mut()
        {
            let last = unpack(*packed);
            let together = last.blocks + blocks;
            if last.hold == hold && last.from + last.blocks == from && together as usize <= MAX_RUN {
                *packed = pack(Entry { blocks: together, ..last });
                return self.entries.len() as Moment - 1;
            }
        }
        self.closed = false;
        super::forest::room(&mut self.entries, 1);
        self.entries.push(pack(Entry { hold, from, blocks }));
        self.entries.len() as Moment - 1
    }

    /// Forgets what was noted since a [`close`](Self::close): it is noted again in another order.
    pub(super) fn rewind(&mut self, to: Moment) {
        self.entries.truncate(to as usize);
        self.closed = true;
    }

    /// The oldest block of a hold, and when it was stored.
    pub(super) fn oldest(&mut self, holds: &Holds) -> Option<(Moment, Spot)> {
        while let Some(packed) = self.entries.get_mut(self.front) {
            let mut entry = unpack(*packed);
            let moment = self.front as Moment;
            while entry.blocks > 0 {
                let spot = Spot { hold: entry.hold, block: entry.from };
                if holds.stands_since(spot, moment) {
                    *packed = pack(entry);
                    return Some((moment, spot));
                }
                entry.from += 1;
                entry.blocks -= 1;
            }
            self.front += 1;
        }
        None
    }

    /// Every block of a hold and when it was stored, the oldest first.
    pub(super) fn standing(&self, holds: &Holds) -> impl Iterator<Item = (Moment, Spot)> {
        self.entries.iter().enumerate().skip(self.front).flat_map(move |(moment, packed)| {
            let (moment, entry) = (moment as Moment, unpack(*packed));
            let spots = (entry.from..entry.from + entry.blocks).map(move |block| Spot { hold: entry.hold, block });
            spots.filter(move |spot| holds.stands_since(*spot, moment)).map(move |spot| (moment, spot))
        })
    }

    /// Whether a sweep is due.
    #[inline]
    pub(super) fn is_long(&self) -> bool {
        self.entries.len() > self.limit.max(SMALL)
    }

    /// Throws out what is stale, and says for each of `moments` (ascending) what it is called now.
    pub(super) fn sweep(&mut self, holds: &mut Holds, moments: &mut [Moment]) {
        let mut moments = moments.iter_mut().peekable();
        let mut kept = Vec::new();
        for (at, packed) in self.entries.iter().enumerate() {
            while let Some(moment) = moments.next_if(|moment| **moment <= at as Moment) {
                *moment = kept.len() as Moment;
            }
            if at >= self.front {
                let entry = unpack(*packed);
                holds.standing(entry.hold, entry.from, entry.blocks, at as Moment, |from, blocks| {
                    kept.push(pack(Entry { hold: entry.hold, from, blocks }));
                });
            }
        }
        for moment in moments {
            *moment = kept.len() as Moment;
        }
        kept.shrink_to(kept.len() + kept.len() / 4);
        self.limit = kept.len() + kept.len() / 2;
        self.entries = kept;
        self.front = 0;
        self.closed = true;
        holds.believe_everything();
    }
}

fn pack(entry: Entry) -> u64 {
    u64::from(entry.hold) << 32 | u64::from(entry.from) << 16 | u64::from(entry.blocks.saturating_sub(1))
}

fn unpack(packed: u64) -> Entry {
    Entry { hold: (packed >> 32) as u32, from: (packed >> 16) as u32 & 0xFFFF, blocks: (packed as u32 & 0xFFFF) + 1 }
}
