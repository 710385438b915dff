//! The admin port: its routes.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::{ConnectInfo, DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::codegen::Service;

use super::discovery::DiscoveryReport;
use super::metrics::{CONTENT_TYPE, Metrics, resident_bytes};
use super::page;
use super::ready::Readiness;
use super::reloads::ConfigReport;
use super::report::{Fleet, RankReport, SnapshotFolder, VERSION, millis};
use super::requests::RequestMetrics;
use crate::net::{Bounds, ConnectionCounts, Door, Ending, Slot, Slots, Socket, Stream, Watched};
use crate::roster::EntryReport;
use crate::telemetry::{Happening, Telemetry};

/// What the admin port shows.
#[derive(Clone, Debug)]
pub struct Admin {
    fleet: Arc<Fleet>,
    requests: RequestMetrics,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    bounds: Bounds,
    counts: ConnectionCounts,
    telemetry: Telemetry,
}

#[derive(Serialize)]
struct Status {
    version: &'static str,
    uptime_ms: u64,
    ready: bool,
    /// The least important level of log lines; empty where it cannot be changed.
    log_level: &'static str,
    /// Memory of the process that is resident, in bytes, where the system says it.
    memory_bytes: Option<u64>,
    /// Requests answered, by call and outcome.
    requests: BTreeMap<&'static str, BTreeMap<&'static str, u64>>,
    /// The folder of the snapshots; null where none is configured.
    snapshots: Option<SnapshotFolder>,
    workers: Vec<RankReport>,
    roster: Vec<EntryReport>,
    config: ConfigReport,
    discovery: DiscoveryReport,
    /// The newest first.
    happenings: Vec<Happening>,
}

/// How long open requests may take once the port is told to close.
const GRACE: Duration = Duration::from_secs(1);
/// The port's word in metrics.
const PORT: &str = "admin";

/// The longest request body that is read, in bytes: a level is a word.
const LONGEST_BODY: usize = 1024;

// === impl Admin ===

impl Admin {
    /// The admin port of `fleet`.
    pub fn new(fleet: Arc<Fleet>, requests: &RequestMetrics, readiness: Readiness) -> Self {
        let metrics = Arc::new(Metrics::new(&fleet, requests));
        Self {
            fleet,
            requests: requests.clone(),
            metrics,
            readiness,
            bounds: BOUNDS,
            counts: requests.connections.clone(),
            telemetry: Telemetry::default(),
        }
    }

    /// The same, with these bounds on whoever connects.
    #[must_use]
    pub fn bounded(self, bounds: Bounds) -> Self {
        Self { bounds, ..self }
    }

    /// The same, which also shows the last happenings and lets the log level be changed.
    #[must_use]
    pub fn telling(self, telemetry: Telemetry) -> Self {
        Self { telemetry, ..self }
    }

    fn router(self) -> Router {
        Router::new()
            .route("/", get(page::page))
            .route("/live", get(|| async { "live\n" }))
            .route("/ready", get(ready))
            .route("/metrics", get(metrics))
            .route("/status", get(status))
            .route("/log-level", get(log_level).post(set_log_level))
            .layer(DefaultBodyLimit::max(LONGEST_BODY))
            .with_state(self)
    }
}

/// What whoever connects is granted: probes and scrapers ask at once, and come again.
const BOUNDS: Bounds = Bounds {
    connections: 64,
    handshake: Duration::from_secs(10),
    idle: Duration::from_secs(10),
    stall: Duration::from_secs(10),
};

