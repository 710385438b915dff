//! An owner that is away while its engine lives: who joins then begins with what it put away.

use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream;
use kvtap::feed::status::State;
use kvtap::proto::v1;
use kvtap::relay::{Figures, RelayOptions};
use prost::Message;
use tokio::time::sleep;

use crate::fleet::{Engine, Member, options};
use crate::server::Server;

/// Often, so that a test need not wait.
fn keeping(server: &Server) -> RelayOptions {
    RelayOptions { keep: Some(Duration::from_millis(200)), ..options(&server.url()) }
}

/// An owner that has put its engine's snapshot away, and what it does after that.
async fn owner(server: &Server) -> (Member, Engine) {
    let figures = Arc::new(Figures::default());
    let owner = Member::join_counted(RelayOptions { keep: Some(Duration::from_secs(20)), ..keeping(server) }, &figures);
    let mut engine = owner.engine("a", 0);
    for chain in 0..8 {
        engine.deepen(chain, 20);
    }
    while figures.report().stored == 0 {
        sleep(Duration::from_millis(5)).await;
    }
    engine.deepen(0, 7);
    engine.deepen(1, 31);
    // Where somebody is equal, the stream has it too.
    let witness = Member::join(keeping(server));
    witness.equal(&engine).await;
    let context = jetstream::new(server.client().await);
    while last_kept(&context).await != engine.stamp().sequence {
        sleep(Duration::from_millis(5)).await;
    }
    (owner, engine)
}

/// The engine's number of the last delta that the stream has.
async fn last_kept(context: &jetstream::Context) -> Option<u64> {
    let stream = context.get_stream("KVTAP").await.unwrap();
    let last = stream.get_last_raw_message_by_subject("kvtap.v1.events.m%2F1.a.0").await.ok()?;
    let batch = v1::RelayBatch::decode(last.payload).unwrap();
    batch.deltas.last()?.at?.sequence
}

async fn begins_without_its_owner(server: &Server, follower: &Member, engine: &Engine) {
    let stamp = engine.stamp();
    let is = |status: &kvtap::feed::status::Status| {
        status.state == State::Incomplete && (status.epoch, status.last_sequence) == (stamp.epoch, stamp.sequence)
    };
    let status = follower.until("a", 0, "there without its owner", is).await;
    assert!(status.why.contains("put away"), "{}", status.why);
    assert_eq!(follower.depths(&follower.entry("a", 0).unwrap()), engine.depths);
    let context = jetstream::new(server.client().await);
    let kept = context.get_stream("KVTAP_KEPT").await.unwrap();
    let config = &kept.cached_info().config;
    assert_eq!((config.max_messages_per_subject, config.max_bytes), (1, 1 << 30));
    assert_eq!(config.max_age, Duration::from_secs(600));
}

#[tokio::test]
async fn who_joins_after_an_owner_has_left_begins_with_what_it_put_away_and_goes_on_with_a_later_owner() {
    let server = Server::start().await;
    let (owner, engine) = owner(&server).await;
    let Member { relay, .. } = owner;
    relay.stop().await;
    let follower = Member::join(keeping(&server));
    begins_without_its_owner(&server, &follower, &engine).await;

    let later = Member::join(keeping(&server));
    let mut again = later.engine("a", 0);
    again.deepen(3, 5);
    follower.equal(&again).await;
}

#[tokio::test]
async fn who_joins_after_an_owner_has_died_begins_the_same_way_and_gives_up_after_the_grace() {
    let server = Server::start().await;
    // What runs elsewhere ends without a word.
    let elsewhere = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let server = Arc::new(server);
    let theirs = Arc::clone(&server);
    let (_owner, engine) = elsewhere.spawn(async move { owner(&theirs).await }).await.unwrap();
    elsewhere.shutdown_background();
    let mut impatient = keeping(&server);
    impatient.grace = Duration::from_secs(5);
    let follower = Member::join(impatient);
    begins_without_its_owner(&server, &follower, &engine).await;
    follower.absent("a", 0).await;
}

#[tokio::test]
async fn a_rank_that_was_given_up_is_not_recalled() {
    let server = Server::start().await;
    let (owner, engine) = owner(&server).await;
    let other = owner.engine("b", 0);
    let witness = Member::join(keeping(&server));
    witness.equal(&engine).await;
    owner.board.remove(engine.entry().rank);
    witness.absent("a", 0).await;
    let follower = Member::join(keeping(&server));
    follower.equal(&other).await;
    assert!(follower.entry("a", 0).is_none());
}

#[tokio::test]
async fn an_owner_whose_clock_is_behind_is_followed_once_the_one_before_is_heard_no_more() {
    let server = Server::start().await;
    // The one that registered later leaves: the earlier one goes on and is believed again.
    let earlier = Member::join(keeping(&server));
    let mut engine = earlier.engine("a", 0);
    engine.deepen(0, 3);
    let follower = Member::join(keeping(&server));
    follower.equal(&engine).await;
    let later = Member::join(keeping(&server));
    let mut other = later.engine("a", 0);
    other.restart();
    other.deepen(0, 9);
    follower.equal(&other).await;
    let Member { relay, .. } = later;
    relay.stop().await;
    engine.deepen(1, 4);
    follower.equal(&engine).await;
}
