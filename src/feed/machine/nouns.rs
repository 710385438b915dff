//! What goes into the machine and what comes out of it.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

use crate::feed::status::State;
use crate::worker::Stamp;

/// A message's payload in 64 bits: two messages of one sequence number and one digest are the same message.
///
/// Payloads carry the publisher's clock, so that the same number in two lives of an engine has two digests.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(pub u64);

/// One message of a feed, live or replayed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message<P> {
    /// Its sequence number.
    pub sequence: u64,
    /// The digest of its payload.
    pub digest: Digest,
    /// How long the payload is, in bytes.
    pub size: usize,
    /// The payload, or a handle to it: the machine only passes it on.
    pub payload: P,
}

/// What of one epoch was applied, without a hole and without a doubt: what a machine can go on from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Past {
    /// The epoch.
    pub epoch: u64,
    /// The last messages that were applied, at least one, by sequence number; the last of them was the last.
    pub messages: Vec<(u64, Digest)>,
}

/// Something that happened to a feed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input<P> {
    /// The link to the publisher stands.
    Connected,
    /// The link to the publisher broke.
    Disconnected,
    /// A live message.
    Live(Message<P>),
    /// At this place in the live messages some were lost on our side of the link.
    Lost,
    /// At this place in the live messages one came whose number cannot be read.
    Unnumbered,
    /// The source names its lives: what comes from here on is of another one.
    OtherLife,
    /// The source names its lives: what comes from here on is of the same one as before the link broke. Nothing new
    /// where there is a replay, which proves it itself.
    SameLife,
    /// A message of the replay that was last asked for.
    Replayed(Message<P>),
    /// A reply of that replay that cannot be read.
    ReplyUnread,
    /// That replay's end marker.
    ReplayEnded,
    /// That replay ended otherwise.
    ReplayFailed(Failure),
    /// A timer that was armed.
    Fired(Timer),
    /// The message applied under this stamp held a clear.
    Cleared(Stamp),
    /// The message applied under this stamp could not be read, in whole or in part.
    Spoiled(Stamp),
}

/// How a replay ended without its end marker.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Failure {
    /// Nothing came for too long, or it took too long in all.
    Timeout,
    /// The endpoint could not be reached, or it broke off.
    Broken,
}

/// What the machine waits for. How long is the business of whoever runs it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Timer {
    /// How long an engine may stay away before its blocks are withdrawn.
    Grace,
    /// How long one recovery may take, all its replays together: live messages wait meanwhile.
    Recovery,
    /// When to try again to rebuild a feed that is incomplete because its replay endpoint failed.
    Rebuild,
    /// When to ask once more what was published while a subscription was on its way.
    SecondLook,
}

/// What is to be done, in the order in which it comes out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command<P> {
    /// Apply this message under this stamp. A clear in it, or a part that could not be read, is told to the machine.
    Apply {
        /// The epoch and the sequence number.
        stamp: Stamp,
        /// What to apply.
        payload: P,
    },
    /// Drop what the rank holds: this epoch begins.
    Begin {
        /// The new epoch.
        epoch: u64,
        /// Why the one before ended.
        cause: Cause,
    },
    /// Ask the replay endpoint for everything from a sequence number on, in place of what is being asked.
    Ask {
        /// The first sequence number wanted.
        from: u64,
        /// How often in a row asking brought nothing new: back off accordingly, with jitter; 0: at once.
        attempt: u32,
    },
    /// Whatever the replay still brings is not wanted.
    StopAsking,
    /// Start a timer, or start it anew; with how often in a row it fired in vain.
    Arm(Timer, u32),
    /// Stop a timer.
    Disarm(Timer),
    /// The feed's state from here on, and why.
    Report(State, Why),
}

