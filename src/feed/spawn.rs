//! Bringing a feed to life, and ending it.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::http::poll;
use super::keeper::{Keeper, Snapshots};
use super::link::{EndpointError, Mode, QueueReceiver};
use super::options::{Following, Options, PolledOptions};
use super::runner::{Ended, Runner};
use super::source::LinkSource;
use super::status::{Board, Entry, Origin};
use super::zmq::{ReplayOptions, subscribe};
use crate::index::{Copies, Index, IndexError, RankWriter};
use crate::normalize::Normalizer;
use crate::worker::{Identity, RankId};

/// A feed that runs. Dropping it stops it, and withdraws the rank from board and index.
#[derive(Debug)]
pub struct Feed {
    entry: Arc<Entry>,
    /// Dropped, or stopped, once.
    registration: Registration,
    /// The task that receives for this rank alone; one that polls for several ends with the last of them.
    link: Option<JoinHandle<()>>,
    finish: CancellationToken,
    runner: JoinHandle<Ended>,
}

/// A rank that is registered with the index, and may stand on the board. Dropping it withdraws the rank from both, and
/// ends the tasks of its feed.
#[derive(Debug)]
pub(crate) struct Registration {
    rank: RankId,
    index: Arc<Index>,
    board: Arc<Board>,
    cancel: CancellationToken,
}

/// A feed that is put together and does not run yet.
struct Assembled {
    registration: Registration,
    entry: Arc<Entry>,
    source: LinkSource,
    normalizer: Normalizer,
    following: Following,
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
            replay.endpoint.check(Mode::Connect)?;
        }
        let Options { identity, link, replay, following, snapshots } = options;
        let registered = Registration::take(&identity, following.copies, index, board, &CancellationToken::new())?;
        let endpoint = link.endpoint.to_string();
        let (receiver, link) = subscribe(link, &registered.0.cancel)?;
        let snapshots = snapshots.map(|snapshots| (snapshots, Arc::clone(index)));
        let assembled = Assembled::new(registered, identity, endpoint, Origin::Engine, receiver, replay, following);
        Ok(assembled.start(Some(link), snapshots))
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
        let PolledOptions { identities, poll: polled, following } = options;
        let register =
            |identity| Registration::take(identity, following.copies, index, board, &CancellationToken::new());
        let registered = identities.iter().map(register).collect::<Result<Vec<_>, _>>()?;
        let endpoint = polled.endpoint.to_string();
        let receivers = poll(polled, identities.iter().map(|identity| identity.rank));
        let ranks = identities.into_iter().zip(registered).zip(receivers);
        let feeds = ranks.map(|((identity, registered), receiver)| {
            let (endpoint, following) = (endpoint.clone(), following.clone());
            Assembled::new(registered, identity, endpoint, Origin::Engine, receiver, None, following).start(None, None)
        });
        Ok(feeds.collect())
    }

    /// A feed that follows what `receiver` brings from a subscription. It takes no snapshots: what proves one, others have.
    ///
    /// # Errors
    /// [`IndexError`]; nothing was registered then.
    pub(super) fn spawn_queued(
        identity: Identity,
        endpoint: String,
        following: Following,
        receiver: QueueReceiver,
        index: &Arc<Index>,
        board: &Arc<Board>,
    ) -> Result<Self, IndexError> {
        let registered = Registration::take(&identity, following.copies, index, board, &CancellationToken::new())?;
        let origin = Origin::Subscription;
        Ok(Assembled::new(registered, identity, endpoint, origin, receiver, None, following).start(None, None))
    }

    /// The rank's slot in the index.
    pub fn rank(&self) -> RankId {
        self.registration.rank
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
        let Self { entry, registration, link, mut runner, .. } = self;
        let ended = match within {
            Some(within) => timeout(within, &mut runner).await.ok(),
            None => None,
        };
        if within.is_some() && ended.is_none() {
            tracing::warn!(feed = %entry.identity, "The last snapshot was not taken in time.");
        }
        drop(registration);
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

// === impl Assembled ===

impl Assembled {
    /// Puts together what follows `receiver`, whose messages come from `endpoint`, for a rank that is registered.
    fn new(
        (registration, writer): (Registration, RankWriter),
        identity: Identity,
        endpoint: String,
        origin: Origin,
        receiver: QueueReceiver,
        replay: Option<ReplayOptions>,
        following: Following,
    ) -> Self {
        let normalizer = Normalizer::new(writer, following.normalize.clone());
        let asked = replay.as_ref().map(|replay| replay.endpoint.to_string());
        let entry = Entry::new(registration.rank, identity, endpoint, asked, following.engine);
        let entry = Arc::new(entry.with_origin(origin).queued(receiver.gauge()).with_orphans(normalizer.waiting()));
        let source = LinkSource::new(receiver, replay, registration.cancel.clone());
        Self { registration, entry, source, normalizer, following }
    }

    /// Puts the rank on the board, and starts its runner, which begins from a snapshot where there are any.
    fn start(self, link: Option<JoinHandle<()>>, snapshots: Option<(Snapshots, Arc<Index>)>) -> Feed {
        let Self { registration, entry, source, normalizer, following } = self;
        let Following { dialect, copies, timing, limits, .. } = following;
        registration.board.insert(Arc::clone(&entry));
        let finish = CancellationToken::new();
        let (told, shown, cancel) = (finish.clone(), Arc::clone(&entry), registration.cancel.clone());
        let runner = async move {
            let Some((snapshots, index)) = snapshots else {
                let runner = Runner::new(source, normalizer, shown, dialect, timing, limits);
                return runner.until(told).run(cancel).await;
            };
            let loaded = Keeper::load(snapshots, copies, index, Arc::clone(&shown), normalizer).await;
            let Some((keeper, start, normalizer)) = loaded else { return Ended::RankRemoved };
            let runner = Runner::new(source, normalizer, shown, dialect, timing, limits);
            runner.kept(keeper, start, limits).until(told).run(cancel).await
        };
        Feed { entry, registration, link, finish, runner: tokio::spawn(runner) }
    }
}

// === impl Registration ===

impl Registration {
    /// Registers a rank that never holds anything.
    pub(super) fn take_empty(
        identity: &Identity,
        copies: Copies,
        index: &Arc<Index>,
        board: &Arc<Board>,
    ) -> Result<Self, IndexError> {
        Self::take(identity, copies, index, board, &CancellationToken::new()).map(|(registration, _)| registration)
    }

    /// The rank's slot in the index.
    pub(crate) fn rank(&self) -> RankId {
        self.rank
    }

    /// Registers a rank. From here on whatever fails withdraws it again.
    pub(crate) fn take(
        identity: &Identity,
        copies: Copies,
        index: &Arc<Index>,
        board: &Arc<Board>,
        cancel: &CancellationToken,
    ) -> Result<(Self, RankWriter), IndexError> {
        let writer = index.register(&identity.model, copies)?;
        let (rank, index, board) = (writer.rank(), Arc::clone(index), Arc::clone(board));
        let registration = Self { rank, index, board, cancel: cancel.clone() };
        Ok((registration, writer))
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.cancel.cancel();
        self.board.remove(self.rank);
        self.index.remove(self.rank);
    }
}
