//! One gRPC server on any number of sockets.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinError;
use tokio_util::sync::CancellationToken;
use tonic::service::{Routes, RoutesBuilder};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::connection::KeepAlive;
use super::explain::Explains;
use super::files::FileError;
use super::kv_events;
use super::limits::{Limiter, Limits};
use super::listen::Listener;
use super::pod_scores::PodScores;
use super::query::{Queries, QueryServer};
use super::sockets::{Guard, Service, Sockets};
use super::stream::Grace;
use super::tls::TlsFiles;
use super::watch::{Hub, Watches};
use crate::admin::{Fleet, Readiness, RequestMetrics};
use crate::proto::indexer::indexer_service_server::IndexerServiceServer;
use crate::proto::v1::explain_service_server::{ExplainServiceServer, SERVICE_NAME as EXPLAIN_SERVICE};
use crate::proto::v1::query_service_server::SERVICE_NAME;
use crate::proto::v1::watch_service_server::{SERVICE_NAME as WATCH_SERVICE, WatchServiceServer};
use crate::proto::{DESCRIPTORS, LLM_D_DESCRIPTORS, SMG_DESCRIPTORS};

/// How the server behaves.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// The largest request that is read, in bytes. A prompt of a million tokens as raw bytes is 4 MiB.
    pub max_message_bytes: usize,
    /// Whether the reflection service answers.
    pub reflection: bool,
    /// How long requests that are in flight at shutdown may take.
    pub grace: Duration,
    /// What callers are granted.
    pub limits: Limits,
    /// How half-open connections are noticed.
    pub keep_alive: KeepAlive,
    /// TLS on tcp sockets, from these files; without them, plaintext. Unix sockets are plaintext always.
    pub tls: Option<TlsFiles>,
    /// The file of the bearer token that callers must show on every socket; health needs none.
    pub token_file: Option<PathBuf>,
    /// Services of other projects that are answered too.
    pub adapters: Vec<Adapter>,
    /// What watching may cost.
    pub watch: WatchLimits,
}

/// What watching the normalized feed may cost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WatchLimits {
    /// Watchers at one time.
    pub watchers: usize,
    /// Bytes of history that are kept, so that watches can be resumed. A watcher that falls behind by more than half of it is cut.
    pub history_bytes: u64,
}

/// A service of another project.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Adapter {
    /// llm-d's `indexer.v1.IndexerService`.
    LlmD,
    /// The `SubscribeKvEvents` of the engines that SMG's gateway follows.
    Smg,
}

/// Why the server does not start, or stopped before it was told to.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// A socket does not say where it is bound.
    #[error("a listening socket has no address: {0}")]
    NoAddress(#[from] io::Error),
    /// The descriptors that reflection serves do not decode.
    #[error("the protocol's descriptors do not decode: {0}")]
    Descriptors(#[from] tonic_reflection::server::Error),
    /// The files of TLS of a section of the configuration cannot be used.
    #[error("{0}.tls: {1}")]
    Tls(&'static str, FileError),
    /// The file of its token cannot be used.
    #[error("{0}.token_file: {1}")]
    Token(&'static str, FileError),
    /// A server task failed.
    #[error("a gRPC server task failed: {0}")]
    Task(#[from] JoinError),
}

/// The port's word in metrics, and the section of its settings.
const PORT: &str = "grpc";

/// Answers on `listeners` until `shutdown`, then drains.
///
/// Says `grpc listening on ADDR` on standard error for each socket once it answers, and sets `readiness`. The drain:
/// `readiness` is cleared and health says `NOT_SERVING`; no connection is accepted any more; streams answer what has
/// come and end; what is in flight is finished within [`Options::grace`] and cut off after it. Files of unix sockets
/// are removed.
///
/// # Errors
/// [`ServeError`] where a file cannot be used, or where the server ended without being told to.
pub async fn run(
    listeners: Vec<Listener>,
    fleet: Arc<Fleet>,
    requests: RequestMetrics,
    readiness: Readiness,
    options: Options,
    shutdown: CancellationToken,
) -> Result<(), ServeError> {
    let guard = Guard::load(PORT, options.tls.clone(), options.token_file.clone())?;
    let health = HealthReporter::new();
    let stop = CancellationToken::new();
    let hub = Hub::start(Arc::clone(&fleet), requests.clone(), options.watch, stop.clone());
    let limiter = Limiter::new(options.limits);
    let queries = Queries {
        fleet,
        metrics: requests.clone(),
        limiter: limiter.clone(),
        drain: stop.clone(),
        grace: Grace::of(options.grace),
    };
    let service = Service {
        queries: Some(QueryServer::new(queries.clone(), options.max_message_bytes)),
        routes: routes(queries, hub, &health, &options)?,
        limiter,
        metrics: requests,
        max_message_bytes: options.max_message_bytes,
        keep_alive: options.keep_alive,
        guard,
    };
    let mut sockets = Sockets::open(PORT, listeners, service, stop.clone())?;
    report(&health, ServingStatus::Serving).await;
    readiness.set(true);
    sockets.announce("grpc");

    let ended = tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        error = sockets.failed() => Err(error),
    };
    readiness.set(false);
    report(&health, ServingStatus::NotServing).await;
    end_health_watches(health).await;
    stop.cancel();
    sockets.close(options.grace).await;
    ended
}

fn routes(queries: Queries, hub: Arc<Hub>, health: &HealthReporter, options: &Options) -> Result<Routes, ServeError> {
    // The gate refuses what is larger than the limit, in words that a caller can act on.
    let mut routes = RoutesBuilder::default();
    if options.adapters.contains(&Adapter::LlmD) {
        let scores = IndexerServiceServer::new(PodScores(queries.clone()));
        routes.add_service(scores.max_decoding_message_size(options.max_message_bytes));
    }
    let limiter = queries.limiter.clone();
    routes
        .add_service(
            ExplainServiceServer::new(Explains { hub: Arc::clone(&hub), limiter: limiter.clone() })
                .max_decoding_message_size(options.max_message_bytes),
        )
        .add_service(WatchServiceServer::new(Watches(Arc::clone(&hub))))
        .add_service(HealthServer::new(HealthService::from_health_reporter(health.clone())));
    if options.adapters.contains(&Adapter::Smg) {
        kv_events::add(&mut routes, hub);
    }
    if options.reflection {
        let mut reflection = tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET);
        for adapter in &options.adapters {
            reflection = reflection.register_encoded_file_descriptor_set(match adapter {
                Adapter::LlmD => LLM_D_DESCRIPTORS,
                Adapter::Smg => SMG_DESCRIPTORS,
            });
        }
        routes.add_service(reflection.build_v1()?);
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
    /// 16 MiB (two million tokens in any form), reflection on, 10 s, plaintext.
    fn default() -> Self {
        Self {
            max_message_bytes: 16 << 20,
            reflection: true,
            grace: Duration::from_secs(10),
            limits: Limits::default(),
            keep_alive: KeepAlive::default(),
            tls: None,
            token_file: None,
            adapters: Vec::new(),
            watch: WatchLimits::default(),
        }
    }
}

// === impl WatchLimits ===

impl Default for WatchLimits {
    /// 64 watchers, 32 MiB.
    fn default() -> Self {
        Self { watchers: 64, history_bytes: 32 << 20 }
    }
}
