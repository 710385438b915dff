//! What travels, as bytes: batches of deltas, announcements, pieces of snapshots. Bytes from outside are bounded before
//! anything is made of them.
//!
//! Reading is pure: no I/O, and no panic whatever the bytes.

use std::fmt;

use bytes::Bytes;
use prost::Message as _;

use super::subject::Address;
use crate::feed::drops::Dropped;
use crate::feed::status::State;
use crate::proto::v1;
use crate::replica;

/// The largest message that is read, in bytes, also once decompressed: a batch of 8,192 blocks is 160 KiB.
pub const MAX_MESSAGE: usize = 1 << 20;

/// A name, the names of one worker, and a sentence, in bytes.
const MAX_NAME: usize = 512;
const MAX_ALIASES: usize = 64;
const MAX_WHY: usize = 4096;

/// How hard snapshots are compressed: hashes cannot be, and to find that out costs less the lower it is; the rest is small.
const LEVEL: i32 = -5;

/// Why a message is not used: a stable word for the counter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unusable {
    /// Longer than anybody sends.
    TooLarge,
    /// Not what it should be.
    Malformed,
    /// It speaks of another rank than its subject.
    ForeignKey,
}

/// Deltas of one rank.
#[derive(Clone, PartialEq, Debug)]
pub struct Batch {
    /// Which registration of the rank it is of.
    pub life: u64,
    /// The deltas in their order, [bare](replica::encode::bare).
    pub deltas: Vec<v1::RankDelta>,
    /// The batch's number, from 0 in each life.
    pub number: u64,
    /// The first delta goes on from the last of the batch before.
    pub continues: bool,
}

/// Makes the pieces of one snapshot: a compressor costs more to set up than a piece takes.
pub struct Packer(zstd::bulk::Compressor<'static>);

/// Reads the pieces of one snapshot.
#[derive(Default)]
pub struct Unpacker(zstd::bulk::Decompressor<'static>);

// === impl Unusable ===

impl Unusable {
    /// What it is counted as.
    pub const fn dropped(self) -> Dropped {
        match self {
            Self::TooLarge => Dropped::TooLarge,
            Self::Malformed => Dropped::NotABatch,
            Self::ForeignKey => Dropped::ForeignKey,
        }
    }
}

// === impl Batch ===

impl Batch {
    /// The batch's bytes.
    pub fn encode(self) -> Bytes {
        let Self { life, deltas, number, continues } = self;
        v1::RelayBatch { life, deltas, number, continues }.encode_to_vec().into()
    }

    /// Reads a batch.
    ///
    /// # Errors
    /// [`Unusable`]; so it is with the others.
    pub fn decode(bytes: &[u8]) -> Result<Self, Unusable> {
        let v1::RelayBatch { life, deltas, number, continues } = decode(bytes)?;
        Ok(Self { life, deltas, number, continues })
    }
}

/// Reads an announcement that came under `address`.
///
/// # Errors
/// [`Unusable`].
pub fn announcement(bytes: &[u8], address: &Address) -> Result<v1::Announcement, Unusable> {
    let announcement: v1::Announcement = decode(bytes)?;
    let (Some(key), Some(named), Some(_)) = (&announcement.key, &announcement.worker_rank, &announcement.at) else {
        return Err(Unusable::Malformed);
    };
    let longest = |texts: &[&String], max| texts.iter().all(|text| text.len() <= max);
    let fits = longest(&[&named.worker, &named.model, &named.address, &announcement.owner], MAX_NAME)
        && named.aliases.len() <= MAX_ALIASES
        && longest(&named.aliases.iter().collect::<Vec<_>>(), MAX_NAME)
        && announcement.why.len() <= MAX_WHY;
    if !fits {
        return Err(Unusable::TooLarge);
    }
    let own = |worker: &str, model: &str, rank| !worker.is_empty() && Address::new(model, worker, rank) == *address;
    if own(&key.worker, &key.model, key.rank) && own(&named.worker, &named.model, named.rank) {
        Ok(announcement)
    } else {
        Err(Unusable::ForeignKey)
    }
}

/// One piece of a snapshot alone, without what its reader can work out.
///
/// # Errors
/// What the compressor says.
pub fn encode_piece(event: v1::event::Event) -> std::io::Result<Bytes> {
    Packer::new()?.pack(event)
}

/// A piece of a snapshot that came alone as an answer for `address`, and the life it is of.
///
/// # Errors
/// [`Unusable`].
pub fn decode_piece(bytes: &[u8], address: &Address) -> Result<(u64, replica::Message), Unusable> {
    Unpacker::default().unpack(bytes, address)
}

// === impl Packer ===

impl Packer {
    /// One that has packed nothing yet.
    ///
    /// # Errors
    /// What the compressor says.
    pub fn new() -> std::io::Result<Self> {
        zstd::bulk::Compressor::new(LEVEL).map(Self)
    }

    /// Packs the next piece, without what its reader can work out.
    ///
    /// # Errors
    /// What the compressor says.
    pub fn pack(&mut self, mut event: v1::event::Event) -> std::io::Result<Bytes> {
        if let v1::event::Event::SnapshotPart(part) = &mut event {
            part.runs.iter_mut().for_each(|run| run.prefix_hashes = Vec::new());
        }
        let event = v1::Event { event: Some(event) }.encode_to_vec();
        self.0.compress(&event).map(Bytes::from)
    }
}

impl fmt::Debug for Packer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Packer").finish_non_exhaustive()
    }
}

