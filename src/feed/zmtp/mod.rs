//! ZMTP 3.1, as much as a subscriber and a replay's client need: a pure codec, no I/O, no clock.
//!
//! ```text
//! bytes --Greeting::parse--> minor version      once
//! bytes --Decoder::next----> Item::Command      READY or ERROR once, then PING and PONG
//!                            Item::Message      whole messages, frames copied out
//! ```
//!
//! The peer may be anyone. So: a declared length is compared with the caps before anything else and never
//! allocates; frames, bytes and commands of a message are capped; a [`Violation`] ends the connection. Frames
//! are copied out of the read buffer, so what a queue counts is what it holds.
//!
//! Only the NULL mechanism is spoken: engines publish in the clear. Rules are those of
//! <https://rfc.zeromq.org/spec/37/>; where libzmq 4.3 differs, it is said there.

mod command;
mod frame;
mod greeting;

pub use command::{Command, SocketType, ping, pong, ready, subscribe};
pub use frame::{Decoder, Item, Limits, message};
pub use greeting::{GREETING_LEN, Greeting};

/// What a peer must not send.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum Violation {
    /// Not a ZMTP greeting at all.
    #[error("not a ZMTP greeting")]
    Signature,
    /// ZMTP before 3.0: libzmq before 4.0.
    #[error("ZMTP version {major} where 3 or later is expected")]
    Version {
        /// The major version of the peer.
        major: u8,
    },
    /// A security mechanism other than NULL.
    #[error("the peer asks for a security mechanism other than NULL")]
    Mechanism,
    /// Reserved bits of a frame's flags are set, or a command claims to be continued.
    #[error("a frame with flags {flags:#04x}")]
    Flags {
        /// The flags.
        flags: u8,
    },
    /// A frame longer than the cap.
    #[error("a frame of {declared} bytes, more than {max}")]
    FrameTooLarge {
        /// The length it declares.
        declared: u64,
        /// The cap.
        max: usize,
    },
    /// A message longer than the cap.
    #[error("a message of more than {max} bytes")]
    MessageTooLarge {
        /// The cap.
        max: usize,
    },
    /// A message of more frames than the cap.
    #[error("a message of more than {max} frames")]
    TooManyFrames {
        /// The cap.
        max: usize,
    },
    /// A command longer than the cap.
    #[error("a command of {declared} bytes, more than {max}")]
    CommandTooLarge {
        /// The length it declares.
        declared: u64,
        /// The cap.
        max: usize,
    },
    /// A command whose body is not what its name asks for.
    #[error("a command is malformed")]
    BadCommand,
    /// Something other than READY where READY is due.
    #[error("the peer does not begin with READY")]
    NotReady,
    /// A socket that does not fit ours: a feed's peer is PUB or XPUB, a replay's is ROUTER.
    #[error("the peer's socket type does not fit")]
    SocketType,
    /// The peer sent ERROR: it refuses this side.
    #[error("the peer refuses the handshake")]
    Refused,
    /// The peer asks for answers faster than it reads them.
    #[error("the peer asks for more answers than it reads")]
    Backlog,
}

// === impl Violation ===

impl Violation {
    /// A stable word for metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::Signature => "not_zmtp",
            Self::Version { .. } => "zmtp_version",
            Self::Mechanism => "mechanism",
            Self::Flags { .. } => "frame_flags",
            Self::FrameTooLarge { .. } => "frame_too_large",
            Self::MessageTooLarge { .. } => "message_too_large",
            Self::TooManyFrames { .. } => "too_many_frames",
            Self::CommandTooLarge { .. } => "command_too_large",
            Self::BadCommand => "bad_command",
            Self::NotReady => "not_ready",
            Self::SocketType => "socket_type",
            Self::Refused => "refused",
            Self::Backlog => "backlog",
        }
    }
}
