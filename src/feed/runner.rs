//! The task of one feed: receives, lets the machine decide, decodes, applies, and keeps the status board.
//!
//! The link's own task does the receiving proper, so nothing here can stall a socket. In return this loop may be
//! busy for long: it yields every few messages, and tells the board what it did at most every
//! [`PUBLISH_EVERY`], except that a change of state is published at once: a feed that stops being live is marked before
//! readers of the index can see the effect, one that becomes live only after.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::FutureExt;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::drops::Dropped;
use super::keeper::{Keeper, Start};
use super::link::LinkEvent;
use super::machine::{Command, Digest, Input, Limits, Machine, Message, Timer};
use super::source::{Event, Source};
use super::status::{Entry, State};
use super::tally::Tally;
use crate::backoff::Backoff;
use crate::index::IndexError;
use crate::normalize::Normalizer;
use crate::wire::frames::{self, ReplayFrame};
use crate::wire::{self, Batch, Dialect, EventError};
use crate::worker::Stamp;

/// How often the status board hears of a feed whose state does not change.
pub const PUBLISH_EVERY: Duration = Duration::from_millis(100);

/// How soon an idle feed tells what became of a snapshot. Nothing else of it changes by itself, and it sleeps: what is
/// heard of its engine meanwhile is read off the queue.
const PUBLISH_IDLE: Duration = Duration::from_secs(1);

/// A busy runner yields after so many messages, or so many bytes of them.
const YIELD_MESSAGES: usize = 32;
const YIELD_BYTES: usize = 1 << 20;

/// How long after the replay of a link that is silent it is asked for again. A publisher takes note of a subscription within a
/// millisecond, or when it publishes next; a busy machine may need longer.
const SECOND_LOOK: Duration = Duration::from_secs(1);

/// A complaint about the same feed is not logged more often.
const COMPLAIN_EVERY: Duration = Duration::from_secs(60);

/// Nor is what it goes through.
const TELL_EVERY: Duration = Duration::from_millis(500);

/// How long a feed waits for what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// How long an engine may stay away before its blocks are withdrawn; `None`: for ever.
    pub grace: Option<Duration>,
    /// How long one recovery may take, all its replays together.
    pub recovery: Duration,
    /// The wait before a replay is asked for again; each next one is twice as long.
    pub first_retry: Duration,
    /// The longest such wait.
    pub longest_retry: Duration,
    /// The wait before an incomplete feed is rebuilt; each next one is twice as long.
    pub first_rebuild: Duration,
    /// The longest such wait.
    pub longest_rebuild: Duration,
}

/// The task of one feed.
#[derive(Debug)]
pub struct Runner<S> {
    source: S,
    machine: Machine<Bytes>,
    normalizer: Normalizer,
    entry: Arc<Entry>,
    dialect: Dialect,
    timing: Timing,
    commands: VecDeque<Command<Bytes>>,
    batch: Batch,
    tally: Tally,
    clocks: Clocks,
    /// Messages and bytes applied since the last yield.
    busy: (usize, usize),
    keeper: Option<Keeper>,
    finish: CancellationToken,
    published: Instant,
    complained: Option<Instant>,
    told: Option<Instant>,
    /// The state has changed since it was logged last: what was held back is made up for.
    untold: bool,
}

/// When what is due.
#[derive(Clone, Copy, Debug, Default)]
struct Clocks {
    grace: Option<Instant>,
    recovery: Option<Instant>,
    rebuild: Option<Instant>,
    second_look: Option<Instant>,
    /// When which replay is to be asked for.
    ask: Option<(Instant, u64)>,
}

/// Why a runner ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It was told to.
    Cancelled,
    /// It was told to at the end of a message, and has taken its last snapshot.
    Finished,
    /// Its source has no more events.
    SourceEnded,
    /// Its rank was removed from the index.
    RankRemoved,
}

// === impl Timing ===

impl Default for Timing {
    /// 30 s of grace, 2 minutes for a recovery, retries after 100 ms to 2 s, rebuilds after 30 s to 10 minutes.
    fn default() -> Self {
        Self {
            grace: Some(Duration::from_secs(30)),
            recovery: Duration::from_secs(120),
            first_retry: Duration::from_millis(100),
            longest_retry: Duration::from_secs(2),
            first_rebuild: Duration::from_secs(30),
            longest_rebuild: Duration::from_secs(600),
        }
    }
}

// === impl Runner ===

