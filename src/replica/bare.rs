//! Deltas without what their reader can work out, straight into the bytes of a [`v1::RelayBatch`]. Most deltas are of one
//! block or two; making messages of them first would cost more than the bytes do.

use bytes::Bytes;
use prost::Message as _;

use super::encode::{self, MAX_BLOCKS};
use crate::hash::PrefixHash;
use crate::index::{BlockRun, Change, Delta, What};
use crate::proto::v1;

/// The keys of fields, as they stand before them: number and wire type.
mod key {
    pub(super) const LIFE: u8 = 1 << 3 | 1;
    pub(super) const DELTAS: u8 = 2 << 3 | 2;
    pub(super) const NUMBER: u8 = 3 << 3;
    pub(super) const CONTINUES: u8 = 4 << 3;

    pub(super) const DELTA_AT: u8 = 2 << 3 | 2;
    pub(super) const DELTA_CHANGES: u8 = 3 << 3 | 2;

    pub(super) const POINT_NUMBER: u8 = 1 << 3;
    pub(super) const POINT_EPOCH: u8 = 2 << 3;
    pub(super) const POINT_SEQUENCE: u8 = 3 << 3;

    pub(super) const CHANGE_RUN: u8 = 5 << 3 | 2;

    pub(super) const RUN_KIND: u8 = 1 << 3;
    pub(super) const RUN_TIER: u8 = 2 << 3;
    pub(super) const RUN_GROUP: u8 = 3 << 3;
    pub(super) const RUN_PARENT: u8 = 4 << 3 | 1;
    pub(super) const RUN_CONTENTS: u8 = 7 << 3 | 2;
}

/// A batch in the making. Its bytes are those that the message of the same deltas, [bare](encode::bare), would have.
#[derive(Debug)]
pub struct BatchWriter {
    life: u64,
    bytes: Vec<u8>,
    blocks: usize,
    /// Scratch for one delta.
    delta: Vec<u8>,
}

// === impl BatchWriter ===

impl BatchWriter {
    /// A batch without deltas of a registration's life.
    pub const fn new(life: u64) -> Self {
        Self { life, bytes: Vec::new(), blocks: 0, delta: Vec::new() }
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// Whether a delta of so many blocks ([`blocks`]) has room.
    pub fn has_room(&self, blocks: usize) -> bool {
        self.blocks + blocks <= MAX_BLOCKS
    }

    /// Adds a whole delta, of [`MAX_BLOCKS`] at most.
    pub fn add(&mut self, delta: &Delta) {
        let mut body = std::mem::take(&mut self.delta);
        body.clear();
        put_point(&mut body, delta);
        delta.changes.iter().for_each(|change| put_change(&mut body, change));
        self.put(blocks(delta), &body);
        self.delta = body;
    }

    /// Adds a piece of one that has more blocks.
    pub fn add_piece(&mut self, piece: &v1::RankDelta) {
        self.put(MAX_BLOCKS, &piece.encode_to_vec());
    }

    /// What a batch begins with.
    fn begin(&mut self) {
        self.bytes.reserve(128);
        if self.life != 0 {
            self.bytes.push(key::LIFE);
            self.bytes.extend(self.life.to_le_bytes());
        }
    }

    fn put(&mut self, blocks: usize, delta: &[u8]) {
        if self.is_empty() {
            self.begin();
        }
        self.blocks += blocks.max(1);
        self.bytes.push(key::DELTAS);
        put_varint(&mut self.bytes, delta.len() as u64);
        self.bytes.extend_from_slice(delta);
    }

    /// The batch's bytes: `number` is its own, and it `continues` where its first delta goes on from the batch before.
    pub fn finish(mut self, number: u64, continues: bool) -> Bytes {
        if self.is_empty() {
            self.begin();
        }
        put_number(&mut self.bytes, key::NUMBER, number);
        put_number(&mut self.bytes, key::CONTINUES, u64::from(continues));
        self.bytes.into()
    }
}

/// What a delta takes of a message's room, in blocks.
pub fn blocks(delta: &Delta) -> usize {
    delta.changes.iter().map(encode::size_of).sum()
}

fn put_point(out: &mut Vec<u8>, delta: &Delta) {
    let at = encode::point(delta);
    out.push(key::DELTA_AT);
    let before = out.len();
    // A length of one byte: three numbers have 33 bytes at most.
    out.push(0);
    put_number(out, key::POINT_NUMBER, at.number);
    put_number(out, key::POINT_EPOCH, at.epoch);
    if let Some(sequence) = at.sequence {
        out.push(key::POINT_SEQUENCE);
        put_varint(out, sequence);
    }
    let length = out.len() - before - 1;
    if let Some(place) = out.get_mut(before) {
        *place = length as u8;
    }
}

fn put_change(out: &mut Vec<u8>, change: &Change) {
    if let Change::Run(run) = change {
        return put_run(out, run);
    }
    if let Some(told) = encode::plain(change) {
        let message = v1::Change { change: Some(told) };
        out.push(key::DELTA_CHANGES);
        put_varint(out, message.encoded_len() as u64);
        out.extend(message.encode_to_vec());
    }
}

fn put_run(out: &mut Vec<u8>, run: &BlockRun) {
    let (kind, tier) = encode::kind(run.what);
    let (kind, tier) = (kind as u64, encode::bare_tier(tier) as u64);
    let lone = match (run.what, &*run.contents) {
        (What::Removed(_), [content]) => Some(PrefixHash::after(run.parent, *content)),
        _ => None,
    };
    // Removed alone: as if it stood at a prompt's beginning.
    let parent = run.parent.filter(|_| lone.is_none());
    let contents = run.contents.len() * 8;
    let group = run.group.map(|group| u64::from(group.0));
    let length = number_len(kind)
        + number_len(tier)
        + group.map_or(0, |group| 1 + varint_len(group))
        + parent.map_or(0, |_| 1 + 8)
        + 1
        + varint_len(contents as u64)
        + contents;
    out.push(key::DELTA_CHANGES);
    put_varint(out, (1 + varint_len(length as u64) + length) as u64);
    out.push(key::CHANGE_RUN);
    put_varint(out, length as u64);
    put_number(out, key::RUN_KIND, kind);
    put_number(out, key::RUN_TIER, tier);
    if let Some(group) = group {
        out.push(key::RUN_GROUP);
        put_varint(out, group);
    }
    if let Some(parent) = parent {
        out.push(key::RUN_PARENT);
        out.extend(parent.0.to_le_bytes());
    }
    out.push(key::RUN_CONTENTS);
    put_varint(out, contents as u64);
    match lone {
        Some(prefix) => out.extend(prefix.0.to_le_bytes()),
        None => run.contents.iter().for_each(|content| out.extend(content.0.to_le_bytes())),
    }
}

/// A number that is left out where it is 0.
fn put_number(out: &mut Vec<u8>, key: u8, number: u64) {
    if number != 0 {
        out.push(key);
        put_varint(out, number);
    }
}

fn number_len(number: u64) -> usize {
    if number == 0 { 0 } else { 1 + varint_len(number) }
}

fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Seven bits a byte, one byte at least.
fn varint_len(number: u64) -> usize {
    (64 - (number | 1).leading_zeros() as usize).div_ceil(7)
}
