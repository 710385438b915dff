//! What a runner knows of its feed, and how the status board is told: seldom, in one go, and never too well.

use std::collections::BTreeMap;
use std::time::SystemTime;

use tokio::time::Instant;

use super::drops::Dropped;
use super::machine::{Cause, Counters, Outcome, Why};
use super::status::{Entry, State, Status};
use crate::block::Grid;
use crate::worker::Stamp;

/// The runner's own numbers.
#[derive(Debug)]
pub(super) struct Tally {
    /// What the machine last reported, and the runner has carried out.
    pub(super) state: (State, Why),
    /// The last applied message.
    pub(super) stamp: Stamp,
    pub(super) connected: bool,
    pub(super) listening: Option<String>,
    pub(super) fault: Option<String>,
    pub(super) heard: Option<Instant>,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) events: u64,
    /// What the runner itself dropped, by reason.
    pub(super) dropped: BTreeMap<&'static str, u64>,
    /// Why this engine's events cannot be exact.
    pub(super) degraded: Option<&'static str>,
    /// The grid of this worker's blocks, and another one that was refused.
    pub(super) conflict: Option<(Grid, Grid)>,
    /// The messages have no numbers.
    pub(super) unnumbered: bool,
    /// Messages were lost that come after some that still wait.
    pub(super) has_lost: bool,
    /// What became of snapshots, by outcome, and those refused, by reason.
    pub(super) snapshots: BTreeMap<&'static str, u64>,
    pub(super) snapshots_refused: BTreeMap<&'static str, u64>,
}

// === impl Tally ===

impl Default for Tally {
    fn default() -> Self {
        Self {
            state: (State::Connecting, Why::NeverConnected),
            stamp: Stamp::default(),
            connected: false,
            listening: None,
            fault: None,
            heard: None,
            messages: 0,
            bytes: 0,
            events: 0,
            dropped: BTreeMap::new(),
            degraded: None,
            conflict: None,
            unnumbered: false,
            has_lost: false,
            snapshots: BTreeMap::new(),
            snapshots_refused: BTreeMap::new(),
        }
    }
}

impl Tally {
    /// Counts something that was dropped.
    pub(super) fn drop(&mut self, reason: Dropped, count: u64) {
        if count > 0 {
            *self.dropped.entry(reason.word()).or_default() += count;
        }
    }

    /// The state to show: what the machine says, unless the events themselves say less.
    fn verdict(&self, orphans: u64) -> (State, String) {
        match (self.state, orphans, self.degraded) {
            ((State::Live, _), ..) if self.unnumbered => {
                (State::Incomplete, "the messages have no numbers, so that a lost one is not noticed".to_owned())
            }
            ((State::Live, _), ..) if self.has_lost => {
                (State::Incomplete, "more messages came than could be applied: some are lost, others wait".to_owned())
            }
            ((State::Live, _), 1, _) => (State::Incomplete, "1 block waits for its parent".to_owned()),
            ((State::Live, _), 2.., _) => (State::Incomplete, format!("{orphans} blocks wait for their parents")),
            ((State::Live, _), 0, Some(reason)) => (State::Degraded, reason.to_owned()),
            ((State::Live, _), 0, None) if let Some((have, got)) = self.conflict => {
                (State::Degraded, format!("blocks of {got} tokens are refused: this worker's blocks have {have}"))
            }
            ((State::Connecting, why), _, _) => match &self.fault {
                Some(fault) if !self.connected => (State::Connecting, format!("{why}: {fault}")),
                _ => (State::Connecting, why.to_string()),
            },
            ((state, why), _, _) => (state, why.to_string()),
        }
    }

