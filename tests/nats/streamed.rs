//! Dynamo's older form: JSON in a JetStream stream.

use async_nats::jetstream;
use kvtap::feed::status::State;
use kvtap::wire::Dialect;
use serde_json::Value;

use crate::server::Server;
use crate::tap::{Tap, options, removed, stored};

const STREAM: &str = "namespace-prod-component-backend-kv-events";
const SUBJECT: &str = "namespace-prod-component-backend-kv-events.queue";

async fn make(server: &Server) -> jetstream::Context {
    let context = jetstream::new(server.client().await);
    let config = jetstream::stream::Config {
        name: STREAM.to_owned(),
        subjects: vec![format!("{STREAM}.>")],
        ..Default::default()
    };
    context.get_or_create_stream(config).await.unwrap();
    context
}

async fn store(context: &jetstream::Context, event: &Value) {
    let payload = serde_json::to_vec(event).unwrap();
    context.publish(SUBJECT, payload.into()).await.unwrap().await.unwrap();
}

async fn tap(server: &Server) -> Tap {
    let mut old = options(server, Dialect::Dynamo, SUBJECT);
    old.stream = Some(STREAM.to_owned());
    Tap::start(old)
}

#[tokio::test]
async fn a_stream_is_read_from_its_first_message_on() {
    let server = Server::start().await;
    let context = make(&server).await;
    store(&context, &stored(1, 0, 0..2)).await;
    store(&context, &stored(2, 3, 0..1)).await;
    let tap = tap(&server).await;
    tap.live("plane/1", 0, 1).await;
    tap.live("plane/2", 3, 1).await;
    store(&context, &stored(1, 0, 2..3)).await;
    tap.live("plane/1", 0, 2).await;
    assert_eq!(tap.matched("plane/1", 0), 3);
}

#[tokio::test]
async fn a_stream_that_was_trimmed_leaves_its_ranks_incomplete() {
    let server = Server::start().await;
    let context = make(&server).await;
    for block in 0..3 {
        store(&context, &stored(1, 0, block..block + 1)).await;
    }
    context.get_stream(STREAM).await.unwrap().purge().sequence(3).await.unwrap();
    let tap = tap(&server).await;
    tap.until("plane/1", 0, "incomplete", |status| status.state == State::Incomplete && status.messages == 1).await;
}

#[tokio::test]
async fn a_restarted_server_is_read_on_from_where_it_was_left() {
    let mut server = Server::start().await;
    let context = make(&server).await;
    let tap = tap(&server).await;
    store(&context, &stored(1, 0, 0..1)).await;
    tap.live("plane/1", 0, 1).await;
    server.kill().await;
    tap.until("plane/1", 0, "disconnected", |status| status.state == State::Connecting).await;
    server.start_again().await;
    let context = make(&server).await;
    store(&context, &stored(1, 0, 1..2)).await;
    let status = tap.live("plane/1", 0, 2).await;
    assert_eq!((tap.matched("plane/1", 0), status.epoch, status.gaps), (2, 1, 0));
}

#[tokio::test]
async fn a_stream_that_lost_what_was_not_read_yet_leaves_its_ranks_incomplete_though_nothing_follows() {
    let mut server = Server::start().await;
    let context = make(&server).await;
    let tap = tap(&server).await;
    store(&context, &stored(1, 0, 0..1)).await;
    tap.live("plane/1", 0, 1).await;
    server.kill().await;
    let gone = tap.until("plane/1", 0, "disconnected", |status| status.state == State::Connecting).await;
    assert!(gone.fault.is_some_and(|fault| fault.contains("connection")), "not by a heartbeat that stayed away");

    // Where the tap does not look.
    server.start_elsewhere().await;
    let context = make(&server).await;
    store(&context, &removed(1, 0, 0)).await;
    context.get_stream(STREAM).await.unwrap().purge().await.unwrap();
    server.kill().await;
    server.start_again().await;
    let status = tap.until("plane/1", 0, "back", |status| status.state != State::Connecting).await;
    assert_eq!((status.state, status.messages), (State::Incomplete, 1), "{status:?}");
}

#[tokio::test]
async fn a_deleted_consumer_costs_nothing_and_a_deleted_stream_costs_what_was_in_it() {
    let server = Server::start().await;
    let context = make(&server).await;
    let tap = tap(&server).await;
    store(&context, &stored(1, 0, 0..1)).await;
    tap.live("plane/1", 0, 1).await;

    let stream = context.get_stream(STREAM).await.unwrap();
    let names = stream.consumer_names();
    let names: Vec<String> = futures_util::TryStreamExt::try_collect(names).await.unwrap();
    assert_eq!(names.len(), 1, "one reader, one consumer");
    stream.delete_consumer(&names[0]).await.unwrap();
    store(&context, &stored(1, 0, 1..2)).await;
    let status = tap.live("plane/1", 0, 2).await;
    assert_eq!((status.epoch, status.gaps), (1, 0));

    context.delete_stream(STREAM).await.unwrap();
    tap.until("plane/1", 0, "disconnected", |status| status.state == State::Connecting).await;
    let context = make(&server).await;
    store(&context, &stored(1, 0, 2..3)).await;
    tap.incomplete("plane/1", 0, 3).await;
    assert_eq!(tap.matched("plane/1", 0), 3);
    let names: Vec<String> =
        futures_util::TryStreamExt::try_collect(context.get_stream(STREAM).await.unwrap().consumer_names())
            .await
            .unwrap();
    assert_eq!(names.len(), 1, "nothing piles up on the server");
}
