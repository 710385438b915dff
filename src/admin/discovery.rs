//! How discovery fares.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use serde::Serialize;

/// The record of discovery: written by whoever discovers, read by the admin port. It stays as it is where nobody does.
#[derive(Debug, Default)]
pub struct Discovered {
    record: Mutex<Record>,
}

#[derive(Debug, Default)]
struct Record {
    report: DiscoveryReport,
    lists: u64,
    failures: [u64; DiscoveryReason::ALL.len()],
}

/// How discovery stands. Its JSON field names are relied on by other programs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct DiscoveryReport {
    /// Whether the picture is the API server's: it was listed, and is being watched.
    pub synced: bool,
    /// Why it is not, in one sentence; empty where it is, and where nothing is discovered.
    pub why: String,
    /// Engines that are wanted.
    pub following: usize,
    /// Engines that have no address yet, or are not Ready where that counts.
    pub waiting: usize,
    /// What cannot be followed, one line each.
    pub refused: Vec<String>,
}

/// Why something went wrong with the API server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiscoveryReason {
    /// It refuses: the Role lacks a verb, or the token is not accepted.
    Forbidden,
    /// It did not answer in time.
    Timeout,
    /// A list failed otherwise.
    ListFailed,
    /// A watch failed otherwise.
    WatchFailed,
    /// It has forgotten what comes after the version that was watched from (410 Gone): the list is made anew.
    Expired,
}

// === impl DiscoveryReason ===

impl DiscoveryReason {
    /// Every reason.
    pub const ALL: [Self; 5] = [Self::Forbidden, Self::Timeout, Self::ListFailed, Self::WatchFailed, Self::Expired];

    /// The reason's word in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forbidden => "forbidden",
            Self::Timeout => "timeout",
            Self::ListFailed => "list_failed",
            Self::WatchFailed => "watch_failed",
            Self::Expired => "expired",
        }
    }
}

// === impl Discovered ===

impl Discovered {
    /// A whole list has come.
    pub fn listed(&self) {
        self.lock().lists += 1;
    }

    /// A watch was granted after a list: the picture is the API server's.
    pub fn watching(&self) {
        let mut record = self.lock();
        record.report.synced = true;
        record.report.why.clear();
    }

    /// Something failed; `why` where the picture may be out of date now. Whether that is news.
    pub fn failed(&self, reason: DiscoveryReason, why: Option<String>) -> bool {
        let mut record = self.lock();
        for (known, count) in DiscoveryReason::ALL.into_iter().zip(&mut record.failures) {
            *count += u64::from(known == reason);
        }
        let Some(why) = why else { return false };
        let is_news = record.report.why != why;
        record.report.synced = false;
        record.report.why = why;
        is_news
    }

    /// What was found. Returns what of `refused` is news.
    pub fn found(&self, following: usize, waiting: usize, refused: Vec<String>) -> Vec<String> {
        let mut record = self.lock();
        let known: BTreeSet<&String> = record.report.refused.iter().collect();
        let news = refused.iter().filter(|what| !known.contains(what)).cloned().collect();
        record.report = DiscoveryReport { following, waiting, refused, ..std::mem::take(&mut record.report) };
        news
    }

    /// How things stand.
    pub fn report(&self) -> DiscoveryReport {
        self.lock().report.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Record> {
        self.record.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Exports a record.
#[derive(Debug)]
pub(super) struct DiscoveryFigures(pub(super) Arc<Discovered>);

impl Collector for DiscoveryFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let record = self.0.lock();
        let report = &record.report;
        let help = "1 while the API server's objects were listed and are being watched; 0 where they are not, or nothing is discovered";
        let metric = encoder.encode_descriptor("kvtap_discovery_synced", help, None, ConstGauge::<u32>::TYPE)?;
        ConstGauge::new(u32::from(report.synced)).encode(metric)?;
        let help = "Engines that were discovered, by what becomes of them";
        let mut metric = encoder.encode_descriptor("kvtap_discovery_engines", help, None, ConstGauge::<u64>::TYPE)?;
        let counts = [("following", report.following), ("waiting", report.waiting), ("refused", report.refused.len())];
        for (outcome, count) in counts {
            ConstGauge::new(count as u64).encode(metric.encode_family(&[("outcome", outcome)])?)?;
        }
        let help = "Whole lists that the API server has given";
        let metric = encoder.encode_descriptor("kvtap_discovery_lists", help, None, ConstCounter::<u64>::TYPE)?;
        ConstCounter::new(record.lists).encode(metric)?;
        let help = "What went wrong with the API server, by reason";
        let mut metric =
            encoder.encode_descriptor("kvtap_discovery_failures", help, None, ConstCounter::<u64>::TYPE)?;
        for (reason, count) in DiscoveryReason::ALL.into_iter().zip(record.failures) {
            ConstCounter::new(count).encode(metric.encode_family(&[("reason", reason.name())])?)?;
        }
        Ok(())
    }
}
