//! Messages that anyone may have sent.

use kvtap::feed::status::State;
use kvtap::wire::Dialect;
use serde_json::json;

use crate::dynamo::publish;
use crate::server::Server;
use crate::tap::{Tap, cleared, envelope, options, stored};

const SUBJECT: &str = "namespace.>";

#[tokio::test]
async fn what_cannot_be_read_is_counted_by_reason_and_costs_nobody_else_anything() {
    let server = Server::start().await;
    let (tap, client) = (Tap::dynamo(&server, SUBJECT).await, server.client().await);
    publish(&client, envelope(7, 0, &[stored(1, 0, 0..1)])).await;
    tap.live("plane/1", 0, 1).await;
    let good = envelope(9, 0, &[stored(2, 0, 0..1)]);
    let hostile: [&[u8]; 6] =
        [b"", b"\xc1", &good[..good.len() - 3], b"\x93\x01\x02\x03", b"{\"worker_id\":", &[0x91; 4096]];
    for payload in hostile {
        publish(&client, payload.to_vec().into()).await;
    }
    publish(&client, envelope(9, 0, &[json!({"no": "owner"}), json!(17)])).await;
    let door = tap.until("plane", 0, "heard", |status| status.messages == 8).await;
    let dropped = |reason| door.dropped.get(reason).copied().unwrap_or(0);
    assert_eq!(dropped("unowned_event"), 2, "{:?}", door.dropped);
    assert_eq!(dropped("truncated") + dropped("not_a_batch"), 6, "{:?}", door.dropped);
    publish(&client, envelope(7, 1, &[stored(1, 0, 1..2)])).await;
    tap.live("plane/1", 0, 2).await;
    assert_eq!(tap.board.all().len(), 2);
}

#[tokio::test]
async fn an_event_without_an_owner_may_have_been_anybodys_in_its_message() {
    let server = Server::start().await;
    let (tap, client) = (Tap::dynamo(&server, SUBJECT).await, server.client().await);
    publish(&client, envelope(7, 0, &[stored(1, 0, 0..1), json!({"event": {}}), stored(2, 0, 0..1)])).await;
    for worker in ["plane/1", "plane/2"] {
        tap.incomplete(worker, 0, 1).await;
        assert_eq!(tap.matched(worker, 0), 1);
    }
}

#[tokio::test]
async fn a_message_that_cannot_be_read_ends_live_until_the_next_number_shows_that_nothing_was_missed() {
    let server = Server::start().await;
    let (tap, client) = (Tap::dynamo(&server, SUBJECT).await, server.client().await);
    publish(&client, envelope(7, 0, &[stored(1, 0, 0..1)])).await;
    tap.live("plane/1", 0, 1).await;
    publish(&client, b"\xc1"[..].into()).await;
    tap.incomplete("plane/1", 0, 1).await;
    publish(&client, envelope(7, 1, &[stored(1, 0, 1..2)])).await;
    let status = tap.live("plane/1", 0, 2).await;
    assert_eq!((status.epoch, status.gaps, tap.matched("plane/1", 0)), (1, 0, 2));
}

#[tokio::test]
async fn events_that_nobody_owns_alone_in_their_message_may_have_been_any_rank_s_of_their_publisher() {
    let server = Server::start().await;
    let (tap, client) = (Tap::dynamo(&server, SUBJECT).await, server.client().await);
    publish(&client, envelope(7, 0, &[stored(1, 0, 0..1), stored(2, 0, 0..1)])).await;
    publish(&client, envelope(8, 0, &[stored(3, 0, 0..1)])).await;
    tap.live("plane/1", 0, 1).await;
    tap.live("plane/3", 0, 1).await;
    publish(&client, envelope(7, 1, &[json!({"event": {"data": {"removed": {"block_hashes": [1]}}}})])).await;
    tap.incomplete("plane/1", 0, 1).await;
    tap.incomplete("plane/2", 0, 1).await;
    publish(&client, envelope(8, 1, &[stored(3, 0, 1..2)])).await;
    tap.live("plane/3", 0, 2).await;
    publish(&client, envelope(7, 2, &[cleared(1, 0)])).await;
    tap.live("plane/1", 0, 2).await;
}

#[tokio::test]
async fn what_is_read_whole_and_holds_nothing_of_a_worker_s_own_spends_its_number_and_costs_nothing() {
    let server = Server::start().await;
    let (tap, client) = (Tap::dynamo(&server, SUBJECT).await, server.client().await);
    let mut shared = stored(1, 0, 1..2);
    shared["residency_domain"] = json!("shared");
    publish(&client, envelope(7, 0, &[stored(1, 0, 0..1)])).await;
    publish(&client, envelope(7, 1, &[])).await;
    publish(&client, envelope(7, 2, std::slice::from_ref(&shared))).await;
    publish(&client, envelope(7, 3, &[shared, stored(1, 0, 1..2)])).await;
    let status = tap.live("plane/1", 0, 2).await;
    assert_eq!((status.gaps, status.dropped["unknown_tag"], tap.matched("plane/1", 0)), (0, 2, 2), "{status:?}");
}

#[tokio::test]
async fn workers_beyond_the_bound_are_turned_away_and_those_that_were_there_stay() {
    let server = Server::start().await;
    let mut bounded = options(&server, Dialect::Dynamo, SUBJECT);
    bounded.max_ranks = 3;
    let (tap, client) = (Tap::start(bounded), server.client().await);
    tap.until("plane", 0, "subscribed", |status| status.connected).await;
    for worker in 0..10 {
        publish(&client, envelope(worker, 0, &[stored(worker, 0, 0..1)])).await;
    }
    let door = tap.until("plane", 0, "heard", |status| status.messages == 10).await;
    assert_eq!((door.dropped["too_many_workers"], door.state), (7, State::Live));
    publish(&client, envelope(1, 1, &[stored(1, 0, 1..2)])).await;
    tap.live("plane/1", 0, 2).await;
    assert_eq!(tap.board.all().len(), 4);
}

#[tokio::test]
async fn a_rank_that_falls_silent_for_longer_than_allowed_is_withdrawn() {
    let server = Server::start().await;
    let mut impatient = options(&server, Dialect::Dynamo, SUBJECT);
    impatient.silence = Some(std::time::Duration::from_millis(300));
    let (tap, client) = (Tap::start(impatient), server.client().await);
    tap.until("plane", 0, "subscribed", |status| status.connected).await;
    publish(&client, envelope(7, 0, &[stored(1, 0, 0..1)])).await;
    tap.until("plane", 0, "heard", |status| status.messages == 1).await;
    let deadline = tokio::time::Instant::now() + crate::server::PATIENCE;
    while tap.board.all().len() > 1 {
        assert!(tokio::time::Instant::now() < deadline, "it stays");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    // What it told before is gone, though its publisher counts on.
    publish(&client, envelope(7, 1, &[stored(1, 0, 1..2)])).await;
    tap.until("plane", 0, "heard", |status| status.messages == 2).await;
    let status = tap.until("plane/1", 0, "there", |status| status.events == 1 || status.orphans > 0).await;
    assert_eq!(status.state, State::Incomplete, "{status:?}");
}
