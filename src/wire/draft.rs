//! The fields of one event of vLLM's family, read in any order, and what they make together.

use crate::hash::EngineHash;

use super::arena::Fault;
use super::error::EventError;
use super::event::{Batch, Kind, Medium, Span, Stored, Text};
use super::hashes;
use super::keys::{self, Form};
use super::msgpack::{Cursor, Head};
use super::tokens::{self, Tokens};

/// A field that is read; all others are skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Field {
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
pub(super) struct Draft<'a> {
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
    /// Where lists of keys stand, by [`Form`]: they are read last, once it is known how many blocks they may be of.
    keys: [Option<Cursor<'a>>; Form::ALL.len()],
    group: Option<u32>,
    kind: Option<Kind>,
    window: Option<u64>,
    /// Where the lookahead stands: it is read last, once the block size is known.
    lookahead: Option<Cursor<'a>>,
}

// === impl Field ===

impl Field {
    pub(super) fn of(key: &[u8]) -> Option<Self> {
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

    /// Whether nil stands for nothing said.
    #[inline]
    pub(super) const fn is_optional(self) -> bool {
        !matches!(self, Self::Hashes | Self::Parent | Self::Tokens | Self::BlockSize | Self::Lookahead)
    }
}

// === impl Draft ===

impl<'a> Draft<'a> {
    pub(super) fn new(batch: &Batch) -> Self {
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
            keys: [None; Form::ALL.len()],
            group: None,
            kind: None,
            window: None,
            lookahead: None,
        }
    }

    /// Reads one field. One that is named twice is refused: nobody can say which was meant.
    pub(super) fn read(&mut self, field: Field, cursor: &mut Cursor<'a>, batch: &mut Batch) -> Result<(), Fault> {
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
            Field::Medium => self.medium = medium(cursor.head()?, batch)?,
            Field::LoraName => self.lora_name = keep(optional_text(cursor.head()?)?, batch)?,
            Field::CacheSalt => self.cache_salt = keep(optional_text(cursor.head()?)?, batch)?,
            Field::ExtraKeys => self.read_keys(Form::Items, cursor, batch)?,
            Field::MmKeys => self.read_keys(Form::TaggedMaps, cursor, batch)?,
            Field::MmInfos => self.read_keys(Form::Objects, cursor, batch)?,
            Field::Group => self.group = group(cursor.head()?)?,
            Field::Kind => self.kind = optional_text(cursor.head()?)?.map(Kind::of),
            Field::Window => self.window = optional(cursor.head()?)?,
            Field::Lookahead => {
                self.lookahead = Some(*cursor);
                cursor.skip()?;
            }
        }
        Ok(())
    }

    /// Reads keys where the blocks are known that they are of; else keeps their place.
    fn read_keys(&mut self, form: Form, cursor: &mut Cursor<'a>, batch: &mut Batch) -> Result<(), Fault> {
        match self.hashes {
            Some(hashes) => keys::read(cursor, form, self.keys_start, hashes.len(), batch),
            None => {
                if let Some(place) = self.keys.get_mut(form as usize) {
                    *place = Some(*cursor);
                }
                Ok(cursor.skip()?)
            }
        }
    }

    /// Reads a map that stands among positional fields: the fields in it that may be named.
    pub(super) fn read_metadata(
        &mut self,
        cursor: &mut Cursor<'a>,
        pairs: usize,
        batch: &mut Batch,
    ) -> Result<(), Fault> {
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

    /// What was read, as a store.
    pub(super) fn finish(self, batch: &mut Batch) -> Result<Stored, Fault> {
        let hashes = self.hashes.ok_or(EventError::MissingField)?;
        let block_size = self.block_size.ok_or(EventError::MissingField)?;
        let mut tokens = self.tokens.ok_or(EventError::MissingField)?;
        for (form, cursor) in Form::ALL.into_iter().zip(self.keys) {
            if let Some(mut cursor) = cursor {
                keys::read(&mut cursor, form, self.keys_start, hashes.len(), batch)?;
            }
        }
        if let Some(mut cursor) = self.lookahead {
            tokens = tokens::read_lookahead(&mut cursor, tokens, hashes.len(), block_size, batch)?;
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

/// Where blocks lie; nil where an engine says nothing.
#[inline]
pub(super) fn medium(head: Head<'_>, batch: &mut Batch) -> Result<Medium, EventError> {
    optional_text(head)?.map_or(Ok(Medium::Device), |word| Medium::of(word, batch))
}

/// A cache group's number, or nil.
#[inline]
pub(super) fn group(head: Head<'_>) -> Result<Option<u32>, EventError> {
    optional(head)?.map(u32::try_from).transpose().map_err(|_| EventError::BadField)
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
