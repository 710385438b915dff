//! An engine on libzmq without a replay socket: a feed that was begun anew has lost what the one before it held.

use serde_json::{Value, json};

use crate::libzmq::{Libzmq, endpoint};
use crate::tap_support::eventually;
use crate::tap_support::kvtap::Kvtap;

/// An engine with three blocks, at a free port.
pub struct Engine {
    peer: Libzmq,
    /// Where it publishes.
    pub endpoint: String,
}

impl Engine {
    /// Starts one that has published nothing yet.
    pub async fn start() -> Self {
        Self::start_at("127.0.0.1").await
    }

    /// The same, at another loopback address.
    pub async fn start_at(address: &str) -> Self {
        let peer = Libzmq::publisher("bind", &endpoint(&format!("tcp://{address}:*"))).await;
        let endpoint = peer.endpoint.to_string();
        Self { peer, endpoint }
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.endpoint.rsplit_once(':').expect("a port").1.parse().expect("a number")
    }

    /// A feed of it, as an entry of a configuration; `more` is further settings.
    pub fn feed(&self, worker: &str, more: &str) -> String {
        format!("  - {{ worker: {worker}, model: m, engine: vllm, endpoint: \"{}\"{more} }}\n", self.endpoint)
    }

    /// Waits for a subscriber, publishes three blocks as its message 0, and waits until `worker` holds them.
    pub async fn publish(&mut self, kvtap: &Kvtap, worker: &str) {
        self.peer.subscribed().await;
        self.send(0, &[stored(1, None), stored(2, Some(1)), stored(3, Some(2))]).await;
        eventually("three blocks", async || report(kvtap, worker).await, |report| report["blocks"] == 3).await;
    }

    /// Publishes a fourth block as its message 1.
    pub async fn publish_one_more(&mut self) {
        self.send(1, &[stored(4, Some(3))]).await;
    }

    async fn send(&mut self, sequence: u64, events: &[Value]) {
        let payload = rmp_serde::to_vec(&json!([1.0, events, 0])).expect("a batch");
        self.peer.send(&[b"", &sequence.to_be_bytes(), &payload]).await;
    }
}

fn stored(name: u64, parent: Option<u64>) -> Value {
    json!(["BlockStored", [name], parent, [name, 2, 3, 4], 4, null])
}

/// The report of one worker with one rank; null where there is none.
pub async fn report(kvtap: &Kvtap, worker: &str) -> Value {
    let workers = kvtap.workers().await;
    workers.into_iter().find(|report| report["worker"] == worker).unwrap_or(Value::Null)
}

/// The names of the workers, each once.
pub async fn names(kvtap: &Kvtap) -> Vec<String> {
    let workers = kvtap.workers().await;
    let mut names: Vec<String> =
        workers.iter().map(|report| report["worker"].as_str().expect("a name").to_owned()).collect();
    names.dedup();
    names
}

/// Waits until these are the workers.
pub async fn workers_are(kvtap: &Kvtap, expected: &[&str]) {
    eventually(&format!("the workers are {expected:?}"), async || names(kvtap).await, |names| names == expected).await;
}

/// That the worker's feed is the one that has held three blocks all along.
pub async fn assert_untouched(kvtap: &Kvtap, worker: &str) {
    let report = report(kvtap, worker).await;
    assert_eq!((&report["blocks"], &report["messages"], &report["state"]), (&json!(3), &json!(1), &json!("live")));
}
