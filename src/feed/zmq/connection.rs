//! One ZMTP connection: the handshake, then messages, with heartbeats both ways.
//!
//! Every wait can be abandoned at any point and resumed: reading and writing move bytes only without waiting.

use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use tokio::time::{Instant, sleep_until, timeout_at};

use super::Fault;
use super::stream::Stream;
use crate::feed::zmtp::{Command, Decoder, GREETING_LEN, Greeting, Item, Limits, SocketType, Violation};
use crate::feed::zmtp::{message, ping, pong, ready, subscribe};

/// How much is read at once, and how little room is too little to read into.
const READ_CHUNK: usize = 64 << 10;
const READ_ROOM: usize = 16 << 10;

/// A read buffer that one large message has grown past this is given back.
const KEEP_BUFFER: usize = 1 << 20;

/// Answers that a peer has asked for and not read yet, in bytes.
const MAX_OUTPUT: usize = 64 << 10;

/// When a peer is asked for a sign of life, and when it is given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// Silence after which a PING is sent.
    pub interval: Duration,
    /// How long after it the connection is given up, unless anything comes.
    pub timeout: Duration,
}

/// One connection whose handshake is done.
#[derive(Debug)]
pub struct Connection {
    stream: Stream,
    input: BytesMut,
    output: BytesMut,
    decoder: Decoder,
    minor: u8,
    heartbeat: Heartbeat,
    heard: Instant,
    /// When a PING was sent, where nothing has come since.
    asked: Option<Instant>,
}

// === impl Heartbeat ===

impl Heartbeat {
    /// No PING is ever sent: whoever waits has a deadline of its own.
    pub const NONE: Self = Self { interval: Duration::MAX, timeout: Duration::MAX };
}

impl Default for Heartbeat {
    /// A PING after 2 s of silence, the end 4 s later.
    fn default() -> Self {
        Self { interval: Duration::from_secs(2), timeout: Duration::from_secs(4) }
    }
}

// === impl Connection ===

impl Connection {
    /// Shakes hands over `stream` as a socket of type `socket`, before `deadline`.
    ///
    /// # Errors
    /// [`Fault::HandshakeDeadline`], [`Fault::Closed`], [`Fault::Broken`], [`Fault::Violation`].
    pub async fn open(
        stream: Stream,
        socket: SocketType,
        limits: Limits,
        heartbeat: Heartbeat,
        deadline: Instant,
    ) -> Result<Self, Fault> {
        let mut connection = Self {
            stream,
            input: BytesMut::new(),
            output: BytesMut::from(&Greeting::ours()[..]),
            decoder: Decoder::new(limits),
            minor: 0,
            heartbeat,
            heard: Instant::now(),
            asked: None,
        };
        timeout_at(deadline, connection.handshake(socket)).await.map_err(|_| Fault::HandshakeDeadline)??;
        Ok(connection)
    }

    async fn handshake(&mut self, socket: SocketType) -> Result<(), Fault> {
        self.minor = loop {
            if let Some(greeting) = Greeting::parse(self.input.get(..GREETING_LEN).unwrap_or(&self.input))? {
                self.input.advance(GREETING_LEN);
                break greeting.minor;
            }
            self.exchange().await?;
        };
        ready(&mut self.output, socket);
        let item = loop {
            if let Some(item) = self.decoder.next(&mut self.input)? {
                break item;
            }
            self.exchange().await?;
        };
        match item {
            Item::Command(Command::Ready { socket: Some(peer) }) if socket.fits(peer) => Ok(()),
            Item::Command(Command::Ready { .. }) => Err(Violation::SocketType.into()),
            Item::Command(Command::Error) => Err(Violation::Refused.into()),
            _ => Err(Violation::NotReady.into()),
        }
    }

    /// Subscribes to what begins with `topic`.
    pub fn subscribe(&mut self, topic: &[u8]) {
        subscribe(&mut self.output, topic, self.minor);
    }

    /// Sends a message of `frames`.
    pub fn send(&mut self, frames: &[&[u8]]) {
        message(&mut self.output, frames);
    }

    /// The next message, as far as bytes have come already; [`Connection::fill`] brings more.
    ///
    /// # Errors
    /// [`Fault::Violation`].
    pub fn try_next(&mut self) -> Result<Option<Vec<Bytes>>, Fault> {
        while let Some(item) = self.decoder.next(&mut self.input)? {
            match item {
                Item::Message(frames) => return Ok(Some(frames)),
                Item::Command(Command::Ping { context }) => {
                    pong(&mut self.output, &context);
                    if self.output.len() > MAX_OUTPUT {
                        return Err(Violation::Backlog.into());
                    }
                }
                Item::Command(Command::Error) => return Err(Violation::Refused.into()),
                Item::Command(Command::Ready { .. } | Command::Pong | Command::Other) => {}
            }
        }
        if self.input.is_empty() && self.input.capacity() > KEEP_BUFFER {
            self.input = BytesMut::new();
        }
        Ok(None)
    }

    /// Waits until something has come, sending meanwhile what is to be sent, and PINGs when they are due. Can be
    /// abandoned at any point.
    ///
    /// # Errors
    /// [`Fault::Closed`], [`Fault::Broken`], [`Fault::Heartbeat`].
    pub async fn fill(&mut self) -> Result<(), Fault> {
        loop {
            let due = match self.asked {
                None => after(self.heard, self.heartbeat.interval),
                Some(asked) => after(asked, self.heartbeat.timeout),
            };
            // Where both are ready, bytes come first: after a pause of this process, the answer is among them.
            tokio::select! {
                biased;
                came = self.exchange() => if came? { return Ok(()) },
                // A peer of ZMTP 3.0 knows no PING, so its silence means nothing.
                () = sleep_until(due), if self.minor > 0 => {
                    if self.asked.is_some() {
                        return Err(Fault::Heartbeat);
                    }
                    ping(&mut self.output);
                    self.asked = Some(Instant::now());
                }
            }
        }
    }

    /// When something last came.
    pub fn heard(&self) -> Instant {
        self.heard
    }

    /// Moves bytes once, in whichever direction is possible first; whether any came.
    async fn exchange(&mut self) -> Result<bool, Fault> {
        let Self { stream, input, output, heard, asked, .. } = self;
        // A peer that never stops sending must starve neither its own answers nor other tasks.
        tokio::task::consume_budget().await;
        write(stream, output)?;
        tokio::select! {
            biased;
            ready = stream.readable() => {
                ready.map_err(Fault::Broken)?;
                if input.capacity() - input.len() < READ_ROOM {
                    input.reserve(READ_CHUNK);
                }
                match stream.try_read(input).map_err(Fault::Broken)? {
                    Some(0) => Err(Fault::Closed),
                    Some(_) => {
                        *heard = Instant::now();
                        *asked = None;
                        Ok(true)
                    }
                    None => Ok(false),
                }
            }
            ready = stream.writable(), if !output.is_empty() => {
                ready.map_err(Fault::Broken)?;
                write(stream, output)?;
                Ok(false)
            }
        }
    }
}

/// Writes as much of `output` as there is room for now.
fn write(stream: &Stream, output: &mut BytesMut) -> Result<(), Fault> {
    while !output.is_empty() {
        match stream.try_write(output).map_err(Fault::Broken)? {
            Some(count) => output.advance(count),
            None => break,
        }
    }
    Ok(())
}

/// The moment `wait` after `from`; where no clock reaches that far, a year.
pub(super) fn after(from: Instant, wait: Duration) -> Instant {
    from.checked_add(wait).unwrap_or_else(|| from + Duration::from_secs(365 * 86_400))
}
