//! One rank of an index, told by the snapshot and the deltas of another.

use std::collections::HashMap;

use crate::block::Group;
use crate::hash::{ContentHash, EngineHash, PrefixHash, Seed};
use crate::index::{Block, BlockRun, Change, IndexError, Parent, RankWriter, Tx, What};
use crate::worker::{RankId, Stamp};

use super::decode::{Message, Point};

/// The group of every prefix block in a mirror. No message names it.
const HOME: Group = Group(u32::MAX);

/// Passed blocks that one snapshot or delta may tell: bounds what a hostile source makes a mirror keep.
const MAX_PASSED: usize = 1 << 22;

/// Changes that the messages of one delta may have together.
const MAX_CHANGES: usize = 1 << 20;

/// Blocks of a snapshot that are stored in one transaction, if their runs are short: others of the same model wait for it.
const AT_ONCE: usize = 64;

/// So many times the blocks that have come of a snapshot may it announce, for room to be made for them.
const AHEAD: usize = 8;

/// A mirror of one rank.
#[derive(Debug)]
pub struct Mirror {
    writer: RankWriter,
    life: u64,
    at: Point,
    step: Step,
    /// A bound of this index has let go of blocks of it.
    evicted: bool,
    /// Blocks on the way to others: content and the block before.
    ways: Ways,
    /// What came so far of a delta that goes on.
    pending: Vec<Change>,
    /// Blocks that a snapshot has announced, and those of it that have come.
    announced: usize,
    come: usize,
    /// Scratch: the blocks of what is stored next.
    named: Vec<Block>,
}

/// Where a mirror stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Nothing is known: a snapshot must come.
    Empty,
    /// A snapshot is coming; so many parts came.
    Filling(u64),
    /// Everything up to the point is there.
    Whole,
}

/// What a message came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// It was applied, or more of it must come first.
    Applied,
    /// It says what is known already.
    Known,
    /// There is nothing to apply it to: a snapshot must come first.
    Waiting,
}

/// Why a mirror cannot go on. It holds nothing any more, and needs a snapshot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// Deltas are missing.
    #[error("deltas are missing between {have} and {got}")]
    Gap {
        /// The last one that was applied.
        have: u64,
        /// The one that came.
        got: u64,
    },
    /// Parts of a snapshot are missing.
    #[error("{got} of {told} parts of a snapshot came")]
    Torn {
        /// How many there were.
        told: u64,
        /// How many came.
        got: u64,
    },
    /// The rank lives another life: what it held before says nothing.
    #[error("the rank was added anew")]
    OtherLife,
    /// A block under one that is neither held nor was passed, or the removal of one that is not held.
    #[error("a change does not fit what is held")]
    Misfit,
    /// More than a mirror keeps.
    #[error("a message tells more than a mirror keeps")]
    TooMuch,
    /// The rank was removed from the mirror's index.
    #[error("the rank was removed from this index")]
    Gone,
}

// === impl Mirror ===

impl Mirror {
    /// A mirror that holds nothing. `writer` is of a rank with [`Copies::Set`](crate::index::Copies::Set).
    pub fn new(mut writer: RankWriter) -> Self {
        writer.name_by_prefix();
        Self {
            writer,
            life: 0,
            at: Point { number: 0, stamp: Stamp::default() },
            step: Step::Empty,
            evicted: false,
            ways: HashMap::new(),
            pending: Vec::new(),
            announced: 0,
            come: 0,
            named: Vec::new(),
        }
    }

    /// The rank in the mirror's index.
    pub fn rank(&self) -> RankId {
        self.writer.rank()
    }

    /// Up to where everything is known; `None` while nothing is, or a snapshot is coming.
    pub fn at(&self) -> Option<Point> {
        (self.step == Step::Whole).then_some(self.at)
    }

    /// Applies a message. `life` is its key's.
    ///
    /// # Errors
    /// [`Fault`]: the mirror is empty then, and waits for a snapshot.
    pub fn apply(&mut self, life: u64, message: Message) -> Result<Progress, Fault> {
        let applied = self.try_apply(life, message);
        if applied.is_err() {
            self.forget();
        }
        applied
    }

