//! `kvtap serve`, run as the binary that people run, beside engines on libzmq: what it says, how it starts and ends, and
//! what it makes of engines that are absent, die, are many, or send nonsense.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "support/libzmq.rs"]
mod libzmq;
mod tap_support;

use std::fmt::Display;

use kvtap::feed::zmq::Endpoint;
use kvtap::proto::v1::{self, query_service_client::QueryServiceClient};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tonic::transport::Channel;

use libzmq::{Libzmq, endpoint, free_port};
use tap_support::kvtap::{Kvtap, run};
use tap_support::{eventually, python};

const A: [u32; 4] = [1, 2, 3, 4];
const B: [u32; 4] = [5, 6, 7, 8];
const C: [u32; 4] = [9, 10, 11, 12];
const X: [u32; 4] = [90, 91, 92, 93];

/// One feed's settings.
fn feed(endpoint: impl Display, more: &str) -> String {
    format!("feeds:\n  - {{ worker: pod-a, model: m, engine: vllm, endpoint: \"{endpoint}\"{more} }}\n")
}

/// A batch of events, as engines pack it. `clock` tells two lives apart.
fn batch(clock: f64, events: &[Value]) -> Vec<u8> {
    rmp_serde::to_vec(&json!([clock, events, 0])).unwrap()
}

/// A batch of three that goes on with `events` as they are.
fn unfinished(events: &[u8]) -> Vec<u8> {
    // The head of the array, and of the float after it, take 10 bytes.
    [&batch(1.0, &[])[..10], events].concat()
}

/// The block C whose extra keys are lists in lists.
fn nested_keys(depth: usize) -> Vec<u8> {
    // [["BlockStored", [3], 2, [9, 10, 11, 12], 4, nil, nil, nil, [[[...nil...]]]]], 0
    let stored = b"\x91\x99\xabBlockStored\x91\x03\x02\x94\x09\x0a\x0b\x0c\x04\xc0\xc0\xc0";
    unfinished(&[&stored[..], &vec![0x91; depth], b"\xc0\x00"].concat())
}

fn stored(name: u64, parent: Option<u64>, tokens: &[u32], block_size: u64) -> Value {
    json!(["BlockStored", [name], parent, tokens, block_size, null])
}

/// The chain A B C, named 1 2 3.
fn chain() -> [Value; 3] {
    [stored(1, None, &A, 4), stored(2, Some(1), &B, 4), stored(3, Some(2), &C, 4)]
}

async fn publish(engine: &mut Libzmq, sequence: u64, payload: &[u8]) {
    engine.send(&[b"", &sequence.to_be_bytes(), payload]).await;
}

/// Waits until the one worker's report is `wanted`.
async fn until(kvtap: &Kvtap, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    eventually(what, async || kvtap.worker().await, wanted).await
}

/// Waits until everything up to this message was applied.
async fn applied(kvtap: &Kvtap, sequence: u64) -> Value {
    until(kvtap, "applied", |report| report["last_seq"] == sequence).await
}

async fn matched(kvtap: &Kvtap, blocks: &[[u32; 4]]) -> Value {
    kvtap.ask("m", &blocks.concat()).await["workers"][0]["matched_blocks"].clone()
}

