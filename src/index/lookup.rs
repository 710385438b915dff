//! How much of a chain each rank holds.
//!
//! A match walks down the runs that the chain follows, one step a run. Whoever holds the first block is noted with
//! what it holds of the first run; in each run after that only its holders are looked at, and those go on that have
//! held everything so far. Ranks of hybrid models then have their two lengths cut by the rule of their groups.

use std::cell::RefCell;
use std::sync::PoisonError;

use crate::block::{Grid, Group, GroupRule, Tier};
use crate::worker::RankId;

use super::copies::Tiers;
use super::cover::{Cover, Holder, MASKED, spread};
use super::door::{Chain, RankMatch, RankScore};
use super::forest::{Forest, NONE};
use super::groups::Note;
use super::hold::Spot;
use super::links::Links;
use super::odd::Odd;
use super::seats::Face;

/// A rank on its way down the chain.
#[derive(Clone, Copy, Debug)]
struct Walker {
    seat: u32,
    /// Leading blocks on any tier.
    blocks: u32,
    /// Where its detail stands, plus one; 0: every block lies on the device and nowhere else.
    detail: u32,
}

/// Where a walker's blocks lie.
#[derive(Clone, Copy, Debug)]
struct Detail {
    tiers: [u32; Tier::COUNT],
    lead: [u32; Tier::COUNT],
    within: [u32; Tier::KNOWN],
}

/// A walk down the forest. Its memory is used again.
#[derive(Debug, Default)]
pub(super) struct Walk {
    /// Everybody who holds block 0, ascending by seat.
    walkers: Vec<Walker>,
    details: Vec<Detail>,
    /// The runs that were walked, with the depth at which each begins.
    runs: Vec<(u32, u32)>,
    /// Seats of ranks that may have appended to these runs beside the walk, and the versions of their faces before it.
    seen: Vec<(u32, u32)>,
}

/// The same for callers that want lengths only, of a chain whose holders all hold their blocks on the device and nowhere
/// else: every holder of the first run has its score at once, in their order, and who goes on is looked up among them.
struct Scores<'a> {
    ranks: &'a [RankId],
    first: &'a [Holder],
    scores: &'a mut Vec<RankScore>,
    /// The scores of others stand before ours.
    from: usize,
    /// It is not so.
    has_masks: bool,
}

