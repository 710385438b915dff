//! The batches of vLLM and SGLang, and what copies them: TensorRT-LLM's own ZMQ publisher and Dynamo's.
//!
//! A batch is an array `[ts, events, rank?, ..]` or a map with those names. An event is an array that starts
//! with its tag, its fields by position, or a map with a `type`, its fields by name; both may stand in one batch.
//! The releases differ only in how many fields there are, and where they give one place two meanings its
//! type tells which: SGLang 0.5.18 has a map of metadata where vLLM has the LoRA name.

use super::arena::Fault;
use super::draft::{self, Draft, Field};
use super::error::{EventError, MessageError};
use super::event::{Batch, Event, Medium, Removed};
use super::hashes;
use super::msgpack::{Cursor, Head};

/// What an event is, by its tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tag {
    Stored,
    Removed,
    Cleared,
}

/// The order of a `BlockStored` array after its tag. vLLM 0.9 ends after the fifth; `locality` and
/// `ownership`, which may follow the last, are not read.
const STORED: [Field; 11] = [
    Field::Hashes,
    Field::Parent,
    Field::Tokens,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::Group,
    Field::Kind,
    Field::Window,
];

/// How many of [`STORED`] every release sends.
const STORED_REQUIRED: usize = 5;

/// The order of a `BlockRemoved` array after its tag.
const REMOVED: [Field; 3] = [Field::Hashes, Field::Medium, Field::Group];

/// How many of [`REMOVED`] every release sends.
const REMOVED_REQUIRED: usize = 1;

/// Decodes a msgpack batch into `batch`, which is empty.
pub(super) fn decode(payload: &[u8], batch: &mut Batch) -> Result<(), MessageError> {
    let mut cursor = Cursor::new(payload);
    match cursor.head()? {
        Head::Array(n @ 2..) => {
            batch.timestamp = timestamp(cursor.head()?)?;
            events(&mut cursor, batch)?;
            if n > 2 {
                batch.rank = rank(&mut cursor)?;
                cursor.skip_many(n - 3)?;
            }
        }
        Head::Array(_) => return Err(MessageError::NotABatch { what: "an array of fewer than two values" }),
        Head::Map(n) => named(&mut cursor, n, batch)?,
        _ => return Err(MessageError::NotABatch { what: "neither an array nor a map" }),
    }
    if cursor.is_at_end() { Ok(()) } else { Err(MessageError::NotABatch { what: "bytes after its end" }) }
}

/// A batch as a map.
fn named(cursor: &mut Cursor<'_>, pairs: usize, batch: &mut Batch) -> Result<(), MessageError> {
    let mut found = false;
    for _ in 0..pairs {
        match cursor.head()? {
            Head::Text(b"events") if found => return Err(MessageError::NotABatch { what: "a map with two `events`" }),
            Head::Text(b"events") => {
                events(cursor, batch)?;
                found = true;
            }
            Head::Text(b"ts" | b"timestamp") => batch.timestamp = timestamp(cursor.head()?)?,
            Head::Text(b"data_parallel_rank" | b"attn_dp_rank" | b"dp_rank") => batch.rank = rank(cursor)?,
            Head::Text(_) => cursor.skip()?,
            _ => return Err(MessageError::NotABatch { what: "a map with a key that is not text" }),
        }
    }
    if found { Ok(()) } else { Err(MessageError::NotABatch { what: "a map without `events`" }) }
}

fn timestamp(head: Head<'_>) -> Result<f64, MessageError> {
    match head {
        Head::Float(seconds) => Ok(seconds),
        Head::Unsigned(seconds) => Ok(seconds as f64),
        Head::Signed(seconds) => Ok(seconds as f64),
        _ => Err(MessageError::NotABatch { what: "a timestamp that is not a number" }),
    }
}

/// The rank that a batch names. What is no rank names none: the socket it came from tells as well.
fn rank(cursor: &mut Cursor<'_>) -> Result<Option<u32>, MessageError> {
    if let Head::Unsigned(n) = cursor.peek()? {
        cursor.head()?;
        return Ok(u32::try_from(n).ok());
    }
    cursor.skip()?;
    Ok(None)
}

fn events(cursor: &mut Cursor<'_>, batch: &mut Batch) -> Result<(), MessageError> {
    let Head::Array(n) = cursor.head()? else {
        return Err(MessageError::NotABatch { what: "`events` that are not an array" });
    };
    for _ in 0..n {
        let (start, mark) = (*cursor, batch.mark());
        match event(cursor, batch) {
            Ok(()) => {}
            Err(Fault::Message(error)) => return Err(error),
            Err(Fault::Event(error)) => {
                batch.reject(mark, error);
                *cursor = start;
                cursor.skip()?;
            }
        }
    }
    Ok(())
}

fn event(cursor: &mut Cursor<'_>, batch: &mut Batch) -> Result<(), Fault> {
    match cursor.head()? {
        Head::Array(n) if n > 0 => by_position(cursor, n - 1, batch),
        Head::Map(n) if n > 0 => by_name(cursor, n, batch),
        _ => Err(EventError::NotAnEvent.into()),
    }
}

