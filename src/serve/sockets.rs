//! Services on sockets: who may call, what a connection is granted, and an end that comes in time.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;

use super::connection::{KeepAlive, Serving};
use super::gate::Gate;
use super::limits::Limiter;
use super::listen::Listener;
use super::query::QueryServer;
use super::server::ServeError;
use super::tls::{Tls, TlsFiles};
use super::token::Token;
use crate::admin::RequestMetrics;
use crate::net::{Door, Slots, Socket};
use crate::telemetry;

/// What tells callers apart, where anything does.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    tls: Option<Arc<Tls>>,
    token: Option<Arc<Token>>,
}

/// What is served.
#[derive(Debug)]
pub(super) struct Service {
    pub(super) routes: Routes,
    /// The query service, where there is one.
    pub(super) queries: Option<QueryServer>,
    pub(super) limiter: Limiter,
    pub(super) metrics: RequestMetrics,
    pub(super) max_message_bytes: usize,
    pub(super) keep_alive: KeepAlive,
    pub(super) guard: Guard,
}

/// Sockets on which a service is served.
#[derive(Debug)]
pub(super) struct Sockets {
    addresses: Vec<String>,
    /// Files of unix sockets.
    files: Vec<PathBuf>,
    servers: JoinSet<()>,
    looking: JoinHandle<()>,
}

/// How often mounted files are looked at.
const LOOK: Duration = Duration::from_secs(2);

// === impl Guard ===

impl Guard {
    /// Reads the files that `section` of the configuration names.
    pub(super) fn load(
        section: &'static str,
        tls: Option<TlsFiles>,
        token: Option<PathBuf>,
    ) -> Result<Self, ServeError> {
        let tls = tls.map(Tls::load).transpose().map_err(|error| ServeError::Tls(section, error))?.map(Arc::new);
        let token = token.map(Token::load).transpose();
        let token = token.map_err(|error| ServeError::Token(section, error))?.map(Arc::new);
        Ok(Self { tls, token })
    }

    /// Looks at the files every now and then.
    async fn look(self, requests: RequestMetrics, stop: CancellationToken) {
        if self.tls.is_none() && self.token.is_none() {
            return;
        }
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while !stop.is_cancelled() {
            ticks.tick().await;
            let Self { tls, token } = self.clone();
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
}

// === impl Sockets ===

impl Sockets {
    /// Serves on `listeners` from now on. `port` is their word in metrics; `stop` ends it.
    pub(super) fn open(
        port: &'static str,
        listeners: Vec<Listener>,
        service: Service,
        stop: CancellationToken,
    ) -> Result<Self, ServeError> {
        let Service { routes, queries, limiter, metrics, max_message_bytes, keep_alive, guard } = service;
        let limits = limiter.limits;
        let serving = |tls: Option<Arc<Tls>>| {
            let gate = Gate {
                routes: routes.clone(),
                queries: queries.clone(),
                limiter: limiter.clone(),
                metrics: metrics.clone(),
                token: guard.token.clone(),
                max_message_bytes,
            };
            Arc::new(Serving::new(gate, tls, &limits, keep_alive, stop.clone()))
        };
        let (plain, secure) = (serving(None), serving(guard.tls.clone()));
        let slots = Slots::new(limits.connections.connections, metrics.connections.clone(), port);
        let (mut addresses, mut files, mut servers) = (Vec::new(), Vec::new(), JoinSet::new());
        for listener in listeners {
            addresses.push(listener.address()?.to_string());
            let (socket, serving) = match listener {
                Listener::Tcp(socket) => (Socket::Tcp(socket), &secure),
                Listener::Unix(socket, file) => {
                    files.push(file);
                    (Socket::Unix(socket), &plain)
                }
            };
            let door = Door::new(socket, slots.clone(), metrics.connections.clone(), port);
            servers.spawn(accept(door, Arc::clone(serving), stop.clone()));
        }
        let looking = tokio::spawn(guard.look(metrics, stop));
        Ok(Self { addresses, files, servers, looking })
    }

    /// Says `WHAT listening on ADDR` on standard error for each socket.
    pub(super) fn announce(&self, what: &str) {
        for address in &self.addresses {
            telemetry::announce(&format!("{what} listening on {address}"));
        }
    }

    /// Returns where a socket is served no more, though nobody has said so.
    pub(super) async fn failed(&mut self) -> ServeError {
        loop {
            match self.servers.join_next().await {
                Some(Err(error)) => return error.into(),
                // Told to stop: then nobody waits here any more.
                Some(Ok(())) => {}
                None => std::future::pending().await,
            }
        }
    }

    /// Waits, after the stop, for what is under way, within `grace`; removes the files of unix sockets.
    pub(super) async fn close(mut self, grace: Duration) {
        let drained = tokio::time::timeout(grace, async { while self.servers.join_next().await.is_some() {} });
        if drained.await.is_err() {
            tracing::warn!(?grace, "Requests were cut off at the end of the grace.");
        }
        self.looking.abort();
        for file in self.files {
            if let Err(error) = std::fs::remove_file(&file) {
                tracing::warn!(file = %file.display(), %error, "The socket file could not be removed.");
            }
        }
    }
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
