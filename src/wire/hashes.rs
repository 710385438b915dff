//! Engine hashes in every form that engines write them.

use crate::hash::EngineHash;

use super::arena::Fault;
use super::error::EventError;
use super::event::{Batch, Span};
use super::msgpack::{Cursor, Head};

/// How many blocks the events of a message may name: a million one-token pages, stored and removed. A name takes as
/// little as a byte on the wire, and 16 in memory.
pub(super) const MAX_HASHES: usize = 1 << 21;

/// Reads one hash: an integer of either sign, a digest in bytes (any number: publishers do not check theirs), or a
/// digest in 64 hexadecimal digits.
#[inline]
pub(super) fn of(head: Head<'_>) -> Result<EngineHash, EventError> {
    match head {
        Head::Unsigned(bits) => Ok(EngineHash::from_u64(bits)),
        Head::Signed(value) => Ok(EngineHash::from_i64(value)),
        Head::Bytes(bytes) => Ok(EngineHash::from_bytes(bytes)),
        Head::Text(digits) => of_hex(digits),
        _ => Err(EventError::BadHash),
    }
}

/// A parent's hash, or nil for none.
pub(super) fn of_parent(head: Head<'_>) -> Result<Option<EngineHash>, EventError> {
    match head {
        Head::Nil => Ok(None),
        head => of(head).map(Some),
    }
}

/// TensorRT-LLM's `v2_sha256`: 64 hexadecimal digits.
pub(super) fn of_hex(digits: &[u8]) -> Result<EngineHash, EventError> {
    let digits: &[u8; 64] = digits.try_into().map_err(|_| EventError::BadHash)?;
    let digit = |byte: u8| char::from(byte).to_digit(16).ok_or(EventError::BadHash);
    let mut bytes = [0u8; 32];
    for (byte, [high, low]) in bytes.iter_mut().zip(digits.as_chunks::<2>().0) {
        *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
    }
    Ok(EngineHash::from_bytes(&bytes))
}

/// Reads `block_hashes` into the arena.
pub(super) fn read(cursor: &mut Cursor<'_>, batch: &mut Batch) -> Result<Span, Fault> {
    /// How many hashes to make room for at once.
    const STEP: usize = 4096;
    let Head::Array(n) = cursor.head()? else { return Err(EventError::BadHash.into()) };
    let start = batch.hashes.len();
    if start.saturating_add(n) > MAX_HASHES {
        return Err(EventError::BadField.into());
    }
    batch.hashes.reserve(n.min(STEP));
    for _ in 0..n {
        let hash = match cursor.long_integer() {
            Some(bits) => EngineHash::from_u64(bits),
            None => of(cursor.head()?)?,
        };
        batch.hashes.push(hash);
    }
    Ok(Span::new(start, batch.hashes.len()))
}
