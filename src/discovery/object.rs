//! What is read from a pod or from an EndpointSlice, and nothing else of it: to read whole ones, volumes and containers
//! and all, took 367 KiB of code in a release build.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::{core, discovery};
use kube::Resource;
use kube::api::ObjectMeta;
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// A pod.
#[derive(Clone, Deserialize, Debug)]
pub(super) struct Pod {
    metadata: ObjectMeta,
    status: Option<PodStatus>,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
struct PodStatus {
    phase: Option<String>,
    #[serde(rename = "podIP")]
    pod_ip: Option<String>,
    conditions: Option<Vec<PodCondition>>,
}

#[derive(Clone, Deserialize, Debug)]
struct PodCondition {
    r#type: String,
    status: String,
}

/// A part of the endpoints of a Service.
#[derive(Clone, Deserialize, Debug)]
pub(super) struct EndpointSlice {
    metadata: ObjectMeta,
    /// The API server writes `null` where there are none.
    endpoints: Option<Vec<Endpoint>>,
}

#[derive(Clone, Deserialize, Debug)]
#[serde(rename_all = "camelCase")]
struct Endpoint {
    addresses: Option<Vec<String>>,
    conditions: Option<EndpointConditions>,
    target_ref: Option<Target>,
}

#[derive(Clone, Default, Deserialize, Debug)]
struct EndpointConditions {
    ready: Option<bool>,
    terminating: Option<bool>,
}

#[derive(Clone, Deserialize, Debug)]
struct Target {
    kind: Option<String>,
    name: Option<String>,
    uid: Option<String>,
}

/// What annotations of this program begin with.
pub(super) const PREFIX: &str = "kvtap/";

/// One engine, as an object tells of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Sighting {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub name: String,
    /// The pod's uid: never empty, never used again.
    pub uid: String,
    /// Where it is reached; `None` where it has no address yet.
    pub address: Option<String>,
    /// Whether it takes requests.
    pub ready: bool,
    /// The annotations of this program, by what follows [`PREFIX`].
    pub annotations: BTreeMap<String, String>,
}

/// What an object tells.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Told {
    /// The engines that are there.
    pub sightings: Vec<Sighting>,
    /// What cannot be used, one line each.
    pub refused: Vec<String>,
}

/// An object that tells of engines.
pub(super) trait Object:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug + Send + 'static
{
    /// The engines of it that are not about to end.
    fn told(&self) -> Told;
}

impl Object for Pod {
    fn told(&self) -> Told {
        let status = self.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref());
        let ends = self.metadata.deletion_timestamp.is_some() || matches!(phase, Some("Succeeded" | "Failed"));
        if ends {
            return Told::default();
        }
        let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
        let ready = conditions.iter().any(|condition| condition.r#type == "Ready" && condition.status == "True");
        let address = status.and_then(|status| status.pod_ip.clone()).filter(|address| !address.is_empty());
        let namespace = self.metadata.namespace.clone().unwrap_or_default();
        let (Some(name), Some(uid)) = (self.metadata.name.clone(), self.metadata.uid.clone()) else {
            return Told {
                refused: vec![format!("a pod of {namespace}: it has no name or no uid")],
                ..Told::default()
            };
        };
        let annotations = ours(self.metadata.annotations.as_ref());
        Told { sightings: vec![Sighting { namespace, name, uid, address, ready, annotations }], refused: Vec::new() }
    }
}

impl Object for EndpointSlice {
    fn told(&self) -> Told {
        let mut told = Told::default();
        if self.metadata.deletion_timestamp.is_some() {
            return told;
        }
        let annotations = ours(self.metadata.annotations.as_ref());
        let namespace = self.metadata.namespace.clone().unwrap_or_default();
        let slice = self.metadata.name.as_deref().unwrap_or_default();
        for endpoint in self.endpoints.iter().flatten() {
            let conditions = endpoint.conditions.clone().unwrap_or_default();
            if conditions.terminating == Some(true) {
                continue;
            }
            let Some((name, uid)) = pod_of(endpoint) else {
                told.refused.push(format!("endpointslice {namespace}/{slice}: an endpoint belongs to no pod"));
                continue;
            };
            // What is not said is to be taken for ready.
            let ready = conditions.ready != Some(false);
            let address = endpoint.addresses.iter().flatten().next().cloned();
            let (namespace, annotations) = (namespace.clone(), annotations.clone());
            told.sightings.push(Sighting { namespace, name, uid, address, ready, annotations });
        }
        told
    }
}

/// What `$object` is called in the API is what the whole one is called.
macro_rules! named_as {
    ($object:ty, $whole:ty) => {
        impl Resource for $object {
            type DynamicType = ();
            type Scope = NamespaceResourceScope;

            fn kind(of: &()) -> Cow<'_, str> {
                <$whole>::kind(of)
            }

            fn group(of: &()) -> Cow<'_, str> {
                <$whole>::group(of)
            }

            fn version(of: &()) -> Cow<'_, str> {
                <$whole>::version(of)
            }

            fn plural(of: &()) -> Cow<'_, str> {
                <$whole>::plural(of)
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

named_as!(Pod, core::v1::Pod);
named_as!(EndpointSlice, discovery::v1::EndpointSlice);

fn pod_of(endpoint: &Endpoint) -> Option<(String, String)> {
    let target = endpoint.target_ref.as_ref().filter(|target| target.kind.as_deref() == Some("Pod"))?;
    let named = |name: &Option<String>| name.clone().filter(|name| !name.is_empty());
    Some((named(&target.name)?, named(&target.uid)?))
}

fn ours(annotations: Option<&BTreeMap<String, String>>) -> BTreeMap<String, String> {
    let ours = annotations.into_iter().flatten().filter_map(|(key, value)| Some((key.strip_prefix(PREFIX)?, value)));
    ours.map(|(key, value)| (key.to_owned(), value.clone())).collect()
}
