//! The registry behind `/metrics`.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::TypedMetric;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use super::discovery::DiscoveryFigures;
use super::feeds::Feeds;
use super::relayed::RelayFigures;
use super::reloads::ReloadFigures;
use super::report::{Fleet, VERSION};
use super::requests::RequestMetrics;
use super::wanted::Wanted;

/// The content type of [`Metrics::encode`].
pub(super) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Every metric there is.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
}

/// The process's own figures.
#[derive(Debug)]
struct Process;

// === impl Metrics ===

impl Metrics {
    /// The metrics of `fleet` and of its gRPC services.
    pub fn new(fleet: &Arc<Fleet>, requests: &RequestMetrics) -> Self {
        let mut registry = Registry::default();
        registry.register("kvtap_build", "What was built", Info::new([("version", VERSION)]));
        requests.register(&mut registry);
        registry.register_collector(Box::new(Process));
        registry.register_collector(Box::new(Feeds(Arc::clone(fleet))));
        registry.register_collector(Box::new(ReloadFigures(Arc::clone(&fleet.reloads))));
        registry.register_collector(Box::new(DiscoveryFigures(Arc::clone(&fleet.discovered))));
        registry.register_collector(Box::new(RelayFigures(Arc::clone(&fleet.relayed))));
        registry.register_collector(Box::new(Wanted(Arc::clone(&fleet.standing))));
        Self { registry }
    }

    /// All of them in the OpenMetrics text format.
    ///
    /// # Errors
    /// Never in practice: a `String` takes what is written to it.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        text::encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

// === impl Process ===

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(bytes) = resident_bytes() else { return Ok(()) };
        let help = "Memory of the process that is resident";
        let kind = ConstGauge::<f64>::TYPE;
        let metric = encoder.encode_descriptor("kvtap_resident_memory", help, Some(&Unit::Bytes), kind)?;
        ConstGauge::new(bytes as f64).encode(metric)
    }
}

/// Memory of this process that is resident, in bytes; `None` where the system does not say it as Linux does.
pub(super) fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    kib.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
