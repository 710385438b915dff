//! One rank that somebody else owns: a mirror of it, and how far that can be trusted.

mod catch_up;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use async_nats::jetstream;
use bytes::Bytes;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, sleep_until};

use super::RelayOptions;
use super::message::{self, Batch, Unusable};
use super::stream;
use super::subject::Address;
use crate::backoff::Backoff;
use crate::feed::Registration;
use crate::feed::drops::Dropped;
use crate::feed::status::{Entry, State};
use crate::proto::v1;
use crate::replica::{Fault, Message, Mirror, Progress};

/// How long the deltas that an announcement counts may be on their way before they are looked for.
const ON_THE_WAY: Duration = Duration::from_millis(200);

/// What a follower is told.
#[derive(Debug)]
pub(super) enum Told {
    /// Deltas, undecoded.
    Batch(Bytes),
    /// Somebody taps the rank.
    Announcement(Box<v1::Announcement>),
    /// The subscription stands, as of now.
    Up,
    /// What is published is missed.
    Down,
    /// An announcement that is none.
    Unusable(Unusable),
}

/// The end of a follower that the fleet holds.
#[derive(Debug)]
pub(super) struct Handle {
    told: mpsc::Sender<Told>,
    overflowed: Arc<AtomicBool>,
}

/// What a follower needs of its fleet.
#[derive(Clone, Debug)]
pub(super) struct Means {
    pub(super) options: Arc<RelayOptions>,
    pub(super) client: async_nats::Client,
    pub(super) joins: Arc<Semaphore>,
}

pub(super) struct Follower {
    means: Means,
    context: jetstream::Context,
    address: Address,
    entry: Arc<Entry>,
    _registration: Registration,
    mirror: Mirror,
    told: mpsc::Receiver<Told>,
    overflowed: Arc<AtomicBool>,
    up: bool,
    /// Which registration of the rank is followed, and whose.
    life: u64,
    owner: String,
    /// When the owner was last heard; `None`: it has left.
    heard: Option<Instant>,
    left: Instant,
    /// What it last said since the subscription stands: its state, and how far it has come.
    said: Option<(State, String, u64)>,
    /// Another who says that the rank is its own, and when.
    rival: Option<(String, Instant)>,
    /// Since when deltas are known to be missing.
    behind: Option<Instant>,
    /// The last batch that was applied.
    batch: Option<u64>,
    applied: SystemTime,
    next_try: Instant,
    retry: Backoff,
    /// What is held began with a snapshot that the owner had put away.
    from_kept: bool,
    over: bool,
}

/// How a rank came to be known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum First {
    /// Its owner was heard.
    Heard,
    /// Its owner said so before we listened, so long ago.
    Recalled(Duration),
}

// === impl Handle ===

impl Handle {
    /// Tells the follower; what it has no room for shows in the numbers.
    pub(super) fn tell(&self, told: Told) {
        if self.told.try_send(told).is_err() {
            self.overflowed.store(true, Ordering::Release);
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.told.is_closed()
    }
}

// === impl Follower ===

impl Follower {
    pub(super) fn new(
        means: Means,
        address: Address,
        announcement: &v1::Announcement,
        first: First,
        entry: Arc<Entry>,
        registration: Registration,
        mirror: Mirror,
    ) -> (Self, Handle) {
        let (sender, told) = mpsc::channel(means.options.queue);
        let overflowed = Arc::new(AtomicBool::new(false));
        let now = Instant::now();
        let since = match first {
            First::Heard => now,
            First::Recalled(age) => now.checked_sub(age).unwrap_or(now),
        };
        let follower = Self {
            context: stream::reading(&means.client),
            address,
            entry,
            _registration: registration,
            mirror,
            told,
            overflowed: Arc::clone(&overflowed),
            up: true,
            life: announcement.key.as_ref().map_or(0, |key| key.life),
            owner: announcement.owner.clone(),
            heard: (!announcement.leaves).then_some(since),
            left: since,
            said: None,
            rival: None,
            behind: None,
            batch: None,
            applied: SystemTime::now(),
            next_try: now + means.options.jitter.mul_f64(fastrand::f64()),
            retry: catch_up::RETRY,
            from_kept: false,
            over: false,
            means,
        };
        (follower, Handle { told: sender, overflowed })
    }

