//! Removals of ordinary names, the short way: all that names need is done before the forest is locked.

use crate::block::{Group, Tier};
use crate::hash::EngineHash;

use super::apply::{BATCH, Hands, lock};
use super::bucket::{touch_ahead, touch_later};
use super::copies::Tiers;
use super::door::RemoveOutcome;
use super::hold::Spot;
use super::names::{Ahead, Aim};
use super::odd::forms;
use super::rank::Rank;

/// Blocks that lost their ordinary names.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost {
    hold: u32,
    run: u32,
    from: u32,
    to: u32,
}

/// Names that lie side by side.
const LINE: u32 = super::lines::WIDTH as u32;

/// So many lines are asked for ahead: what is done meanwhile takes about as long as memory does.
const LINES_AHEAD: u32 = 4;

// === impl Hands ===

impl Hands<'_> {
    pub(super) fn remove(&mut self, tier: Tier, group: Group, hashes: &[EngineHash]) -> RemoveOutcome {
        let mut outcome = RemoveOutcome::default();
        self.finish();
        if self.rank.has_odd {
            self.apart(|apart| apart.remove(tier, group, hashes, &mut outcome));
            return outcome;
        }
        if tier != Tier::Device || group != self.rank.home {
            outcome.unknown = hashes.len();
            return outcome;
        }
        let mut scratch = self.scratch();
        let lost = &mut scratch.lost;
        let mut ahead = Ahead::new(&self.rank.names, hashes.iter().copied());
        let mut open = None;
        touch_ahead(hashes);
        for (i, hash) in hashes.iter().enumerate() {
            touch_later(hashes, i);
            let aim = ahead.aim(&self.rank.names, i, |i| hashes.get(i).copied());
            match self.take_beside(*hash, aim, &mut open) || self.take_anywhere(*hash, &mut open, lost) {
                true => outcome.removed += 1,
                false => outcome.unknown += 1,
            }
        }
        self.close(&mut open, lost);
        self.rank.ordinary -= outcome.removed as u64;
        self.bounds.unweigh(self.rank, outcome.removed);
        if !lost.is_empty() {
            let seat = self.seat();
            if self.forest.is_none()
                && let Some((gate, _)) = &self.rank.scope
            {
                let forest = gate.read();
                lost.iter().for_each(|lost| forest.touch_run(lost.run));
                lost.iter().for_each(|lost| forest.touch_loss(lost.run, lost.from));
            }
            if let Some(forest) = lock(self.forest, self.rank) {
                for Lost { run, from, to, .. } in lost.drain(..) {
                    forest.cover(run).lose(seat, from, to, Tiers::DEVICE);
                    forest.touch(run);
                    if let Some(tap) = &mut self.rank.tap {
                        tap.lost(run, from, to, Tier::Device);
                    }
                }
            }
        }
        lost.clear();
        lost.shrink_to(BATCH);
        self.rank.scratch = Some(scratch);
        self.rank.tidy();
        if self.rank.ordinary == 0 {
            self.rank.tips = Default::default();
        }
        outcome
    }

    /// Takes a name out of the table that stands beside those that were taken last. Engines evict block after block,
    /// so the next one is nearly always there, and need not be searched for.
    #[inline]
    fn take_beside(&mut self, name: EngineHash, aim: Aim, open: &mut Option<Lost>) -> bool {
        let Rank { names, holds, .. } = &mut *self.rank;
        let Some(open) = open else { return false };
        let mut take = |block: u32| {
            // What a hold says is old as long as a run of names is open: the table knows.
            let position = holds.position_if(Spot { hold: open.hold, block }, name);
            position.is_some_and(|position| names.take(aim, position))
        };
        if take(open.from.wrapping_sub(1)) {
            open.from -= 1;
            // Its names lie in lines anywhere: one a little further on is asked for as each is begun.
            if open.from % LINE == LINE - 1 {
                holds.touch(Spot { hold: open.hold, block: open.from.wrapping_sub(LINES_AHEAD * LINE) });
            }
            return true;
        }
        let is_after = take(open.to);
        open.to += u32::from(is_after);
        if is_after && open.to % LINE == 1 {
            holds.touch(Spot { hold: open.hold, block: open.to + LINES_AHEAD * LINE });
        }
        is_after
    }

    /// Takes a name out of the table, wherever it stands.
    fn take_anywhere(&mut self, name: EngineHash, open: &mut Option<Lost>, lost: &mut Vec<Lost>) -> bool {
        let known = forms(name).find_map(|form| self.rank.spot(form).map(|spot| (form, spot)));
        let Some((name, spot)) = known else { return false };
        let Rank { names, holds, .. } = &mut *self.rank;
        names.take(names.aim(name), holds.position(spot));
        // The line of this name is still its hold's: what is closed ends before it, or behind it.
        self.close(open, lost);
        let holds = &self.rank.holds;
        for line in 1..=LINES_AHEAD {
            holds.touch(Spot { hold: spot.hold, block: spot.block.wrapping_sub(line * LINE) });
        }
        let run = holds.get(spot.hold).run;
        *open = Some(Lost { hold: spot.hold, run, from: spot.block, to: spot.block + 1 });
        true
    }

    /// Ends a run of names that were taken: they leave their hold.
    fn close(&mut self, open: &mut Option<Lost>, lost: &mut Vec<Lost>) {
        let Some(run) = open.take() else { return };
        let Rank { holds, ages, .. } = &mut *self.rank;
        holds.take_run(run.hold, run.from, run.to);
        if holds.get(run.hold).ordinary == 0 {
            ages.close();
            holds.end_if_empty(run.hold);
        }
        lost.push(run);
    }
}
