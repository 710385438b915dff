//! The reference model: the eleven sentences of what the index answers, written down as plainly as they are said.
//!
//! It is slow on purpose and shares no code with the index: a place is the whole list of contents that leads to
//! it, a match compares lists, the hybrid rule tries every length. The index, and the pipeline of normalizer and
//! index, are checked against it on histories that contain every operation.
//!
//! It can be told the same things at two heights:
//!
//! * as the index is told ([`Model::find`], [`Model::store`]): parents resolved, contents hashed;
//! * as an engine tells ([`Model::store_event`]): parents by engine hash, blocks by tokens. At this height orphans
//!   wait for their parents, removals find them where they wait, and a clear drops them.
//!
//! | sentence | here |
//! |---|---|
//! | 1 contiguous, 2 by content, 6 per tier, 10 hybrid | `answer` |
//! | 2 moves, 3 copies, 5 removals, 7 clears, 11 bounds | this file |
//! | 4 orphans | `orphans` |
//! | 8 whole batches | one thread: ask between batches |
//! | 9 generations | a [`RankId`] that is not registered is refused |

mod answer;
mod orphans;

use std::collections::{BTreeMap, BTreeSet};

use crate::block::{Grid, Group, GroupRule, Tier};
use crate::hash::{ContentHash, EngineHash, PrefixHash, Seed};
use crate::worker::{RankId, Stamp};

use super::door::{Block, Copies, IndexError, Limits, RankUsage, RemoveOutcome, StoreOutcome};
use super::rank::MAX_GROUPS;

pub use orphans::{EventBlock, StoreEvent};

/// The model of a whole index.
#[derive(Clone, Debug)]
pub struct Model {
    limits: Limits,
    /// Blocks a rank may have waiting for parents.
    orphan_limit: usize,
    ranks: BTreeMap<RankId, Rank>,
}

/// A place: every content from block 0 on.
pub type Path = Vec<ContentHash>;

/// Where a known block stands.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ModelPlace {
    /// Its place.
    pub path: Path,
    /// The seed of its chain.
    pub seed: Seed,
}

/// What a run of blocks hangs from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ModelParent {
    /// Nothing: a prompt's first block, hashed under this seed.
    Root(Seed),
    /// A known block.
    Under(ModelPlace),
}

#[derive(Clone, Debug)]
struct Rank {
    model: String,
    copies: Copies,
    stamp: Stamp,
    grid: Option<Grid>,
    groups: BTreeSet<Group>,
    notes: BTreeMap<Group, (GroupRule, u32)>,
    too_many_groups: bool,
    /// Blocks of the groups that mean a prefix.
    names: BTreeMap<EngineHash, Name>,
    /// Blocks of every other group.
    others: BTreeMap<(Group, EngineHash), Held>,
    parked: Vec<orphans::Parked>,
    lost_orphans: u64,
    now: u64,
    evicted: u64,
    partial: bool,
}

#[derive(Clone, Debug)]
struct Name {
    content: ContentHash,
    seed: Seed,
    /// In the order in which they were stored last; the newest stands last.
    places: Vec<Standing>,
    held: Held,
}

#[derive(Clone, Debug)]
struct Standing {
    path: Path,
    prefix: PrefixHash,
    tiers: BTreeSet<usize>,
}

/// How many copies lie where, and when one was stored last.
#[derive(Clone, Debug, Default)]
struct Held {
    copies: BTreeMap<(usize, Group), u32>,
    stored: u64,
}

// === impl Model ===

impl Model {
    /// An empty model. `orphan_limit`: blocks a rank may have waiting for unknown parents.
    pub fn new(limits: Limits, orphan_limit: usize) -> Self {
        Self { limits, orphan_limit, ranks: BTreeMap::new() }
    }

    /// Registers a rank under the identity that the index gave it.
    pub fn register(&mut self, id: RankId, model: &str, copies: Copies) {
        self.ranks.insert(id, Rank::new(model, copies));
    }

    /// Removes a rank with all it holds.
    pub fn remove_rank(&mut self, id: RankId) {
        self.ranks.remove(&id);
    }