impl<S: Source> Runner<S> {
    /// A runner of the feed that `entry` describes; whether it can ask for replays stands there too.
    pub fn new(
        source: S,
        normalizer: Normalizer,
        entry: Arc<Entry>,
        dialect: Dialect,
        timing: Timing,
        limits: Limits,
    ) -> Self {
        Self {
            source,
            machine: Machine::new(entry.replay.is_some(), limits),
            normalizer,
            entry,
            dialect,
            timing,
            commands: VecDeque::new(),
            batch: Batch::default(),
            tally: Tally::default(),
            clocks: Clocks::default(),
            busy: (0, 0),
            keeper: None,
            finish: CancellationToken::new(),
            published: Instant::now(),
            complained: None,
            told: None,
            untold: false,
        }
    }

    /// The same runner, which ends once `finish` is cancelled, after a last snapshot if it takes any.
    pub(super) fn until(mut self, finish: CancellationToken) -> Self {
        self.finish = finish;
        self
    }

    /// The same runner, whose snapshots `keeper` keeps: it begins as `start` says.
    pub(super) fn kept(mut self, keeper: Keeper, start: Start, limits: Limits) -> Self {
        match start {
            Start::Epoch(epoch) => self.machine = Machine::begin_at(epoch, self.entry.replay.is_some(), limits),
            Start::Resume(past) => {
                self.tally.stamp = past.stamp();
                self.tally.degraded = self.normalizer.degraded();
                self.machine = Machine::resume(past, limits, &mut self.commands);
            }
        }
        self.keeper = Some(keeper);
        self
    }

    /// Runs until `cancel` is cancelled, the source ends, or the rank is removed from the index.
    pub async fn run(mut self, cancel: CancellationToken) -> Ended {
        let ended = tokio::select! {
            ended = self.live() => ended,
            () = cancel.cancelled() => Ended::Cancelled,
        };
        self.publish();
        ended
    }

    async fn live(&mut self) -> Ended {
        if self.obey().await.is_err() {
            return Ended::RankRemoved;
        }
        loop {
            // Between two messages: here machine, normalizer and index say the same.
            let finished = self.finish.is_cancelled();
            if finished || self.keeper.as_ref().is_some_and(|keeper| keeper.due() <= Instant::now()) {
                self.keep(finished).await;
            }
            if finished {
                return Ended::Finished;
            }
            if self.clocks.next().is_some_and(|due| due <= Instant::now()) && self.fire().await.is_err() {
                return Ended::RankRemoved;
            }
            let event = match self.source.next().now_or_never() {
                Some(event) => event,
                None => {
                    self.publish();
                    self.busy = (0, 0);
                    let due = self.due();
                    tokio::select! {
                        event = self.source.next() => event,
                        () = until(due) => continue,
                        () = self.finish.cancelled() => continue,
                    }
                }
            };
            let Some(event) = event else { return Ended::SourceEnded };
            self.notice_losses();
            if self.take(event).await.is_err() {
                return Ended::RankRemoved;
            }
            self.busy.0 += 1;
            self.rest_if_busy().await;
        }
    }

    /// When there is something to be done though nothing comes.
    fn due(&self) -> Option<Instant> {
        let keeper = self.keeper.as_ref();
        let written = keeper.filter(|keeper| keeper.is_writing()).map(|_| self.published + PUBLISH_IDLE);
        let told = self.told.filter(|_| self.untold).map(|told| told + TELL_EVERY);
        [self.clocks.next(), keeper.map(Keeper::due), written, told].into_iter().flatten().min()
    }

    /// While later messages are known to be lost, what is being applied is the past: readers must not take it for the present.
    fn notice_losses(&mut self) {
        if self.source.has_lost() && !self.tally.has_lost {
            self.publish();
        }
    }

    async fn take(&mut self, event: Event) -> Result<(), IndexError> {
        match event {
            Event::Link(event) => self.link(event).await,
            Event::Reply(frames) => self.reply(&frames).await,
            Event::ReplayOver(failure) => self.input(Input::ReplayFailed(failure)).await,
        }
    }

    async fn link(&mut self, event: LinkEvent) -> Result<(), IndexError> {
        match event {
            LinkEvent::Listening(endpoint) => self.tally.listening = Some(endpoint.to_string()),
            LinkEvent::Unreachable(fault) => self.tally.fault = Some(fault.to_string()),
            LinkEvent::Rejected { reason, count } => self.tally.drop(reason, count),
            LinkEvent::Connected => {
                self.tally.connected = true;
                self.tally.fault = None;
                return self.input(Input::Connected).await;
            }
            LinkEvent::Disconnected(fault) => {
                self.tally.connected = false;
                self.tally.fault = Some(fault.to_string());
                return self.input(Input::Disconnected).await;
            }
            LinkEvent::Overflowed { messages } => {
                self.tally.drop(Dropped::QueueOverflow, messages);
                return self.input(Input::Lost).await;
            }
            LinkEvent::Missed => return self.input(Input::Lost).await,
            LinkEvent::Unread => return self.input(Input::Unnumbered).await,
            LinkEvent::OtherLife => return self.input(Input::OtherLife).await,
            LinkEvent::SameLife => return self.input(Input::SameLife).await,
            LinkEvent::Unnumbered => {
                self.tally.unnumbered = true;
                self.publish();
            }
            LinkEvent::Message(frames) => {
                self.tally.messages += 1;
                self.tally.bytes += frames.iter().map(|frame| frame.len() as u64).sum::<u64>();
                match frames::live(&frames) {
                    Ok(live) => {
                        let message = message(live.sequence, live.payload);
                        return self.input(Input::Live(message)).await;
                    }
                    Err(error) => {
                        self.complain(error.into(), 1);
                        return self.input(Input::Unnumbered).await;
                    }
                }
            }
        }
        Ok(())
    }

