//! Why a connection ended, or never came to be.

use std::io;

use crate::feed::drops::Dropped;
use crate::feed::zmtp::Violation;

/// Why a connection ended, or never came to be.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The name of the host means no address.
    #[error("the host has no address")]
    NoAddress,
    /// The system could not connect.
    #[error("cannot connect: {0}")]
    Connect(#[source] io::Error),
    /// Nobody answered the connection attempt in time.
    #[error("no answer to the connection attempt within the deadline")]
    ConnectDeadline,
    /// The system could not bind.
    #[error("cannot bind: {0}")]
    Bind(#[source] io::Error),
    /// The peer accepted the connection and did not complete the handshake in time.
    #[error("no handshake within the deadline")]
    HandshakeDeadline,
    /// The peer closed the connection.
    #[error("the peer closed the connection")]
    Closed,
    /// The connection broke.
    #[error("the connection broke: {0}")]
    Broken(#[source] io::Error),
    /// The peer sent nothing, and did not answer a heartbeat, in time.
    #[error("no sign of life within the heartbeat's deadline")]
    Heartbeat,
    /// The peer sent what it must not.
    #[error("the peer breaks the protocol: {0}")]
    Violation(#[from] Violation),
    /// More peers than a bound socket serves; the one that had least to say made room.
    #[error("more peers than this socket serves")]
    Crowded,
    /// Nothing came for as long as a link without heartbeats is trusted, or as long as a reply may take.
    #[error("nothing came within the idle deadline")]
    Idle,
    /// A replay that as a whole exceeded its time.
    #[error("the replay did not end within its deadline")]
    Deadline,
    /// A poll over HTTP failed.
    #[error("{0}")]
    Poll(String),
    /// The connection to a NATS server ended, or what comes through it.
    #[error("NATS: {0}")]
    Nats(String),
    /// The `zeromq` crate gave up.
    #[error("the socket failed: {0}")]
    Socket(String),
}

// === impl Fault ===

impl Fault {
    /// A stable word for metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::NoAddress => "no_address",
            Self::Connect(_) => "connect_failed",
            Self::ConnectDeadline => "connect_deadline",
            Self::Bind(_) => "bind_failed",
            Self::HandshakeDeadline => "handshake_deadline",
            Self::Closed => "closed",
            Self::Broken(_) => "broken",
            Self::Heartbeat => "heartbeat",
            Self::Violation(violation) => violation.reason(),
            Self::Crowded => "crowded",
            Self::Idle => "idle",
            Self::Deadline => "deadline",
            Self::Poll(_) => "poll_failed",
            Self::Nats(_) => "nats",
            Self::Socket(_) => "socket",
        }
    }

    /// What is counted where the peer was turned away for what it did or left undone; `None`: a network's ordinary life.
    pub fn rejection(&self) -> Option<Dropped> {
        match self {
            Self::Violation(violation) => Some((*violation).into()),
            Self::HandshakeDeadline => Some(Dropped::HandshakeDeadline),
            Self::Crowded => Some(Dropped::Crowded),
            _ => None,
        }
    }
}
