//! The state machine of one feed: order, loss, restart. Pure: no clock, no I/O, no payload is ever looked at.
//!
//! ```text
//! link, live messages, replayed messages, timers  --Input-->  Machine  --Command-->  apply, begin, ask, report
//! ```
//!
//! Its one promise: while it reports [`State::Live`], the messages applied in this epoch are all those that one
//! life of the engine published, from its first (or from a clear on), each once and in order. What it cannot
//! prove it does not call live.
//!
//! How it proves it:
//!
//! * **Order.** A message is applied when it is the next one. Any other live message starts a *recovery*: the
//!   replay endpoint is asked, and what arrives live waits in a bounded buffer.
//! * **Same life.** A replay is asked from the last message that we have, and nothing of it is taken before that
//!   message came again with the same digest. Other bytes, or no such message and nothing later either: the
//!   engine restarted. Something later only: the replay no longer reaches back, nothing can be compared, and the
//!   blocks held may be a dead engine's; they are dropped ([`Cause::Unproven`]) and the feed is incomplete.
//! * **Joined.** Replay and live feed are two sockets. What waits is appended only once both have carried the
//!   same message since the live feed's last break (a connection, a gap, a loss on our side), so that a restart
//!   between the two is not spliced either. A publisher's number 0, live, is the beginning of a life and needs
//!   neither.
//! * **A second look.** A publisher may take note of a subscription only after it has answered the replay; what it publishes in
//!   between is in neither. So a link on which nothing was heard when its replay had ended is asked for a replay once more, a
//!   moment later. The feed stays live meanwhile, since nothing is known to be missing, and whatever may then be missing is
//!   followed by a live message that shows it.
//! * **Complete.** An end marker proves nothing: numbers must be contiguous, and nothing may have been lost since the
//!   replay was asked for. A hole is asked for again from the
//!   message before it; a hole that a second replay shows again is a number that was burned, or fell out of the
//!   engine's buffer, and the feed stays incomplete until a clear, a new epoch or a rebuild.
//! * **An end.** A recovery ends: [`MAX_ROUNDS`] replays, [`MAX_VAIN`] in a row without anything new, one timer
//!   over all of it. Then what waits is applied, and the feed is incomplete.
//! * **Rebuild.** A message found late cannot be put into what was applied after it. So an incomplete feed is
//!   healed as a whole: asked from 0, and if the replay still begins there, everything is dropped and applied
//!   once more. That is a new epoch number though it is the same life: a follower of (epoch, sequence) never
//!   sees a sequence run backwards. It is tried on a reconnection and, after a replay endpoint failed, on a timer.
//! * **Plausible.** A number that no engine reaches (2^32 past the last one, 2^40 at the beginning), or that cannot be read, is never believed:
//!   its message is counted and dropped, and the replay is asked what is missing. If that tells a number that fits, all
//!   is well; if it tells the same nonsense, or there is none, the feed is incomplete until a clear or a new epoch. What
//!   comes later under its proper number is applied as ever.
//! * **Restart.** A live number that does not rise is the same message twice (its digest says so) or a restart.
//!   Without a replay endpoint a reconnection cannot be proven: the feed is incomplete until a clear or a lower
//!   number.
//! * **Named lives.** A source whose publishers have names says so where one takes another's place, and where a link
//!   came back to the same one ([`Input::OtherLife`], [`Input::SameLife`]): no bytes are compared then.
//! * **Our own restart** is a broken link to the machine: [`Machine::resume`] goes on from the [`Past`] of another
//!   machine, which is proven like that of a reconnection, and withdrawn like it where the engine stays away.
//! * **Silence is not death.** Only a broken link ends `live`; only the grace withdraws blocks.

mod buffer;
mod history;
mod nouns;
mod recovery;

#[cfg(test)]
mod random;
#[cfg(test)]
mod table;

use std::collections::VecDeque;

use self::buffer::Buffer;
use self::history::{History, Place, Seen};
use self::recovery::Recovery;
use super::status::State;
use crate::wire::frames::END_OF_REPLAY;

