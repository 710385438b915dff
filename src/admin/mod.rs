//! What operators look at: a plain HTTP/1 port, and the figures behind it.
//!
//! | route | answer |
//! |---|---|
//! | `/` | the status page: one HTML document that shows `/status`, live |
//! | `/live` | 200 for as long as the process runs |
//! | `/ready` | 200 once gRPC answers, 503 before and while draining; never waits for an event |
//! | `/metrics` | OpenMetrics; every metric is listed in `docs/metrics.md` |
//! | `/status` | JSON: every worker and its feed, as `ListWorkers` tells it, who wants which feeds, version, uptime and the last happenings |
//! | `/log-level` | the level of log lines; POST of a word from this host changes it |
//!
//! In: the index and the status board, read through one [`Fleet`], and what the gRPC services count into
//! [`RequestMetrics`]. Out: [`report::RankReport`], the one picture of a feed that this port, `ListWorkers` and the
//! command line share, so that they cannot disagree.
//!
//! Metrics exist from the first scrape on, at 0, for every label that is known beforehand. Their labels are what
//! configuration and code fix (worker, rank, model, tier, reason); never a hash, never anything of a request.

mod discovery;
mod feeds;
mod http;
mod metrics;
mod page;
mod ready;
mod relayed;
mod reloads;
pub mod report;
mod requests;
mod wanted;

pub use discovery::{Discovered, DiscoveryReason, DiscoveryReport};
pub use http::{Admin, serve};
pub use metrics::Metrics;
pub use ready::Readiness;
pub use reloads::{ConfigReport, Reloaded, Reloads};
pub use report::Fleet;
pub use requests::{REFUSALS, RELOADED, RequestMetrics, Rpc};
