//! Snapshots and deltas of an index as messages.

use std::sync::Arc;

use crate::block::{Grid, Group, GroupRule, Tier};
use crate::hash::{ContentHash, PrefixHash};
use crate::index::{BlockRun, Change, Delta, What};
use crate::proto::v1;
use crate::worker::{Identity, RankId, Stamp};

/// The most blocks that one message tells: 128 KiB of hashes.
pub const MAX_BLOCKS: usize = 8192;

/// The messages of a snapshot, one by one.
#[derive(Debug)]
pub struct Snapshot {
    key: v1::RankKey,
    delta: Arc<Delta>,
    /// Runs are told with their prefix hashes.
    whole: bool,
    begun: bool,
    ended: bool,
    /// The next change, and how many of its blocks were told.
    next: usize,
    told: usize,
    /// The block before the next one of that change.
    last: Option<PrefixHash>,
    parts: u64,
}

/// The key of a rank in messages. `instance`: any number that another process of the same index would not have.
pub fn key(identity: &Identity, rank: RankId, instance: u64) -> v1::RankKey {
    v1::RankKey {
        worker: identity.worker.to_string(),
        model: identity.model.to_string(),
        rank: identity.rank,
        life: instance.wrapping_add(u64::from(rank.slot) << 32 | u64::from(rank.generation)),
    }
}

/// A delta as messages that belong together, in their order.
pub fn delta(key: &v1::RankKey, delta: &Delta) -> Vec<v1::RankDelta> {
    told(Some(key), delta)
}

/// The same without what a reader knows or can work out: no key, no prefix hashes, no positions, and the device is not named.
/// One removed block is told as if it stood at a prompt's beginning, by its prefix hash: there the two hashes are one.
pub fn bare(delta: &Delta) -> Vec<v1::RankDelta> {
    told(None, delta)
}

fn told(key: Option<&v1::RankKey>, delta: &Delta) -> Vec<v1::RankDelta> {
    let (at, whole) = (point(delta), key.is_some());
    let message = |changes| v1::RankDelta { key: key.cloned(), at: Some(at), changes, goes_on: true };
    let mut messages = Vec::new();
    let mut changes = Vec::new();
    let mut blocks = 0;
    let mut add = |next: v1::Change, size: usize| {
        if blocks + size > MAX_BLOCKS && !changes.is_empty() {
            messages.push(message(std::mem::take(&mut changes)));
            blocks = 0;
        }
        blocks += size;
        changes.push(next);
    };
    for next in &delta.changes {
        if let Change::Run(run) = next {
            for piece in pieces(run, whole) {
                let size = piece.content_hashes.len();
                add(v1::Change { change: Some(v1::change::Change::Run(piece)) }, size);
            }
        } else if let Some(told) = plain(next) {
            add(v1::Change { change: Some(told) }, size_of(next));
        }
    }
    messages.push(v1::RankDelta { goes_on: false, ..message(changes) });
    messages
}

/// What a change takes of a message's room, in blocks.
pub(super) fn size_of(change: &Change) -> usize {
    match change {
        Change::Run(run) => run.contents.len(),
        // It costs about as much as a few blocks, whatever it says.
        _ => 8,
    }
}

/// A change that is no run, as it is told.
pub(super) fn plain(change: &Change) -> Option<v1::change::Change> {
    use v1::change::Change as Told;
    Some(match change {
        Change::Cleared => Told::Cleared(v1::Cleared {}),
        Change::Reset => Told::Reset(v1::Reset {}),
        Change::Grid(of) => Told::Grid(grid(*of)),
        Change::Groups { notes, too_many } => Told::Groups(groups(notes, *too_many)),
        Change::Partial(partial) => Told::Partial(*partial),
        // That is a happening of its own.
        Change::Run(_) | Change::Gone => return None,
    })
}

// === impl Snapshot ===

impl Snapshot {
    /// The messages of a snapshot, which the index has told as a delta from nothing.
    pub fn new(key: v1::RankKey, delta: Arc<Delta>) -> Self {
        Self { key, delta, whole: true, begun: false, ended: false, next: 0, told: 0, last: None, parts: 0 }
    }

    /// The same, with runs as [`bare`] tells them.
    pub fn bare(key: v1::RankKey, delta: Arc<Delta>) -> Self {
        Self { whole: false, ..Self::new(key, delta) }
    }

    fn begin(&self) -> v1::SnapshotBegin {
        let mut begin = v1::SnapshotBegin {
            key: Some(self.key.clone()),
            at: Some(point(&self.delta)),
            grid: None,
            groups: None,
            partial: false,
            blocks: 0,
        };
        for change in &self.delta.changes {
            match change {
                Change::Grid(of) => begin.grid = Some(grid(*of)),
                Change::Groups { notes, too_many } => begin.groups = Some(groups(notes, *too_many)),
                Change::Partial(partial) => begin.partial = *partial,
                Change::Run(run) if run.group.is_none() && matches!(run.what, What::Stored(_)) => {
                    begin.blocks += run.contents.len() as u64;
                }
                Change::Run(_) | Change::Cleared | Change::Reset | Change::Gone => {}
            }
        }
        begin
    }

