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

/// A call that is counted.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Rpc {
    /// One `Match`.
    Match,
    /// One request of a `MatchStream`.
    MatchStream,
    /// One `ListWorkers`.
    ListWorkers,
}

/// Counters and latencies of the gRPC services.
#[derive(Clone, Debug)]
pub struct RequestMetrics {
    requests: Family<Outcome, Counter>,
    duration: Family<Call, Histogram>,
    asked: Counter,
    matched: Counter,
    watchers: Gauge,
    watches: Family<Begun, Counter>,
    cut: Counter,
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
const CODES: [&str; 3] = ["ok", "invalid_argument", "not_found"];

// === impl Rpc ===

impl Rpc {
    /// Every call that is counted.
    pub const ALL: [Self; 3] = [Self::Match, Self::MatchStream, Self::ListWorkers];

    /// The call's name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Match => "Match",
            Self::MatchStream => "MatchStream",
            Self::ListWorkers => "ListWorkers",
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
            watchers: Gauge::default(),
            watches: Family::default(),
            cut: Counter::default(),
        };
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

    /// Counts one call; `code` is its outcome in lower case (`ok`, `invalid_argument`, `not_found`).
    pub fn record(&self, rpc: Rpc, code: &'static str, took: Duration) {
        self.requests.get_or_create(&Outcome { rpc, code }).inc();
        self.duration.get_or_create(&Call { rpc }).observe(took.as_secs_f64());
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