pub use self::buffer::Limits;
pub use self::nouns::{Cause, Command, Counters, Digest, Failure, Input, Message, Outcome, Past, Timer, Why};
pub use self::recovery::{MAX_ROUNDS, MAX_VAIN};

/// One feed.
#[derive(Debug)]
pub struct Machine<P> {
    replayable: bool,
    link: Link,
    history: History,
    /// Live messages that wait for the recovery; empty outside of one.
    buffer: Buffer<P>,
    /// The newest live message of this connection.
    tail: Option<(u64, Digest)>,
    join: Join,
    /// Our side has lost messages after the newest one: the gap that will show has been counted.
    loss_noted: bool,
    /// The replay of this link was asked for once more.
    looked_again: bool,
    /// A message without a number came after the newest one, and nobody can be asked: the next number will show what it was.
    unnumbered: bool,
    /// Live messages in a row whose numbers were not believed.
    disbelieved: u32,
    recovery: Option<Recovery>,
    /// Rebuilds in a row that did not heal.
    rebuilds: u32,
    /// Restarts in a row that were not recovered from.
    restarts: u32,
    counters: Counters,
    reported: (State, Why),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Link {
    Never,
    Up,
    Down,
    /// Down beyond the grace.
    Gone,
}

/// Whether the live feed and what was applied are known to be of one life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Join {
    Proven,
    /// The live feed is unbroken from this number on; a replay must carry one of its messages.
    Wanted {
        from: u64,
    },
}

type Out<P> = VecDeque<Command<P>>;

// === impl Machine ===

impl<P> Machine<P> {
    /// A feed that was never connected; `replayable`: it has a replay endpoint.
    pub fn new(replayable: bool, limits: Limits) -> Self {
        Self {
            replayable,
            link: Link::Never,
            history: History::default(),
            buffer: Buffer::new(limits),
            tail: None,
            join: Join::Wanted { from: 0 },
            loss_noted: false,
            looked_again: false,
            unnumbered: false,
            disbelieved: 0,
            recovery: None,
            rebuilds: 0,
            restarts: 0,
            counters: Counters::default(),
            reported: (State::Connecting, Why::NeverConnected),
        }
    }

    /// A feed that was followed before, up to `past`, and has a replay endpoint. What `past` led to is held, and not
    /// live before it is proven.
    ///
    /// The first commands to carry out are appended to `out`.
    pub fn resume(past: Past, limits: Limits, out: &mut VecDeque<Command<P>>) -> Self {
        let mut machine = Self { history: History::resume(past), ..Self::new(true, limits) };
        // An engine that is not there is not waited for longer than one that went away.
        out.push_back(Command::Arm(Timer::Grace, 0));
        machine.report(out.len(), out);
        machine
    }

    /// The same feed for a first connection, whose first epoch is `epoch`: numbers before it were used.
    pub fn begin_at(epoch: u64, replayable: bool, limits: Limits) -> Self {
        Self { history: History::begin_at(epoch), ..Self::new(replayable, limits) }
    }

    /// What a later machine can go on from; `None` where nothing was applied, or not everything.
    pub fn past(&self) -> Option<Past> {
        self.history.past()
    }

    /// What was last reported.
    pub fn state(&self) -> (State, Why) {
        self.reported
    }

    /// What was counted so far.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Takes in what happened, and appends what is to be done about it. What is not live any more is reported before
    /// the rest of it, what is live after.
    pub fn handle(&mut self, input: Input<P>, out: &mut VecDeque<Command<P>>) {
        let before = out.len();
        match input {
            Input::Connected => self.connected(out),
            Input::Disconnected => self.disconnected(out),
            Input::Live(message) => self.live(message, out),
            Input::Lost => self.lost(Why::Overflow, out),
            Input::Unnumbered if !self.replayable => self.unnumbered = true,
            Input::Unnumbered => self.lost(Why::Unnumbered, out),
            Input::OtherLife => self.other_life(out),
            Input::SameLife if !self.replayable => self.history.vouch(0),
            Input::SameLife => {}
            Input::Replayed(message) => self.replayed(message, out),
            Input::ReplyUnread => self.question_round(),
            Input::ReplayEnded => self.replay_ended(out),
            Input::ReplayFailed(failure) => self.replay_failed(failure, out),
            Input::Fired(timer) => self.fired(timer, out),
            Input::Cleared(stamp) => self.history.clear(stamp),
            Input::Spoiled(stamp) => self.history.spoil(stamp),
        }
        self.report(before, out);
    }