    async fn reply(&mut self, frames: &[Bytes]) -> Result<(), IndexError> {
        match frames::replay(frames) {
            Ok(ReplayFrame::Batch { sequence, payload }) => {
                self.input(Input::Replayed(message(sequence, payload))).await
            }
            Ok(ReplayFrame::End) => {
                self.source.stop_asking();
                self.input(Input::ReplayEnded).await
            }
            Err(error) => {
                self.complain(error.into(), 1);
                self.input(Input::ReplyUnread).await
            }
        }
    }

    /// Tells the machine, and does what it says.
    async fn input(&mut self, input: Input<Bytes>) -> Result<(), IndexError> {
        self.machine.handle(input, &mut self.commands);
        self.obey().await
    }

    async fn obey(&mut self) -> Result<(), IndexError> {
        while let Some(command) = self.commands.pop_front() {
            if let (Command::Begin { epoch, .. }, Some(keeper)) = (&command, &mut self.keeper) {
                keeper.claim(*epoch).await;
            }
            self.execute(command)?;
            self.rest_if_busy().await;
        }
        Ok(())
    }

    fn execute(&mut self, command: Command<Bytes>) -> Result<(), IndexError> {
        match command {
            Command::Apply { stamp, payload } => self.apply(stamp, &payload)?,
            Command::Begin { epoch, cause } => {
                let stamp = Stamp { epoch, sequence: None };
                self.normalizer.reset(stamp)?;
                self.tally.stamp = stamp;
                self.tally.degraded = None;
                self.tally.conflict = None;
                if self.may_tell() {
                    let (feed, cause) = (&self.entry.identity, cause.name());
                    tracing::info!(%feed, epoch, cause, "The blocks of the epoch before are dropped.");
                }
            }
            Command::Ask { from, attempt } => {
                self.source.stop_asking();
                self.clocks.ask = None;
                match attempt {
                    0 => self.source.ask(from),
                    n => {
                        let wait = Backoff::new(self.timing.first_retry, self.timing.longest_retry).after(n - 1);
                        self.clocks.ask = Some((Instant::now() + wait, from));
                    }
                }
            }
            Command::StopAsking => {
                self.source.stop_asking();
                self.clocks.ask = None;
            }
            Command::Arm(timer, attempt) => {
                let timing = &self.timing;
                let wait = match timer {
                    Timer::Grace => timing.grace,
                    Timer::Recovery => Some(timing.recovery),
                    Timer::Rebuild => Some(Backoff::new(timing.first_rebuild, timing.longest_rebuild).after(attempt)),
                    Timer::SecondLook => Some(SECOND_LOOK),
                };
                *self.clocks.of(timer) = wait.map(|wait| Instant::now() + wait);
            }
            Command::Disarm(timer) => *self.clocks.of(timer) = None,
            Command::Report(state, why) => {
                // What was applied since it was decided may have spoiled it.
                self.tally.state = if state == State::Live { self.machine.state() } else { (state, why) };
                self.publish();
            }
        }
        Ok(())
    }

    /// One bad message costs that message, one bad event that event; the machine hears of both.
    fn apply(&mut self, stamp: Stamp, payload: &Bytes) -> Result<(), IndexError> {
        self.busy.0 += 1;
        self.busy.1 += payload.len();
        let mut spoiled = false;
        if let Err(error) = wire::decode(self.dialect, payload, &mut self.batch) {
            self.complain(error.into(), 1);
            spoiled = true;
        }
        for error in EventError::ALL {
            let count = self.batch.rejected.get(error.index()).copied().unwrap_or(0);
            if count > 0 {
                self.complain(error.into(), u64::from(count));
                // An event of a kind that is not ours says nothing of blocks, as far as anyone knows.
                spoiled |= error != EventError::UnknownTag;
            }
        }
        if self.batch.rank.is_some_and(|rank| rank != self.entry.identity.rank) {
            self.tally.drop(Dropped::RankConflict, 1);
        }
        if spoiled {
            self.machine.handle(Input::Spoiled(stamp), &mut self.commands);
            if self.tally.state.0 == State::Live {
                // Before anybody can see what lacks something.
                self.tally.state = self.machine.state();
                self.publish();
            }
        }
        // A batch that could not be read is empty: its number is spent all the same.
        let Self { normalizer, tally, entry, .. } = self;
        let applied = normalizer.apply_after(&self.batch, stamp, |applied| {
            tally.degraded = applied.degraded.or(tally.degraded);
            tally.conflict = applied.conflict;
            tally.demote(entry, applied.orphans);
        })?;
        self.tally.stamp = stamp;
        self.tally.events += applied.events;
        if applied.cleared {
            self.machine.handle(Input::Cleared(stamp), &mut self.commands);
        }
        Ok(())
    }