/// A GET of the admin server.
async fn get(kvtap: &Kvtap, path: &str) -> String {
    let mut stream = TcpStream::connect(&kvtap.admin).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nHost: kvtap\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

/// Resident memory of the process, in bytes.
fn resident(kvtap: &Kvtap) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", kvtap.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Begins a call that the client never finishes sending: it is in flight until somebody ends it.
async fn call_in_flight(kvtap: &Kvtap) -> tokio::task::JoinHandle<Result<(), tonic::Status>> {
    let channel = Channel::from_shared(format!("http://{}", kvtap.grpc)).unwrap().connect().await.unwrap();
    let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
    let mut client = tonic::client::Grpc::new(channel.clone());
    let call = tokio::spawn(async move {
        let begun = futures_util::stream::once(async move {
            let _ = sender.send(());
            v1::ListWorkersRequest::default()
        });
        let body = futures_util::StreamExt::chain(begun, futures_util::stream::pending());
        client.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
        let path = "/kvtap.v1.QueryService/ListWorkers".parse().unwrap();
        let codec = tonic_prost::ProstCodec::<v1::ListWorkersRequest, v1::ListWorkersResponse>::default();
        client.client_streaming(tonic::Request::new(body), path, codec).await.map(|_| ())
    });
    receiver.await.unwrap();
    // A call that begins after it on the same connection is answered, so it has arrived.
    QueryServiceClient::new(channel).list_workers(v1::ListWorkersRequest::default()).await.unwrap();
    call
}

#[tokio::test]
async fn it_says_where_it_answers_with_the_real_port() {
    let kvtap = Kvtap::start(&feed(free_port(), "")).await;
    let port: u16 = kvtap.grpc.strip_prefix("127.0.0.1:").unwrap().parse().unwrap();
    assert_ne!(port, 0);
    TcpStream::connect(&kvtap.grpc).await.unwrap();
    let lines = kvtap.log();
    assert_eq!(lines.iter().filter(|line| line.starts_with("grpc listening on ")).count(), 1, "{lines:?}");
}

#[tokio::test]
async fn it_answers_on_a_unix_socket_beside_tcp() {
    let folder = tempfile::tempdir().unwrap();
    let socket = format!("unix://{}", folder.path().join("kvtap.sock").display());
    let settings = format!("grpc: {{ listen: [\"127.0.0.1:0\", \"{socket}\"] }}\n{}", feed(free_port(), ""));
    let kvtap = Kvtap::start(&settings).await;
    let said = kvtap.said(&format!("grpc listening on {socket}")).await;
    assert_eq!(said, "");
    let listing = tap_support::kvtap::json(&["workers", "--server", &socket, "--json"]).await;
    assert_eq!(listing["workers"][0]["worker"], "pod-a");
}

#[tokio::test]
async fn check_config_says_ok_or_one_line_for_each_fault() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kvtap.yaml");
    let path = file.to_str().unwrap();
    std::fs::write(&file, feed("tcp://127.0.0.1:5557", ", ranks: 2")).unwrap();
    let output = run(&["serve", "--config", path, "--check-config"]).await;
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{path}: ok, 2 feeds\n"));

    std::fs::write(&file, feed("127.0.0.1:5557", ", enpoint: x, copies: some") + "log: { level: loud }\n").unwrap();
    for check in [&["serve", "--config", path, "--check-config"][..], &["serve", "--config", path]] {
        let output = run(check).await;
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        let lines = String::from_utf8(output.stderr).unwrap();
        let lines: Vec<&str> = lines.lines().collect();
        assert_eq!(lines.len(), 4, "{lines:?}");
        for key in ["feeds[0].endpoint", "feeds[0].enpoint", "feeds[0].copies", "log.level"] {
            assert_eq!(lines.iter().filter(|line| line.contains(&format!("{key}: "))).count(), 1, "{key}: {lines:?}");
        }
    }
}

#[tokio::test]
async fn equal_blocks_behind_another_one_are_no_match() {
    let mut engine = Libzmq::publisher("bind", &endpoint("tcp://127.0.0.1:*")).await;
    let kvtap = Kvtap::start(&feed(&engine.endpoint, "")).await;
    engine.subscribed().await;
    publish(&mut engine, 0, &batch(1.0, &chain())).await;
    let report = applied(&kvtap, 0).await;
    assert_eq!((&report["state"], &report["blocks"]), (&json!("live"), &json!(3)));
    assert_eq!(matched(&kvtap, &[A, B, C]).await, 3);
    assert_eq!(matched(&kvtap, &[A, X, C]).await, 1);
    assert_eq!(matched(&kvtap, &[X, B, C]).await, 0);
}

#[tokio::test]
async fn an_engine_that_dies_and_begins_again_leaves_no_block_of_its_former_life() {
    let mut engine = Libzmq::publisher("bind", &free_port()).await;
    let kvtap = Kvtap::start(&feed(&engine.endpoint, "")).await;
    engine.subscribed().await;
    publish(&mut engine, 0, &batch(1.0, &chain())).await;
    assert_eq!(applied(&kvtap, 0).await["epoch"], 1);
    assert_eq!(matched(&kvtap, &[A, B, C]).await, 3);

    let at = engine.endpoint.clone();
    engine.kill().await;
    until(&kvtap, "connecting", |report| report["state"] == "connecting").await;
    let mut engine = Libzmq::publisher("bind", &at).await;
    engine.subscribed().await;
    publish(&mut engine, 0, &batch(2.0, &[stored(7, None, &X, 4)])).await;
    let report = until(&kvtap, "another life", |report| report["epoch"] == 2 && report["last_seq"] == 0).await;
    assert_eq!((&report["state"], &report["blocks"]), (&json!("live"), &json!(1)), "{report}");
    assert_eq!(matched(&kvtap, &[A, B, C]).await, 0);
    assert_eq!(matched(&kvtap, &[X]).await, 1);
}