    /// Fixes a rank's grid.
    ///
    /// # Errors
    /// [`IndexError::GridConflict`] where it holds blocks on another, [`IndexError::WorkerGone`].
    pub fn set_grid(&mut self, id: RankId, got: Grid) -> Result<(), IndexError> {
        let rank = self.rank_mut(id)?;
        match rank.grid {
            Some(have) if have != got && !rank.names.is_empty() => Err(IndexError::GridConflict { have, got }),
            _ => {
                rank.grid = Some(got);
                Ok(())
            }
        }
    }

    /// Notes what a group requires.
    ///
    /// # Errors
    /// [`IndexError::WorkerGone`].
    pub fn note_group(&mut self, id: RankId, group: Group, rule: GroupRule, size: u32) -> Result<(), IndexError> {
        let rank = self.rank_mut(id)?;
        if rank.admits(group) {
            rank.notes.insert(group, (rule, size.max(1)));
        } else {
            rank.too_many_groups = true;
        }
        Ok(())
    }

    /// Where a rank's block of this name stands; the newest place where there are several.
    pub fn find(&self, id: RankId, hash: EngineHash) -> Option<ModelPlace> {
        let rank = self.ranks.get(&id)?;
        let name = rank.names.get(&rank.known(hash)?)?;
        name.places.last().map(|place| ModelPlace { path: place.path.clone(), seed: name.seed })
    }

    /// Stores a run of blocks, each under the one before.
    ///
    /// # Errors
    /// [`IndexError::WorkerGone`].
    pub fn store(
        &mut self,
        id: RankId,
        parent: &ModelParent,
        tier: Tier,
        group: Group,
        run: &[Block],
    ) -> Result<StoreOutcome, IndexError> {
        let rank = self.rank_mut(id)?;
        let mut outcome = StoreOutcome::default();
        if rank.grid.is_none() || !rank.admits(group) {
            return Ok(outcome);
        }
        let (mut path, seed) = match parent {
            ModelParent::Root(seed) => (Path::new(), *seed),
            ModelParent::Under(place) => (place.path.clone(), place.seed),
        };
        for block in run {
            path.push(block.content);
            let rank = self.rank_mut(id)?;
            let moved = rank.names.get(&block.engine).is_some_and(|name| name.content != block.content);
            if moved {
                rank.names.remove(&block.engine);
            }
            let before = rank.store_block(block, &path, seed, tier, group);
            match (moved, before) {
                (true, _) => outcome.moved += 1,
                (false, 0) => outcome.added += 1,
                (false, _) => outcome.copies += 1,
            }
            outcome.evicted += self.keep_bounds(id);
        }
        Ok(outcome)
    }

    /// Counts one copy more of known blocks; how many names were unknown, or stand for several places.
    ///
    /// # Errors
    /// [`IndexError::WorkerGone`].
    pub fn store_known(
        &mut self,
        id: RankId,
        tier: Tier,
        group: Group,
        hashes: &[EngineHash],
    ) -> Result<usize, IndexError> {
        let rank = self.rank_mut(id)?;
        if !rank.admits(group) {
            return Ok(hashes.len());
        }
        let (copies, mut unknown) = (rank.copies, 0);
        for hash in hashes {
            rank.now += 1;
            let name = rank.known(*hash).and_then(|known| rank.names.get_mut(&known));
            let Some(Name { places, held, .. }) = name else {
                unknown += 1;
                continue;
            };
            let [place] = &mut places[..] else {
                unknown += 1;
                continue;
            };
            held.add(tier, group, copies, rank.now);
            place.tiers.insert(tier.index());
        }
        Ok(unknown)
    }

    /// Counts one copy more of blocks of a group that is known by names only.
    ///
    /// # Errors
    /// [`IndexError::WorkerGone`].
    pub fn hold(&mut self, id: RankId, tier: Tier, group: Group, hashes: &[EngineHash]) -> Result<(), IndexError> {
        if !self.rank_mut(id)?.admits(group) {
            return Ok(());
        }
        for hash in hashes {
            let rank = self.rank_mut(id)?;
            rank.now += 1;
            let is_known = |h: &EngineHash| rank.names.contains_key(h) || rank.others.contains_key(&(group, *h));
            let name =
                if !is_known(hash) && hash.is_wide() && is_known(&hash.narrow()) { hash.narrow() } else { *hash };
            let (copies, now) = (rank.copies, rank.now);
            rank.others.entry((group, name)).or_default().add(tier, group, copies, now);
            self.keep_bounds(id);
        }
        Ok(())
    }

