//! The batches of vLLM and SGLang, and what copies them: TensorRT-LLM's own ZMQ publisher and Dynamo's.
//!
//! A batch is an array `[ts, events, rank?, ..]` or a map with those names. An event is an array that starts
//! with its tag, its fields by position, or a map with a `type`, its fields by name; both may stand in one batch.
//! The releases differ only in how many fields there are, and where they give one place two meanings its
//! type tells which: SGLang 0.5.18 has a map of metadata where vLLM has the LoRA name.

use super::arena::Fault;
use super::error::{EventError, MessageError};
use super::event::{Batch, Event, Kind, Medium, Removed, Span, Stored, Text};
use super::keys::{self, Form};
use super::msgpack::{Cursor, Head};
use super::tokens::{self, Tokens};
use super::{hashes, tokens::read_lookahead};

use crate::hash::EngineHash;

/// What an event is, by its tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tag {
    Stored,
    Removed,
    Cleared,
}

/// A field that is read; all others are skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Field {
    Hashes,
    Parent,
    Tokens,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    Group,
    Kind,
    Window,
    CacheSalt,
    MmKeys,
    MmInfos,
    Lookahead,
}

/// The fields of one event, as far as they were read.
#[derive(Debug)]
struct Draft<'a> {
    seen: u32,
    hashes: Option<Span>,
    parent: Option<Option<EngineHash>>,
    tokens: Option<Tokens>,
    block_size: Option<u64>,
    medium: Medium,
    lora_name: Option<Text>,
    lora_id: Option<u64>,
    cache_salt: Option<Text>,
    keys_start: usize,
    group: Option<u32>,
    kind: Option<Kind>,
    window: Option<u64>,
    /// Where the lookahead stands: it is read last, once the block size is known.
    lookahead: Option<Cursor<'a>>,
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
    let (tag, order, required) = match Tag::of(tag)? {
        Tag::Stored => (Tag::Stored, &STORED[..], STORED_REQUIRED),
        Tag::Removed => (Tag::Removed, &REMOVED[..], REMOVED_REQUIRED),
        Tag::Cleared => (Tag::Cleared, &[][..], 0),
    };
    if n < required {
        return Err(EventError::MissingField.into());
    }
    let mut draft = Draft::new(batch);
    for (index, field) in order.iter().enumerate().take(n) {
        match cursor.peek()? {
            Head::Map(pairs) if index >= required => {
                cursor.head()?;
                draft.read_metadata(cursor, pairs, batch)?;
            }
            _ => draft.read(*field, cursor, batch)?,
        }
    }
    cursor.skip_many(n.saturating_sub(order.len()))?;
    draft.finish(tag, batch)
}

fn by_name(cursor: &mut Cursor<'_>, pairs: usize, batch: &mut Batch) -> Result<(), Fault> {
    let tag = Tag::of(find_type(*cursor, pairs)?)?;
    let mut draft = Draft::new(batch);
    for _ in 0..pairs {
        let field = match cursor.head()? {
            Head::Text(key) => Field::of(key).filter(|field| tag.has(*field)),
            _ => return Err(EventError::BadField.into()),
        };
        match field {
            Some(field) => draft.read(field, cursor, batch)?,
            None => cursor.skip()?,
        }
    }
    draft.finish(tag, batch)
}

/// The text under `type`. Encoders write it first, but do not promise to.
fn find_type<'a>(mut cursor: Cursor<'a>, pairs: usize) -> Result<&'a [u8], Fault> {
    for _ in 0..pairs {
        match (cursor.peek()?, cursor.skip()?) {
            (Head::Text(b"type"), ()) => match cursor.head()? {
                Head::Text(tag) => return Ok(tag),
                _ => break,
            },
            _ => cursor.skip()?,
        }
    }
    Err(EventError::NotAnEvent.into())
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

    fn has(self, field: Field) -> bool {
        match self {
            Self::Stored => true,
            Self::Removed => REMOVED.contains(&field),
            Self::Cleared => false,
        }
    }
}

// === impl Field ===

impl Field {
    fn of(key: &[u8]) -> Option<Self> {
        Some(match key {
            b"block_hashes" => Self::Hashes,
            b"parent_block_hash" => Self::Parent,
            b"token_ids" => Self::Tokens,
            b"block_size" => Self::BlockSize,
            b"lora_id" => Self::LoraId,
            b"medium" => Self::Medium,
            b"lora_name" => Self::LoraName,
            b"extra_keys" => Self::ExtraKeys,
            b"group_idx" => Self::Group,
            b"kv_cache_spec_kind" => Self::Kind,
            b"kv_cache_spec_sliding_window" => Self::Window,
            b"cache_salt" => Self::CacheSalt,
            b"mm_keys" => Self::MmKeys,
            b"block_mm_infos" => Self::MmInfos,
            b"lookahead_token_ids" => Self::Lookahead,
            _ => return None,
        })
    }
}

// === impl Draft ===

impl<'a> Draft<'a> {
    fn new(batch: &Batch) -> Self {
        Self {
            seen: 0,
            hashes: None,
            parent: None,
            tokens: None,
            block_size: None,
            medium: Medium::Device,
            lora_name: None,
            lora_id: None,
            cache_salt: None,
            keys_start: batch.keys.len(),
            group: None,
            kind: None,
            window: None,
            lookahead: None,
        }
    }