    /// Reports a changed verdict: before what stands in `out` from `before` on, where it ends `live`, else after it.
    fn report(&mut self, before: usize, out: &mut Out<P>) {
        let verdict = self.verdict();
        if verdict != self.reported {
            let at = if self.reported.0 == State::Live { before } else { out.len() };
            self.reported = verdict;
            out.insert(at, Command::Report(verdict.0, verdict.1));
        }
    }

    fn verdict(&self) -> (State, Why) {
        match self.link {
            Link::Never if self.history.last().is_some() => return (State::Replaying, Why::Restored),
            Link::Never => return (State::Connecting, Why::NeverConnected),
            Link::Down => return (State::Connecting, Why::Disconnected),
            Link::Gone => return (State::Gone, Why::GraceOver),
            Link::Up => {}
        }
        if let Some(recovery) = self.recovery.as_ref().filter(|recovery| !recovery.is_second_look) {
            return (State::Replaying, recovery.occasion());
        }
        match (self.history.flaw(), self.history.last()) {
            (Some(why), _) => (State::Incomplete, why),
            (None, _) if self.unnumbered => (State::Incomplete, Why::Unplaceable),
            (None, Some(_)) => (State::Live, Why::Whole),
            (None, None) if self.disbelieved > 0 => (State::Incomplete, Why::Unplaceable),
            (None, None) if self.replayable => (State::Live, Why::NoHistory),
            (None, None) => (State::Connecting, Why::NoMessageYet),
        }
    }

    fn connected(&mut self, out: &mut Out<P>) {
        self.break_off(out);
        out.push_back(Command::Disarm(Timer::Grace));
        self.link = Link::Up;
        self.rebuilds = 0;
        match self.history.last() {
            None if self.replayable => self.recover(Why::LateJoin, out),
            Some(_) if self.replayable => self.recover(Why::Reconnected, out),
            None => {}
            Some(_) => self.history.doubt(Why::NoProofOfEpoch),
        }
    }

    fn disconnected(&mut self, out: &mut Out<P>) {
        if self.link != Link::Up {
            return;
        }
        self.break_off(out);
        out.push_back(Command::Disarm(Timer::Rebuild));
        out.push_back(Command::Disarm(Timer::SecondLook));
        out.push_back(Command::Arm(Timer::Grace, 0));
        self.link = Link::Down;
    }

    /// Forgets everything that belongs to one connection.
    fn break_off(&mut self, out: &mut Out<P>) {
        if self.recovery.take().is_some() {
            out.push_back(Command::StopAsking);
            out.push_back(Command::Disarm(Timer::Recovery));
        }
        self.buffer.clear();
        self.tail = None;
        self.join = Join::Wanted { from: 0 };
        self.loss_noted = false;
        self.unnumbered = false;
        self.looked_again = false;
    }

    fn fired(&mut self, timer: Timer, out: &mut Out<P>) {
        match timer {
            Timer::Grace if matches!(self.link, Link::Down | Link::Never) => {
                self.begin(Cause::GraceExpired, out);
                self.link = Link::Gone;
            }
            Timer::Recovery if self.recovery.is_some() => self.give_up(Why::ReplayFailed, out),
            Timer::Rebuild if self.link == Link::Up && self.recovery.is_none() && self.history.repairable() => {
                self.recover(Why::Rebuilding, out);
            }
            Timer::SecondLook if self.link == Link::Up && !self.looked_again => self.look_again(out),
            Timer::Grace | Timer::Recovery | Timer::Rebuild | Timer::SecondLook => {}
        }
    }

