//! A recording as a feed's source: the runner that reads sockets reads this just the same.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep};

use super::format::{Entry, Record};
use super::ring::Ring;
use crate::feed::link::{Fault, LinkEvent};
use crate::feed::source::{Event, Source};
use crate::feed::status::{self, State};
use crate::wire::frames::{self, END_OF_REPLAY, ReplayFrame};

/// How far is looked ahead for the replies of a replay.
const MAX_AHEAD: usize = 20_000;
const MAX_AHEAD_BYTES: usize = 256 << 20;

/// How often the feed is looked at while it recovers; nothing that is recorded happens meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(1);

/// Plays records to a runner, in their order and as fast as it takes them. Replays are answered from what was recorded
/// up to then, the replies that the recorder itself was given included.
#[derive(Debug)]
pub struct Recorded<I> {
    records: I,
    /// Records that were looked at already.
    ahead: VecDeque<Record>,
    ring: Ring,
    /// What is left of the replay that runs.
    replies: VecDeque<Vec<Bytes>>,
    /// Tells when a recovery is over.
    entry: Arc<status::Entry>,
    heard: Option<Instant>,
}

// === impl Recorded ===

impl<I: Iterator<Item = Record> + Send + 'static> Recorded<I> {
    /// A source for the feed that `entry` describes.
    pub fn new(records: I, entry: Arc<status::Entry>) -> Self {
        Self { records, ahead: VecDeque::new(), ring: Ring::default(), replies: VecDeque::new(), entry, heard: None }
    }

    /// Takes in the replies of the replay that the recorder asked for at this point, wherever in the file they stand.
    fn look_ahead(&mut self) {
        let (mut bytes, mut last) = (0, None);
        let mut kept = VecDeque::new();
        while kept.len() < MAX_AHEAD && bytes < MAX_AHEAD_BYTES {
            let Some(record) = self.ahead.pop_front().or_else(|| self.records.next()) else { break };
            match &record.entry {
                Entry::Reply(frames) => self.replied(frames),
                Entry::ReplayEnded { .. } => break,
                Entry::Connected | Entry::Disconnected => {
                    kept.push_back(record);
                    break;
                }
                Entry::Message(frames) => {
                    bytes += frames.iter().map(Bytes::len).sum::<usize>();
                    let sequence = frames::live(frames).ok().map(|live| live.sequence);
                    kept.push_back(record);
                    // What follows is another life's.
                    if sequence.is_some() && sequence < last {
                        break;
                    }
                    last = sequence.or(last);
                }
                Entry::Lost(_) => kept.push_back(record),
            }
        }
        kept.append(&mut self.ahead);
        self.ahead = kept;
    }

    fn replied(&mut self, frames: &[Bytes]) {
        if let Ok(ReplayFrame::Batch { sequence, payload }) = frames::replay(frames) {
            self.ring.replied(sequence, payload.clone());
        }
    }

    fn play(&mut self, entry: Entry) -> Option<LinkEvent> {
        match entry {
            Entry::Connected => {
                self.look_ahead();
                Some(LinkEvent::Connected)
            }
            Entry::Disconnected => Some(LinkEvent::Disconnected(Fault::Closed)),
            Entry::Lost(messages) => Some(LinkEvent::Overflowed { messages }),
            Entry::Message(frames) => {
                if let Ok(live) = frames::live(&frames) {
                    self.ring.live(live.sequence, live.payload.clone());
                }
                self.heard = Some(Instant::now());
                Some(LinkEvent::Message(frames))
            }
            Entry::Reply(frames) => {
                self.replied(&frames);
                None
            }
            Entry::ReplayEnded { .. } => None,
        }
    }
}

impl<I: Iterator<Item = Record> + Send + 'static> Source for Recorded<I> {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(frames) = self.replies.pop_front() {
                return Some(Event::Reply(frames));
            }
            let state = self.entry.status().state;
            if state == State::Replaying {
                sleep(LOOK_EVERY).await;
                continue;
            }
            let record = self.ahead.pop_front().or_else(|| self.records.next())?;
            if let Some(event) = self.play(record.entry) {
                return Some(Event::Link(event));
            }
        }
    }

    fn ask(&mut self, from: u64) {
        self.look_ahead();
        let number = |sequence: u64| Bytes::copy_from_slice(&sequence.to_be_bytes());
        let batches =
            self.ring.from(from).map(|(sequence, payload)| vec![Bytes::new(), number(sequence), payload.clone()]);
        self.replies = batches.chain([vec![Bytes::new(), number(END_OF_REPLAY), Bytes::new()]]).collect();
    }

    fn stop_asking(&mut self) {
        self.replies.clear();
    }

    fn heard(&self) -> Option<Instant> {
        self.heard
    }

    /// A recording loses nothing: it is read as fast as it is applied.
    fn has_lost(&self) -> bool {
        false
    }
}
