//! The one task that listens to a fleet: hands what comes to the follower of its rank, and begins new ones.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use async_nats::{Event, Message, ServerError, Subscriber};
use futures_util::StreamExt;
use futures_util::stream::{SelectAll, select_all};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::CancellationToken;

use super::figures::{Figures, count};
use super::follower::{First, Follower, Handle, Means, Told};
use super::kept::{self, Recalled};
use super::options::RelayOptions;
use super::owner::Owner;
use super::subject::{Address, Topic};
use super::{message, stream};
use crate::feed::Registration;
use crate::feed::drops::Dropped;
use crate::feed::status::{Board, Entry, Origin, RELAYED};
use crate::index::{Copies, Index};
use crate::proto::v1;
use crate::replica::Mirror;
use crate::worker::Identity;

/// How often followers that have ended are cleared away.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// The first and the longest pause between two attempts to learn what owners have said before.
const RECALL_AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// The pause after a connection that could not even be begun: a file that cannot be read, say.
const RETRY: Duration = Duration::from_secs(1);

/// Takes part in a fleet. Dropping it withdraws every rank that is followed.
#[derive(Debug)]
pub struct Relay {
    stop: CancellationToken,
    task: Option<JoinHandle<()>>,
}

struct Fleet {
    means: Means,
    index: Arc<Index>,
    board: Arc<Board>,
    /// Our name among owners.
    name: String,
    followers: HashMap<Address, Handle>,
    /// The ranks that we tap ourselves.
    own: HashMap<Address, Arc<Entry>>,
    tasks: JoinSet<()>,
    figures: Arc<Figures>,
    crowded: bool,
    /// What was last said of attempts to connect.
    trouble: Option<String>,
    /// Ends the followers with the fleet.
    stop: CancellationToken,
}

// === impl Relay ===

impl Relay {
    /// Joins the fleet, and stays in it through servers that are absent, restarted or replaced, until it is stopped
    /// or dropped.
    ///
    /// Must be called within a tokio runtime.
    pub fn spawn(options: RelayOptions, index: &Arc<Index>, board: &Arc<Board>) -> Self {
        Self::spawn_counted(options, index, board, &Arc::default())
    }

    /// The same, with a record of how it fares.
    pub fn spawn_counted(
        options: RelayOptions,
        index: &Arc<Index>,
        board: &Arc<Board>,
        figures: &Arc<Figures>,
    ) -> Self {
        let stop = CancellationToken::new();
        let (index, board, figures) = (Arc::clone(index), Arc::clone(board), Arc::clone(figures));
        let task = tokio::spawn(run(Arc::new(options), index, board, figures, stop.clone()));
        Self { stop, task: Some(task) }
    }

