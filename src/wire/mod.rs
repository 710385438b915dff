//! Pure decoders: bytes in, engine events out. No I/O, no clock, no panic.
//!
//! ```text
//! frames  [topic][sequence][payload]  --frames::live-->  (sequence, payload)
//! payload msgpack, or JSON            --decode------->   Batch { events, rejected }
//! ```
//!
//! Everything here meets bytes that anyone may have sent. So: nothing is allocated because a length was
//! declared, only because bytes are there; nesting is walked without recursion beyond a bound; a broken event
//! costs that event ([`EventError`], counted in the [`Batch`]), a broken message costs that message
//! ([`MessageError`]); and what a decoder does not know it skips. A decoder goes by what it sees, event by
//! event, never by an engine's version: positional arrays and `type` maps may stand in one batch.

mod error;
mod event;

pub use error::{EventError, MessageError};
pub use event::{Batch, Event, Kind, Medium, Removed, Span, Stored, Text};
