//! The blocks of one model on one grid, as a forest of runs, and who holds which.
//!
//! A run is a chain of blocks in flat arrays. It hangs from a block of another run, or begins at block 0. Chains
//! that part ways part at a block, not at a run: a child may hang from the middle, so nothing is ever split, and a
//! block keeps its place (run, number) for as long as it is there. A block is there while somebody holds it, or
//! something behind it in its chain.

use crate::hash::{ContentHash, PrefixHash};

use super::contents::Contents;
use super::cover::{Cover, Holder};
use super::door::Block;
use super::heads::Heads;
use super::plan::Plan;
use super::run::Run;
use super::runs::Runs;
use super::seats::{Face, Seats};

/// No run: the parent of a run that begins at block 0.
pub(super) const NONE: u32 = u32::MAX;

/// Blocks a run can have: its arrays are moved as they grow, and shrink, and readers wait for some of that. (Chains of
/// thousands of blocks matched about a tenth faster in runs of up to 65,536.)
pub(super) const MAX_RUN: usize = 1 << 11;

/// What has happened to the shape, since the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Shape {
    /// Blocks appended in place to a run's end.
    pub appended: u64,
    /// Of these, while readers went on and other writers too.
    pub appended_beside: u64,
    /// Runs that began: at block 0, or where a chain parted from the others.
    pub runs_begun: u64,
    /// Of these, because the run before them was full.
    pub runs_full: u64,
    /// Of these, because others hold the end of the run before them.
    pub runs_shared: u64,
    /// Runs that ended: nobody held anything of them, and nothing hung from them.
    pub runs_ended: u64,
    /// Runs there are.
    pub runs: u64,
    /// Blocks there are.
    pub blocks: u64,
    /// Bytes of memory they take, estimated.
    pub bytes: u64,
}

/// The forest.
#[derive(Debug, Default)]
pub(super) struct Forest {
    runs: Runs,
    free: Vec<u32>,
    /// Runs by what they hang from and their first content.
    kids: Heads,
    /// Runs by the prefix hash of their first block.
    heads: Heads,
    pub(super) seats: Seats,
    /// No rank will come here any more.
    pub(super) is_left: bool,
    /// Runs that may have to be cut or ended at the end of the transaction.
    touched: Vec<u32>,
    /// The version of the run that began, was cut or ended last.
    version: u32,
    shape: Shape,
}

// === impl Forest: reading ===

impl Forest {
    #[inline]
    pub(super) fn run(&self, run: u32) -> &Run {
        &self.runs[run]
    }

    /// A run that a former transaction found, if there still is any of this number.
    #[inline]
    pub(super) fn get(&self, run: u32) -> Option<&Run> {
        self.runs.get(run)
    }

    /// The run that begins behind a block with this content.
    #[inline]
    pub(super) fn kid(&self, parent: u32, block: u32, content: ContentHash) -> Option<u32> {
        self.kids.get(kid_hash(parent, block, content), |run| {
            let run = self.run(run);
            run.parent == parent && run.parent_block == block && run.first == content
        })
    }

    /// The run that begins behind a block with this prefix hash.
    #[inline]
    pub(super) fn head(&self, parent: u32, block: u32, prefix: PrefixHash) -> Option<u32> {
        self.heads.get(head_hash(prefix), |run| {
            let run = self.run(run);
            run.parent == parent && run.parent_block == block && run.head() == Some(prefix)
        })
    }

    /// Asks ahead for what tells the run that begins behind a block with this content.
    #[inline]
    pub(super) fn touch_kid(&self, parent: u32, block: u32, content: ContentHash) {
        self.kids.touch(kid_hash(parent, block, content));
    }

    /// Asks ahead for the run that may begin behind a block with this content.
    #[inline]
    pub(super) fn meet_kid(&self, parent: u32, block: u32, content: ContentHash) {
        if let Some(run) = self.kids.guess(kid_hash(parent, block, content)) {
            self.touch_run(run);
        }
    }

    /// Asks ahead for the run that may begin with a block of this prefix hash.
    #[inline]
    pub(super) fn meet_head(&self, prefix: PrefixHash) {
        if let Some(run) = self.heads.guess(head_hash(prefix)) {
            self.touch_run(run);
        }
    }

    /// Asks ahead for what tells the run that begins with a block of this prefix hash.
    #[inline]
    pub(super) fn touch_head(&self, prefix: PrefixHash) {
        self.heads.touch(head_hash(prefix));
    }

    /// Asks for a run ahead.
    #[inline]
    pub(super) fn touch_run(&self, run: u32) {
        if let Some(run) = self.get(run) {
            run.touch();
        }
    }

    /// Asks ahead for where the next run is put.
    #[inline]
    pub(super) fn touch_free(&self) {
        if let Some(free) = self.free.last() {
            self.touch_run(*free);
        }
    }

