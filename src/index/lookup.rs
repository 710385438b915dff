//! How much of a chain each rank holds.
//!
//! The chain is walked once, block by block, with the ranks that still hold everything so far: whoever lacks a
//! block leaves. Ranks of hybrid models then have their two lengths cut by the rule of their groups.

use std::iter::Peekable;

use crate::block::{Grid, Group, GroupRule, Tier};
use crate::hash::PrefixHash;
use crate::worker::{RankId, Stamp};

use super::copies::Tiers;
use super::door::{Chain, RankMatch};
use super::groups::Note;
use super::rank::Rank;
use super::scope::{Holder, Scope};
use super::state::State;

/// A rank on its way down the chain.
struct Walker {
    slot: u32,
    /// Leading blocks on any tier.
    blocks: usize,
    /// Leading blocks on the device.
    device: usize,
    tiers: [u32; Tier::COUNT],
}

impl State {
    pub(super) fn match_chain(
        &self,
        model: &str,
        grid: Grid,
        chain: Chain<'_>,
        candidates: Option<&[RankId]>,
        out: &mut Vec<RankMatch>,
    ) {
        out.clear();
        let listed = candidates.map(|listed| {
            let mut listed = listed.to_vec();
            listed.sort_unstable();
            listed.dedup();
            listed
        });
        if let Some(scope) = self.model(model).and_then(|model| model.scopes.get(&grid)) {
            let wanted = |slot: u32| match (&listed, self.rank_in(slot)) {
                (_, None) => false,
                (None, Some(_)) => true,
                (Some(listed), Some((id, _))) => listed.binary_search(&id).is_ok(),
            };
            let (walkers, walked) = walk(scope, chain, wanted);
            for walker in walkers {
                let Some((id, rank)) = self.rank_in(walker.slot) else { continue };
                let found = walker.into_match(id, rank, grid, scope, &walked);
                if found.blocks > 0 || listed.is_some() {
                    out.push(found);
                }
            }
        }
        let Some(listed) = listed else { return };
        out.sort_unstable_by_key(|found| found.rank);
        let found = out.len();
        for id in listed {
            let (found, _) = out.split_at(found);
            if found.binary_search_by_key(&id, |found| found.rank).is_err() {
                out.push(self.nothing(id, model, grid));
            }
        }
    }

    /// What is said of a listed rank that holds no block of the chain.
    fn nothing(&self, id: RankId, model: &str, grid: Grid) -> RankMatch {
        let rank = self.rank(id);
        let here = rank.filter(|rank| *rank.model == *model && rank.grid == Some(grid));
        RankMatch {
            rank: id,
            stamp: rank.map_or(Stamp::default(), |rank| rank.stamp),
            blocks: 0,
            device: 0,
            tiers: [0; Tier::COUNT],
            held: here.map_or(0, |rank| rank.names.len() as u64),
            partial: rank.is_some_and(|rank| rank.partial),
            cut_by_unknown_group: false,
        }
    }
}

/// Walks down a chain for as long as anybody holds it. Returns everybody who holds block 0, and the prefix hashes
/// of the blocks that were walked.
fn walk(scope: &Scope, chain: Chain<'_>, wanted: impl Fn(u32) -> bool) -> (Vec<Walker>, Vec<PrefixHash>) {
    let mut walked = Vec::new();
    let mut done = Vec::new();
    let mut walking: Vec<Walker> = Vec::new();
    for at in prefixes(chain) {
        let mut holders = scope.holders(at).iter().peekable();
        if walked.is_empty() {
            let first = holders.filter(|holder| wanted(holder.slot));
            walking = first.map(Walker::at_root).collect();
        } else {
            // Both sides ascend by slot, so each block costs one pass over its holders.
            let left = walking.extract_if(.., |walker| !walker.step(holder_of(&mut holders, walker.slot)));
            done.extend(left);
        }
        if walking.is_empty() {
            break;
        }
        walked.push(at);
    }
    done.append(&mut walking);
    (done, walked)
}

