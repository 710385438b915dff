//! The registry behind `/metrics`.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::text;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::Registry;

use super::discovery::DiscoveryFigures;
use super::feeds::Feeds;
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

// === impl Metrics ===

impl Metrics {
    /// The metrics of `fleet` and of its gRPC services.
    pub fn new(fleet: &Arc<Fleet>, requests: &RequestMetrics) -> Self {
        let mut registry = Registry::default();
        registry.register("kvtap_build", "What was built", Info::new([("version", VERSION)]));
        requests.register(&mut registry);
        registry.register_collector(Box::new(Feeds(Arc::clone(fleet))));
        registry.register_collector(Box::new(ReloadFigures(Arc::clone(&fleet.reloads))));
        registry.register_collector(Box::new(DiscoveryFigures(Arc::clone(&fleet.discovered))));
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
