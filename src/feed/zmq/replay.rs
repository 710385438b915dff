//! Asking a publisher for what was missed: a DEALER that asks a ROUTER once, and reads whatever it answers.
//!
//! Servers drop replies for a slow reader without a word (vLLM before 0.33 even for a quick one), so replies are
//! read into memory as fast as they come; the peer is made to wait only past a large bound. What the replies say,
//! and which of them is the last, is for the reader: it drops its end once it has seen the end marker.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::connection::{Connection, after};
use super::stream::Stream;
use super::{Endpoint, EndpointError, Fault, Heartbeat, Limits, Mode};
use crate::feed::zmtp::SocketType;
use crate::wire::frames;

/// What a reply costs beyond the bytes of its frames.
const REPLY_COST: usize = 256;

/// How a replay is asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplayOptions {
    /// Where, with the rank already added.
    pub endpoint: Endpoint,
    /// What one reply may hold at most.
    pub limits: Limits,
    /// For the system's connect, the name's resolution included.
    pub connect: Duration,
    /// For the handshake after it.
    pub handshake: Duration,
    /// The longest silence before and between replies.
    pub idle: Duration,
    /// For the whole replay.
    pub total: Duration,
    /// Bytes of replies that wait for their reader before the server is made to wait.
    pub buffer: usize,
}

/// The replies of one replay. Dropping it ends the replay.
#[derive(Debug)]
pub struct Replies {
    replies: mpsc::UnboundedReceiver<Result<Reply, Fault>>,
    _replay: DropGuard,
}

#[derive(Debug)]
struct Reply {
    frames: Vec<Bytes>,
    /// Its share of the buffer, until it is read.
    _share: OwnedSemaphorePermit,
}

// === impl ReplayOptions ===

impl ReplayOptions {
    /// A replay from `endpoint` with default bounds: 2 s each to connect and to shake hands, 5 s of silence, two
    /// minutes in all, 256 MiB that wait.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            limits: Limits::default(),
            connect: Duration::from_secs(2),
            handshake: Duration::from_secs(2),
            idle: Duration::from_secs(5),
            total: Duration::from_secs(120),
            buffer: 256 << 20,
        }
    }
}

// === impl Replies ===

impl Replies {
    /// The next reply, by its frames as a DEALER sees them, the empty delimiter first. `None` after the replay was
    /// cancelled or has failed. Can be abandoned at any point.
    ///
    /// # Errors
    /// Why the replay ended before its reader had enough; it comes once, and last.
    pub async fn recv(&mut self) -> Option<Result<Vec<Bytes>, Fault>> {
        self.replies.recv().await.map(|reply| reply.map(|reply| reply.frames))
    }
}

/// Asks for everything from sequence number `start` on, over a connection of its own. Ends when the receiver is
/// dropped, `cancel` is cancelled, or something fails.
///
/// Must be called within a tokio runtime.
///
/// # Errors
/// Those of [`Endpoint::check`]. Whatever fails later comes through [`Replies::recv`].
pub fn replay(
    options: ReplayOptions,
    start: u64,
    cancel: &CancellationToken,
) -> Result<(Replies, JoinHandle<()>), EndpointError> {
    options.endpoint.check(Mode::Connect)?;
    let replay = cancel.child_token();
    let (sender, replies) = mpsc::unbounded_channel();
    let receiver = Replies { replies, _replay: replay.clone().drop_guard() };
    let task = tokio::spawn(async move {
        let deadline = after(Instant::now(), options.total);
        let ask = timeout_at(deadline, ask(&options, start, &sender));
        if let Some(ended) = replay.run_until_cancelled(ask).await {
            let fault = ended.unwrap_or(Fault::Deadline);
            // A reader that is gone has no use for it.
            drop(sender.send(Err(fault)));
        }
    });
    Ok((receiver, task))
}

/// Reads replies until something fails: what it was.
async fn ask(options: &ReplayOptions, start: u64, replies: &mpsc::UnboundedSender<Result<Reply, Fault>>) -> Fault {
    let mut connection = match open(options).await {
        Ok(connection) => connection,
        Err(fault) => return fault,
    };
    let [delimiter, number] = frames::replay_request(start);
    connection.send(&[&delimiter, &number]);
    let buffer = u32::try_from(options.buffer).unwrap_or(u32::MAX);
    let room = Arc::new(Semaphore::new(buffer as usize));
    loop {
        match connection.try_next() {
            Ok(Some(frames)) => {
                let bytes = frames.iter().fold(REPLY_COST, |sum, frame| sum.saturating_add(frame.len()));
                // A reply larger than the whole buffer passes alone.
                let share = u32::try_from(bytes).unwrap_or(u32::MAX).min(buffer);
                let Ok(share) = Arc::clone(&room).acquire_many_owned(share).await else { return Fault::Closed };
                if replies.send(Ok(Reply { frames, _share: share })).is_err() {
                    return Fault::Closed;
                }
            }
            Ok(None) => match timeout(options.idle, connection.fill()).await {
                Ok(Ok(())) => {}
                Ok(Err(fault)) => return fault,
                Err(_) => return Fault::Idle,
            },
            Err(fault) => return fault,
        }
    }
}

async fn open(options: &ReplayOptions) -> Result<Connection, Fault> {
    let deadline = after(Instant::now(), options.connect);
    let stream = Stream::connect(&options.endpoint, deadline).await?;
    let deadline = after(Instant::now(), options.handshake);
    Connection::open(stream, SocketType::Dealer, options.limits, Heartbeat::NONE, deadline).await
}
