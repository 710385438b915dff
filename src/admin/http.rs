//! The admin port.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use serde::Serialize;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::metrics::{CONTENT_TYPE, Metrics};
use super::ready::Readiness;
use super::report::{Fleet, RankReport, SnapshotFolder, VERSION, millis};
use super::requests::RequestMetrics;

/// What the admin port shows.
#[derive(Clone, Debug)]
pub struct Admin {
    fleet: Arc<Fleet>,
    metrics: Arc<Metrics>,
    readiness: Readiness,
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

// === impl Admin ===

impl Admin {
    /// The admin port of `fleet`.
    pub fn new(fleet: Arc<Fleet>, requests: &RequestMetrics, readiness: Readiness) -> Self {
        let metrics = Arc::new(Metrics::new(&fleet, requests));
        Self { fleet, metrics, readiness }
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

/// Answers on `listener` until `shutdown`, then closes; a request still open a second later is cut off.
///
/// While gRPC drains this port must still say 503, so `shutdown` belongs to a token that is cancelled afterwards.
///
/// # Errors
/// Those of the listening socket.
pub async fn serve(listener: TcpListener, admin: Admin, shutdown: CancellationToken) -> io::Result<()> {
    let closing = shutdown.clone();
    let server = axum::serve(listener, admin.router()).with_graceful_shutdown(shutdown.cancelled_owned());
    tokio::select! {
        served = async { server.await } => served,
        () = async {
            closing.cancelled().await;
            tokio::time::sleep(GRACE).await;
        } => Ok(()),
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
