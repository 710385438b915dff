//! What is out of the ordinary in what a rank holds. Nothing of this exists for a rank that has nothing of it.
//!
//! * names with several copies, on another tier than the device, in another group than the rank's first, at several
//!   places, under another seed than their neighbours, or at a place that has another name already;
//! * blocks of groups that do not mean a prefix;
//! * which names stand where, for hybrid models: their rule asks from the place to the name.
//!
//! It is changed while its forest's gate is locked for writing, so matches see it whole.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::block::{Group, GroupRule, Tier};
use crate::hash::{ContentHash, EngineHash, Seed};

use super::ages::Moment;
use super::copies::{Piles, Tiers};
use super::groups::Note;
use super::hold::Spot;

/// Groups a rank may name. Engines have a handful.
pub(super) const MAX_GROUPS: usize = 64;

/// When something odd was stored: among ordinary blocks, and among odd ones.
pub(super) type OddMoment = (Moment, u64);

/// The side tables of one rank.
#[derive(Debug, Default)]
pub(super) struct Odd {
    pub(super) names: HashMap<EngineHash, OddName>,
    pub(super) others: HashMap<(Group, EngineHash), Other>,
    /// How many names beyond the first stand at a place on a tier: only where there are any.
    pub(super) shared: HashMap<(Spot, Tier), u32>,
    /// The names at each place, ordinary ones too: only for ranks whose groups have notes.
    names_at: Option<BTreeSet<(Spot, EngineHash)>>,
    pub(super) notes: BTreeMap<Group, Note>,
    /// A group was noted that there was no room for: nothing is certain any more.
    pub(super) too_many_groups: bool,
    /// The group of ordinary names.
    pub(super) home: Group,
    pub(super) by_tier: [u64; Tier::COUNT],
    pub(super) extra_copies: u64,
    ages: BTreeMap<OddMoment, Key>,
    now: u64,
}

/// What an odd age speaks of.
#[derive(Clone, Copy, Debug)]
pub(super) enum Key {
    Name(EngineHash),
    Other(Group, EngineHash),
}

/// A name that is not ordinary.
#[derive(Debug)]
pub(super) struct OddName {
    pub(super) content: ContentHash,
    pub(super) seed: Seed,
    pub(super) places: Places,
    pub(super) piles: Piles,
    pub(super) stored: OddMoment,
}

/// A block of a group that does not mean a prefix.
#[derive(Debug, Default)]
pub(super) struct Other {
    pub(super) piles: Piles,
    pub(super) stored: OddMoment,
}

/// Where a name stands. Only an engine that does not chain its hashes gives a name several places.
#[derive(Debug)]
pub(super) enum Places {
    /// One place, on every tier the name has a copy on.
    One(Spot),
    Many(Box<Many>),
}

/// Several places of one name.
#[derive(Debug)]
pub(super) struct Many {
    pub(super) at: HashMap<Spot, Standing>,
    /// The one that was stored last.
    pub(super) last: Spot,
}

/// One of several places: on which tiers, and when it was stored last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Standing {
    pub(super) tiers: Tiers,
    stored: OddMoment,
}

/// What [`Places::put`] added.
pub(super) struct Put {
    pub(super) new_tier: bool,
    pub(super) new_place: bool,
}

/// What is left of a name's places after [`Places::withdraw`].
pub(super) struct Withdrawn {
    /// Places that lost the tier, and whether they are the name's no more.
    pub(super) lost: Vec<(Spot, bool)>,
    pub(super) left: usize,
}

// === impl Odd ===

impl Odd {
    pub(super) fn is_hybrid(&self) -> bool {
        !self.notes.is_empty() || self.too_many_groups
    }

