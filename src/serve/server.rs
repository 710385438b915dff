//! One gRPC server on any number of sockets.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinError, JoinSet};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic::service::{Routes, RoutesBuilder};
use tonic_health::ServingStatus;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::connection::{KeepAlive, Serving};
use super::explain::Explains;
use super::files::FileError;
use super::gate::Gate;
use super::kv_events;
use super::limits::{Limiter, Limits};
use super::listen::Listener;
use super::pod_scores::PodScores;
use super::query::Queries;
use super::stream::Grace;
use super::tls::{Tls, TlsFiles};
use super::token::Token;
use super::watch::{Hub, Watches};
use crate::admin::{Fleet, Readiness, RequestMetrics};
use crate::net::{Door, Slots, Socket};
use crate::proto::indexer::indexer_service_server::IndexerServiceServer;
use crate::proto::v1::explain_service_server::{ExplainServiceServer, SERVICE_NAME as EXPLAIN_SERVICE};
use crate::proto::v1::query_service_server::{QueryServiceServer, SERVICE_NAME};
use crate::proto::v1::watch_service_server::{SERVICE_NAME as WATCH_SERVICE, WatchServiceServer};
use crate::proto::{DESCRIPTORS, LLM_D_DESCRIPTORS, SMG_DESCRIPTORS};
use crate::telemetry;

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
    /// Bytes of history that are kept, so that watches can be resumed. A watcher that has half of it before it is cut.
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
    /// The files of TLS cannot be used.
    #[error("grpc.tls: {0}")]
    Tls(FileError),
    /// The file of the token cannot be used.
    #[error("grpc.token_file: {0}")]
    Token(FileError),
    /// The transport failed.
    #[error("the gRPC transport failed: {0}")]
    Transport(#[from] tonic::transport::Error),
    /// A server task failed.
    #[error("a gRPC server task failed: {0}")]
    Task(#[from] JoinError),
}

/// The port's word in metrics.
const PORT: &str = "grpc";
/// How often mounted files are looked at.
const LOOK: Duration = Duration::from_secs(2);

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
    let tls = options.tls.clone().map(Tls::load).transpose().map_err(ServeError::Tls)?.map(Arc::new);
    let token = options.token_file.clone().map(Token::load).transpose().map_err(ServeError::Token)?.map(Arc::new);
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
    let routes = routes(queries, hub, &health, &options)?;
    let serving = |tls: Option<Arc<Tls>>| {
        let gate = Gate {
            routes: routes.clone(),
            limiter: limiter.clone(),
            metrics: requests.clone(),
            token: token.clone(),
            max_message_bytes: options.max_message_bytes,
        };
        Arc::new(Serving::new(gate, tls, &options.limits, options.keep_alive, stop.clone()))
    };
    let (plain, secure) = (serving(None), serving(tls.clone()));

    let slots = Slots::new(options.limits.connections.connections, requests.connections.clone(), PORT);
    let mut lines = Vec::with_capacity(listeners.len());
    let mut files: Vec<PathBuf> = Vec::new();
    let mut servers = JoinSet::new();
    for listener in listeners {
        lines.push(format!("grpc listening on {}", listener.address()?));
        let (socket, serving) = match listener {
            Listener::Tcp(socket) => (Socket::Tcp(socket), &secure),
            Listener::Unix(socket, file) => {
                files.push(file);
                (Socket::Unix(socket), &plain)
            }
        };
        let door = Door::new(socket, slots.clone(), requests.connections.clone(), PORT);
        servers.spawn(accept(door, Arc::clone(serving), stop.clone()));
    }
    let looking = tokio::spawn(look(tls, token, requests, stop.clone()));
    report(&health, ServingStatus::Serving).await;
    readiness.set(true);
    for line in lines {
        telemetry::announce(&line);
    }

    let ended = tokio::select! {
        () = shutdown.cancelled() => Ok(()),
        Some(server) = servers.join_next() => server.map_err(ServeError::from),
    };
    readiness.set(false);
    report(&health, ServingStatus::NotServing).await;
    end_health_watches(health).await;
    stop.cancel();
    let drained = tokio::time::timeout(options.grace, async { while servers.join_next().await.is_some() {} });
    if drained.await.is_err() {
        tracing::warn!(grace = ?options.grace, "Requests were cut off at the end of the grace.");
    }
    looking.abort();
    for file in files {
        if let Err(error) = std::fs::remove_file(&file) {
            tracing::warn!(file = %file.display(), %error, "The socket file could not be removed.");
        }
    }
    ended
}

/// Serves what comes in by a door until `stop`, then waits for what is open.
async fn accept(mut door: Door, serving: Arc<Serving>, stop: CancellationToken) {
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            (stream, slot) = door.accept() => {
                open.spawn(Arc::clone(&serving).serve(stream, slot));
            }
            // However a connection has ended, it is over.
            Some(_) = open.join_next() => {}
        }
    }
    // The socket is closed before what is open has ended: nobody new waits for a server that goes.
    drop(door);
    while open.join_next().await.is_some() {}
}

/// Looks at mounted files every now and then.
async fn look(tls: Option<Arc<Tls>>, token: Option<Arc<Token>>, requests: RequestMetrics, stop: CancellationToken) {
    if tls.is_none() && token.is_none() {
        return;
    }
    let mut ticks = interval(LOOK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while !stop.is_cancelled() {
        ticks.tick().await;
        let (tls, token) = (tls.clone(), token.clone());
        // Files of a network volume may take their time.
        let looked = tokio::task::spawn_blocking(move || {
            [("tls", tls.and_then(|tls| tls.look())), ("token", token.and_then(|token| token.look()))]
        });
        for (what, outcome) in looked.await.into_iter().flatten() {
            let Some(outcome) = outcome else { continue };
            requests.record_reload(what, outcome.is_ok());
            match outcome {
                Ok(()) => tracing::info!(what, "Replaced files were read and are in force."),
                Err(error) => {
                    tracing::error!(what, %error, "Replaced files cannot be used: what was in force stays so.");
                }
            }
        }
    }
}

fn routes(queries: Queries, hub: Arc<Hub>, health: &HealthReporter, options: &Options) -> Result<Routes, ServeError> {
    // The gate refuses what is larger than the limit, in words that a caller can act on.
    let mut routes = RoutesBuilder::default();
    if options.adapters.contains(&Adapter::LlmD) {
        let scores = IndexerServiceServer::new(PodScores(queries.clone()));
        routes.add_service(scores.max_decoding_message_size(options.max_message_bytes));
    }
    let service = QueryServiceServer::new(queries).max_decoding_message_size(options.max_message_bytes);
    routes
        .add_service(service)
        .add_service(
            ExplainServiceServer::new(Explains(Arc::clone(&hub))).max_decoding_message_size(options.max_message_bytes),
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
    /// 8 MiB (a million tokens in any form), reflection on, 10 s, plaintext.
    fn default() -> Self {
        Self {
            max_message_bytes: 8 << 20,
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
