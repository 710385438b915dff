//! What sources want, in figures.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

use crate::roster::{Picture, Place, Source, Standing};

/// Exports the counts of a [`Standing`].
#[derive(Debug)]
pub(super) struct Wanted(pub(super) Arc<Standing>);

impl Collector for Wanted {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let picture = self.0.picture();
        let help = "Entries that each source wants, by whether they run";
        let mut metric = encoder.encode_descriptor("kvtap_roster_entries", help, None, ConstGauge::<u64>::TYPE)?;
        for source in Source::ALL {
            for place in Place::ALL {
                let labels = [("source", source.name()), ("place", place.name())];
                let count = picture.count(source, place) as u64;
                ConstGauge::new(count).encode(metric.encode_family(&labels)?)?;
            }
        }
        let help = "What was done to feeds since the start";
        let mut metric = encoder.encode_descriptor("kvtap_roster_changes", help, None, ConstCounter::<u64>::TYPE)?;
        for change in Picture::CHANGES {
            let count = picture.changes.get(change).copied().unwrap_or(0);
            ConstCounter::new(count).encode(metric.encode_family(&[("change", change)])?)?;
        }
        Ok(())
    }
}
