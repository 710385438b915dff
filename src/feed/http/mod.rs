//! TensorRT-LLM's event endpoint: `GET /kv_cache_events`, a JSON array of the events since the last answer.
//!
//! ```text
//! engine <--GET-- Client --body--> events::split --by rank--> queue of each rank --> LinkEvent, as of a socket
//! ```
//!
//! Each event becomes one message: its `event_id` is the sequence number, its own JSON the payload. So the state
//! machine works as on a socket without a replay: an id that jumps is a gap, and the feed is incomplete; an id that
//! does not rise is a restart, even if the event is the same to the byte (every life begins with the same `created`).
//!
//! What an endpoint is like, and what follows:
//!
//! - *It drains.* Whoever asks takes the events away: kvtap must be the only reader, and what an answer held that
//!   broke off is gone. So a poll that fails after it may have been heard ends `live`, and it takes a restart of the
//!   engine to be complete again. Only a kept-alive connection that closed before the question left is made anew in
//!   silence.
//! - *It remembers little.* `event_buffer_max_size` bounds what waits between two polls; the oldest go, and the ids
//!   show it.
//! - *It speaks for all ranks.* Under attention data parallelism rank 0 gathers the events of the others. Each rank
//!   counts its own ids from 0 (read in the engine's event manager), so each has its own lane here. Events that name
//!   no rank are those of the first; of a rank that no feed is configured for they are turned away and counted
//!   (`other_rank`). Should a release count ids over all ranks together, every rank says that messages are missing.
//! - Nothing is trusted: answers are bounded, every wait has a deadline, a failed poll is followed by another after a
//!   growing pause with jitter.
//!
//! Plain `http` only: there is no TLS yet.

mod client;
mod endpoint;
mod events;
mod poll;

pub use endpoint::{HttpEndpoint, HttpEndpointError};
pub use poll::{PollOptions, poll};
