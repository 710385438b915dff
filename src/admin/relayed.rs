//! How the relay fares.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Unit;

use crate::relay::Figures;

/// Exports the relay's record.
#[derive(Debug)]
pub(super) struct RelayFigures(pub(super) Arc<Figures>);

impl Collector for RelayFigures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let report = self.0.report();
        let help = "1 while this process has a connection to a NATS server of its fleet";
        let metric = encoder.encode_descriptor("kvtap_relay_connected", help, None, ConstGauge::<u64>::TYPE)?;
        ConstGauge::new(u64::from(report.connected)).encode(metric)?;
        let help = "Ranks of the fleet, by what this process does with them";
        let mut metric = encoder.encode_descriptor("kvtap_relay_ranks", help, None, ConstGauge::<u64>::TYPE)?;
        for (role, ranks) in [("published", report.owned), ("followed", report.followed)] {
            ConstGauge::new(ranks).encode(metric.encode_family(&[("role", role)])?)?;
        }
        let kind = ConstCounter::<u64>::TYPE;
        let help = "Batches that were published, by whether the stream has kept them";
        let mut metric = encoder.encode_descriptor("kvtap_relay_batches", help, None, kind)?;
        for (outcome, batches) in [("kept", report.kept), ("unkept", report.unkept)] {
            ConstCounter::new(batches).encode(metric.encode_family(&[("outcome", outcome)])?)?;
        }
        let help = "Snapshots of own ranks, by where they went";
        let mut metric = encoder.encode_descriptor("kvtap_relay_snapshots", help, None, kind)?;
        for (to, snapshots) in [("joiner", report.sent), ("stream", report.stored)] {
            ConstCounter::new(snapshots).encode(metric.encode_family(&[("to", to)])?)?;
        }
        let counters: [(_, _, Option<Unit>, u64); 4] = [
            ("kvtap_relay_published", "Bytes of batches that were published", Some(Unit::Bytes), report.bytes),
            (
                "kvtap_relay_cuts",
                "How often publishing fell so far behind that changes were left out",
                None,
                report.cuts,
            ),
            ("kvtap_relay_slow_consumer", "Notices that this process was too slow for a server", None, report.slow),
            ("kvtap_relay_refused", "Announcements of ranks that there was no room for", None, report.refused),
        ];
        for (name, help, unit, value) in counters {
            let metric = encoder.encode_descriptor(name, help, unit.as_ref(), kind)?;
            ConstCounter::new(value).encode(metric)?;
        }
        Ok(())
    }
}
