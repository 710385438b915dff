//! The owner: publishes what changes in the ranks that this process taps itself, says that it is there, and answers who
//! asks what they hold.
//!
//! What is published is heard of the index, behind a bounded queue that never makes a writer wait. Where the servers are
//! too slow, or gone for too long, the queue is cut: deltas are left out, followers see it by the numbers, and take a
//! new snapshot.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::{Message, Subject};
use bytes::Bytes;
use futures_util::StreamExt;
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet, spawn_blocking};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::RelayOptions;
use super::acks::{Acks, Publication};
use super::figures::{Figures, count};
use super::kept;
use super::message::Packer;
use super::subject::{Address, Topic};
use crate::feed::status::{Board, Entry, State};
use crate::index::{Delta, Heard, Index, Listener, TapBounds};
use crate::proto::v1;
use crate::replica::{BatchWriter, bare, encode};
use crate::worker::RankId;

/// How often the board is looked at: for ranks that came or went, and states that changed.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The first snapshot of a rank is put away within this part of the time between two.
const KEEP_FIRST: f64 = 0.1;

/// Requests that may wait to be noted.
const REQUESTS: usize = 1024;

/// Requests that may wait for one rank. Who asks beyond asks again.
const ASKING: usize = 256;

/// The pause before a subscription that ended is made again.
const SUBSCRIBE_AGAIN: Duration = Duration::from_millis(200);

/// What every inbox begins with.
const INBOX: &str = "_INBOX.";

/// Snapshots that are sent at a time.
const SENDING: usize = 2;

/// Changes that are published at once; a batch has [`encode::MAX_BLOCKS`] blocks at most.
const DELTAS: usize = 4096;

/// How long the next round of publications waits: [`FOR_EACH`] per message of the last round, within [`ROUND`]. A message
/// costs the owner, the servers and every follower about the same however much it carries, so changes are batched: up to
/// ten busy ranks send about 2,000 messages a second together; with more ranks, each sends 200.
const FOR_EACH: Duration = Duration::from_micros(500);
const ROUND: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(5));

/// Pieces of a snapshot between two looks at whether the connection keeps up.
const FLUSH_EVERY: usize = 16;

/// What one process publishes.
pub(super) struct Owner {
    options: Arc<RelayOptions>,
    client: async_nats::Client,
    index: Arc<Index>,
    board: Arc<Board>,
    listener: Listener,
    /// What was heard, and how much of it was read.
    heard: VecDeque<Heard>,
    read: usize,
    ranks: HashMap<RankId, Owned>,
    /// Our name among owners.
    name: String,
    acks: Acks,
    /// Scratch: ranks whose batches are begun.
    begun: Vec<RankId>,
    /// When is published next, at the earliest.
    round: Instant,
    /// When the board was looked at last.
    looked: Instant,
    figures: Arc<Figures>,
    /// Snapshots that are on their way to who asked.
    sending: JoinSet<()>,
    /// One that is being put away.
    keeping: JoinSet<()>,
    /// Where requests for snapshots come in.
    requests: (mpsc::Sender<Request>, mpsc::Receiver<Request>),
}

/// Whose snapshot is asked for, and where it is to go.
type Request = (Address, Subject);

struct Owned {
    address: Address,
    key: v1::RankKey,
    entry: Arc<Entry>,
    /// The last delta that was published, or left out.
    at: v1::Point,
    /// What is published next.
    batch: Batch,
    said: (State, String),
    due: Instant,
    asked: Vec<Subject>,
    /// The snapshot that is being sent.
    sent: Option<AbortHandle>,
    /// When its snapshot is to be put away.
    keep: Option<Instant>,
    /// Listens for who asks; ends with the rank.
    _listening: DropGuard,
}

/// One rank's deltas on their way out.
struct Batch {
    subject: Subject,
    life: u64,
    writer: BatchWriter,
    /// Its number: so many were published before it.
    number: u64,
    /// It goes on from the one before.
    continues: bool,
}

// === impl Owner ===

