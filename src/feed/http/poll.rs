//! The task that polls one endpoint for all of its ranks.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::HttpEndpoint;
use super::client::{Client, PollError};
use super::events::{self, Event};
use crate::backoff::Backoff;
use crate::feed::drops::Dropped;
use crate::feed::link::{Fault, QueueLimits, QueueReceiver, QueueSender, queue};
use crate::wire::MAX_PAYLOAD;

/// How an endpoint is polled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PollOptions {
    /// Where.
    pub endpoint: HttpEndpoint,
    /// The pause between an answer and the next question.
    pub interval: Duration,
    /// For the connection, the name's resolution included.
    pub connect: Duration,
    /// For a whole answer. Engines hold one back for some seconds while there is nothing to tell.
    pub answer: Duration,
    /// The largest answer, in bytes.
    pub max_bytes: usize,
    /// The first pause after a poll that failed; each next one is twice as long.
    pub first_retry: Duration,
    /// The longest such pause.
    pub longest_retry: Duration,
    /// What waits at most for each rank.
    pub queue: QueueLimits,
}

/// One rank's end.
struct Lane {
    rank: u32,
    queue: QueueSender,
    /// Cancelled once nobody reads.
    unread: CancellationToken,
}

/// How far one rank has come in one life of the engine.
#[derive(Clone, Default)]
struct Life {
    number: u64,
    last: Option<u64>,
}

// === impl PollOptions ===

impl PollOptions {
    /// Every 100 ms, 2 s to connect, 30 s for an answer of at most 64 MiB, retries after 100 ms to 1 s.
    pub fn new(endpoint: HttpEndpoint) -> Self {
        Self {
            endpoint,
            interval: Duration::from_millis(100),
            connect: Duration::from_secs(2),
            answer: Duration::from_secs(30),
            max_bytes: MAX_PAYLOAD,
            first_retry: Duration::from_millis(100),
            longest_retry: Duration::from_secs(1),
            queue: QueueLimits::default(),
        }
    }
}

/// Starts to poll for `ranks`: what comes for each, in their order. Ends once every receiver was dropped.
///
/// Must be called within a tokio runtime.
pub fn poll(options: PollOptions, ranks: impl IntoIterator<Item = u32>) -> Vec<QueueReceiver> {
    let mut lanes = Vec::new();
    let mut receivers = Vec::new();
    for rank in ranks {
        let unread = CancellationToken::new();
        let (sender, receiver) = queue(options.queue, unread.clone().drop_guard());
        lanes.push(Lane { rank, queue: sender, unread });
        receivers.push(receiver);
    }
    tokio::spawn(async move {
        tokio::select! {
            never = run(&options, &lanes) => match never {},
            () = unread(&lanes) => {}
        }
    });
    receivers
}

async fn unread(lanes: &[Lane]) {
    for lane in lanes {
        lane.unread.cancelled().await;
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        self.queue.end();
    }
}

async fn run(options: &PollOptions, lanes: &[Lane]) -> Infallible {
    let PollOptions { endpoint, interval, connect, answer, max_bytes, first_retry, longest_retry, .. } =
        options.clone();
    let mut client = Client::new(endpoint, connect, answer, max_bytes);
    let mut backoff = Backoff::new(first_retry, longest_retry);
    let mut lives = vec![Life::default(); lanes.len()];
    let mut up = false;
    loop {
        let polled = client.get().await.and_then(|body| {
            if !up {
                up = true;
                lanes.iter().for_each(|lane| lane.queue.connected());
            }
            let now = Instant::now();
            lanes.iter().for_each(|lane| lane.queue.heard(now));
            events::split(&body, |event| hand_out(event, lanes, &mut lives)).map_err(PollError::NoEvents)
        });
        match polled {
            Ok(()) => {
                backoff.reset();
                // Many sidecars that were started together need not ask in step.
                sleep(interval.mul_f64(0.9 + fastrand::f64() / 5.0)).await;
            }
            Err(error) => {
                for lane in lanes {
                    let fault = Fault::Poll(error.to_string());
                    if up { lane.queue.disconnected(fault) } else { lane.queue.unreachable(fault) }
                }
                up = false;
                sleep(backoff.wait()).await;
            }
        }
    }
}

/// An event, as the message that a socket would have brought.
fn hand_out(event: Event, lanes: &[Lane], lives: &mut [Life]) {
    let mut pairs = lanes.iter().zip(lives);
    let pair = match event.rank {
        None => pairs.next(),
        Some(rank) => pairs.find(|(lane, _)| lane.rank == rank),
    };
    match pair {
        Some((lane, life)) => {
            let id = event.id;
            lane.queue.numbered(id, life.mark(event));
        }
        None => lanes.iter().take(1).for_each(|lane| lane.queue.rejected(Dropped::OtherRank)),
    }
}

// === impl Life ===

impl Life {
    /// The event's JSON. From the second life on it says which: events carry no time, so that two lives may say the
    /// same in the same bytes, and the state machine tells lives apart by bytes. Nothing is answered twice, so an id
    /// that does not rise is another life's.
    fn mark(&mut self, event: Event) -> Bytes {
        if self.last.is_some_and(|last| event.id <= last) {
            self.number += 1;
        }
        self.last = Some(event.id);
        match event.json.strip_prefix(b"{") {
            Some(fields) if self.number > 0 => {
                let mark = format!("{{\"life\":{},", self.number);
                [mark.as_bytes(), fields].concat().into()
            }
            _ => event.json,
        }
    }
}