    /// Reads one field. One that is named twice is refused: nobody can say which was meant.
    fn read(&mut self, field: Field, cursor: &mut Cursor<'a>, batch: &mut Batch) -> Result<(), Fault> {
        let bit = 1 << field as u32;
        if self.seen & bit != 0 {
            return Err(EventError::BadField.into());
        }
        self.seen |= bit;
        match field {
            Field::Hashes => self.hashes = Some(hashes::read(cursor, batch)?),
            Field::Parent => self.parent = Some(hashes::of_parent(cursor.head()?)?),
            Field::Tokens => self.tokens = Some(tokens::read(cursor, batch)?),
            Field::BlockSize => {
                self.block_size = Some(unsigned(cursor.head()?).ok_or(EventError::BadBlockSize)?);
            }
            Field::LoraId => self.lora_id = optional(cursor.head()?)?,
            Field::Medium => {
                if let Some(word) = optional_text(cursor.head()?)? {
                    self.medium = medium(word, batch)?;
                }
            }
            Field::LoraName => self.lora_name = keep(optional_text(cursor.head()?)?, batch)?,
            Field::CacheSalt => self.cache_salt = keep(optional_text(cursor.head()?)?, batch)?,
            Field::ExtraKeys => keys::read(cursor, Form::Items, self.keys_start, batch)?,
            Field::MmKeys => keys::read(cursor, Form::TaggedMaps, self.keys_start, batch)?,
            Field::MmInfos => keys::read(cursor, Form::Objects, self.keys_start, batch)?,
            Field::Group => {
                let group = optional(cursor.head()?)?.map(u32::try_from).transpose();
                self.group = group.map_err(|_| EventError::BadField)?;
            }
            Field::Kind => self.kind = optional_text(cursor.head()?)?.map(Kind::of),
            Field::Window => self.window = optional(cursor.head()?)?,
            Field::Lookahead => {
                self.lookahead = Some(*cursor);
                cursor.skip()?;
            }
        }
        Ok(())
    }

    /// Reads a map that stands among positional fields: the fields in it that may be named.
    fn read_metadata(&mut self, cursor: &mut Cursor<'a>, pairs: usize, batch: &mut Batch) -> Result<(), Fault> {
        for _ in 0..pairs {
            let Head::Text(key) = cursor.head()? else { return Err(EventError::BadField.into()) };
            match Field::of(key) {
                Some(field @ (Field::CacheSalt | Field::LoraName | Field::ExtraKeys)) => {
                    self.read(field, cursor, batch)?;
                }
                _ => cursor.skip()?,
            }
        }
        Ok(())
    }

    fn finish(self, tag: Tag, batch: &mut Batch) -> Result<(), Fault> {
        let event = match tag {
            Tag::Cleared => Event::Cleared,
            Tag::Removed => Event::Removed(Removed {
                hashes: self.hashes.ok_or(EventError::MissingField)?,
                medium: self.medium,
                group: self.group,
            }),
            Tag::Stored => Event::Stored(self.finish_stored(batch)?),
        };
        batch.push_event(event);
        Ok(())
    }

    fn finish_stored(self, batch: &mut Batch) -> Result<Stored, Fault> {
        let hashes = self.hashes.ok_or(EventError::MissingField)?;
        let block_size = self.block_size.ok_or(EventError::MissingField)?;
        let mut tokens = self.tokens.ok_or(EventError::MissingField)?;
        if let Some(mut cursor) = self.lookahead {
            tokens = read_lookahead(&mut cursor, tokens, hashes.len(), block_size, batch)?;
        }
        Ok(Stored {
            hashes,
            parent: self.parent.ok_or(EventError::MissingField)?,
            tokens: tokens.span,
            contents: Span::default(),
            block_size,
            lookahead: tokens.lookahead,
            medium: self.medium,
            lora_name: self.lora_name,
            lora_id: self.lora_id,
            cache_salt: self.cache_salt,
            extra_keys: Span::new(self.keys_start, batch.keys.len()),
            group: self.group,
            kind: self.kind,
            window: self.window,
        })
    }
}

fn unsigned(head: Head<'_>) -> Option<u64> {
    match head {
        Head::Unsigned(n) => Some(n),
        _ => None,
    }
}

fn optional(head: Head<'_>) -> Result<Option<u64>, EventError> {
    match head {
        Head::Nil => Ok(None),
        head => unsigned(head).map(Some).ok_or(EventError::BadField),
    }
}

fn optional_text(head: Head<'_>) -> Result<Option<&[u8]>, EventError> {
    match head {
        Head::Nil => Ok(None),
        Head::Text(bytes) => Ok(Some(bytes)),
        _ => Err(EventError::BadField),
    }
}

fn keep(text: Option<&[u8]>, batch: &mut Batch) -> Result<Option<Text>, EventError> {
    text.map(|bytes| batch.push_text(bytes)).transpose()
}

fn medium(word: &[u8], batch: &mut Batch) -> Result<Medium, EventError> {
    /// The longest word that is taken for a medium, in bytes: each becomes a tier that is kept by name.
    const LONGEST: usize = 256;
    match Medium::known(word) {
        Some(medium) => Ok(medium),
        None if word.len() > LONGEST => Err(EventError::BadField),
        None => Ok(Medium::Other(batch.push_text(word)?)),
    }
}
