//! Partitions as networks make them: packets that vanish, in both directions, without a word to either side.
//!
//! The engine lives in a network namespace of its own, and the cable between is pulled. That needs the right to make
//! namespaces; without it a proxy that lets nothing pass stands for the cable, which the test says aloud.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "faults/proxy.rs"]
#[allow(dead_code, reason = "what this test does not need of it")]
mod proxy;
mod tap_support;

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Command as StdCommand, Stdio};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use proxy::Proxy;
use tap_support::kvtap::Kvtap;
use tap_support::{PATIENCE, eventually, python};

const LIVE: u16 = 5557;
const REPLAY: u16 = 5558;

/// What lies between kvtap and its engine.
enum Cable {
    Namespace(Namespace),
    Proxies { live: Proxy, replay: Proxy, engine: Ipv4Addr },
}

/// A network namespace with one cable to this one.
struct Namespace {
    name: String,
    outside: String,
    engine: Ipv4Addr,
}

/// One life of the engine: `tests/peers/zmq_engine.py`.
struct Engine {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

fn ip(arguments: &str) -> bool {
    let mut ip = StdCommand::new("ip");
    ip.args(arguments.split(' ')).stdout(Stdio::null()).stderr(Stdio::null());
    ip.status().is_ok_and(|status| status.success())
}

// === impl Namespace ===

impl Namespace {
    /// `None`: this user may not make one.
    fn new() -> Option<Self> {
        // Interfaces have short names; two tests at a time must not share them, nor an address.
        let id = fastrand::u32(..0x0100_0000);
        let [_, a, b, c] = id.to_be_bytes();
        let ours = Ipv4Addr::new(10, a, b, c & 0xFC | 1);
        let made = Self {
            name: format!("kvtap{id:06x}"),
            outside: format!("kv{id:06x}o"),
            engine: Ipv4Addr::new(10, a, b, c & 0xFC | 2),
        };
        let Self { name, outside, engine } = &made;
        let inside = format!("kv{id:06x}i");
        let done = ip(&format!("netns add {name}"))
            && ip(&format!("link add {outside} type veth peer name {inside} netns {name}"))
            && ip(&format!("addr add {ours}/30 dev {outside}"))
            && ip(&format!("link set {outside} up"))
            && ip(&format!("-n {name} addr add {engine}/30 dev {inside}"))
            && ip(&format!("-n {name} link set {inside} up"));
        done.then_some(made)
    }

    fn pull(&self, pulled: bool) {
        let inside = self.outside.trim_end_matches('o');
        let state = if pulled { "down" } else { "up" };
        assert!(ip(&format!("-n {} link set {inside}i {state}", self.name)), "the cable cannot be pulled");
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        ip(&format!("link del {}", self.outside));
        ip(&format!("netns del {}", self.name));
    }
}

// === impl Cable ===

impl Cable {
    async fn new() -> Self {
        if let Some(namespace) = Namespace::new() {
            return Self::Namespace(namespace);
        }
        println!("NO NETWORK NAMESPACE can be made here: a proxy that lets nothing pass stands for the cable.");
        let engine = Ipv4Addr::new(127, fastrand::u8(..), fastrand::u8(..), fastrand::u8(1..255));
        let (live, replay) = (Proxy::start().await, Proxy::start().await);
        live.lead_to(Some(SocketAddr::from((engine, LIVE))));
        replay.lead_to(Some(SocketAddr::from((engine, REPLAY))));
        Self::Proxies { live, replay, engine }
    }

    /// Where the engine binds.
    fn engine(&self) -> Ipv4Addr {
        match self {
            Self::Namespace(Namespace { engine, .. }) | Self::Proxies { engine, .. } => *engine,
        }
    }

    /// Where kvtap finds it: the events, and the replay.
    fn ways(&self) -> (SocketAddr, SocketAddr) {
        match self {
            Self::Namespace(namespace) => ((namespace.engine, LIVE).into(), (namespace.engine, REPLAY).into()),
            Self::Proxies { live, replay, .. } => (live.address, replay.address),
        }
    }

    fn pull(&self) {
        match self {
            Self::Namespace(namespace) => namespace.pull(true),
            Self::Proxies { live, replay, .. } => {
                for proxy in [live, replay] {
                    // What is there stays and is dead; what comes is not let in.
                    proxy.freeze();
                    proxy.lead_to(None);
                }
            }
        }
    }

    fn put_back(&self) {
        match self {
            Self::Namespace(namespace) => namespace.pull(false),
            Self::Proxies { live, replay, engine } => {
                live.lead_to(Some((*engine, LIVE).into()));
                replay.lead_to(Some((*engine, REPLAY).into()));
            }
        }
    }

