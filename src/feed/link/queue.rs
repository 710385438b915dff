//! The queue between a link, which only receives, and whoever decodes: bounded, and honest about what it lost.
//!
//! Order is kept among messages, losses, connections and disconnections. When a bound is reached, the newest
//! message is dropped and a loss is recorded in its place; losses in a row become one event. What needs no order
//! (rejections, where the link listens, why it cannot connect) is kept aside, one place each, and comes first.
//! So a queue that nobody reads never grows beyond its bounds, whatever peers do.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::DropGuard;

use super::{Endpoint, Fault};
use crate::feed::drops::Dropped;

/// What a frame and a message cost beyond their bytes.
const FRAME_COST: usize = 32;
const MESSAGE_COST: usize = 64;

/// Connections and disconnections that fit beside a full queue's messages.
const MARKS: usize = 64;

/// What a queue holds at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueLimits {
    /// Messages.
    pub messages: usize,
    /// Bytes of their frames, and a small cost for each frame and message.
    pub bytes: usize,
}

/// What happened on a link.
#[derive(Debug)]
pub enum LinkEvent {
    /// The link is bound here: with the port that the system chose, where 0 was asked for.
    Listening(Endpoint),
    /// An attempt to connect or to bind failed; the next follows. Only the latest is kept.
    Unreachable(Fault),
    /// A publisher is there and the subscription is on its way. Messages may have been missed before. On a bound
    /// link this may come again while connected: another publisher speaks for the first time.
    Connected,
    /// The publisher is gone, for this reason.
    Disconnected(Fault),
    /// A message, by its frames.
    Message(Vec<Bytes>),
    /// So many messages came here and were dropped, because the queue was full.
    Overflowed {
        /// How many.
        messages: u64,
    },
    /// Messages are missing here that never came: the numbers of a publisher that several ranks share show it.
    Missed,
    /// A message came here whose number cannot be read.
    Unread,
    /// What follows is of another life of the publisher, which says so itself.
    OtherLife,
    /// What follows is of the same life as before the last disconnection, as the publisher says itself.
    SameLife,
    /// The publisher's messages have no numbers: those that get lost cannot be noticed.
    Unnumbered,
    /// Peers or messages were turned away.
    Rejected {
        /// Why.
        reason: Dropped,
        /// How many since the last such event.
        count: u64,
    },
}

/// The link's end.
#[derive(Clone, Debug)]
pub(in crate::feed) struct QueueSender(Arc<Shared>);

/// The reader's end. Dropping it ends the link.
#[derive(Debug)]
pub struct QueueReceiver {
    shared: Arc<Shared>,
    _link: DropGuard,
}

/// Looks at a queue from outside; the queue does not live for it.
#[derive(Clone, Debug)]
pub struct QueueGauge(Arc<Shared>);

/// What waits in a queue, and what may.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// Messages that wait.
    pub messages: usize,
    /// What they hold, in bytes.
    pub bytes: usize,
    /// The bounds of both.
    pub limits: QueueLimits,
}

#[derive(Debug)]
struct Shared {
    limits: QueueLimits,
    state: Mutex<State>,
    changed: Notify,
    made: Instant,
    /// When something last came, in nanoseconds after it was made and one more; 0: never. Whoever answers reads it for every rank.
    heard: AtomicU64,
    /// There are losses among the events. The reader looks before each message.
    has_lost: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    events: VecDeque<LinkEvent>,
    messages: usize,
    bytes: usize,
    /// Losses among the events.
    losses: usize,
    rejected: BTreeMap<Dropped, u64>,
    listening: Option<Endpoint>,
    unreachable: Option<Fault>,
    unnumbered: bool,
    /// The link's task has ended: nothing more will come.
    ended: bool,
}

/// A queue; dropping its reader's end drops `link`.
pub(in crate::feed) fn queue(limits: QueueLimits, link: DropGuard) -> (QueueSender, QueueReceiver) {
    let (state, changed, made, heard) = (Mutex::default(), Notify::new(), Instant::now(), AtomicU64::new(0));
    let shared = Arc::new(Shared { limits, state, changed, made, heard, has_lost: AtomicBool::new(false) });
    (QueueSender(Arc::clone(&shared)), QueueReceiver { shared, _link: link })
}

// === impl QueueLimits ===

