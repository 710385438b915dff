//! Bringing a feed to life, and ending it.

use std::sync::Arc;

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::machine::Limits;
use super::runner::{Ended, Runner, Timing};
use super::source::ZmqSource;
use super::status::{Board, Entry};
use super::zmq::{EndpointError, ReplayOptions, SubOptions, subscribe};
use crate::index::{Copies, Index, IndexError};
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

/// A feed that runs. Dropping it stops it, and withdraws the rank from board and index.
#[derive(Debug)]
pub struct Feed {
    entry: Arc<Entry>,
    /// Dropped, or stopped, once.
    place: Place,
    link: JoinHandle<()>,
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
        let writer = index.register(&options.identity.model, options.copies)?;
        let rank = writer.rank();
        // From here on whatever fails gives the place up again.
        let place = Place { rank, index: Arc::clone(index), board: Arc::clone(board), cancel: cancel.clone() };
        let (receiver, link) = subscribe(options.link.clone(), &cancel)?;
        let entry = Arc::new(Entry::new(
            rank,
            options.identity,
            options.link.endpoint.to_string(),
            options.replay.as_ref().map(|replay| replay.endpoint.to_string()),
            options.engine,
        ));
        board.insert(Arc::clone(&entry));
        let source = ZmqSource::new(receiver, options.replay, cancel.clone());
        let normalizer = Normalizer::new(writer, options.normalize);
        let runner =
            Runner::new(source, normalizer, Arc::clone(&entry), options.dialect, options.timing, options.limits);
        let runner = tokio::spawn(runner.run(cancel));
        Ok(Self { entry, place, link, runner })
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
        for (task, ended) in [("link", link.await.err()), ("runner", runner.await.err())] {
            if let Some(error) = ended {
                tracing::error!(feed = %entry.identity, task, %error, "A feed's task failed.");
            }
        }
    }
}

// === impl Place ===

impl Drop for Place {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.board.remove(self.rank);
        self.index.remove(self.rank);
    }
}
