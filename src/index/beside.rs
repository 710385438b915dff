//! The shortest way of all: a few blocks behind the end of a run that its rank alone holds, appended while everybody goes on.
//!
//! Nearly every store of an engine that decodes is such a one, and all that its transaction does. It is put down beside
//! the forest, and written into it when the transaction ends: into room that the run has left, which nobody reads before
//! it is told to. Where the transaction does more, or others have come to the same end meanwhile, the gate is taken as ever.

use crate::block::Tier;
use crate::hash::Seed;

use super::apply::{FEW, Hands, lock};
use super::door::{Block, StoreOutcome};
use super::hold::{Piece, Spot};

/// What is put down until its transaction ends.
#[derive(Debug)]
pub(super) struct Beside {
    run: u32,
    /// The end of the run.
    block: u32,
    seed: Seed,
    blocks: [Block; FEW],
    count: usize,
}

// === impl Hands ===

impl Hands<'_> {
    /// Stores a few blocks of new names behind the end of a run that this rank alone holds, and leaves the forest as it is
    /// until the transaction does something else, or ends. The place of the last one; `None`: nothing has changed.
    ///
    /// Declined where the transaction has entered the forest, somebody wants to hear of stores, the end is not that of the
    /// run, others hold it or hang from it, or it has no room.
    pub(super) fn store_beside(
        &mut self,
        parent: Option<(u32, u32)>,
        seed: Seed,
        blocks: &[Block],
    ) -> Option<(u32, u32)> {
        let ((run, block), count) = (parent?, blocks.len());
        let is_heard = self.rank.tap.as_ref().is_some_and(|tap| tap.wants_all());
        if self.forest.is_some() || is_heard || count > FEW {
            return None;
        }
        self.rank.names.touch(self.rank.names.aim(blocks.first()?.engine));
        let (gate, seat) = self.rank.scope.as_ref()?;
        let hold = {
            let forest = gate.read();
            let run = forest.get(run).filter(|run| run.can_append_beside(*seat, block, count))?;
            // What the end of the transaction is going to write.
            run.touch_end();
            run.cover.get(*seat)?.hold
        };
        let first = Spot { hold, block: block + 1 };
        if !self.rank.holds.ends_at(first, seed) {
            return None;
        }
        let mut scratch = self.scratch();
        scratch.staged.pieces.push(Piece::new(first, count as u32));
        self.rank.holds.stage(blocks, &mut scratch.staged);
        let is_put = self.put_few(blocks, &mut scratch.staged);
        if is_put {
            let mut copied = [blocks[0]; FEW];
            copied[..count].copy_from_slice(blocks);
            scratch.beside = Some(Beside { run, block, seed, blocks: copied, count });
            scratch.placed.push(hold);
            self.rank.ordinary += count as u64;
            self.bounds.weigh(self.rank, count);
        }
        self.rank.scratch = Some(scratch);
        is_put.then_some((run, block + count as u32))
    }

    /// Ends a transaction that has stored a few blocks beside others and done nothing else; `false`: it has not, or others
    /// have come to where they belong.
    #[inline]
    pub(super) fn publish_beside(&mut self) -> bool {
        let (Some((gate, seat)), Some(scratch)) = (&self.rank.scope, &self.rank.scratch) else { return false };
        let Some(beside) = &scratch.beside else { return false };
        let forest = gate.read();
        let (run, blocks) = (forest.run(beside.run), beside.blocks());
        let can = run.can_append_beside(*seat, beside.block, beside.count);
        let face = forest.seats.face(*seat).filter(|face| face.is_like(self.rank.partial, self.rank.hybrid));
        let Some(face) = face.filter(|_| can) else { return false };
        face.change_beside(self.rank.stamp, self.rank.held(), beside.count, || run.append_beside(blocks));
        drop(forest);
        if let Some(scratch) = &mut self.rank.scratch {
            scratch.beside = None;
        }
        true
    }

    /// Appends what was stored beside others, now that the transaction does more than that.
    pub(super) fn flush(&mut self) {
        let Some(beside) = self.rank.scratch.as_mut().and_then(|scratch| scratch.beside.take()) else { return };
        let (seat, blocks) = (self.seat(), beside.blocks());
        let Some(forest) = lock(self.forest, self.rank) else { return };
        if forest.run(beside.run).can_append_beside(seat, beside.block, beside.count) {
            forest.append_alone(beside.run, blocks);
        } else {
            self.store_again(&beside);
        }
    }

    /// Others have come to where blocks were to be appended: they are stored as if nothing had been done.
    #[cold]
    fn store_again(&mut self, beside: &Beside) {
        let (blocks, mut scratch) = (beside.blocks(), self.scratch());
        self.take_names(blocks, &scratch.staged);
        self.rank.holds.unstage(&mut scratch.staged);
        scratch.placed.clear();
        self.rank.scratch = Some(scratch);
        self.rank.ordinary -= beside.count as u64;
        self.bounds.unweigh(self.rank, beside.count);
        let (parent, seed) = (Some((beside.run, beside.block)), beside.seed);
        if self.store_ordinary(parent, seed, blocks).is_none() {
            let (home, mut outcome) = (self.rank.home, StoreOutcome::default());
            self.apart(|apart| apart.store(parent, seed, Tier::Device, home, blocks, &mut outcome));
        }
    }
}

// === impl Beside ===

impl Beside {
    fn blocks(&self) -> &[Block] {
        &self.blocks[..self.count]
    }
}