/// Why an epoch ended: the closed set of words of [`Status::resets`](crate::feed::status::Status::resets).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Cause {
    /// A live sequence number did not rise: the engine restarted.
    SequenceLower,
    /// A message that we have came again with other bytes: the engine restarted, and hid it in a gap.
    DigestDiffers,
    /// The replay does not know the message we had last, nor any later one: the engine restarted.
    ReplayEmpty,
    /// The replay no longer reaches back to any message we have: nothing proves that it is still the same life.
    Unproven,
    /// The same life, applied once more from its first message because there were holes.
    Rebuilt,
    /// The engine stayed away beyond the grace.
    GraceExpired,
    /// The source named another publisher of this rank's events.
    PublisherChanged,
}

/// How a replay ended: the closed set of words of [`Status::replays`](crate::feed::status::Status::replays).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// It closed every hole.
    Complete,
    /// It ended, and messages are still missing.
    Short,
    /// It held nothing of what was asked.
    Empty,
    /// It stalled.
    Timeout,
    /// It broke off, or could not be asked for.
    Failed,
}

/// Why a feed is in its state. The `Display` form is one sentence for people.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Why {
    /// Connecting: no link was ever there.
    NeverConnected,
    /// Connecting: the link broke.
    Disconnected,
    /// Connecting: the link stands and nothing was published yet, as far as can be known.
    NoMessageYet,
    /// Replaying: what was held before a restart of our own is back, and nothing proves yet that it still is.
    Restored,
    /// Replaying: a first connection.
    LateJoin,
    /// Replaying: the link came back.
    Reconnected,
    /// Replaying: live messages are missing.
    Gap,
    /// Replaying: live messages were lost on our side.
    Overflow,
    /// Replaying: replay and live feed must be joined by a message that both carry.
    Seam,
    /// Replaying: a live message came under a number that no engine reaches.
    Implausible,
    /// Replaying: a live message came whose number cannot be read.
    Unnumbered,
    /// Replaying: the engine restarted.
    Restarted,
    /// Replaying: an incomplete feed is being rebuilt.
    Rebuilding,
    /// Live: nothing was published in this life.
    NoHistory,
    /// Live: everything of this life was applied.
    Whole,
    /// Incomplete: nobody can give missing messages back.
    NoReplayEndpoint,
    /// Incomplete: the link came back, and nothing can prove that the engine did not restart meanwhile.
    NoProofOfEpoch,
    /// Incomplete: the replay endpoint does not answer as it should.
    ReplayFailed,
    /// Incomplete: the replay ended without what is missing, again and again.
    ReplayShort,
    /// Incomplete: the replay no longer reaches back far enough.
    ReplayTooYoung,
    /// Incomplete: the publisher never sent a number that it counted.
    BurnedNumber,
    /// Incomplete: a message could not be read.
    Unreadable,
    /// Incomplete: a message came whose number cannot be read or that no engine reaches, and the replay tells no other.
    Unplaceable,
    /// Gone: the grace is over.
    GraceOver,
}

/// What a feed counted, from its first moment on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// How often messages were found missing.
    pub gaps: u64,
    /// Messages that were missing and never came.
    pub missed: u64,
    /// Messages that came twice.
    pub duplicates: u64,
    /// Messages older than anything that they can be compared with, or too late to be put in their place.
    pub stale: u64,
    /// Live messages under the number that marks a replay's end.
    pub reserved: u64,
    /// Messages, live or replayed, under a number that no engine reaches: they were not believed.
    pub implausible: u64,
    /// Live messages that did not fit while a replay ran; the replay brings them again.
    pub overflowed: u64,
    /// Replays by [`Outcome::index`].
    pub replays: [u64; Outcome::ALL.len()],
    /// Epochs that ended, by [`Cause::index`].
    pub resets: [u64; Cause::ALL.len()],
}

// === impl Past ===

impl Past {
    /// The epoch and the last message.
    pub fn stamp(&self) -> Stamp {
        Stamp { epoch: self.epoch, sequence: self.messages.last().map(|(sequence, _)| *sequence) }
    }
}

// === impl Digest ===

impl Digest {
    /// The digest of a payload: its XXH3-64.
    pub fn of(payload: &[u8]) -> Self {
        Self(xxh3_64(payload))
    }
}

/// A digest is derived from prompts: logs see that there is one, not which.
impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if cfg!(test) { write!(f, "Digest({})", self.0) } else { f.write_str("Digest(..)") }
    }
}

