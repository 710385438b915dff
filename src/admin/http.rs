//! The admin port.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
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

use super::metrics::{CONTENT_TYPE, Metrics};
use super::ready::Readiness;
use super::report::{Fleet, RankReport, SnapshotFolder, VERSION, millis};
use super::requests::RequestMetrics;
use crate::net::{Bounds, ConnectionCounts, Door, Ending, Slot, Slots, Socket, Stream, Watched};

/// What the admin port shows.
#[derive(Clone, Debug)]
pub struct Admin {
    fleet: Arc<Fleet>,
    metrics: Arc<Metrics>,
    readiness: Readiness,
    bounds: Bounds,
    counts: ConnectionCounts,
}

#[derive(Serialize)]
struct Status {
    version: &'static str,
    uptime_ms: u64,
    ready: bool,
    /// The folder of the snapshots; null where none is configured.
    snapshots: Option<SnapshotFolder>,
    workers: Vec<RankReport>,
}

/// How long open requests may take once the port is told to close.
const GRACE: Duration = Duration::from_secs(1);
/// The port's word in metrics.
const PORT: &str = "admin";

// === impl Admin ===

impl Admin {
    /// The admin port of `fleet`.
    pub fn new(fleet: Arc<Fleet>, requests: &RequestMetrics, readiness: Readiness) -> Self {
        let metrics = Arc::new(Metrics::new(&fleet, requests));
        Self { fleet, metrics, readiness, bounds: BOUNDS, counts: requests.connections.clone() }
    }

    /// The same, with these bounds on whoever connects.
    pub const fn bounded(mut self, bounds: Bounds) -> Self {
        self.bounds = bounds;
        self
    }

    fn router(self) -> Router {
        Router::new()
            .route("/live", get(|| async { "live\n" }))
            .route("/ready", get(ready))
            .route("/metrics", get(metrics))
            .route("/status", get(status))
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
    let service = service_fn(move |request: Request<Incoming>| {
        let busy = asked.busy();
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
        snapshots: admin.fleet.snapshots().cloned(),
        workers: admin.fleet.reports(),
    };
    match serde_json::to_vec(&status) {
        Ok(json) => ([(header::CONTENT_TYPE, "application/json")], json).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}
