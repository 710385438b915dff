//! One connection, from its first byte to its last.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::gate::{Gate, Passage};
use super::limits::Limits;
use super::outbox::outbox;
use super::tls::Tls;
use crate::net::{Bounds, Ending, Sight, Slot, Stream, Watched};

/// How half-open connections are noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeepAlive {
    /// Silence after which the peer is asked for a sign of life.
    pub interval: Duration,
    /// How long its answer may take.
    pub timeout: Duration,
}

/// What all connections have in common.
#[derive(Debug)]
pub(super) struct Serving {
    gate: Arc<Gate>,
    http: http2::Builder<TokioExecutor>,
    tls: Option<Arc<Tls>>,
    bounds: Bounds,
    stop: CancellationToken,
}

/// What an HTTP/2 client sends before anything else: 24 bytes of preface, and the head of its settings.
const BEGINNING: u64 = 24 + 9;
/// How long an idle connection may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(1);
/// Streams that a client has opened and reset before they were looked at, per connection; beyond, it is closed.
const RESETS: usize = 64;
/// The largest head of a request, in bytes.
const HEADERS: u32 = 16 << 10;
/// The largest frame that is taken, in bytes: a prompt of usual length comes in one, which is read at once.
const FRAME: u32 = 64 << 10;
/// What may be under way to this side unread, in bytes: per stream, and per connection.
const WINDOWS: (u32, u32) = (1 << 20, 2 << 20);

// === impl Serving ===

impl Serving {
    pub(super) fn new(
        gate: Gate,
        tls: Option<Arc<Tls>>,
        limits: &Limits,
        alive: KeepAlive,
        stop: CancellationToken,
    ) -> Self {
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .keep_alive_interval(alive.interval)
            .keep_alive_timeout(alive.timeout)
            .max_concurrent_streams(limits.streams)
            .max_pending_accept_reset_streams(RESETS)
            .max_header_list_size(HEADERS)
            .max_frame_size(FRAME)
            .initial_stream_window_size(WINDOWS.0)
            .initial_connection_window_size(WINDOWS.1);
        Self { gate: Arc::new(gate), http, tls, bounds: limits.connections, stop }
    }

    /// Serves one connection until it ends.
    pub(super) async fn serve(self: Arc<Self>, stream: Box<dyn Stream>, slot: Slot) {
        let Some(tls) = &self.tls else { return self.speak(stream, slot).await };
        let handshake = timeout(self.bounds.handshake, TlsAcceptor::from(tls.current()).accept(stream));
        tokio::select! {
            shaken = handshake => match shaken {
                Ok(Ok(stream)) => self.speak(stream, slot).await,
                Ok(Err(error)) => {
                    slot.closed(Ending::Tls);
                    tracing::debug!(%error, "A TLS handshake failed.");
                }
                Err(_) => slot.closed(Ending::Handshake),
            },
            () = slot.evicted() => {}
            () = self.stop.cancelled() => {}
        }
    }

    async fn speak(&self, stream: impl Stream, slot: Slot) {
        let (stream, sight) = Watched::new(stream, self.bounds.stall);
        self.watch(stream, &sight, Arc::new(slot)).await;
    }

    /// Lets HTTP/2 be spoken, and ends it where nothing comes of it.
    async fn watch(&self, stream: impl Stream, sight: &Sight, slot: Arc<Slot>) {
        let (writing, mut outbox) = outbox(stream);
        let passage = Passage::new(Arc::clone(&self.gate), Arc::clone(&slot));
        let mut connection = pin!(self.http.serve_connection(TokioIo::new(writing), passage));
        let mut begun = pin!(sleep(self.bounds.handshake));
        let mut idle = pin!(sleep(self.bounds.idle));
        let mut goodbye = pin!(sleep(Duration::MAX));
        let (mut beginning, mut ending, mut draining) = (true, false, false);
        loop {
            tokio::select! {
                // Whatever came of it, it is over.
                () = poll_fn(|cx| outbox.poll(cx, connection.as_mut())) => {
                    if sight.has_stalled() {
                        slot.closed(Ending::Stalled);
                    }
                    return;
                }
                () = &mut begun, if beginning && !ending => {
                    beginning = false;
                    if sight.received() < BEGINNING {
                        return slot.closed(Ending::Handshake);
                    }
                }
                () = &mut idle, if !ending => match slot.idle_for() {
                    Some(time) if time >= self.bounds.idle => {
                        slot.closed(Ending::Idle);
                        ending = true;
                        connection.as_mut().graceful_shutdown();
                        goodbye.set(sleep(GOODBYE));
                    }
                    time => idle.set(sleep(self.bounds.idle.saturating_sub(time.unwrap_or_default()))),
                },
                () = &mut goodbye, if ending => return,
                // The slot has been given away already.
                () = slot.evicted() => return,
                () = self.stop.cancelled(), if !draining => {
                    draining = true;
                    connection.as_mut().graceful_shutdown();
                    // Whoever asks nothing may not hold the drain, and may be gone without a word.
                    if slot.idle_for().is_some() && !ending {
                        ending = true;
                        goodbye.set(sleep(GOODBYE));
                    }
                }
            }
        }
    }
}

impl Default for KeepAlive {
    /// Asked after 30 s of silence, 10 s for the answer.
    fn default() -> Self {
        Self { interval: Duration::from_secs(30), timeout: Duration::from_secs(10) }
    }
}