    /// Takes a snapshot, if what is held is whole.
    async fn keep(&mut self, last: bool) {
        let Some(keeper) = &mut self.keeper else { return };
        match (self.machine.past().zip(self.normalizer.memory()), last) {
            (Some((past, memory)), true) => keeper.take_last(past, memory).await,
            (Some((past, memory)), false) => keeper.take(past, memory).await,
            (None, _) => keeper.nothing_to_take(),
        }
    }

    async fn fire(&mut self) -> Result<(), IndexError> {
        let now = Instant::now();
        if let Some((_, from)) = self.clocks.ask.take_if(|(due, _)| *due <= now) {
            self.source.ask(from);
        }
        for timer in [Timer::Grace, Timer::Recovery, Timer::Rebuild, Timer::SecondLook] {
            if self.clocks.of(timer).take_if(|due| *due <= now).is_some() {
                self.input(Input::Fired(timer)).await?;
            }
        }
        Ok(())
    }

    /// Lets others run in the middle of a lot of work.
    async fn rest_if_busy(&mut self) {
        if self.busy.0 < YIELD_MESSAGES && self.busy.1 < YIELD_BYTES {
            return;
        }
        self.busy = (0, 0);
        if self.published.elapsed() >= PUBLISH_EVERY {
            self.publish();
        }
        tokio::task::yield_now().await;
    }

    fn publish(&mut self) {
        self.published = Instant::now();
        self.tally.has_lost = self.source.has_lost();
        self.tally.heard = self.source.heard().or(self.tally.heard);
        if let Some(keeper) = &mut self.keeper {
            keeper.collect();
            self.tally.snapshots.clone_from(&keeper.outcomes);
            self.tally.snapshots_refused.clone_from(&keeper.refused);
        }
        let orphans = self.normalizer.orphans();
        let changed = self.tally.publish(&self.entry, self.machine.counters(), self.normalizer.dropped(), orphans);
        self.untold |= changed;
        if self.untold && self.may_tell() {
            self.untold = false;
            let (feed, status) = (&self.entry.identity, self.entry.status());
            let (state, epoch, why) = (status.state.name(), status.epoch, &status.why);
            tracing::info!(%feed, state, epoch, why, "The feed's state changed.");
        }
    }

    /// Counts messages or events that could not be read, and says so, but not each time.
    fn complain(&mut self, reason: Dropped, count: u64) {
        self.tally.drop(reason, count);
        if self.complained.is_none_or(|last| last.elapsed() >= COMPLAIN_EVERY) {
            self.complained = Some(Instant::now());
            let reason = reason.word();
            tracing::warn!(feed = %self.entry.identity, reason, "The engine sends what cannot be read.");
        }
    }

    /// Whether one more line about what this feed goes through may be logged: a publisher that does not know its
    /// own numbers could fill a disk.
    fn may_tell(&mut self) -> bool {
        let may = self.told.is_none_or(|last| last.elapsed() >= TELL_EVERY);
        if may {
            self.told = Some(Instant::now());
        }
        may
    }
}

// === impl Clocks ===

impl Clocks {
    fn of(&mut self, timer: Timer) -> &mut Option<Instant> {
        match timer {
            Timer::Grace => &mut self.grace,
            Timer::Recovery => &mut self.recovery,
            Timer::Rebuild => &mut self.rebuild,
            Timer::SecondLook => &mut self.second_look,
        }
    }

    fn next(&self) -> Option<Instant> {
        let ask = self.ask.map(|(due, _)| due);
        [self.grace, self.recovery, self.rebuild, self.second_look, ask].into_iter().flatten().min()
    }
}

/// Until then; for ever where nothing is due.
async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}

fn message(sequence: u64, payload: &Bytes) -> Message<Bytes> {
    Message { sequence, digest: Digest::of(payload), size: payload.len(), payload: payload.clone() }
}

#[cfg(test)]
mod tests;