    /// Removes one copy of each name.
    ///
    /// # Errors
    /// [`IndexError::WorkerGone`].
    pub fn remove(
        &mut self,
        id: RankId,
        tier: Tier,
        group: Group,
        hashes: &[EngineHash],
    ) -> Result<RemoveOutcome, IndexError> {
        let rank = self.rank_mut(id)?;
        let mut outcome = RemoveOutcome::default();
        for hash in hashes {
            let mut left = rank.remove_block(tier, group, *hash);
            if left.is_none() && hash.is_wide() {
                left = rank.remove_block(tier, group, hash.narrow());
            }
            match left.or_else(|| rank.remove_parked(tier, group, *hash)) {
                None => outcome.unknown += 1,
                Some(0) => outcome.removed += 1,
                Some(_) => outcome.copies += 1,
            }
        }
        Ok(outcome)
    }

    /// Drops everything the rank holds and everything that waits. Its grid and its groups stay known.
    ///
    /// # Errors
    /// [`IndexError::WorkerGone`].
    pub fn clear(&mut self, id: RankId) -> Result<(), IndexError> {
        let rank = self.rank_mut(id)?;
        rank.names.clear();
        rank.others.clear();
        rank.parked.clear();
        rank.partial = false;
        Ok(())
    }

    /// [`Model::clear`], and the grid and the groups are forgotten too.
    ///
    /// # Errors
    /// [`IndexError::WorkerGone`].
    pub fn reset(&mut self, id: RankId) -> Result<(), IndexError> {
        self.clear(id)?;
        let rank = self.rank_mut(id)?;
        rank.grid = None;
        rank.notes.clear();
        rank.groups.clear();
        rank.too_many_groups = false;
        Ok(())
    }

    /// Ends a batch.
    ///
    /// # Errors
    /// [`IndexError::WorkerGone`].
    pub fn commit(&mut self, id: RankId, stamp: Stamp) -> Result<(), IndexError> {
        self.rank_mut(id)?.stamp = stamp;
        Ok(())
    }

    /// What a rank holds; `bytes` is 0, the model does not know.
    pub fn usage(&self, id: RankId) -> Option<RankUsage> {
        let rank = self.ranks.get(&id)?;
        let all = rank.names.values().map(|name| &name.held).chain(rank.others.values());
        let mut by_tier = [0; Tier::COUNT];
        for name in rank.names.values() {
            for tier in name.held.tiers() {
                by_tier[tier] += 1;
            }
        }
        Some(RankUsage {
            blocks: rank.names.len() as u64,
            by_tier,
            window_blocks: rank.others.len() as u64,
            extra_copies: all.flat_map(|held| held.copies.values()).map(|copies| u64::from(copies - 1)).sum(),
            bytes: 0,
            grid: rank.grid,
            groups: rank.groups.iter().copied().collect(),
            evicted: rank.evicted,
            stamp: rank.stamp,
        })
    }

    /// The grids of a model's ranks, ascending; `None`: no rank has this model.
    pub fn grids(&self, model: &str) -> Option<Vec<Grid>> {
        let mut ranks = self.ranks.values().filter(|rank| rank.model == model).peekable();
        ranks.peek()?;
        let grids: BTreeSet<Grid> = ranks.filter_map(|rank| rank.grid).collect();
        Some(grids.into_iter().collect())
    }

    /// Lets the rank's oldest blocks go until the bounds hold.
    fn keep_bounds(&mut self, id: RankId) -> usize {
        let mut evicted = 0;
        loop {
            let total: usize = self.ranks.values().map(Rank::weight).sum();
            let Some(rank) = self.ranks.get_mut(&id) else { return evicted };
            if rank.weight() <= self.limits.blocks_per_rank && total <= self.limits.blocks_in_all {
                return evicted;
            }
            let name = rank.names.iter().min_by_key(|(_, name)| name.held.stored);
            let name = name.map(|(hash, name)| (name.held.stored, *hash));
            let other = rank.others.iter().min_by_key(|(_, held)| held.stored);
            let other = other.map(|(key, held)| (held.stored, *key));
            match (name, other) {
                (None, None) => return evicted,
                (Some((stored, hash)), other) if other.is_none_or(|(other, _)| stored < other) => {
                    rank.names.remove(&hash);
                }
                (_, other) => {
                    other.and_then(|(_, key)| rank.others.remove(&key));
                }
            }
            rank.partial = true;
            rank.evicted += 1;
            evicted += 1;
        }
    }

