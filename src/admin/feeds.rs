//! The figures of every feed, read from the board and the index at each scrape.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::{MetricType, TypedMetric};
use prometheus_client::registry::Unit;

use super::report::{Fleet, RankReport};
use crate::feed::drops::Dropped;
use crate::feed::machine::{Cause, Outcome};
use crate::feed::status::State;

/// Exports what [`Fleet::reports`] says.
#[derive(Debug)]
pub(super) struct Feeds(pub(super) Arc<Fleet>);

/// One metric with one figure for each rank.
struct Figure {
    name: &'static str,
    help: &'static str,
    unit: Option<Unit>,
    kind: MetricType,
    /// `None`: this rank has no such figure now.
    value: Value,
}

/// One counter with several figures for each rank, told apart by a label.
struct Split {
    name: &'static str,
    help: &'static str,
    label: &'static str,
    /// Values of the label that exist from the beginning, at 0.
    known: &'static [&'static str],
    counts: fn(&RankReport) -> &BTreeMap<String, u64>,
}

const STATES: [State; 6] =
    [State::Connecting, State::Replaying, State::Live, State::Incomplete, State::Degraded, State::Gone];

const FIGURES: [Figure; 22] = [
    gauge("kvtap_feed_connected", None, "1 while the feed's socket is connected", |r| {
        Some(f64::from(u8::from(r.connected)))
    }),
    gauge(
        "kvtap_feed_epoch",
        None,
        "The engine's life that is followed: 1 for the first that was seen, 0 before any message",
        |r| Some(r.epoch as f64),
    ),
    gauge("kvtap_feed_last_sequence", None, "Last applied sequence number of this epoch; absent before any", |r| {
        r.last_seq.map(|seq| seq as f64)
    }),
    gauge(
        "kvtap_feed_age",
        Some(Unit::Seconds),
        "Time since the feed was last heard; absent where it never was",
        |r| r.age_ms.map(|ms| ms as f64 / 1e3),
    ),
    gauge("kvtap_feed_orphan_blocks", None, "Blocks that wait for a parent which is not known", |r| {
        Some(r.orphans as f64)
    }),
    gauge("kvtap_feed_window_blocks", None, "Blocks held by cache groups that do not mean a prefix", |r| {
        Some(r.window_blocks as f64)
    }),
    gauge("kvtap_feed_extra_copies", None, "Copies of held blocks beyond the first", |r| Some(r.extra_copies as f64)),
    gauge("kvtap_feed_held_blocks", None, "Blocks held, whatever tier they lie on", |r| Some(r.blocks as f64)),
    gauge("kvtap_feed_block_size_tokens", None, "Tokens a block; absent where it is not known yet", |r| {
        r.block_size.map(f64::from)
    }),
    gauge("kvtap_feed_memory", Some(Unit::Bytes), "Memory that the rank's own tables take, estimated", |r| {
        Some(r.memory_bytes as f64)
    }),
    counter("kvtap_feed_evicted_blocks", None, "Blocks forgotten because a bound was reached", |r| {
        Some(r.evicted_blocks as f64)
    }),
    counter("kvtap_feed_messages", None, "Messages received", |r| Some(r.messages as f64)),
    counter("kvtap_feed_received", Some(Unit::Bytes), "Bytes received", |r| Some(r.received_bytes as f64)),
    counter("kvtap_feed_events", None, "Events applied", |r| Some(r.events as f64)),
    counter("kvtap_feed_gaps", None, "How often messages were found missing", |r| Some(r.gaps as f64)),
    counter("kvtap_feed_missed_messages", None, "Messages that were missing and never came", |r| Some(r.missed as f64)),
    counter("kvtap_feed_duplicate_messages", None, "Messages that came twice", |r| Some(r.duplicates as f64)),
    gauge("kvtap_feed_queued_messages", None, "Messages that wait between socket and index", |r| {
        Some(r.queue.messages as f64)
    }),
    gauge("kvtap_feed_queued", Some(Unit::Bytes), "What the waiting messages hold", |r| Some(r.queue.bytes as f64)),
    gauge("kvtap_feed_queue_limit_messages", None, "Messages that may wait; beyond, they are dropped", |r| {
        Some(r.queue.limit_messages as f64)
    }),
    gauge("kvtap_feed_queue_limit", Some(Unit::Bytes), "Bytes that may wait; beyond, messages are dropped", |r| {
        Some(r.queue.limit_bytes as f64)
    }),
    gauge("kvtap_feed_groups", None, "Cache groups that were seen", |r| Some(r.groups.len() as f64)),
];

const SNAPSHOTS: [&str; 3] = ["restored", "written", "failed"];

const REFUSED: [&str; 7] = ["unreadable", "foreign", "version", "torn", "checksum", "owner", "malformed"];