    /// The messages come from a new connection: a delta that had not come whole comes again from its beginning.
    pub fn reconnect(&mut self) {
        self.pending = Vec::new();
    }

    /// Drops everything; a snapshot must come.
    pub fn forget(&mut self) {
        self.step = Step::Empty;
        self.ways = HashMap::new();
        self.pending = Vec::new();
        self.named = Vec::new();
        self.evicted = false;
        // Once the rank was removed there is nothing to drop.
        if let Ok(mut tx) = self.writer.begin() {
            tx.reset();
            tx.commit(Stamp { epoch: self.at.stamp.epoch, sequence: None });
        }
    }

    fn try_apply(&mut self, life: u64, message: Message) -> Result<Progress, Fault> {
        match (message, self.step) {
            (Message::Begin(at, changes, blocks), _) => {
                self.forget();
                (self.life, self.at, self.step) = (life, at, Step::Filling(0));
                (self.announced, self.come) = (usize::try_from(blocks).unwrap_or(usize::MAX), 0);
                self.change(&changes, None)?;
            }
            (_, Step::Empty) => return Ok(Progress::Waiting),
            _ if life != self.life => return Err(Fault::OtherLife),
            (Message::Part(changes), Step::Filling(parts)) => {
                self.fill(&changes)?;
                self.step = Step::Filling(parts + 1);
            }
            (Message::End(at, told), Step::Filling(got)) => {
                if (at, told) != (self.at, got) {
                    return Err(Fault::Torn { told, got });
                }
                self.change(&[], Some(at.stamp))?;
                self.named = Vec::new();
                self.step = Step::Whole;
            }
            (Message::Part(_) | Message::End(..), _) => return Ok(Progress::Known),
            // Of one rank nothing comes between a snapshot's beginning and its end.
            (Message::Delta { .. }, Step::Filling(got)) => return Err(Fault::Torn { told: got + 1, got }),
            (Message::Delta { at, .. }, Step::Whole) if at.number <= self.at.number => {
                return Ok(Progress::Known);
            }
            (Message::Delta { at, changes, goes_on }, Step::Whole) => {
                if at.number != self.at.number + 1 {
                    return Err(Fault::Gap { have: self.at.number, got: at.number });
                }
                if self.pending.len() + changes.len() > MAX_CHANGES {
                    return Err(Fault::TooMuch);
                }
                if goes_on {
                    self.pending.extend(changes);
                    return Ok(Progress::Applied);
                }
                let changes = match self.pending.is_empty() {
                    true => changes,
                    false => std::mem::take(&mut self.pending).into_iter().chain(changes).collect(),
                };
                self.change(&changes, Some(at.stamp))?;
                self.at = at;
            }
        }
        Ok(Progress::Applied)
    }

    /// Applies a part of a snapshot, a transaction for each long run: whoever stores under the same model waits only while
    /// one is put into its place, not while its names are kept.
    fn fill(&mut self, changes: &[Change]) -> Result<(), Fault> {
        self.come += changes.iter().map(stored).sum::<usize>();
        // What a source announces takes memory only where most of an eighth of it is there.
        let room = self.announced.min(self.come.saturating_mul(AHEAD));
        self.writer.reserve(room);
        let mut rest = changes;
        while !rest.is_empty() {
            let mut blocks = 0;
            let goes_on = |change: &&Change| {
                let has_room = blocks < AT_ONCE;
                blocks += stored(change);
                has_room
            };
            let (now, later) = rest.split_at(rest.iter().take_while(goes_on).count());
            self.change(now, None)?;
            rest = later;
        }
        Ok(())
    }