    fn part(&mut self) -> Option<v1::SnapshotPart> {
        let delta = Arc::clone(&self.delta);
        let mut runs = Vec::new();
        let mut room = MAX_BLOCKS;
        while room > 0
            && let Some(change) = delta.changes.get(self.next)
        {
            let Change::Run(run) = change else {
                self.next += 1;
                continue;
            };
            if self.told == 0 {
                self.last = run.parent;
            }
            let end = run.contents.len().min(self.told + room);
            let piece = piece(run, self.told, end, &mut self.last, self.whole);
            room -= end - self.told;
            runs.push(piece);
            self.told = end;
            if end == run.contents.len() {
                (self.next, self.told) = (self.next + 1, 0);
            }
        }
        (!runs.is_empty()).then(|| v1::SnapshotPart { key: Some(self.key.clone()), runs })
    }
}

impl Iterator for Snapshot {
    type Item = v1::event::Event;

    fn next(&mut self) -> Option<Self::Item> {
        use v1::event::Event;
        if !self.begun {
            self.begun = true;
            return Some(Event::SnapshotBegin(self.begin()));
        }
        if self.ended {
            return None;
        }
        if let Some(part) = self.part() {
            self.parts += 1;
            return Some(Event::SnapshotPart(part));
        }
        self.ended = true;
        let at = Some(point(&self.delta));
        Some(Event::SnapshotEnd(v1::SnapshotEnd { key: Some(self.key.clone()), at, parts: self.parts }))
    }
}

// === pieces ===

/// How far a rank's story is told by a delta.
pub fn point(delta: &Delta) -> v1::Point {
    let Stamp { epoch, sequence } = delta.stamp;
    v1::Point { number: delta.number, epoch, sequence }
}

const fn grid(grid: Grid) -> v1::Grid {
    v1::Grid { block_size: grid.size(), lookahead: grid.lookahead }
}

fn groups(notes: &[(Group, GroupRule, u32)], too_many: bool) -> v1::Groups {
    let note = |(group, rule, block_size): &(Group, GroupRule, u32)| {
        let (rule, window_tokens) = match rule {
            GroupRule::Full => (v1::GroupRule::Full, 0),
            GroupRule::Window { tokens } => (v1::GroupRule::Window, *tokens),
            GroupRule::Unknown => (v1::GroupRule::Unknown, 0),
        };
        v1::GroupNote { group: group.0, rule: rule.into(), window_tokens, block_size: *block_size }
    };
    v1::Groups { notes: notes.iter().map(note).collect(), too_many }
}

/// A run cut into pieces that fit into a message.
fn pieces(run: &BlockRun, whole: bool) -> impl Iterator<Item = v1::BlockRun> {
    let starts = (0..run.contents.len()).step_by(MAX_BLOCKS);
    starts.scan(run.parent, move |last, from| {
        Some(piece(run, from, run.contents.len().min(from + MAX_BLOCKS), last, whole))
    })
}

/// Blocks `[from, to)` of a run, with or without their prefix hashes; `last` is the block before them, and then the last of
/// them where more follow.
fn piece(run: &BlockRun, from: usize, to: usize, last: &mut Option<PrefixHash>, whole: bool) -> v1::BlockRun {
    let parent = *last;
    let contents: &[ContentHash] = run.contents.get(from..to).unwrap_or_default();
    let (kind, on) = kind(run.what);
    let mut prefix = |content: &ContentHash| {
        let next = PrefixHash::after(*last, *content);
        *last = Some(next);
        next.0
    };
    let mut told = v1::BlockRun {
        kind: kind.into(),
        tier: on.into(),
        group: run.group.map(|group| group.0),
        parent: parent.map(|parent| parent.0),
        position: run.position.saturating_add(from as u32),
        prefix_hashes: Vec::new(),
        content_hashes: contents.iter().map(|content| content.0).collect(),
    };
    if whole {
        told.prefix_hashes = contents.iter().map(prefix).collect();
        return told;
    }
    if let (What::Removed(_), [content]) = (run.what, contents) {
        (told.parent, told.content_hashes) = (None, vec![prefix(content)]);
    } else if to < run.contents.len() {
        contents.iter().map(prefix).for_each(drop);
    }
    (told.tier, told.position) = (bare_tier(on).into(), 0);
    told
}

/// Where blocks lie, as bare runs say it: on the device where they say nothing.
pub(super) fn bare_tier(tier: v1::Tier) -> v1::Tier {
    if tier == v1::Tier::Device { v1::Tier::Unspecified } else { tier }
}

/// What a run says has happened, and where.
pub(super) fn kind(what: What) -> (v1::RunKind, v1::Tier) {
    match what {
        What::Stored(on) => (v1::RunKind::Stored, tier(on)),
        What::Removed(on) => (v1::RunKind::Removed, tier(on)),
        What::Passed => (v1::RunKind::Passed, v1::Tier::Unspecified),
    }
}

fn tier(tier: Tier) -> v1::Tier {
    v1::Tier::try_from(tier.index() as i32 + 1).unwrap_or_default()
}
