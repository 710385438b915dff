//! One subscription, all its ranks: a task that receives, finds out whose each message is, and hands it to that rank.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use async_nats::Message;
use bytes::Bytes;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use xxhash_rust::xxh3::xxh3_64;

use super::door::Door;
use super::lanes::{Count, Key, LaneId, Lanes};
use super::ledger::Numbered;
use super::link::{Item, Link, Since};
use super::{ConnectionOptions, Pattern};
use crate::feed::Following;
use crate::feed::drops::Dropped;
use crate::feed::link::QueueLimits;
use crate::feed::status::Board;
use crate::index::{Index, IndexError};
use crate::wire::{Dialect, dynamo};
use crate::worker::Identity;

/// The header that numbers a raw batch, in decimal, from 0 in each life of its publisher.
pub const SEQUENCE_HEADER: &str = "Kvtap-Sequence";

/// The header that names the life of a raw batch's publisher: any text that no two lives share.
pub const PUBLISHER_HEADER: &str = "Kvtap-Publisher";

/// How often ranks are looked at that have fallen silent.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A subscription, as configured.
#[derive(Clone, PartialEq, Debug)]
pub struct PlaneOptions {
    /// What the worker is called: the one that speaks, or what stands before the names of those that appear.
    pub identity: Identity,
    /// How the servers are reached.
    pub connection: ConnectionOptions,
    /// What is subscribed to, or which messages of the stream are taken.
    pub pattern: Pattern,
    /// The stream that is read, from its first message on; `None`: a plain subscription.
    pub stream: Option<String>,
    /// The ranks that are there before they speak, where the configuration names the worker.
    pub ranks: Range<u32>,
    /// How many ranks there may be.
    pub max_ranks: usize,
    /// How long a rank that appeared by itself may be silent before it is withdrawn; `None`: for ever.
    pub silence: Option<Duration>,
    /// How its messages are followed.
    pub following: Following,
    /// What may wait for each rank.
    pub queue: QueueLimits,
}

/// A subscription that runs. Dropping it withdraws its ranks.
#[derive(Debug)]
pub struct Plane {
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

struct Task {
    options: Arc<PlaneOptions>,
    lanes: Lanes,
    door: Option<Door>,
    scratch: Vec<u8>,
}

// === impl PlaneOptions ===

impl PlaneOptions {
    /// Whether the wire says which workers there are.
    pub fn discovers(&self) -> bool {
        self.following.dialect == Dialect::Dynamo || self.pattern.names_workers()
    }

    /// Where this listens, for people.
    pub fn address(&self) -> String {
        let Self { connection, pattern, .. } = self;
        match &self.stream {
            Some(stream) => format!("{} stream {stream}, {pattern}", connection.endpoint),
            None => format!("{} {pattern}", connection.endpoint),
        }
    }

    /// What the server calls this client.
    pub(super) fn client_name(&self) -> String {
        format!("kvtap {}", self.identity.worker)
    }
}

// === impl Plane ===

impl Plane {
    /// Puts the configured ranks on the board and starts to listen. It lives through servers that are absent,
    /// restarted or replaced, until it is stopped or dropped.
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`IndexError`]: the index takes no more ranks.
    pub fn spawn(options: PlaneOptions, index: &Arc<Index>, board: &Arc<Board>) -> Result<Self, IndexError> {
        let options = Arc::new(options);
        let mut lanes = Lanes::new(Arc::clone(&options), Arc::clone(index), Arc::clone(board));
        let door = if options.discovers() {
            Some(Door::open(&options, index, board)?)
        } else {
            options.ranks.clone().try_for_each(|rank| lanes.list(rank))?;
            None
        };
        let stop = CancellationToken::new();
        let task = Task { options, lanes, door, scratch: Vec::new() };
        let task = tokio::spawn(task.run(stop.clone()));
        Ok(Self { stop, task: Some(task) })
    }

    /// Stops listening, withdraws every rank, and waits until that is done.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take()
            && let Err(error) = task.await
        {
            tracing::error!(%error, "A subscription's task failed.");
        }
    }
}

