//! Snapshots: what one rank holds and what proves its epoch, in one file that outlives this process.
//!
//! ```text
//! (epoch, sequence), memory, index content  --format--> bytes --store--> DIRECTORY/WORKER-HASH-RANK.kvtap
//! normalizer of an empty rank  <--restore-- content <--format-- bytes <--store-- the same file
//! ```
//!
//! What holds:
//!
//! - A file is written whole or not at all: into a temporary file beside it, synced, renamed, the folder synced.
//! - A file is believed only if its version is known, its length and its checksum are right, and it is this very
//!   rank's: worker, model, rank, endpoints and way of counting copies. Anything else is a [`Refusal`], never fatal.
//! - A file is of one exact (epoch, sequence), or it is *bare*: it says which epoch numbers were used, and nothing
//!   else. Which it is, is the feed's to decide.
//! - Reading is bounded by the file's own length, and by [`MAX_BYTES`].
//! - No token, salt or key is in a file. Hashes are, so it is readable by its owner only.

mod bytes;
mod format;
mod restore;
mod store;

pub use format::{Content, Head, Owner, Refusal, Snapshot, encode};
pub use restore::Unrestored;
pub use store::{MAX_BYTES, Store};
