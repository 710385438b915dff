use std::time::{Duration, Instant};

use bytes::Bytes;
use kvtap::sim::publisher::{Attach, Options, PublishError, Publisher, ReplayLayout};
use serde_json::Value;

use crate::peer::Peer;

const PATIENCE: Duration = Duration::from_secs(20);

fn options() -> Options {
    Options {
        endpoint: "tcp://127.0.0.1:0".into(),
        replay: Some("tcp://127.0.0.1:0".into()),
        attach: Attach::Bind,
        topic: "kv-events".into(),
        buffer_steps: 100,
        layout: ReplayLayout::WithTopic,
        rank: 0,
    }
}

fn payload(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(hex: &str) -> Bytes {
    (0..hex.len()).step_by(2).map(|i| u8::from_str_radix(&hex[i..i + 2], 16).unwrap()).collect()
}

fn sequences(messages: &[[String; 3]]) -> Vec<u64> {
    messages.iter().map(|[_, sequence, _]| u64::from_str_radix(sequence, 16).unwrap()).collect()
}

/// Publishes until the peer has a message: a subscription takes a moment to arrive, and PUB does not say when.
async fn until_heard(publisher: &mut Publisher, peer: &mut Peer) -> Vec<u64> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        publisher.publish(payload("hello")).await.unwrap();
        let heard = peer.receive(50).await;
        if !heard.is_empty() {
            return sequences(&heard);
        }
        assert!(Instant::now() < deadline, "the subscriber heard nothing");
    }
}

async fn replays_like(layout: ReplayLayout, fixture: &str) {
    let mut lines = fixture.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let live = lines.next().unwrap();
    let mut publisher = Publisher::open(Options { buffer_steps: 6, layout, ..options() }).await.unwrap();
    for frames in live["live_frames_hex"].as_array().unwrap() {
        let sequence = publisher.publish(unhex(frames[2].as_str().unwrap())).await.unwrap();
        assert_eq!(hex(&sequence.to_be_bytes()), frames[1].as_str().unwrap());
    }
    let endpoint = publisher.replay_endpoint().unwrap();
    let mut peer = Peer::spawn();
    for case in lines {
        let request: Vec<String> = serde_json::from_value(case["request_frames_hex"].clone()).unwrap();
        let mut expected: Vec<Vec<String>> = serde_json::from_value(case["response_frames_hex"].clone()).unwrap();
        let socket = case["client"].as_str().unwrap();
        let mut requests = vec![request];
        if expected.is_empty() {
            // No reply at all: what comes back belongs to a good request sent after it, for what lies in the future.
            requests.push(vec![String::new(), "f".repeat(16)]);
            expected.push(match layout {
                ReplayLayout::Plain => vec![String::new(), "f".repeat(16), String::new()],
                ReplayLayout::WithTopic => vec![String::new(), String::new(), "f".repeat(16), String::new()],
            });
        }
        assert_eq!(peer.request(endpoint, socket, &requests).await, expected, "{}", case["name"]);
    }
}

#[tokio::test]
async fn replay_answers_each_captured_request_as_vllm_0_22_1_did() {
    replays_like(ReplayLayout::Plain, include_str!("../fixtures/sim/replay-vllm-0.22.1.jsonl")).await;
}

#[tokio::test]
async fn replay_answers_each_captured_request_as_vllm_0_33_0_did() {
    replays_like(ReplayLayout::WithTopic, include_str!("../fixtures/sim/replay-vllm-0.33.0.jsonl")).await;
}

#[tokio::test]
async fn a_replay_of_a_deep_ring_is_complete_and_in_order() {
    let mut publisher = Publisher::open(Options { buffer_steps: 10_000, ..options() }).await.unwrap();
    let body = Bytes::from(vec![7; 500]);
    for _ in 0..10_500 {
        publisher.publish(body.clone()).await.unwrap();
    }
    let mut peer = Peer::spawn();
    let requests = [vec![String::new(), String::new()]];
    let replies = peer.request(publisher.replay_endpoint().unwrap(), "DEALER", &requests).await;
    let (end, messages) = replies.split_last().unwrap();
    assert_eq!(end[2], "f".repeat(16));
    let sequences: Vec<_> = messages.iter().map(|frames| u64::from_str_radix(&frames[2], 16).unwrap()).collect();
    assert_eq!(sequences, (500..10_500).collect::<Vec<_>>());
}

