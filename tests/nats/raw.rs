//! Engines' own batches, as a bridge publishes them.

use async_nats::HeaderMap;
use kvtap::admin::report::Fleet;
use kvtap::feed::link::QueueLimits;
use kvtap::feed::nats::{PUBLISHER_HEADER, SEQUENCE_HEADER};
use kvtap::feed::status::State;
use kvtap::wire::Dialect;
use serde_json::json;

use crate::server::Server;
use crate::tap::{BLOCK, Tap, name, options};

/// A vLLM batch that stores one block of the prompt, made at `time`.
fn batch(time: f64, block: u32) -> Vec<u8> {
    let tokens: Vec<u32> = (block * BLOCK..(block + 1) * BLOCK).collect();
    let parent = block.checked_sub(1).map(name);
    let event = json!(["BlockStored", [name(block)], parent, tokens, BLOCK, null]);
    rmp_serde::to_vec(&json!([time, [event], 0])).unwrap()
}

fn headers(sequence: Option<&str>, publisher: Option<&str>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.extend_with(SEQUENCE_HEADER, sequence);
    headers.extend_with(PUBLISHER_HEADER, publisher);
    headers
}

trait ExtendWith {
    fn extend_with(&mut self, name: &str, value: Option<&str>);
}

impl ExtendWith for HeaderMap {
    fn extend_with(&mut self, name: &str, value: Option<&str>) {
        if let Some(value) = value {
            self.insert(name, value);
        }
    }
}

async fn send(client: &async_nats::Client, subject: &str, headers: HeaderMap, payload: Vec<u8>) {
    client.publish_with_headers(subject.to_owned(), headers, payload.into()).await.unwrap();
    client.flush().await.unwrap();
}

async fn tap(server: &Server, subject: &str) -> Tap {
    let mut raw = options(server, Dialect::Vllm, subject);
    raw.following.engine = "vllm";
    let tap = Tap::start(raw);
    tap.until("plane", 0, "subscribed", |status| status.connected).await;
    tap
}

#[tokio::test]
async fn numbered_batches_are_followed_like_a_socket_and_a_named_publisher_proves_a_reconnection() {
    let mut server = Server::start().await;
    let tap = tap(&server, "kv.{worker}.{rank}").await;
    let client = server.client().await;
    send(&client, "kv.pod-a.0", headers(Some("0"), Some("life-1")), batch(1.0, 0)).await;
    send(&client, "kv.pod-a.1", headers(Some("0"), None), batch(1.5, 0)).await;
    tap.live("plane/pod-a", 0, 1).await;
    tap.live("plane/pod-a", 1, 1).await;

    server.restart().await;
    for rank in 0..2 {
        let back = |status: &kvtap::feed::status::Status| status.connected && status.state == State::Incomplete;
        tap.until("plane/pod-a", rank, "back without a proof", back).await;
    }
    let client = server.client().await;
    send(&client, "kv.pod-a.0", headers(Some("1"), Some("life-1")), batch(2.0, 1)).await;
    send(&client, "kv.pod-a.1", headers(Some("1"), None), batch(2.5, 1)).await;
    tap.live("plane/pod-a", 0, 2).await;
    tap.incomplete("plane/pod-a", 1, 2).await;
    assert_eq!(tap.matched("plane/pod-a", 0), 2);

    send(&client, "kv.pod-a.0", headers(Some("0"), Some("life-2")), batch(3.0, 0)).await;
    let status = tap.until("plane/pod-a", 0, "in its next life", |status| status.epoch == 2).await;
    assert_eq!(status.resets["publisher_changed"], 1);
    send(&client, "kv.pod-a.1", headers(Some("0"), None), batch(3.5, 0)).await;
    tap.until("plane/pod-a", 1, "in its next life", |status| status.epoch == 2 && status.state == State::Live).await;
}

#[tokio::test]
async fn a_worker_of_the_configuration_is_there_before_it_speaks() {
    let server = Server::start().await;
    let mut listed = options(&server, Dialect::Vllm, "kv.bridge.{rank}");
    listed.ranks = 0..2;
    let (tap, client) = (Tap::start(listed), server.client().await);
    for rank in 0..2 {
        tap.until("plane", rank, "subscribed", |status| status.connected && status.state == State::Connecting).await;
    }
    send(&client, "kv.bridge.1", headers(Some("0"), Some("x")), batch(1.0, 0)).await;
    send(&client, "kv.bridge.2", headers(Some("0"), Some("x")), batch(1.0, 0)).await;
    send(&client, "kv.bridge.one", headers(Some("0"), Some("x")), batch(1.0, 0)).await;
    send(&client, "kv.bridge.1", headers(Some("two"), Some("x")), batch(1.0, 0)).await;
    tap.incomplete("plane", 1, 1).await;
    assert_eq!(tap.status("plane", 1).dropped["bad_header"], 1);
    send(&client, "kv.bridge.1", headers(Some("1"), Some("x")), batch(2.0, 1)).await;
    tap.live("plane", 1, 2).await;
    let first = tap.until("plane", 0, "warned", |status| status.dropped.get("unknown_subject") == Some(&1)).await;
    assert_eq!((first.dropped["other_rank"], first.state), (1, State::Connecting));
}

#[tokio::test]
async fn batches_without_numbers_are_applied_and_never_live() {
    let server = Server::start().await;
    let tap = tap(&server, "kv.{worker}").await;
    let client = server.client().await;
    for block in 0..3 {
        client.publish("kv.pod-a", batch(f64::from(block), block).into()).await.unwrap();
    }
    client.flush().await.unwrap();
    let status = tap.incomplete("plane/pod-a", 0, 3).await;
    assert!(status.why.contains("no numbers"), "{}", status.why);
    assert_eq!((status.gaps, tap.matched("plane/pod-a", 0)), (0, 3));
}

#[tokio::test]
async fn a_rank_that_speaks_over_nats_shows_its_queue_and_the_bounds_of_it() {
    let server = Server::start().await;
    let mut bounded = options(&server, Dialect::Vllm, "kv.{worker}");
    bounded.queue = QueueLimits { messages: 77, bytes: 1 << 20 };
    let (tap, client) = (Tap::start(bounded), server.client().await);
    tap.until("plane", 0, "subscribed", |status| status.connected).await;
    send(&client, "kv.pod-a", headers(Some("0"), Some("life-1")), batch(1.0, 0)).await;
    tap.live("plane/pod-a", 0, 1).await;
    let reports = Fleet::new(tap.index.clone(), tap.board.clone()).reports();
    let report = reports.iter().find(|report| report.worker == "plane/pod-a").expect("the rank");
    assert_eq!((report.queue.limit_messages, report.queue.limit_bytes), (77, 1 << 20));
}