    /// Follows until the rank is withdrawn.
    pub(super) async fn run(mut self) {
        loop {
            self.show();
            if self.over {
                return;
            }
            if self.wants_snapshot() && self.next_try <= Instant::now() {
                self.join().await;
                continue;
            }
            if self.wants_kept() && self.next_try <= Instant::now() {
                self.restore().await;
                continue;
            }
            let wake = self.wake();
            tokio::select! {
                told = self.told.recv() => match told {
                    None => return,
                    Some(told) => self.take(told).await,
                },
                () = sleep_until(wake) => self.look().await,
            }
        }
    }

    fn wants_snapshot(&self) -> bool {
        self.mirror.at().is_none() && self.up && self.is_owned()
    }

    /// Whether something that the owner has put away is better than nothing.
    fn wants_kept(&self) -> bool {
        self.mirror.at().is_none() && self.up && !self.is_owned() && self.means.options.keep.is_some()
    }

    fn is_owned(&self) -> bool {
        self.heard.is_some_and(|heard| heard.elapsed() < self.means.options.patience)
    }

    /// When the owner has been away since.
    fn away_since(&self) -> Instant {
        self.heard.unwrap_or(self.left)
    }

    /// When something is due without anybody saying anything.
    fn wake(&self) -> Instant {
        let options = &self.means.options;
        let patience = self.heard.filter(|_| self.is_owned()).map(|heard| heard + options.patience);
        let grace = (self.up && patience.is_none()).then(|| self.away_since() + options.grace);
        let behind = self.behind.map(|since| since + ON_THE_WAY);
        let asking = (self.wants_snapshot() || self.wants_kept()).then_some(self.next_try);
        let idle = Instant::now() + Duration::from_secs(1);
        [patience, grace, behind, asking].into_iter().flatten().fold(idle, Instant::min)
    }

    async fn look(&mut self) {
        if self.behind.is_some_and(|since| since.elapsed() >= ON_THE_WAY) {
            self.behind = None;
            self.fill(None).await;
        }
        // Where we are cut off ourselves, nothing is known of the owner.
        if self.up && !self.is_owned() && self.away_since().elapsed() >= self.means.options.grace {
            self.over = true;
        }
    }

    async fn take(&mut self, told: Told) {
        if self.overflowed.swap(false, Ordering::AcqRel) {
            self.drop(Dropped::QueueOverflow);
            self.said = None;
        }
        match told {
            Told::Up => {
                self.up = true;
                self.said = None;
                self.next_try = Instant::now() + self.means.options.jitter.mul_f64(fastrand::f64());
                // An owner that was cut off with us gets the time to come back.
                self.heard = self.heard.map(|_| Instant::now());
            }
            Told::Down => {
                self.up = false;
                self.said = None;
            }
            Told::Unusable(unusable) => self.unusable(unusable),
            Told::Announcement(announcement) => self.announced(*announcement),
            Told::Batch(bytes) => {
                {
                    let mut status = self.entry.status();
                    status.messages += 1;
                    status.bytes += bytes.len() as u64;
                    status.last_heard = Some(std::time::Instant::now());
                }
                match Batch::decode(&bytes) {
                    Ok(batch) if batch.life == self.life => {
                        if !self.apply(&batch) {
                            self.fill(Some(batch)).await;
                        }
                    }
                    // An older registration, or one that will be announced.
                    Ok(_) => {}
                    Err(unusable) => self.unusable(unusable),
                }
            }
        }
    }

    fn announced(&mut self, announcement: v1::Announcement) {
        let life = announcement.key.as_ref().map_or(0, |key| key.life);
        let number = announcement.at.map_or(0, |at| at.number);
        let ends = announcement.leaves || announcement.gone;
        // One that is heard no more is no rival: clocks differ, and an owner elsewhere may begin with a lower number.
        if life < self.life && (ends || self.is_owned()) {
            if announcement.owner != self.owner && !ends {
                self.contest(announcement.owner);
            }
            return;
        }
        if life != self.life {
            // The owner before is a rival only if it goes on.
            self.life = life;
            self.batch = None;
            self.demote();
            self.mirror.forget();
            self.next_try = Instant::now();
            self.retry.reset();
        } else if announcement.owner != self.owner {
            self.contest(announcement.owner);
            return;
        }
        let state = message::state(&announcement);
        self.owner = announcement.owner;
        self.over = announcement.gone;
        if announcement.leaves {
            self.heard = None;
            self.left = Instant::now();
            return;
        }
        self.heard = Some(Instant::now());
        self.said = Some((state, announcement.why, number));
        match self.mirror.at() {
            Some(at) if at.number < number => self.behind = self.behind.or(Some(Instant::now())),
            _ => self.behind = None,
        }
    }

