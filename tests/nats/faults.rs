//! Servers that vanish, freeze and overrun us.

use std::time::{Duration, Instant};

use bytes::Bytes;
use kvtap::feed::status::State;
use kvtap::wire::Dialect;
use tokio::time::sleep;

use crate::dynamo::publish;
use crate::server::Server;
use crate::tap::{Tap, envelope, options, stored};

const SUBJECT: &str = "namespace.>";

/// Publishes again and again until the rank has heard it: what comes between a connection and the subscription on it is
/// lost.
async fn publish_until_heard(tap: &Tap, client: &async_nats::Client, payload: Bytes) {
    let messages = || tap.entry("plane/1", 0).map_or(0, |entry| entry.status().messages);
    let (before, begun) = (messages(), Instant::now());
    while messages() == before {
        assert!(begun.elapsed() < Duration::from_secs(60), "nobody hears it");
        publish(client, payload.clone()).await;
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn a_restart_of_the_server_is_proven_by_the_next_message_and_what_was_missed_shows() {
    let mut server = Server::start().await;
    let (tap, client) = (Tap::dynamo(&server, SUBJECT).await, server.client().await);
    publish(&client, envelope(7, 0, &[stored(1, 0, 0..1)])).await;
    publish(&client, envelope(8, 0, &[stored(2, 0, 0..1)])).await;
    tap.live("plane/1", 0, 1).await;
    tap.live("plane/2", 0, 1).await;

    server.kill().await;
    tap.until("plane/1", 0, "disconnected", |status| status.state == State::Connecting).await;
    server.start_again().await;
    for worker in ["plane/1", "plane/2"] {
        tap.until(worker, 0, "back", |status| status.connected && status.state == State::Incomplete).await;
    }
    let client = server.client().await;
    publish(&client, envelope(7, 1, &[stored(1, 0, 1..2)])).await;
    publish(&client, envelope(8, 5, &[stored(2, 0, 1..2)])).await;
    let whole = tap.live("plane/1", 0, 2).await;
    let holed = tap.incomplete("plane/2", 0, 2).await;
    assert_eq!((whole.epoch, whole.missed, holed.epoch, holed.missed), (1, 0, 1, 4));
    assert_eq!((tap.matched("plane/1", 0), tap.matched("plane/2", 0)), (2, 2));
}

#[tokio::test]
async fn a_server_that_freezes_is_noticed_without_a_closed_connection() {
    let server = Server::start().await;
    let (tap, client) = (Tap::dynamo(&server, SUBJECT).await, server.client().await);
    publish(&client, envelope(7, 0, &[stored(1, 0, 0..1)])).await;
    tap.live("plane/1", 0, 1).await;
    server.pause().await;
    tap.until("plane/1", 0, "disconnected", |status| status.state == State::Connecting).await;
    server.go_on().await;
    tap.until("plane/1", 0, "back", |status| status.connected).await;
    publish_until_heard(&tap, &client, envelope(7, 1, &[stored(1, 0, 1..2)])).await;
    tap.live("plane/1", 0, 2).await;
}

#[tokio::test]
async fn a_server_that_stays_away_beyond_the_grace_takes_the_blocks_along() {
    let mut server = Server::start().await;
    let mut impatient = options(&server, Dialect::Dynamo, SUBJECT);
    impatient.following.timing.grace = Some(Duration::from_millis(100));
    let (tap, client) = (Tap::start(impatient), server.client().await);
    tap.until("plane", 0, "subscribed", |status| status.connected).await;
    publish(&client, envelope(7, 0, &[stored(1, 0, 0..1)])).await;
    tap.live("plane/1", 0, 1).await;
    server.kill().await;
    tap.until("plane/1", 0, "gone", |status| status.state == State::Gone).await;
    assert_eq!(tap.matched("plane/1", 0), 0);
    server.start_again().await;
    let client = server.client().await;
    tap.until("plane/1", 0, "back", |status| status.connected).await;
    publish_until_heard(&tap, &client, envelope(7, 1, &[stored(1, 0, 0..2)])).await;
    tap.incomplete("plane/1", 0, 2).await;
}

#[tokio::test]
async fn more_messages_than_the_client_has_room_for_are_a_gap_that_shows() {
    let server = Server::start().await;
    let mut narrow = options(&server, Dialect::Dynamo, SUBJECT);
    narrow.connection.subscription = 1;
    let (tap, client) = (Tap::start(narrow), server.client().await);
    tap.until("plane", 0, "subscribed", |status| status.connected).await;
    publish_until_heard(&tap, &client, envelope(7, 0, &[stored(1, 0, 0..1)])).await;
    tap.live("plane/1", 0, 1).await;
    let mut sequence = 1;
    // As many as it takes: how quickly they are read is nobody's promise.
    while !tap.status("plane", 0).dropped.contains_key("slow_consumer") {
        for _ in 0..2000 {
            client.publish("namespace.x", envelope(7, sequence, &[stored(1, 0, 0..1)])).await.unwrap();
            sequence += 1;
        }
        client.flush().await.unwrap();
        assert!(sequence < 10_000_000);
    }
    publish(&client, envelope(7, sequence, &[stored(1, 0, 0..1)])).await;
    let status = tap.incomplete("plane/1", 0, 2).await;
    assert!(status.missed > 0, "{status:?}");
}

#[tokio::test]
async fn a_plane_that_is_stopped_leaves_nothing_behind() {
    let server = Server::start().await;
    let (tap, client) = (Tap::dynamo(&server, SUBJECT).await, server.client().await);
    publish(&client, envelope(7, 0, &[stored(1, 0, 0..1)])).await;
    tap.live("plane/1", 0, 1).await;
    let Tap { board, plane, .. } = tap;
    plane.stop().await;
    assert!(board.all().is_empty());
}