impl Default for QueueLimits {
    /// 65,536 messages, 256 MiB.
    fn default() -> Self {
        Self { messages: 1 << 16, bytes: 256 << 20 }
    }
}

// === impl QueueSender ===

impl QueueSender {
    /// A message came.
    pub(in crate::feed) fn message(&self, frames: Vec<Bytes>) {
        let limits = self.0.limits;
        self.0.change(|state| {
            let cost = cost(&frames);
            if state.messages < limits.messages && state.bytes.saturating_add(cost) <= limits.bytes {
                state.messages += 1;
                state.bytes += cost;
                state.events.push_back(LinkEvent::Message(frames));
            } else {
                state.lose(1);
            }
        });
    }

    /// A message that its transport numbers itself came, where no socket divides it into frames.
    pub(in crate::feed) fn numbered(&self, sequence: u64, payload: Bytes) {
        self.message(vec![Bytes::new(), Bytes::copy_from_slice(&sequence.to_be_bytes()), payload]);
    }

    /// A publisher is there.
    pub(in crate::feed) fn connected(&self) {
        self.mark(LinkEvent::Connected);
    }

    /// The publisher is gone.
    pub(in crate::feed) fn disconnected(&self, fault: Fault) {
        self.mark(LinkEvent::Disconnected(fault));
    }

    /// Messages are missing here.
    pub(in crate::feed) fn missed(&self) {
        self.mark(LinkEvent::Missed);
    }

    /// A message came here whose number cannot be read.
    pub(in crate::feed) fn unread(&self) {
        self.mark(LinkEvent::Unread);
    }

    /// What follows is of another life.
    pub(in crate::feed) fn other_life(&self) {
        self.mark(LinkEvent::OtherLife);
    }

    /// What follows is of the life before the last disconnection.
    pub(in crate::feed) fn same_life(&self) {
        self.mark(LinkEvent::SameLife);
    }

    /// The messages have no numbers.
    pub(in crate::feed) fn unnumbered(&self) {
        self.0.change(|state| state.unnumbered = true);
    }

    /// A peer or a message was turned away.
    pub(in crate::feed) fn rejected(&self, reason: Dropped) {
        self.0.change(|state| *state.rejected.entry(reason).or_default() += 1);
    }

    /// The link is bound.
    pub(in crate::feed) fn listening(&self, endpoint: Endpoint) {
        self.0.change(|state| state.listening = Some(endpoint));
    }

    /// An attempt failed.
    pub(in crate::feed) fn unreachable(&self, fault: Fault) {
        self.0.change(|state| state.unreachable = Some(fault));
    }

    /// Something came at `instant`, be it a heartbeat.
    pub(in crate::feed) fn heard(&self, instant: Instant) {
        let after = instant.saturating_duration_since(self.0.made).as_nanos();
        self.0.heard.store(u64::try_from(after).unwrap_or(u64::MAX).saturating_add(1), Ordering::Relaxed);
    }

    /// Nothing more will come.
    pub(in crate::feed) fn end(&self) {
        self.0.change(|state| state.ended = true);
    }

    fn mark(&self, event: LinkEvent) {
        let limits = self.0.limits;
        self.0.change(|state| {
            // Between any two messages there may be a loss.
            if state.events.len() >= limits.messages.saturating_mul(2).saturating_add(MARKS) {
                state.collapse();
            }
            state.events.push_back(event);
        });
    }
}

// === impl QueueReceiver ===

impl QueueReceiver {
    /// The next event; `None` once the link has ended and everything was read. Can be abandoned at any point.
    pub async fn recv(&mut self) -> Option<LinkEvent> {
        loop {
            // There is one reader, so a wake-up that comes between the look and the wait is kept for it.
            {
                let mut state = self.shared.lock();
                if let Some(event) = self.shared.pop(&mut state) {
                    return Some(event);
                }
                if state.ended {
                    return None;
                }
            }
            self.shared.changed.notified().await;
        }
    }

    /// The next event, where there is one now.
    pub fn try_recv(&mut self) -> Option<LinkEvent> {
        self.shared.pop(&mut self.shared.lock())
    }

    /// Messages that wait.
    pub fn len(&self) -> usize {
        self.shared.lock().messages
    }

    /// Whether no message waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What the waiting messages hold, in bytes.
    pub fn bytes(&self) -> usize {
        self.shared.lock().bytes
    }