/// Whoever walks down a chain.
trait Walking<'f> {
    /// The next run is about to be looked at.
    #[inline]
    fn meet(&mut self, _: &'f Forest, _: &'f Cover) {}

    /// Notes the holders of the first run. Says whether to go on.
    fn begin(&mut self, cover: &'f Cover, blocks: u32) -> bool;

    /// Takes the holders of the next run further that have come to its beginning. Says whether there is any.
    fn step(&mut self, cover: &'f Cover, depth: u32, blocks: u32) -> bool;
}

thread_local!(static WALK: RefCell<Walk> = RefCell::default());

/// Runs `act` with this thread's memory for walks.
#[inline]
pub(super) fn with_walk<T>(act: impl FnOnce(&mut Walk) -> T) -> T {
    WALK.with(|walk| match walk.try_borrow_mut() {
        Ok(mut walk) => act(&mut walk),
        Err(_) => act(&mut Walk::default()),
    })
}

/// Writes down who holds how much, and nothing else.
#[inline]
pub(super) fn scores(forest: &Forest, chain: Chain<'_>, out: &mut Vec<RankScore>) {
    let (ranks, from) = (forest.seats.ranks(), out.len());
    let mut scores = Scores { ranks, first: &[], scores: out, from, has_masks: false };
    descend(forest, chain, &mut scores, |_, _| {});
    if scores.has_masks {
        out.truncate(from);
        with_walk(|walk| {
            walk.go(forest, chain);
            walk.scores_with_details(forest, out);
        });
    }
}

// === impl Walk ===

impl Walk {
    /// Walks down a chain for as long as anybody holds it.
    #[inline]
    pub(super) fn go(&mut self, forest: &Forest, chain: Chain<'_>) {
        self.walkers.clear();
        self.details.clear();
        self.runs.clear();
        self.seen.clear();
        let mut runs = std::mem::take(&mut self.runs);
        descend(forest, chain, self, |depth, run| runs.push((depth, run)));
        self.runs = runs;
    }
}

impl<'f> Walking<'f> for Walk {
    #[inline]
    fn meet(&mut self, forest: &'f Forest, cover: &'f Cover) {
        if let Some(seat) = cover.only().map(Holder::seat)
            && let Some(face) = forest.seats.face(seat)
            && !self.seen.iter().any(|(seen, _)| *seen == seat)
        {
            self.seen.push((seat, face.version()));
        }
    }

    fn begin(&mut self, cover: &'f Cover, blocks: u32) -> bool {
        let walker = |holder: &Holder| Walker { seat: holder.seat(), blocks: holder.lead().min(blocks), detail: 0 };
        self.walkers.extend(cover.holders().iter().map(walker));
        if cover.has_masks() {
            for (walker, holder) in self.walkers.iter_mut().zip(cover.holders()) {
                if holder.lead() == MASKED {
                    walker.blocks = 0;
                    walker.read(&mut self.details, cover.mask(holder.seat()), blocks);
                }
            }
            self.walkers.retain(|walker| walker.blocks > 0);
        }
        true
    }

    #[inline]
    fn step(&mut self, cover: &'f Cover, depth: u32, blocks: u32) -> bool {
        let mut any = false;
        let mut rest = &mut self.walkers[..];
        for holder in cover.holders() {
            // Both ascend by seat. Where few are left of many, searching is faster than walking.
            let skip = match rest {
                [first, ..] if first.seat >= holder.seat() => 0,
                _ => rest.partition_point(|walker| walker.seat < holder.seat()),
            };
            rest = &mut rest[skip..];
            let Some(walker) = rest.first_mut() else { break };
            if walker.seat != holder.seat() || walker.blocks != depth {
                continue;
            }
            any = true;
            if holder.lead() == MASKED {
                walker.read(&mut self.details, cover.mask(holder.seat()), blocks);
            } else {
                walker.skip(&mut self.details, holder.lead().min(blocks));
            }
        }
        any
    }
}

impl Walk {
    fn scores_with_details(&self, forest: &Forest, out: &mut Vec<RankScore>) {
        let ranks = forest.seats.ranks();
        let score = |walker: &Walker| RankScore {
            rank: ranks[walker.seat as usize],
            blocks: walker.blocks,
            device: walker.blocks,
        };
        let before = out.len();
        out.extend(self.walkers.iter().map(score));
        if !self.details.is_empty() {
            for (score, walker) in out[before..].iter_mut().zip(&self.walkers) {
                if let Some(detail) = walker.detail.checked_sub(1) {
                    score.device = self.details[detail as usize].lead[Tier::Device.index()];
                }
            }
        }
    }

    /// Writes the answers down. `wanted`: the ranks that are asked about, ascending; they come back with 0 blocks,
    /// too, if they hold block 0 and may re-use nothing. `false`: a rank has changed since the walk began, and what is
    /// known of it is not of one moment.
    #[must_use]
    pub(super) fn answers(
        &self,
        forest: &Forest,
        grid: Grid,
        wanted: Option<&[RankId]>,
        out: &mut Vec<RankMatch>,
    ) -> bool {
        out.reserve(self.walkers.len());
        for walker in &self.walkers {
            let Some(face) = forest.seats.face(walker.seat) else { continue };
            if wanted.is_some_and(|wanted| wanted.binary_search(&face.rank).is_err()) {
                continue;
            }
            let look = face.look();
            if self.seen.iter().any(|(seat, version)| *seat == walker.seat && *version != look.version) {
                return false;
            }
            let tiers = on_device(walker.blocks);
            let mut found = RankMatch {
                rank: face.rank,
                stamp: look.stamp,
                blocks: walker.blocks,
                device: walker.blocks,
                tiers,
                lead: tiers,
                within: [walker.blocks; Tier::KNOWN],
                held: look.held,
                partial: face.partial,
                cut_by_unknown_group: false,
            };
            if let Some(detail) = walker.detail.checked_sub(1) {
                let detail = &self.details[detail as usize];
                found.device = detail.lead[Tier::Device.index()];
                (found.tiers, found.lead, found.within) = (detail.tiers, detail.lead, detail.within);
            }
            if face.hybrid {
                self.cut(forest, grid, face, walker.seat, &mut found);
            }
            if found.blocks > 0 || wanted.is_some() {
                out.push(found);
            }
        }
        true
    }

    /// The holder of a block of the chain, and the block's number in its run.
    fn holder<'f>(&self, forest: &'f Forest, seat: u32, depth: usize) -> Option<(u32, &'f Holder, u32)> {
        let at = self.runs.partition_point(|(from, _)| *from as usize <= depth).checked_sub(1)?;
        let (from, run) = self.runs[at];
        Some((run, forest.holder(run, seat)?, depth as u32 - from))
    }

    /// Cuts an answer to what every group of a hybrid rank allows.
    fn cut(&self, forest: &Forest, grid: Grid, face: &Face, seat: u32, found: &mut RankMatch) {
        let odd = face.cell.odd.read().unwrap_or_else(PoisonError::into_inner);
        let spot = |depth: usize| {
            let (_, holder, block) = self.holder(forest, seat, depth)?;
            Some(Spot { hold: holder.hold, block })
        };
        let blocks = reusable(&odd, grid, found.blocks as usize, spot, |tiers| !tiers.is_empty());
        let device = reusable(&odd, grid, found.device as usize, spot, |tiers| tiers.has(Tier::Device));
        found.cut_by_unknown_group = blocks.unknown_cuts || device.unknown_cuts;
        found.device = device.blocks as u32;
        let most = blocks.blocks as u32;
        found.lead.iter_mut().chain(&mut found.within).for_each(|lead| *lead = most.min(*lead));
        found.lead[Tier::Device.index()] = found.device;
        found.within[Tier::Device.index()] = found.device;
        if blocks.blocks < found.blocks as usize {
            found.blocks = blocks.blocks as u32;
            found.tiers = [0; Tier::COUNT];
            for depth in 0..blocks.blocks {
                let Some((run, _, block)) = self.holder(forest, seat, depth) else { continue };
                for tier in forest.run(run).cover.tiers(seat, block).iter() {
                    found.tiers[tier.index()] += 1;
                }
            }
        }
    }
}

