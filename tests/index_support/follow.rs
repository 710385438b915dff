//! A history heard through the index's tap, and what it came to compared with what the index exports.

use std::collections::{BTreeMap, BTreeSet};

use kvtap::block::{Grid, Group, GroupRule, Tier};
use kvtap::hash::{ContentHash, EngineHash, PrefixHash};
use kvtap::index::{BlockRun, Change, Delta, Exported, Heard, Index, Limits, Listener, TapBounds, What};
use kvtap::worker::{RankId, Stamp};

use super::history::Step;
use super::{Check, World, exported};

/// What was heard, rank by rank.
pub struct Follower {
    listener: Listener,
    ranks: BTreeMap<RankId, Held>,
    /// Deltas that were heard.
    pub heard: usize,
}

/// What a rank holds by places, as routers would keep it: told by deltas, or read from an export.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Held {
    number: u64,
    stamp: Stamp,
    grid: Option<Grid>,
    partial: bool,
    too_many_groups: bool,
    notes: BTreeMap<Group, (GroupRule, u32)>,
    blocks: BTreeSet<(PrefixHash, Tier)>,
    /// Where each block stands, and its content.
    places: BTreeMap<PrefixHash, (u32, ContentHash)>,
    groups: BTreeSet<(PrefixHash, Group, Tier)>,
}

/// What histories came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Followed {
    /// Deltas that were heard.
    pub deltas: usize,
    /// Comparisons of a rank that held something.
    pub compared: usize,
    /// Of these, where a group of a hybrid model held something too.
    pub hybrid: usize,
}

impl World {
    /// Tells a history with a listener from the beginning, which is compared with the index after every step. A
    /// second one begins to listen anew every few steps.
    pub fn run_followed(limits: Limits, ranks: u8, history: &[Step]) -> Check<Followed> {
        let mut world = Self::new(limits);
        let mut follower = Follower::new(&world.index);
        let mut late = Follower::new(&world.index);
        let mut followed = Followed::default();
        for rank in 0..ranks {
            world.step(&Step::Batch { rank, ops: Vec::new(), commit: true })?;
        }
        for (step, n) in history.iter().zip(0u64..) {
            world.step(step)?;
            if n % 5 == 4 {
                late = Follower::new(&world.index);
                world.index.ranks().into_iter().for_each(|(rank, _)| late.follow(rank));
            }
            for follower in [&mut follower, &mut late] {
                follower.hear()?;
            }
            for (rank, _) in world.index.ranks() {
                let expected = Held::exported(&world.index, rank)?;
                for follower in [&follower, &late] {
                    follower.compare(rank, &expected)?;
                }
                followed.compared += usize::from(!expected.blocks.is_empty());
                followed.hybrid += usize::from(!expected.groups.is_empty());
            }
            if follower.ranks.len() != world.index.ranks().len() {
                return Err("a rank that is gone is still followed".to_owned());
            }
        }
        followed.deltas = follower.heard;
        Ok(followed)
    }
}

// === impl Follower ===

impl Follower {
    pub fn new(index: &std::sync::Arc<Index>) -> Self {
        Self { listener: index.listen(TapBounds::default()), ranks: BTreeMap::new(), heard: 0 }
    }

    pub fn follow(&mut self, rank: RankId) {
        if let Some(snapshot) = self.listener.follow(rank) {
            let mut held = Held::default();
            held.apply(&snapshot).expect("a snapshot is in order");
            held.number = snapshot.number;
            self.ranks.insert(rank, held);
        }
    }

    /// Takes in all that waits.
    pub fn hear(&mut self) -> Check {
        while let Some(heard) = self.listener.try_next().map_err(|cut| cut.to_string())? {
            match heard {
                Heard::Registered { rank, .. } => self.follow(rank),
                Heard::Delta(delta) => {
                    self.heard += 1;
                    let Some(held) = self.ranks.get_mut(&delta.rank) else { continue };
                    if delta.number <= held.number {
                        continue;
                    }
                    if delta.number != held.number + 1 {
                        return Err(format!("delta {} after {}", delta.number, held.number));
                    }
                    held.number = delta.number;
                    held.apply(&delta).map_err(|why| format!("{why} in {delta:#?}"))?;
                    if delta.changes.contains(&Change::Gone) {
                        self.ranks.remove(&delta.rank);
                    }
                }
            }
        }
        Ok(())
    }