    /// Whether the ordinary paths must look here.
    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty() && self.others.is_empty() && self.names_at.is_none() && !self.too_many_groups
    }

    /// Notes a group's rule. `ordinary`: the rank's ordinary names, asked for once.
    pub(super) fn note(
        &mut self,
        group: Group,
        rule: GroupRule,
        block_size: u32,
        ordinary: impl Iterator<Item = (EngineHash, Spot)>,
    ) {
        self.notes.insert(group, Note { rule, block_size: block_size.max(1) });
        if self.names_at.is_none() {
            let odd = self.names.iter().flat_map(|(hash, name)| name.places.iter().map(|spot| (spot, *hash)));
            self.names_at = Some(ordinary.map(|(name, spot)| (spot, name)).chain(odd).collect());
        }
    }

    /// Notes that a name stands at a place.
    pub(super) fn stands(&mut self, spot: Spot, name: EngineHash) {
        if let Some(set) = &mut self.names_at {
            set.insert((spot, name));
        }
    }

    pub(super) fn stands_no_more(&mut self, spot: Spot, name: EngineHash) {
        if let Some(set) = &mut self.names_at {
            set.remove(&(spot, name));
        }
    }

    /// Every place where a name stands, for ranks whose groups have notes.
    pub(super) fn places(&self) -> impl Iterator<Item = Spot> {
        self.names_at.iter().flatten().map(|(spot, _)| *spot)
    }

    /// On which tiers a group holds a block of a name that stands at a place.
    pub(super) fn group_tiers(&self, group: Group, spot: Spot) -> impl Iterator<Item = Tiers> {
        // The places of the set are ordered, so one place's names lie side by side from the smallest on.
        let smallest = EngineHash::from_u64(0);
        let standing = self.names_at.iter().flat_map(move |set| set.range((spot, smallest)..));
        standing.take_while(move |(place, _)| *place == spot).flat_map(move |(_, hash)| {
            let other = self.others.get(&(group, *hash)).map(|other| other.piles.tiers());
            let prefix = match self.names.get(hash) {
                Some(name) => name.piles.tiers_in(group),
                None if group == self.home => Tiers::DEVICE,
                None => Tiers::default(),
            };
            [other, Some(prefix)].into_iter().flatten()
        })
    }

    /// The moment of what is stored now.
    pub(super) fn moment(&mut self, ordinary: Moment) -> OddMoment {
        self.now += 1;
        (ordinary, self.now)
    }

    pub(super) fn age(&mut self, at: OddMoment, key: Key) {
        self.ages.insert(at, key);
    }

    pub(super) fn forget_age(&mut self, at: OddMoment) {
        self.ages.remove(&at);
    }

    pub(super) fn oldest(&self) -> Option<(OddMoment, Key)> {
        self.ages.first_key_value().map(|(at, key)| (*at, *key))
    }

    /// Everything odd by the moment among ordinary blocks, the oldest first.
    pub(super) fn aged(&self) -> impl Iterator<Item = (Moment, Key)> {
        self.ages.iter().map(|((moment, _), key)| (*moment, *key))
    }

    /// Renames the moments of ordinary blocks, as a sweep of them does.
    pub(super) fn renumber(&mut self, sweep: impl FnOnce(&mut [Moment])) {
        let mut moments: Vec<Moment> = self.ages.keys().map(|(at, _)| *at).collect();
        sweep(&mut moments);
        for ((_, key), moment) in std::mem::take(&mut self.ages).into_iter().zip(moments) {
            let stored = match key {
                Key::Name(hash) => self.names.get_mut(&hash).map(|name| &mut name.stored),
                Key::Other(group, hash) => self.others.get_mut(&(group, hash)).map(|other| &mut other.stored),
            };
            if let Some(stored) = stored {
                stored.0 = moment;
                self.ages.insert(*stored, key);
            }
        }
    }

    /// Drops what is held. The groups' notes stay.
    pub(super) fn clear(&mut self) {
        let hybrid = self.names_at.is_some();
        *self = Self {
            notes: std::mem::take(&mut self.notes),
            too_many_groups: self.too_many_groups,
            home: self.home,
            names_at: hybrid.then(BTreeSet::new),
            ..Self::default()
        };
    }

    pub(super) fn tidy(&mut self) {
        give_back(&mut self.names);
        give_back(&mut self.others);
        give_back(&mut self.shared);
    }

    pub(super) fn heap(&self) -> usize {
        self.names.capacity() * size_of::<(EngineHash, OddName)>()
            + self.others.capacity() * size_of::<((Group, EngineHash), Other)>()
            + self.shared.capacity() * size_of::<((Spot, Tier), u32)>()
            + self.names_at.as_ref().map_or(0, |set| set.len() * size_of::<(Spot, EngineHash)>() * 3 / 2)
            + self.ages.len() * size_of::<(OddMoment, Key)>() * 3 / 2
    }
}

