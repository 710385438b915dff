//! The Admin service: feeds added, changed and removed by call, on sockets of its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tonic::service::RoutesBuilder;
use tonic::{Request, Response, Status};

use super::connection::KeepAlive;
use super::limits::{Limiter, Limits};
use super::listen::Listener;
use super::server::ServeError;
use super::sockets::{Guard, Service, Sockets};
use super::tls::TlsFiles;
use crate::admin::RequestMetrics;
use crate::net::Bounds;
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

/// What tells the callers apart; nothing by default, and then they must come from this host.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Guards {
    /// TLS on tcp sockets. With authorities, callers must show a certificate of theirs.
    pub tls: Option<TlsFiles>,
    /// The file of the bearer token that callers must show on every socket.
    pub token_file: Option<PathBuf>,
}

/// The port's word in metrics, and the section of its settings.
const PORT: &str = "admin_rpc";

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

/// Begins to serve on `listeners`; the future ends after `shutdown`, and what was under way then has had 3 s at most.
/// Says `admin rpc listening on ADDR` on standard error for each socket. Files of unix sockets are removed.
///
/// Must be called within a tokio runtime.
///
/// # Errors
/// [`ServeError`] where a file cannot be used or a socket has no address; from the future, where a server ended without
/// being told to.
pub fn open(
    listeners: Vec<Listener>,
    service: AdminRpc,
    requests: RequestMetrics,
    guards: Guards,
    shutdown: CancellationToken,
) -> Result<impl Future<Output = Result<(), ServeError>> + Send, ServeError> {
    let guard = Guard::load(PORT, guards.tls, guards.token_file)?;
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(ADMIN_DESCRIPTORS)
        .build_v1()?;
    let mut routes = RoutesBuilder::default();
    routes.add_service(AdminServiceServer::new(service).max_decoding_message_size(MAX_REQUEST)).add_service(reflection);
    let service = Service {
        routes: routes.routes().prepare(),
        queries: None,
        limiter: Limiter::new(limits()),
        metrics: requests,
        max_message_bytes: MAX_REQUEST,
        keep_alive: KeepAlive::default(),
        guard,
    };
    let stop = CancellationToken::new();
    let mut sockets = Sockets::open(PORT, listeners, service, stop.clone())?;
    sockets.announce("admin rpc");
    Ok(async move {
        let ended = tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            error = sockets.failed() => Err(error),
        };
        stop.cancel();
        sockets.close(GRACE).await;
        ended
    })
}

/// What operators' tools are granted.
fn limits() -> Limits {
    Limits {
        connections: Bounds { connections: 64, ..Bounds::default() },
        streams: 16,
        in_flight: 64,
        request_bytes: 16 << 20,
        ..Limits::default()
    }
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
