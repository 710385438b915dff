//! One watch: snapshots, then the history from where it stood before them.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tonic::Status;
use xxhash_rust::xxh3::Xxh3;

use super::history::{Happening, Lost, Named};
use super::hub::{Hub, Seat};
use crate::feed::status::Entry;
use crate::proto::v1;
use crate::proto::v1::event::Event;
use crate::proto::v1::watch_response::What;
use crate::replica::encode;
use crate::worker::{Identity, RankId};

/// What is watched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::serve) struct Filter {
    pub(in crate::serve) model: String,
    pub(in crate::serve) workers: Vec<String>,
}

/// Where a watch can be resumed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cursor {
    instance: u64,
    position: u64,
    filter: u64,
}

/// A watch under way.
#[derive(Debug)]
pub(in crate::serve) struct Watcher {
    hub: Arc<Hub>,
    filter: Filter,
    cursor: Cursor,
    /// The number of the last delta that each rank's watcher knows.
    known: HashMap<RankId, u64>,
    /// It was resumed: what it knows of a rank is not known here.
    resumed: bool,
    outbox: VecDeque<v1::WatchResponse>,
    /// Ranks that are to be told whole, and whether their names are new.
    to_tell: VecDeque<(Arc<Named>, bool)>,
    snapshot: Option<encode::Snapshot>,
    is_synced: bool,
    news: watch::Receiver<u64>,
    /// While somebody watches.
    _seat: Option<Seat>,
}

const OTHER_HISTORY: &str = "the cursor is of another server, or of one that had to begin anew";
const OTHER_FILTER: &str = "the cursor is of a watch of other workers";
const TOO_LATE: &str = "too much has happened since the cursor";
const NO_CURSOR: &str = "this is no cursor";

// === impl Watcher ===

impl Watcher {
    /// Begins a watch, or resumes one.
    pub(in crate::serve) fn new(hub: Arc<Hub>, seat: Seat, filter: Filter, resume_after: &[u8]) -> Self {
        let news = hub.news();
        let told = hub.told();
        let now = Cursor { instance: told.history.instance(), position: told.history.end(), filter: filter.hash() };
        let resumed = match resume_after {
            [] => Err(""),
            cursor => Cursor::read(cursor).ok_or(NO_CURSOR).and_then(|cursor| {
                if cursor.filter != now.filter {
                    return Err(OTHER_FILTER);
                }
                match told.history.read(cursor.instance, cursor.position) {
                    Ok(_) if told.history.is_far_behind(cursor.position) => Err(TOO_LATE),
                    Ok(_) => Ok(cursor),
                    Err(Lost::Behind) => Err(TOO_LATE),
                    Err(Lost::Other) => Err(OTHER_HISTORY),
                }
            }),
        };
        let started = v1::WatchStarted { resumed: resumed.is_ok(), why: resumed.err().unwrap_or_default().to_owned() };
        let all = told.ranks.values().filter(|named| filter.takes(&named.identity)).cloned();
        let to_tell = if resumed.is_ok() { VecDeque::new() } else { all.map(|named| (named, true)).collect() };
        drop(told);
        hub.metrics.watch_began(resumed.is_ok());
        let cursor = resumed.unwrap_or(now);
        Self {
            hub,
            filter,
            cursor,
            known: HashMap::new(),
            resumed: started.resumed,
            outbox: VecDeque::from([v1::WatchResponse { what: Some(What::Started(started)), cursor: Bytes::new() }]),
            to_tell,
            snapshot: None,
            is_synced: false,
            news,
            _seat: Some(seat),
        }
    }

    /// The next message; waits for it. After an error there is none. Whoever stops waiting has lost nothing.
    pub(in crate::serve) async fn next(&mut self) -> Result<v1::WatchResponse, Status> {
        loop {
            if let Some(response) = self.outbox.pop_front() {
                return Ok(response);
            }
            if let Some(snapshot) = &mut self.snapshot {
                match snapshot.next() {
                    Some(event @ Event::SnapshotEnd(_)) => {
                        self.snapshot = None;
                        return Ok(self.response(event, true));
                    }
                    Some(event) => return Ok(self.response(event, false)),
                    None => self.snapshot = None,
                }
            }
            if let Some((named, is_new)) = self.to_tell.front().cloned() {
                self.tell_rank(&named, is_new).await;
                self.to_tell.pop_front();
                continue;
            }
            if !self.is_synced {
                self.is_synced = true;
                let what = Some(What::Synced(v1::WatchSynced {}));
                return Ok(v1::WatchResponse { what, cursor: self.cursor.write() });
            }
            self.news.borrow_and_update();
            match self.read()? {
                Some(happening) => {
                    self.cursor.position += 1;
                    self.happened(happening);
                }
                None => tokio::select! {
                    () = self.hub.stop.cancelled() => return Err(Status::unavailable("the server stops")),
                    _ = self.news.changed() => {}
                },
            }
        }
    }

    /// Leaves its place to others, and waits to be gone on with.
    pub(in crate::serve) fn rest(&mut self) {
        self._seat = None;
    }

