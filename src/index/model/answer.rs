//! The answer: how many leading blocks of a chain a rank can re-use.

use std::collections::BTreeSet;

use crate::block::{Grid, Group, GroupRule, Tier};
use crate::hash::EngineHash;
use crate::index::door::{Chain, RankMatch};
use crate::worker::{RankId, Stamp};

use super::{Model, Name, Rank, Standing};

// === impl Model ===

impl Model {
    /// How much of `chain` each rank of `model` on `grid` holds, ascending by rank. Ranks that can re-use nothing
    /// are left out, unless they are listed.
    pub fn match_chain(
        &self,
        model: &str,
        grid: Grid,
        chain: Chain<'_>,
        candidates: Option<&[RankId]>,
    ) -> Vec<RankMatch> {
        let all = || self.ranks.keys().copied().collect();
        let ids: BTreeSet<RankId> = candidates.map_or_else(all, |listed| listed.iter().copied().collect());
        let answers = ids.into_iter().map(|id| self.answer(id, model, grid, chain));
        answers.filter(|answer| candidates.is_some() || answer.blocks > 0).collect()
    }

    fn answer(&self, id: RankId, model: &str, grid: Grid, chain: Chain<'_>) -> RankMatch {
        let mut answer = RankMatch {
            rank: id,
            stamp: Stamp::default(),
            blocks: 0,
            device: 0,
            tiers: [0; Tier::COUNT],
            lead: [0; Tier::COUNT],
            within: [0; Tier::KNOWN],
            held: 0,
            partial: false,
            cut_by_unknown_group: false,
        };
        let Some(rank) = self.ranks.get(&id) else { return answer };
        answer.stamp = rank.stamp;
        answer.partial = rank.partial;
        if rank.model != model || rank.grid != Some(grid) {
            return answer;
        }
        answer.held = rank.names.len() as u64;

        let blocks = rank.reusable(grid, chain, |tiers| !tiers.is_empty(), true);
        let device = rank.reusable(grid, chain, |tiers| tiers.contains(&Tier::Device.index()), true);
        answer.blocks = blocks as u32;
        answer.device = device as u32;
        for i in 0..blocks {
            for tier in rank.tiers_at(chain, i) {
                answer.tiers[tier] += 1;
            }
        }
        let leading = |counts: &dyn Fn(usize) -> bool| {
            (0..blocks).take_while(|i| rank.tiers_at(chain, *i).into_iter().any(counts)).count() as u32
        };
        for tier in 0..Tier::COUNT {
            answer.lead[tier] = leading(&|at| at == tier);
        }
        for tier in 0..Tier::KNOWN {
            answer.within[tier] = leading(&|at| at <= tier);
        }
        // The rule of a hybrid rank's groups holds for the device by itself too.
        answer.lead[Tier::Device.index()] = answer.device;
        answer.within[Tier::Device.index()] = answer.device;
        answer.cut_by_unknown_group = blocks < rank.reusable(grid, chain, |tiers| !tiers.is_empty(), false)
            || device < rank.reusable(grid, chain, |tiers| tiers.contains(&Tier::Device.index()), false);
        answer
    }
}

// === impl Rank ===

impl Rank {
    /// The longest prefix of `chain` that is held, and that every noted group lets the engine re-use. `counts` says
    /// of a block's tiers whether it counts as held; `unknown`: whether groups of unknown rule have a say.
    fn reusable(&self, grid: Grid, chain: Chain<'_>, counts: impl Fn(BTreeSet<usize>) -> bool, unknown: bool) -> usize {
        if unknown && self.too_many_groups {
            return 0;
        }
        let length = match chain {
            Chain::Content(contents) => contents.len(),
            Chain::Prefix(prefixes) => prefixes.len(),
        };
        let held = (0..length).take_while(|i| counts(self.tiers_at(chain, *i))).count();
        let notes = || self.notes.iter().filter(|(_, (rule, _))| unknown || *rule != GroupRule::Unknown);
        let allowed = |n: usize| notes().all(|(group, note)| self.allows(*group, *note, grid, chain, n, &counts));
        (0..=held).rev().find(|n| allowed(*n)).unwrap_or(0)
    }

    /// Whether a group lets the engine re-use the first n blocks.
    fn allows(
        &self,
        group: Group,
        (rule, own): (GroupRule, u32),
        grid: Grid,
        chain: Chain<'_>,
        n: usize,
        counts: impl Fn(BTreeSet<usize>) -> bool,
    ) -> bool {
        let (size, own) = (grid.size() as usize, own as usize);
        if !(n * size).is_multiple_of(own) {
            return false;
        }
        let blocks = n * size / own;
        let needed = match rule {
            GroupRule::Window { tokens } => blocks.min((tokens.saturating_sub(1) as usize).div_ceil(own)),
            GroupRule::Full | GroupRule::Unknown => blocks,
        };
        (blocks - needed..blocks).all(|k| {
            let end = (k + 1) * own;
            // The group's block has the name of the prefix block that ends at the same token, if there is one.
            end.is_multiple_of(size)
                && self.names_at(chain, end / size - 1).any(|(hash, name)| counts(self.group_tiers(group, *hash, name)))
        })
    }

    /// On which tiers a group holds a block of this name.
    fn group_tiers(&self, group: Group, hash: EngineHash, name: &Name) -> BTreeSet<usize> {
        let other = self.others.get(&(group, hash)).into_iter().flat_map(|held| held.copies.keys());
        let piles = other.chain(name.held.copies.keys());
        piles.filter(|(_, of)| *of == group).map(|(tier, _)| *tier).collect()
    }

    /// On which tiers block i of the chain lies.
    fn tiers_at(&self, chain: Chain<'_>, i: usize) -> BTreeSet<usize> {
        let places = self.names.values().flat_map(|name| &name.places);
        places.filter(|place| place.is(chain, i)).flat_map(|place| place.tiers.iter().copied()).collect()
    }

    /// The names that stand at block i of the chain.
    fn names_at(&self, chain: Chain<'_>, i: usize) -> impl Iterator<Item = (&EngineHash, &Name)> {
        self.names.iter().filter(move |(_, name)| name.places.iter().any(|place| place.is(chain, i)))
    }
}

// === impl Standing ===

impl Standing {
    /// Whether this is the place of block i of the chain.
    fn is(&self, chain: Chain<'_>, i: usize) -> bool {
        match chain {
            Chain::Content(contents) => contents.get(..=i).is_some_and(|path| self.path == path),
            Chain::Prefix(prefixes) => self.path.len() == i + 1 && prefixes.get(i) == Some(&self.prefix),
        }
    }
}
