//! `discovery`: engines found in Kubernetes, if at all.

use std::path::PathBuf;
use std::time::Duration;

use super::feed::{ENGINES, Engine, MAX_RANKS, NAME};
use super::read::{Default, Reader, Section};
use super::rule::{Number, Text, Time, Words};

/// Which engines are found, and what they are unless their annotations say otherwise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Discovery {
    /// Which objects tell of engines, by their labels.
    pub selector: String,
    /// Of which kind they are.
    pub resource: Resource,
    /// Where they are; `None`: where this pod is.
    pub namespace: Option<String>,
    /// How the API server is reached; `None`: as from a pod.
    pub kubeconfig: Option<PathBuf>,
    /// How often the list is made anew although nothing was missed.
    pub resync: Duration,
    /// What becomes of engines that are not Ready.
    pub not_ready: NotReady,
    /// The model that they serve.
    pub model: Option<String>,
    /// What they run.
    pub engine: Engine,
    /// Rank 0's event port.
    pub port: u16,
    /// Rank 0's replay port.
    pub replay_port: Option<u16>,
    /// The port that routers reach them at.
    pub http_port: Option<u16>,
    /// Their data-parallel ranks.
    pub ranks: u32,
}

/// What tells of engines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resource {
    /// Pods.
    Pods,
    /// The endpoints of Services.
    EndpointSlices,
}

/// What becomes of an engine that is there and not Ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotReady {
    /// It is followed like any other.
    Follow,
    /// It is withdrawn until it is Ready.
    Withdraw,
}

const RESOURCES: Words<Resource> = Words(&[("pods", Resource::Pods), ("endpointslices", Resource::EndpointSlices)]);

const NOT_READY: Words<NotReady> = Words(&[("follow", NotReady::Follow), ("withdraw", NotReady::Withdraw)]);

const PORT: Number = Number { min: 1, max: 65_535, unit: "" };

/// Reads the section. `Some(None)`: there is no discovery; `None`: there is, and it cannot be used.
pub(super) fn discovery(reader: &mut Reader<'_>, root: &mut Section<'_>) -> Option<Option<Discovery>> {
    let mut section = root.section(reader, "discovery");
    let selector = section.optional(reader, "selector", &Text { min: 1, max: 4096 });
    let resource = section.or(reader, "resource", &RESOURCES, Default::Text("pods"));
    let namespace = section.optional(reader, "namespace", &Text { min: 1, max: 63 });
    let kubeconfig = section.optional(reader, "kubeconfig", &Text { min: 1, max: 4096 });
    let resync = Time { min: Duration::from_secs(1), max: Duration::from_secs(86_400) };
    let resync = section.or(reader, "resync", &resync, Default::Text("10m"));
    let not_ready = section.or(reader, "not_ready", &NOT_READY, Default::Text("follow"));
    let model = section.optional(reader, "model", &NAME);
    let engine = section.or(reader, "engine", &ENGINES, Default::Text("auto"));
    let port = section.or(reader, "port", &PORT, Default::Text("5557"));
    let replay_port = section.optional(reader, "replay_port", &PORT);
    let http_port = section.optional(reader, "http_port", &PORT);
    let ranks = section.or(reader, "ranks", &Number { min: 1, max: MAX_RANKS, unit: "ranks" }, Default::Text("1"));
    let Some(selector) = selector else {
        if section.is_given() {
            reader.fault(
                &section.place,
                &section.path_of("selector"),
                "is required: it says which objects tell of engines",
            );
        }
        section.finish(reader);
        return Some(None);
    };
    section.finish(reader);
    // Within its rule's bounds.
    let as_port = |number: u64| number as u16;
    Some(Some(Discovery {
        selector: selector.value,
        resource: resource?.value,
        namespace: namespace.map(|namespace| namespace.value),
        kubeconfig: kubeconfig.map(|file| file.value.into()),
        resync: resync?.value,
        not_ready: not_ready?.value,
        model: model.map(|model| model.value),
        engine: engine?.value,
        port: as_port(port?.value),
        replay_port: replay_port.map(|port| as_port(port.value)),
        http_port: http_port.map(|port| as_port(port.value)),
        // Likewise.
        ranks: ranks?.value as u32,
    }))
}

// === impl Resource ===

impl Resource {
    /// The resource's word, which is its name in the API too.
    pub fn name(self) -> &'static str {
        RESOURCES.word(self)
    }
}