    fn live(&mut self, message: Message<P>, out: &mut Out<P>) {
        let (sequence, digest) = (message.sequence, message.digest);
        if sequence == END_OF_REPLAY {
            self.counters.reserved += 1;
            return self.lost(Why::Implausible, out);
        }
        if self.link != Link::Up {
            // A link that delivers stands, whatever it said before.
            self.connected(out);
        }
        if !self.history.plausible(sequence) {
            self.counters.implausible += 1;
            return self.lost(Why::Implausible, out);
        }
        if self.tail.is_some_and(|(tail, _)| sequence <= tail) || self.history.place(sequence) == Place::Behind {
            return self.live_backwards(message, out);
        }
        if self.recovery.is_some() {
            if sequence == 0 && self.tail.is_none() && self.history.last().is_none() {
                return self.live_beginning(message, out);
            }
            if self.tail.is_some_and(|(tail, _)| sequence - tail > 1) {
                self.live_gap(sequence);
            }
            return self.wait(message);
        }
        match self.history.place(sequence) {
            Place::Next if !self.replayable || sequence == 0 || self.join == Join::Proven => {
                self.join = Join::Proven;
                self.heard(sequence, digest);
                self.history.reached();
                self.apply(message, Why::Whole, out);
            }
            Place::Next => {
                self.wait(message);
                self.recover(Why::Seam, out);
            }
            Place::Ahead { .. } if self.replayable => {
                self.live_gap(sequence);
                self.wait(message);
                self.recover(Why::Gap, out);
            }
            Place::Ahead { .. } => {
                self.live_gap(sequence);
                self.heard(sequence, digest);
                self.apply(message, Why::NoReplayEndpoint, out);
            }
            Place::Behind => self.live_backwards(message, out),
        }
    }

    /// A live number that does not rise: the same message twice, one that a replay brought first, or a restart.
    fn live_backwards(&mut self, message: Message<P>, out: &mut Out<P>) {
        let (sequence, digest) = (message.sequence, message.digest);
        let newest = self.tail.filter(|(tail, _)| *tail == sequence).map(|(_, digest)| digest);
        if let Some(live) = newest.or(self.buffer.digest(sequence)) {
            if live == digest {
                self.counters.duplicates += 1;
                return;
            }
            return self.live_restart(message, out);
        }
        let rises = self.tail.is_none_or(|(tail, _)| sequence > tail);
        match self.history.compare(sequence, digest) {
            Seen::Same => {
                self.counters.duplicates += 1;
                if !rises {
                    // The live feed restarted, and the replay was quicker: what waits is the dead engine's.
                    self.buffer.clear();
                    self.join = Join::Wanted { from: sequence };
                } else if self.tail.is_some_and(|(tail, _)| sequence - tail > 1) {
                    self.live_gap(sequence);
                }
                self.heard(sequence, digest);
                self.vouch(sequence);
                self.history.reached();
            }
            Seen::Unknown if rises && self.may_lag(sequence) => {
                self.counters.stale += 1;
                if self.tail.is_some_and(|(tail, _)| sequence - tail > 1) {
                    self.live_gap(sequence);
                }
                self.heard(sequence, digest);
                if self.recovery.is_none() && self.join != Join::Proven {
                    self.recover(Why::Seam, out);
                }
            }
            Seen::Unknown | Seen::Differs => self.live_restart(message, out),
        }
    }

    fn live_restart(&mut self, message: Message<P>, out: &mut Out<P>) {
        let (sequence, digest) = (message.sequence, message.digest);
        self.begin(Cause::SequenceLower, out);
        self.buffer.clear();
        self.tail = None;
        if sequence == 0 {
            return self.live_beginning(message, out);
        }
        self.live_gap(sequence);
        if !self.replayable {
            self.heard(sequence, digest);
            return self.apply(message, Why::NoReplayEndpoint, out);
        }
        self.wait(message);
        self.recover_restart(out);
    }

