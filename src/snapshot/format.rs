//! The bytes of a snapshot. Pure: no I/O, and no panic whatever the bytes.
//!
//! ```text
//! "kvtapsnp"  version u32  length of the body u64  XXH3-128 of the body      then the body:
//! worker, model, rank, endpoint, replay endpoint, copies     whose it is
//! epoch
//! 0, or 1 and: (sequence, digest)*  memory  pieces  0        all that is held as of the last sequence
//! ```
//!
//! Numbers are little-endian. A piece is a tag and its fields ([`pieces`]); a block whose parent is the block told
//! before it, in the same chain, on the device, with one copy, takes 17 bytes.

use xxhash_rust::xxh3::xxh3_128;

use super::bytes::{Cursor, Put};
use crate::block::{Grid, Group, GroupRule};
use crate::hash::EngineHash;
use crate::index::{Copies, Exported};
use crate::normalize::{GroupMemory, Memory, NamingMemory};

mod pieces;

pub(super) use pieces::Pieces;

const MAGIC: &[u8; 8] = b"kvtapsnp";

/// The version that is written, and the only one that is read: a snapshot of another release is not worth more code
/// than a replay.
const VERSION: u32 = 1;

/// Whose snapshot it is. All of it must agree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Owner {
    /// The worker's name.
    pub worker: String,
    /// The model it serves.
    pub model: String,
    /// The data-parallel rank.
    pub rank: u32,
    /// The endpoint of the feed.
    pub endpoint: String,
    /// The replay endpoint.
    pub replay: Option<String>,
    /// How copies are counted.
    pub copies: Copies,
}

/// What is known of an epoch besides what is held in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Head {
    /// The last messages applied, as (sequence number, digest of the payload), rising: at least one.
    pub messages: Vec<(u64, u64)>,
    /// What the normalizer has learned.
    pub memory: Memory,
}

/// A snapshot that was read: checked, its pieces not looked at yet.
#[derive(Debug)]
pub struct Snapshot<'a> {
    /// The epoch; numbers up to it were used.
    pub epoch: u64,
    /// What is held, unless the snapshot is bare.
    pub content: Option<Content<'a>>,
}

/// What is held as of the last of `head.messages`.
#[derive(Debug)]
pub struct Content<'a> {
    /// All but what the index holds.
    pub head: Head,
    pieces: Pieces<'a>,
}

/// Why a file is not believed: the closed set of words of
/// [`Status::snapshots_refused`](crate::feed::status::Status::snapshots_refused).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Refusal {
    /// It cannot be read.
    #[error("it cannot be read")]
    Unreadable,
    /// It is no snapshot, or too large for one.
    #[error("it is no snapshot")]
    Foreign,
    /// It is of another version.
    #[error("it is of format version {found}, and this program reads version {VERSION}")]
    Version {
        /// The version that it says.
        found: u32,
    },
    /// It is cut off, or has grown.
    #[error("its length is not what it says")]
    Torn,
    /// Its bytes have changed.
    #[error("its checksum is not what it says")]
    Checksum,
    /// It is another worker's, another rank's, or of another configuration.
    #[error("it belongs to another feed or configuration")]
    Owner,
    /// Its checksum is right and its content cannot be.
    #[error("its content is inconsistent")]
    Malformed,
}

// === impl Refusal ===

impl Refusal {
    /// Every refusal; of those that carry a number, one.
    pub const ALL: [Self; 7] = [
        Self::Unreadable,
        Self::Foreign,
        Self::Version { found: 0 },
        Self::Torn,
        Self::Checksum,
        Self::Owner,
        Self::Malformed,
    ];

    /// The word in metrics and answers.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::Foreign => "foreign",
            Self::Version { .. } => "version",
            Self::Torn => "torn",
            Self::Checksum => "checksum",
            Self::Owner => "owner",
            Self::Malformed => "malformed",
        }
    }
}

// === writing ===