const SPLITS: [Split; 5] = [
    Split {
        name: "kvtap_feed_replays",
        help: "Replays that ended, by outcome",
        label: "outcome",
        known: &Outcome::WORDS,
        counts: |r| &r.replay_outcomes,
    },
    Split {
        name: "kvtap_feed_resets",
        help: "New epochs and withdrawals, by cause",
        label: "cause",
        known: &Cause::WORDS,
        counts: |r| &r.resets,
    },
    Split {
        name: "kvtap_feed_dropped",
        help: "Messages, events and blocks that were dropped, by reason",
        label: "reason",
        known: Dropped::WORDS,
        counts: |r| &r.dropped,
    },
    Split {
        name: "kvtap_feed_snapshots",
        help: "Snapshots restored at the start, written, and not written because of an error",
        label: "outcome",
        known: &SNAPSHOTS,
        counts: |r| &r.snapshots,
    },
    Split {
        name: "kvtap_feed_snapshots_refused",
        help: "Snapshots that were found and not used, by reason",
        label: "reason",
        known: &REFUSED,
        counts: |r| &r.snapshots_refused,
    },
];

type Labels<'a> = [(&'static str, &'a str); 3];

// === impl Figure ===

type Value = fn(&RankReport) -> Option<f64>;

const fn gauge(name: &'static str, unit: Option<Unit>, help: &'static str, value: Value) -> Figure {
    Figure { name, help, unit, kind: MetricType::Gauge, value }
}

const fn counter(name: &'static str, unit: Option<Unit>, help: &'static str, value: Value) -> Figure {
    Figure { name, help, unit, kind: MetricType::Counter, value }
}

impl Figure {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>, ranks: &[(String, RankReport)]) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(self.name, self.help, self.unit.as_ref(), self.kind)?;
        for (number, report) in ranks {
            let Some(value) = (self.value)(report) else { continue };
            let labels = labels(number, report);
            let family = metric.encode_family(&labels)?;
            match self.kind {
                // Counts are whole numbers; u64 keeps them so in the text.
                MetricType::Counter => ConstCounter::new(value as u64).encode(family)?,
                _ => ConstGauge::new(value).encode(family)?,
            }
        }
        Ok(())
    }
}

// === impl Split ===

impl Split {
    fn encode(&self, encoder: &mut DescriptorEncoder<'_>, ranks: &[(String, RankReport)]) -> fmt::Result {
        let mut metric = encoder.encode_descriptor(self.name, self.help, None, ConstCounter::<u64>::TYPE)?;
        for (number, report) in ranks {
            let counts = (self.counts)(report);
            let known = self.known.iter().map(|word| (*word, counts.get(*word).copied().unwrap_or(0)));
            let others = counts.iter().filter(|(word, _)| !self.known.contains(&word.as_str()));
            for (word, count) in known.chain(others.map(|(word, count)| (word.as_str(), *count))) {
                let labels = (labels(number, report), [(self.label, word)]);
                ConstCounter::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

// === impl Feeds ===

impl Collector for Feeds {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let ranks: Vec<_> = self.0.reports().into_iter().map(|report| (report.rank.to_string(), report)).collect();
        for figure in &FIGURES {
            figure.encode(&mut encoder, &ranks)?;
        }
        for split in &SPLITS {
            split.encode(&mut encoder, &ranks)?;
        }
        encode_states(&mut encoder, &ranks)?;
        encode_tiers(&mut encoder, &ranks)?;
        encode_snapshots(&mut encoder, &self.0)?;
        let uptime = ConstGauge::new(self.0.uptime().as_secs_f64());
        let metric = encoder.encode_descriptor(
            "kvtap_uptime",
            "Time since the server started",
            Some(&Unit::Seconds),
            ConstGauge::<f64>::TYPE,
        )?;
        uptime.encode(metric)
    }
}

fn encode_snapshots(encoder: &mut DescriptorEncoder<'_>, fleet: &Fleet) -> fmt::Result {
    let help = "1 where snapshots can be written and read, 0 where their directory cannot be used; absent without one";
    let metric = encoder.encode_descriptor("kvtap_snapshot_usable", help, None, ConstGauge::<u64>::TYPE)?;
    match fleet.snapshots() {
        Some(folder) => ConstGauge::new(u32::from(folder.fault.is_none())).encode(metric),
        None => Ok(()),
    }
}

fn encode_states(encoder: &mut DescriptorEncoder<'_>, ranks: &[(String, RankReport)]) -> fmt::Result {
    let help = "1 for the state that the feed is in, 0 for every other";
    let mut metric = encoder.encode_descriptor("kvtap_feed_state", help, None, ConstGauge::<u64>::TYPE)?;
    for (number, report) in ranks {
        for state in STATES {
            let labels = (labels(number, report), [("state", state.name())]);
            ConstGauge::new(u32::from(report.state == state.name())).encode(metric.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn encode_tiers(encoder: &mut DescriptorEncoder<'_>, ranks: &[(String, RankReport)]) -> fmt::Result {
    let help = "Blocks that lie on each tier; a block on two tiers counts on both";
    let mut metric = encoder.encode_descriptor("kvtap_feed_blocks", help, None, ConstGauge::<f64>::TYPE)?;
    for (number, report) in ranks {
        for (tier, blocks) in report.tiers.named() {
            let labels = (labels(number, report), [("tier", tier)]);
            ConstGauge::new(blocks as f64).encode(metric.encode_family(&labels)?)?;
        }
    }
    Ok(())
}

fn labels<'a>(number: &'a str, report: &'a RankReport) -> Labels<'a> {
    [("worker", &report.worker), ("rank", number), ("model", &report.model)]
}
