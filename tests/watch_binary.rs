//! The normalized feed of the binary that people run: to a router in Python, and to `kvtap watch`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "support/libzmq.rs"]
mod libzmq;
mod tap_support;

use kvtap::block::Grid;
use kvtap::hash::{PrefixHash, Seed};
use kvtap::proto::v1::Tier;
use libzmq::{Libzmq, endpoint};
use serde_json::{Value, json};
use tap_support::kvtap::{Kvtap, command, run};
use tap_support::peer::Peer;
use tap_support::{PATIENCE, python};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout};

const TOKENS: [u32; 12] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];

fn stored(blocks: std::ops::Range<u32>) -> Value {
    let names: Vec<u32> = blocks.clone().map(|block| block + 100).collect();
    let parent = blocks.start.checked_sub(1).map(|block| block + 100);
    let tokens = &TOKENS[blocks.start as usize * 4..blocks.end as usize * 4];
    json!(["BlockStored", names, parent, tokens, 4, null])
}

async fn publish(engine: &mut Libzmq, sequence: u64, events: &[Value]) {
    let payload = rmp_serde::to_vec(&json!([1.0, events, 0])).unwrap();
    engine.send(&[b"", &sequence.to_be_bytes(), &payload]).await;
}

/// The prefix hashes of the first blocks of the prompt.
fn prefixes(blocks: usize) -> Vec<u64> {
    let bytes: Vec<u8> = TOKENS.iter().flat_map(|token| token.to_le_bytes()).collect();
    let contents = Grid::new(4).unwrap().plain_contents(&bytes, Seed::PLAIN);
    PrefixHash::chain(&contents[..blocks]).iter().map(|prefix| prefix.0).collect()
}

/// On the device, as the peer says it.
fn held(blocks: usize) -> Value {
    let mut held: Vec<(u64, i32)> = prefixes(blocks).into_iter().map(|prefix| (prefix, Tier::Device as i32)).collect();
    held.sort_unstable();
    json!({ "blocks": held })
}

/// `kvtap watch`, line by line.
struct Watching {
    _child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Watching {
    fn start(arguments: &[&str]) -> Self {
        let mut child = command(arguments).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { _child: child, lines }
    }

    /// The next object of this event.
    async fn event(&mut self, event: &str) -> Value {
        loop {
            let line = tokio::time::timeout(PATIENCE, self.lines.next_line()).await.expect("a line").unwrap();
            let object: Value = serde_json::from_str(&line.expect("it goes on")).unwrap();
            if object["event"] == event {
                return object;
            }
        }
    }
}

#[tokio::test]
async fn a_router_in_another_language_keeps_the_same_picture_and_resumes() {
    let (mut engine, kvtap) = start().await;
    publish(&mut engine, 0, &[stored(0..2)]).await;
    let mut router = Peer::start("grpc_watch.py", &["--server", &kvtap.grpc]).await;
    assert_eq!(router.line().await, json!({ "resumed": false, "why": "" }));
    assert_eq!(router.ask("until pod-a 0 0").await, held(2));
    publish(&mut engine, 1, &[stored(2..3)]).await;
    assert_eq!(router.ask("until pod-a 0 1").await, held(3));
    publish(&mut engine, 2, &[json!(["BlockRemoved", [102, 101], null])]).await;
    assert_eq!(router.ask("until pod-a 0 2").await, held(1));
    publish(&mut engine, 3, &[json!(["AllBlocksCleared"]), stored(0..3)]).await;
    assert_eq!(router.ask("again").await, json!({ "resumed": true, "why": "" }));
    assert_eq!(router.ask("until pod-a 0 3").await, held(3));
}

#[tokio::test]
async fn the_watch_command_prints_snapshots_changes_and_a_cursor_to_go_on_from() {
    let (mut engine, kvtap) = start().await;
    publish(&mut engine, 0, &[stored(0..2)]).await;
    let mut watching = Watching::start(&["watch", "--server", &kvtap.grpc, "--model", "m", "--json"]);
    // The message may come before the watch, or after it has begun.
    let told = loop {
        let line = tokio::time::timeout(PATIENCE, watching.lines.next_line()).await.expect("a line").unwrap();
        let object: Value = serde_json::from_str(&line.expect("it goes on")).unwrap();
        if object["changes"][0]["change"] == "stored" || object["changes"][1]["change"] == "stored" {
            break object;
        }
    };
    let changes = told["changes"].as_array().unwrap();
    let held = changes.iter().find(|change| change["change"] == "stored").unwrap();
    assert_eq!(held["prefix_hashes"], json!(prefixes(2)));
    assert_eq!((&held["tier"], &held["position"], &told["worker"]), (&json!("device"), &json!(0), &json!("pod-a")));
    publish(&mut engine, 1, &[stored(2..3)]).await;
    let delta = loop {
        let delta = watching.event("delta").await;
        if delta["sequence"] == 1 {
            break delta;
        }
    };
    assert_eq!((&delta["epoch"], &delta["changes"][0]["position"]), (&json!(1), &json!(2)));
    let cursor = delta["cursor"].as_str().unwrap();
    publish(&mut engine, 2, &[json!(["BlockRemoved", [102], null])]).await;
    let arguments = ["watch", "--server", &kvtap.grpc, "--model", "m", "--json", "--resume-after", cursor];
    let mut resumed = Watching::start(&arguments);
    assert_eq!(resumed.event("started").await["resumed"], json!(true));
    let delta = resumed.event("delta").await;
    assert_eq!((&delta["sequence"], &delta["changes"][0]["change"]), (&json!(2), &json!("removed")));

    let once = run(&["watch", "--server", &kvtap.grpc, "--once"]).await;
    let text = String::from_utf8(once.stdout).unwrap();
    assert!(once.status.success() && text.contains("pod-a/0 holds, as of [1:2]:"), "{text}");
    assert!(text.contains("stored 0..2 on device"), "{text}");
    let usage = run(&["watch", "--server", &kvtap.grpc, "--resume-after", "xyz"]).await;
    assert_eq!(usage.status.code(), Some(64), "{usage:?}");
}

/// An engine, and a kvtap that follows it.
async fn start() -> (Libzmq, Kvtap) {
    let mut engine = Libzmq::publisher("bind", &endpoint("tcp://127.0.0.1:*")).await;
    let at = &engine.endpoint;
    let settings = format!("feeds:\n  - {{ worker: pod-a, model: m, engine: vllm, endpoint: \"{at}\" }}\n");
    let kvtap = Kvtap::start(&settings).await;
    engine.subscribed().await;
    (engine, kvtap)
}
