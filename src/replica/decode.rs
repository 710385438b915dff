//! Messages of the normalized feed, read back. They come from outside: nothing in them is believed before it is
//! checked.

use crate::block::{Grid, Group, GroupRule, Tier};
use crate::hash::{ContentHash, PrefixHash};
use crate::index::{BlockRun, Change, What};
use crate::proto::v1;
use crate::worker::Stamp;

/// Groups a message may name. Engines have a handful, and an index keeps 64.
const MAX_NOTES: usize = 64;

/// What a message says of one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message {
    /// A snapshot begins, of about so many blocks: nothing but a hint.
    Begin(Point, Vec<Change>, u64),
    /// Some of it.
    Part(Vec<Change>),
    /// It is complete, after so many parts.
    End(Point, u64),
    /// A delta, or some of it.
    Delta {
        /// The point after it.
        at: Point,
        /// The changes.
        changes: Vec<Change>,
        /// The same delta goes on in the next message.
        goes_on: bool,
    },
}

/// How far a rank's story is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// The number of the last delta.
    pub number: u64,
    /// The engine's epoch and sequence number.
    pub stamp: Stamp,
}

/// Why a message cannot be read: the field.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{field}: {why}")]
pub struct DecodeError {
    /// The field's name in the protocol.
    pub field: &'static str,
    /// What is wrong with it.
    pub why: &'static str,
}

const fn bad(field: &'static str, why: &'static str) -> DecodeError {
    DecodeError { field, why }
}

const MISSING: &str = "required";

/// Whether runs tell their prefix hashes and positions, which must be right then, and name the device.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Prefixes {
    Told,
    /// They follow from parent and contents; what is said of them is not looked at. A run that names no tier means the device.
    LeftOut,
}

// === impl Message ===

impl Message {
    /// Reads a snapshot's beginning.
    ///
    /// # Errors
    /// [`DecodeError`] where a field cannot be used; so it is with the others.
    pub fn begin(message: &v1::SnapshotBegin) -> Result<Self, DecodeError> {
        let mut changes = Vec::new();
        if let Some(of) = &message.grid {
            changes.push(Change::Grid(grid(of)?));
        }
        if let Some(of) = &message.groups {
            changes.push(groups(of)?);
        }
        if message.partial {
            changes.push(Change::Partial(true));
        }
        Ok(Self::Begin(point(message.at.as_ref())?, changes, message.blocks))
    }

    /// Reads a snapshot's part.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn part(message: &v1::SnapshotPart) -> Result<Self, DecodeError> {
        Self::part_of(message, Prefixes::Told)
    }

    /// The same where prefix hashes were [left out](super::encode::bare).
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn bare_part(message: &v1::SnapshotPart) -> Result<Self, DecodeError> {
        Self::part_of(message, Prefixes::LeftOut)
    }

    fn part_of(message: &v1::SnapshotPart, prefixes: Prefixes) -> Result<Self, DecodeError> {
        let runs = message.runs.iter().map(|of| run(of, prefixes).map(Change::Run));
        let changes: Vec<Change> = runs.collect::<Result<_, _>>()?;
        let removes = |change: &Change| matches!(change, Change::Run(run) if matches!(run.what, What::Removed(_)));
        if changes.iter().any(removes) {
            return Err(bad("kind", "a snapshot removes nothing"));
        }
        Ok(Self::Part(changes))
    }

    /// Reads a snapshot's end.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn end(message: &v1::SnapshotEnd) -> Result<Self, DecodeError> {
        Ok(Self::End(point(message.at.as_ref())?, message.parts))
    }

    /// Reads a delta.
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn delta(message: &v1::RankDelta) -> Result<Self, DecodeError> {
        Self::delta_of(message, Prefixes::Told)
    }

    /// The same where prefix hashes were [left out](super::encode::bare).
    ///
    /// # Errors
    /// [`DecodeError`].
    pub fn bare_delta(message: &v1::RankDelta) -> Result<Self, DecodeError> {
        Self::delta_of(message, Prefixes::LeftOut)
    }

    fn delta_of(message: &v1::RankDelta, prefixes: Prefixes) -> Result<Self, DecodeError> {
        let at = point(message.at.as_ref())?;
        let changes = message.changes.iter().map(|of| change(of, prefixes)).collect::<Result<_, _>>()?;
        Ok(Self::Delta { at, changes, goes_on: message.goes_on })
    }
}