impl Owner {
    pub(super) fn new(
        options: Arc<RelayOptions>,
        client: async_nats::Client,
        index: Arc<Index>,
        board: Arc<Board>,
        name: String,
        figures: Arc<Figures>,
    ) -> Self {
        let acks = Acks::new(&client, options.stream.clone(), Arc::clone(&figures));
        let listener = index.listen(TapBounds::default());
        let requests = mpsc::channel(REQUESTS);
        let (ranks, begun, round) = (HashMap::new(), Vec::new(), Instant::now());
        let (sending, keeping) = (JoinSet::new(), JoinSet::new());
        Self {
            options,
            client,
            index,
            board,
            listener,
            heard: VecDeque::new(),
            read: 0,
            ranks,
            name,
            acks,
            begun,
            round,
            looked: round,
            figures,
            sending,
            keeping,
            requests,
        }
    }

    /// Publishes until it is dropped.
    pub(super) async fn run(&mut self) -> Infallible {
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let is_read = self.read == self.heard.len();
            tokio::select! {
                () = self.listener.ready(), if is_read => {
                    self.gather().await;
                    match self.listener.exchange(&mut self.heard) {
                        Ok(()) => {
                            self.read = 0;
                            self.publish().await;
                        }
                        Err(_) => self.start_over(),
                    }
                }
                () = std::future::ready(()), if !is_read => self.publish().await,
                Some((address, reply)) = self.requests.1.recv() => {
                    self.ask(&address, reply);
                    self.answer().await;
                }
                Some(_) = self.sending.join_next() => self.answer().await,
                _ = look.tick() => self.look().await,
            }
            // A busy index must not keep the rest waiting.
            if self.looked.elapsed() >= LOOK_EVERY {
                self.look().await;
            }
        }
    }

    /// Lets the changes of busy engines come together. What comes after a pause does not wait.
    async fn gather(&self) {
        if self.round > Instant::now() {
            sleep_until(self.round).await;
        }
    }

    /// Says that this owner leaves.
    pub(super) async fn leave(&mut self) {
        let ranks: Vec<RankId> = self.ranks.keys().copied().collect();
        let said = async {
            for rank in ranks {
                self.announce(rank, |announcement| announcement.leaves = true).await;
            }
            self.client.flush().await
        };
        // If the owner dies first, its silence says the same.
        let _ = tokio::time::timeout(Duration::from_secs(1), said).await;
    }

    /// Follows ranks that came, gives up those that went, and says what is due.
    async fn look(&mut self) {
        let board = self.board.all();
        let own = board.into_iter().filter(|entry| entry.is_first_hand());
        let own: HashMap<RankId, Arc<Entry>> = own.map(|entry| (entry.rank, entry)).collect();
        let gone: Vec<RankId> = self.ranks.keys().filter(|rank| !own.contains_key(rank)).copied().collect();
        for rank in gone {
            self.listener.unfollow(rank);
            self.announce(rank, |announcement| announcement.gone = true).await;
            self.ranks.remove(&rank);
        }
        for (rank, entry) in own {
            if !self.ranks.contains_key(&rank)
                && let Some(owned) = self.own(entry)
            {
                self.ranks.insert(rank, owned);
            }
        }
        let now = Instant::now();
        self.looked = now;
        let mut due = Vec::new();
        for (rank, owned) in &self.ranks {
            let status = owned.entry.status();
            if owned.due <= now || (status.state, &status.why) != (owned.said.0, &owned.said.1) {
                due.push(*rank);
            }
        }
        for rank in due {
            self.announce(rank, |_| ()).await;
        }
        self.figures.owned.store(self.ranks.len() as u64, Relaxed);
        self.keep(now);
    }

    /// Puts away the snapshot of a rank whose turn it is, one at a time.
    fn keep(&mut self, now: Instant) {
        while self.keeping.try_join_next().is_some() {}
        let Some(every) = self.options.keep.filter(|_| self.keeping.is_empty()) else { return };
        let due = |owned: &Owned| owned.keep.is_some_and(|keep| keep <= now);
        let Some((rank, owned)) = self.ranks.iter_mut().find(|(_, owned)| due(owned)) else { return };
        owned.keep = Some(now + every.mul_f64(0.75 + fastrand::f64() / 2.0));
        let Some(delta) = self.listener.follow(*rank) else { return };
        let (client, stream, address) = (self.client.clone(), self.options.stream.clone(), owned.address.clone());
        let (key, figures) = (owned.key.clone(), Arc::clone(&self.figures));
        self.keeping.spawn(async move {
            let written = match pieces(key, delta).await {
                Ok(pieces) => kept::write(&client, &stream, &address, pieces).await,
                Err(error) => Err(error.into()),
            };
            match written {
                Ok(()) => count(&figures.stored),
                Err(error) => {
                    tracing::warn!(%error, "A snapshot was not put away: nobody could begin without its owner.")
                }
            }
        });
    }

    fn own(&self, entry: Arc<Entry>) -> Option<Owned> {
        let number = self.listener.attend(entry.rank)?;
        let identity = &entry.identity;
        let address = Address::new(&identity.model, &identity.worker, identity.rank);
        let key = v1::RankKey {
            worker: identity.worker.to_string(),
            model: identity.model.to_string(),
            rank: identity.rank,
            life: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64),
        };
        let at = v1::Point { number, epoch: 0, sequence: None };
        let said = (State::Connecting, String::new());
        let due = Instant::now();
        let keep = self.options.keep.map(|every| due + every.mul_f64(KEEP_FIRST * fastrand::f64()));
        let listening = listen(self.client.clone(), address.clone(), self.requests.0.clone());
        let end = CancellationToken::new();
        let _listening = end.clone().drop_guard();
        tokio::spawn(async move {
            tokio::select! {
                never = listening => match never {},
                () = end.cancelled() => {}
            }
        });
        let (subject, life) = (Subject::from(Topic::Events.of(&address)), key.life);
        let batch = Batch { subject, life, writer: BatchWriter::new(life), number: 0, continues: false };
        let (asked, sent) = (Vec::new(), None);
        Some(Owned { address, key, entry, at, batch, said, due, asked, sent, keep, _listening })
    }

    /// The queue was cut: what waited in it is left out.
    fn start_over(&mut self) {
        count(&self.figures.cuts);
        tracing::warn!("The relay has fallen behind: its followers will take new snapshots.");
        self.listener = self.index.listen(TapBounds::default());
        (self.heard, self.read) = (VecDeque::new(), 0);
        for (rank, owned) in &mut self.ranks {
            if let Some(number) = self.listener.attend(*rank) {
                owned.at.number = number;
            }
        }
    }

    /// Publishes what was heard, each rank's together.
    async fn publish(&mut self) {
        let begins = Instant::now();
        let (heard, mut begun) = (std::mem::take(&mut self.heard), std::mem::take(&mut self.begun));
        let mut count = 0;
        while count < DELTAS
            && let Some(next) = heard.get(self.read)
        {
            self.read += 1;
            if let Heard::Delta(delta) = next {
                count += delta.changes.len().max(1);
                self.add(delta, &mut begun).await;
            }
        }
        self.heard = heard;
        if self.read == self.heard.len() {
            self.listener.lighten(&mut self.heard);
            self.read = self.heard.len();
        }
        // Who has fallen behind goes on at once.
        let pause = FOR_EACH.saturating_mul(begun.len() as u32).clamp(ROUND.0, ROUND.1);
        self.round = if count < DELTAS { begins + pause } else { begins };
        for rank in begun.drain(..) {
            if let Some(owned) = self.ranks.get_mut(&rank) {
                owned.batch.publish(&mut self.acks, &self.figures, false).await;
            }
        }
        self.begun = begun;
    }

    /// Adds a delta to its rank's batch, which goes out where it is full; one that is begun is named in `begun`.
    async fn add(&mut self, delta: &Delta, begun: &mut Vec<RankId>) {
        let Some(owned) = self.ranks.get_mut(&delta.rank) else { return };
        let (batch, acks, figures) = (&mut owned.batch, &mut self.acks, &*self.figures);
        let blocks = bare::blocks(delta);
        if batch.writer.is_empty() {
            begun.push(delta.rank);
        } else if !batch.writer.has_room(blocks) {
            batch.publish(acks, figures, false).await;
        }
        owned.at = encode::point(delta);
        if blocks <= encode::MAX_BLOCKS {
            batch.writer.add(delta);
            return;
        }
        for piece in encode::bare(delta) {
            batch.writer.add_piece(&piece);
            batch.publish(acks, figures, piece.goes_on).await;
        }
    }

    async fn announce(&mut self, rank: RankId, change: impl FnOnce(&mut v1::Announcement)) {
        let every = self.options.announce;
        let Some(owned) = self.ranks.get_mut(&rank) else { return };
        let (state, why) = {
            let status = owned.entry.status();
            (status.state, status.why.clone())
        };
        let mut announcement = v1::Announcement {
            key: Some(owned.key.clone()),
            at: Some(owned.at),
            worker_rank: Some((&owned.entry.identity).into()),
            state: v1::FeedState::from(state).into(),
            why: why.clone(),
            owner: self.name.clone(),
            leaves: false,
            gone: false,
        };
        change(&mut announcement);
        owned.said = (state, why);
        owned.due = Instant::now() + every.mul_f64(0.75 + fastrand::f64() / 2.0);
        let subject = Topic::Owners.of(&owned.address);
        // It is said again soon enough.
        let _ = self.client.publish(subject, announcement.encode_to_vec().into()).await;
    }

    /// Notes who asks.
    fn ask(&mut self, address: &Address, reply: Subject) {
        let Some(owned) = self.ranks.values_mut().find(|owned| owned.address == *address) else { return };
        // Nobody makes an owner write to anything but an inbox.
        if owned.asked.len() < ASKING && reply.starts_with(INBOX) {
            owned.asked.push(reply);
        }
    }

    /// Takes snapshots for those who have asked while there is a turn; who asks for one that is being sent waits, and
    /// shares the next.
    async fn answer(&mut self) {
        while self.sending.len() < SENDING {
            let free = |owned: &Owned| owned.sent.as_ref().is_none_or(AbortHandle::is_finished);
            let next = self.ranks.iter_mut().find(|(_, owned)| !owned.asked.is_empty() && free(owned));
            let Some((rank, owned)) = next else { return };
            let (rank, replies) = (*rank, std::mem::take(&mut owned.asked));
            let Some(delta) = self.listener.follow(rank) else { continue };
            let (client, key) = (self.client.clone(), owned.key.clone());
            let figures = Arc::clone(&self.figures);
            owned.sent = Some(self.sending.spawn(async move {
                let sent = match pieces(key, delta).await {
                    Ok(pieces) => send(&client, &pieces, &replies).await,
                    Err(error) => Err(error.into()),
                };
                match sent {
                    Ok(()) => _ = figures.sent.fetch_add(replies.len() as u64, Relaxed),
                    Err(error) => tracing::warn!(%error, "A snapshot was not sent: the followers ask again."),
                }
            }));
            // Who has just come need not wait to hear how far it must get.
            self.announce(rank, |_| ()).await;
        }
    }
}

