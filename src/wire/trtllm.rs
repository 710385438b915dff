//! TensorRT-LLM's own events: the JSON of `get_kv_cache_events` and of its HTTP endpoint.
//!
//! ```text
//! {event_id, window_size?, attention_dp_rank?, layer_group_id?, data: {type, ..}}   one, or an array of them
//!   stored   {parent_hash, blocks: [{block_hash, tokens: [{token_id, token_extra_id}], cache_level, mm_keys?}]}
//!   removed  {block_hashes}
//!   updated  {block_hash, cache_level: {old_value, new_value} | null}
//!   created  {num_blocks_per_cache_level}
//! ```
//!
//! What does not map one to one:
//!
//! * *Block size* is not said. It is the token count of an event's first block; every block but the last must have
//!   it too, and a shorter last one is partial: no block, dropped. A partial block alone in its event cannot be
//!   told from a full one here. It comes out as a store with its own smaller `block_size`, as vLLM's partial
//!   blocks do, for the reader who knows the rank's grid.
//! * *Groups*: a model with several attention windows has one stream per `window_size`. `group` is the
//!   `layer_group_id`, or else the window; `window` is the window and `kind` is open, because only who has
//!   seen all of a rank's windows knows which is the largest, and that one is the full-attention group.
//! * *Moves* between cache levels come as `updated`: a store without tokens in the new medium, then a removal
//!   from the old one.
//! * *Removals* do not say the level: the block is gone from both that have a name, device and host. One of the
//!   two removals finds nothing.
//! * `created` tells the size of the pools and changes nothing.
//! * *`token_extra_id`*, where it is not 0, makes equal tokens different (prompt tuning): an extra key
//!   `["token_extra_id", position, id]`.

use crate::block::extra_keys::Item;
use crate::hash::EngineHash;

use super::arena::Fault;
use super::error::{EventError, MessageError};
use super::event::{Batch, Event, Medium, Removed, Span, Stored};
use super::msgpack::{Cursor, Head};
use super::{hashes, json, keys, tokens};

/// What stands around an event's data.
#[derive(Clone, Copy, Default, Debug)]
struct Header<'a> {
    id: Option<u64>,
    rank: Option<u32>,
    window: Option<u64>,
    layer_group: Option<u32>,
    data: Option<Cursor<'a>>,
}

/// One stored block, its hash, tokens and keys already in the arenas.
#[derive(Clone, Copy, PartialEq, Debug)]
struct Block<'a> {
    hash: EngineHash,
    tokens: Span,
    level: u64,
    salt: Option<&'a [u8]>,
    lora_id: Option<u64>,
}

/// Decodes a JSON payload into `batch`, which is empty.
pub(super) fn decode(payload: &[u8], batch: &mut Batch) -> Result<(), MessageError> {
    let mut scratch = std::mem::take(&mut batch.scratch);
    let decoded = json::to_msgpack(payload, &mut scratch).and_then(|()| events(&scratch, batch));
    batch.scratch = scratch;
    decoded
}

fn events(document: &[u8], batch: &mut Batch) -> Result<(), MessageError> {
    let mut cursor = Cursor::new(document);
    let n = match cursor.peek()? {
        Head::Array(n) => {
            cursor.head()?;
            n
        }
        _ => 1,
    };
    for _ in 0..n {
        let Head::Map(pairs) = cursor.peek()? else {
            return Err(MessageError::NotABatch { what: "JSON with a value that is not an object for an event" });
        };
        let (mut inside, mark, start) = (cursor, batch.mark(), batch.events.len());
        cursor.skip()?;
        inside.head()?;
        let mut header = Header::default();
        let decoded = header.read(&mut inside, pairs).and_then(|()| header.read_data(batch));
        match decoded {
            Ok(()) => {}
            Err(Fault::Message(error)) => return Err(error),
            Err(Fault::Event(error)) => batch.reject(mark, error),
        }
        batch.attribute(None, header.rank, header.id, start);
    }
    batch.settle_rank();
    batch.has_unmarked_partials = true;
    Ok(())
}

// === impl Header ===

impl<'a> Header<'a> {
    fn read(&mut self, cursor: &mut Cursor<'a>, pairs: usize) -> Result<(), Fault> {
        for _ in 0..pairs {
            match cursor.head()? {
                Head::Text(b"event_id") => self.id = number(cursor)?,
                Head::Text(b"attention_dp_rank") => self.rank = small(number(cursor)?)?,
                Head::Text(b"window_size") => self.window = number(cursor)?,
                Head::Text(b"layer_group_id") => self.layer_group = small(number(cursor)?)?,
                Head::Text(b"data") => {
                    self.data = Some(*cursor);
                    cursor.skip()?;
                }
                _ => cursor.skip()?,
            }
        }
        Ok(())
    }

