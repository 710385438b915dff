//! Every rank of another index, told by a `Watch`.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;

use super::decode::{DecodeError, Message};
use super::mirror::{Fault, Mirror, Progress};
use crate::index::{Copies, Index, IndexError};
use crate::proto::v1;
use crate::worker::RankId;

/// A replica: an index whose ranks mirror those of another one.
#[derive(Debug)]
pub struct Replica {
    index: Arc<Index>,
    ranks: HashMap<Name, Followed>,
    cursor: Bytes,
    is_synced: bool,
}

/// What a rank is called in messages.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Name {
    worker: String,
    model: String,
    rank: u32,
}

#[derive(Debug)]
struct Followed {
    mirror: Mirror,
    /// Told of since the watch began anew.
    is_there: bool,
}

/// What a message has told, besides blocks.
#[derive(Clone, PartialEq, Debug)]
pub enum News {
    /// A rank was added. It holds nothing until its snapshot comes.
    Added(RankId, v1::WorkerAdded),
    /// What is said of a rank has changed.
    Changed(RankId, v1::WorkerChanged),
    /// Ranks were removed from this index, too.
    Gone(Vec<RankId>),
    /// Blocks of a rank.
    Told(RankId, Progress),
    /// Everything that was there when the watch began is here now.
    Synced,
    /// Nothing that a replica needs: the watch has begun, or this is of a rank that it does not know.
    Nothing,
}

/// Why a message was not applied. Whatever the rank held was dropped; resume, and a snapshot comes.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplicaError {
    /// It cannot be read.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// It does not fit what is known.
    #[error("{worker}/{rank}: {fault}")]
    Fault {
        /// The worker.
        worker: String,
        /// The rank.
        rank: u32,
        /// Why.
        fault: Fault,
    },
    /// This index takes no more ranks.
    #[error(transparent)]
    Index(#[from] IndexError),
}

// === impl Replica ===

impl Replica {
    /// A replica in `index`, which may hold other ranks too.
    pub fn new(index: Arc<Index>) -> Self {
        Self { index, ranks: HashMap::new(), cursor: Bytes::new(), is_synced: false }
    }

    /// The index.
    pub fn index(&self) -> &Arc<Index> {
        &self.index
    }

    /// The mirror of a rank.
    pub fn rank(&self, worker: &str, model: &str, rank: u32) -> Option<&Mirror> {
        let name = Name { worker: worker.to_owned(), model: model.to_owned(), rank };
        self.ranks.get(&name).map(|followed| &followed.mirror)
    }

    /// Whether every rank is whole.
    pub fn is_synced(&self) -> bool {
        self.is_synced && self.ranks.values().all(|followed| followed.mirror.at().is_some())
    }

    /// What to send as `resume_after`: empty where only a new snapshot helps.
    pub fn resume_after(&self) -> Bytes {
        self.cursor.clone()
    }

    /// Applies one message of a watch.
    ///
    /// # Errors
    /// [`ReplicaError`]. [`Replica::resume_after`] is empty from then on: watch anew.
    pub fn hear(&mut self, response: v1::WatchResponse) -> Result<News, ReplicaError> {
        use v1::watch_response::What;
        let heard = match response.what {
            Some(What::Event(event)) => self.apply(event),
            Some(What::Started(started)) => {
                self.ranks.values_mut().for_each(|followed| followed.mirror.reconnect());
                if !started.resumed {
                    self.is_synced = false;
                    self.cursor = Bytes::new();
                    self.ranks.values_mut().for_each(|followed| followed.is_there = false);
                }
                Ok(News::Nothing)
            }
            Some(What::Synced(_)) => {
                self.is_synced = true;
                self.drop_absent();
                Ok(News::Synced)
            }
            None => Ok(News::Nothing),
        };
        match &heard {
            Ok(_) if !response.cursor.is_empty() => self.cursor = response.cursor,
            Ok(_) => {}
            Err(_) => self.cursor = Bytes::new(),
        }
        heard
    }

