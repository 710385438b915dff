//! Connections from outside: how many may be open, and how long each may dawdle.
//!
//! ```text
//! listener --Door--> Slot (one of a fixed number) + Stream --Watched--> a protocol
//!                     |                                     |
//!                     counts, evicts the idlest              bytes seen, stalled writes
//! ```
//!
//! In: bound sockets. Out: streams with a [`Slot`] each, for the gRPC server and the admin port to speak on.
//!
//! What holds:
//!
//! 1. A port has a fixed number of connections ([`Bounds::connections`]). Where all are taken, the one that has been
//!    idle longest goes; where none is idle, the new one goes. Strangers that only wait cannot keep routers out.
//! 2. Who does not say what the protocol begins with in time, who asks nothing for long, and who does not take what
//!    was written for it, is closed ([`Bounds::handshake`], [`Bounds::idle`], [`Bounds::stall`]).
//! 3. Running out of file descriptors costs connections, not the log: one line when it begins, one when it ends.

mod counts;
mod door;
mod slots;
mod watched;

use std::time::Duration;

pub use counts::{ConnectionCounts, Ending};
pub use door::{Door, Socket, Stream};
pub use slots::{Busy, Slot, Slots};
pub use watched::{Sight, Watched};

/// What a port grants to whoever connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Connections that may be open at one time.
    pub connections: usize,
    /// Until the peer has said what its protocol begins with.
    pub handshake: Duration,
    /// Without a request under way, until the connection is closed.
    pub idle: Duration,
    /// Without the peer taking anything of what is to be written, until the connection is closed.
    pub stall: Duration,
}

// === impl Bounds ===

impl Default for Bounds {
    /// 1,024 connections; 10 s to begin, 5 min idle, 20 s stalled.
    fn default() -> Self {
        Self {
            connections: 1024,
            handshake: Duration::from_secs(10),
            idle: Duration::from_secs(300),
            stall: Duration::from_secs(20),
        }
    }
}