    /// Compares what was heard of a rank with what it holds.
    pub fn compare(&self, rank: RankId, expected: &Held) -> Check {
        let Some(heard) = self.ranks.get(&rank) else { return Err(format!("{rank:?} is not followed")) };
        let heard = Held { number: 0, ..heard.clone() };
        match heard == *expected {
            true => Ok(()),
            false => Err(format!("of {rank:?}:\n  heard {heard:#?}\n  holds {expected:#?}")),
        }
    }
}

// === impl Held ===

impl Held {
    fn apply(&mut self, delta: &Delta) -> Check {
        self.stamp = delta.stamp;
        let mut passed: BTreeSet<PrefixHash> = BTreeSet::new();
        for change in &delta.changes {
            match change {
                Change::Cleared => {
                    self.blocks.clear();
                    self.groups.clear();
                    self.partial = false;
                }
                Change::Reset => *self = Self { number: self.number, stamp: self.stamp, ..Self::default() },
                Change::Grid(grid) => self.grid = Some(*grid),
                Change::Groups { notes, too_many } => {
                    self.notes = notes.iter().map(|(group, rule, size)| (*group, (*rule, *size))).collect();
                    self.too_many_groups = *too_many;
                }
                Change::Partial(partial) => self.partial = *partial,
                Change::Gone => {}
                Change::Run(run) => self.run(run, &mut passed)?,
            }
        }
        let blocks = &self.blocks;
        self.places.retain(|at, _| blocks.iter().any(|(held, _)| held == at));
        Ok(())
    }

    fn run(&mut self, run: &BlockRun, passed: &mut BTreeSet<PrefixHash>) -> Check {
        let is_known = |at: PrefixHash| passed.contains(&at) || self.blocks.iter().any(|(held, _)| *held == at);
        if run.contents.is_empty() || run.parent.is_none() != (run.position == 0) {
            return Err("a run without blocks, or with a wrong position".to_owned());
        }
        if let (What::Stored(_) | What::Passed, None, Some(parent)) = (run.what, run.group, run.parent)
            && !is_known(parent)
        {
            return Err("a parent that is not held and was not passed".to_owned());
        }
        for ((at, content), position) in run.prefixes().zip(&run.contents).zip(run.position..) {
            let is_news = match (run.what, run.group) {
                (What::Passed, _) => {
                    passed.insert(at);
                    true
                }
                (What::Stored(tier), None) => {
                    let before = self.places.insert(at, (position, *content));
                    before.is_none_or(|before| before == (position, *content)) && self.blocks.insert((at, tier))
                }
                (What::Removed(tier), None) => self.blocks.remove(&(at, tier)),
                (What::Stored(tier), Some(group)) => self.groups.insert((at, group, tier)),
                (What::Removed(tier), Some(group)) => self.groups.remove(&(at, group, tier)),
            };
            if !is_news {
                return Err(format!("{:?} of {at:?}, which is no change", run.what));
            }
        }
        Ok(())
    }

    /// What an export says of a rank, by places.
    pub fn exported(index: &Index, rank: RankId) -> Check<Self> {
        let (pieces, stamp) = exported(index, rank)?;
        let mut held = Self { stamp, ..Self::default() };
        let mut positions: BTreeMap<PrefixHash, u32> = BTreeMap::new();
        let mut standing: BTreeSet<(PrefixHash, EngineHash)> = BTreeSet::new();
        let mut piles: BTreeSet<(EngineHash, Group, Tier)> = BTreeSet::new();
        for piece in pieces {
            match piece {
                Exported::Rank { grid, partial, too_many_groups, .. } => {
                    (held.grid, held.partial, held.too_many_groups) = (grid, partial, too_many_groups);
                }
                Exported::Group { group, note } => held.notes.extend(note.map(|note| (group, note))),
                Exported::Passed { content, parent } => {
                    let position = parent.map_or(0, |parent| positions[&parent] + 1);
                    positions.insert(PrefixHash::after(parent, content), position);
                }
                Exported::Block { block, parent, tier, group, copies, .. } => {
                    let at = PrefixHash::after(parent, block.content);
                    let position = parent.map_or(0, |parent| positions[&parent] + 1);
                    positions.insert(at, position);
                    held.places.insert(at, (position, block.content));
                    held.blocks.insert((at, tier));
                    standing.insert((at, block.engine));
                    if copies > 0 {
                        piles.insert((block.engine, group, tier));
                    }
                }
                Exported::Other { group, engine, tier, .. } => {
                    piles.insert((engine, group, tier));
                }
            }
        }
        for (at, name) in standing {
            let of_name = piles.iter().filter(|(engine, group, _)| *engine == name && held.notes.contains_key(group));
            held.groups.extend(of_name.map(|(_, group, tier)| (at, *group, *tier)));
        }
        Ok(held)
    }
}
