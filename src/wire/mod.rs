//! Pure decoders: bytes in, engine events out. No I/O, no clock, no panic.
//!
//! ```text
//! frames  [topic][sequence][payload]  --frames::live-->  (sequence, payload)
//! payload msgpack, or JSON            --decode------->   Batch { events, rejected }
//! payload of Dynamo's event plane     --dynamo::decode->  Batch { events, rejected, runs }
//! ```
//!
//! Everything here meets bytes that anyone may have sent. So: nothing is allocated because a length was
//! declared, only because bytes are there; nesting is walked without recursion beyond a bound; a broken event
//! costs that event ([`EventError`], counted in the [`Batch`]), a broken message costs that message
//! ([`MessageError`]) and leaves the batch empty; and what a decoder does not know it skips. A decoder goes by
//! what it sees, event by event, never by an engine's version: positional arrays and `type` maps may stand in
//! one batch.
//!
//! The most memory that a payload can cost is a fixed multiple of its length: 4 bytes a byte for tokens, 16 for block
//! names, 24 for keys and 10 for events, twice that where an arena has just grown. [`MAX_PAYLOAD`] bounds the length,
//! and what costs most is bounded before there is memory for it: the names that a message may hold, the keys, and keys
//! may only be of blocks that their event names.

mod arena;
mod draft;
pub mod dynamo;
mod error;
mod event;
pub mod frames;
mod hashes;
mod json;
mod keys;
mod kv;
pub mod msgpack;
mod tokens;
mod trtllm;

pub use error::{EventError, MessageError};
pub use event::{Batch, Event, Kind, Medium, Removed, Run, Span, Stored, Text};

/// The longest payload that is decoded, in bytes. A batch of a million one-token pages is about 45 MB.
pub const MAX_PAYLOAD: usize = 64 << 20;

/// What a feed is said to speak. It narrows what is accepted; within it a decoder goes by shape.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Dialect {
    /// Whatever the payload looks like.
    #[default]
    Auto,
    /// vLLM's msgpack batches.
    Vllm,
    /// SGLang's msgpack batches, which are read like vLLM's.
    Sglang,
    /// TensorRT-LLM: its JSON events, or vLLM-like msgpack batches of its own publisher or Dynamo's.
    Trtllm,
    /// Dynamo's event plane, as it comes over NATS: [`dynamo::decode_message`].
    Dynamo,
}

/// Decodes one message's payload into `batch`, which is emptied first.
///
/// # Errors
/// [`MessageError`] where the payload as a whole cannot be walked; the batch is empty then. Events that cannot be
/// understood while the rest can be are counted in [`Batch::rejected`].
pub fn decode(dialect: Dialect, payload: &[u8], batch: &mut Batch) -> Result<(), MessageError> {
    batch.clear();
    if payload.len() > MAX_PAYLOAD {
        return Err(MessageError::TooLarge { got: payload.len(), max: MAX_PAYLOAD });
    }
    let decoded = match dialect {
        Dialect::Dynamo => dynamo::decode_message(payload, batch),
        Dialect::Auto | Dialect::Trtllm if json::looks_like(payload) => trtllm::decode(payload, batch),
        _ => kv::decode(payload, batch),
    };
    batch.has_unmarked_partials |= dialect == Dialect::Trtllm;
    if decoded.is_err() {
        batch.clear();
    }
    decoded
}
