//! What one rank holds: its engine's names, where they stand, and how many copies of each lie where.
//!
//! ```text
//! names   engine hash          -> content, place(s), copies by (tier, group)   groups that mean a prefix
//! others  (group, engine hash) -> copies by tier                               every other group
//! ```
//!
//! This file is the table itself: what there is, and what may be read of it. What changes it is in `apply`.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use crate::block::{Grid, Group, GroupRule, Tier};
use crate::hash::{ContentHash, EngineHash, PrefixHash, Seed};
use crate::worker::Stamp;

use super::ages::{Aged, Ages, Kind, Moment};
use super::copies::{Piles, Tiers};
use super::door::{Copies, Found, Place, RankUsage};
use super::groups::Note;

/// Groups a rank may name. Engines have a handful.
pub(super) const MAX_GROUPS: usize = 64;

/// One rank's table.
#[derive(Debug)]
pub(super) struct Rank {
    pub(super) model: Arc<str>,
    pub(super) copies: Copies,
    pub(super) stamp: Stamp,
    pub(super) grid: Option<Grid>,
    pub(super) names: HashMap<EngineHash, Name>,
    pub(super) others: HashMap<(Group, EngineHash), Other>,
    /// How many names beyond the first stand at a place on a tier: only where there are any.
    pub(super) shared: HashMap<(PrefixHash, Tier), u32>,
    /// The names that stand at each place. Only the hybrid rule asks, so only hybrid ranks keep it.
    pub(super) names_at: Option<BTreeSet<(PrefixHash, EngineHash)>>,
    pub(super) notes: BTreeMap<Group, Note>,
    pub(super) groups: BTreeSet<Group>,
    /// A group was noted that there was no room for: nothing is certain any more.
    pub(super) too_many_groups: bool,
    pub(super) ages: Ages,
    pub(super) now: Moment,
    /// What the bounds count.
    pub(super) weight: usize,
    pub(super) by_tier: [u64; Tier::COUNT],
    pub(super) extra_copies: u64,
    pub(super) evicted: u64,
    pub(super) partial: bool,
}

/// A block of the groups that mean a prefix.
#[derive(Debug)]
pub(super) struct Name {
    pub(super) content: ContentHash,
    pub(super) seed: Seed,
    pub(super) places: Places,
    pub(super) piles: Piles,
    pub(super) stored: Moment,
}

/// A block of another group.
#[derive(Debug, Default)]
pub(super) struct Other {
    pub(super) piles: Piles,
    pub(super) stored: Moment,
}

/// Where a name stands. Only an engine that does not chain its hashes gives a name several places.
#[derive(Debug)]
pub(super) enum Places {
    /// One place, on every tier the name has a copy on.
    One(Spot),
    Many(Box<Many>),
}

/// A place, and what it follows: only an export asks for that.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) at: PrefixHash,
    /// The place before; `None` for block 0.
    pub(super) parent: Option<PrefixHash>,
}

/// Several places of one name.
#[derive(Debug)]
pub(super) struct Many {
    pub(super) at: HashMap<PrefixHash, Standing>,
    /// The one that was stored last.
    pub(super) last: PrefixHash,
}

/// One of several places: on which tiers, and when it was stored last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) parent: Option<PrefixHash>,
    pub(super) tiers: Tiers,
    pub(super) stored: Moment,
}

// === impl Rank ===

impl Rank {
    pub(super) fn new(model: Arc<str>, copies: Copies) -> Self {
        Self {
            model,
            copies,
            stamp: Stamp::default(),
            grid: None,
            names: HashMap::new(),
            others: HashMap::new(),
            shared: HashMap::new(),
            names_at: None,
            notes: BTreeMap::new(),
            groups: BTreeSet::new(),
            too_many_groups: false,
            ages: Ages::default(),
            now: 0,
            weight: 0,
            by_tier: [0; Tier::COUNT],
            extra_copies: 0,
            evicted: 0,
            partial: false,
        }
    }

    /// The name a hash is known by: itself, or for a digest the integer form of the same digest.
    pub(super) fn known(&self, hash: EngineHash) -> Option<EngineHash> {
        forms(hash).find(|form| self.names.contains_key(form))
    }

    pub(super) fn find(&self, hash: EngineHash) -> Option<Found> {
        let name = self.names.get(&self.known(hash)?)?;
        let (prefix, ambiguous) = match &name.places {
            Places::One(spot) => (spot.at, false),
            Places::Many(many) => (many.last, many.at.len() > 1),
        };
        Some(Found { place: Place { prefix, seed: name.seed }, seed: name.seed, ambiguous })
    }

    /// Makes a group known; `false` where there is no room for it.
    pub(super) fn admit(&mut self, group: Group) -> bool {
        if !self.groups.contains(&group) && self.groups.len() < MAX_GROUPS {
            self.groups.insert(group);
        }
        self.groups.contains(&group)
    }

    pub(super) fn note_group(&mut self, group: Group, rule: GroupRule, block_size: u32) {
        if !self.admit(group) {
            self.too_many_groups = true;
            return;
        }
        self.notes.insert(group, Note { rule, block_size: block_size.max(1) });
        if self.names_at.is_none() {
            let all = self.names.iter().flat_map(|(hash, name)| name.places.iter().map(|at| (at, *hash)));
            self.names_at = Some(all.collect());
        }
    }

