//! One recovery: from the moment messages are missing until they were applied, or given up.
//!
//! It consists of rounds. Each asks for everything from the last message that we have, takes what proves to be
//! the same life and contiguous, and is judged when it ends.

use super::history::{Place, Seen};
use super::nouns::{Cause, Command, Digest, Failure, Message, Outcome, Timer, Why};
use super::{Join, Machine, Out};
use crate::wire::frames::END_OF_REPLAY;

/// How many replays one recovery may ask for.
pub const MAX_ROUNDS: u32 = 32;

/// How many of them in a row may bring nothing new.
pub const MAX_VAIN: u32 = 3;

/// What one recovery knows.
#[derive(Debug)]
pub(super) struct Recovery {
    occasion: Why,
    /// Replays asked for, this one included.
    rounds: u32,
    /// Replays in a row that brought nothing new.
    vain: u32,
    /// The message before a hole that an earlier round has shown: seen twice, it is there to stay.
    stuck: Option<u64>,
    /// The last replay did not reach its end.
    failed: bool,
    /// Nothing is known to be missing.
    pub(super) is_second_look: bool,
    round: Round,
}

/// What one replay has brought so far.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// From where it was asked.
    from: u64,
    /// Messages that came.
    replies: u64,
    /// It has carried the last message that we had, or we had none: what follows is of the same life.
    proven: bool,
    /// Something was applied.
    progress: bool,
    /// A hole was met: the rest is not looked at.
    holed: bool,
    /// It has carried a number that no engine reaches, and nothing after it yet.
    odd: bool,
    /// Something was lost since it was asked for, or a reply of it could not be read: it does not show what is missing.
    questionable: bool,
    /// The message that came after the last such number: its place is before that.
    odd_before: Option<u64>,
}

// === impl Recovery ===

impl Recovery {
    pub(super) fn occasion(&self) -> Why {
        self.occasion
    }
}

// === impl Machine ===

impl<P> Machine<P> {
    pub(super) fn recover(&mut self, occasion: Why, out: &mut Out<P>) {
        self.recover_from(occasion, 0, out);
    }

    pub(super) fn recover_from(&mut self, occasion: Why, vain: u32, out: &mut Out<P>) {
        out.push_back(Command::Disarm(Timer::Rebuild));
        out.push_back(Command::Arm(Timer::Recovery, 0));
        let (stuck, round) = (None, Round::default());
        self.ask(Recovery { occasion, rounds: 0, vain, stuck, failed: false, is_second_look: false, round }, out);
    }

    /// Asks once more on a link that is silent.
    pub(super) fn look_again(&mut self, out: &mut Out<P>) {
        if self.recovery.is_some() || self.tail.is_some() {
            return;
        }
        self.looked_again = true;
        self.recover(Why::Seam, out);
        if let Some(recovery) = &mut self.recovery {
            recovery.is_second_look = true;
        }
    }

    /// Something is known to be missing, or to wait.
    pub(super) fn is_more_than_a_look(&mut self) {
        if let Some(recovery) = &mut self.recovery {
            recovery.is_second_look = false;
        }
    }

    /// The engine restarted, once more. A publisher that always runs backwards is asked ever more slowly.
    pub(super) fn recover_restart(&mut self, out: &mut Out<P>) {
        let vain = self.restarts.min(MAX_VAIN);
        self.restarts = self.restarts.saturating_add(1);
        self.is_more_than_a_look();
        match self.recovery.take() {
            None => self.recover_from(Why::Restarted, vain, out),
            Some(recovery) => {
                let vain = recovery.vain + 1;
                self.recover_again(Recovery { occasion: Why::Restarted, vain, stuck: None, ..recovery }, out);
            }
        }
    }

    /// Asks once more, unless that was done often enough.
    pub(super) fn recover_again(&mut self, recovery: Recovery, out: &mut Out<P>) {
        if recovery.rounds < MAX_ROUNDS && recovery.vain <= MAX_VAIN {
            return self.ask(recovery, out);
        }
        let why = if recovery.failed { Why::ReplayFailed } else { Why::ReplayShort };
        self.recovery = Some(recovery);
        self.give_up(why, out);
    }

    fn ask(&mut self, recovery: Recovery, out: &mut Out<P>) {
        // An incomplete history is better asked for as a whole: a replay that still reaches back to 0 heals it.
        let from = if self.history.repairable() { 0 } else { self.history.last().unwrap_or(0) };
        let round = Round { from, proven: self.history.last().is_none(), ..Round::default() };
        out.push_back(Command::Ask { from, attempt: recovery.vain });
        self.recovery = Some(Recovery { rounds: recovery.rounds + 1, round, ..recovery });
    }

    /// The recovery is over, one way or the other; nothing waits any more.
    pub(super) fn end_recovery(&mut self, out: &mut Out<P>) {
        self.recovery = None;
        out.push_back(Command::StopAsking);
        out.push_back(Command::Disarm(Timer::Recovery));
        self.buffer.clear();
    }

