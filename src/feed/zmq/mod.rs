//! The ZMQ transport of a feed: what engines publish comes in, nothing is decoded here.
//!
//! ```text
//! SubOptions ----subscribe--> Transport::Own    | a task: connects, or binds and accepts     --> queue --> LinkEvent
//!                             Transport::Zeromq | a task: the zeromq crate, local peers only -->
//! ReplayOptions ---replay---> a task: one question, its answers                              --> Replies --> frames
//! ```
//!
//! What holds:
//!
//! - A link only receives. Whoever decodes reads a queue that is bounded in messages and bytes; what does not fit
//!   is dropped and reported in its place, never in silence. A paused reader cannot stall a publisher.
//! - A link outlives publishers that are absent, restarted, vanished or half-open: every wait has a deadline, and
//!   every end is followed by another attempt after a short wait with jitter.
//! - Any byte may come from a stranger, on a bound link above all. No declared length allocates, no peer costs more
//!   memory than its caps, none silences another. Whoever breaks a rule loses its connection and is counted by a
//!   stable word.
//! - Connections are in the clear ([`Endpoint::is_local`] tells where that deserves a warning).
//!
//! [`zmtp`](super::zmtp) is the protocol, pure; [`Fault`] says why a connection ended.

mod bound;
mod connection;
mod presence;
mod replay;
mod stream;
mod sub;
mod trusted;

pub use connection::Heartbeat;
pub use replay::{ReplayOptions, Replies, replay};
pub use sub::{SubOptions, Timing, Transport, subscribe};

pub use super::link::{Endpoint, EndpointError, Fault, Host, LinkEvent, Mode, QueueLimits, QueueReceiver};
pub use super::zmtp::Limits;
