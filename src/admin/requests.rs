//! What the gRPC services count.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use prometheus_client::encoding::{EncodeLabelSet, LabelSetEncoder};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::{Registry, Unit};

use crate::net::ConnectionCounts;

/// A call that is counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rpc {
    /// One `Match`.
    Match,
    /// One request of a `MatchStream`.
    MatchStream,
    /// One request of a `MatchBatch`.
    MatchBatch,
    /// One `ListWorkers`.
    ListWorkers,
    /// One `Watch`, as it begins.
    Watch,
    /// One `Explain`.
    Explain,
    /// One `GetPodScores` of llm-d's indexer.
    GetPodScores,
    /// One `SubscribeKvEvents` of SMG's gateway, as it begins.
    SubscribeKvEvents,
}

/// Counters and latencies of the gRPC services.
#[derive(Clone, Debug)]
pub struct RequestMetrics {
    requests: Family<Outcome, Counter>,
    duration: Family<Call, Histogram>,
    asked: Counter,
    matched: Counter,
    refusals: Family<Refused, Counter>,
    reloads: Family<Reload, Counter>,
    /// The connections that the requests come by.
    pub connections: ConnectionCounts,
    watchers: Gauge,
    watches: Family<Begun, Counter>,
    cut: Counter,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Refused {
    reason: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Reload {
    what: &'static str,
    outcome: &'static str,
}

/// How a watch began.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Begun {
    resumed: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Call {
    rpc: Rpc,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Outcome {
    rpc: Rpc,
    code: &'static str,
}

/// Upper bounds of the latency buckets, in seconds: 5 µs to 1 s. A match takes microseconds, a whole-context one
/// milliseconds.
const BUCKETS: [f64; 15] =
    [5e-6, 1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 1e-1, 1.0];

/// Every outcome that a call can have, by its gRPC word.
const CODES: [&str; 8] = [
    "ok",
    "invalid_argument",
    "not_found",
    "resource_exhausted",
    "deadline_exceeded",
    "unauthenticated",
    "unavailable",
    "out_of_range",
];

/// Every reason for which a call is refused before anybody looks at what it asks.
pub const REFUSALS: [&str; 10] = [
    "malformed",
    "too_many_entries",
    "message_too_large",
    "too_slow",
    "in_flight",
    "request_bytes",
    "rate",
    "token",
    "deadline",
    "draining",
];

/// What is read again while the server runs.
pub const RELOADED: [&str; 2] = ["tls", "token"];

// === impl Rpc ===

impl Rpc {
    /// Every call that is counted.
    pub const ALL: [Self; 8] = [
        Self::Match,
        Self::MatchStream,
        Self::MatchBatch,
        Self::ListWorkers,
        Self::Watch,
        Self::Explain,
        Self::GetPodScores,
        Self::SubscribeKvEvents,
    ];

    /// The call's name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Match => "Match",
            Self::MatchStream => "MatchStream",
            Self::MatchBatch => "MatchBatch",
            Self::ListWorkers => "ListWorkers",
            Self::Watch => "Watch",
            Self::Explain => "Explain",
            Self::GetPodScores => "GetPodScores",
            Self::SubscribeKvEvents => "SubscribeKvEvents",
        }
    }

    /// The call that a request's path names.
    pub fn of_path(path: &str) -> Option<Self> {
        let (service, name) = path.strip_prefix('/')?.split_once('/')?;
        Self::ALL.into_iter().find(|rpc| rpc.name() == name && rpc.services().contains(&service))
    }

    /// The services that have the call.
    const fn services(self) -> &'static [&'static str] {
        match self {
            Self::Match | Self::MatchStream | Self::MatchBatch | Self::ListWorkers => &["kvtap.v1.QueryService"],
            Self::Watch => &["kvtap.v1.WatchService"],
            Self::Explain => &["kvtap.v1.ExplainService"],
            Self::GetPodScores => &["indexer.v1.IndexerService"],
            Self::SubscribeKvEvents => &[
                "vllm.grpc.engine.VllmEngine",
                "sglang.grpc.scheduler.SglangScheduler",
                "trtllm.TrtllmService",
                "tokenspeed.grpc.scheduler.TokenSpeedScheduler",
            ],
        }
    }
}

// === impl RequestMetrics ===

impl RequestMetrics {
    /// Every call and outcome at 0.
    pub fn new() -> Self {
        let metrics = Self {
            requests: Family::default(),
            duration: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            asked: Counter::default(),
            matched: Counter::default(),
            refusals: Family::default(),
            reloads: Family::default(),
            connections: ConnectionCounts::new(),
            watchers: Gauge::default(),
            watches: Family::default(),
            cut: Counter::default(),
        };
        for reason in REFUSALS {
            drop(metrics.refusals.get_or_create(&Refused { reason }));
        }
        for what in RELOADED {
            for outcome in ["ok", "failed"] {
                drop(metrics.reloads.get_or_create(&Reload { what, outcome }));
            }
        }
        for resumed in [false, true] {
            drop(metrics.watches.get_or_create(&Begun { resumed }));
        }
        for rpc in Rpc::ALL {
            drop(metrics.duration.get_or_create(&Call { rpc }));
            for code in CODES {
                drop(metrics.requests.get_or_create(&Outcome { rpc, code }));
            }
        }
        metrics
    }