#[tokio::test]
async fn it_is_ready_without_its_engine_and_follows_it_once_it_comes() {
    let at = free_port();
    let kvtap = Kvtap::start(&feed(&at, "")).await;
    for path in ["/live", "/ready"] {
        assert!(get(&kvtap, path).await.starts_with("HTTP/1.1 200"), "{path}");
    }
    let report = kvtap.worker().await;
    assert_eq!((&report["state"], &report["epoch"]), (&json!("connecting"), &json!(0)), "{report}");
    assert_eq!(matched(&kvtap, &[A]).await, 0);

    let mut engine = Libzmq::publisher("bind", &at).await;
    engine.subscribed().await;
    publish(&mut engine, 0, &batch(1.0, &chain())).await;
    assert_eq!(applied(&kvtap, 0).await["state"], "live");
    assert_eq!(matched(&kvtap, &[A]).await, 1);
}

#[tokio::test]
async fn told_to_stop_it_cuts_off_what_is_in_flight_at_the_end_of_its_grace_and_exits_0() {
    let settings = "grpc: { listen: [\"127.0.0.1:0\"], drain_grace: 300ms }\n".to_owned() + &feed(free_port(), "");
    let kvtap = Kvtap::start(&settings).await;
    let call = call_in_flight(&kvtap).await;
    kvtap.signal("TERM").await;
    let (status, log) = kvtap.ended().await;
    assert_eq!(status.code(), Some(0), "{log:?}");
    assert!(log.iter().any(|line| line.contains("cut off at the end of the grace")), "{log:?}");
    call.await.unwrap().unwrap_err();
}

#[tokio::test]
async fn told_to_stop_with_nothing_in_flight_it_does_not_wait_for_its_grace() {
    let settings = "grpc: { listen: [\"127.0.0.1:0\"], drain_grace: 1h }\n".to_owned() + &feed(free_port(), "");
    let kvtap = Kvtap::start(&settings).await;
    kvtap.signal("INT").await;
    let (status, log) = kvtap.ended().await;
    assert_eq!(status.code(), Some(0), "{log:?}");
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let settings = "grpc: { listen: [\"127.0.0.1:0\"], drain_grace: 1h }\n".to_owned() + &feed(free_port(), "");
    let kvtap = Kvtap::start(&settings).await;
    let _call = call_in_flight(&kvtap).await;
    kvtap.signal("TERM").await;
    eventually("draining", async || get(&kvtap, "/ready").await, |answer| answer.starts_with("HTTP/1.1 503")).await;
    kvtap.signal("TERM").await;
    let (status, log) = kvtap.ended().await;
    assert_eq!(status.code(), Some(1), "{log:?}");
}

#[tokio::test]
async fn each_kind_of_nonsense_is_counted_by_its_reason_and_the_next_good_message_counts() {
    let mut engine = Libzmq::publisher("bind", &endpoint("tcp://127.0.0.1:*")).await;
    let kvtap = Kvtap::start(&feed(&engine.endpoint, "")).await;
    engine.subscribed().await;
    let [a, b, c] = chain();
    publish(&mut engine, 0, &batch(1.0, &[a])).await;

    // Frames that carry no number cost no number.
    let good = batch(1.5, std::slice::from_ref(&b));
    engine.send(&[b"", &1u64.to_be_bytes()]).await;
    engine.send(&[&good]).await;
    engine.send(&[b"", &1u64.to_be_bytes(), &good, b"more"]).await;
    engine.send(&[b"", &1u32.to_be_bytes(), &good]).await;
    publish(&mut engine, 1, &good).await;
    let report = applied(&kvtap, 1).await;
    assert_eq!(report["dropped"], json!({"frame_count": 3, "sequence_length": 1}), "{report}");
    assert_eq!((&report["state"], &report["blocks"]), (&json!("live"), &json!(2)));

    // A message that cannot be read costs its number; what it said of blocks is lost.
    let event = |json: Value| batch(2.0, &[json]);
    // [ts, [["BlockStored", [1], nil, (an array of 4 billion)
    let huge_tokens = unfinished(b"\x91\x96\xabBlockStored\x91\x01\xc0\xdd\xff\xff\xff\xff\x01");
    let nonsense: [(&str, Vec<u8>); 12] = [
        ("truncated", good[..good.len() - 3].to_vec()),
        ("truncated", b"\xdd\xff\xff\xff\xff".to_vec()),
        ("truncated", huge_tokens),
        ("truncated", b"\x93\xc6\xff\xff\xff\xff".to_vec()),
        // Lists in lists are walked, not followed; where they mean something they are refused.
        ("unknown_tag", unfinished(&[&b"\x91\x92\xabBlockDreamt"[..], &[0x91; 10_000], b"\xc0\x00"].concat())),
        ("too_deep", nested_keys(10_000)),
        ("not_a_batch", b"\xa5hello".to_vec()),
        ("unknown_tag", event(json!(["BlockDreamt", [1]]))),
        ("bad_block_size", event(stored(5, Some(2), &C, 0))),
        ("not_dense", event(stored(5, Some(2), &C[..3], 4))),
        ("block_size_conflict", event(json!(["BlockStored", [5], 2, [1, 2, 3, 4, 5, 6, 7, 8], 8, null]))),
        ("bad_token", event(json!(["BlockStored", [5], 2, [1, 2, 3, 5_000_000_000u64], 4, null]))),
    ];
    let mut expected = report["dropped"].as_object().unwrap().clone();
    let mut sequence = 1;
    for (reason, payload) in &nonsense {
        sequence += 1;
        publish(&mut engine, sequence, payload).await;
        let before = expected.get(*reason).and_then(Value::as_u64).unwrap_or(0);
        expected.insert((*reason).to_owned(), json!(before + 1));
        let report = applied(&kvtap, sequence).await;
        assert_eq!(report["dropped"].as_object().unwrap(), &expected, "{reason}: {report}");
    }
    publish(&mut engine, sequence + 1, &batch(3.0, &[c])).await;
    let report = applied(&kvtap, sequence + 1).await;
    // Nobody knows what the unreadable ones stored or removed.
    assert_eq!((&report["state"], &report["blocks"]), (&json!("incomplete"), &json!(3)), "{report}");
    assert_eq!(matched(&kvtap, &[A, B, C]).await, 3);
}