/// The bytes of a snapshot: bare without a `head`; with one, `export` tells every piece that is held, in order.
pub fn encode(
    owner: &Owner,
    epoch: u64,
    head: Option<&Head>,
    export: impl FnOnce(&mut dyn FnMut(Exported)),
) -> Vec<u8> {
    let mut out = Vec::new();
    out.bytes(MAGIC);
    out.u32(VERSION);
    let sums = out.len();
    out.bytes(&[0; 8 + 16]);
    let body = out.len();
    put_owner(owner, &mut out);
    out.u64(epoch);
    out.byte(u8::from(head.is_some()));
    if let Some(head) = head {
        out.length(head.messages.len());
        for (sequence, digest) in &head.messages {
            out.u64(*sequence);
            out.u64(*digest);
        }
        put_memory(&head.memory, &mut out);
        pieces::put(&mut out, export);
    }
    let (head, written) = out.split_at_mut(body);
    let (length, sum) = ((written.len() as u64).to_le_bytes(), xxh3_128(written).to_le_bytes());
    for (byte, value) in head.iter_mut().skip(sums).zip(length.into_iter().chain(sum)) {
        *byte = value;
    }
    out
}

fn put_owner(owner: &Owner, out: &mut Vec<u8>) {
    out.text(&owner.worker);
    out.text(&owner.model);
    out.u32(owner.rank);
    out.text(&owner.endpoint);
    out.option(owner.replay.as_deref(), |out, replay| out.text(replay));
    out.byte(u8::from(owner.copies == Copies::Set));
}

fn put_memory(memory: &Memory, out: &mut Vec<u8>) {
    out.option(memory.grid, put_grid);
    out.length(memory.groups.len());
    for known in &memory.groups {
        out.u32(known.group.0);
        put_rule(out, known.rule);
        out.u32(known.block_size);
        out.option(known.bare_window, Put::u32);
    }
    out.u32(memory.widest);
    out.option(memory.prefix_group, |out, group| out.u32(group.0));
    out.length(memory.media.len());
    memory.media.iter().for_each(|name| out.text(name));
    match &memory.naming {
        NamingMemory::Unknown => out.byte(0),
        NamingMemory::Chained => out.byte(1),
        NamingMemory::Unchained { nil_is_root, doubtful, overflowed } => {
            out.bytes(&[2, u8::from(*nil_is_root), u8::from(*overflowed)]);
            out.length(doubtful.len());
            doubtful.iter().for_each(|name| put_name(out, *name));
        }
    }
    out.byte(u8::from(memory.tentative));
    out.option(memory.announced, put_name);
    out.byte(u8::from(memory.cleared));
}

fn put_grid(out: &mut Vec<u8>, grid: Grid) {
    out.u32(grid.size());
    out.u32(grid.lookahead);
}

fn put_rule(out: &mut Vec<u8>, rule: GroupRule) {
    match rule {
        GroupRule::Full => out.byte(0),
        GroupRule::Unknown => out.byte(1),
        GroupRule::Window { tokens } => {
            out.byte(2);
            out.u32(tokens);
        }
    }
}

fn put_name(out: &mut Vec<u8>, name: EngineHash) {
    out.u64(name.low());
    out.u64(name.high());
}

// === reading ===

impl<'a> Snapshot<'a> {
    /// Reads a snapshot of `owner`. Its pieces are read as they are asked for.
    ///
    /// # Errors
    /// [`Refusal`].
    pub fn read(bytes: &'a [u8], owner: &Owner) -> Result<Self, Refusal> {
        let mut from = Cursor(bytes.strip_prefix(MAGIC).ok_or(Refusal::Foreign)?);
        let found = from.u32().map_err(|_| Refusal::Torn)?;
        if found != VERSION {
            return Err(Refusal::Version { found });
        }
        let length = from.u64().map_err(|_| Refusal::Torn)?;
        let sum = from.u128().map_err(|_| Refusal::Torn)?;
        if from.0.len() as u64 != length {
            return Err(Refusal::Torn);
        }
        if xxh3_128(from.0) != sum {
            return Err(Refusal::Checksum);
        }
        if owner_of(&mut from)? != *owner {
            return Err(Refusal::Owner);
        }
        // The next number must exist too.
        let epoch = from.u64().ok().filter(|epoch| *epoch < u64::MAX / 2).ok_or(Refusal::Malformed)?;
        let content = match from.bool()? {
            false if from.0.is_empty() => None,
            false => return Err(Refusal::Malformed),
            true => Some(Content { head: head(&mut from)?, pieces: Pieces::new(from) }),
        };
        Ok(Self { epoch, content })
    }
}