    pub(super) fn replayed(&mut self, message: Message<P>, out: &mut Out<P>) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        let (sequence, digest) = (message.sequence, message.digest);
        let round = &mut recovery.round;
        if round.holed || sequence == END_OF_REPLAY {
            return;
        }
        if !self.history.plausible(sequence) {
            // What follows in its order shows whether anything is missing before it.
            self.counters.implausible += 1;
            round.odd = true;
            return;
        }
        if std::mem::take(&mut round.odd) {
            round.odd_before = Some(sequence);
        }
        round.replies += 1;
        if round.replies == 1 && round.from == 0 && self.history.repairable() {
            if sequence == 0 {
                round.proven = true;
                self.begin(Cause::Rebuilt, out);
                return self.take(message, Why::Whole, out);
            }
            self.history.give_up_repair();
        }
        let proven = round.proven;
        match self.history.place(sequence) {
            Place::Behind => match self.history.compare(sequence, digest) {
                Seen::Same => {
                    if self.history.last() == Some(sequence) {
                        round.proven = true;
                    }
                    self.history.vouch(sequence);
                    self.meet_live(sequence, digest, out);
                }
                Seen::Differs => self.renew(Cause::DigestDiffers, out),
                Seen::Unknown => self.counters.stale += u64::from(sequence < round.from),
            },
            // The replay reaches back, and lost the one message that proves: ask for that.
            Place::Next | Place::Ahead { .. } if !proven && round.replies > 1 => round.holed = true,
            // The first reply can be compared with nothing: the replay does not reach back to what we have.
            Place::Next | Place::Ahead { .. } if !proven => {
                round.proven = true;
                self.begin(Cause::Unproven, out);
                self.take_past_hole(message, Why::ReplayTooYoung, out);
            }
            Place::Next => self.take(message, Why::Whole, out),
            Place::Ahead { .. } if self.history.last().is_none() => {
                self.take_past_hole(message, Why::ReplayTooYoung, out);
            }
            Place::Ahead { .. } if recovery.stuck == self.history.last() || recovery.rounds == MAX_ROUNDS => {
                self.take_past_hole(message, Why::BurnedNumber, out);
            }
            Place::Ahead { .. } => {
                recovery.stuck = self.history.last();
                round.holed = true;
            }
        }
    }

    fn take_past_hole(&mut self, message: Message<P>, why: Why, out: &mut Out<P>) {
        // The last chance: what the replay lacks may wait among the live messages of the same life.
        self.settle(out);
        match self.history.place(message.sequence) {
            Place::Next => self.take(message, Why::Whole, out),
            Place::Ahead { .. } => {
                self.take(message, why, out);
                if self.history.flaw() == Some(why) {
                    self.history.give_up_repair();
                }
            }
            Place::Behind => {
                if self.history.compare(message.sequence, message.digest) == Seen::Differs {
                    self.renew(Cause::DigestDiffers, out);
                }
            }
        }
    }

    /// Applies a replayed message.
    fn take(&mut self, message: Message<P>, why: Why, out: &mut Out<P>) {
        if !self.meet_live(message.sequence, message.digest, out) {
            return;
        }
        if let Some(recovery) = self.recovery.as_mut() {
            recovery.round.progress = true;
        }
        self.apply(message, why, out);
    }

    /// The replay carries a number that may have come live too: then the bytes must be the same. Returns whether
    /// nothing speaks against that.
    fn meet_live(&mut self, sequence: u64, digest: Digest, out: &mut Out<P>) -> bool {
        // What waits under lower numbers the replay does not know, twice: it is counted as missing.
        while self.buffer.front().is_some_and(|live| live.sequence < sequence) {
            self.buffer.pop();
        }
        let waiting = self.buffer.front().filter(|live| live.sequence == sequence).map(|live| live.digest);
        let newest = self.tail.filter(|(tail, _)| *tail == sequence).map(|(_, digest)| digest);
        match waiting.or(newest) {
            None => true,
            Some(live) if live == digest => {
                if waiting.is_some() {
                    self.buffer.pop();
                    self.counters.duplicates += 1;
                }
                self.vouch(sequence);
                true
            }
            Some(_) => {
                // One of them is a dead engine's. A replay from the beginning tells.
                self.buffer.clear();
                self.tail = None;
                self.join = Join::Wanted { from: 0 };
                self.renew(Cause::DigestDiffers, out);
                false
            }
        }
    }

    /// Another life's messages: begin again.
    fn renew(&mut self, cause: Cause, out: &mut Out<P>) {
        self.begin(cause, out);
        self.is_more_than_a_look();
        if let Some(recovery) = self.recovery.take() {
            self.recover_again(Recovery { occasion: Why::Restarted, stuck: None, ..recovery }, out);
        }
    }

    pub(super) fn replay_ended(&mut self, out: &mut Out<P>) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        recovery.failed = false;
        let round = recovery.round;
        if !round.proven && !round.holed {
            // Not even the message we had last: another life, which has not come as far.
            self.counters.replay(Outcome::Empty);
            if round.replies > 0 || round.from > 0 {
                return self.renew(Cause::ReplayEmpty, out);
            }
            self.begin(Cause::ReplayEmpty, out);
        }
        if !round.holed && self.settle(out) && !round.questionable {
            if round.proven {
                self.counters.replay(if round.replies == 0 { Outcome::Empty } else { Outcome::Complete });
            }
            return self.finish(out);
        }
        if round.proven {
            self.counters.replay(Outcome::Short);
        }
        self.next_round(out);
    }

    pub(super) fn replay_failed(&mut self, failure: Failure, out: &mut Out<P>) {
        let Some(recovery) = self.recovery.as_mut() else { return };
        recovery.failed = true;
        let round = recovery.round;
        self.counters.replay(match failure {
            Failure::Timeout => Outcome::Timeout,
            Failure::Broken => Outcome::Failed,
        });
        // Old servers lose end markers. It is not missed where the replay has met the live feed.
        let joined = round.proven && !round.holed && self.tail.is_some() && self.join == Join::Proven;
        if joined && self.settle(out) && !round.questionable {
            return self.finish(out);
        }
        self.next_round(out);
    }

    /// What the replay that runs has brought, and will bring, may not be all.
    pub(super) fn question_round(&mut self) {
        self.is_more_than_a_look();
        if let Some(recovery) = self.recovery.as_mut() {
            recovery.round.questionable = true;
        }
    }

    fn next_round(&mut self, out: &mut Out<P>) {
        if let Some(recovery) = self.recovery.take() {
            let vain = if recovery.round.progress { 0 } else { recovery.vain + 1 };
            self.recover_again(Recovery { vain, ..recovery }, out);
        }
    }

    fn finish(&mut self, out: &mut Out<P>) {
        self.history.reached();
        let round = self.recovery.as_ref().map(|recovery| recovery.round).unwrap_or_default();
        if let Some(before) = if round.odd { Some(self.history.next()) } else { round.odd_before } {
            self.history.misplaced(before);
        }
        self.end_recovery(out);
        if self.tail.is_none() && self.history.flaw().is_none() && !self.looked_again {
            out.push_back(Command::Arm(Timer::SecondLook, 0));
        }
        self.restarts = 0;
        if self.history.flaw().is_none() {
            self.rebuilds = 0;
        }
    }

    /// Applies what waits and is next, if it is proven to be of the same life. Returns whether the live feed has
    /// been caught up with.
    fn settle(&mut self, out: &mut Out<P>) -> bool {
        while let Some(front) = self.buffer.front() {
            let beginning = front.sequence == 0 && self.history.last().is_none();
            if beginning && self.join == (Join::Wanted { from: 0 }) {
                self.join = Join::Proven;
            }
            let next = self.history.place(front.sequence) == Place::Next;
            if !next || !(beginning || self.join == Join::Proven) {
                return false;
            }
            if let Some(message) = self.buffer.pop() {
                self.apply(message, Why::Whole, out);
            }
        }
        self.tail.is_none_or(|(tail, _)| self.history.last() >= Some(tail))
    }

    /// Ends a recovery that leads nowhere: what waits is applied as it is, and the feed is incomplete.
    pub(super) fn give_up(&mut self, why: Why, out: &mut Out<P>) {
        if self.recovery.as_ref().is_some_and(|recovery| recovery.is_second_look && !recovery.round.holed)
            && why == Why::ReplayFailed
        {
            // The first look was answered, and nobody has heard of anything since.
            return self.end_recovery(out);
        }
        if self.join != Join::Proven {
            self.history.doubt(why);
        }
        while let Some(message) = self.buffer.pop() {
            if self.history.place(message.sequence) != Place::Behind {
                self.apply(message, why, out);
            }
        }
        let questionable = self.recovery.as_ref().is_some_and(|recovery| recovery.round.questionable);
        match (self.tail, self.history.last()) {
            (None, None) => self.history.puncture(0, why),
            (Some((tail, _)), last) if last < Some(tail) => self.history.puncture(tail.saturating_add(1), why),
            _ if questionable => self.history.puncture(self.history.next(), why),
            _ => {}
        }
        self.join = Join::Proven;
        self.end_recovery(out);
        if why == Why::ReplayFailed {
            self.history.hope_for_repair();
        }
        if self.history.repairable() {
            out.push_back(Command::Arm(Timer::Rebuild, self.rebuilds));
            self.rebuilds = self.rebuilds.saturating_add(1);
        }
    }
}