/// Answers on `listener` until `shutdown`, then closes; a request still open a second later is cut off.
///
/// While gRPC drains this port must still say 503, so `shutdown` belongs to a token that is cancelled afterwards.
///
/// # Errors
/// None: a connection that fails costs that connection.
pub async fn serve(listener: TcpListener, admin: Admin, shutdown: CancellationToken) -> io::Result<()> {
    let (bounds, counts) = (admin.bounds, admin.counts.clone());
    let router = admin.router();
    let slots = Slots::new(bounds.connections, counts.clone(), PORT);
    let mut door = Door::new(Socket::Tcp(listener), slots, counts, PORT);
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            () = shutdown.cancelled() => break,
            (stream, slot) = door.accept() => {
                open.spawn(converse(stream, slot, bounds, router.clone(), shutdown.clone()));
            }
            // However a connection has ended, it is over.
            Some(_) = open.join_next() => {}
        }
    }
    drop(door);
    // What is still open then is cut off with the set.
    let _ = tokio::time::timeout(GRACE, async { while open.join_next().await.is_some() {} }).await;
    Ok(())
}

/// One connection, until it ends.
async fn converse(stream: Box<dyn Stream>, slot: Slot, bounds: Bounds, router: Router, shutdown: CancellationToken) {
    let (stream, sight) = Watched::new(stream, bounds.stall);
    let slot = Arc::new(slot);
    let asked = Arc::clone(&slot);
    let peer = slot.peer();
    let service = service_fn(move |mut request: Request<Incoming>| {
        let busy = asked.busy();
        if let Some(peer) = peer {
            request.extensions_mut().insert(ConnectInfo(peer));
        }
        let answer = router.clone().call(request);
        async move {
            let answer = answer.await;
            drop(busy);
            answer
        }
    });
    let mut http = http1::Builder::new();
    // The time that a head may take is also the time between two requests.
    http.timer(TokioTimer::new()).header_read_timeout(bounds.handshake.min(bounds.idle)).half_close(false);
    let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
    let mut closing = false;
    loop {
        tokio::select! {
            ended = &mut connection => {
                let late = ended.is_err_and(|error| error.is_timeout());
                if sight.has_stalled() {
                    slot.closed(Ending::Stalled);
                } else if late {
                    slot.closed(if sight.received() == 0 { Ending::Handshake } else { Ending::Idle });
                }
                return;
            }
            () = slot.evicted() => return,
            () = shutdown.cancelled(), if !closing => {
                closing = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

async fn ready(State(admin): State<Admin>) -> Response {
    if admin.readiness.is_ready() {
        "ready\n".into_response()
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "gRPC does not answer: starting, or draining\n").into_response()
    }
}

async fn metrics(State(admin): State<Admin>) -> Response {
    match admin.metrics.encode() {
        Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be written\n").into_response(),
    }
}

async fn status(State(admin): State<Admin>) -> Response {
    let status = Status {
        version: VERSION,
        uptime_ms: millis(admin.fleet.uptime()),
        ready: admin.readiness.is_ready(),
        log_level: admin.telemetry.level.get(),
        memory_bytes: resident_bytes(),
        requests: admin.requests.counts(),
        snapshots: admin.fleet.snapshots().cloned(),
        workers: admin.fleet.reports(),
        roster: admin.fleet.standing.picture().entries,
        config: admin.fleet.reloads.report(),
        discovery: admin.fleet.discovered.report(),
        happenings: admin.telemetry.recent.list(),
    };
    match serde_json::to_vec(&status) {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn log_level(State(admin): State<Admin>) -> String {
    format!("{}\n", admin.telemetry.level.get())
}

/// Changes the level of log lines, for whoever is inside the pod (a port that is forwarded is). The port is open to
/// the network and asks nobody who they are, so nobody else may; nor may a web page that such a person's browser shows,
/// which is what an `Origin` says.
async fn set_log_level(
    State(admin): State<Admin>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    headers: HeaderMap,
    body: String,
) -> Response {
    if !peer.ip().to_canonical().is_loopback() || headers.contains_key(header::ORIGIN) {
        return (StatusCode::FORBIDDEN, "the level can be changed from this host only\n").into_response();
    }
    match admin.telemetry.level.set(body.trim()) {
        Ok(()) => log_level(State(admin)).await.into_response(),
        Err(error) => (StatusCode::BAD_REQUEST, format!("{error}\n")).into_response(),
    }
}
