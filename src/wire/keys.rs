//! What an engine folds into its blocks' hashes besides tokens, in the three forms that engines list it.

use crate::block::extra_keys::Item;

use super::arena::Fault;
use super::error::EventError;
use super::event::Batch;
use super::msgpack::{Cursor, Head, MAX_DEPTH};

/// How one block's keys are written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Form {
    /// vLLM's `extra_keys`: a list of items.
    Items,
    /// TensorRT-LLM's `mm_keys`: a list of maps `{type, hash, start_offset, uuid?}`, kept as vLLM's pairs
    /// `[hash, start_offset]`.
    TaggedMaps,
    /// `block_mm_infos` of Dynamo's publisher: a map `{mm_objects: [{mm_hash, offsets}]}`, kept as plain `mm_hash`.
    Objects,
}

// === impl Form ===

impl Form {
    /// Every form, in the order of their numbers.
    pub(super) const ALL: [Self; 3] = [Self::Items, Self::TaggedMaps, Self::Objects];
}

/// How many items, those in lists included, the keys of a message may have. The longest list takes a byte an item on the
/// wire and 24 in memory. An engine step of a hundred thousand tokens in blocks of 16 that all have an adapter and an
/// image makes some 25,000.
pub(super) const MAX_ITEMS: usize = 1 << 18;

/// Reads a field that lists keys per block, nil for none, into the arena from `start` on. The event names `named`
/// blocks: keys of any further one are of nothing.
///
/// Blocks without keys after the last that has some leave no trace; a field without any leaves nothing.
pub(super) fn read(
    cursor: &mut Cursor<'_>,
    form: Form,
    start: usize,
    named: usize,
    batch: &mut Batch,
) -> Result<(), Fault> {
    let blocks = match cursor.head()? {
        Head::Nil => return Ok(()),
        Head::Array(n) => n,
        _ => return Err(EventError::BadField.into()),
    };
    for block in 0..blocks {
        let items = match form {
            Form::Items => match cursor.head()? {
                Head::Nil => continue,
                Head::Array(n) => items(cursor, n, MAX_DEPTH, batch)?,
                _ => return Err(EventError::BadField.into()),
            },
            Form::TaggedMaps => tagged_maps(cursor, batch)?,
            Form::Objects => objects(cursor, batch)?,
        };
        if block >= named && !items.is_empty() {
            return Err(EventError::BadField.into());
        }
        batch.add_keys(start, block, named, items);
    }
    Ok(())
}

fn items(cursor: &mut Cursor<'_>, n: usize, depth: usize, batch: &mut Batch) -> Result<Vec<Item>, Fault> {
    batch.take_room(n)?;
    // A vector that grows from nothing starts with room for four: lists of one in one another would cost 128 bytes a byte.
    let mut items = Vec::with_capacity(n.min(16));
    for _ in 0..n {
        items.push(item(cursor, depth, batch)?);
    }
    Ok(items)
}

/// One item, in lists of at most `depth` levels with the one that it stands in; 0: no list may be it.
fn item(cursor: &mut Cursor<'_>, depth: usize, batch: &mut Batch) -> Result<Item, Fault> {
    Ok(match cursor.head()? {
        Head::Nil => Item::Nil,
        Head::Bool(value) => Item::Bool(value),
        Head::Unsigned(n) => Item::Unsigned(n),
        Head::Signed(n) => Item::Signed(n),
        Head::Float(x) => Item::Float(x),
        Head::Text(bytes) => Item::Text(text(bytes)?),
        Head::Bytes(bytes) => Item::Bytes(bytes.to_vec()),
        Head::Array(n) if depth > 1 => Item::List(self::items(cursor, n, depth - 1, batch)?),
        Head::Array(_) if depth == 1 => return Err(EventError::TooDeep.into()),
        Head::Array(_) | Head::Map(_) | Head::Extension => return Err(EventError::BadField.into()),
    })
}

/// One block's `mm_keys`, nil for none.
pub(super) fn tagged_maps(cursor: &mut Cursor<'_>, batch: &mut Batch) -> Result<Vec<Item>, Fault> {
    let mut items = Vec::new();
    let n = match cursor.head()? {
        Head::Nil => 0,
        Head::Array(n) => n,
        _ => return Err(EventError::BadField.into()),
    };
    // A list of two.
    batch.take_room(n.saturating_mul(3))?;
    for _ in 0..n {
        let Head::Map(pairs) = cursor.head()? else { return Err(EventError::BadField.into()) };
        let (mut hash, mut offset) = (None, None);
        for _ in 0..pairs {
            match cursor.head()? {
                Head::Text(b"hash") => hash = Some(item(cursor, 0, batch)?),
                Head::Text(b"start_offset") => offset = Some(item(cursor, 0, batch)?),
                Head::Text(_) => cursor.skip()?,
                _ => return Err(EventError::BadField.into()),
            }
        }
        match (hash, offset) {
            (Some(hash), Some(offset)) => items.push(Item::List(vec![hash, offset])),
            _ => return Err(EventError::BadField.into()),
        }
    }
    Ok(items)
}

fn objects(cursor: &mut Cursor<'_>, batch: &mut Batch) -> Result<Vec<Item>, Fault> {
    let mut items = Vec::new();
    let pairs = match cursor.head()? {
        Head::Nil => 0,
        Head::Map(pairs) => pairs,
        _ => return Err(EventError::BadField.into()),
    };
    for _ in 0..pairs {
        match (cursor.head()?, cursor.peek()?) {
            (Head::Text(b"mm_objects"), Head::Array(n)) => {
                cursor.head()?;
                batch.take_room(n)?;
                for _ in 0..n {
                    items.push(object(cursor)?);
                }
            }
            (Head::Text(b"mm_objects"), Head::Nil) => cursor.skip()?,
            (Head::Text(b"mm_objects"), _) => return Err(EventError::BadField.into()),
            (Head::Text(_), _) => cursor.skip()?,
            _ => return Err(EventError::BadField.into()),
        }
    }
    Ok(items)
}

fn object(cursor: &mut Cursor<'_>) -> Result<Item, Fault> {
    let Head::Map(pairs) = cursor.head()? else { return Err(EventError::BadField.into()) };
    let mut hash = None;
    for _ in 0..pairs {
        match cursor.head()? {
            Head::Text(b"mm_hash") => match cursor.head()? {
                Head::Unsigned(n) => hash = Some(Item::Unsigned(n)),
                Head::Signed(n) => hash = Some(Item::Unsigned(n as u64)),
                _ => return Err(EventError::BadField.into()),
            },
            Head::Text(_) => cursor.skip()?,
            _ => return Err(EventError::BadField.into()),
        }
    }
    Ok(hash.ok_or(EventError::BadField)?)
}

fn text(bytes: &[u8]) -> Result<String, EventError> {
    str::from_utf8(bytes).map(str::to_owned).map_err(|_| EventError::BadField)
}
