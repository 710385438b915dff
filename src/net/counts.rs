//! What becomes of connections, counted.

use std::fmt;

use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// Why this side closed a connection, or did not accept one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ending {
    /// Every slot was taken and nobody was idle: the new one went.
    Crowded,
    /// Every slot was taken: this one had been idle longest.
    Evicted,
    /// The protocol's beginning did not come in time.
    Handshake,
    /// TLS was refused: no TLS, or a certificate that does not do.
    Tls,
    /// No request for long.
    Idle,
    /// The peer took nothing of what was written for it.
    Stalled,
    /// The operating system had no descriptor or no memory for it.
    NotAccepted,
}

/// Connections of each port: open now, and closed from this side by reason. Clones share the counts.
#[derive(Clone, Debug)]
pub struct ConnectionCounts {
    open: Family<Port, Gauge>,
    closed: Family<Closed, Counter>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Port {
    port: &'static str,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Closed {
    port: &'static str,
    reason: &'static str,
}

// === impl Ending ===

impl Ending {
    /// Every reason.
    pub const ALL: [Self; 7] =
        [Self::Crowded, Self::Evicted, Self::Handshake, Self::Tls, Self::Idle, Self::Stalled, Self::NotAccepted];

    /// A stable word for metrics.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Crowded => "crowded",
            Self::Evicted => "evicted",
            Self::Handshake => "handshake",
            Self::Tls => "tls",
            Self::Idle => "idle",
            Self::Stalled => "stalled",
            Self::NotAccepted => "not_accepted",
        }
    }
}

// === impl ConnectionCounts ===

impl ConnectionCounts {
    /// The ports there are, by their word in metrics.
    pub const PORTS: [&str; 3] = ["grpc", "admin", "admin_rpc"];

    /// Everything at 0.
    pub fn new() -> Self {
        let counts = Self { open: Family::default(), closed: Family::default() };
        for port in Self::PORTS {
            drop(counts.open.get_or_create(&Port { port }));
            for ending in Ending::ALL {
                drop(counts.closed.get_or_create(&Closed { port, reason: ending.reason() }));
            }
        }
        counts
    }

    /// One connection more is open.
    pub fn opened(&self, port: &'static str) {
        self.open.get_or_create(&Port { port }).inc();
    }

    /// One connection less is open.
    pub fn ended(&self, port: &'static str) {
        self.open.get_or_create(&Port { port }).dec();
    }

    /// This side closed one, or did not accept it.
    pub fn closed(&self, port: &'static str, ending: Ending) {
        self.closed.get_or_create(&Closed { port, reason: ending.reason() }).inc();
    }

    /// Puts them into a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register("kvtap_connections", "Connections open now, by port", self.open.clone());
        registry.register(
            "kvtap_connections_closed",
            "Connections that this side closed or did not accept, by port and reason",
            self.closed.clone(),
        );
    }
}

impl Default for ConnectionCounts {
    fn default() -> Self {
        Self::new()
    }
}

impl EncodeLabelSet for Port {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        [("port", self.port)].encode(encoder)
    }
}

impl EncodeLabelSet for Closed {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        [("port", self.port), ("reason", self.reason)].encode(encoder)
    }
}