/// The pieces of a snapshot, made beside everything else.
async fn pieces(key: v1::RankKey, delta: Delta) -> std::io::Result<Vec<Bytes>> {
    let made = spawn_blocking(move || {
        let mut packer = Packer::new()?;
        encode::Snapshot::bare(key, Arc::new(delta))
            .map(|event| packer.pack(event))
            .collect::<std::io::Result<Vec<_>>>()
    });
    made.await?
}

async fn send(client: &async_nats::Client, pieces: &[Bytes], replies: &[Subject]) -> Result<(), async_nats::Error> {
    for (i, piece) in pieces.iter().enumerate() {
        for reply in replies {
            client.publish(reply.clone(), piece.clone()).await?;
        }
        if i % FLUSH_EVERY == FLUSH_EVERY - 1 {
            client.flush().await?;
        }
    }
    Ok(())
}

/// Hands on who asks for a rank's snapshot, whatever happens to the subscription.
async fn listen(client: async_nats::Client, address: Address, asked: mpsc::Sender<Request>) -> Infallible {
    loop {
        if let Ok(mut subscriber) = client.subscribe(Topic::Snapshot.of(&address)).await {
            while let Some(Message { reply, .. }) = subscriber.next().await {
                if let Some(reply) = reply {
                    // Where there is no room: who asks, asks again.
                    let _ = asked.try_send((address.clone(), reply));
                }
            }
        }
        sleep(SUBSCRIBE_AGAIN).await;
    }
}

// === impl Batch ===

impl Batch {
    /// Publishes what it has, if anything; its last delta may go on in the next.
    async fn publish(&mut self, acks: &mut Acks, figures: &Figures, goes_on: bool) {
        if self.writer.is_empty() {
            return;
        }
        let bytes =
            std::mem::replace(&mut self.writer, BatchWriter::new(self.life)).finish(self.number, self.continues);
        figures.bytes.fetch_add(bytes.len() as u64, Relaxed);
        let id = format!("{:x}.{}", self.life, self.number);
        self.number += 1;
        self.continues = goes_on;
        acks.publish(Publication { subject: self.subject.clone(), id, bytes }).await;
    }
}
