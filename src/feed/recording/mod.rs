//! Recordings: what came on a feed's sockets, byte for byte or redacted, in a file that can be replayed.
//!
//! ```text
//! link, replies --Record--> [Redactor] --> Writer --> file, file.1, ..
//! file, file.1, .. --> Reader --Record--> Recorded (a Source) --> Runner     or a publisher of one's own
//! ```
//!
//! The file, version 1, all numbers little-endian:
//!
//! ```text
//! file    "KVTAPREC"  version: u32  record*
//! record  length of body: u32  XXH3-64 of body, seeded with its length: u64  body
//! body    kind: u8  nanoseconds since the recording began: u64  content
//!   0 header        JSON, once, first                  3 lost          messages: u64
//!   1 connected     nothing                            4 message       frames
//!   2 disconnected  nothing                            5 reply         frames
//!                                                      6 replay ended  1: with its end marker, else 0
//! frames  count: u32  (length: u32  bytes)*
//! ```
//!
//! What holds:
//!
//! - A torn or altered record ends the reading there; everything before it is used, and how it ended is said. Kinds
//!   that are not known are passed over.
//! - Nothing is allocated because a length was declared.
//! - A file is never larger than its bound; with rotation the newest parts stay. What was not recorded (our own
//!   queue was full, a message larger than the file's bound) stands in it as a loss.
//! - Messages are kept as they came, odd numbers of frames too.
//! - A file is readable by its owner only, and an existing one is never overwritten: unredacted, it holds prompts.
//!
//! What a *redacted* recording still tells, and what not, is written in docs/recording.md and in [`Redactor`].

mod format;
mod pseudonym;
mod reader;
mod redact;
mod ring;
mod rule;
mod source;
mod writer;

pub use format::{Entry, Header, MAX_BODY, Record, VERSION};
pub use reader::{ReadError, Reader, Torn, open};
pub use redact::Redactor;
pub use ring::Ring;
pub use source::Recorded;
pub use writer::{Bounds, WriteError, Writer, Wrote};