#[tokio::test]
async fn a_number_that_no_engine_reaches_is_counted_and_the_next_message_is_applied() {
    let mut engine = Libzmq::publisher("bind", &endpoint("tcp://127.0.0.1:*")).await;
    let kvtap = Kvtap::start(&feed(&engine.endpoint, "")).await;
    engine.subscribed().await;
    let [a, b, _] = chain();
    publish(&mut engine, 0, &batch(1.0, &[a])).await;
    applied(&kvtap, 0).await;
    let x = stored(9, None, &X, 4);
    for hostile in [1 << 63, u64::MAX - 1, u64::MAX] {
        publish(&mut engine, hostile, &batch(2.0, std::slice::from_ref(&x))).await;
    }
    publish(&mut engine, 1, &batch(3.0, &[b])).await;
    let report = applied(&kvtap, 1).await;
    assert_eq!(report["dropped"], json!({"implausible_sequence": 2, "reserved_sequence": 1}), "{report}");
    assert_eq!((&report["epoch"], &report["missed"], &report["blocks"]), (&json!(1), &json!(0), &json!(2)), "{report}");
    assert_eq!(report["state"], "incomplete", "what those messages held is not known: {report}");
    assert_eq!((matched(&kvtap, &[A, B]).await, matched(&kvtap, &[X]).await), (json!(2), json!(0)));

    publish(&mut engine, 2, &batch(4.0, &[json!(["AllBlocksCleared"]), x])).await;
    until(&kvtap, "live after a clear", |report| report["state"] == "live").await;
}

#[tokio::test]
async fn a_snapshot_directory_that_cannot_be_used_is_told_wherever_somebody_looks() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    let [good, bad] = [folder.path().join("snapshots"), file.join("snapshots")].map(|path| path.display().to_string());
    let setting = |directory: &str| format!("snapshot: {{ directory: \"{directory}\" }}\nfeeds: []\n");
    for (directory, usable) in [(&good, true), (&bad, false)] {
        let kvtap = Kvtap::start(&setting(directory)).await;
        let status = get(&kvtap, "/status").await;
        let status: Value = serde_json::from_str(status.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(status["snapshots"]["directory"], **directory);
        assert_eq!(status["snapshots"]["fault"].is_null(), usable, "{status}");
        let metrics = get(&kvtap, "/metrics").await;
        let line = format!("kvtap_snapshot_usable {}", u8::from(usable));
        assert!(metrics.lines().any(|have| have == line), "{line} is not in {metrics}");

        let config = kvtap.folder.path().join("kvtap.yaml");
        let output = run(&["serve", "--config", config.to_str().unwrap(), "--check-config"]).await;
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(0), "another host may have it: {said}");
        assert_eq!(said.contains("snapshot.directory: cannot be used here"), !usable, "{said}");
    }
}

