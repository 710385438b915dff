//! Bringing a feed to life, and ending it.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::http::{PollOptions, poll};
use super::keeper::{Keeper, Snapshots};
use super::machine::Limits;
use super::runner::{Ended, Runner, Timing};
use super::source::ZmqSource;
use super::status::{Board, Entry};
use super::zmq::{EndpointError, QueueReceiver, ReplayOptions, SubOptions, subscribe};
use crate::index::{Copies, Index, IndexError, RankWriter};
use crate::normalize::{self, Normalizer};
use crate::wire::Dialect;
use crate::worker::{Identity, RankId};

/// One rank's feed, as configured. Equal options make equal feeds.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// What the worker is called.
    pub identity: Identity,
    /// The engine, by its configured word.
    pub engine: &'static str,
    /// What its payloads look like.
    pub dialect: Dialect,
    /// The link to its publisher.
    pub link: SubOptions,
    /// Where and how to ask for a replay.
    pub replay: Option<ReplayOptions>,
    /// Whether copies of a block are counted.
    pub copies: Copies,
    /// How its events are read.
    pub normalize: normalize::Options,
    /// How long it waits for what.
    pub timing: Timing,
    /// What may wait during a recovery.
    pub limits: Limits,
    /// Whether what it holds is to outlive the process.
    pub snapshots: Option<Snapshots>,
}

/// The feeds of an engine whose ranks all speak through one HTTP endpoint, as configured. Equal options make equal feeds.
#[derive(Clone, PartialEq, Debug)]
pub struct PolledOptions {
    /// What each rank is called.
    pub identities: Vec<Identity>,
    /// The engine, by its configured word.
    pub engine: &'static str,
    /// What its payloads look like.
    pub dialect: Dialect,
    /// How the endpoint is polled.
    pub poll: PollOptions,
    /// Whether copies of a block are counted.
    pub copies: Copies,
    /// How its events are read.
    pub normalize: normalize::Options,
    /// How long it waits for what.
    pub timing: Timing,
    /// What may wait during a recovery.
    pub limits: Limits,
}

/// One rank's feed whose messages somebody else receives, and puts into a queue.
#[derive(Clone, Debug)]
pub(super) struct QueuedOptions {
    /// What the rank is called.
    pub(super) identity: Identity,
    /// The engine, by its configured word.
    pub(super) engine: &'static str,
    /// Where the messages come from, for people.
    pub(super) endpoint: String,
    /// What its payloads look like.
    pub(super) dialect: Dialect,
    /// Whether copies of a block are counted.
    pub(super) copies: Copies,
    /// How its events are read.
    pub(super) normalize: normalize::Options,
    /// How long it waits for what.
    pub(super) timing: Timing,
    /// What may wait during a recovery.
    pub(super) limits: Limits,
}

/// A feed that runs. Dropping it stops it, and withdraws the rank from board and index.
#[derive(Debug)]
pub struct Feed {
    entry: Arc<Entry>,
    /// Dropped, or stopped, once.
    place: Place,
    /// The task that receives for this rank alone; one that polls for several ends with the last of them.
    link: Option<JoinHandle<()>>,
    finish: CancellationToken,
    runner: JoinHandle<Ended>,
}

/// A feed's place on the board and in the index, given up on drop.
#[derive(Debug)]
pub(crate) struct Place {
    rank: RankId,
    index: Arc<Index>,
    board: Arc<Board>,
    cancel: CancellationToken,
}

/// Why a feed cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum SpawnError {
    /// An endpoint cannot be used.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// The index takes no more ranks.
    #[error(transparent)]
    Index(#[from] IndexError),
}

// === impl Options ===

impl Options {
    /// The same feed for data-parallel rank `rank`, where these are the options as configured, for rank 0.
    ///
    /// # Errors
    /// Those of [`Endpoint::at_rank`](super::zmq::Endpoint::at_rank), for either endpoint.
    pub fn at_rank(&self, rank: u32) -> Result<Self, EndpointError> {
        let mut options = self.clone();
        options.identity.rank = rank;
        options.link.endpoint = self.link.endpoint.at_rank(rank)?;
        if let Some(replay) = &mut options.replay {
            replay.endpoint = replay.endpoint.at_rank(rank)?;
        }
        Ok(options)
    }
}

