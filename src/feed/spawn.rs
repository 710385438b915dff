//! Bringing a feed to life, and ending it.

use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::http::{PollOptions, poll};
use super::machine::Limits;
use super::runner::{Ended, Runner, Timing};
use super::source::{Source, ZmqSource};
use super::status::{Board, Entry};
use super::zmq::{EndpointError, ReplayOptions, SubOptions, subscribe};
use crate::index::{Copies, Index, IndexError, RankWriter};
use crate::normalize::{self, Normalizer};
use crate::wire::Dialect;
use crate::worker::{Identity, RankId};

/// One rank's feed, as configured.
#[derive(Clone, Debug)]
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
}

/// The feeds of an engine whose ranks all speak through one HTTP endpoint, as configured.
#[derive(Clone, Debug)]
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

/// A feed that runs. Dropping it stops it, and withdraws the rank from board and index.
#[derive(Debug)]
pub struct Feed {
    entry: Arc<Entry>,
    /// Dropped, or stopped, once.
    place: Place,
    /// The task that receives for this rank alone; one that polls for several ends with the last of them.
    link: Option<JoinHandle<()>>,
    runner: JoinHandle<Ended>,
}

/// A feed's place on the board and in the index, given up on drop.
#[derive(Debug)]
struct Place {
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
        let entry = Entry::new(
            place.rank,
            options.identity,
            options.link.endpoint.to_string(),
            options.replay.as_ref().map(|replay| replay.endpoint.to_string()),
            options.engine,
        );
        let source = ZmqSource::new(receiver, options.replay, cancel);
        let normalizer = Normalizer::new(writer, options.normalize);
        Ok(Self::run(place, entry, Some(link), |entry| {
            Runner::new(source, normalizer, entry, options.dialect, options.timing, options.limits)
        }))
    }

    /// The same for all ranks of an engine whose one HTTP endpoint is polled, in the order of their identities. The
    /// endpoint is polled until the last of these feeds has ended.
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
            let entry = Entry::new(place.rank, identity, endpoint.clone(), None, options.engine);
            let source = ZmqSource::new(receiver, None, cancel);
            let normalizer = Normalizer::new(writer, options.normalize.clone());
            Self::run(place, entry, None, |entry| {
                Runner::new(source, normalizer, entry, options.dialect, options.timing, options.limits)
            })
        });
        Ok(feeds.collect())
    }

    fn run<S: Source>(
        place: Place,
        entry: Entry,
        link: Option<JoinHandle<()>>,
        runner: impl FnOnce(Arc<Entry>) -> Runner<S>,
    ) -> Self {
        let entry = Arc::new(entry);
        place.board.insert(Arc::clone(&entry));
        let runner = tokio::spawn(runner(Arc::clone(&entry)).run(place.cancel.clone()));
        Self { entry, place, link, runner }
    }

    /// The rank's slot in the index.
    pub fn rank(&self) -> RankId {
        self.place.rank
    }

    /// Its entry on the board.
    pub fn entry(&self) -> &Arc<Entry> {
        &self.entry
    }

    /// Stops the feed, withdraws the rank from board and index, and waits until its tasks have ended.
    pub async fn stop(self) {
        let Self { entry, place, link, runner } = self;
        drop(place);
        let link = match link {
            Some(link) => link.await.err(),
            None => None,
        };
        for (task, ended) in [("link", link), ("runner", runner.await.err())] {
            if let Some(error) = ended {
                tracing::error!(feed = %entry.identity, task, %error, "A feed's task failed.");
            }
        }
    }
}

// === impl Place ===

impl Place {
    /// Registers a rank. From here on whatever fails gives the place up again.
    fn take(
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
