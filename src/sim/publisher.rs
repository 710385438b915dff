//! A PUB socket and a ROUTER replay socket that behave like vLLM's `ZmqEventPublisher`.
//!
//! * Live: `[topic][sequence, 8 bytes big-endian][payload]`, sequence from 0 in each life.
//! * Replay: a request of `[start]` (any length, empty is 0) is answered with each message from `start` on that is still in
//!   the ring, one reply a message, then an end marker. A request of another shape gets no answer at all.
//! * The ring holds the last `buffer_steps` messages; older ones are gone for good.
//! * The port of rank r is the configured port + r, for both sockets; port 0 stays 0 and is resolved on binding.
//!
//! What a subscriber cannot keep up with is dropped in silence, as PUB does. Unlike libzmq the crate underneath has no
//! linger: closing loses what is still queued. It also disconnects a subscriber that sends ZMTP heartbeats.

mod live;
mod replay;
mod transport;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Messages that wait for the socket before publishing blocks: vLLM's `max_queue_size`.
const QUEUE: usize = 100_000;

/// How a publisher is set up.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// `tcp://host:port` or `ipc://path`; `*` is every interface.
    pub endpoint: String,
    /// The replay socket's endpoint, always bound; `None` for no replay.
    pub replay: Option<String>,
    /// Whether the PUB socket binds or connects.
    pub attach: Attach,
    /// The first frame of each message.
    pub topic: String,
    /// Messages that a replay can reach back.
    pub buffer_steps: usize,
    /// The shape of replies.
    pub layout: ReplayLayout,
    /// The data-parallel rank.
    pub rank: u16,
}

/// Which side of the PUB connection listens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Attach {
    /// The publisher listens.
    #[default]
    Bind,
    /// The subscriber listens, as it must where vLLM's endpoint has no wildcard. What is published before it does is lost.
    Connect,
}

/// The shape of a replay's replies, after the client's own empty delimiter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum ReplayLayout {
    /// `[seq][payload]`, end `[FF * 8][""]`: vLLM before 0.26.
    Plain,
    /// `[topic][seq][payload]`, end `[""][FF * 8][""]`: vLLM from 0.26.
    #[default]
    WithTopic,
}

/// Why a socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// Not an endpoint of a kind that is supported.
    #[error("`{endpoint}` is not an endpoint: {what}")]
    Endpoint {
        /// What was asked for.
        endpoint: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The socket could not be bound.
    #[error("cannot bind {endpoint}: {source}")]
    Bind {
        /// Where.
        endpoint: String,
        /// Why.
        source: zeromq::ZmqError,
    },
    /// The publishing task has ended.
    #[error("the publisher is closed")]
    Closed,
}

/// The publisher of one rank.
#[derive(Debug)]
pub struct Publisher {
    options: Options,
    next: u64,
    shared: Arc<Shared>,
    sockets: Option<Sockets>,
}

/// What both sockets see.
#[derive(Debug)]
struct Shared {
    topic: Bytes,
    layout: ReplayLayout,
    capacity: usize,
    ring: Mutex<VecDeque<(u64, Bytes)>>,
    stalled: watch::Sender<bool>,
}

#[derive(Debug)]
struct Sockets {
    live: mpsc::Sender<(u64, Bytes)>,
    close: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

// === impl Publisher ===

impl Publisher {
    /// Opens the sockets.
    ///
    /// # Errors
    /// [`PublishError::Endpoint`], [`PublishError::Bind`].
    pub async fn open(mut options: Options) -> Result<Self, PublishError> {
        options.endpoint = transport::for_rank(&options.endpoint, options.rank)?;
        if let Some(replay) = &mut options.replay {
            *replay = transport::for_rank(replay, options.rank)?;
        }
        let shared = Arc::new(Shared {
            topic: Bytes::from(options.topic.clone().into_bytes()),
            layout: options.layout,
            capacity: options.buffer_steps,
            ring: Mutex::default(),
            stalled: watch::Sender::new(false),
        });
        let mut publisher = Self { options, next: 0, shared, sockets: None };
        publisher.attach().await?;
        Ok(publisher)
    }

    /// The PUB socket's endpoint: the bound port where it was 0.
    pub fn endpoint(&self) -> &str {
        &self.options.endpoint
    }