impl Content<'_> {
    /// About how many blocks are left, by the bytes that are: no more than twice as many, as a rule.
    pub fn blocks(&self) -> usize {
        self.pieces.bytes_left() / pieces::TYPICAL
    }

    /// The next pieces, into `out` (emptied first); none left: it stays empty.
    ///
    /// # Errors
    /// [`Refusal::Malformed`].
    pub fn pieces(&mut self, most: usize, out: &mut Vec<Exported>) -> Result<(), Refusal> {
        out.clear();
        while out.len() < most {
            let Some(piece) = self.pieces.next()? else { break };
            out.push(piece);
        }
        Ok(())
    }
}

fn owner_of(from: &mut Cursor<'_>) -> Result<Owner, Refusal> {
    Ok(Owner {
        worker: from.text()?.to_owned(),
        model: from.text()?.to_owned(),
        rank: from.u32()?,
        endpoint: from.text()?.to_owned(),
        replay: from.option(|from| from.text().map(str::to_owned))?,
        copies: if from.bool()? { Copies::Set } else { Copies::Count },
    })
}

fn head(from: &mut Cursor<'_>) -> Result<Head, Refusal> {
    let messages = from.list(16, |from| Ok((from.u64()?, from.u64()?)))?;
    if messages.is_empty() || !messages.is_sorted_by(|(one, _), (next, _)| one < next) {
        return Err(Refusal::Malformed);
    }
    Ok(Head { messages, memory: memory(from)? })
}

fn memory(from: &mut Cursor<'_>) -> Result<Memory, Refusal> {
    Ok(Memory {
        grid: from.option(grid)?,
        groups: from.list(10, |from| {
            Ok(GroupMemory {
                group: Group(from.u32()?),
                rule: rule(from)?,
                block_size: from.u32()?,
                bare_window: from.option(Cursor::u32)?,
            })
        })?,
        widest: from.u32()?,
        prefix_group: from.option(Cursor::u32)?.map(Group),
        media: from.list(4, |from| from.text().map(str::to_owned))?,
        naming: match from.u8()? {
            0 => NamingMemory::Unknown,
            1 => NamingMemory::Chained,
            2 => {
                let (nil_is_root, overflowed) = (from.bool()?, from.bool()?);
                NamingMemory::Unchained { nil_is_root, doubtful: from.list(16, name)?, overflowed }
            }
            _ => return Err(Refusal::Malformed),
        },
        tentative: from.bool()?,
        announced: from.option(name)?,
        cleared: from.bool()?,
    })
}

fn grid(from: &mut Cursor<'_>) -> Result<Grid, Refusal> {
    Grid::with_lookahead(from.u32()?.into(), from.u32()?.into()).map_err(|_| Refusal::Malformed)
}

fn rule(from: &mut Cursor<'_>) -> Result<GroupRule, Refusal> {
    Ok(match from.u8()? {
        0 => GroupRule::Full,
        1 => GroupRule::Unknown,
        2 => GroupRule::Window { tokens: from.u32()? },
        _ => return Err(Refusal::Malformed),
    })
}

fn name(from: &mut Cursor<'_>) -> Result<EngineHash, Refusal> {
    Ok(EngineHash::from_parts(from.u64()?, from.u64()?))
}

#[cfg(test)]
mod tests;