    fn read_data(&self, batch: &mut Batch) -> Result<(), Fault> {
        let mut cursor = self.data.ok_or(EventError::NotAnEvent)?;
        let Head::Map(pairs) = cursor.head()? else { return Err(EventError::NotAnEvent.into()) };
        match cursor.find(pairs, b"type")? {
            Some(Head::Text(b"stored")) => self.stored(&mut cursor, pairs, batch),
            Some(Head::Text(b"removed")) => self.removed(&mut cursor, pairs, batch),
            Some(Head::Text(b"updated")) => self.updated(&mut cursor, pairs, batch),
            Some(Head::Text(b"created")) => Ok(()),
            Some(Head::Text(_)) => Err(EventError::UnknownTag.into()),
            _ => Err(EventError::NotAnEvent.into()),
        }
    }

    fn group(&self) -> Result<Option<u32>, EventError> {
        match self.layer_group {
            Some(group) => Ok(Some(group)),
            None => small(self.window),
        }
    }

    fn stored(&self, cursor: &mut Cursor<'a>, pairs: usize, batch: &mut Batch) -> Result<(), Fault> {
        let (mut parent, mut blocks) = (None, None);
        for _ in 0..pairs {
            match cursor.head()? {
                Head::Text(b"parent_hash") => parent = Some(hashes::of_parent(cursor.head()?)?),
                Head::Text(b"blocks") => {
                    blocks = Some(*cursor);
                    cursor.skip()?;
                }
                _ => cursor.skip()?,
            }
        }
        let mut parent = parent.ok_or(EventError::MissingField)?;
        let mut blocks = blocks.ok_or(EventError::MissingField)?;
        let Head::Array(mut left) = blocks.head()? else { return Err(EventError::BadField.into()) };
        // One store for each stretch of blocks that lie in the same place; an event without moves is one stretch.
        while left > 0 {
            parent = Some(self.stretch(parent, &mut blocks, &mut left, batch)?);
        }
        Ok(())
    }

    /// Reads blocks as long as they lie with the first, into one store; its last block is the next one's parent.
    fn stretch(
        &self,
        parent: Option<EngineHash>,
        cursor: &mut Cursor<'a>,
        left: &mut usize,
        batch: &mut Batch,
    ) -> Result<EngineHash, Fault> {
        let (hashes, keys) = (batch.hashes.len(), batch.keys.len());
        let first = Block::read(cursor, keys, 0, batch)?;
        let (mut last, mut count) = (first.hash, 1);
        *left -= 1;
        while *left > 0 {
            let (place, mark) = (*cursor, batch.mark());
            let block = Block::read(cursor, keys, count, batch)?;
            if *left == 1 && block.tokens.len() < first.tokens.len() {
                // A partial block is no block.
                batch.take_back(mark);
                *left = 0;
            } else if block.tokens.len() != first.tokens.len() {
                return Err(EventError::BadField.into());
            } else if block.lies_with(&first) {
                (last, count) = (block.hash, count + 1);
                *left -= 1;
            } else {
                batch.take_back(mark);
                *cursor = place;
                break;
            }
        }
        let width = first.tokens.len();
        let start = first.tokens.range().start;
        let medium = medium(first.level, batch)?;
        let cache_salt = first.salt.map(|salt| batch.push_text(salt)).transpose()?;
        batch.push_event(Event::Stored(Stored {
            parent,
            tokens: Span::new(start, start + width * count),
            block_size: (width / tokens::WIDTH) as u64,
            lora_id: first.lora_id,
            cache_salt,
            extra_keys: Span::new(keys, batch.keys.len()),
            group: self.group()?,
            window: self.window,
            ..Stored::bare(Span::new(hashes, batch.hashes.len()), medium)
        }));
        Ok(last)
    }

    fn removed(&self, cursor: &mut Cursor<'a>, pairs: usize, batch: &mut Batch) -> Result<(), Fault> {
        let mut hashes = None;
        for _ in 0..pairs {
            match cursor.head()? {
                Head::Text(b"block_hashes") => hashes = Some(hashes::read(cursor, batch)?),
                _ => cursor.skip()?,
            }
        }
        let hashes = hashes.ok_or(EventError::MissingField)?;
        for medium in [Medium::Device, Medium::Host] {
            batch.push_event(Event::Removed(Removed { hashes, medium, group: self.group()? }));
        }
        Ok(())
    }

    fn updated(&self, cursor: &mut Cursor<'a>, pairs: usize, batch: &mut Batch) -> Result<(), Fault> {
        let (mut hash, mut levels) = (None, None);
        for _ in 0..pairs {
            match cursor.head()? {
                Head::Text(b"block_hash") => hash = Some(hashes::of(cursor.head()?)?),
                Head::Text(b"cache_level") => levels = change(cursor)?,
                _ => cursor.skip()?,
            }
        }
        let hash = hash.ok_or(EventError::MissingField)?;
        let Some((old, new)) = levels.filter(|(old, new)| old != new) else { return Ok(()) };
        let start = batch.hashes.len();
        batch.hashes.push(hash);
        let hashes = Span::new(start, batch.hashes.len());
        let (old, new) = (medium(old, batch)?, medium(new, batch)?);
        let group = self.group()?;
        batch.push_event(Event::Stored(Stored { group, window: self.window, ..Stored::bare(hashes, new) }));
        batch.push_event(Event::Removed(Removed { hashes, medium: old, group }));
        Ok(())
    }
}