    /// Whether messages were lost that its reader has not come to yet: what waits before them is the past.
    pub fn has_lost(&self) -> bool {
        self.shared.has_lost.load(Ordering::Acquire)
    }

    /// A way to look at it from elsewhere.
    pub fn gauge(&self) -> QueueGauge {
        QueueGauge(Arc::clone(&self.shared))
    }

    /// When anything last came from a publisher, be it a heartbeat.
    pub fn last_heard(&self) -> Option<Instant> {
        self.shared.heard()
    }
}

// === impl QueueGauge ===

impl QueueGauge {
    /// What waits now.
    pub fn read(&self) -> Waiting {
        let state = self.0.lock();
        Waiting { messages: state.messages, bytes: state.bytes, limits: self.0.limits }
    }

    /// When anything last came from a publisher, be it a heartbeat.
    pub fn last_heard(&self) -> Option<Instant> {
        self.0.heard()
    }
}

// === impl Shared ===

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn heard(&self) -> Option<Instant> {
        let after = self.heard.load(Ordering::Relaxed).checked_sub(1)?;
        self.made.checked_add(Duration::from_nanos(after))
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        self.has_lost.store(state.losses > 0, Ordering::Release);
        drop(state);
        self.changed.notify_one();
    }

    fn pop(&self, state: &mut State) -> Option<LinkEvent> {
        let event = state.pop();
        self.has_lost.store(state.losses > 0, Ordering::Release);
        event
    }
}

// === impl State ===

impl State {
    fn pop(&mut self) -> Option<LinkEvent> {
        if let Some((reason, count)) = self.rejected.pop_first() {
            return Some(LinkEvent::Rejected { reason, count });
        }
        if let Some(endpoint) = self.listening.take() {
            return Some(LinkEvent::Listening(endpoint));
        }
        if let Some(fault) = self.unreachable.take() {
            return Some(LinkEvent::Unreachable(fault));
        }
        if std::mem::take(&mut self.unnumbered) {
            return Some(LinkEvent::Unnumbered);
        }
        let event = self.events.pop_front()?;
        match &event {
            LinkEvent::Message(frames) => {
                self.messages -= 1;
                self.bytes -= cost(frames);
            }
            LinkEvent::Overflowed { .. } => self.losses -= 1,
            _ => {}
        }
        Some(event)
    }

    fn lose(&mut self, lost: u64) {
        if let Some(LinkEvent::Overflowed { messages }) = self.events.back_mut() {
            *messages += lost;
        } else {
            self.losses += 1;
            self.events.push_back(LinkEvent::Overflowed { messages: lost });
        }
    }

    /// Makes one loss of everything that waits: connections came and went for so long that telling of each would
    /// take more than the bounds.
    fn collapse(&mut self) {
        let lost = self.events.drain(..).map(|event| match event {
            LinkEvent::Message(_) => 1,
            LinkEvent::Overflowed { messages } => messages,
            _ => 0,
        });
        let lost = lost.sum();
        self.messages = 0;
        self.bytes = 0;
        self.losses = 0;
        self.lose(lost);
    }
}

