//! The Admin service: feeds added, changed and removed by call, on sockets of its own.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::service::RoutesBuilder;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::listen::{Listener, tcp_connections, unix_connections};
use super::server::ServeError;
use crate::proto::ADMIN_DESCRIPTORS;
use crate::proto::v1;
use crate::proto::v1::admin_service_server::{AdminService, AdminServiceServer};
use crate::proto::v1::put_feed_response::Outcome;
use crate::roster::{EntryReport, Place, Put, Roster, Source, Wanted};

/// Reads the specification of a feed: what it wants to run, and what an operator should be warned of; or everything
/// that is wrong with it, one line a fault. Whoever knows the configuration's rules brings it.
pub type ReadFeed = dyn Fn(v1::FeedSpec) -> Result<(Wanted, Vec<String>), String> + Send + Sync;

/// The Admin service of one roster.
#[derive(Clone)]
pub struct AdminRpc {
    roster: Roster,
    read: Arc<ReadFeed>,
}

/// The largest request that is read, in bytes: one feed with many names.
const MAX_REQUEST: usize = 1 << 20;

/// Feeds that calls may have put at a time.
const MAX_FEEDS: usize = 4096;

/// Ranks that a call may list.
const MAX_RANKS: usize = 4096;

/// How long calls in flight may take once the server is told to stop: a change is made to its end either way.
const GRACE: Duration = Duration::from_secs(3);

// === impl AdminRpc ===

impl AdminRpc {
    /// The service that changes `roster`, with `read` to understand what it is sent.
    pub fn new(roster: Roster, read: Arc<ReadFeed>) -> Self {
        Self { roster, read }
    }

    /// What sources want of one worker.
    fn entries(&self, worker: &str) -> Vec<EntryReport> {
        let entries = self.roster.standing().picture().entries;
        entries.into_iter().filter(|entry| entry.worker == worker).collect()
    }

    fn is_full(&self, worker: &str) -> bool {
        let entries = self.roster.standing().picture().entries;
        let mut put = entries.iter().filter(|entry| entry.source == Source::Admin);
        put.clone().count() >= MAX_FEEDS && put.all(|entry| entry.worker != worker)
    }
}

#[tonic::async_trait]
impl AdminService for AdminRpc {
    async fn put_feed(&self, request: Request<v1::PutFeedRequest>) -> Result<Response<v1::PutFeedResponse>, Status> {
        let spec = request.into_inner().feed.ok_or_else(|| Status::invalid_argument("feed: is required"))?;
        let (wanted, warnings) = (self.read)(spec).map_err(Status::invalid_argument)?;
        let worker = Arc::clone(&wanted.worker);
        if self.is_full(&worker) {
            return Err(Status::resource_exhausted(format!("feed: calls have put {MAX_FEEDS} feeds already")));
        }
        let (put, _) = self.roster.put(Source::Admin, wanted).await;
        let outcome = match put {
            Put::Added => Outcome::Added,
            Put::Changed => Outcome::Changed,
            Put::Unchanged => Outcome::Unchanged,
        };
        let entry = self.entries(&worker).into_iter().find(|entry| entry.source == Source::Admin);
        let entry = entry.map(entry_to_proto);
        Ok(Response::new(v1::PutFeedResponse { outcome: outcome.into(), entry, warnings }))
    }

    async fn remove_feed(
        &self,
        request: Request<v1::RemoveFeedRequest>,
    ) -> Result<Response<v1::RemoveFeedResponse>, Status> {
        let worker = named(request.into_inner().worker)?;
        let (removed, _) = self.roster.remove(Source::Admin, &worker).await;
        let remaining = self.entries(&worker).into_iter().map(entry_to_proto).collect();
        Ok(Response::new(v1::RemoveFeedResponse { removed, remaining }))
    }

    async fn clear_worker(
        &self,
        request: Request<v1::ClearWorkerRequest>,
    ) -> Result<Response<v1::ClearWorkerResponse>, Status> {
        let v1::ClearWorkerRequest { worker, ranks } = request.into_inner();
        let worker = named(worker)?;
        if ranks.len() > MAX_RANKS {
            return Err(Status::invalid_argument(format!("ranks: more than {MAX_RANKS} are listed")));
        }
        let cleared = self.roster.clear(&worker, &ranks).await;
        if cleared.is_empty() {
            let what = if self.entries(&worker).is_empty() {
                "nobody wants such a worker"
            } else {
                "none of its feeds was cleared: no such rank runs"
            };
            return Err(Status::not_found(format!("worker: {what}")));
        }
        Ok(Response::new(v1::ClearWorkerResponse { ranks: cleared }))
    }

