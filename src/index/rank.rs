//! One rank: what it holds by its engine's names, and where it stands among others.
//!
//! ```text
//! names   engine hash -> spot (hold, block)      holds   hold -> run, and the names of its blocks
//! ages    which was stored first                 odd     whatever is out of the ordinary
//! tips    the ends of what was stored last
//! ```
//!
//! All of this is the writer's own. A match reads none of it, but for the odd tables of hybrid ranks.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use crate::block::{Grid, Group, Tier};
use crate::hash::EngineHash;
use crate::worker::{RankId, Stamp};

use super::ages::Ages;
use super::apply::Scratch;
use super::carry::Restoring;
use super::door::{Copies, RankUsage};
use super::forest::Forest;
use super::gate::Gate;
use super::hold::{Holds, Spot};
use super::names::Names;
use super::odd::{Odd, forms};
use super::seats::Face;
use super::tap::RankTap;
use super::tips::Tips;

pub(super) use super::odd::MAX_GROUPS;

/// A registered rank, shared by its writer, the directory and its seat.
#[derive(Debug)]
pub(super) struct Cell {
    pub(super) id: RankId,
    pub(super) model: Arc<str>,
    pub(super) copies: Copies,
    rank: Mutex<Rank>,
    /// Locked inside the gate's section where the rank has a seat, never the other way round.
    pub(super) odd: RwLock<Odd>,
}

/// What only a rank's writer touches.
#[derive(Debug)]
pub(super) struct Rank {
    /// The rank was removed.
    pub(super) gone: bool,
    pub(super) stamp: Stamp,
    pub(super) grid: Option<Grid>,
    /// The forest of its grid, and its seat there.
    pub(super) scope: Option<(Arc<Gate<Forest>>, u32)>,
    pub(super) names: Names,
    pub(super) holds: Holds,
    pub(super) ages: Ages,
    pub(super) tips: Tips,
    /// There is something in the odd tables: the short ways are closed.
    pub(super) has_odd: bool,
    /// Its blocks' names are their prefix hashes.
    pub(super) is_named_by_prefix: bool,
    pub(super) hybrid: bool,
    /// The group of ordinary names.
    pub(super) home: Group,
    pub(super) groups: BTreeSet<Group>,
    /// Ordinary names.
    pub(super) ordinary: u64,
    /// Odd names of prefix groups.
    pub(super) odd_names: u64,
    /// What the bounds count.
    pub(super) weight: usize,
    /// It may weigh so much more without asking.
    pub(super) spare: usize,
    pub(super) evicted: u64,
    pub(super) partial: bool,
    /// Lent while a transaction needs it.
    pub(super) scratch: Option<Box<Scratch>>,
    /// An export is being taken back.
    pub(super) restoring: Option<Restoring>,
    /// Where somebody listens.
    pub(super) tap: Option<Box<RankTap>>,
    /// The number of the last delta that was told.
    pub(super) told: u64,
}

// === impl Cell ===

impl Cell {
    pub(super) fn new(id: RankId, model: Arc<str>, copies: Copies) -> Self {
        let rank = Rank {
            gone: false,
            stamp: Stamp::default(),
            grid: None,
            scope: None,
            names: Names::new(),
            holds: Holds::default(),
            ages: Ages::default(),
            tips: Tips::default(),
            has_odd: false,
            is_named_by_prefix: false,
            hybrid: false,
            home: Group::default(),
            groups: BTreeSet::new(),
            ordinary: 0,
            odd_names: 0,
            weight: 0,
            spare: 0,
            evicted: 0,
            partial: false,
            scratch: None,
            restoring: None,
            tap: None,
            told: 0,
        };
        Self { id, model, copies, rank: Mutex::new(rank), odd: RwLock::default() }
    }

    // A panic under a lock is a bug that has been reported already; refusing ever after would make it an outage.
    pub(super) fn lock(&self) -> MutexGuard<'_, Rank> {
        self.rank.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What matches say of it.
    pub(super) fn face(self: &Arc<Self>, rank: &Rank) -> Face {
        Face::new(self.clone(), rank.stamp, rank.held(), rank.partial, rank.hybrid)
    }

    pub(super) fn usage(&self, rank: &Rank) -> RankUsage {
        let odd = self.odd.read().unwrap_or_else(PoisonError::into_inner);
        let mut by_tier = odd.by_tier;
        by_tier[Tier::Device.index()] += rank.ordinary;
        RankUsage {
            blocks: rank.held(),
            by_tier,
            window_blocks: odd.others.len() as u64,
            extra_copies: odd.extra_copies,
            bytes: (rank.names.heap() + rank.holds.heap() + rank.ages.heap() + rank.tips.heap() + odd.heap()) as u64,
            grid: rank.grid,
            groups: rank.groups.iter().copied().collect(),
            evicted: rank.evicted,
            stamp: rank.stamp,
        }
    }
}

// === impl Rank ===

impl Rank {
    /// Names of prefix groups.
    pub(super) fn held(&self) -> u64 {
        self.ordinary + self.odd_names
    }

    /// Makes a group known; `false` where there is no room for it.
    pub(super) fn admit(&mut self, group: Group) -> bool {
        if self.groups.contains(&group) {
            return true;
        }
        self.groups.len() < MAX_GROUPS && self.groups.insert(group)
    }

    /// Looks up an ordinary name under exactly this hash.
    #[inline]
    pub(super) fn spot(&self, hash: EngineHash) -> Option<Spot> {
        let position = self.names.get(self.names.aim(hash), hash, self.holds.lines())?;
        Some(self.holds.spot(position))
    }

    /// Takes an ordinary name away from its spot.
    pub(super) fn take(&mut self, name: EngineHash, spot: Spot) {
        self.names.take(self.names.aim(name), self.holds.position(spot));
        self.holds.take(spot);
    }

    /// Gives memory back after removals, where most of a table lies empty.
    #[inline]
    pub(super) fn tidy(&mut self) {
        if self.names.is_loose() || self.holds.lines().is_loose() {
            self.tidy_apart();
        }
    }

    #[cold]
    fn tidy_apart(&mut self) {
        if self.holds.lines().is_loose() {
            self.holds.compact();
        }
        let names = self.holds.names().map(|(name, _, position)| (name, position));
        self.names.rebuild(self.ordinary as usize, names, self.holds.lines());
    }

    /// The name a hash is known by: itself, or for a digest the integer form of the same digest.
    pub(super) fn known(&self, odd: &Odd, hash: EngineHash) -> Option<EngineHash> {
        forms(hash).find(|form| odd.names.contains_key(form) || self.spot(*form).is_some())
    }
}
