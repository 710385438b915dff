//! The door: one link that receives what publishers send, for as long as it is wanted.

use std::convert::Infallible;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, after};
use super::presence::{Presence, Progress};
use super::stream::Stream;
use super::{Endpoint, EndpointError, Fault, Heartbeat, Limits, Mode, QueueLimits, QueueReceiver, bound, trusted};
use crate::backoff::Backoff;
use crate::feed::link::{QueueSender, queue};
use crate::feed::zmtp::SocketType;

/// Which implementation reads the socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Transport {
    /// Our own capped reader.
    #[default]
    Own,
    /// The `zeromq` crate, supervised. It has no caps and no heartbeats (a publisher that asks for them loses the
    /// link each time), so it connects to local peers only; a bound link is our own's whatever is asked for.
    Zeromq,
}

/// How a link is made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SubOptions {
    /// Where, with the rank already added.
    pub endpoint: Endpoint,
    /// Which side opens the connection.
    pub mode: Mode,
    /// What a message's first frame begins with; empty for everything.
    pub topic: String,
    /// Which implementation.
    pub transport: Transport,
    /// What one peer may send at most.
    pub limits: Limits,
    /// What waits at most.
    pub queue: QueueLimits,
    /// Deadlines and waits.
    pub timing: Timing,
    /// Peers of a bound link, at least 1. When one more comes, whoever had least to say makes room; publishers that
    /// have sent a message do not. Each may hold one unfinished message of [`Limits::message_bytes`].
    pub max_peers: usize,
}

/// Deadlines and waits of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// For the system's connect, the name's resolution included.
    pub connect: Duration,
    /// For the handshake after it.
    pub handshake: Duration,
    /// The first wait before the next attempt; each next one is twice as long.
    pub first_retry: Duration,
    /// The longest wait before the next attempt.
    pub longest_retry: Duration,
    /// How a half-open connection is noticed.
    pub heartbeat: Heartbeat,
    /// [`Transport::Zeromq`] only, which has no heartbeats: how long silence is trusted before the socket is made
    /// anew.
    pub idle: Duration,
}

// === impl SubOptions ===

impl SubOptions {
    /// A link to (or on) `endpoint` that receives everything, with default bounds.
    pub fn new(endpoint: Endpoint, mode: Mode) -> Self {
        Self {
            endpoint,
            mode,
            topic: String::new(),
            transport: Transport::default(),
            limits: Limits::default(),
            queue: QueueLimits::default(),
            timing: Timing::default(),
            max_peers: 16,
        }
    }

    /// Whether such a link can be made at all.
    ///
    /// # Errors
    /// Those of [`Endpoint::check`], and [`EndpointError::NotLocal`].
    pub fn check(&self) -> Result<(), EndpointError> {
        self.endpoint.check(self.mode)?;
        if self.is_trusted() && !self.endpoint.is_local() {
            return Err(EndpointError::NotLocal(self.endpoint.clone()));
        }
        Ok(())
    }

    fn is_trusted(&self) -> bool {
        self.transport == Transport::Zeromq && self.mode == Mode::Connect
    }
}

// === impl Timing ===

impl Default for Timing {
    /// 2 s each to connect and to shake hands, retries after 50 ms to 1 s, 60 s of trusted silence.
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            handshake: Duration::from_secs(2),
            first_retry: Duration::from_millis(50),
            longest_retry: Duration::from_secs(1),
            heartbeat: Heartbeat::default(),
            idle: Duration::from_secs(60),
        }
    }
}

/// Starts a link. It lives through publishers that are absent, restarted or vanished, until `cancel` is cancelled
/// or the receiver dropped; then its task ends, and the receiver yields `None` after what it still holds.
///
/// Must be called within a tokio runtime.
///
/// # Errors
/// Those of [`SubOptions::check`]. Whatever fails later is an event, and is tried again.
pub fn subscribe(
    options: SubOptions,
    cancel: &CancellationToken,
) -> Result<(QueueReceiver, JoinHandle<()>), EndpointError> {
    options.check()?;
    let link = cancel.child_token();
    let (sender, receiver) = queue(options.queue, link.clone().drop_guard());
    let task = tokio::spawn(async move {
        let _end = End(sender.clone());
        let presence = Presence::new(sender);
        link.run_until_cancelled(run(&options, &presence)).await;
    });
    Ok((receiver, task))
}

/// Ends the queue, however the task ends.
struct End(QueueSender);

impl Drop for End {
    fn drop(&mut self) {
        self.0.end();
    }
}

async fn run(options: &SubOptions, presence: &Presence) -> Infallible {
    match options.mode {
        Mode::Bind => bound::run(options, presence).await,
        Mode::Connect => {
            let mut backoff = Backoff::new(options.timing.first_retry, options.timing.longest_retry);
            loop {
                match if options.is_trusted() {
                    trusted::serve(options, presence).await
                } else {
                    connect(options, presence).await
                } {
                    Ok(lived) if lived >= backoff.longest() => backoff.reset(),
                    Ok(_) => {}
                    Err(fault) => {
                        if let Some(reason) = fault.rejection() {
                            presence.queue().rejected(reason);
                        }
                        presence.queue().unreachable(fault);
                    }
                }
                sleep(backoff.wait()).await;
            }
        }
    }
}

async fn connect(options: &SubOptions, presence: &Presence) -> Result<Duration, Fault> {
    let deadline = after(Instant::now(), options.timing.connect);
    let stream = Stream::connect(&options.endpoint, deadline).await?;
    serve(stream, options, presence, &Progress::default(), &CancellationToken::new()).await
}

/// Receives from one peer until it is gone, or until `evict` is cancelled because another needs its place: how
/// long it was there.
///
/// # Errors
/// The fault of a peer that never completed its handshake. Later ones are told to the queue.
pub(super) async fn serve(
    stream: Stream,
    options: &SubOptions,
    presence: &Presence,
    progress: &Progress,
    evict: &CancellationToken,
) -> Result<Duration, Fault> {
    let deadline = after(Instant::now(), options.timing.handshake);
    let shake = Connection::open(stream, SocketType::Sub, options.limits, options.timing.heartbeat, deadline);
    let mut connection = evict.run_until_cancelled(shake).await.ok_or(Fault::Crowded)??;
    connection.subscribe(options.topic.as_bytes());
    let mut publisher = presence.join(progress);
    let fault = loop {
        match connection.try_next() {
            Ok(Some(frames)) => publisher.message(frames),
            Ok(None) => match evict.run_until_cancelled(connection.fill()).await {
                Some(Ok(())) => publisher.heard(connection.heard()),
                Some(Err(fault)) => break fault,
                None => break Fault::Crowded,
            },
            Err(fault) => break fault,
        }
    };
    let lived = publisher.since().elapsed();
    publisher.leave(fault);
    Ok(lived)
}
