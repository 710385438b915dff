//! The live feed, for a while.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use super::Target;
use super::survey::Survey;
use crate::feed::machine::Digest;
use crate::feed::zmq::{Endpoint, Fault, LinkEvent, SubOptions, subscribe};
use crate::wire::frames;

/// Messages that a replay is compared with, the newest.
const COMPARED: usize = 4096;

/// Topics that are remembered where none fits, and how much of each.
const TOPICS: usize = 8;
const TOPIC_CHARS: usize = 64;

/// What came, and what did not.
#[derive(Debug, Default)]
pub(super) struct Live {
    /// How long was watched.
    pub(super) took: Duration,
    /// Where it listens, if it is bound.
    pub(super) listening: Option<Endpoint>,
    /// How long after the start the first connection stood.
    pub(super) connected: Option<Duration>,
    pub(super) disconnects: u32,
    /// Why it last could not be connected, or was cut off.
    pub(super) fault: Option<Fault>,
    /// Peers turned away, by reason.
    pub(super) turned_away: BTreeMap<&'static str, u64>,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    /// Messages under other topics than the configured one, and some of these topics.
    pub(super) off_topic: u64,
    pub(super) topics: BTreeSet<String>,
    /// Messages whose frames are not those of an event message, by reason.
    pub(super) malformed: BTreeMap<&'static str, u64>,
    pub(super) sequence: Sequence,
    /// The newest messages, by number.
    pub(super) heard: VecDeque<(u64, Digest)>,
    pub(super) survey: Survey,
}

/// Whether numbers follow one another.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Sequence {
    pub(super) first: Option<u64>,
    pub(super) last: Option<u64>,
    /// How often some were missing, and how many in all.
    pub(super) gaps: u64,
    pub(super) missed: u64,
    pub(super) repeated: u64,
    /// How often it began again from a lower number.
    pub(super) restarts: u64,
}

/// Watches for `duration`.
pub(super) async fn live(target: &Target, duration: Duration) -> Live {
    let mut live = Live::default();
    let began = Instant::now();
    let stop = CancellationToken::new();
    let options = SubOptions { topic: String::new(), ..target.link.clone() };
    // Its endpoint was checked before; what fails later is an event.
    let Ok((mut events, _link)) = subscribe(options, &stop) else { return live };
    while let Ok(Some(event)) = timeout_at(began + duration, events.recv()).await {
        match event {
            LinkEvent::Listening(endpoint) => live.listening = Some(endpoint),
            LinkEvent::Unreachable(fault) => live.fault = Some(fault),
            LinkEvent::Connected => {
                live.connected = live.connected.or(Some(began.elapsed()));
                live.fault = None;
            }
            LinkEvent::Disconnected(fault) => {
                live.disconnects += 1;
                live.fault = Some(fault);
            }
            LinkEvent::Rejected { reason, count } => *live.turned_away.entry(reason.word()).or_default() += count,
            // Numbers show it as a gap.
            LinkEvent::Overflowed { .. } => {}
            // Nothing that a socket says.
            LinkEvent::Missed
            | LinkEvent::Unread
            | LinkEvent::OtherLife
            | LinkEvent::SameLife
            | LinkEvent::Unnumbered => {}
            LinkEvent::Message(frames) => live.message(target, &frames),
        }
    }
    live.took = began.elapsed();
    stop.cancel();
    live
}

// === impl Live ===

impl Live {
    fn message(&mut self, target: &Target, frames: &[Bytes]) {
        let topic = frames.first().map_or(&b""[..], |topic| topic);
        if !topic.starts_with(target.topic.as_bytes()) {
            self.off_topic += 1;
            if self.topics.len() < TOPICS {
                let shown = String::from_utf8_lossy(topic).chars().take(TOPIC_CHARS).collect::<String>();
                self.topics.insert(shown.escape_default().to_string());
            }
            return;
        }
        self.messages += 1;
        self.bytes += frames.iter().map(|frame| frame.len() as u64).sum::<u64>();
        let live = match frames::live(frames) {
            Ok(live) => live,
            Err(error) => {
                *self.malformed.entry(error.reason()).or_default() += 1;
                return;
            }
        };
        self.sequence.take(live.sequence);
        if self.heard.len() == COMPARED {
            self.heard.pop_front();
        }
        self.heard.push_back((live.sequence, Digest::of(live.payload)));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |now| now.as_secs_f64());
        self.survey.look(target.dialect, live.payload, Some(now));
    }

    /// Per second.
    pub(super) fn rate(&self, count: u64) -> f64 {
        count as f64 / self.took.as_secs_f64().max(1e-3)
    }
}

// === impl Sequence ===

impl Sequence {
    pub(super) fn take(&mut self, sequence: u64) {
        self.first = self.first.or(Some(sequence));
        match self.last {
            Some(last) if sequence == last => self.repeated += 1,
            Some(last) if sequence < last => self.restarts += 1,
            Some(last) if sequence - last > 1 => {
                self.gaps += 1;
                self.missed = self.missed.saturating_add(sequence - last - 1);
            }
            _ => {}
        }
        self.last = Some(sequence);
    }
}
