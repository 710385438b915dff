//! vLLM's wire format, byte for byte as its msgspec encoder writes it.
//!
//! A batch is always the array `[ts, [events], data_parallel_rank]`. Its events are positional arrays up to
//! vLLM 0.23 and maps keyed by field name from 0.24 on. Array events always have the full length of their
//! release; map events leave out fields that have a default and hold it, but keep the fields without one
//! (`parent_block_hash`, `lora_id`, `medium`, `lora_name`) as nil. Integers take the shortest form.

use std::convert::Infallible;

use rmp::encode::{self, ByteBuf, ValueWriteError};

use crate::block::extra_keys::Item;

use super::event::{Event, Name, Removed, Stored};

/// Which release's shape of an event.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Dialect {
    /// Positional arrays of vLLM 0.17 to 0.19: no cache groups.
    Array19,
    /// Positional arrays of vLLM 0.22 and 0.23.
    Array22,
    /// Maps of vLLM 0.24 to 0.32.
    Map24,
    /// Maps of vLLM 0.33: with its sixteen fields the encoder always takes a 16-bit map header for a store.
    Map33,
}

/// Encodes one batch.
///
/// `timestamp` is the engine's clock in seconds, `rank` the data-parallel rank.
pub fn batch(dialect: Dialect, timestamp: f64, events: &[Event], rank: Option<u32>) -> Vec<u8> {
    let mut out = Writer { buffer: ByteBuf::with_capacity(256), dialect };
    out.array(3);
    out.float(timestamp);
    out.array(events.len());
    for event in events {
        out.event(event);
    }
    out.optional(rank, |out, rank| out.uint(u64::from(rank)));
    out.buffer.into_vec()
}

struct Writer {
    buffer: ByteBuf,
    dialect: Dialect,
}

// === impl Dialect ===

impl Dialect {
    /// Whether events are maps.
    pub const fn is_map(self) -> bool {
        matches!(self, Self::Map24 | Self::Map33)
    }
}

// === impl Writer ===

impl Writer {
    fn event(&mut self, event: &Event) {
        match event {
            Event::Stored(stored) if self.dialect.is_map() => self.stored_map(stored),
            Event::Stored(stored) => self.stored_array(stored),
            Event::Removed(removed) if self.dialect.is_map() => self.removed_map(removed),
            Event::Removed(removed) => self.removed_array(removed),
            Event::Cleared if self.dialect.is_map() => {
                self.map(1);
                self.tag("AllBlocksCleared");
            }
            Event::Cleared => {
                self.array(1);
                self.text("AllBlocksCleared");
            }
        }
    }

    fn stored_array(&mut self, stored: &Stored) {
        let groups = self.dialect != Dialect::Array19;
        self.array(if groups { 12 } else { 9 });
        self.text("BlockStored");
        self.names(&stored.names);
        self.optional(stored.parent.as_ref(), Self::name);
        self.tokens(&stored.tokens);
        self.uint(u64::from(stored.block_size));
        self.optional(stored.lora.as_ref(), |out, lora| out.uint(lora.id));
        self.optional(stored.medium.as_ref(), |out, medium| out.text(medium));
        self.optional(stored.lora.as_ref(), |out, lora| out.text(&lora.name));
        self.optional(stored.extra_keys.as_ref(), |out, keys| out.extra_keys(keys));
        if groups {
            self.optional(stored.group, |out, group| out.uint(u64::from(group)));
            self.optional(stored.kind.as_ref(), |out, kind| out.text(kind));
            self.optional(stored.window, |out, window| out.uint(u64::from(window)));
        }
    }

    fn stored_map(&mut self, stored: &Stored) {
        let optional =
            [stored.extra_keys.is_some(), stored.group.is_some(), stored.kind.is_some(), stored.window.is_some()];
        let fields = 8 + optional.iter().filter(|present| **present).count();
        match self.dialect {
            Dialect::Map33 => self.wide_map(fields as u16),
            _ => self.map(fields),
        }
        self.tag("BlockStored");
        self.text("block_hashes");
        self.names(&stored.names);
        self.text("parent_block_hash");
        self.optional(stored.parent.as_ref(), Self::name);
        self.text("token_ids");
        self.tokens(&stored.tokens);
        self.text("block_size");
        self.uint(u64::from(stored.block_size));
        self.text("lora_id");
        self.optional(stored.lora.as_ref(), |out, lora| out.uint(lora.id));
        self.text("medium");
        self.optional(stored.medium.as_ref(), |out, medium| out.text(medium));
        self.text("lora_name");
        self.optional(stored.lora.as_ref(), |out, lora| out.text(&lora.name));
        if let Some(keys) = &stored.extra_keys {
            self.text("extra_keys");
            self.extra_keys(keys);
        }
        if let Some(group) = stored.group {
            self.text("group_idx");
            self.uint(u64::from(group));
        }
        if let Some(kind) = &stored.kind {
            self.text("kv_cache_spec_kind");
            self.text(kind);
        }
        if let Some(window) = stored.window {
            self.text("kv_cache_spec_sliding_window");
            self.uint(u64::from(window));
        }
    }