    /// Applies changes in one transaction; with a stamp they are complete.
    fn change(&mut self, changes: &[Change], stamp: Option<Stamp>) -> Result<(), Fault> {
        let Self { writer, ways, evicted, named, .. } = self;
        // Hashes are worked out before the transaction, in which others may have to wait.
        named.clear();
        changes.iter().for_each(|change| name(change, named));
        let mut named = &named[..];
        let mut tx = writer.begin().map_err(|_| Fault::Gone)?;
        for change in changes {
            let (blocks, rest) = named.split_at(stored(change).min(named.len()));
            named = rest;
            match change {
                Change::Cleared => {
                    tx.clear();
                    *evicted = false;
                }
                Change::Reset => {
                    tx.reset();
                    *evicted = false;
                }
                Change::Grid(grid) => tx.set_grid(*grid).map_err(|error| match error {
                    IndexError::WorkerGone => Fault::Gone,
                    _ => Fault::Misfit,
                })?,
                Change::Groups { notes, too_many } => {
                    notes.iter().for_each(|(group, rule, size)| tx.note_group(*group, *rule, *size));
                    tx.mark_groups(*too_many);
                }
                Change::Partial(partial) => tx.mark_partial(*partial || *evicted),
                Change::Run(run) => match apply_run(&mut tx, ways, run, blocks) {
                    // What a bound of this index has let go of is missed here, and said so.
                    Err(Fault::Misfit) if *evicted => {}
                    applied => *evicted |= applied?,
                },
                Change::Gone => return Err(Fault::Gone),
            }
        }
        if let Some(stamp) = stamp {
            *ways = Ways::new();
            tx.commit(stamp);
        }
        Ok(())
    }
}

/// Blocks on the way to others: content and the block before.
type Ways = HashMap<PrefixHash, (ContentHash, Option<PrefixHash>)>;

/// How many prefix blocks a change stores.
fn stored(change: &Change) -> usize {
    match change {
        Change::Run(BlockRun { what: What::Stored(_), group: None, contents, .. }) => contents.len(),
        _ => 0,
    }
}

/// Appends the prefix blocks that a change stores.
fn name(change: &Change, named: &mut Vec<Block>) {
    if let Change::Run(run) = change
        && stored(change) > 0
    {
        let names = run.prefixes().map(|prefix| EngineHash::from_u64(prefix.0));
        named.extend(names.zip(&run.contents).map(|(engine, content)| Block { engine, content: *content }));
    }
}

/// Applies one run, which stores these blocks; whether a bound has let go of something for it.
fn apply_run(tx: &mut Tx<'_>, ways: &mut Ways, run: &BlockRun, blocks: &[Block]) -> Result<bool, Fault> {
    let names = || run.prefixes().map(|prefix| EngineHash::from_u64(prefix.0));
    match (run.what, run.group) {
        (What::Passed, _) => {
            if ways.len() + run.contents.len() > MAX_PASSED {
                return Err(Fault::TooMuch);
            }
            let parents = std::iter::once(run.parent).chain(run.prefixes().map(Some));
            ways.extend(run.prefixes().zip(run.contents.iter().copied().zip(parents)));
        }
        (What::Stored(tier), None) => {
            let parent = parent(tx, ways, run.parent)?;
            return Ok(tx.store(parent, tier, HOME, blocks).evicted > 0);
        }
        (What::Stored(tier), Some(group)) => tx.hold(tier, group, &names().collect::<Vec<_>>()),
        (What::Removed(tier), group) => {
            let outcome = tx.remove(tier, group.unwrap_or(HOME), &names().collect::<Vec<_>>());
            if outcome.unknown > 0 {
                return Err(Fault::Misfit);
            }
        }
    }
    Ok(false)
}

/// What blocks behind `parent` are stored under.
fn parent(tx: &mut Tx<'_>, ways: &Ways, parent: Option<PrefixHash>) -> Result<Parent, Fault> {
    let mut between: Vec<ContentHash> = Vec::new();
    let mut at = parent;
    let start = loop {
        let Some(prefix) = at else { break Parent::Root(Seed::PLAIN) };
        if let Some(found) = tx.find(EngineHash::from_u64(prefix.0)) {
            break Parent::Under(found.place);
        }
        // Each way leads to a block before it, but a source may lie: what it passes may lead round in a circle.
        match ways.get(&prefix) {
            Some((content, before)) if between.len() <= ways.len() => {
                between.push(*content);
                at = *before;
            }
            _ => return Err(Fault::Misfit),
        }
    };
    if between.is_empty() {
        return Ok(start);
    }
    between.reverse();
    tx.pass(start, &between).map(Parent::Under).ok_or(Fault::Misfit)
}
