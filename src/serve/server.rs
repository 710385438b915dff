//! One gRPC server on any number of sockets.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tonic::service::{Routes, RoutesBuilder};
use tonic::transport::Server;
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::explain::Explains;
use super::listen::{Listener, tcp_connections, unix_connections};
use super::oversize::Named;
use super::query::Queries;
use super::watch::{Hub, Watches};
use crate::admin::{Fleet, Readiness, RequestMetrics};
use crate::proto::DESCRIPTORS;
use crate::proto::v1::explain_service_server::{ExplainServiceServer, SERVICE_NAME as EXPLAIN_SERVICE};
use crate::proto::v1::query_service_server::{QueryServiceServer, SERVICE_NAME};
use crate::proto::v1::watch_service_server::{SERVICE_NAME as WATCH_SERVICE, WatchServiceServer};

/// How the server behaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// The largest request that is read, in bytes. A prompt of a million tokens as raw bytes is 4 MiB.
    pub max_message_bytes: usize,
    /// Whether the reflection service answers.
    pub reflection: bool,
    /// How long requests that are in flight at shutdown may take.
    pub grace: Duration,
    /// What watching may cost.
    pub watch: WatchLimits,
}

/// What watching the normalized feed may cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatchLimits {
    /// Watchers at one time.
    pub watchers: usize,
    /// Bytes of history that are kept, so that watches can be resumed. A watcher that has half of it before it is cut.
    pub history_bytes: u64,
    /// Tells this server's numbers from those of another: any number.
    pub instance: u64,
}

/// Why the server stopped before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A socket does not say where it is bound.
    #[error("a listening socket has no address: {0}")]
    NoAddress(#[from] io::Error),
    /// The descriptors that reflection serves do not decode.
    #[error("the protocol's descriptors do not decode: {0}")]
    Descriptors(#[from] tonic_reflection::server::Error),
    /// The transport failed.
    #[error("the gRPC transport failed: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// A server task failed.
    #[error("a gRPC server task failed: {0}")]
    Task(#[from] JoinError),
}

/// How often an idle connection is probed, and how long its answer may take: half-open connections end.
const KEEPALIVE: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(10));

/// Answers on `listeners` until `shutdown`, then drains.
///
/// Says `grpc listening on ADDR` on standard error for each socket once it answers, and sets `readiness`. The drain:
/// `readiness` is cleared and health says `NOT_SERVING`; no connection is accepted any more; streams end between two
/// requests; what is in flight is finished within [`Options::grace`] and cut off after it. Files of unix sockets are
/// removed.
///
/// # Errors
/// [`ServeError`] where the server ended without being told to.
pub async fn run(
    listeners: Vec<Listener>,
    fleet: Arc<Fleet>,
    requests: RequestMetrics,
    readiness: Readiness,
    options: Options,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let health = HealthReporter::new();
    let stop = CancellationToken::new();
    let hub = Hub::start(Arc::clone(&fleet), requests.clone(), options.watch, stop.clone());
    let queries = Queries::new(fleet, requests, stop.clone(), options.max_message_bytes);
    let routes = routes(queries, hub, &health, options)?;

    let mut lines = Vec::with_capacity(listeners.len());
    let mut files: Vec<PathBuf> = Vec::new();
    let mut servers = JoinSet::new();
    for listener in listeners {
        lines.push(format!("grpc listening on {}", listener.address()?));
        let mut server =
            Server::builder().http2_keepalive_interval(Some(KEEPALIVE.0)).http2_keepalive_timeout(Some(KEEPALIVE.1));
        let router = server.add_routes(routes.clone());
        let stopped = stop.clone().cancelled_owned();
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
    report(&health, ServingStatus::Serving).await;
    readiness.set(true);
    for line in lines {
        eprintln!("{line}");
    }

    let ended = tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        Some(server) = servers.join_next() => server.map_err(ServeError::from).and_then(|served| Ok(served?)),
    };
    readiness.set(false);
    report(&health, ServingStatus::NotServing).await;
    end_health_watches(health).await;
    stop.cancel();
    let drained = tokio::time::timeout(options.grace, async { while servers.join_next().await.is_some() {} });
    if drained.await.is_err() {
        tracing::warn!(grace = ?options.grace, "Requests were cut off at the end of the grace.");
    }
    for file in files {
        if let Err(error) = std::fs::remove_file(&file) {
            tracing::warn!(file = %file.display(), %error, "The socket file could not be removed.");
        }
    }
    ended
}

fn routes(queries: Queries, hub: Arc<Hub>, health: &HealthReporter, options: Options) -> Result<Routes, ServeError> {
    let service = QueryServiceServer::new(queries).max_decoding_message_size(options.max_message_bytes);
    let explain = ExplainServiceServer::new(Explains(Arc::clone(&hub)));
    let explain = explain.max_decoding_message_size(options.max_message_bytes);
    let mut routes = RoutesBuilder::default();
    routes
        .add_service(Named::new(service, options.max_message_bytes))
        .add_service(explain)
        .add_service(WatchServiceServer::new(Watches(hub)))
        .add_service(HealthServer::new(HealthService::from_health_reporter(health.clone())));
    if options.reflection {
        let reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            .build_v1()?;
        routes.add_service(reflection);
    }
    Ok(routes.routes().prepare())
}

/// Reports `status` for the server as a whole and for its service.
async fn report(health: &HealthReporter, status: ServingStatus) {
    for service in ["", SERVICE_NAME, WATCH_SERVICE, EXPLAIN_SERVICE] {
        health.set_service_status(service, status).await;
    }
}

/// A watch of health would hold its connection until the end of the grace. It has been told; it may end.
async fn end_health_watches(mut health: HealthReporter) {
    for service in ["", SERVICE_NAME, WATCH_SERVICE, EXPLAIN_SERVICE] {
        health.clear_service_status(service).await;
    }
}

// === impl Options ===

impl Default for Options {
    /// 8 MiB (a million tokens in any form), reflection on, 10 s.
    fn default() -> Self {
        let (reflection, grace) = (true, Duration::from_secs(10));
        Self { max_message_bytes: 8 << 20, reflection, grace, watch: WatchLimits::default() }
    }
}

// === impl WatchLimits ===

impl Default for WatchLimits {
    /// 64 watchers, 32 MiB, a number of this call's own.
    fn default() -> Self {
        Self { watchers: 64, history_bytes: 32 << 20, instance: fastrand::u64(1..) }
    }
}