/// Leads whoever walks down the runs of a chain, and says which runs at which depth those are.
#[inline]
fn descend<'f>(forest: &'f Forest, chain: Chain<'_>, walking: &mut impl Walking<'f>, passing: impl FnMut(u32, u32)) {
    match chain {
        Chain::Content(chain) => descend_by(forest, chain, walking, passing),
        Chain::Prefix(chain) => descend_by(forest, chain, walking, passing),
    }
}

#[inline]
fn descend_by<'f>(
    forest: &'f Forest,
    chain: impl Links,
    walking: &mut impl Walking<'f>,
    mut passing: impl FnMut(u32, u32),
) {
    let length = chain.length();
    let (mut at, mut block, mut depth) = (NONE, 0, 0);
    while depth < length
        && let Some(id) = chain.next(forest, at, block, depth)
    {
        let run = forest.run(id);
        walking.meet(forest, &run.cover);
        // While the contents come, so do the holders, and what tells the next run if the chain leaves this one at its end,
        // or where others did.
        run.cover.touch();
        if run.kids > 0 {
            let end = run.contents.len() as u32 - 1;
            for last in [end, run.fork.min(end)] {
                let behind = depth + last as usize + 1;
                if behind < length {
                    chain.touch(forest, id, last, behind);
                }
            }
        }
        let blocks = chain.same(run, depth) as u32;
        passing(depth as u32, id);
        let behind = depth + blocks as usize;
        let may_go_on = blocks > 0 && behind < length && forest.may_have_kid(id, blocks - 1);
        if may_go_on {
            // The next run comes while the holders of this one are looked at.
            chain.meet(forest, id, blocks - 1, behind);
        }
        let go_on = match depth {
            0 => walking.begin(&run.cover, blocks),
            _ => walking.step(&run.cover, depth as u32, blocks),
        };
        if !go_on || !may_go_on {
            break;
        }
        (at, block, depth) = (id, blocks - 1, behind);
    }
}

// === impl Scores ===

