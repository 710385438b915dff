//! Commands: READY and ERROR of the NULL handshake, PING and PONG, SUBSCRIBE.
//!
//! ```text
//! command = length of name: 1 byte | name | data
//! READY   = (length: 1 byte | name | length: 4 bytes big-endian | value)*
//! PING    = time to live: 2 bytes | context, at most 16 bytes          PONG = context
//! ```

use bytes::{Bytes, BytesMut};

use super::{Violation, frame};

/// The longest context of a PING.
const MAX_CONTEXT: usize = 16;

/// A command, as far as this side cares.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// The peer's half of the handshake, with the type of its socket.
    Ready {
        /// `Socket-Type`, where it is one that fits anything here.
        socket: Option<SocketType>,
    },
    /// The peer refuses the handshake.
    Error,
    /// Asks for a PONG with the same context.
    Ping {
        /// At most 16 bytes.
        context: Bytes,
    },
    /// Answers a PING.
    Pong,
    /// Anything else; to be ignored.
    Other,
}

/// The types of socket that meet here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SocketType {
    /// PUB or XPUB.
    Pub,
    /// SUB.
    Sub,
    /// DEALER.
    Dealer,
    /// ROUTER.
    Router,
}

// === impl Command ===

impl Command {
    /// Reads a command frame's body.
    ///
    /// # Errors
    /// [`Violation::BadCommand`] where lengths do not add up or a context is too long.
    pub fn parse(body: &[u8]) -> Result<Self, Violation> {
        let (name, data) = split_short(body)?;
        match name {
            b"READY" => Ok(Self::Ready { socket: socket_type(data)? }),
            b"ERROR" => Ok(Self::Error),
            b"PING" => match data.split_at_checked(2) {
                Some((_ttl, context)) if context.len() <= MAX_CONTEXT => {
                    Ok(Self::Ping { context: Bytes::copy_from_slice(context) })
                }
                _ => Err(Violation::BadCommand),
            },
            b"PONG" => Ok(Self::Pong),
            _ => Ok(Self::Other),
        }
    }
}

/// `Socket-Type` among READY's properties. Names compare without case, as the specification asks.
fn socket_type(mut properties: &[u8]) -> Result<Option<SocketType>, Violation> {
    let mut found = None;
    while !properties.is_empty() {
        let (name, rest) = split_short(properties)?;
        let (len, rest) = rest.split_first_chunk::<4>().ok_or(Violation::BadCommand)?;
        let len = usize::try_from(u32::from_be_bytes(*len)).map_err(|_| Violation::BadCommand)?;
        let (value, rest) = rest.split_at_checked(len).ok_or(Violation::BadCommand)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            found = SocketType::parse(value);
        }
        properties = rest;
    }
    Ok(found)
}

/// A text with one byte of length before it, and what follows.
fn split_short(bytes: &[u8]) -> Result<(&[u8], &[u8]), Violation> {
    let (&len, rest) = bytes.split_first().ok_or(Violation::BadCommand)?;
    rest.split_at_checked(len.into()).ok_or(Violation::BadCommand)
}

// === impl SocketType ===

impl SocketType {
    fn parse(value: &[u8]) -> Option<Self> {
        match value {
            b"PUB" | b"XPUB" => Some(Self::Pub),
            b"SUB" | b"XSUB" => Some(Self::Sub),
            b"DEALER" | b"REQ" => Some(Self::Dealer),
            b"ROUTER" => Some(Self::Router),
            _ => None,
        }
    }

    const fn name(self) -> &'static [u8] {
        match self {
            Self::Pub => b"PUB",
            Self::Sub => b"SUB",
            Self::Dealer => b"DEALER",
            Self::Router => b"ROUTER",
        }
    }

    /// Whether a socket of this type can talk to one of `peer`'s.
    pub const fn fits(self, peer: Self) -> bool {
        matches!(
            (self, peer),
            (Self::Pub, Self::Sub)
                | (Self::Sub, Self::Pub)
                | (Self::Dealer, Self::Router)
                | (Self::Router, Self::Dealer)
        )
    }
}

/// Writes READY.
pub fn ready(output: &mut BytesMut, socket: SocketType) {
    let name = socket.name();
    let len = [0, 0, 0, u8::try_from(name.len()).unwrap_or_default()];
    frame::command(output, &[b"\x05READY\x0bSocket-Type", &len, name, b"\x08Identity\0\0\0\0"]);
}