    /// The replay socket's endpoint.
    pub fn replay_endpoint(&self) -> Option<&str> {
        self.options.replay.as_deref()
    }

    /// The sequence number of the next message.
    pub fn next_sequence(&self) -> u64 {
        self.next
    }

    /// Sends a payload under the next sequence number, which it returns.
    ///
    /// # Errors
    /// [`PublishError::Closed`].
    pub async fn publish(&mut self, payload: Bytes) -> Result<u64, PublishError> {
        let sequence = self.keep(payload.clone());
        self.send(sequence, payload).await?;
        Ok(sequence)
    }

    /// Sends a message again under the number it had.
    ///
    /// # Errors
    /// [`PublishError::Closed`].
    pub async fn send(&self, sequence: u64, payload: Bytes) -> Result<(), PublishError> {
        let sockets = self.sockets.as_ref().ok_or(PublishError::Closed)?;
        sockets.live.send((sequence, payload)).await.map_err(|_| PublishError::Closed)
    }

    /// Takes the next number for a payload that only a replay will give.
    pub fn keep(&mut self, payload: Bytes) -> u64 {
        let sequence = self.burn();
        let mut ring = self.shared.ring();
        if ring.len() == self.shared.capacity {
            ring.pop_front();
        }
        if self.shared.capacity > 0 {
            ring.push_back((sequence, payload));
        }
        sequence
    }

    /// Takes the next number for nothing: a batch that could not be encoded. Nobody can ever give it.
    pub fn burn(&mut self) -> u64 {
        let sequence = self.next;
        self.next += 1;
        sequence
    }

    /// Empties the replay ring.
    pub fn forget(&mut self) {
        self.shared.ring().clear();
    }

    /// Stops or resumes both sockets, which stay open: what is published meanwhile waits, and so do replays.
    pub fn stall(&mut self, stalled: bool) {
        self.shared.stalled.send_replace(stalled);
    }

    /// Begins a new life: sequence 0, an empty ring; sockets still open stay open.
    pub fn rewind(&mut self) {
        self.next = 0;
        self.forget();
    }

    /// Closes both sockets, as a process that dies does. Numbers and ring stay until [`Publisher::rewind`].
    pub async fn detach(&mut self) {
        let Some(sockets) = self.sockets.take() else { return };
        sockets.close.cancel();
        for task in sockets.tasks {
            // A task that panicked has closed its socket as well.
            let _ = task.await;
        }
    }

    /// Opens the sockets again, where they were before.
    ///
    /// # Errors
    /// [`PublishError::Bind`].
    pub async fn attach(&mut self) -> Result<(), PublishError> {
        if self.sockets.is_some() {
            return Ok(());
        }
        let close = CancellationToken::new();
        let (live, queue) = mpsc::channel(QUEUE);
        let mut tasks = Vec::new();
        if let Some(replay) = &mut self.options.replay {
            let socket = transport::bind::<zeromq::RouterSocket>(replay).await?;
            tasks.push(tokio::spawn(replay::serve(socket, Arc::clone(&self.shared), close.clone())));
        }
        let task = match self.options.attach {
            Attach::Bind => {
                let bound = transport::bind::<zeromq::PubSocket>(&mut self.options.endpoint).await;
                let socket = match bound {
                    Ok(socket) => socket,
                    Err(error) => {
                        close.cancel();
                        return Err(error);
                    }
                };
                tokio::spawn(live::bound(socket, queue, Arc::clone(&self.shared), close.clone()))
            }
            Attach::Connect => {
                let endpoint = self.options.endpoint.clone();
                tokio::spawn(live::connected(endpoint, queue, Arc::clone(&self.shared), close.clone()))
            }
        };
        tasks.push(task);
        self.sockets = Some(Sockets { live, close, tasks });
        Ok(())
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        if let Some(sockets) = &self.sockets {
            sockets.close.cancel();
        }
    }
}

// === impl Shared ===

impl Shared {
    fn ring(&self) -> MutexGuard<'_, VecDeque<(u64, Bytes)>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once the publisher is not stalled.
    async fn awake(&self) {
        // The sender lives in `self`, so waiting cannot fail.
        let _ = self.stalled.subscribe().wait_for(|stalled| !stalled).await;
    }
}
