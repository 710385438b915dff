//! What a store is going to do to the forest: all that can be known while others read, and plan, and all that can be made
//! without it.
//!
//! A plan is made under a reader's leave and carried out under a writer's. Between the two anybody may have come first,
//! so it notes the version of each run that it found, and is looked through again: where it no longer holds, it is made anew.

use crate::hash::{ContentHash, PrefixHash};

use super::bucket::touch_later;
use super::contents::Contents;
use super::door::Block;
use super::forest::{Forest, MAX_RUN, NONE};
use super::run::both;

/// Consecutive blocks of one run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Segment {
    pub(super) run: u32,
    pub(super) from: u32,
    pub(super) to: u32,
}

/// What a store is going to do: all that can be known and made while others read.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Where the blocks stand, or will. A run that has yet to begin is [`NONE`] until the forest has grown.
    pub(super) segments: Vec<Segment>,
    /// How many blocks stand there already.
    pub(super) found: usize,
    /// The prefix hashes of the others.
    pub(super) prefixes: Vec<PrefixHash>,
    /// The contents, all of them, of each run that they begin or lengthen, the last one first; empty for one that has room.
    pub(super) contents: Vec<Contents>,
    /// The runs that were looked at, and the versions that they had.
    walked: Vec<(u32, u32)>,
    /// The place behind which the first of the others comes.
    stop: (u32, u32),
    /// The prefix hash of that one.
    before: Option<PrefixHash>,
    /// How many of them are appended to that run.
    appends: usize,
}

// === impl Plan ===

impl Plan {
    /// Makes what can be made without the forest of what is not there yet. `is_named_by_prefix`: the blocks' names are their
    /// prefix hashes.
    pub(super) fn make_ready(&mut self, blocks: &[Block], is_named_by_prefix: bool) {
        let Self { segments, found, prefixes, contents, before, appends, .. } = self;
        let rest = blocks.get(*found..).unwrap_or(&[]);
        let mut before = *before;
        let hashed = rest.iter().enumerate().map(|(i, block)| {
            touch_later(rest, i);
            let prefix = PrefixHash::after(before, block.content);
            before = Some(prefix);
            prefix
        });
        prefixes.clear();
        if is_named_by_prefix {
            let named = || rest.iter().map(|block| PrefixHash(block.engine.low()));
            debug_assert!(hashed.eq(named()), "blocks have other names than their prefix hashes");
            prefixes.extend(named());
        } else {
            prefixes.extend(hashed);
        }
        if let Some(longer) = contents.first().filter(|longer| !longer.is_unmade()) {
            longer.append_beside_readers(both(&rest[..*appends], prefixes));
        }
        let mut new = rest.get(*appends..).unwrap_or(&[]);
        while !new.is_empty() {
            let (run, behind) = new.split_at(new.len().min(MAX_RUN));
            let made = Contents::with_room(&Contents::default(), run.len());
            made.append_beside_readers(both(run, &prefixes[rest.len() - new.len()..]));
            segments.push(Segment { run: NONE, from: 0, to: run.len() as u32 });
            contents.push(made);
            new = behind;
        }
        contents.reverse();
    }
}

// === impl Forest: planning ===

impl Forest {
    /// Finds the places that are there, and notes where those will be that are not.
    pub(super) fn plan(&self, seat: u32, parent: Option<(u32, u32)>, blocks: &[Block], plan: &mut Plan) {
        plan.segments.clear();
        plan.walked.clear();
        plan.contents.clear();
        let mut rest = blocks;
        let (mut run, mut last) = parent.unwrap_or((NONE, 0));
        plan.found = blocks.len();
        if run != NONE {
            // A place that a former transaction found.
            let Some(there) = self.get(run).filter(|run| run.contents.len() > last as usize) else { return };
            plan.walked.push((run, there.version));
        }
        while let Some(first) = rest.first() {
            if run != NONE {
                let from = last + 1;
                // One look at how long it is, for its holder may lengthen it beside us: what is planned goes by this one.
                let here = self.run(run).contents.as_slice().get(from as usize..).unwrap_or(&[]);
                let same = same_blocks(here, rest);
                if same > 0 {
                    last += same as u32;
                    push(&mut plan.segments, Segment { run, from, to: last + 1 });
                    rest = &rest[same..];
                    continue;
                }
            }
            let kid = if self.may_have_kid(run, last) { self.kid(run, last, first.content) } else { None };
            let Some(kid) = kid else { break };
            run = kid;
            plan.walked.push((run, self.run(run).version));
            let same = same_blocks(self.run(run).contents.as_slice(), rest);
            last = same as u32 - 1;
            push(&mut plan.segments, Segment { run, from: 0, to: last + 1 });
            rest = &rest[same..];
        }
        plan.found = blocks.len() - rest.len();
        if !rest.is_empty() {
            self.plan_rest(seat, (run, last), rest, plan);
        }
    }

    /// Whether a plan is still right, whatever others have done since: a run whose version is the same has nothing taken
    /// away, so what was found is there; and nothing has come to where the rest begins. Of what this rank holds itself
    /// nobody else takes anything away.
    #[inline]
    pub(super) fn is_as_planned(&self, seat: u32, blocks: &[Block], plan: &Plan) -> bool {
        let is_same = |(run, version): &(u32, u32)| self.get(*run).is_some_and(|run| run.version == *version);
        if !plan.walked.iter().all(is_same) {
            return false;
        }
        let Some(first) = blocks.get(plan.found) else { return true };
        let (run, last) = plan.stop;
        debug_assert!(
            plan.before == (run != NONE).then(|| self.run(run).prefix(last as usize)),
            "a plan begins from the prefix hash of another block"
        );
        let is_free = match plan.appends {
            _ if run == NONE => true,
            0 => self.run(run).contents.get(last as usize + 1) != Some(first.content),
            _ => self.may_append(run, last, seat),
        };
        is_free && !(self.may_have_kid(run, last) && self.kid(run, last, first.content).is_some())
    }

    /// Notes where the rest of a chain will stand, behind a block.
    fn plan_rest(&self, seat: u32, (run, last): (u32, u32), rest: &[Block], plan: &mut Plan) {
        plan.stop = (run, last);
        plan.before = (run != NONE).then(|| self.run(run).prefix(last as usize));
        plan.appends = 0;
        if self.may_append(run, last, seat) {
            let new = rest.len().min(MAX_RUN - 1 - last as usize);
            push(&mut plan.segments, Segment { run, from: last + 1, to: last + 1 + new as u32 });
            plan.appends = new;
            let have = &self.run(run).contents;
            plan.contents.push(match have.room() < new {
                true => Contents::with_room(have, new),
                false => Contents::default(),
            });
        }
        if let Some(block) = rest.get(plan.appends) {
            // What is changed where the run that has to begin there is entered.
            self.touch_kid(run, last + plan.appends as u32, block.content);
            if plan.appends == 0 {
                self.touch_head(PrefixHash::after(plan.before, block.content));
            }
            self.touch_free();
        }
    }
}

/// How many leading blocks stand here.
#[inline]
fn same_blocks(here: &[ContentHash], blocks: &[Block]) -> usize {
    here.iter().zip(blocks).take_while(|(here, block)| **here == block.content).count()
}

/// Appends a segment, or lengthens the last one by it.
#[inline]
fn push(segments: &mut Vec<Segment>, next: Segment) {
    match segments.last_mut() {
        Some(last) if last.run == next.run && last.to == next.from => last.to = next.to,
        _ => segments.push(next),
    }
}
