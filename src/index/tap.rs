//! What changes, told to whoever listens: each transaction of a rank as one [`Delta`].
//!
//! ```text
//! Index::listen -> Listener      Listener::follow(rank) -> what it holds now, as a delta from nothing
//!                                Listener::next         -> every delta of it from there on
//! ```
//!
//! What holds:
//!
//! * A delta tells what the rank holds differently after its transaction, and nothing else: a block that is stored
//!   and removed in one transaction, a second copy of a block, or one name of two for it, is no change.
//! * [`Listener::follow`] is of one exact point between two transactions; the deltas that follow it are numbered on
//!   from its number, without a gap. A delta that is numbered no higher than a snapshot is in that snapshot.
//! * A rank is told by places, not by its engine's names: (prefix hash, tier) is held or not. For ranks of hybrid
//!   models, also which of the noted groups holds the block that ends there: (prefix hash, group, tier).
//! * Whoever applies the changes of a delta in their order finds the block before every stored one held, or told as
//!   passed in that delta.
//! * A listener that is [interested](Interest) in removals alone hears of nothing else, and its deltas may leave out what
//!   was stored; numbers may then be missing.
//! * A listener that falls behind its bounds is cut, and told; a writer never waits for one. Where nobody listens, a
//!   transaction pays one branch at each place where something changes.
//!
//! `record` is the writer's side, `whole` the snapshot's, `queue` what lies between. What was read may be given back: the next
//! deltas are written in its memory, so that a writer and a listener need not ask for and free some for each transaction.

mod contents;
mod queue;
mod record;
mod whole;

pub use contents::RunContents;
pub use queue::{Cut, Interest, Listener, TapBounds};

pub(super) use queue::Queue;
pub(super) use record::{RankTap, emit, resolve};
pub(super) use whole::snapshot;

use std::sync::Arc;

use crate::block::{Grid, Group, GroupRule, Tier};
use crate::hash::PrefixHash;
use crate::worker::{RankId, Stamp};

/// Something a listener hears.
#[derive(Clone, Debug)]
pub enum Heard {
    /// A rank was registered. It is not followed yet.
    Registered {
        /// Which.
        rank: RankId,
        /// Its model.
        model: Arc<str>,
    },
    /// A rank that is followed has changed.
    Delta(Arc<Delta>),
}

/// What one transaction of one rank has changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Delta {
    /// Whose.
    pub rank: RankId,
    /// One more than that of the rank's delta before; a snapshot has that of the last delta in it. Never goes back
    /// while the rank is registered.
    pub number: u64,
    /// How far the rank's feed has come by it.
    pub stamp: Stamp,
    /// In the order in which they are to be applied. None where only the stamp has changed.
    pub changes: Vec<Change>,
}

/// One change of what a rank holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// The rank holds nothing from here on, and is not partial. Its grid and its groups stay.
    Cleared,
    /// Nothing is known of the rank from here on: another life of its engine begins, or a snapshot.
    Reset,
    /// Its blocks lie on this grid from here on. It holds none on another.
    Grid(Grid),
    /// All that is noted of its groups.
    Groups {
        /// The group, what it requires, and its block size in tokens.
        notes: Box<[(Group, GroupRule, u32)]>,
        /// More groups were noted than there is room for: nothing of the rank is certain.
        too_many: bool,
    },
    /// Blocks.
    Run(BlockRun),
    /// Whether a bound has made the index forget blocks that the engine may still hold.
    Partial(bool),
    /// The rank was removed, with all it held. Nothing follows.
    Gone,
}

/// Consecutive blocks of one chain to which the same has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlockRun {
    /// What.
    pub what: What,
    /// `None`: the prefix blocks themselves, in whichever group that means a prefix. Otherwise: the blocks of this
    /// noted group that end where they end.
    pub group: Option<Group>,
    /// The block before the first one; `None` where that is block 0.
    pub parent: Option<PrefixHash>,
    /// The number of the first block in its prompt, from 0.
    pub position: u32,
    /// Their contents; not empty. The prefix hashes follow from them ([`BlockRun::prefixes`]).
    pub contents: RunContents,
}

/// What has happened to blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum What {
    /// They are held on this tier, which they were not.
    Stored(Tier),
    /// They are no longer held on this tier.
    Removed(Tier),
    /// They are not held: they stand between what is held, or a prompt's beginning, and blocks that are told next.
    /// Whoever looks blocks up by prefix hash needs nothing of it.
    Passed,
}

// === impl Delta ===

impl Delta {
    /// Bytes of memory it takes, estimated.
    pub fn bytes(&self) -> usize {
        let changes: usize = self.changes.iter().map(Change::heap).sum();
        size_of::<Self>() + self.changes.capacity() * size_of::<Change>() + changes
    }
}

// === impl Change ===

impl Change {
    fn heap(&self) -> usize {
        match self {
            Self::Run(run) => run.contents.heap(),
            Self::Groups { notes, .. } => size_of_val(&**notes),
            Self::Cleared | Self::Reset | Self::Grid(_) | Self::Partial(_) | Self::Gone => 0,
        }
    }
}

// === impl BlockRun ===

impl BlockRun {
    /// The prefix hash of each block.
    pub fn prefixes(&self) -> impl Iterator<Item = PrefixHash> {
        self.contents.iter().scan(self.parent, |last, content| {
            let next = PrefixHash::after(*last, *content);
            *last = Some(next);
            Some(next)
        })
    }
}