    /// Applies one event of the normalized feed, wherever it came from.
    ///
    /// # Errors
    /// [`ReplicaError`].
    pub fn apply(&mut self, event: v1::Event) -> Result<News, ReplicaError> {
        use v1::event::Event;
        let Some(event) = event.event else { return Ok(News::Nothing) };
        Ok(match event {
            Event::Added(added) => {
                let rank = self.followed(added.key.as_ref())?.mirror.rank();
                News::Added(rank, added)
            }
            Event::Changed(changed) => match self.known(changed.key.as_ref())? {
                Some(followed) => News::Changed(followed.mirror.rank(), changed),
                None => News::Nothing,
            },
            Event::Gone(gone) => self.remove(gone.key.as_ref())?,
            Event::SnapshotBegin(begin) => {
                self.followed(begin.key.as_ref())?;
                self.told(begin.key.as_ref(), Message::begin(&begin)?)?
            }
            Event::SnapshotPart(part) => self.told(part.key.as_ref(), Message::part(&part)?)?,
            Event::SnapshotEnd(end) => self.told(end.key.as_ref(), Message::end(&end)?)?,
            Event::Delta(delta) => self.told(delta.key.as_ref(), Message::delta(&delta)?)?,
        })
    }

    fn told(&mut self, key: Option<&v1::RankKey>, message: Message) -> Result<News, ReplicaError> {
        let life = key.map_or(0, |key| key.life);
        let Some(followed) = self.known(key)? else { return Ok(News::Nothing) };
        let rank = followed.mirror.rank();
        match followed.mirror.apply(life, message) {
            Ok(progress) => Ok(News::Told(rank, progress)),
            Err(fault) => {
                let (worker, rank) = key.map(|key| (key.worker.clone(), key.rank)).unwrap_or_default();
                Err(ReplicaError::Fault { worker, rank, fault })
            }
        }
    }

    fn known(&mut self, key: Option<&v1::RankKey>) -> Result<Option<&mut Followed>, DecodeError> {
        Ok(self.ranks.get_mut(&Name::of(key)?))
    }

    fn followed(&mut self, key: Option<&v1::RankKey>) -> Result<&mut Followed, ReplicaError> {
        let name = Name::of(key)?;
        let index = &self.index;
        let followed = match self.ranks.entry(name) {
            std::collections::hash_map::Entry::Occupied(known) => known.into_mut(),
            std::collections::hash_map::Entry::Vacant(new) => {
                let writer = index.register(&new.key().model, Copies::Set)?;
                new.insert(Followed { mirror: Mirror::new(writer), is_there: true })
            }
        };
        followed.is_there = true;
        Ok(followed)
    }

    fn remove(&mut self, key: Option<&v1::RankKey>) -> Result<News, DecodeError> {
        let gone = self.ranks.remove(&Name::of(key)?).map(|followed| followed.mirror.rank());
        gone.into_iter().for_each(|rank| self.index.remove(rank));
        Ok(News::Gone(gone.into_iter().collect()))
    }

    /// Drops the ranks that a new watch did not tell of.
    fn drop_absent(&mut self) {
        let index = &self.index;
        self.ranks.retain(|_, followed| {
            if !followed.is_there {
                index.remove(followed.mirror.rank());
            }
            followed.is_there
        });
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.ranks.values().for_each(|followed| self.index.remove(followed.mirror.rank()));
    }
}

// === impl Name ===

impl Name {
    fn of(key: Option<&v1::RankKey>) -> Result<Self, DecodeError> {
        match key {
            Some(key) if !key.worker.is_empty() => {
                Ok(Self { worker: key.worker.clone(), model: key.model.clone(), rank: key.rank })
            }
            Some(_) => Err(DecodeError { field: "key.worker", why: "required" }),
            None => Err(DecodeError { field: "key", why: "required" }),
        }
    }
}