impl<'f> Walking<'f> for Scores<'f> {
    #[inline]
    fn begin(&mut self, cover: &'f Cover, blocks: u32) -> bool {
        self.first = cover.holders();
        self.has_masks = cover.has_masks();
        spread(self.first, self.ranks, blocks, self.scores);
        !self.has_masks
    }

    #[inline]
    fn step(&mut self, cover: &'f Cover, depth: u32, blocks: u32) -> bool {
        self.has_masks = cover.has_masks();
        let (mut any, mut at) = (false, 0);
        let scores = &mut self.scores[self.from..];
        for holder in cover.holders() {
            // Both ascend by seat.
            at = seek(self.first, at, holder.seat());
            let (Some(first), Some(score)) = (self.first.get(at), scores.get_mut(at)) else { break };
            if first.seat() == holder.seat() && score.blocks == depth {
                any = true;
                score.blocks += holder.lead().min(blocks);
                score.device = score.blocks;
            }
        }
        any && !self.has_masks
    }
}

/// The first from `at` on that sits at `seat` or behind: nearly always the next one or one soon after it, so the steps
/// begin small.
#[inline]
fn seek(holders: &[Holder], mut at: usize, seat: u32) -> usize {
    let mut step = 1;
    while holders.get(at + step - 1).is_some_and(|holder| holder.seat() < seat) {
        at += step;
        step *= 2;
    }
    let end = (at + step - 1).min(holders.len());
    at + holders[at..end].partition_point(|holder| holder.seat() < seat)
}

// === impl Walker ===

impl Walker {
    /// Takes blocks that lie on the device alone.
    #[inline]
    fn skip(&mut self, details: &mut [Detail], blocks: u32) {
        if let Some(detail) = self.detail.checked_sub(1) {
            let detail = &mut details[detail as usize];
            let device = Tier::Device.index();
            // The device is the nearest tier: it counts within every other.
            for lead in detail.within.iter_mut().chain([&mut detail.lead[device]]) {
                *lead += if *lead == self.blocks { blocks } else { 0 };
            }
            detail.tiers[device] += blocks;
        }
        self.blocks += blocks;
    }

    /// Takes the leading blocks of a mask, `most` at most.
    fn read(&mut self, details: &mut Vec<Detail>, mask: &[Tiers], most: u32) {
        if self.detail == 0 {
            let tiers = on_device(self.blocks);
            details.push(Detail { tiers, lead: tiers, within: [self.blocks; Tier::KNOWN] });
            self.detail = details.len() as u32;
        }
        let detail = &mut details[self.detail as usize - 1];
        for tiers in mask.iter().take(most as usize).take_while(|tiers| !tiers.is_empty()) {
            let mut nearest = Tier::COUNT;
            for tier in tiers.iter().map(Tier::index) {
                detail.tiers[tier] += 1;
                detail.lead[tier] += u32::from(detail.lead[tier] == self.blocks);
                nearest = nearest.min(tier);
            }
            for within in detail.within.iter_mut().skip(nearest) {
                *within += u32::from(*within == self.blocks);
            }
            self.blocks += 1;
        }
    }
}

/// So many blocks, on the device and nowhere else.
#[inline]
fn on_device(blocks: u32) -> [u32; Tier::COUNT] {
    let mut tiers = [0; Tier::COUNT];
    tiers[Tier::Device.index()] = blocks;
    tiers
}

/// The longest part of a prefix that every group lets the engine re-use.
struct Reusable {
    blocks: usize,
    /// Without the groups of unknown rule it would be longer.
    unknown_cuts: bool,
}

fn reusable(
    odd: &Odd,
    grid: Grid,
    prefix: usize,
    spot: impl Fn(usize) -> Option<Spot>,
    counts: impl Fn(Tiers) -> bool,
) -> Reusable {
    let mut usable = vec![true; prefix + 1];
    let longest = |usable: &[bool]| usable.iter().rposition(|usable| *usable).unwrap_or(0);
    let mut rule_out = |group: &Group, note: &Note| {
        note.rule_out(grid, &mut usable, |i| spot(i).is_some_and(|at| odd.group_tiers(*group, at).any(&counts)));
        longest(&usable)
    };
    let (unknown, known): (Vec<_>, Vec<_>) = odd.notes.iter().partition(|(_, note)| note.rule == GroupRule::Unknown);
    let known = known.into_iter().map(|(group, note)| rule_out(group, note)).last().unwrap_or(prefix);
    let blocks = unknown.into_iter().map(|(group, note)| rule_out(group, note)).last().unwrap_or(known);
    let blocks = if odd.too_many_groups { 0 } else { blocks };
    Reusable { blocks, unknown_cuts: blocks < known }
}
