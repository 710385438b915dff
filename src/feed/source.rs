//! Where a runner's events come from: a link and its replays, or a script in a test.

use std::future::Future;

use bytes::Bytes;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::link::{Fault, LinkEvent, QueueReceiver};
use super::machine::Failure;
use super::zmq::{ReplayOptions, Replies, replay};

/// What a runner listens to.
pub trait Source: Send + 'static {
    /// The next event; `None`: there will be no more. Can be abandoned at any point.
    fn next(&mut self) -> impl Future<Output = Option<Event>> + Send;

    /// Asks for a replay from a sequence number on, in place of the one that runs.
    fn ask(&mut self, from: u64);

    /// Ends the replay that runs. None of its replies comes after that.
    fn stop_asking(&mut self);

    /// When anything last came from the publisher, be it a heartbeat.
    fn heard(&self) -> Option<Instant>;

    /// Whether messages were lost on this side that it has not told of yet, because others wait before them.
    fn has_lost(&self) -> bool;
}

/// What a source yields.
#[derive(Debug)]
pub enum Event {
    /// Something happened on the link.
    Link(LinkEvent),
    /// A reply of the replay, by its frames.
    Reply(Vec<Bytes>),
    /// The replay ended without an end marker. It comes once, and nothing of that replay after it.
    ReplayOver(Failure),
}

/// One link, whatever its transport, and one replay at a time, over ZMQ, where there is an endpoint for that.
#[derive(Debug)]
pub struct LinkSource {
    link: QueueReceiver,
    options: Option<ReplayOptions>,
    replay: Replay,
    cancel: CancellationToken,
}

#[derive(Debug)]
enum Replay {
    None,
    Running(Replies),
    /// It could not even be asked for.
    Refused,
}

// === impl LinkSource ===

impl LinkSource {
    /// A source that reads `link`, and asks for replays under `options`, where there is an endpoint for that.
    pub fn new(link: QueueReceiver, options: Option<ReplayOptions>, cancel: CancellationToken) -> Self {
        Self { link, options, replay: Replay::None, cancel }
    }
}

impl Source for LinkSource {
    async fn next(&mut self) -> Option<Event> {
        tokio::select! {
            event = self.link.recv() => event.map(Event::Link),
            event = self.replay.next() => {
                if let Event::ReplayOver(_) = event {
                    self.replay = Replay::None;
                }
                Some(event)
            }
        }
    }

    fn ask(&mut self, from: u64) {
        let asked = self.options.clone().map(|options| replay(options, from, &self.cancel));
        self.replay = match asked {
            Some(Ok((replies, _task))) => Replay::Running(replies),
            Some(Err(_)) | None => Replay::Refused,
        };
    }

    fn stop_asking(&mut self) {
        self.replay = Replay::None;
    }

    fn heard(&self) -> Option<Instant> {
        self.link.last_heard()
    }

    fn has_lost(&self) -> bool {
        self.link.has_lost()
    }
}

// === impl Replay ===

impl Replay {
    async fn next(&mut self) -> Event {
        match self {
            Self::None => std::future::pending().await,
            Self::Refused => Event::ReplayOver(Failure::Broken),
            Self::Running(replies) => match replies.recv().await {
                Some(Ok(frames)) => Event::Reply(frames),
                Some(Err(Fault::Idle | Fault::Deadline | Fault::ConnectDeadline | Fault::HandshakeDeadline)) => {
                    Event::ReplayOver(Failure::Timeout)
                }
                Some(Err(_)) | None => Event::ReplayOver(Failure::Broken),
            },
        }
    }
}