fn cost(frames: &[Bytes]) -> usize {
    frames.iter().fold(MESSAGE_COST, |sum, frame| sum.saturating_add(frame.len()).saturating_add(FRAME_COST))
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn small(messages: usize, bytes: usize) -> (QueueSender, QueueReceiver) {
        queue(QueueLimits { messages, bytes }, CancellationToken::new().drop_guard())
    }

    fn frames(body: &'static [u8]) -> Vec<Bytes> {
        vec![Bytes::from_static(body)]
    }

    /// Everything that waits, in words.
    fn drain(receiver: &mut QueueReceiver) -> Vec<String> {
        std::iter::from_fn(|| receiver.try_recv())
            .map(|event| match event {
                LinkEvent::Message(frames) => format!("message {:?}", frames.concat()[0]),
                LinkEvent::Overflowed { messages } => format!("lost {messages}"),
                LinkEvent::Rejected { reason, count } => format!("rejected {} {count}", reason.word()),
                LinkEvent::Disconnected(fault) => format!("disconnected {}", fault.reason()),
                LinkEvent::Unreachable(fault) => format!("unreachable {}", fault.reason()),
                LinkEvent::Listening(endpoint) => format!("listening {endpoint}"),
                LinkEvent::Connected => "connected".to_owned(),
                LinkEvent::Missed => "missed".to_owned(),
                LinkEvent::Unread => "unread".to_owned(),
                LinkEvent::OtherLife => "other life".to_owned(),
                LinkEvent::SameLife => "same life".to_owned(),
                LinkEvent::Unnumbered => "unnumbered".to_owned(),
            })
            .collect()
    }

    #[test]
    fn a_full_queue_tells_how_many_messages_were_lost_and_where() {
        let (sender, mut receiver) = small(2, usize::MAX);
        sender.connected();
        for body in [b"0", b"1", b"2", b"3"] {
            sender.message(frames(body));
        }
        assert_eq!(receiver.len(), 2);
        assert!(receiver.has_lost());
        assert!(matches!(receiver.try_recv(), Some(LinkEvent::Connected)));
        assert!(matches!(receiver.try_recv(), Some(LinkEvent::Message(_))));
        sender.message(frames(b"4"));
        sender.message(frames(b"5"));
        assert_eq!(drain(&mut receiver), ["message 49", "lost 2", "message 52", "lost 1"]);
        assert_eq!((receiver.len(), receiver.bytes(), receiver.has_lost()), (0, 0, false));
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_looks_from_outside_sees_when_something_was_heard() {
        let (sender, receiver) = small(1, usize::MAX);
        let gauge = receiver.gauge();
        assert_eq!(gauge.last_heard(), None);
        for _ in 0..2 {
            sender.heard(Instant::now());
            assert_eq!(gauge.last_heard().map(|heard| heard.elapsed().as_millis()), Some(0));
            tokio::time::advance(Duration::from_secs(5)).await;
            assert_eq!(gauge.last_heard(), receiver.last_heard());
            assert_eq!(gauge.last_heard().map(|heard| heard.elapsed().as_secs()), Some(5));
        }
    }

    #[test]
    fn bytes_bound_a_queue_as_messages_do() {
        let (sender, mut receiver) = small(100, 2 * cost(&frames(b"xx")));
        for _ in 0..3 {
            sender.message(frames(b"xx"));
        }
        sender.message(frames(&[0; 4096]));
        assert_eq!(receiver.bytes(), 2 * cost(&frames(b"xx")));
        assert_eq!(drain(&mut receiver), ["message 120", "message 120", "lost 2"]);
        // A message that alone exceeds the bound is lost, and no other with it.
        sender.message(frames(&[0; 4096]));
        sender.message(frames(b"xx"));
        assert_eq!(drain(&mut receiver), ["lost 1", "message 120"]);
    }

    #[test]
    fn a_queue_that_nobody_reads_stays_within_its_bounds_whatever_peers_do() {
        let (sender, mut receiver) = small(10, usize::MAX);
        for _ in 0..10_000 {
            sender.rejected(Dropped::NotZmtp);
            sender.unreachable(Fault::ConnectDeadline);
            sender.connected();
            sender.message(frames(b"0"));
            sender.disconnected(Fault::Closed);
        }
        assert!(receiver.shared.lock().events.len() <= 2 * (10 + MARKS));
        let (mut told, mut last) = (0, String::new());
        for event in drain(&mut receiver) {
            told += match event.split_once(' ') {
                Some(("message", _)) => 1,
                Some(("lost", count)) => count.parse().expect("a count"),
                Some(("rejected", count)) => {
                    assert_eq!(count, "not_zmtp 10000");
                    0
                }
                _ => 0,
            };
            last = event;
        }
        assert_eq!(told, 10_000, "every message is either there or counted as lost");
        assert_eq!(last, "disconnected closed");
        assert!(!receiver.has_lost(), "every loss has been told of");
    }

    #[tokio::test]
    async fn reading_waits_for_an_event_and_ends_with_the_link() {
        let (sender, mut receiver) = small(10, usize::MAX);
        let reader = tokio::spawn(async move {
            let first = receiver.recv().await;
            (first, receiver.recv().await.is_none())
        });
        tokio::task::yield_now().await;
        sender.message(frames(b"0"));
        sender.end();
        let (first, ended) = reader.await.expect("the reader");
        assert!(matches!(first, Some(LinkEvent::Message(_))) && ended);
    }

    #[test]
    fn dropping_the_reader_ends_the_link() {
        let link = CancellationToken::new();
        let (_sender, receiver) = queue(QueueLimits::default(), link.clone().drop_guard());
        drop(receiver);
        assert!(link.is_cancelled());
    }
}