    async fn dump(&self, _: Request<v1::DumpRequest>) -> Result<Response<v1::DumpResponse>, Status> {
        let entries = self.roster.standing().picture().entries;
        Ok(Response::new(v1::DumpResponse { entries: entries.into_iter().map(entry_to_proto).collect() }))
    }
}

impl std::fmt::Debug for AdminRpc {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdminRpc").field("roster", &self.roster).finish_non_exhaustive()
    }
}

fn named(worker: String) -> Result<String, Status> {
    if worker.is_empty() { Err(Status::invalid_argument("worker: is required")) } else { Ok(worker) }
}

/// Serves on `listeners`, until `shutdown` and then for [`GRACE`] at most. Says `admin rpc listening on ADDR` on
/// standard error for each socket. Files of unix sockets are removed.
///
/// # Errors
/// [`ServeError`] where the server cannot begin, or ended without being told to.
pub async fn run(listeners: Vec<Listener>, service: AdminRpc, shutdown: CancellationToken) -> Result<(), ServeError> {
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(ADMIN_DESCRIPTORS)
        .build_v1()?;
    let mut routes = RoutesBuilder::default();
    routes.add_service(AdminServiceServer::new(service).max_decoding_message_size(MAX_REQUEST)).add_service(reflection);
    let routes = routes.routes().prepare();
    let mut files: Vec<PathBuf> = Vec::new();
    let mut servers = JoinSet::new();
    for listener in listeners {
        eprintln!("admin rpc listening on {}", listener.address()?);
        let router = Server::builder().add_routes(routes.clone());
        let stopped = shutdown.clone().cancelled_owned();
        match listener {
            Listener::Tcp(socket) => {
                servers.spawn(router.serve_with_incoming_shutdown(tcp_connections(socket), stopped));
            }
            Listener::Unix(socket, file) => {
                files.push(file);
                servers.spawn(router.serve_with_incoming_shutdown(unix_connections(socket), stopped));
            }
        }
    }
    let ended = tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        Some(server) = servers.join_next() => server.map_err(ServeError::from).and_then(|served| Ok(served?)),
    };
    let drained = tokio::time::timeout(GRACE, async { while servers.join_next().await.is_some() {} });
    if drained.await.is_err() {
        tracing::warn!(grace = ?GRACE, "Admin calls were cut off at the end of the grace.");
    }
    for file in files {
        if let Err(error) = std::fs::remove_file(&file)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(file = %file.display(), %error, "The socket file could not be removed.");
        }
    }
    ended
}

fn entry_to_proto(entry: EntryReport) -> v1::FeedEntry {
    let source = match entry.source {
        Source::Config => v1::FeedSource::Config,
        Source::Admin => v1::FeedSource::Admin,
        Source::Discovery => v1::FeedSource::Discovery,
    };
    let place = match entry.place {
        Place::Running => v1::FeedPlace::Running,
        Place::SetAside => v1::FeedPlace::SetAside,
        Place::Failed => v1::FeedPlace::Failed,
    };
    v1::FeedEntry {
        worker: entry.worker,
        source: source.into(),
        origin: entry.origin,
        instance: entry.instance,
        place: place.into(),
        why: entry.why,
        model: entry.model,
        engine: entry.engine,
        address: entry.address,
        aliases: entry.aliases,
        ranks: entry.ranks,
        endpoint: entry.endpoint,
        replay_endpoint: entry.replay_endpoint.unwrap_or_default(),
    }
}

/// The same entry as the status page shows it.
///
/// # Errors
/// One line, where the server speaks of a source or a place that this program does not know.
pub fn entry_from_proto(entry: v1::FeedEntry) -> Result<EntryReport, String> {
    let source = match entry.source() {
        v1::FeedSource::Config => Source::Config,
        v1::FeedSource::Admin => Source::Admin,
        v1::FeedSource::Discovery => Source::Discovery,
        v1::FeedSource::Unspecified => return Err(format!("{}: a source that is not known here", entry.worker)),
    };
    let place = match entry.place() {
        v1::FeedPlace::Running => Place::Running,
        v1::FeedPlace::SetAside => Place::SetAside,
        v1::FeedPlace::Failed => Place::Failed,
        v1::FeedPlace::Unspecified => return Err(format!("{}: a place that is not known here", entry.worker)),
    };
    Ok(EntryReport {
        worker: entry.worker,
        source,
        origin: entry.origin,
        instance: entry.instance,
        place,
        why: entry.why,
        model: entry.model,
        engine: entry.engine,
        address: entry.address,
        aliases: entry.aliases,
        ranks: entry.ranks,
        endpoint: entry.endpoint,
        replay_endpoint: (!entry.replay_endpoint.is_empty()).then_some(entry.replay_endpoint),
    })
}