    /// Takes `live` back at once, if what is about to be seen is less. The rest of the entry can wait.
    pub(super) fn demote(&self, entry: &Entry, orphans: u64) {
        let known = self.unnumbered || self.has_lost;
        let doubtful = orphans > 0 || self.degraded.is_some() || self.conflict.is_some() || known;
        if self.state.0 != State::Live || !doubtful {
            return;
        }
        let (state, why) = self.verdict(orphans);
        let mut status = entry.status();
        if status.state == State::Live {
            status.state = state;
            status.why = why;
            status.orphans = orphans;
            status.since = SystemTime::now();
        }
    }

    /// Brings the entry up to date. Returns whether the state changed.
    pub(super) fn publish(
        &self,
        entry: &Entry,
        counters: &Counters,
        normalized: &BTreeMap<&'static str, u64>,
        orphans: u64,
    ) -> bool {
        let (state, why) = self.verdict(orphans);
        let mut status = entry.status();
        let changed = status.state != state;
        if changed {
            status.since = SystemTime::now();
        }
        status.state = state;
        status.why = why;
        status.epoch = self.stamp.epoch;
        status.last_sequence = self.stamp.sequence;
        status.last_heard = self.heard.map(Instant::into_std);
        status.connected = self.connected;
        status.listening.clone_from(&self.listening);
        status.fault.clone_from(&self.fault);
        status.messages = self.messages;
        status.bytes = self.bytes;
        status.events = self.events;
        status.orphans = orphans;
        status.snapshots.clone_from(&self.snapshots);
        status.snapshots_refused.clone_from(&self.snapshots_refused);
        status.count(counters);
        for counts in [&self.dropped, normalized] {
            for reason in counts.keys() {
                let of = |counts: &BTreeMap<&'static str, u64>| counts.get(reason).copied().unwrap_or(0);
                status.dropped.insert(reason, of(&self.dropped) + of(normalized));
            }
        }
        for (reason, count) in [
            (Dropped::Stale, counters.stale),
            (Dropped::ReservedSequence, counters.reserved),
            (Dropped::ImplausibleSequence, counters.implausible),
            (Dropped::BufferFull, counters.overflowed),
        ] {
            if count > 0 {
                let own = self.dropped.get(reason.word()).copied().unwrap_or(0);
                *status.dropped.entry(reason.word()).or_default() = count + own;
            }
        }
        changed
    }
}

// === impl Status ===

impl Status {
    fn count(&mut self, counters: &Counters) {
        self.gaps = counters.gaps;
        self.missed = counters.missed;
        self.duplicates = counters.duplicates;
        for (outcome, count) in Outcome::ALL.iter().zip(counters.replays) {
            self.replays.insert(outcome.name(), count);
        }
        for (cause, count) in Cause::ALL.iter().zip(counters.resets) {
            self.resets.insert(cause.name(), count);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::worker::{Identity, RankId};

    fn entry() -> Entry {
        let identity =
            Identity { worker: "w".into(), address: "".into(), aliases: Arc::new([]), model: "m".into(), rank: 0 };
        Entry::new(RankId { slot: 0, generation: 0 }, identity, "tcp://live".to_owned(), None, "auto")
    }

    #[test]
    fn blocks_that_wait_for_their_parent_take_live_back_at_once_and_nothing_else() {
        let entry = entry();
        let mut tally = Tally { state: (State::Live, Why::Whole), ..Tally::default() };
        tally.publish(&entry, &Counters::default(), &BTreeMap::new(), 0);
        tally.demote(&entry, 0);
        assert_eq!(entry.status().state, State::Live);
        tally.demote(&entry, 2);
        let status = entry.status().clone();
        assert_eq!((status.state, status.orphans), (State::Incomplete, 2));
        // Only a publication makes it live again: by then the batch that ended it has been seen.
        tally.demote(&entry, 0);
        assert_eq!(entry.status().state, State::Incomplete);

        tally.state = (State::Replaying, Why::Gap);
        tally.publish(&entry, &Counters::default(), &BTreeMap::new(), 0);
        tally.demote(&entry, 2);
        assert_eq!(entry.status().state, State::Replaying);
    }
}