    fn removed_array(&mut self, removed: &Removed) {
        let groups = self.dialect != Dialect::Array19;
        self.array(if groups { 4 } else { 3 });
        self.text("BlockRemoved");
        self.names(&removed.names);
        self.optional(removed.medium.as_ref(), |out, medium| out.text(medium));
        if groups {
            self.optional(removed.group, |out, group| out.uint(u64::from(group)));
        }
    }

    fn removed_map(&mut self, removed: &Removed) {
        self.map(3 + usize::from(removed.group.is_some()));
        self.tag("BlockRemoved");
        self.text("block_hashes");
        self.names(&removed.names);
        self.text("medium");
        self.optional(removed.medium.as_ref(), |out, medium| out.text(medium));
        if let Some(group) = removed.group {
            self.text("group_idx");
            self.uint(u64::from(group));
        }
    }

    fn tag(&mut self, tag: &str) {
        self.text("type");
        self.text(tag);
    }

    fn names(&mut self, names: &[Name]) {
        self.array(names.len());
        for name in names {
            self.name(name);
        }
    }

    fn name(&mut self, name: &Name) {
        match name {
            Name::Int(bits) => self.uint(*bits),
            Name::Bytes(bytes) => self.bytes(bytes),
        }
    }

    fn tokens(&mut self, tokens: &[u32]) {
        self.array(tokens.len());
        for token in tokens {
            self.uint(u64::from(*token));
        }
    }

    fn extra_keys(&mut self, blocks: &[Option<Vec<Item>>]) {
        self.array(blocks.len());
        for block in blocks {
            self.optional(block.as_ref(), |out, items| out.items(items));
        }
    }

    fn items(&mut self, items: &[Item]) {
        self.array(items.len());
        for item in items {
            self.item(item);
        }
    }

    fn item(&mut self, item: &Item) {
        match item {
            Item::Text(text) => self.text(text),
            Item::Bytes(bytes) => self.bytes(bytes),
            Item::Signed(n) => {
                sure(encode::write_sint(&mut self.buffer, *n));
            }
            Item::Unsigned(n) => self.uint(*n),
            Item::Float(x) => self.float(*x),
            Item::Nil => self.nil(),
            Item::Bool(value) => {
                sure(encode::write_bool(&mut self.buffer, *value).map_err(ValueWriteError::InvalidMarkerWrite))
            }
            Item::List(items) => self.items(items),
        }
    }

    fn optional<T>(&mut self, value: Option<T>, write: impl FnOnce(&mut Self, T)) {
        match value {
            Some(value) => write(self, value),
            None => self.nil(),
        }
    }

    fn nil(&mut self) {
        sure(encode::write_nil(&mut self.buffer).map_err(ValueWriteError::InvalidMarkerWrite));
    }

    fn uint(&mut self, n: u64) {
        sure(encode::write_uint(&mut self.buffer, n));
    }

    fn float(&mut self, x: f64) {
        sure(encode::write_f64(&mut self.buffer, x));
    }

    fn text(&mut self, text: &str) {
        sure(encode::write_str(&mut self.buffer, text));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        sure(encode::write_bin(&mut self.buffer, bytes));
    }

    fn array(&mut self, len: usize) {
        sure(encode::write_array_len(&mut self.buffer, len as u32));
    }

    fn map(&mut self, len: usize) {
        sure(encode::write_map_len(&mut self.buffer, len as u32));
    }

    // msgspec sizes the header by the fields a struct could have, and patches the number in afterwards.
    fn wide_map(&mut self, len: u16) {
        let [high, low] = len.to_be_bytes();
        self.buffer.as_mut_vec().extend_from_slice(&[rmp::Marker::Map16.to_u8(), high, low]);
    }
}

/// Writing to memory cannot fail, and the type says so.
fn sure<T>(written: Result<T, ValueWriteError<Infallible>>) -> T {
    match written {
        Ok(value) => value,
        Err(ValueWriteError::InvalidMarkerWrite(never) | ValueWriteError::InvalidDataWrite(never)) => match never {},
    }
}
