//! All that a rank holds at one point, as a delta from nothing.

use std::collections::HashSet;
use std::sync::PoisonError;

use crate::index::copies::Tiers;
use crate::index::cover::MASKED;
use crate::index::forest::Forest;
use crate::index::gate::Gate;
use crate::index::odd::Odd;
use crate::index::rank::{Cell, Rank};

use super::record::{At, block_run, depth, group_flips, group_runs, groups, is_held, way};
use super::{Change, Delta, What};

/// Blocks that are copied before the forest is left free for others.
const AT_ONCE: usize = 1 << 16;

/// Tells what a rank holds. Its lock keeps its own blocks in their places; the forest is left free in between.
pub(in crate::index) fn snapshot(cell: &Cell, rank: &Rank) -> Delta {
    let mut changes = vec![Change::Reset];
    changes.extend(rank.grid.map(Change::Grid));
    if rank.hybrid {
        changes.push(groups(cell));
    }
    if let Some((gate, seat)) = &rank.scope {
        let odd = cell.odd.read().unwrap_or_else(PoisonError::into_inner);
        blocks(rank, &odd, gate, *seat, &mut changes);
    }
    if rank.partial {
        changes.push(Change::Partial(true));
    }
    Delta { rank: cell.id, number: rank.told, stamp: rank.stamp, changes }
}

fn blocks(rank: &Rank, odd: &Odd, gate: &Gate<Forest>, seat: u32, changes: &mut Vec<Change>) {
    let forest = gate.read();
    let mut runs: Vec<(u32, u32)> = rank.holds.runs().map(|run| (depth(&forest, run), run)).collect();
    drop(forest);
    // A run's parent begins before it.
    runs.sort_unstable();
    let mut passed: HashSet<At> = HashSet::new();
    let mut runs = runs.into_iter().peekable();
    while runs.peek().is_some() {
        let forest = gate.read();
        let mut copied = 0;
        while copied < AT_ONCE
            && let Some((depth, run)) = runs.next()
        {
            for (from, to, tiers) in segments(&forest, run, seat) {
                let is_known = |at: At| is_held(&forest, seat, at);
                let passed = way(&forest, (run, from), depth + from, is_known, &mut passed);
                changes.extend(passed.map(Change::Run));
                for tier in tiers.iter() {
                    let what = What::Stored(tier);
                    changes.push(Change::Run(block_run(&forest, what, None, depth + from, run, from, to)));
                }
                if rank.hybrid {
                    let flips = (from..to).flat_map(|block| group_flips(odd, &forest, seat, (run, block)));
                    changes.extend(group_runs(&forest, flips.collect()).map(Change::Run));
                }
                copied += (to - from) as usize;
            }
        }
    }
}

/// What the rank in a seat holds of a run: blocks `[from, to)` and the tiers they all lie on, never none.
fn segments(forest: &Forest, run: u32, seat: u32) -> Vec<(u32, u32, Tiers)> {
    let Some(holder) = forest.holder(run, seat) else { return Vec::new() };
    if holder.lead() != MASKED {
        return vec![(0, holder.lead(), Tiers::DEVICE)];
    }
    let mut segments: Vec<(u32, u32, Tiers)> = Vec::new();
    for (block, tiers) in (0u32..).zip(forest.run(run).cover.mask(seat)) {
        match segments.last_mut() {
            Some((_, to, last)) if last == tiers && *to == block => *to += 1,
            _ => segments.push((block, block + 1, *tiers)),
        }
    }
    segments.retain(|(.., tiers)| !tiers.is_empty());
    segments
}