// === impl Unpacker ===

impl Unpacker {
    /// Reads a piece that came as an answer for `address`, and the life it is of.
    ///
    /// # Errors
    /// [`Unusable`].
    pub fn unpack(&mut self, bytes: &[u8], address: &Address) -> Result<(u64, replica::Message), Unusable> {
        if bytes.len() > MAX_MESSAGE {
            return Err(Unusable::TooLarge);
        }
        let plain = self.0.decompress(bytes, MAX_MESSAGE).map_err(|_| Unusable::Malformed)?;
        let v1::Event { event } = decode(&plain)?;
        use v1::event::Event;
        let (key, message) = match event {
            Some(Event::SnapshotBegin(begin)) => (begin.key.clone(), replica::Message::begin(&begin)),
            Some(Event::SnapshotPart(part)) => (part.key.clone(), replica::Message::bare_part(&part)),
            Some(Event::SnapshotEnd(end)) => (end.key.clone(), replica::Message::end(&end)),
            _ => return Err(Unusable::Malformed),
        };
        let key = key.ok_or(Unusable::Malformed)?;
        if Address::new(&key.model, &key.worker, key.rank) != *address {
            return Err(Unusable::ForeignKey);
        }
        Ok((key.life, message.map_err(|_| Unusable::Malformed)?))
    }
}

impl fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unpacker").finish_non_exhaustive()
    }
}

fn decode<M: prost::Message + Default>(bytes: &[u8]) -> Result<M, Unusable> {
    if bytes.len() > MAX_MESSAGE {
        return Err(Unusable::TooLarge);
    }
    M::decode(bytes).map_err(|_| Unusable::Malformed)
}

/// What an owner says of a rank. A word that is newer than this program is no reason to trust it.
pub(super) fn state(announcement: &v1::Announcement) -> State {
    match v1::FeedState::try_from(announcement.state) {
        Ok(v1::FeedState::Connecting) => State::Connecting,
        Ok(v1::FeedState::Replaying) => State::Replaying,
        Ok(v1::FeedState::Live) => State::Live,
        Ok(v1::FeedState::Degraded) => State::Degraded,
        Ok(v1::FeedState::Gone) => State::Gone,
        Ok(v1::FeedState::Incomplete | v1::FeedState::Unspecified) | Err(_) => State::Incomplete,
    }
}