    /// Asks ahead for what changes where somebody loses the blocks of a run from one on.
    pub(super) fn touch_loss(&self, run: u32, from: u32) {
        let here = self.run(run);
        here.cover.touch();
        if from == 0
            && here.kids == 0
            && here.cover.only().is_some()
            && let (Some(content), Some(prefix)) = (here.contents.first(), here.head())
        {
            self.touch_kid(here.parent, here.parent_block, content);
            self.touch_head(prefix);
        }
    }

    /// The place before a place; `None` before block 0.
    pub(super) fn before(&self, run: u32, block: u32) -> Option<(u32, u32)> {
        match block.checked_sub(1) {
            Some(before) => Some((run, before)),
            None => Some(self.run(run)).filter(|run| run.parent != NONE).map(|run| (run.parent, run.parent_block)),
        }
    }

    /// Whether a place that a former transaction found is there still, and is that of this prefix hash.
    pub(super) fn is_at(&self, run: u32, block: u32, prefix: PrefixHash) -> bool {
        let run = self.get(run).filter(|run| run.contents.len() > block as usize);
        run.is_some_and(|run| run.prefix(block as usize) == prefix)
    }

    pub(super) fn shape(&self) -> Shape {
        let live = self.runs.iter().filter(|run| !run.contents.is_empty());
        let blocks = live.map(|run| run.contents.len() as u64).sum();
        let heap: usize = self.runs.iter().map(Run::heap).sum();
        let tables = self.runs.heap() + self.kids.heap() + self.heads.heap();
        let beside = self.shape.appended_beside + self.seats.faces().map(Face::appended_beside).sum::<u64>();
        Shape {
            appended: self.shape.appended + beside,
            appended_beside: beside,
            runs: (self.runs.len() - self.free.len()) as u64,
            blocks,
            bytes: (heap + tables) as u64,
            ..self.shape
        }
    }
}

// === impl Forest: growing ===

impl Forest {
    /// Finds the places of a chain of blocks behind `parent`, and makes those that are not there yet. They are not
    /// covered by that, only there until the transaction ends.
    pub(super) fn locate(&mut self, seat: u32, parent: Option<(u32, u32)>, blocks: &[Block], plan: &mut Plan) {
        self.plan(seat, parent, blocks, plan);
        plan.make_ready(blocks, false);
        self.grow(parent, blocks, plan);
    }

    /// Makes the places that were not there. Nobody has changed the forest since it was planned.
    pub(super) fn grow(&mut self, parent: Option<(u32, u32)>, blocks: &[Block], plan: &mut Plan) {
        let Plan { segments, found, prefixes, contents, .. } = plan;
        let (mut run, mut last) = parent.unwrap_or((NONE, 0));
        let mut done = 0;
        for segment in segments {
            let end = done + (segment.to - segment.from) as usize;
            let from = done.max(*found);
            if segment.run == NONE {
                let contents = contents.pop().unwrap_or_default();
                segment.run = self.begin(run, last, &blocks[done..end], &prefixes[done - *found..], contents);
            } else if from < end {
                let contents = contents.pop().unwrap_or_default();
                self.shape.appended += (end - from) as u64;
                self.runs[segment.run].append(&blocks[from..end], &prefixes[from - *found..], contents);
            }
            (run, last, done) = (segment.run, segment.to - 1, end);
            // A transaction may end before anybody covers them.
            if self.run(run).cover.is_empty() {
                self.touch(run);
            }
        }
    }

    /// Appends blocks to a run that can be appended to beside others, which its one holder holds from then on.
    pub(super) fn append_alone(&mut self, run: u32, blocks: &[Block]) {
        self.shape.appended += blocks.len() as u64;
        self.run(run).append_beside(blocks);
    }

    /// Spares most appends the look into the table.
    #[inline]
    pub(super) fn may_have_kid(&self, run: u32, block: u32) -> bool {
        run == NONE || (self.run(run).kids > 0 && self.run(run).last_kid >= block)
    }

    /// Whether a run may grow behind a block: only at its end, and only where one rank alone holds it. Where several do,
    /// each goes on in a run of its own, so that what they share stays one run that all hold whole.
    pub(super) fn may_append(&self, run: u32, last: u32, seat: u32) -> bool {
        self.get(run).is_some_and(|run| {
            let (len, cover) = (run.contents.len(), &run.cover);
            len == last as usize + 1 && len < MAX_RUN && (cover.is_only(seat) || cover.is_empty())
        })
    }