    /// Says that its owner leaves, withdraws what was followed, and waits until that is done.
    pub async fn stop(mut self) {
        self.stop.cancel();
        if let Some(task) = self.task.take()
            && let Err(error) = task.await
        {
            tracing::error!(%error, "The relay's task failed.");
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn run(
    options: Arc<RelayOptions>,
    index: Arc<Index>,
    board: Arc<Board>,
    figures: Arc<Figures>,
    stop: CancellationToken,
) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_micros());
    let name = format!("{}-{since:x}-{:08x}", std::process::id(), fastrand::u32(..));
    let connection = loop {
        match options.connection.connect(&format!("kvtap relay {name}")).await {
            Ok(connection) => break connection,
            Err(error) => tracing::error!(%error, "The relay cannot connect."),
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = sleep(RETRY) => {}
        }
    };
    let client = connection.client.clone();
    let mut owner = options.publish.then(|| {
        let (options, client, name) = (Arc::clone(&options), client.clone(), name.clone());
        Owner::new(options, client, Arc::clone(&index), Arc::clone(&board), name, Arc::clone(&figures))
    });
    let joins = Arc::new(Semaphore::new(options.joins));
    let mut fleet = Fleet {
        means: Means { options, client, joins },
        index,
        board,
        name,
        followers: HashMap::new(),
        own: HashMap::new(),
        tasks: JoinSet::new(),
        figures,
        crowded: false,
        trouble: None,
        stop: stop.child_token(),
    };
    let owning = async {
        match &mut owner {
            Some(owner) => match owner.run().await {},
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = fleet.listen(connection.events) => {}
        () = owning => {}
    }
    fleet.stop.cancel();
    fleet.figures.connected.store(false, Relaxed);
    while fleet.tasks.join_next().await.is_some() {}
    if let Some(mut owner) = owner {
        owner.leave().await;
    }
}

// === impl Fleet ===

impl Fleet {
    async fn listen(&mut self, mut happenings: mpsc::Receiver<Event>) {
        let mut look = interval(LOOK_EVERY);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // Deltas first: an announcement says how many there were before it.
        let (mut events, mut owners) = (self.subscribe(Topic::Events).await, self.subscribe(Topic::Owners).await);
        // What was said before that; a message between the two is in both.
        let (recall, mut recalled) = mpsc::channel(1);
        self.tasks.spawn(recall_all(self.means.clone(), recall, self.stop.clone()));
        loop {
            tokio::select! {
                biased;
                happening = happenings.recv() => match happening {
                    Some(happening) => self.happened(&happening),
                    None => return,
                },
                Some(message) = events.next() => self.delta(message),
                Some(message) = owners.next() => self.announcement(&message),
                Some(all) = recalled.recv() => all.iter().for_each(|one| self.recall(one)),
                _ = look.tick() => self.look(),
            }
        }
    }

    /// Clears away followers that have ended, and those of ranks that we tap ourselves by now.
    fn look(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        let board = self.board.all();
        let own = board.into_iter().filter(|entry| entry.is_first_hand());
        self.own = own.map(|entry| (address_of(&entry), entry)).collect();
        let own = &self.own;
        self.followers.retain(|address, follower| !follower.is_over() && !own.contains_key(address));
        self.figures.followed.store(self.followers.len() as u64, Relaxed);
    }

    async fn subscribe(&self, topic: Topic) -> SelectAll<Subscriber> {
        let mut subscribers = Vec::new();
        for subject in self.means.options.follow.subjects(topic) {
            match self.means.client.subscribe(subject).await {
                Ok(subscriber) => subscribers.push(subscriber),
                Err(error) => tracing::error!(%error, "A model cannot be followed."),
            }
        }
        select_all(subscribers)
    }

    fn happened(&mut self, happening: &Event) {
        let told: &[fn() -> Told] = match happening {
            Event::Connected => {
                self.figures.connected.store(true, Relaxed);
                self.trouble = None;
                &[|| Told::Up]
            }
            Event::Disconnected | Event::Closed => {
                self.figures.connected.store(false, Relaxed);
                &[|| Told::Down]
            }
            // Who has missed something is found out by the next announcement.
            Event::SlowConsumer(_) | Event::ServerError(ServerError::SlowConsumer(_)) => {
                count(&self.figures.slow);
                &[|| Told::Down, || Told::Up]
            }
            Event::ClientError(error) => {
                let error = error.to_string();
                if self.trouble.as_ref() != Some(&error) {
                    tracing::warn!(error, "The relay cannot connect to a server.");
                    self.trouble = Some(error);
                }
                &[]
            }
            Event::ServerError(error) => {
                tracing::warn!(%error, "The NATS server complains about the relay.");
                &[]
            }
            _ => &[],
        };
        for tell in told {
            self.followers.values().for_each(|follower| follower.tell(tell()));
        }
    }

    fn delta(&self, message: Message) {
        let follower = Topic::Events.address(&message.subject).and_then(|address| self.followers.get(&address));
        // Nobody has announced it yet: its snapshot will hold it.
        if let Some(follower) = follower {
            follower.tell(Told::Batch(message.payload));
        }
    }

    fn announcement(&mut self, message: &Message) {
        let Some(address) = Topic::Owners.address(&message.subject) else { return };
        let announcement = match message::announcement(&message.payload, &address) {
            Ok(announcement) => announcement,
            Err(unusable) => {
                if let Some(follower) = self.followers.get(&address) {
                    follower.tell(Told::Unusable(unusable));
                }
                return;
            }
        };
        if announcement.owner == self.name {
            return;
        }
        if let Some(own) = self.own.get(&address) {
            if !announcement.leaves && !announcement.gone {
                own.status().count_dropped(Dropped::RivalOwner, 1);
            }
            return;
        }
        if let Some(follower) = self.followers.get(&address).filter(|follower| !follower.is_over()) {
            return follower.tell(Told::Announcement(Box::new(announcement)));
        }
        if !announcement.leaves && !announcement.gone {
            self.begin(address, announcement, First::Heard);
        }
    }

    /// Begins to follow a rank whose owner may be away.
    fn recall(&mut self, Recalled { address, bytes, said }: &Recalled) {
        let known = self.own.contains_key(address) || self.followers.get(address).is_some_and(|one| !one.is_over());
        // Clocks differ: one that is ahead of ours has just spoken.
        let age = said.elapsed().unwrap_or_default();
        if known || age >= self.means.options.grace {
            return;
        }
        if let Ok(announcement) = message::announcement(bytes, address)
            && announcement.owner != self.name
            && !announcement.gone
        {
            self.begin(address.clone(), announcement, First::Recalled(age));
        }
    }

    fn begin(&mut self, address: Address, announcement: v1::Announcement, first: First) {
        if self.followers.len() >= self.means.options.max_ranks {
            count(&self.figures.refused);
            if !std::mem::replace(&mut self.crowded, true) {
                tracing::error!(max = self.means.options.max_ranks, "There are more ranks than are followed.");
            }
            return;
        }
        let Some(named) = &announcement.worker_rank else { return };
        let identity = Identity {
            worker: named.worker.as_str().into(),
            address: named.address.as_str().into(),
            aliases: named.aliases.clone().into(),
            model: named.model.as_str().into(),
            rank: named.rank,
        };
        let cancel = self.stop.child_token();
        let taken = Registration::take(&identity, Copies::Set, &self.index, &self.board, &cancel);
        let Ok((registration, writer)) = taken else {
            tracing::error!(feed = %identity, "The index takes no more ranks.");
            return;
        };
        let endpoint = format!("{} {}", self.means.options.connection.endpoint, Topic::Events.of(&address));
        let entry = Entry::new(registration.rank(), identity, endpoint, None, RELAYED).with_origin(Origin::Relay);
        let entry = Arc::new(entry);
        self.board.insert(Arc::clone(&entry));
        let mirror = Mirror::new(writer);
        let (follower, handle) =
            Follower::new(self.means.clone(), address.clone(), &announcement, first, entry, registration, mirror);
        if first == First::Heard {
            handle.tell(Told::Announcement(Box::new(announcement)));
        }
        self.followers.insert(address, handle);
        self.tasks.spawn(async move {
            tokio::select! {
                () = follower.run() => {}
                () = cancel.cancelled() => {}
            }
        });
    }
}

/// Learns what owners have said before we listened, once a server answers.
async fn recall_all(means: Means, told: mpsc::Sender<Vec<Recalled>>, stop: CancellationToken) {
    let Means { options, client, .. } = means;
    if options.keep.is_none() {
        return;
    }
    let context = stream::reading(&client);
    let mut pause = RECALL_AGAIN.0;
    loop {
        let recalled = tokio::select! {
            recalled = kept::announcements(&context, &options.stream, &options.follow) => recalled,
            () = stop.cancelled() => return,
        };
        match recalled {
            Ok(recalled) => return drop(told.send(recalled).await),
            Err(error) => tracing::debug!(%error, "Nothing is known of what owners said before."),
        }
        tokio::select! {
            () = sleep(pause) => {}
            () = stop.cancelled() => return,
        }
        pause = (pause * 2).min(RECALL_AGAIN.1);
    }
}

fn address_of(entry: &Entry) -> Address {
    Address::new(&entry.identity.model, &entry.identity.worker, entry.identity.rank)
}