#[tokio::test]
async fn live_messages_are_topic_sequence_and_payload_for_whoever_is_there() {
    let mut publisher = Publisher::open(options()).await.unwrap();
    let mut peer = Peer::spawn();
    for _ in 0..2 {
        peer.subscribe(publisher.endpoint(), "kv-", false).await;
        let last = *until_heard(&mut publisher, &mut peer).await.last().unwrap();
        assert_eq!(publisher.publish(payload("a")).await.unwrap(), last + 1);
        assert_eq!(publisher.publish(payload("b")).await.unwrap(), last + 2);
        let heard = peer.receive(500).await;
        let expected = [("a", last + 1), ("b", last + 2)]
            .map(|(text, sequence)| [hex(b"kv-events"), hex(&sequence.to_be_bytes()), hex(text.as_bytes())]);
        assert_eq!(heard, expected);
        // The subscriber leaves; publishing to nobody is no error, and the next one joins.
        peer.subscribe("tcp://127.0.0.1:1", "", false).await;
        for _ in 0..10 {
            publisher.publish(payload("to nobody")).await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_publisher_that_connects_finds_its_subscriber_and_finds_it_again() {
    let mut peer = Peer::spawn();
    let endpoint = peer.subscribe("tcp://127.0.0.1:*", "", true).await;
    let mut publisher =
        Publisher::open(Options { endpoint: endpoint.clone(), attach: Attach::Connect, ..options() }).await.unwrap();
    until_heard(&mut publisher, &mut peer).await;
    assert_eq!(peer.subscribe(&endpoint, "", true).await, endpoint);
    until_heard(&mut publisher, &mut peer).await;
}

#[tokio::test]
async fn a_publisher_that_dies_and_comes_back_begins_at_zero_at_the_same_endpoints() {
    let mut publisher = Publisher::open(options()).await.unwrap();
    let (endpoint, replay) = (publisher.endpoint().to_owned(), publisher.replay_endpoint().unwrap().to_owned());
    let mut peer = Peer::spawn();
    peer.subscribe(&endpoint, "", false).await;
    until_heard(&mut publisher, &mut peer).await;
    publisher.detach().await;
    assert!(matches!(publisher.publish(payload("into the void")).await, Err(PublishError::Closed)));
    publisher.rewind();
    publisher.attach().await.unwrap();
    assert_eq!((publisher.endpoint(), publisher.replay_endpoint().unwrap()), (&*endpoint, &*replay));
    assert_eq!(publisher.next_sequence(), 0);
    until_heard(&mut publisher, &mut peer).await;
    let replies = peer.request(&replay, "DEALER", &[vec![String::new(), String::new()]]).await;
    assert_eq!(replies[0][2], "0".repeat(16));
}

#[tokio::test]
async fn a_unix_socket_serves_each_rank_at_a_path_of_its_own_over_what_a_dead_process_left() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kv");
    drop(std::os::unix::net::UnixListener::bind(folder.path().join("kv_dp1")).unwrap());
    let ipc = format!("ipc://{}", path.display());
    let replay = format!("ipc://{}-replay", path.display());
    let mut publisher =
        Publisher::open(Options { endpoint: ipc.clone(), replay: Some(replay.clone()), rank: 1, ..options() })
            .await
            .unwrap();
    assert_eq!(publisher.endpoint(), format!("{ipc}_dp1"));
    assert_eq!(publisher.replay_endpoint().unwrap(), format!("{replay}_dp1"));
    let mut peer = Peer::spawn();
    peer.subscribe(publisher.endpoint(), "", false).await;
    until_heard(&mut publisher, &mut peer).await;
    let requests = [vec![String::new(), String::new()]];
    let replies = peer.request(publisher.replay_endpoint().unwrap(), "DEALER", &requests).await;
    assert_eq!(replies[0][3], hex(b"hello"));
}

#[tokio::test]
async fn what_is_kept_or_burned_is_never_sent_and_only_the_kept_can_be_replayed() {
    let mut publisher = Publisher::open(options()).await.unwrap();
    assert_eq!(publisher.publish(payload("sent")).await.unwrap(), 0);
    assert_eq!(publisher.burn(), 1);
    assert_eq!(publisher.keep(payload("kept")), 2);
    let mut peer = Peer::spawn();
    let all = [vec![String::new(), String::new()]];
    let replies = peer.request(publisher.replay_endpoint().unwrap(), "DEALER", &all).await;
    let payloads: Vec<_> = replies.iter().map(|frames| frames[3].clone()).collect();
    assert_eq!(payloads, [hex(b"sent"), hex(b"kept"), String::new()]);
    publisher.forget();
    assert_eq!(peer.request(publisher.replay_endpoint().unwrap(), "DEALER", &all).await.len(), 1);
}

#[tokio::test]
async fn a_stalled_publisher_holds_its_messages_back_and_lets_them_go_in_order() {
    let mut publisher = Publisher::open(options()).await.unwrap();
    let mut peer = Peer::spawn();
    peer.subscribe(publisher.endpoint(), "", false).await;
    let last = *until_heard(&mut publisher, &mut peer).await.last().unwrap();
    publisher.stall(true);
    for _ in 0..3 {
        publisher.publish(payload("later")).await.unwrap();
    }
    assert!(peer.receive(300).await.is_empty());
    publisher.stall(false);
    assert_eq!(sequences(&peer.receive(500).await), [last + 1, last + 2, last + 3]);
}

#[tokio::test]
async fn an_endpoint_that_cannot_be_used_is_refused_with_the_reason() {
    for (endpoint, rank, reason) in [
        ("udp://127.0.0.1:1", 0, "expected tcp://host:port or ipc://path"),
        ("tcp://127.0.0.1", 0, "no port"),
        ("tcp://:5557", 0, "no host"),
        ("tcp://127.0.0.1:http", 0, "not a number"),
        ("tcp://127.0.0.1:65535", 1, "above 65535"),
        ("ipc://", 0, "no path"),
    ] {
        let error = Publisher::open(Options { endpoint: endpoint.into(), rank, ..options() }).await.unwrap_err();
        assert!(matches!(error, PublishError::Endpoint { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        assert!(error.to_string().contains(endpoint), "{error}");
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("tcp://{}", taken.local_addr().unwrap());
    let error = Publisher::open(Options { endpoint, ..options() }).await.unwrap_err();
    assert!(matches!(error, PublishError::Bind { .. }), "{error}");
}