// === impl Cause ===

impl Cause {
    /// Every cause, in the order of [`Cause::index`].
    pub const ALL: [Self; 7] = [
        Self::SequenceLower,
        Self::DigestDiffers,
        Self::ReplayEmpty,
        Self::Unproven,
        Self::Rebuilt,
        Self::GraceExpired,
        Self::PublisherChanged,
    ];

    /// The word of each, in the same order.
    pub const WORDS: [&'static str; 7] = {
        let mut words = [""; 7];
        let mut i = 0;
        while i < 7 {
            words[i] = Self::ALL[i].name();
            i += 1;
        }
        words
    };

    /// A dense number.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The word in metrics and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SequenceLower => "sequence_lower",
            Self::DigestDiffers => "digest_differs",
            Self::ReplayEmpty => "replay_empty",
            Self::Unproven => "unproven",
            Self::Rebuilt => "rebuilt",
            Self::GraceExpired => "grace_expired",
            Self::PublisherChanged => "publisher_changed",
        }
    }
}

// === impl Outcome ===

impl Outcome {
    /// Every outcome, in the order of [`Outcome::index`].
    pub const ALL: [Self; 5] = [Self::Complete, Self::Short, Self::Empty, Self::Timeout, Self::Failed];

    /// The word of each, in the same order.
    pub const WORDS: [&'static str; 5] = {
        let mut words = [""; 5];
        let mut i = 0;
        while i < 5 {
            words[i] = Self::ALL[i].name();
            i += 1;
        }
        words
    };

    /// A dense number.
    pub const fn index(self) -> usize {
        self as usize
    }

    /// The word in metrics and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Complete => "complete",
            Self::Short => "short",
            Self::Empty => "empty",
            Self::Timeout => "timeout",
            Self::Failed => "failed",
        }
    }
}

// === impl Why ===

impl Why {
    /// The sentence.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::NeverConnected => "not connected yet",
            Self::Disconnected => "the link to the engine broke",
            Self::NoMessageYet => "connected, no message yet",
            Self::Restored => "restored from a snapshot, not proven yet to be of the same engine process",
            Self::LateJoin => "connected, asking for what was published before",
            Self::Reconnected => "reconnected, proving that it is the same engine process",
            Self::Gap => "messages are missing, asking for them",
            Self::Overflow => "messages were lost in our own queue, asking for them",
            Self::Seam => "joining the replay to the live feed",
            Self::Implausible => "a message came under a number that no engine reaches, asking what is missing",
            Self::Unnumbered => "a message came whose number cannot be read, asking what is missing",
            Self::Restarted => "the engine restarted, asking for what it published since",
            Self::Rebuilding => "asking once more for the whole history",
            Self::NoHistory => "the engine has published nothing yet",
            Self::Whole => "every message of this epoch was applied",
            Self::NoReplayEndpoint => "messages are missing, and there is no replay endpoint to ask",
            Self::NoProofOfEpoch => "reconnected, no replay endpoint to prove the epoch",
            Self::ReplayFailed => "messages are missing, and the replay endpoint does not answer as it should",
            Self::ReplayShort => "messages are missing, and the replay does not hold them",
            Self::ReplayTooYoung => "messages are missing, and the replay no longer reaches back to them",
            Self::BurnedNumber => "the engine counted a message that it never sent",
            Self::Unreadable => "a message could not be read",
            Self::Unplaceable => "a message came without a number that can be believed: what it held is not known",
            Self::GraceOver => "the engine stayed away beyond the grace, its blocks were withdrawn",
        }
    }
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())
    }
}

// === impl Counters ===

impl Counters {
    pub(super) fn replay(&mut self, outcome: Outcome) {
        if let Some(n) = self.replays.get_mut(outcome.index()) {
            *n += 1;
        }
    }

    pub(super) fn reset(&mut self, cause: Cause) {
        if let Some(n) = self.resets.get_mut(cause.index()) {
            *n += 1;
        }
    }
}
