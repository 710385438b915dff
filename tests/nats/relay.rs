//! A fleet over a real server: owners publish, followers are equal to them or say that they are not.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use futures_util::TryStreamExt;
use kvtap::feed::status::State;
use kvtap::relay::Figures;

use crate::fleet::{CHAINS, Engine, Member, options};
use crate::server::Server;

#[tokio::test]
async fn a_follower_sees_what_the_owner_holds_and_what_changes() {
    let server = Server::start().await;
    let owner = Member::join(options(&server.url()));
    let mut engine = owner.engine("pod.a", 0);
    engine.deepen(0, 7);
    engine.deepen(1, 3);
    let follower = Member::join(options(&server.url()));
    follower.equal(&engine).await;
    engine.deepen(0, 5);
    engine.deepen(2, 9);
    follower.equal(&engine).await;
    engine.clear();
    engine.deepen(3, 2);
    follower.equal(&engine).await;
    engine.restart();
    engine.deepen(0, 1);
    follower.equal(&engine).await;
    engine.show(State::Incomplete);
    let status = follower.until("pod.a", 0, "incomplete", |status| status.state == State::Incomplete).await;
    assert_eq!(status.why, "the test says incomplete");
    assert_eq!(owner.board.all().len(), 1, "nobody follows itself");
}

#[tokio::test]
async fn members_own_and_follow_at_once_and_nothing_is_published_twice() {
    let server = Server::start().await;
    let members = [
        Member::join(options(&server.url())),
        Member::join(options(&server.url())),
        Member::join(options(&server.url())),
    ];
    let mut engines: Vec<_> = members
        .iter()
        .zip(["a", "b", "c"])
        .flat_map(|(member, name)| [member.engine(name, 0), member.engine(name, 1)])
        .collect();
    for (i, engine) in engines.iter_mut().enumerate() {
        engine.deepen(i as u64, i as u64 + 1);
    }
    for (m, member) in members.iter().enumerate() {
        for (e, engine) in engines.iter().enumerate() {
            if e / 2 != m {
                member.equal(engine).await;
            }
        }
        assert_eq!(member.board.all().len(), 6);
        let rivals =
            |entry: &std::sync::Arc<kvtap::feed::status::Entry>| entry.status().dropped.contains_key("rival_owner");
        assert!(!member.board.all().iter().any(rivals));
    }
}

#[tokio::test]
async fn many_joiners_at_once_all_get_their_snapshots() {
    let server = Server::start().await;
    let owner = Member::join(options(&server.url()));
    let mut engine = owner.engine("a", 0);
    for chain in 0..CHAINS {
        engine.deepen(chain, 20);
    }
    let followers: Vec<_> = (0..30)
        .map(|_| {
            let mut joins = options(&server.url());
            joins.publish = false;
            Member::join(joins)
        })
        .collect();
    for follower in &followers {
        follower.equal(&engine).await;
    }
}

#[tokio::test]
async fn an_owner_that_leaves_or_dies_is_marked_and_its_ranks_are_withdrawn_after_the_grace() {
    let server = Server::start().await;
    let owner = Member::join(options(&server.url()));
    let mut engine = owner.engine("a", 0);
    engine.deepen(0, 4);
    let mut impatient = options(&server.url());
    impatient.grace = Duration::from_secs(3);
    let follower = Member::join(impatient);
    follower.equal(&engine).await;
    let Member { relay, .. } = owner;
    relay.stop().await;
    let status = follower.until("a", 0, "marked", |status| status.state == State::Incomplete).await;
    assert!(status.why.contains("left"), "{}", status.why);
    follower.absent("a", 0).await;
}

#[tokio::test]
async fn a_rank_that_its_owner_gives_up_goes_at_once() {
    let server = Server::start().await;
    let (owner, follower) = (Member::join(options(&server.url())), Member::join(options(&server.url())));
    let engine = owner.engine("a", 0);
    follower.equal(&engine).await;
    owner.board.remove(engine.entry().rank);
    follower.absent("a", 0).await;
}