/// Writes PING without a time to live: a peer is not asked to drop this side when it falls silent, for then a
/// pause of this process would cost the link.
pub fn ping(output: &mut BytesMut) {
    frame::command(output, &[b"\x04PING\0\0kvtap"]);
}

/// Writes the PONG that answers a PING with `context`.
pub fn pong(output: &mut BytesMut, context: &[u8]) {
    frame::command(output, &[b"\x04PONG", context]);
}

/// Writes the subscription to what begins with `topic`: a command for peers from 3.1 on, a message for 3.0.
pub fn subscribe(output: &mut BytesMut, topic: &[u8], minor: u8) {
    if minor == 0 {
        frame::message(output, &[&[b"\x01", topic].concat()]);
    } else {
        frame::command(output, &[b"\x09SUBSCRIBE", topic]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut BytesMut)) -> Vec<u8> {
        let mut output = BytesMut::new();
        write(&mut output);
        output.to_vec()
    }

    #[test]
    fn commands_are_understood() {
        let cases: [(&[u8], Result<Command, Violation>); 18] = [
            (b"\x05READY", Ok(Command::Ready { socket: None })),
            // As libzmq's PUB sends it.
            (b"\x05READY\x0bSocket-Type\0\0\0\x03PUB", Ok(Command::Ready { socket: Some(SocketType::Pub) })),
            (
                b"\x05READY\x0bSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0",
                Ok(Command::Ready { socket: Some(SocketType::Router) }),
            ),
            (
                b"\x05READY\x01x\0\0\0\x01y\x0bsocket-type\0\0\0\x04XPUB",
                Ok(Command::Ready { socket: Some(SocketType::Pub) }),
            ),
            (b"\x05READY\x0bSocket-Type\0\0\0\x04PUSH", Ok(Command::Ready { socket: None })),
            (b"\x05READY\x0bSocket-Type\0\0\0\x04PUB", Err(Violation::BadCommand)),
            (b"\x05READY\x0bSocket-Type\xff\xff\xff\xffPUB", Err(Violation::BadCommand)),
            (b"\x05READY\x0bSocket-Type\0\0", Err(Violation::BadCommand)),
            (b"\x05READY\xff", Err(Violation::BadCommand)),
            (b"\x05ERROR\x03no!", Ok(Command::Error)),
            (b"\x04PING\0\x0a", Ok(Command::Ping { context: Bytes::new() })),
            (b"\x04PING\0\x0aabc", Ok(Command::Ping { context: Bytes::from_static(b"abc") })),
            (b"\x04PING\0\x0a0123456789abcdefg", Err(Violation::BadCommand)),
            (b"\x04PING\0", Err(Violation::BadCommand)),
            (b"\x04PONGabc", Ok(Command::Pong)),
            (b"\x03JOINgroup", Ok(Command::Other)),
            (b"\x09PING", Err(Violation::BadCommand)),
            (b"", Err(Violation::BadCommand)),
        ];
        for (body, command) in cases {
            assert_eq!(Command::parse(body), command, "{body:?}");
        }
    }

    #[test]
    fn commands_are_written_as_the_specification_says() {
        assert_eq!(
            written(|output| ready(output, SocketType::Sub)),
            b"\x04\x26\x05READY\x0bSocket-Type\0\0\0\x03SUB\x08Identity\0\0\0\0"
        );
        assert_eq!(written(ping), b"\x04\x0c\x04PING\0\0kvtap");
        assert_eq!(written(|output| pong(output, b"abc")), b"\x04\x08\x04PONGabc");
        assert_eq!(written(|output| subscribe(output, b"kv", 1)), b"\x04\x0c\x09SUBSCRIBEkv");
        assert_eq!(written(|output| subscribe(output, b"kv", 0)), b"\x00\x03\x01kv");
        assert_eq!(written(|output| subscribe(output, b"", 0)), b"\x00\x01\x01");
    }

    #[test]
    fn a_feed_meets_a_publisher_and_a_replay_meets_a_router() {
        use SocketType::{Dealer, Pub, Router, Sub};
        for (ours, fitting) in [(Sub, Pub), (Dealer, Router), (Pub, Sub), (Router, Dealer)] {
            for peer in [Pub, Sub, Dealer, Router] {
                assert_eq!(ours.fits(peer), peer == fitting);
            }
        }
    }
}