fn point(of: Option<&v1::Point>) -> Result<Point, DecodeError> {
    let of = of.ok_or(bad("at", MISSING))?;
    Ok(Point { number: of.number, stamp: Stamp { epoch: of.epoch, sequence: of.sequence } })
}

fn change(of: &v1::Change, prefixes: Prefixes) -> Result<Change, DecodeError> {
    use v1::change::Change as Told;
    Ok(match of.change.as_ref().ok_or(bad("change", MISSING))? {
        Told::Cleared(_) => Change::Cleared,
        Told::Reset(_) => Change::Reset,
        Told::Grid(of) => Change::Grid(grid(of)?),
        Told::Groups(of) => groups(of)?,
        Told::Run(of) => Change::Run(run(of, prefixes)?),
        Told::Partial(partial) => Change::Partial(*partial),
    })
}

fn grid(of: &v1::Grid) -> Result<Grid, DecodeError> {
    let invalid = bad("grid", "block size or lookahead out of range");
    Grid::with_lookahead(of.block_size.into(), of.lookahead.into()).map_err(|_| invalid)
}

fn groups(of: &v1::Groups) -> Result<Change, DecodeError> {
    if of.notes.len() > MAX_NOTES {
        return Err(bad("groups", "more than 64"));
    }
    let note = |note: &v1::GroupNote| {
        let rule = match note.rule() {
            v1::GroupRule::Full => GroupRule::Full,
            v1::GroupRule::Window => GroupRule::Window { tokens: note.window_tokens },
            // A rule of a later version is one that nobody here knows.
            v1::GroupRule::Unknown | v1::GroupRule::Unspecified => GroupRule::Unknown,
        };
        Ok((group(note.group)?, rule, note.block_size.max(1)))
    };
    let notes = of.notes.iter().map(note).collect::<Result<_, _>>()?;
    Ok(Change::Groups { notes, too_many: of.too_many })
}

/// The last number is what mirrors call the group of their own.
fn group(number: u32) -> Result<Group, DecodeError> {
    if number == u32::MAX { Err(bad("group", "out of range")) } else { Ok(Group(number)) }
}

fn run(of: &v1::BlockRun, prefixes: Prefixes) -> Result<BlockRun, DecodeError> {
    if of.content_hashes.is_empty() {
        return Err(bad("content_hashes", MISSING));
    }
    if prefixes == Prefixes::Told && of.content_hashes.len() != of.prefix_hashes.len() {
        return Err(bad("prefix_hashes", "not as many as content hashes"));
    }
    if prefixes == Prefixes::Told && of.parent.is_none() != (of.position == 0) {
        return Err(bad("position", "0 without a parent, and only then"));
    }
    let what = match of.kind() {
        v1::RunKind::Stored => What::Stored(tier(of, prefixes)?),
        v1::RunKind::Removed => What::Removed(tier(of, prefixes)?),
        v1::RunKind::Passed => What::Passed,
        v1::RunKind::Unspecified => return Err(bad("kind", "unknown")),
    };
    let run = BlockRun {
        what,
        group: of.group.map(group).transpose()?,
        parent: of.parent.map(PrefixHash),
        position: of.position,
        contents: of.content_hashes.iter().copied().map(ContentHash).collect(),
    };
    if prefixes == Prefixes::Told && !run.prefixes().map(|prefix| prefix.0).eq(of.prefix_hashes.iter().copied()) {
        return Err(bad("prefix_hashes", "not those of the contents"));
    }
    Ok(run)
}

fn tier(of: &v1::BlockRun, prefixes: Prefixes) -> Result<Tier, DecodeError> {
    if prefixes == Prefixes::LeftOut && of.tier == i32::from(v1::Tier::Unspecified) {
        return Ok(Tier::Device);
    }
    let index = usize::try_from(of.tier).ok().and_then(|number| number.checked_sub(1));
    index.and_then(|index| Tier::all().get(index).copied()).ok_or(bad("tier", "unknown"))
}
