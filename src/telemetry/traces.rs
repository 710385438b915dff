//! Traces of gRPC requests over OTLP: off, unless the standard `OTEL_*` variables ask for them.
//!
//! | variable | here |
//! |---|---|
//! | `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, `OTEL_EXPORTER_OTLP_ENDPOINT` | where they go, over gRPC: `http://collector:4317` or `https://`. Setting either turns them on |
//! | `OTEL_TRACES_EXPORTER` | `otlp` turns them on (to `http://localhost:4317`), `none` off |
//! | `OTEL_SDK_DISABLED` | `true` turns them off |
//! | `OTEL_EXPORTER_OTLP_PROTOCOL`, `..._TRACES_PROTOCOL` | only `grpc` is spoken |
//! | `OTEL_EXPORTER_OTLP_CERTIFICATE`, `..._CLIENT_CERTIFICATE`, `..._CLIENT_KEY` | the files of TLS: [`super::tls`] |
//! | `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES`, `OTEL_TRACES_SAMPLER`, `OTEL_BSP_*`, `OTEL_EXPORTER_OTLP_HEADERS` | as the specification says |
//!
//! One span a request, under the caller's where it sends `traceparent`. It names the call, nothing of the prompt.

use std::sync::atomic::Ordering;

use axum::http::{HeaderMap, Request};
use opentelemetry::propagation::{Extractor, TextMapPropagator};
use opentelemetry::trace::{TraceContextExt, TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracer, SdkTracerProvider};
use tracing::Span;
use tracing_opentelemetry::{OpenTelemetryLayer, OpenTelemetrySpanExt};
use tracing_subscriber::Layer as _;
use tracing_subscriber::Registry;
use tracing_subscriber::filter::{Filtered, LevelFilter, Targets};

/// The way of spans to a collector.
#[derive(Clone, Debug)]
pub struct Traces {
    provider: SdkTracerProvider,
}

/// Why traces were asked for and cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {
    /// Another protocol was asked for.
    #[error("{variable}: only grpc is spoken, not `{value}`")]
    Protocol {
        /// The variable that asks for it.
        variable: &'static str,
        /// What it asks for.
        value: String,
    },
    /// A file of the TLS variables cannot be used.
    #[error("{variable}: {path}: {why}")]
    File {
        /// The variable that names it.
        variable: &'static str,
        /// What it names.
        path: String,
        /// Why not.
        why: String,
    },
    /// Of a certificate and its key only one is named.
    #[error("{variable}: it needs {missing} beside it")]
    Half {
        /// The one that is.
        variable: &'static str,
        /// The one that is not.
        missing: &'static str,
    },
    /// The exporter refuses what the variables say.
    #[error("the OTEL_EXPORTER_OTLP_* variables cannot be used: {0}")]
    Exporter(#[from] opentelemetry_otlp::ExporterBuildError),
}

/// What gives spans to the exporter.
pub(super) type Layer = Filtered<OpenTelemetryLayer<Registry, SdkTracer>, Targets, Registry>;

/// The target of request spans; nothing else of it becomes a span, and log lines do not repeat it.
pub(super) const REQUESTS: &str = "kvtap::requests";

/// Those that turn traces on, the more particular first.
pub(super) const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];

const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];

// === impl Traces ===

impl Traces {
    /// What the process's variables ask for; `None`: no traces.
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    /// [`TracesError`], where they ask for what cannot be had.
    pub fn from_env() -> Result<Option<Self>, TracesError> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        if !wanted(variable) {
            return Ok(None);
        }
        // The variable for traces counts more than the one for everything.
        if let Some((variable, value)) = PROTOCOLS.into_iter().find_map(|name| Some((name, variable(name)?)))
            && value != "grpc"
        {
            return Err(TracesError::Protocol { variable, value });
        }
        let named = variable("OTEL_SERVICE_NAME").is_some()
            || variable("OTEL_RESOURCE_ATTRIBUTES").is_some_and(|list| list.contains("service.name="));
        let resource = Resource::builder();
        let resource = if named { resource } else { resource.with_service_name("kvtap") };
        let exporter = SpanExporter::builder().with_tonic();
        let exporter = match super::tls::asked(variable)? {
            Some(tls) => exporter.with_tls_config(tls).build()?,
            None => exporter.build()?,
        };
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource.build()).build();
        Ok(Some(Self { provider }))
    }

    pub(super) fn layer(&self) -> Layer {
        let tracer = self.provider.tracer("kvtap");
        let layer = OpenTelemetryLayer::new(tracer).with_location(false).with_threads(false);
        layer.with_filter(Targets::new().with_target(REQUESTS, LevelFilter::INFO))
    }

    /// Sends what has not been sent. It may wait for the collector for seconds: not for a task of the runtime.
    pub fn finish(&self) {
        if let Err(error) = self.provider.shutdown() {
            tracing::warn!(%error, "The last traces were not sent.");
        }
    }
}

fn wanted(variable: impl Fn(&str) -> Option<String>) -> bool {
    if variable("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true")) {
        return false;
    }
    match variable("OTEL_TRACES_EXPORTER").as_deref() {
        Some("otlp") => true,
        Some(_) => false,
        None => ENDPOINTS.into_iter().any(|name| variable(name).is_some()),
    }
}

/// The span of one gRPC request; none where traces are off.
pub fn request_span<B>(request: &Request<B>) -> Span {
    // A span that goes nowhere would be made and kept all the same: a subscriber whose layer of traces is absent has no
    // layer that refuses it.
    if !super::TRACED.load(Ordering::Relaxed) {
        return Span::none();
    }
    // gRPC's path: /package.Service/Method.
    let path = request.uri().path().trim_start_matches('/');
    let (service, method) = path.rsplit_once('/').unwrap_or(("", path));
    let span = tracing::info_span!(
        target: REQUESTS, "request", otel.name = path, otel.kind = "server", rpc.system = "grpc",
        rpc.service = service, rpc.method = method
    );
    if !span.is_disabled() {
        let caller = TraceContextPropagator::new().extract(&Headers(request.headers()));
        if caller.span().span_context().is_valid() {
            // It fails where the subscriber keeps no traces, and then there is nothing to be put under it.
            let _ = span.set_parent(caller);
        }
    }
    span
}

struct Headers<'r>(&'r HeaderMap);

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(|name| name.as_str()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(variables: &[(&str, &str)]) -> bool {
        wanted(|name| variables.iter().find(|(have, _)| *have == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn traces_are_off_unless_the_standard_variables_ask_for_them() {
        let endpoint = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4317");
        assert!(!asked(&[]));
        assert!(!asked(&[("OTEL_SERVICE_NAME", "kvtap")]));
        assert!(asked(&[endpoint]));
        assert!(asked(&[("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://collector:4317")]));
        assert!(asked(&[("OTEL_TRACES_EXPORTER", "otlp")]));
        assert!(!asked(&[endpoint, ("OTEL_TRACES_EXPORTER", "none")]));
        assert!(!asked(&[endpoint, ("OTEL_SDK_DISABLED", "TRUE")]));
    }
}