    /// Goes on, in a place of its own.
    pub(in crate::serve) fn go_on(&mut self, seat: Seat) {
        self._seat = Some(seat);
    }

    /// The ranks that are watched, as far as they are on the board.
    pub(in crate::serve) fn entries(&self) -> Vec<Arc<Entry>> {
        let mut entries = self.hub.fleet.board.all();
        entries.retain(|entry| self.filter.takes(&entry.identity));
        entries
    }

    fn read(&self) -> Result<Option<Happening>, Status> {
        let told = self.hub.told();
        let read = match told.history.read(self.cursor.instance, self.cursor.position) {
            Ok(_) if told.history.is_far_behind(self.cursor.position) => Err(Lost::Behind),
            read => read.map(Option::<&Happening>::cloned),
        };
        drop(told);
        read.map_err(|lost| {
            self.hub.metrics.watcher_was_cut();
            Status::aborted(match lost {
                Lost::Behind => "this watch has fallen too far behind: watch again with the last cursor",
                Lost::Other => "the server had to begin anew: watch again",
            })
        })
    }

    fn happened(&mut self, happening: Happening) {
        match happening {
            Happening::Added(named) => {
                if self.filter.takes(&named.identity) {
                    self.to_tell.push_back((named, true));
                }
            }
            Happening::Changed(named, state, why) => {
                if self.filter.takes(&named.identity) {
                    let worker_rank = Some(v1::WorkerRank::from(&named.identity));
                    let state = v1::FeedState::from(state).into();
                    let changed = v1::WorkerChanged { key: Some(named.key.clone()), worker_rank, state, why };
                    self.say(Event::Changed(changed));
                }
            }
            Happening::Gone(named) => {
                if self.filter.takes(&named.identity) {
                    self.known.remove(&named.rank);
                    self.say(Event::Gone(v1::WorkerGone { key: Some(named.key.clone()) }));
                }
            }
            Happening::Delta(named, delta) => {
                if !self.filter.takes(&named.identity) {
                    return;
                }
                let known = match self.known.get(&named.rank) {
                    Some(known) => *known,
                    None if self.resumed => delta.number - 1,
                    // It was gone before its snapshot was taken.
                    None => return,
                };
                if delta.number <= known {
                    return;
                }
                if delta.number != known + 1 {
                    return self.to_tell.push_back((named, false));
                }
                self.known.insert(named.rank, delta.number);
                for message in encode::delta(&named.key, &delta) {
                    let is_last = !message.goes_on;
                    let response = self.response(Event::Delta(message), is_last);
                    self.outbox.push_back(response);
                }
            }
        }
    }

    /// Tells what a rank holds, and before that who it is.
    async fn tell_rank(&mut self, named: &Arc<Named>, is_new: bool) {
        let (index, rank) = (Arc::clone(&self.hub.fleet.index), named.rank);
        // Its hashes are copied: a lot of them, perhaps.
        let Ok(Some(snapshot)) = spawn_blocking(move || index.snapshot(rank)).await else { return };
        if is_new {
            // Not what the board says by now: the changes that follow are changes of this.
            let (state, why) = self.hub.told().state(rank).unwrap_or_default();
            let added = v1::WorkerAdded {
                key: Some(named.key.clone()),
                worker_rank: Some(v1::WorkerRank::from(&named.identity)),
                state: v1::FeedState::from(state).into(),
                why,
            };
            let response = self.response(Event::Added(added), false);
            self.outbox.push_back(response);
        }
        self.known.insert(rank, snapshot.number);
        self.snapshot = Some(encode::Snapshot::new(named.key.clone(), Arc::new(snapshot)));
    }

    fn say(&mut self, event: Event) {
        let response = self.response(event, true);
        self.outbox.push_back(response);
    }

    /// A message, with a cursor if the watch can be resumed after it.
    fn response(&self, event: Event, is_whole: bool) -> v1::WatchResponse {
        let what = Some(What::Event(v1::Event { event: Some(event) }));
        let cursor = if is_whole && self.is_synced { self.cursor.write() } else { Bytes::new() };
        v1::WatchResponse { what, cursor }
    }
}

// === impl Filter ===

impl Filter {
    fn takes(&self, identity: &Identity) -> bool {
        (self.model.is_empty() || *identity.model == *self.model)
            && (self.workers.is_empty() || self.workers.iter().any(|name| identity.is_called(name)))
    }

    fn hash(&self) -> u64 {
        let mut workers: Vec<&str> = self.workers.iter().map(String::as_str).collect();
        workers.sort_unstable();
        workers.dedup();
        let mut hash = Xxh3::new();
        for part in std::iter::once(self.model.as_str()).chain(workers) {
            hash.update(&(part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.digest()
    }
}

// === impl Cursor ===

impl Cursor {
    fn write(self) -> Bytes {
        let words = [self.instance, self.position, self.filter];
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn read(bytes: &[u8]) -> Option<Self> {
        let (words, []) = bytes.as_chunks::<8>() else { return None };
        let [instance, position, filter] = *words else { return None };
        let [instance, position, filter] = [instance, position, filter].map(u64::from_le_bytes);
        Some(Self { instance, position, filter })
    }
}