    /// Counts one call that was looked at; `code` is its outcome in lower case (`ok`, `invalid_argument`, ...).
    pub fn record(&self, rpc: Rpc, code: &'static str, took: Duration) {
        self.requests.get_or_create(&Outcome { rpc, code }).inc();
        self.duration.get_or_create(&Call { rpc }).observe(took.as_secs_f64());
    }

    /// Counts a call that was refused before anybody looked at what it asks: its outcome, and one of [`REFUSALS`].
    pub fn record_refusal(&self, rpc: Option<Rpc>, code: &'static str, reason: &'static str) {
        if let Some(rpc) = rpc {
            self.requests.get_or_create(&Outcome { rpc, code }).inc();
        }
        self.refusals.get_or_create(&Refused { reason }).inc();
    }

    /// Counts files that were read again: one of [`RELOADED`], and whether they could be used.
    pub fn record_reload(&self, what: &'static str, used: bool) {
        self.reloads.get_or_create(&Reload { what, outcome: if used { "ok" } else { "failed" } }).inc();
    }

    /// Counts what one answered match asked for and what its best rank held, in blocks. The numbers are those of
    /// the answer itself.
    pub fn record_blocks(&self, asked: u64, matched: u64) {
        self.asked.inc_by(asked);
        self.matched.inc_by(matched);
    }

    /// Somebody watches the normalized feed.
    pub fn watcher_came(&self) {
        self.watchers.inc();
    }

    /// A watch has ended, however.
    pub fn watcher_left(&self) {
        self.watchers.dec();
    }

    /// A watch has begun: from a cursor, or with snapshots.
    pub fn watch_began(&self, resumed: bool) {
        self.watches.get_or_create(&Begun { resumed }).inc();
    }

    /// A watch was cut because it had fallen behind.
    pub fn watcher_was_cut(&self) {
        self.cut.inc();
    }

    /// How many calls ended how, by call and outcome.
    pub(super) fn counts(&self) -> BTreeMap<&'static str, BTreeMap<&'static str, u64>> {
        let count = |rpc: Rpc| CODES.map(|code| (code, self.requests.get_or_create(&Outcome { rpc, code }).get()));
        Rpc::ALL.into_iter().map(|rpc| (rpc.name(), count(rpc).into())).collect()
    }

    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("kvtap_grpc_requests", "gRPC requests answered, by call and outcome", self.requests.clone());
        registry.register_with_unit(
            "kvtap_grpc_request_duration",
            "Time from a decoded request to its answer",
            Unit::Seconds,
            self.duration.clone(),
        );
        registry.register(
            "kvtap_match_asked_blocks",
            "Full blocks of the prompts that were asked about",
            self.asked.clone(),
        );
        registry.register(
            "kvtap_match_best_blocks",
            "Leading blocks that the best rank of each answer held",
            self.matched.clone(),
        );
        registry.register(
            "kvtap_grpc_refused",
            "Calls refused before anybody looked at what they ask, by reason",
            self.refusals.clone(),
        );
        registry.register(
            "kvtap_grpc_reloads",
            "Files of the gRPC server that were replaced and read again, by what they hold and outcome",
            self.reloads.clone(),
        );
        self.connections.register(registry);
        registry.register("kvtap_watchers", "Watches of the normalized feed that are open", self.watchers.clone());
        registry.register("kvtap_watches", "Watches that began, by how", self.watches.clone());
        registry.register("kvtap_watches_cut", "Watches that were cut", self.cut.clone());
    }
}

impl Default for RequestMetrics {
    fn default() -> Self {
        Self::new()
    }
}

// === impl EncodeLabelSet ===

impl EncodeLabelSet for Call {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        [("rpc", self.rpc.name())].encode(encoder)
    }
}

impl EncodeLabelSet for Refused {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        [("reason", self.reason)].encode(encoder)
    }
}

impl EncodeLabelSet for Reload {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        [("what", self.what), ("outcome", self.outcome)].encode(encoder)
    }
}

impl EncodeLabelSet for Outcome {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        [("rpc", self.rpc.name()), ("code", self.code)].encode(encoder)
    }
}

impl EncodeLabelSet for Begun {
    fn encode(&self, encoder: &mut LabelSetEncoder<'_>) -> fmt::Result {
        [("begin", if self.resumed { "resumed" } else { "snapshot" })].encode(encoder)
    }
}