impl Drop for Plane {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

// === impl Task ===

impl Task {
    async fn run(mut self, stop: CancellationToken) {
        let mut link = Link::open(&self.options);
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                item = link.next() => self.take(item),
                _ = look.tick() => {
                    if let Some(silence) = self.options.silence {
                        self.lanes.withdraw_silent(silence);
                    }
                }
            }
        }
        drop(link);
        self.lanes.stop().await;
    }

    fn take(&mut self, item: Item) {
        match item {
            Item::Up => self.up(),
            Item::Reading(stream, since) => {
                self.up();
                match since {
                    Since::GoesOn => self.lanes.resumed(stream),
                    Since::Trimmed | Since::Replaced => self.lanes.missed(),
                }
            }
            Item::Down(fault) => self.down(&fault),
            Item::Trouble(fault) if !self.lanes.is_up() => self.down(&fault),
            Item::Trouble(_) => {}
            Item::Overrun => {
                self.lanes.overrun();
                self.at_door(|door| door.reject(Dropped::SlowConsumer, 1));
            }
            Item::Message(message, stored) => {
                self.at_door(|door| door.heard(message.payload.len()));
                let stored = stored.map(|(stream, number)| Count::Named(Numbered::ByStream, stream, number));
                let workers = self.lanes.len();
                match self.options.following.dialect {
                    Dialect::Dynamo => self.routed(&message, stored),
                    _ => self.raw(&message, stored),
                }
                if self.lanes.len() != workers {
                    self.at_door(|door| door.connected(self.lanes.len()));
                }
            }
        }
    }

    fn up(&mut self) {
        self.lanes.connected();
        self.at_door(|door| door.connected(self.lanes.len()));
    }

    fn down(&mut self, fault: &str) {
        self.lanes.disconnected(fault);
        self.at_door(|door| door.disconnected(fault));
    }

    fn at_door(&self, tell: impl FnOnce(&Door)) {
        if let Some(door) = &self.door {
            tell(door);
        }
    }

    /// Something that is nobody's was turned away.
    fn nobodys(&self, reason: Dropped, count: u64) {
        if count == 0 {
            return;
        }
        self.at_door(|door| door.reject(reason, count));
        if let (None, Some(first)) = (&self.door, self.lanes.first_listed()) {
            self.lanes.reject(first, reason);
        }
    }

    /// A batch of an engine: the subject says whose, headers which.
    fn raw(&mut self, message: &Message, stored: Option<Count>) {
        let key = self.options.pattern.read(&message.subject).and_then(|reading| {
            let rank = match reading.rank {
                Some(text) => rank(text)?,
                None => self.options.ranks.start,
            };
            Some(Key { worker: reading.worker.map(str::to_owned), rank })
        });
        let Some(key) = key else {
            if let Some(stored) = stored {
                // A stream may hold what is none of ours: its number is spent all the same.
                self.lanes.hand_out(stored, digest(message), &[], |_| Bytes::new());
            } else {
                self.nobodys(Dropped::UnknownSubject, 1);
            }
            return;
        };
        let refused = if key.worker.is_some() { Dropped::TooManyWorkers } else { Dropped::OtherRank };
        let Some(lane) = self.lanes.of(key) else { return self.nobodys(refused, 1) };
        match self.count(message) {
            Ok(count) => {
                if !self.lanes.hand_out(count, digest(message), &[lane], |_| message.payload.clone()) {
                    self.lanes.lose(lane, Dropped::TooManyPublishers);
                }
            }
            Err(reason) => self.lanes.unread(lane, reason),
        }
    }

    /// How a raw batch is numbered. A stream's own numbers say nothing of what was lost before it.
    fn count(&self, message: &Message) -> Result<Count, Dropped> {
        const BAD: Dropped = Dropped::BadHeader;
        let header = |name| message.headers.as_ref().and_then(|headers| headers.get(name));
        let Some(sequence) = header(SEQUENCE_HEADER) else { return Ok(Count::None) };
        let sequence = Some(sequence.as_str()).filter(|text| is_decimal(text)).and_then(|text| text.parse().ok());
        let sequence = sequence.ok_or(BAD)?;
        Ok(match header(PUBLISHER_HEADER) {
            None => Count::Bare(sequence),
            Some(life) => {
                // Each subject has numbers of its own.
                let name = format!("{}\n{}", message.subject, life.as_str());
                Count::Named(Numbered::ByPublisher, xxh3_64(name.as_bytes()), sequence)
            }
        })
    }

    /// Router events of Dynamo: they say whose they are.
    fn routed(&mut self, message: &Message, stored: Option<Count>) {
        let payload = &message.payload;
        if self.options.pattern.read(&message.subject).is_none() {
            if let Some(stored) = stored {
                self.lanes.hand_out(stored, digest(message), &[], |_| Bytes::new());
            }
            return;
        }
        let (count, events) = match dynamo::envelope(payload) {
            Ok(Some(envelope)) => {
                let own = Count::Named(Numbered::ByPublisher, envelope.publisher, envelope.sequence);
                (stored.unwrap_or(own), envelope.payload)
            }
            Ok(None) => (stored.unwrap_or(Count::None), &payload[..]),
            Err(error) => {
                self.nobodys(error.into(), 1);
                return self.lanes.spend(stored.unwrap_or(Count::None), digest(message));
            }
        };
        let mut scratch = std::mem::take(&mut self.scratch);
        let mut owned: BTreeMap<(u64, u32), Vec<Bytes>> = BTreeMap::new();
        let mut orphaned: Vec<Bytes> = Vec::new();
        let most = self.options.max_ranks;
        let mut crowded = false;
        let walked = dynamo::owners(events, &mut scratch, |owner, event| {
            let Some(owner) = owner else { return orphaned.push(Bytes::copy_from_slice(event)) };
            if owned.len() < most || owned.contains_key(&owner) {
                owned.entry(owner).or_default().push(Bytes::copy_from_slice(event));
            } else {
                crowded = true;
            }
        });
        scratch.shrink_to(1 << 20);
        self.scratch = scratch;
        if let Err(error) = walked {
            self.nobodys(error.into(), 1);
            return self.lanes.spend(count, digest(message));
        }
        self.nobodys(Dropped::UnownedEvent, orphaned.len() as u64);
        let mut parts: BTreeMap<LaneId, Vec<Bytes>> = BTreeMap::new();
        for ((worker, rank), events) in owned {
            match self.lanes.of(Key { worker: Some(worker.to_string()), rank }) {
                Some(lane) => {
                    parts.insert(lane, events);
                }
                None => crowded = true,
            }
        }
        self.nobodys(Dropped::TooManyWorkers, u64::from(crowded));
        let lanes: Vec<LaneId> = parts.keys().copied().collect();
        let alone = lanes.len() == 1 && orphaned.is_empty() && !crowded;
        let (publisher, sequence) = match count {
            Count::Named(_, name, sequence) => (name, sequence),
            Count::Bare(_) | Count::None => (0, 0),
        };
        let payload = |lane: LaneId| {
            if alone {
                return payload.clone();
            }
            // An event of which nobody knows whose it was may have been this rank's.
            let own: Vec<&[u8]> =
                parts.get(&lane).into_iter().flatten().chain(&orphaned).map(|event| &event[..]).collect();
            Bytes::from(dynamo::enclose(publisher, sequence, own.into_iter()))
        };
        // A number is spent whoever's it was.
        if !self.lanes.hand_out(count, digest(message), &lanes, payload) {
            lanes.iter().for_each(|lane| self.lanes.lose(*lane, Dropped::TooManyPublishers));
            self.nobodys(Dropped::TooManyPublishers, u64::from(lanes.is_empty()));
        }
        if !orphaned.is_empty() {
            self.lanes.missed_by_others(count, &lanes);
        }
        if crowded {
            self.lanes.turned_away(count);
        }
    }
}

fn digest(message: &Message) -> u64 {
    xxh3_64(&message.payload)
}

fn is_decimal(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

fn rank(text: &str) -> Option<u32> {
    if is_decimal(text) { text.parse().ok() } else { None }
}