    /// Starts an engine behind it.
    async fn start_engine(&self) -> Engine {
        let mut command = match self {
            Self::Namespace(namespace) => {
                let mut command = Command::new("ip");
                command.args(["netns", "exec", &namespace.name]).arg(python::interpreter());
                command
            }
            Self::Proxies { .. } => Command::new(python::interpreter()),
        };
        let at = self.engine();
        let mut child = command
            .arg(python::script("zmq_engine.py"))
            .args([format!("tcp://{at}:{LIVE}"), format!("tcp://{at}:{REPLAY}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the interpreter starts");
        let input = child.stdin.take().expect("a pipe");
        let output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let mut engine = Engine { child, input, output };
        assert_eq!(engine.line().await, "ready");
        engine
    }

    async fn start_kvtap(&self) -> Kvtap {
        let (live, replay) = self.ways();
        Kvtap::start(&format!(
            "defaults: {{ heartbeat_interval: 200ms, heartbeat_timeout: 600ms, reconnect_max: 100ms }}\nfeeds:\n  \
             - {{ worker: pod-a, model: m, engine: vllm, endpoint: \"tcp://{live}\", replay: \"tcp://{replay}\" }}\n"
        ))
        .await
    }
}

// === impl Engine ===

impl Engine {
    async fn line(&mut self) -> String {
        let line = timeout(PATIENCE, self.output.next_line()).await.expect("in time").expect("its output");
        line.expect("the engine lives; its error is above")
    }

    /// Publishes a block of `life` under the one before it; its number.
    async fn store(&mut self, life: u64, n: u32) -> u64 {
        let name = |n: u32| life * 1000 + u64::from(n);
        let parent = n.checked_sub(1).map(name);
        let event = json!(["BlockStored", [name(n)], parent, tokens(n), 4, null]);
        let batch = rmp_serde::to_vec(&json!([life as f64 + f64::from(n) / 1e3, [event], 0])).unwrap();
        let hex: String = batch.iter().map(|byte| format!("{byte:02x}")).collect();
        self.input.write_all(format!("publish {hex}\n").as_bytes()).await.unwrap();
        self.line().await.parse().unwrap()
    }

    async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

fn tokens(n: u32) -> [u32; 4] {
    [4 * n, 4 * n + 1, 4 * n + 2, 4 * n + 3]
}

/// Waits until it is live after this message; then how many blocks of the prompt it says are held.
async fn live_at(kvtap: &Kvtap, sequence: u64) -> (Value, Value) {
    let live = |report: &Value| report["state"] == "live" && report["last_seq"] == sequence;
    let report = eventually("live", async || kvtap.worker().await, live).await;
    let prompt: Vec<u32> = (0..12).flat_map(tokens).collect();
    let answer = kvtap.ask("m", &prompt).await;
    (report, answer["workers"][0]["matched_blocks"].clone())
}

async fn noticed(kvtap: &Kvtap) -> Value {
    eventually("noticed", async || kvtap.worker().await, |report| report["state"] == "connecting").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_partition_ends_live_and_what_was_said_behind_it_is_fetched_when_it_heals() {
    let cable = Cable::new().await;
    let mut engine = cable.start_engine().await;
    for n in 0..3 {
        engine.store(1, n).await;
    }
    let kvtap = cable.start_kvtap().await;
    assert_eq!(live_at(&kvtap, 2).await.1, 3);

    cable.pull();
    for n in 3..7 {
        engine.store(1, n).await;
    }
    // Nobody tells: only silence that a heartbeat does not break.
    let report = noticed(&kvtap).await;
    assert_eq!(report["blocks"], 3, "what was held stays, and is not called live: {report}");
    cable.put_back();
    let (report, blocks) = live_at(&kvtap, 6).await;
    assert_eq!((&report["epoch"], blocks), (&json!(1), json!(7)), "the same engine, proven: {report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_that_restarts_behind_a_partition_and_passes_the_old_number_is_not_taken_for_the_old_one() {
    let cable = Cable::new().await;
    let mut engine = cable.start_engine().await;
    for n in 0..5 {
        engine.store(1, n).await;
    }
    let kvtap = cable.start_kvtap().await;
    assert_eq!(live_at(&kvtap, 4).await.1, 5);

    cable.pull();
    engine.kill().await;
    let mut engine = cable.start_engine().await;
    for n in 0..2 {
        engine.store(2, n).await;
    }
    for n in 20..26 {
        engine.store(2, n).await;
    }
    noticed(&kvtap).await;
    cable.put_back();
    let live = |report: &Value| report["last_seq"] == 7 && report["epoch"].as_u64() > Some(1);
    let report = eventually("the new life", async || kvtap.worker().await, live).await;
    let prompt: Vec<u32> = (0..12).flat_map(tokens).collect();
    let answer = kvtap.ask("m", &prompt).await;
    assert_eq!(answer["workers"][0]["matched_blocks"], 2, "nothing of the dead engine is left: {report}");
}
