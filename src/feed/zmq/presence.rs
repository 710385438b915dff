//! Who is at the other end of a link, in the terms of its queue.
//!
//! A connecting link has one publisher at a time. A bound one may have several: a restarted engine that comes
//! while its old connection still lingers, or strangers. The reader of the queue is told of publishers that
//! matter: [`LinkEvent::Connected`](super::LinkEvent::Connected) when the first is there, and when another speaks
//! for the first time; [`LinkEvent::Disconnected`](super::LinkEvent::Disconnected) when the last is gone, and,
//! followed at once by `Connected`, when one of several is gone that had spoken. So whoever never says anything
//! disturbs nobody.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use tokio::time::Instant;

use super::Fault;
use crate::feed::drops::Dropped;
use crate::feed::link::QueueSender;

/// The publishers of one link, and the queue they feed.
#[derive(Clone, Debug)]
pub(super) struct Presence {
    queue: QueueSender,
    /// How many are there. Locked while an event that depends on it enters the queue.
    there: Arc<Mutex<usize>>,
}

/// How far a peer has come.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Stage {
    /// It has not completed its handshake.
    Unknown,
    /// It is there, and has said nothing.
    Silent,
    /// It has sent a message.
    Spoke,
}

/// How far one peer has come, shared with whoever decides which peer makes room.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress(Arc<AtomicU8>);

/// One publisher that is there. It has to [`Publisher::leave`], unless the link ends as a whole.
#[derive(Debug)]
pub(super) struct Publisher {
    presence: Presence,
    progress: Progress,
    announced: bool,
    since: Instant,
}

// === impl Presence ===

impl Presence {
    pub(super) fn new(queue: QueueSender) -> Self {
        Self { queue, there: Arc::default() }
    }

    pub(super) fn queue(&self) -> &QueueSender {
        &self.queue
    }

    /// A publisher has completed its handshake.
    pub(super) fn join(&self, progress: &Progress) -> Publisher {
        let now = Instant::now();
        progress.set(Stage::Silent);
        self.queue.heard(now);
        let announced = self.count(|there| {
            *there += 1;
            let first = *there == 1;
            if first {
                self.queue.connected();
            }
            first
        });
        Publisher { presence: self.clone(), progress: progress.clone(), announced, since: now }
    }

    fn count<T>(&self, change: impl FnOnce(&mut usize) -> T) -> T {
        change(&mut self.there.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

// === impl Progress ===

impl Progress {
    fn set(&self, stage: Stage) {
        self.0.store(stage as u8, Ordering::Relaxed);
    }

    pub(super) fn stage(&self) -> Stage {
        match self.0.load(Ordering::Relaxed) {
            0 => Stage::Unknown,
            1 => Stage::Silent,
            _ => Stage::Spoke,
        }
    }
}

// === impl Publisher ===

impl Publisher {
    /// When it completed its handshake.
    pub(super) fn since(&self) -> Instant {
        self.since
    }

    /// Something came, be it a heartbeat.
    pub(super) fn heard(&self, instant: Instant) {
        self.presence.queue.heard(instant);
    }

    /// A message came.
    pub(super) fn message(&mut self, frames: Vec<Bytes>) {
        if !self.announced {
            self.announced = true;
            self.presence.count(|_| self.presence.queue.connected());
        }
        self.progress.set(Stage::Spoke);
        self.presence.queue.message(frames);
    }

    /// A message was turned away, and is missing here.
    pub(super) fn lost(&self, reason: Dropped) {
        self.presence.queue.rejected(reason);
        self.presence.queue.missed();
    }

    /// It is gone.
    pub(super) fn leave(self, fault: Fault) {
        let queue = &self.presence.queue;
        if let Some(reason) = fault.rejection() {
            queue.rejected(reason);
        }
        self.presence.count(|there| {
            *there = there.saturating_sub(1);
            if *there == 0 {
                queue.disconnected(fault);
            } else if self.progress.stage() == Stage::Spoke {
                queue.disconnected(fault);
                queue.connected();
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::feed::link::{LinkEvent, QueueLimits, QueueReceiver, queue};

    fn presence() -> (Presence, QueueReceiver) {
        let (sender, receiver) = queue(QueueLimits::default(), CancellationToken::new().drop_guard());
        (Presence::new(sender), receiver)
    }

    fn told(receiver: &mut QueueReceiver) -> String {
        std::iter::from_fn(|| receiver.try_recv())
            .map(|event| match event {
                LinkEvent::Connected => 'C',
                LinkEvent::Disconnected(_) => 'D',
                LinkEvent::Message(_) => 'm',
                _ => '?',
            })
            .collect()
    }

    #[test]
    fn a_lone_publisher_connects_and_disconnects() {
        let (presence, mut events) = presence();
        let mut engine = presence.join(&Progress::default());
        engine.message(Vec::new());
        engine.leave(Fault::Closed);
        assert_eq!(told(&mut events), "CmD");
    }

    #[test]
    fn a_silent_stranger_disturbs_nobody_when_it_comes_or_goes() {
        let (presence, mut events) = presence();
        let mut engine = presence.join(&Progress::default());
        let stranger = presence.join(&Progress::default());
        engine.message(Vec::new());
        stranger.leave(Fault::Closed);
        engine.message(Vec::new());
        assert_eq!(told(&mut events), "Cmm");
    }

    #[test]
    fn a_restarted_engine_is_told_apart_from_its_lingering_connection() {
        let (presence, mut events) = presence();
        let mut old = presence.join(&Progress::default());
        old.message(Vec::new());
        let mut new = presence.join(&Progress::default());
        new.message(Vec::new());
        new.message(Vec::new());
        old.leave(Fault::Heartbeat);
        new.message(Vec::new());
        new.leave(Fault::Closed);
        assert_eq!(told(&mut events), "CmCmmDCmD");
    }

    #[test]
    fn progress_is_seen_from_outside() {
        let (presence, _events) = presence();
        let progress = Progress::default();
        assert_eq!(progress.stage(), Stage::Unknown);
        let mut publisher = presence.join(&progress);
        assert_eq!(progress.stage(), Stage::Silent);
        publisher.message(Vec::new());
        assert_eq!(progress.stage(), Stage::Spoke);
    }
}