#[tokio::test]
async fn two_owners_of_one_rank_are_a_visible_conflict_and_the_newer_wins() {
    let server = Server::start().await;
    let follower = Member::join(options(&server.url()));
    let old = Member::join(options(&server.url()));
    let mut older = old.engine("a", 0);
    older.deepen(0, 4);
    follower.equal(&older).await;
    let new = Member::join(options(&server.url()));
    let mut newer = new.engine("a", 0);
    newer.deepen(0, 9);
    newer.deepen(1, 1);
    follower.equal(&newer).await;
    older.deepen(1, 3);
    let conflict = follower.until("a", 0, "in conflict", |status| status.why.contains("two owners claim it")).await;
    assert!(conflict.dropped["rival_owner"] > 0);
    newer.deepen(2, 2);
    follower.equal(&newer).await;
    for engine in [&older, &newer] {
        let deadline = tokio::time::Instant::now() + crate::server::PATIENCE;
        while !engine.entry().status().dropped.contains_key("rival_owner") {
            assert!(tokio::time::Instant::now() < deadline, "an owner is not told of its rival");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn a_restarted_server_a_deleted_stream_and_a_frozen_server_heal_by_themselves() {
    let mut server = Server::start().await;
    let (owner, follower) = (Member::join(options(&server.url())), Member::join(options(&server.url())));
    let mut engine = owner.engine("a", 0);
    engine.deepen(0, 4);
    follower.equal(&engine).await;

    server.kill().await;
    follower.until("a", 0, "cut off", |status| status.state == State::Connecting).await;
    engine.deepen(1, 6);
    server.start_again().await;
    engine.deepen(2, 3);
    follower.equal(&engine).await;

    let context = jetstream::new(server.client().await);
    // It lay in memory: it is made again once something was not kept.
    stream_again(&context, &mut engine).await;
    follower.equal(&engine).await;
    context.delete_stream("KVTAP").await.unwrap();
    engine.deepen(3, 5);
    follower.equal(&engine).await;

    server.pause().await;
    follower.until("a", 0, "cut off", |status| status.state == State::Connecting).await;
    engine.deepen(4, 2);
    server.go_on().await;
    follower.equal(&engine).await;

    stream_again(&context, &mut engine).await;
    follower.equal(&engine).await;
    let names: Vec<String> = context.get_stream("KVTAP").await.unwrap().consumer_names().try_collect().await.unwrap();
    assert!(names.is_empty(), "nothing piles up on the server: {names:?}");
}

/// Waits until the stream is there, while there is something to keep.
async fn stream_again(context: &jetstream::Context, engine: &mut Engine) {
    let deadline = tokio::time::Instant::now() + crate::server::PATIENCE;
    while context.get_stream("KVTAP").await.is_err() {
        engine.deepen(5, engine.depths[5] % 20 + 1);
        assert!(tokio::time::Instant::now() < deadline, "the stream is not made again");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn the_stream_is_bounded_and_each_batch_is_kept_once() {
    let server = Server::start().await;
    let mut bounded = options(&server.url());
    bounded.stream.max_bytes = 1 << 20;
    bounded.stream.on_disk = true;
    let owner = Member::join(bounded);
    let mut engine = owner.engine("a", 0);
    let mut joins = options(&server.url());
    joins.publish = false;
    let follower = Member::join(joins);
    for depth in 1..20 {
        engine.deepen(0, depth);
        follower.equal(&engine).await;
    }
    let context = jetstream::new(server.client().await);
    let stream = context.get_stream("KVTAP").await.unwrap();
    let config = &stream.cached_info().config;
    assert_eq!((config.max_bytes, config.num_replicas, config.max_age), (1 << 20, 1, Duration::from_secs(600)));
    let message = stream.get_last_raw_message_by_subject("kvtap.v1.events.m%2F1.a.0").await.unwrap();
    let before = stream.get_info().await.unwrap().state.messages;
    let mut headers = async_nats::HeaderMap::new();
    headers.insert("Nats-Msg-Id", message.headers.get("Nats-Msg-Id").unwrap().clone());
    let again = context.publish_with_headers("kvtap.v1.events.m%2F1.a.0", headers, message.payload).await.unwrap();
    assert!(again.await.unwrap().duplicate);
    assert_eq!(stream.get_info().await.unwrap().state.messages, before);
    follower.equal(&engine).await;
}

#[tokio::test]
async fn a_follower_that_is_too_slow_for_its_server_is_told_counts_it_and_ends_equal() {
    let server = Server::start().await;
    let owner = Member::join(options(&server.url()));
    let mut engines: Vec<Engine> = (0..32).map(|rank| owner.engine("a", rank)).collect();
    let mut narrow = options(&server.url());
    // Room for a snapshot's pieces, and for less than the ranks say at once.
    narrow.connection.subscription = 8;
    narrow.publish = false;
    let figures = Arc::new(Figures::default());
    let follower = Member::join_counted(narrow, &figures);
    let deadline = tokio::time::Instant::now() + crate::server::PATIENCE;
    // As much as it takes: how quickly it is read is nobody's promise.
    while figures.report().slow == 0 {
        for engine in &mut engines {
            engine.deepen(0, engine.depths[0] % 20 + 1);
        }
        assert!(tokio::time::Instant::now() < deadline, "it is never too slow");
        tokio::task::yield_now().await;
    }
    for engine in &engines {
        follower.equal(engine).await;
    }
    while figures.report().followed != 32 {
        assert!(tokio::time::Instant::now() < deadline, "{:?}", figures.report());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(figures.report().connected);
}

#[tokio::test]
async fn an_owner_writes_to_inboxes_and_to_nothing_else() {
    let server = Server::start().await;
    let (owner, follower) = (Member::join(options(&server.url())), Member::join(options(&server.url())));
    let mut engine = owner.engine("a", 0);
    engine.deepen(0, 4);
    follower.equal(&engine).await;
    let client = server.client().await;
    let mut elsewhere = client.subscribe("elsewhere.>").await.unwrap();
    let mut inbox = client.subscribe("_INBOX.mine").await.unwrap();
    for reply in ["elsewhere.a", "_INBOX.mine"] {
        client.publish_with_reply("kvtap.v1.snapshot.m%2F1.a.0", reply, "".into()).await.unwrap();
    }
    // Both were asked for in this order; the second has been answered.
    futures_util::StreamExt::next(&mut inbox).await.unwrap();
    client.flush().await.unwrap();
    let nothing = futures_util::FutureExt::now_or_never(futures_util::StreamExt::next(&mut elsewhere));
    assert!(nothing.is_none(), "{nothing:?}");
}