/// Gives a table's memory back once three quarters of it lie empty; amortised, a constant per removal.
fn give_back<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>) {
    /// Tables smaller than this are not worth the work.
    const SMALL: usize = 64;
    if map.capacity() > SMALL && map.len() < map.capacity() / 4 {
        map.shrink_to(map.len() * 2);
    }
}

// === impl Places ===

impl Places {
    /// Every place.
    pub(super) fn iter(&self) -> impl Iterator<Item = Spot> {
        self.with_tiers(Tiers::default()).map(|(at, _)| at)
    }

    /// Every place with the tiers the name has a copy on there; `all` are the tiers it has one on anywhere.
    pub(super) fn with_tiers(&self, all: Tiers) -> impl Iterator<Item = (Spot, Tiers)> {
        let (one, many) = match self {
            Self::One(at) => (Some((*at, all)), None),
            Self::Many(many) => (None, Some(many.at.iter().map(|(at, standing)| (*at, standing.tiers)))),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }

    /// The same, in the order in which they were stored.
    pub(super) fn in_order(&self, all: Tiers) -> Vec<(Spot, Tiers)> {
        match self {
            Self::One(at) => vec![(*at, all)],
            Self::Many(many) => {
                let mut standing: Vec<_> = many.at.iter().collect();
                standing.sort_unstable_by_key(|(at, standing)| (**at == many.last, standing.stored.1));
                standing.into_iter().map(|(at, standing)| (*at, standing.tiers)).collect()
            }
        }
    }

    pub(super) fn count(&self) -> usize {
        match self {
            Self::One(_) => 1,
            Self::Many(many) => many.at.len(),
        }
    }

    /// The place that was stored last.
    pub(super) fn last(&self) -> Spot {
        match self {
            Self::One(at) => *at,
            Self::Many(many) => many.last,
        }
    }

    /// Puts the name at a place too, as the last that was stored, with one tier more there. Says whether the tier,
    /// and whether the place, is new to it. `all` are the tiers the name had a copy on before.
    pub(super) fn put(&mut self, at: Spot, tier: Tier, all: Tiers, stored: OddMoment) -> Put {
        match self {
            Self::One(one) if *one == at => Put { new_tier: !all.has(tier), new_place: false },
            Self::One(one) => {
                // The first one's moment is not known any more; every later one is larger.
                let first = Standing { tiers: all, stored: (0, 0) };
                let second = Standing { tiers: Tiers::of(tier), stored };
                *self = Self::Many(Box::new(Many { at: HashMap::from([(*one, first), (at, second)]), last: at }));
                Put { new_tier: true, new_place: true }
            }
            Self::Many(many) => {
                many.last = at;
                let places = many.at.len();
                let standing = many.at.entry(at).or_insert(Standing { tiers: Tiers::default(), stored });
                let new_tier = !standing.tiers.has(tier);
                *standing = Standing { tiers: standing.tiers.and(Tiers::of(tier)), stored };
                Put { new_tier, new_place: many.at.len() > places }
            }
        }
    }

    /// Takes a tier away from every place of several.
    pub(super) fn withdraw(&mut self, tier: Tier) -> Withdrawn {
        let mut lost = Vec::new();
        let Self::Many(many) = self else { return Withdrawn { lost, left: 1 } };
        many.at.retain(|at, standing| {
            let had = standing.tiers.has(tier);
            standing.tiers = standing.tiers.minus(Tiers::of(tier));
            if had {
                lost.push((*at, standing.tiers.is_empty()));
            }
            !standing.tiers.is_empty()
        });
        give_back(&mut many.at);
        let left = many.at.len();
        if let Some((last, _)) = many.at.iter().max_by_key(|(_, standing)| standing.stored.1) {
            many.last = *last;
            if left == 1 {
                *self = Self::One(*last);
            }
        }
        Withdrawn { lost, left }
    }
}

/// The names a hash may be known by, the best first: itself, then the integer form of a digest.
pub(super) fn forms(hash: EngineHash) -> impl Iterator<Item = EngineHash> {
    std::iter::once(hash).chain(hash.is_wide().then(|| hash.narrow()))
}