// === impl Feed ===

impl Feed {
    /// Registers the rank, puts it on the board, and starts its link and its runner. They live through engines that
    /// are absent, restarted or vanished, until the feed is stopped or dropped.
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`SpawnError`]; nothing was registered then.
    pub fn spawn(options: Options, index: &Arc<Index>, board: &Arc<Board>) -> Result<Self, SpawnError> {
        options.link.check()?;
        if let Some(replay) = &options.replay {
            replay.endpoint.check(super::zmq::Mode::Connect)?;
        }
        let cancel = CancellationToken::new();
        let (place, writer) = Place::take(&options.identity, options.copies, index, board, &cancel)?;
        let (receiver, link) = subscribe(options.link.clone(), &cancel)?;
        let normalizer = Normalizer::new(writer, options.normalize);
        let entry = Entry::new(
            place.rank,
            options.identity,
            options.link.endpoint.to_string(),
            options.replay.as_ref().map(|replay| replay.endpoint.to_string()),
            options.engine,
        )
        .queued(receiver.gauge())
        .with_orphans(normalizer.waiting());
        let source = ZmqSource::new(receiver, options.replay, cancel);
        let entry = Arc::new(entry);
        let Options { dialect, timing, limits, copies, snapshots, .. } = options;
        let finish = CancellationToken::new();
        let (told, shown, index, cancel) =
            (finish.clone(), Arc::clone(&entry), Arc::clone(index), place.cancel.clone());
        let runner = async move {
            let Some(snapshots) = snapshots else {
                let runner = Runner::new(source, normalizer, shown, dialect, timing, limits);
                return runner.until(told).run(cancel).await;
            };
            let loaded = Keeper::load(snapshots, copies, index, Arc::clone(&shown), normalizer).await;
            let Some((keeper, start, normalizer)) = loaded else { return Ended::RankRemoved };
            let runner = Runner::new(source, normalizer, shown, dialect, timing, limits);
            runner.kept(keeper, start, limits).until(told).run(cancel).await
        };
        Ok(Self::run(place, entry, Some(link), finish, runner))
    }

    /// The same for all ranks of an engine whose one HTTP endpoint is polled, in the order of their identities. The
    /// endpoint is polled until the last of these feeds has ended. They take no snapshots: nothing could prove one, for
    /// the endpoint gives each event once.
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`SpawnError::Index`]; nothing was registered then.
    pub fn spawn_polled(
        options: PolledOptions,
        index: &Arc<Index>,
        board: &Arc<Board>,
    ) -> Result<Vec<Self>, SpawnError> {
        let mut places = Vec::new();
        for identity in &options.identities {
            let cancel = CancellationToken::new();
            places.push((Place::take(identity, options.copies, index, board, &cancel)?, cancel));
        }
        let endpoint = options.poll.endpoint.to_string();
        let receivers = poll(options.poll, options.identities.iter().map(|identity| identity.rank));
        let ranks = options.identities.into_iter().zip(places).zip(receivers);
        let feeds = ranks.map(|((identity, ((place, writer), cancel)), receiver)| {
            let normalizer = Normalizer::new(writer, options.normalize.clone());
            let entry = Entry::new(place.rank, identity, endpoint.clone(), None, options.engine);
            let entry = Arc::new(entry.queued(receiver.gauge()).with_orphans(normalizer.waiting()));
            let source = ZmqSource::new(receiver, None, cancel.clone());
            let shown = Arc::clone(&entry);
            let runner = Runner::new(source, normalizer, shown, options.dialect, options.timing, options.limits);
            let finish = CancellationToken::new();
            let runner = runner.until(finish.clone()).run(cancel);
            Self::run(place, entry, None, finish, runner)
        });
        Ok(feeds.collect())
    }

    /// A feed that follows what `receiver` brings. It takes no snapshots: what proves one, others have.
    ///
    /// # Errors
    /// [`IndexError`]; nothing was registered then.
    pub(super) fn spawn_queued(
        options: QueuedOptions,
        receiver: QueueReceiver,
        index: &Arc<Index>,
        board: &Arc<Board>,
    ) -> Result<Self, IndexError> {
        let QueuedOptions { identity, engine, endpoint, dialect, copies, normalize, timing, limits } = options;
        let cancel = CancellationToken::new();
        let (place, writer) = Place::take(&identity, copies, index, board, &cancel)?;
        let normalizer = Normalizer::new(writer, normalize);
        let entry = Entry::new(place.rank, identity, endpoint, None, engine);
        let entry = Arc::new(entry.queued(receiver.gauge()).with_orphans(normalizer.waiting()));
        let source = ZmqSource::new(receiver, None, cancel.clone());
        let finish = CancellationToken::new();
        let runner = Runner::new(source, normalizer, Arc::clone(&entry), dialect, timing, limits);
        let runner = runner.until(finish.clone()).run(cancel);
        Ok(Self::run(place, entry, None, finish, runner))
    }

    fn run(
        place: Place,
        entry: Arc<Entry>,
        link: Option<JoinHandle<()>>,
        finish: CancellationToken,
        runner: impl Future<Output = Ended> + Send + 'static,
    ) -> Self {
        place.board.insert(Arc::clone(&entry));
        Self { entry, place, finish, link, runner: tokio::spawn(runner) }
    }

    /// The rank's slot in the index.
    pub fn rank(&self) -> RankId {
        self.place.rank
    }

    /// Its entry on the board.
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// [`Feed::stop`], after a last snapshot where the feed takes any. That may take as long as `within`; then the one
    /// before it stays.
    pub async fn finish(self, within: Duration) {
        self.finish.cancel();
        self.end(Some(within)).await;
    }

    /// Stops the feed, withdraws the rank from board and index, and waits until its tasks have ended.
    pub async fn stop(self) {
        self.end(None).await;
    }

    async fn end(self, within: Option<Duration>) {
        let Self { entry, place, link, mut runner, .. } = self;
        let ended = match within {
            Some(within) => timeout(within, &mut runner).await.ok(),
            None => None,
        };
        if within.is_some() && ended.is_none() {
            tracing::warn!(feed = %entry.identity, "The last snapshot was not taken in time.");
        }
        drop(place);
        let link = match link {
            Some(link) => link.await.err(),
            None => None,
        };
        let runner = match ended {
            Some(ended) => ended,
            None => runner.await,
        };
        for (task, ended) in [("link", link), ("runner", runner.err())] {
            if let Some(error) = ended {
                tracing::error!(feed = %entry.identity, task, %error, "A feed's task failed.");
            }
        }
    }
}

// === impl Place ===

impl Place {
    /// Registers a rank that never holds anything.
    pub(super) fn take_empty(
        identity: &Identity,
        copies: Copies,
        index: &Arc<Index>,
        board: &Arc<Board>,
    ) -> Result<Self, IndexError> {
        Self::take(identity, copies, index, board, &CancellationToken::new()).map(|(place, _)| place)
    }

    /// The rank's slot in the index.
    pub(crate) fn rank(&self) -> RankId {
        self.rank
    }

    /// Registers a rank. From here on whatever fails gives the place up again.
    pub(crate) fn take(
        identity: &Identity,
        copies: Copies,
        index: &Arc<Index>,
        board: &Arc<Board>,
        cancel: &CancellationToken,
    ) -> Result<(Self, RankWriter), IndexError> {
        let writer = index.register(&identity.model, copies)?;
        let place =
            Self { rank: writer.rank(), index: Arc::clone(index), board: Arc::clone(board), cancel: cancel.clone() };
        Ok((place, writer))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.board.remove(self.rank);
        self.index.remove(self.rank);
    }
}
