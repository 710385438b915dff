//! Fleets: every process tells what its own ranks hold, and any of them can answer for all.
//!
//! ```text
//! index tap --Delta--> Owner --RelayBatch--> kvtap.v1.events.M.W.R  --> stream (bounded)
//!                        |    --Announcement-> kvtap.v1.owners.M.W.R     |  read for gaps
//!                        |    <--request------ kvtap.v1.snapshot.M.W.R   |
//!                        |    --now and then-> kvtap.v1.kept.M.W.R.I  --> stream (the last of each subject)
//!                        +--------snapshot, to who asked--------+        |
//!                                                               v        v
//!                        subscriptions --> Fleet --> Follower of each rank --> Mirror --> index
//! ```
//!
//! What holds:
//!
//! - Nothing here can hold up an engine's feed: what changes is heard behind a bounded queue, and who is too slow is
//!   cut. Deltas are left out then, and followers see that by the numbers.
//! - What changes after a pause is published at once; of a busy owner, changes come together for some milliseconds. The
//!   stream is asked now and then whether it keeps what is published, not each time.
//! - A follower subscribes first, then asks the owner what the rank holds, and applies what follows; what lies in the
//!   snapshot already is known by its number. A gap is filled from the stream, else by another snapshot.
//! - A rank is shown as its owner sees it only while its mirror has come as far as the owner last said, over a connection
//!   that has stood since. Anything else is `replaying`, `connecting` or `incomplete`.
//! - An owner says again and again that it is there. One that falls silent marks its ranks `incomplete`, and after the grace
//!   they are withdrawn; one that leaves says so. A later registration of a rank replaces an earlier one; where
//!   both go on, each reading says so, and `rival_owner` counts.
//! - Joiners ask after a random pause, few at a time; owners answer at once, gather those who ask meanwhile, and send few
//!   snapshots at a time.
//! - Who joins while an owner is away begins with what it last put away, and with what the stream has after that: it is
//!   shown as `incomplete`, until an owner speaks for the rank again or the grace is over.
//! - Ranks that came over NATS are never published again: only who taps an engine speaks for it.
//! - Consumers of the streams live for one reading; nothing of ours stays on the server but two bounded streams.
//!
//! Who may publish what is the server's business: `docs/relay.md` gives the permissions. Messages must speak of the rank
//! that their subject names.

mod acks;
mod figures;
mod fleet;
mod follower;
mod kept;
pub mod message;
mod options;
mod owner;
mod stream;
mod subject;

pub use figures::{Figures, FiguresReport};
pub use fleet::Relay;
pub use options::{Follow, RelayOptions, StreamOptions};
pub use subject::{Address, PREFIX, Topic, token};
