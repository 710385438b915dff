//! An index rebuilt elsewhere, from the normalized feed of another one.
//!
//! ```text
//! index tap --Delta--> encode --kvtap.v1.Event--> (gRPC, NATS) --> decode --Delta--> Mirror --> index
//! ```
//!
//! * [`encode`]: a snapshot or a delta of the index as messages of bounded size.
//! * [`BatchWriter`]: deltas as bytes, without what their reader can work out.
//! * [`decode`]: messages back, as hostile as any bytes from outside.
//! * [`Mirror`]: one rank of an index, told by another's snapshot and deltas. It refuses gaps.
//! * [`Replica`]: every rank of a `Watch`, and the cursor to resume from.
//!
//! What holds:
//!
//! 1. A mirror matches what its source matches at the same number: blocks, device, tiers, the hybrid rule, stamp.
//!    It counts blocks by place, not by an engine's names, so `held` differs where an engine has several names for one
//!    place.
//! 2. A delta is applied whole or not at all, in one transaction. A snapshot is applied as it comes, after what was known
//!    was dropped: until its end a mirror understates, and says that it is not complete.
//! 3. What does not fit (a gap, another life, a block under an unknown one, a hash that its content does not have) leaves
//!    the mirror empty and waiting for a snapshot. It never overstates.
//!
//! In the mirror a block's engine hash is its prefix hash, every prefix block lies in one group of its own, and copies are
//! a set.

pub mod bare;
pub mod decode;
pub mod encode;
mod mirror;
mod whole;

pub use bare::BatchWriter;
pub use decode::{DecodeError, Message};
pub use mirror::{Fault, Mirror, Progress};
pub use whole::{News, Replica, ReplicaError};