    fn rank_mut(&mut self, id: RankId) -> Result<&mut Rank, IndexError> {
        self.ranks.get_mut(&id).ok_or(IndexError::WorkerGone)
    }
}

// === impl Rank ===

impl Rank {
    fn new(model: &str, copies: Copies) -> Self {
        Self {
            model: model.to_owned(),
            copies,
            stamp: Stamp::default(),
            grid: None,
            groups: BTreeSet::new(),
            notes: BTreeMap::new(),
            too_many_groups: false,
            names: BTreeMap::new(),
            others: BTreeMap::new(),
            parked: Vec::new(),
            lost_orphans: 0,
            now: 0,
            evicted: 0,
            partial: false,
        }
    }

    /// What the bounds count: places of names, and blocks of other groups.
    fn weight(&self) -> usize {
        self.names.values().map(|name| name.places.len()).sum::<usize>() + self.others.len()
    }

    fn admits(&mut self, group: Group) -> bool {
        if self.groups.len() < MAX_GROUPS {
            self.groups.insert(group);
        }
        self.groups.contains(&group)
    }

    /// The name a hash is known by: itself, or the integer form of a digest.
    fn known(&self, hash: EngineHash) -> Option<EngineHash> {
        if self.names.contains_key(&hash) {
            return Some(hash);
        }
        (hash.is_wide() && self.names.contains_key(&hash.narrow())).then(|| hash.narrow())
    }

    /// Stores one block whose name is new or stands for the same content; the copies there were.
    fn store_block(&mut self, block: &Block, path: &Path, seed: Seed, tier: Tier, group: Group) -> u32 {
        self.now += 1;
        let content = block.content;
        let fresh = || Name { content, seed, places: Vec::new(), held: Held::default() };
        let name = self.names.entry(block.engine).or_insert_with(fresh);
        name.seed = seed;
        let mut place = match name.places.iter().position(|place| place.path == *path) {
            Some(i) => name.places.remove(i),
            None => {
                let prefix = PrefixHash::chain(path).last().copied().unwrap_or(PrefixHash::root(content));
                Standing { path: path.clone(), prefix, tiers: BTreeSet::new() }
            }
        };
        place.tiers.insert(tier.index());
        name.places.push(place);
        name.held.add(tier, group, self.copies, self.now)
    }

    /// Removes one copy of a name; the copies that are left there, `None` where there was none.
    fn remove_block(&mut self, tier: Tier, group: Group, hash: EngineHash) -> Option<u32> {
        let at = (tier.index(), group);
        if let Some(name) = self.names.get_mut(&hash).filter(|name| name.held.copies.contains_key(&at)) {
            if name.places.len() > 1 {
                // Which of the places lost its block is not said: all of them did.
                name.held.copies.retain(|(t, _), _| *t != tier.index());
            }
            let left = name.held.take(at).unwrap_or(0);
            if !name.held.tiers().contains(&tier.index()) {
                for place in &mut name.places {
                    place.tiers.remove(&tier.index());
                }
                name.places.retain(|place| !place.tiers.is_empty());
            }
            if name.places.is_empty() {
                self.names.remove(&hash);
            }
            return Some(left);
        }
        let left = self.others.get_mut(&(group, hash))?.take(at)?;
        self.others.retain(|_, held| !held.copies.is_empty());
        Some(left)
    }
}

// === impl Held ===

impl Held {
    /// Counts one copy; how many there were.
    fn add(&mut self, tier: Tier, group: Group, how: Copies, now: u64) -> u32 {
        self.stored = now;
        let copies = self.copies.entry((tier.index(), group)).or_insert(0);
        let before = *copies;
        *copies = match how {
            Copies::Count => before + 1,
            Copies::Set => 1,
        };
        before
    }

    /// Takes one copy away; how many are left, `None` where there was none.
    fn take(&mut self, at: (usize, Group)) -> Option<u32> {
        let copies = self.copies.get_mut(&at)?;
        *copies -= 1;
        let left = *copies;
        self.copies.retain(|_, copies| *copies > 0);
        Some(left)
    }

    fn tiers(&self) -> BTreeSet<usize> {
        self.copies.keys().map(|(tier, _)| *tier).collect()
    }
}
