//! What the replay endpoint makes of the question that a sidecar asks it first: everything from 0.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::survey::Survey;
use super::watch::Sequence;
use super::{LONGEST_REPLAY, Target};
use crate::feed::machine::Digest;
use crate::feed::zmq::{Endpoint, Fault, ReplayOptions, replay};
use crate::wire::frames::{self, ReplayFrame};

/// What came of it.
#[derive(Debug)]
pub(super) struct Past {
    pub(super) endpoint: Endpoint,
    pub(super) took: Duration,
    /// Messages that it gave.
    pub(super) replies: u64,
    pub(super) sequence: Sequence,
    /// Frames of a reply, the delimiter included: 3 without a topic, 4 with one.
    pub(super) frames: Option<usize>,
    /// Replies whose frames are not those of a replay, by reason.
    pub(super) malformed: BTreeMap<&'static str, u64>,
    /// It sent its end marker.
    pub(super) ended: bool,
    /// Why it ended without.
    pub(super) fault: Option<Fault>,
    /// Of the messages that came live too: how many were the same, and how many others.
    pub(super) same: u64,
    pub(super) other: u64,
    pub(super) survey: Survey,
}

/// Asks, and reads to the end.
pub(super) async fn ask(target: &Target, options: ReplayOptions, heard: &VecDeque<(u64, Digest)>) -> Past {
    let (began, stop) = (Instant::now(), CancellationToken::new());
    let total = options.total.min(LONGEST_REPLAY);
    let mut past = Past::new(options.endpoint.clone());
    let heard: HashMap<u64, Digest> = heard.iter().copied().collect();
    match replay(ReplayOptions { total, ..options }, 0, &stop) {
        Ok((mut replies, _task)) => {
            while let Some(reply) = replies.recv().await {
                match reply {
                    Ok(frames) => {
                        if past.reply(target, &frames, &heard) {
                            break;
                        }
                    }
                    Err(fault) => {
                        past.fault = Some(fault);
                        break;
                    }
                }
            }
        }
        // Its endpoint was checked before.
        Err(error) => past.fault = Some(Fault::Socket(error.to_string())),
    }
    past.took = began.elapsed();
    past
}

// === impl Past ===

impl Past {
    fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            took: Duration::ZERO,
            replies: 0,
            sequence: Sequence::default(),
            frames: None,
            malformed: BTreeMap::new(),
            ended: false,
            fault: None,
            same: 0,
            other: 0,
            survey: Survey::default(),
        }
    }

    /// Takes a reply; whether it was the last.
    fn reply(&mut self, target: &Target, frames: &[bytes::Bytes], heard: &HashMap<u64, Digest>) -> bool {
        match frames::replay(frames) {
            Ok(ReplayFrame::End) => {
                self.ended = true;
                return true;
            }
            Ok(ReplayFrame::Batch { sequence, payload }) => {
                self.replies += 1;
                self.frames = self.frames.or(Some(frames.len()));
                self.sequence.take(sequence);
                match heard.get(&sequence) {
                    Some(digest) if *digest == Digest::of(payload) => self.same += 1,
                    Some(_) => self.other += 1,
                    None => {}
                }
                self.survey.look(target.dialect, payload, None);
            }
            Err(error) => *self.malformed.entry(error.reason()).or_default() += 1,
        }
        false
    }

    /// The shape of its replies, in words.
    pub(super) fn layout(&self) -> Option<&'static str> {
        self.frames.map(|frames| if frames >= 4 { "with topic" } else { "without topic" })
    }
}
