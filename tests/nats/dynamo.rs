//! Dynamo's event plane on core NATS.

use bytes::Bytes;
use kvtap::feed::status::State;
use serde_json::Value;

use crate::server::Server;
use crate::tap::{Tap, cleared, envelope, removed, stored};

const SUBJECT: &str = "namespace.prod.component.backend.endpoint.generate.kv-events";

pub async fn publish(client: &async_nats::Client, payload: Bytes) {
    client.publish(SUBJECT, payload).await.unwrap();
    client.flush().await.unwrap();
}

#[tokio::test]
async fn workers_and_ranks_appear_as_they_speak_and_are_live_from_their_first_message_on() {
    let server = Server::start().await;
    let (tap, client) = (Tap::dynamo(&server, SUBJECT).await, server.client().await);
    publish(&client, envelope(7, 0, &[stored(41, 0, 0..2), stored(42, 1, 0..1)])).await;
    publish(&client, envelope(7, 1, &[stored(42, 1, 1..3)])).await;
    publish(&client, envelope(8, 0, &[stored(43, 0, 0..4), removed(43, 0, 2)])).await;
    tap.live("plane/41", 0, 1).await;
    tap.live("plane/42", 1, 2).await;
    tap.live("plane/43", 0, 2).await;
    assert_eq!((tap.matched("plane/41", 0), tap.matched("plane/42", 1), tap.matched("plane/43", 0)), (2, 3, 2));
    let identity = tap.entry("plane/42", 1).unwrap().identity.clone();
    assert!(identity.is_called("42"), "{identity:?}");
    assert_eq!(tap.board.all().len(), 4, "three ranks, and the subscription itself");
}

#[tokio::test]
async fn a_number_that_never_came_leaves_every_rank_of_its_publisher_incomplete_until_a_clear() {
    let server = Server::start().await;
    let (tap, client) = (Tap::dynamo(&server, SUBJECT).await, server.client().await);
    publish(&client, envelope(7, 0, &[stored(1, 0, 0..1), stored(1, 1, 0..1)])).await;
    publish(&client, envelope(9, 0, &[stored(2, 0, 0..1)])).await;
    tap.live("plane/1", 1, 1).await;
    publish(&client, envelope(7, 2, &[stored(1, 0, 1..2)])).await;
    let spoken = tap.incomplete("plane/1", 0, 2).await;
    assert_eq!((spoken.gaps, spoken.missed), (1, 1));
    tap.incomplete("plane/1", 1, 1).await;
    tap.live("plane/2", 0, 1).await;
    publish(&client, envelope(7, 3, &[cleared(1, 1)])).await;
    tap.live("plane/1", 1, 2).await;
    assert_eq!((tap.matched("plane/1", 0), tap.matched("plane/1", 1)), (2, 0));
    assert_eq!(tap.status("plane/1", 0).state, State::Incomplete);
}

#[tokio::test]
async fn another_publisher_of_a_worker_is_another_life_and_the_old_blocks_go() {
    let server = Server::start().await;
    let (tap, client) = (Tap::dynamo(&server, SUBJECT).await, server.client().await);
    publish(&client, envelope(7, 0, &[stored(1, 0, 0..3)])).await;
    tap.live("plane/1", 0, 1).await;
    publish(&client, envelope(8, 0, &[stored(1, 0, 0..1)])).await;
    let status = tap.until("plane/1", 0, "in epoch 2", |status| status.epoch == 2 && status.events == 2).await;
    assert_eq!((status.state, status.resets["publisher_changed"], tap.matched("plane/1", 0)), (State::Live, 1, 1));
}

#[tokio::test]
async fn who_subscribes_late_says_so() {
    let server = Server::start().await;
    let (tap, client) = (Tap::dynamo(&server, SUBJECT).await, server.client().await);
    publish(&client, envelope(7, 5, &[stored(1, 0, 0..3)])).await;
    tap.incomplete("plane/1", 0, 1).await;
    assert_eq!(tap.matched("plane/1", 0), 3);
}

#[tokio::test]
async fn json_without_an_envelope_is_read_and_never_live_on_a_plain_subscription() {
    let server = Server::start().await;
    let (tap, client) = (Tap::dynamo(&server, SUBJECT).await, server.client().await);
    for event in [stored(1, 0, 0..2), stored(1, 0, 2..3)] {
        publish(&client, serde_json::to_vec(&event).unwrap().into()).await;
    }
    let status = tap.incomplete("plane/1", 0, 2).await;
    assert!(status.why.contains("no numbers"), "{}", status.why);
    assert_eq!(tap.matched("plane/1", 0), 3);
}

#[tokio::test]
async fn every_captured_message_of_two_releases_finds_its_rank() {
    let server = Server::start().await;
    let (tap, client) = (Tap::dynamo(&server, SUBJECT).await, server.client().await);
    let mut owners = std::collections::BTreeMap::new();
    for text in [
        include_str!("../fixtures/wire/nats-dynamo-1.6.1.jsonl"),
        include_str!("../fixtures/wire/nats-dynamo-legacy.jsonl"),
    ] {
        for line in text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap()) {
            let hex = line["payload_hex"].as_str().unwrap();
            let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
            publish(&client, (0..hex.len()).step_by(2).map(byte).collect::<Vec<u8>>().into()).await;
            let expect = &line["expect"];
            let one = [expect["router_event"].clone()];
            for event in expect["router_events"].as_array().map_or(&one[..], |events| events) {
                let rank = event["event"]["dp_rank"].as_u64().unwrap_or(0) as u32;
                *owners.entry((event["worker_id"].as_u64().unwrap(), rank)).or_insert(0) += 1;
            }
        }
    }
    assert!(owners.len() > 1);
    for ((worker, rank), events) in owners {
        let worker = format!("plane/{worker}");
        let status = tap.until(&worker, rank, "heard", |status| status.events >= events).await;
        assert_eq!((status.events, tap.status("plane", 0).dropped.values().sum::<u64>()), (events, 0), "{worker}");
    }
}