// === impl Block ===

impl<'a> Block<'a> {
    /// Reads block `index` of a store whose extra keys start at `keys`.
    fn read(cursor: &mut Cursor<'a>, keys: usize, index: usize, batch: &mut Batch) -> Result<Self, Fault> {
        let Head::Map(pairs) = cursor.head()? else { return Err(EventError::BadField.into()) };
        let (mut hash, mut span, mut level, mut salt, mut lora_id) = (None, None, 0, None, None);
        let mut own_keys = Vec::new();
        for _ in 0..pairs {
            match cursor.head()? {
                Head::Text(b"block_hash") => hash = Some(hashes::of(cursor.head()?)?),
                Head::Text(b"tokens") => span = Some(unique_tokens(cursor, &mut own_keys, batch)?),
                Head::Text(b"cache_level") => level = number(cursor)?.unwrap_or(0),
                Head::Text(b"lora_id") => lora_id = number(cursor)?,
                Head::Text(b"mm_keys") => own_keys.extend(keys::tagged_maps(cursor, batch)?),
                Head::Text(b"cache_salt") => {
                    salt = match cursor.head()? {
                        Head::Nil => None,
                        Head::Text(text) => Some(text),
                        _ => return Err(EventError::BadField.into()),
                    }
                }
                _ => cursor.skip()?,
            }
        }
        let hash = hash.ok_or(EventError::MissingField)?;
        let tokens = span.ok_or(EventError::MissingField)?;
        batch.hashes.push(hash);
        batch.add_keys(keys, index, index + 1, own_keys);
        Ok(Self { hash, tokens, level, salt, lora_id })
    }

    /// Whether one store can speak for both.
    fn lies_with(&self, other: &Self) -> bool {
        (self.level, self.salt, self.lora_id) == (other.level, other.salt, other.lora_id)
    }
}

/// Reads the tokens of one block, and extra keys for those that are more than their number.
fn unique_tokens(cursor: &mut Cursor<'_>, keys: &mut Vec<Item>, batch: &mut Batch) -> Result<Span, Fault> {
    let Head::Array(n) = cursor.head()? else { return Err(EventError::BadToken.into()) };
    let start = batch.tokens.len();
    for position in 0..n {
        let Head::Map(pairs) = cursor.head()? else { return Err(EventError::BadToken.into()) };
        let mut id = None;
        for _ in 0..pairs {
            match cursor.head()? {
                Head::Text(b"token_id") => match cursor.head()? {
                    Head::Unsigned(n) => id = u32::try_from(n).ok(),
                    _ => return Err(EventError::BadToken.into()),
                },
                Head::Text(b"token_extra_id") => match number(cursor)? {
                    None | Some(0) => {}
                    Some(extra) => {
                        // A list of three.
                        batch.take_room(4)?;
                        keys.push(Item::List(vec![
                            Item::Text("token_extra_id".to_owned()),
                            Item::Unsigned(position as u64),
                            Item::Unsigned(extra),
                        ]));
                    }
                },
                _ => cursor.skip()?,
            }
        }
        batch.tokens.extend_from_slice(&id.ok_or(EventError::BadToken)?.to_le_bytes());
    }
    Ok(Span::new(start, batch.tokens.len()))
}

/// `{old_value, new_value}`, or nil where nothing changed.
fn change(cursor: &mut Cursor<'_>) -> Result<Option<(u64, u64)>, Fault> {
    let pairs = match cursor.head()? {
        Head::Nil => return Ok(None),
        Head::Map(pairs) => pairs,
        _ => return Err(EventError::BadField.into()),
    };
    let (mut old, mut new) = (None, None);
    for _ in 0..pairs {
        match cursor.head()? {
            Head::Text(b"old_value") => old = number(cursor)?,
            Head::Text(b"new_value") => new = number(cursor)?,
            _ => cursor.skip()?,
        }
    }
    Ok(Some(old.zip(new).ok_or(EventError::MissingField)?))
}

/// The device's memory is level 0, the host's level 1; there are no names for more.
fn medium(level: u64, batch: &mut Batch) -> Result<Medium, EventError> {
    match level {
        0 => Ok(Medium::Device),
        1 => Ok(Medium::Host),
        2..=9 => {
            let digit = [b'0' + level as u8];
            Ok(Medium::Other(batch.push_text(&digit)?))
        }
        _ => Err(EventError::BadField),
    }
}

fn number(cursor: &mut Cursor<'_>) -> Result<Option<u64>, Fault> {
    match cursor.head()? {
        Head::Nil => Ok(None),
        Head::Unsigned(n) => Ok(Some(n)),
        _ => Err(EventError::BadField.into()),
    }
}

fn small(n: Option<u64>) -> Result<Option<u32>, EventError> {
    n.map(|n| u32::try_from(n).map_err(|_| EventError::BadField)).transpose()
}