    /// Forgets every group and what it requires. Only for a rank that holds nothing.
    pub(super) fn forget_groups(&mut self) {
        self.notes.clear();
        self.groups.clear();
        self.too_many_groups = false;
        self.names_at = None;
    }

    /// Whether the match must be cut to what the rank's groups hold.
    pub(super) fn is_hybrid(&self) -> bool {
        !self.notes.is_empty() || self.too_many_groups
    }

    /// On which tiers a group holds a block of the name of the block at a place.
    pub(super) fn group_tiers(&self, group: Group, at: PrefixHash) -> impl Iterator<Item = Tiers> {
        // The places of the set are ordered, so one place's names lie side by side from the smallest on.
        let smallest = EngineHash::from_u64(0);
        let standing = self.names_at.iter().flat_map(move |set| set.range((at, smallest)..));
        standing.take_while(move |(place, _)| *place == at).flat_map(move |(_, hash)| {
            let other = self.others.get(&(group, *hash)).map(|other| other.piles.tiers());
            let prefix = self.names.get(hash).map(|name| name.piles.tiers_in(group));
            [other, prefix].into_iter().flatten()
        })
    }

    pub(super) fn usage(&self) -> RankUsage {
        let tables = self.names.capacity() * size_of::<(EngineHash, Name)>()
            + self.others.capacity() * size_of::<((Group, EngineHash), Other)>()
            + self.shared.capacity() * size_of::<((PrefixHash, Tier), u32)>()
            + self.names_at.as_ref().map_or(0, |set| set.len() * size_of::<(PrefixHash, EngineHash)>() * 3 / 2)
            + self.ages.heap();
        RankUsage {
            blocks: self.names.len() as u64,
            by_tier: self.by_tier,
            window_blocks: self.others.len() as u64,
            extra_copies: self.extra_copies,
            bytes: tables as u64,
            grid: self.grid,
            groups: self.groups.iter().copied().collect(),
            evicted: self.evicted,
            stamp: self.stamp,
        }
    }

    /// Whether an entry of the ages still speaks of a block that is held.
    pub(super) fn is_live(names: &Names, others: &Others, aged: &Aged) -> bool {
        let stored = match aged.kind {
            Kind::Prefix => names.get(&aged.hash).map(|name| name.stored),
            Kind::Other(group) => others.get(&(group, aged.hash)).map(|other| other.stored),
        };
        stored == Some(aged.at)
    }
}

type Names = HashMap<EngineHash, Name>;
type Others = HashMap<(Group, EngineHash), Other>;

// === impl Places ===

impl Places {
    /// Every place.
    pub(super) fn iter(&self) -> impl Iterator<Item = PrefixHash> {
        let (one, many) = match self {
            Self::One(spot) => (Some(spot.at), None),
            Self::Many(many) => (None, Some(many.at.keys().copied())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// Every place with the tiers the name has a copy on there; `all` are the tiers it has one on anywhere.
    pub(super) fn with_tiers(&self, all: Tiers) -> impl Iterator<Item = (PrefixHash, Tiers)> {
        let (one, many) = match self {
            Self::One(spot) => (Some((spot.at, all)), None),
            Self::Many(many) => (None, Some(many.at.iter().map(|(at, standing)| (*at, standing.tiers)))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    pub(super) fn count(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(many) => many.at.len(),
        }
    }

    /// Puts the name at a place too, as the last that was stored, with one tier more there. Says whether the tier,
    /// and whether the place, is new to it. `all` are the tiers the name had a copy on before.
    pub(super) fn put(&mut self, spot: Spot, tier: Tier, all: Tiers, stored: Moment) -> Put {
        let Spot { at, parent } = spot;
        match self {
            Self::One(one) if one.at == at => Put { new_tier: !all.has(tier), new_place: false },
            Self::One(one) => {
                // The first one's moment is not known any more; every later one is larger.
                let first = Standing { parent: one.parent, tiers: all, stored: 0 };
                let second = Standing { parent, tiers: Tiers::default().with(tier), stored };
                *self = Self::Many(Box::new(Many { at: HashMap::from([(one.at, first), (at, second)]), last: at }));
                Put { new_tier: true, new_place: true }
            }
            Self::Many(many) => {
                many.last = at;
                let places = many.at.len();
                let standing = many.at.entry(at).or_insert(Standing { parent, tiers: Tiers::default(), stored });
                let new_tier = !standing.tiers.has(tier);
                *standing = Standing { tiers: standing.tiers.with(tier), stored, ..*standing };
                Put { new_tier, new_place: many.at.len() > places }
            }
        }
    }
}

/// What [`Places::put`] added.
pub(super) struct Put {
    pub(super) new_tier: bool,
    pub(super) new_place: bool,
}

/// The names a hash may be known by, the best first: itself, then the integer form of a digest.
pub(super) fn forms(hash: EngineHash) -> impl Iterator<Item = EngineHash> {
    std::iter::once(hash).chain(hash.is_wide().then(|| hash.narrow()))
}