    fn contest(&mut self, rival: String) {
        self.drop(Dropped::RivalOwner);
        if self.rival.is_none() {
            let (feed, newer) = (&self.entry.identity, &self.owner);
            tracing::error!(%feed, newer, rival, "Two owners claim one rank: the newer registration is followed.");
        }
        self.rival = Some((rival, Instant::now()));
    }

    /// Applies a batch; `false`: something before it is missing.
    fn apply(&mut self, batch: &Batch) -> bool {
        let Some(at) = self.mirror.at() else { return true };
        let follows = self.batch.is_some_and(|last| last.checked_add(1) == Some(batch.number));
        let first = batch.deltas.first().and_then(|delta| delta.at).map_or(0, |at| at.number);
        if first > at.number && (first > at.number.saturating_add(1) || (batch.continues && !follows)) {
            return false;
        }
        for delta in &batch.deltas {
            let told = match Message::bare_delta(delta) {
                Ok(told) => told,
                Err(_) => {
                    self.unusable(Unusable::Malformed);
                    self.void();
                    return true;
                }
            };
            match self.mirror.apply(self.life, told) {
                Ok(Progress::Applied) => self.entry.status().events += 1,
                Ok(Progress::Known) => self.entry.status().duplicates += 1,
                Ok(Progress::Waiting) => return true,
                Err(fault) => {
                    self.faulty(fault);
                    return true;
                }
            }
        }
        self.batch = Some(batch.number);
        self.applied = SystemTime::now();
        let number = self.mirror.at().map_or(0, |at| at.number);
        if self.said.as_ref().is_none_or(|(.., said)| number >= *said) {
            self.behind = None;
        }
        true
    }

    /// What is held cannot be gone on from.
    fn void(&mut self) {
        self.demote();
        self.mirror.forget();
        self.batch = None;
        self.behind = None;
        self.next_try = Instant::now();
    }

    fn faulty(&mut self, fault: Fault) {
        tracing::debug!(feed = %self.entry.identity, %fault, "The mirror needs a snapshot.");
        self.over |= fault == Fault::Gone;
        self.void();
    }

    /// Takes `live` back before anybody can see why.
    fn demote(&self) {
        let mut status = self.entry.status();
        if status.state == State::Live {
            status.state = State::Replaying;
            status.since = SystemTime::now();
            "a snapshot of its owner is fetched".clone_into(&mut status.why);
        }
    }

    fn unusable(&self, unusable: Unusable) {
        self.drop(unusable.dropped());
    }

    fn drop(&self, reason: Dropped) {
        self.entry.status().count_dropped(reason, 1);
    }

    /// How far the mirror can be trusted, in a word and a sentence.
    fn verdict(&self) -> (State, String) {
        if !self.up {
            return (State::Connecting, "there is no connection to NATS".to_owned());
        }
        if !self.is_owned() {
            let why = if self.heard.is_none() { "its owner has left" } else { "its owner has fallen silent" };
            let held = match (self.mirror.at(), self.from_kept) {
                (None, _) => "; nothing is known of what it holds",
                (Some(_), true) => "; what it put away before is shown",
                (Some(_), false) => "",
            };
            return (State::Incomplete, format!("{why} ({}){held}", self.owner));
        }
        let Some(at) = self.mirror.at() else {
            return (State::Replaying, "a snapshot of its owner is fetched".to_owned());
        };
        match &self.said {
            None => (State::Replaying, "its owner has not said yet how far it has come".to_owned()),
            Some((_, _, number)) if at.number < *number => (State::Replaying, "deltas are on their way".to_owned()),
            Some((state, why, _)) => (*state, why.clone()),
        }
    }

    fn show(&mut self) {
        let (state, mut why) = self.verdict();
        let every = self.means.options.patience;
        self.rival = self.rival.take().filter(|(_, heard)| heard.elapsed() < every);
        if let Some((rival, _)) = &self.rival {
            why = format!("{why}; two owners claim it: {} is followed, {rival} is older", self.owner);
        }
        let mut status = self.entry.status();
        if status.state != state {
            status.since = SystemTime::now();
        }
        status.state = state;
        status.why = why;
        status.connected = self.up;
        if let Some(at) = self.mirror.at() {
            status.epoch = at.stamp.epoch;
            status.last_sequence = at.stamp.sequence;
        }
    }
}