#[tokio::test]
async fn ten_thousand_bad_messages_take_no_memory() {
    const GROWTH: u64 = 16 << 20;
    let mut engine = Libzmq::publisher("bind", &endpoint("tcp://127.0.0.1:*")).await;
    let kvtap = Kvtap::start(&feed(&engine.endpoint, "")).await;
    engine.subscribed().await;
    publish(&mut engine, 0, &batch(1.0, &chain())).await;
    let hex = |payload: &[u8]| payload.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let nonsense = [
        hex(b"\xdd\xff\xff\xff\xff"),
        hex(&nested_keys(2_000)),
        hex(&batch(2.0, &[json!(["BlockDreamt", [1]])])),
        hex(&batch(2.0, &[stored(5, None, &[1; 1_000], 0)])),
        hex(&batch(2.0, &[json!(["BlockStored", [5, 6, 7], null, vec![1; 1_000], 4, null])])),
    ]
    .join(" ");
    engine.ask(&format!("storm 1000 1 {nonsense}")).await;
    applied(&kvtap, 1_000).await;
    let before = resident(&kvtap);
    engine.ask(&format!("storm 10000 1001 {nonsense}")).await;
    let report = applied(&kvtap, 11_000).await;
    let after = resident(&kvtap);
    assert!(after < before + GROWTH, "{before} bytes have become {after}");
    for (reason, count) in [
        ("truncated", 2_200),
        ("too_deep", 2_200),
        ("unknown_tag", 2_200),
        ("bad_block_size", 2_200),
        ("not_dense", 6_600),
    ] {
        assert_eq!(report["dropped"][reason], count, "{report}");
    }
    publish(&mut engine, 11_001, &batch(3.0, &[stored(4, Some(3), &X, 4)])).await;
    assert_eq!(applied(&kvtap, 11_001).await["blocks"], 4);
    assert_eq!(matched(&kvtap, &[A, B, C, X]).await, 4);
}

#[tokio::test]
async fn each_rank_is_followed_at_its_own_port() {
    let Endpoint::Tcp { host, port } = free_port() else { panic!("a tcp endpoint") };
    let at = |rank: u16| endpoint(&format!("tcp://{host}:{}", port + rank));
    let mut engines = [Libzmq::publisher("bind", &at(0)).await, Libzmq::publisher("bind", &at(1)).await];
    let kvtap = Kvtap::start(&feed(at(0), ", ranks: 2")).await;
    for (blocks, engine) in engines.iter_mut().enumerate() {
        engine.subscribed().await;
        publish(engine, 0, &batch(1.0, &chain()[..blocks + 1])).await;
    }
    let both = |workers: &Vec<Value>| workers.len() == 2 && workers.iter().all(|worker| worker["last_seq"] == 0);
    eventually("both", async || kvtap.workers().await, both).await;
    let answer = kvtap.ask("m", &[A, B, C].concat()).await;
    let depths: Vec<_> = (0..2).map(|i| &answer["workers"][i]).map(|w| (&w["rank"], &w["matched_blocks"])).collect();
    assert_eq!(depths, [(&json!(1), &json!(2)), (&json!(0), &json!(1))], "{answer}");
}

#[tokio::test]
async fn an_engine_that_connects_is_followed_where_kvtap_binds() {
    let at = free_port();
    let kvtap = Kvtap::start(&feed(&at, ", bind: true")).await;
    let mut engine = Libzmq::publisher("connect", &at).await;
    engine.subscribed().await;
    publish(&mut engine, 0, &batch(1.0, &chain())).await;
    assert_eq!(applied(&kvtap, 0).await["state"], "live");
    assert_eq!(matched(&kvtap, &[A, B, C]).await, 3);
}

#[tokio::test]
async fn ipc_is_followed_from_either_side() {
    for (side, more) in [("bind", ""), ("connect", ", bind: true")] {
        let folder = tempfile::tempdir().unwrap();
        let at = endpoint(&format!("ipc://{}/rank0", folder.path().display()));
        let kvtap = Kvtap::start(&feed(format!("ipc://{}/rank{{rank}}", folder.path().display()), more)).await;
        let mut engine = Libzmq::publisher(side, &at).await;
        engine.subscribed().await;
        publish(&mut engine, 0, &batch(1.0, &chain())).await;
        assert_eq!(applied(&kvtap, 0).await["state"], "live", "{side}");
        assert_eq!(matched(&kvtap, &[A, B, C]).await, 3, "{side}");
    }
}