    /// The source says that the publisher is another one.
    fn other_life(&mut self, out: &mut Out<P>) {
        self.begin(Cause::PublisherChanged, out);
        self.buffer.clear();
        self.tail = None;
        if self.replayable && self.link == Link::Up {
            self.recover_restart(out);
        }
    }

    /// Whether a live message below the last one, of which nothing more is known, may be one that a replay
    /// overtook, or brings too late what the replay lacked. The same replay endpoint then tells a restart apart.
    fn may_lag(&self, sequence: u64) -> bool {
        self.replayable && sequence > 0 && !self.history.in_doubt()
    }

    /// A publisher's first message, live: whatever a replay could bring would be the same.
    fn live_beginning(&mut self, message: Message<P>, out: &mut Out<P>) {
        if self.recovery.is_some() {
            self.end_recovery(out);
        }
        self.join = Join::Proven;
        self.heard(message.sequence, message.digest);
        self.apply(message, Why::Whole, out);
    }

    /// Live messages before `sequence` are missing, and the engine may have restarted meanwhile.
    fn live_gap(&mut self, sequence: u64) {
        self.is_more_than_a_look();
        self.counters.gaps += u64::from(!self.loss_noted);
        self.join = Join::Wanted { from: sequence };
    }

    /// Live messages after the newest one were lost on our side, or one came that cannot be put in its place.
    fn lost(&mut self, occasion: Why, out: &mut Out<P>) {
        if self.link != Link::Up {
            return;
        }
        let next = self.tail.map_or(0, |(tail, _)| tail.saturating_add(1)).max(self.history.next());
        self.live_gap(next);
        self.loss_noted = true;
        // The replay that runs may have been served before they were published.
        self.question_round();
        let unplaced = occasion != Why::Overflow;
        let vain = if unplaced { self.disbelieved.min(MAX_VAIN) } else { 0 };
        self.disbelieved = self.disbelieved.saturating_add(u32::from(unplaced));
        if !self.replayable {
            let why = if unplaced { Why::Unplaceable } else { Why::NoReplayEndpoint };
            self.history.puncture(next.saturating_add(1), why);
        } else if self.recovery.is_none() {
            // A publisher that counts nonsense all the time is asked ever more slowly.
            self.recover_from(occasion, vain, out);
        }
    }

    fn heard(&mut self, sequence: u64, digest: Digest) {
        self.tail = Some((sequence, digest));
        self.loss_noted = false;
        self.unnumbered = false;
        self.disbelieved = 0;
    }

    fn wait(&mut self, message: Message<P>) {
        self.is_more_than_a_look();
        self.heard(message.sequence, message.digest);
        self.counters.overflowed += self.buffer.push(message);
    }

    /// The message that live feed and history have both carried says that they are of one life.
    fn vouch(&mut self, sequence: u64) {
        self.history.vouch(sequence);
        if let Join::Wanted { from } = self.join
            && sequence >= from
        {
            self.join = Join::Proven;
        }
    }

    /// Applies the next message, or one past it: what stands between is missing because of `why`.
    fn apply(&mut self, message: Message<P>, why: Why, out: &mut Out<P>) {
        if let Place::Ahead { missing } = self.history.place(message.sequence) {
            self.counters.missed = self.counters.missed.saturating_add(missing);
        }
        let stamp = self.history.apply(message.sequence, message.digest, why);
        out.push_back(Command::Apply { stamp, payload: message.payload });
    }

    /// Drops the history. What was proven of it says nothing of the next.
    fn begin(&mut self, cause: Cause, out: &mut Out<P>) {
        if self.join == Join::Proven {
            self.join = Join::Wanted { from: 0 };
        }
        if let Some(epoch) = self.history.begin() {
            self.counters.reset(cause);
            out.push_back(Command::Begin { epoch, cause });
        }
    }
}