fn by_position(cursor: &mut Cursor<'_>, n: usize, batch: &mut Batch) -> Result<(), Fault> {
    let Head::Text(tag) = cursor.head()? else { return Err(EventError::NotAnEvent.into()) };
    match Tag::of(tag)? {
        Tag::Stored => stored_by_position(cursor, n, batch),
        Tag::Removed => removed_by_position(cursor, n, batch),
        Tag::Cleared => cleared(cursor, n, batch),
    }
}

fn stored_by_position(cursor: &mut Cursor<'_>, n: usize, batch: &mut Batch) -> Result<(), Fault> {
    if n < STORED_REQUIRED {
        return Err(EventError::MissingField.into());
    }
    let mut draft = Draft::new(batch);
    for (index, field) in STORED.iter().enumerate().take(n) {
        // An optional field that is nil says nothing.
        if field.is_optional() && cursor.nil() {
            continue;
        }
        if index >= STORED_REQUIRED && cursor.is_at_map() {
            let Head::Map(pairs) = cursor.head()? else { return Err(EventError::BadField.into()) };
            draft.read_metadata(cursor, pairs, batch)?;
        } else {
            draft.read(*field, cursor, batch)?;
        }
    }
    cursor.skip_many(n.saturating_sub(STORED.len()))?;
    finish(draft, batch)
}

fn stored_by_name(cursor: &mut Cursor<'_>, pairs: usize, batch: &mut Batch) -> Result<(), Fault> {
    let mut draft = Draft::new(batch);
    for _ in 0..pairs {
        let Head::Text(key) = cursor.head()? else { return Err(EventError::BadField.into()) };
        match Field::of(key) {
            Some(field) => draft.read(field, cursor, batch)?,
            None => cursor.skip()?,
        }
    }
    finish(draft, batch)
}

fn finish(draft: Draft<'_>, batch: &mut Batch) -> Result<(), Fault> {
    let stored = draft.finish(batch)?;
    batch.push_event(Event::Stored(stored));
    Ok(())
}

/// A removal. Engines write one for each block that they evict, so removals are most of all events, and have three
/// fields: they are read without a [`Draft`], which takes longer to make than they take to read.
fn removed_by_position(cursor: &mut Cursor<'_>, n: usize, batch: &mut Batch) -> Result<(), Fault> {
    if n < REMOVED_REQUIRED {
        return Err(EventError::MissingField.into());
    }
    let hashes = hashes::read(cursor, batch)?;
    let mut removed = Removed { hashes, medium: Medium::Device, group: None };
    for field in REMOVED.iter().take(n).skip(REMOVED_REQUIRED) {
        if cursor.nil() {
            continue;
        }
        match field {
            // Metadata has nothing to say of a removal.
            _ if cursor.is_at_map() => cursor.skip()?,
            Field::Medium => removed.medium = draft::medium(cursor.head()?, batch)?,
            _ => removed.group = draft::group(cursor.head()?)?,
        }
    }
    cursor.skip_many(n.saturating_sub(REMOVED.len()))?;
    batch.push_event(Event::Removed(removed));
    Ok(())
}

fn removed_by_name(cursor: &mut Cursor<'_>, pairs: usize, batch: &mut Batch) -> Result<(), Fault> {
    let (mut hashes, mut medium, mut group) = (None, None, None);
    for _ in 0..pairs {
        let Head::Text(key) = cursor.head()? else { return Err(EventError::BadField.into()) };
        let twice = match key {
            b"block_hashes" => hashes.replace(hashes::read(cursor, batch)?).is_some(),
            b"medium" => medium.replace(draft::medium(cursor.head()?, batch)?).is_some(),
            b"group_idx" => group.replace(draft::group(cursor.head()?)?).is_some(),
            _ => {
                cursor.skip()?;
                false
            }
        };
        if twice {
            return Err(EventError::BadField.into());
        }
    }
    let hashes = hashes.ok_or(EventError::MissingField)?;
    let medium = medium.unwrap_or(Medium::Device);
    batch.push_event(Event::Removed(Removed { hashes, medium, group: group.flatten() }));
    Ok(())
}

fn by_name(cursor: &mut Cursor<'_>, pairs: usize, batch: &mut Batch) -> Result<(), Fault> {
    // Encoders write the type first, but do not promise to.
    let Some(Head::Text(tag)) = cursor.find(pairs, b"type")? else { return Err(EventError::NotAnEvent.into()) };
    match Tag::of(tag)? {
        Tag::Stored => stored_by_name(cursor, pairs, batch),
        Tag::Removed => removed_by_name(cursor, pairs, batch),
        Tag::Cleared => cleared(cursor, 2 * pairs, batch),
    }
}

/// A clear, whatever `n` values stand behind it.
fn cleared(cursor: &mut Cursor<'_>, n: usize, batch: &mut Batch) -> Result<(), Fault> {
    cursor.skip_many(n)?;
    batch.push_event(Event::Cleared);
    Ok(())
}

// === impl Tag ===

impl Tag {
    fn of(word: &[u8]) -> Result<Self, EventError> {
        match word {
            b"BlockStored" => Ok(Self::Stored),
            b"BlockRemoved" => Ok(Self::Removed),
            b"AllBlocksCleared" => Ok(Self::Cleared),
            _ => Err(EventError::UnknownTag),
        }
    }
}