    fn begin(
        &mut self,
        parent: u32,
        parent_block: u32,
        blocks: &[Block],
        prefixes: &[PrefixHash],
        contents: Contents,
    ) -> u32 {
        self.version = self.version.wrapping_add(1);
        let mut run = Run::behind(parent, parent_block, self.version);
        if parent != NONE {
            let above = &mut self.runs[parent];
            if above.contents.len() == parent_block as usize + 1 {
                match above.contents.len() < MAX_RUN {
                    true => self.shape.runs_shared += 1,
                    false => self.shape.runs_full += 1,
                }
            }
            above.kids += 1;
            above.last_kid = above.last_kid.max(parent_block);
            above.fork = parent_block;
        }
        run.append(blocks, prefixes, contents);
        let heads = (run.contents.first(), run.head());
        let id = match self.free.pop() {
            Some(id) => {
                self.runs[id] = run;
                id
            }
            None => self.runs.push(run),
        };
        if let (Some(content), Some(prefix)) = heads {
            self.kids.put(kid_hash(parent, parent_block, content), id);
            self.heads.put(head_hash(prefix), id);
        }
        self.shape.runs_begun += 1;
        id
    }

    #[inline]
    pub(super) fn cover(&mut self, run: u32) -> &mut Cover {
        &mut self.runs[run].cover
    }

    pub(super) fn holder(&self, run: u32, seat: u32) -> Option<&Holder> {
        self.run(run).cover.get(seat)
    }
}

// === impl Forest: shrinking ===

impl Forest {
    /// A rank that holds nothing leaves its seat.
    pub(super) fn leave(&mut self, seat: u32) {
        if let Some(face) = self.seats.leave(seat) {
            self.shape.appended_beside += face.appended_beside();
        }
    }

    /// Notes that somebody holds less of a run.
    #[inline]
    pub(super) fn touch(&mut self, run: u32) {
        if self.touched.last() != Some(&run) {
            self.touched.push(run);
        }
    }

    /// Cuts off, or ends, what nobody holds and nothing hangs from. Until then a place stays where it is, so that
    /// a parent that was removed in the same transaction can still be stored under.
    pub(super) fn settle(&mut self) {
        while let Some(mut id) = self.touched.pop() {
            // Upwards, for as long as the end of one run leaves the one above it with nothing.
            while id != NONE {
                let run = &mut self.runs[id];
                let kids = if run.kids > 0 { run.last_kid as usize + 1 } else { 0 };
                let keep = run.cover.end().max(kids);
                if keep > 0 || run.contents.is_empty() {
                    if keep < run.contents.len() {
                        self.version = self.version.wrapping_add(1);
                        run.version = self.version;
                        run.truncate(keep);
                    }
                    break;
                }
                id = self.end(id);
            }
        }
        if self.touched.capacity() > 1024 {
            self.touched = Vec::new();
        }
        if self.runs.len() == self.free.len() && self.runs.len() > 0 {
            self.runs = Runs::default();
            self.free = Vec::new();
        }
    }

    /// Ends a run; the run above it.
    fn end(&mut self, id: u32) -> u32 {
        self.version = self.version.wrapping_add(1);
        let run = std::mem::replace(&mut self.runs[id], Run::behind(NONE, 0, self.version));
        if let (Some(content), Some(prefix)) = (run.contents.first(), run.head()) {
            self.kids.remove(kid_hash(run.parent, run.parent_block, content), id);
            self.heads.remove(head_hash(prefix), id);
        }
        if run.parent != NONE {
            let above = &mut self.runs[run.parent];
            above.kids -= 1;
            if above.kids == 0 {
                above.last_kid = 0;
            }
        }
        self.free.push(id);
        self.shape.runs_ended += 1;
        run.parent
    }
}

/// Makes room at the end of an array that grows block by block: an eighth more, not twice as much. (A quarter cost a
/// byte and a half a block, and was no faster.)
#[inline]
pub(super) fn room<T>(array: &mut Vec<T>, more: usize) {
    if array.capacity() - array.len() < more {
        array.reserve_exact(room_for(array.len(), more));
    }
}

/// For how many more there should be room.
#[inline]
pub(super) fn room_for(len: usize, more: usize) -> usize {
    // What has begun to grow block by block gets room for a few at least, or a short array moves with every block.
    let few = if len == 0 { 0 } else { 8 };
    more.max(len / 8).max(few)
}

/// Gives memory back once a third of it lies empty.
#[inline]
pub(super) fn trim<T>(array: &mut Vec<T>) {
    if array.len() * 3 < array.capacity() * 2 {
        array.shrink_to(array.len() + array.len() / 8);
    }
}

#[inline]
fn kid_hash(parent: u32, block: u32, content: ContentHash) -> u32 {
    let place = u64::from(parent) << 32 | u64::from(block);
    let wide = u128::from(place ^ 0x9E37_79B9_7F4A_7C15) * u128::from(content.0 | 1);
    let mixed = (wide as u64 ^ (wide >> 64) as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    (mixed >> 32) as u32
}

#[inline]
fn head_hash(prefix: PrefixHash) -> u32 {
    (prefix.0 >> 32) as u32
}