/// The prefix hashes of a chain, from block 0.
fn prefixes(chain: Chain<'_>) -> impl Iterator<Item = PrefixHash> {
    let (contents, prefixes) = match chain {
        Chain::Content(contents) => (contents, &[][..]),
        Chain::Prefix(prefixes) => (&[][..], prefixes),
    };
    let rolled = contents.iter().scan(None, |last, content| {
        *last = Some(PrefixHash::after(*last, *content));
        *last
    });
    rolled.chain(prefixes.iter().copied())
}

/// The holder of a slot, from holders that ascend by slot.
fn holder_of<'h>(holders: &mut Peekable<impl Iterator<Item = &'h Holder>>, slot: u32) -> Option<Tiers> {
    while holders.next_if(|holder| holder.slot < slot).is_some() {}
    holders.next_if(|holder| holder.slot == slot).map(|holder| holder.tiers)
}

// === impl Walker ===

impl Walker {
    fn at_root(holder: &Holder) -> Self {
        let mut walker = Self { slot: holder.slot, blocks: 0, device: 0, tiers: [0; Tier::COUNT] };
        walker.step(Some(holder.tiers));
        walker
    }

    /// Takes one block more, if the rank holds it.
    fn step(&mut self, tiers: Option<Tiers>) -> bool {
        let Some(tiers) = tiers else { return false };
        if self.device == self.blocks && tiers.has(Tier::Device) {
            self.device += 1;
        }
        self.blocks += 1;
        for tier in tiers.iter() {
            self.tiers[tier.index()] += 1;
        }
        true
    }

    fn into_match(mut self, id: RankId, rank: &Rank, grid: Grid, scope: &Scope, walked: &[PrefixHash]) -> RankMatch {
        let mut cut_by_unknown_group = false;
        if rank.is_hybrid() {
            let full = walked.get(..self.blocks).unwrap_or(walked);
            let on_device = full.get(..self.device).unwrap_or(full);
            let blocks = reusable(rank, grid, full, |tiers| !tiers.is_empty());
            let device = reusable(rank, grid, on_device, |tiers| tiers.has(Tier::Device));
            cut_by_unknown_group = blocks.unknown_cuts || device.unknown_cuts;
            self.device = device.blocks;
            if blocks.blocks < self.blocks {
                self.blocks = blocks.blocks;
                self.tiers = [0; Tier::COUNT];
                for at in walked.iter().take(self.blocks) {
                    for tier in scope.tiers(*at, self.slot).iter() {
                        self.tiers[tier.index()] += 1;
                    }
                }
            }
        }
        RankMatch {
            rank: id,
            stamp: rank.stamp,
            blocks: self.blocks as u32,
            device: self.device as u32,
            tiers: self.tiers,
            held: rank.names.len() as u64,
            partial: rank.partial,
            cut_by_unknown_group,
        }
    }
}

/// The longest part of a prefix that every group lets the engine re-use.
struct Reusable {
    blocks: usize,
    /// Without the groups of unknown rule it would be longer.
    unknown_cuts: bool,
}

fn reusable(rank: &Rank, grid: Grid, prefix: &[PrefixHash], counts: impl Fn(Tiers) -> bool) -> Reusable {
    let mut usable = vec![true; prefix.len() + 1];
    let longest = |usable: &[bool]| usable.iter().rposition(|usable| *usable).unwrap_or(0);
    let mut rule_out = |group: &Group, note: &Note| {
        note.rule_out(grid, &mut usable, |i| {
            prefix.get(i).is_some_and(|at| rank.group_tiers(*group, *at).any(&counts))
        });
        longest(&usable)
    };
    let (unknown, known): (Vec<_>, Vec<_>) = rank.notes.iter().partition(|(_, note)| note.rule == GroupRule::Unknown);
    let known = known.into_iter().map(|(group, note)| rule_out(group, note)).last().unwrap_or(prefix.len());
    let blocks = unknown.into_iter().map(|(group, note)| rule_out(group, note)).last().unwrap_or(known);
    let blocks = if rank.too_many_groups { 0 } else { blocks };
    Reusable { blocks, unknown_cuts: blocks < known }
}
