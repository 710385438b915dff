//! Replays: a DEALER against a libzmq ROUTER that answers as engines do.

use std::time::Duration;

use bytes::Bytes;
use kvtap::feed::zmq::{EndpointError, Fault, ReplayOptions, Replies, replay};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::libzmq::{Libzmq, endpoint, free_port, within};

const END: [u8; 8] = [0xFF; 8];

async fn router(arguments: &[&str]) -> (Libzmq, ReplayOptions) {
    let router = Libzmq::start(&[&["router", "bind", "tcp://127.0.0.1:*"], arguments].concat()).await;
    let options = ReplayOptions::new(router.endpoint.clone());
    (router, options)
}

fn ask(options: ReplayOptions, start: u64) -> (Replies, JoinHandle<()>) {
    replay(options, start, &CancellationToken::new().clone()).expect("an endpoint that can be used")
}

async fn next(replies: &mut Replies) -> Vec<Bytes> {
    within("a reply", replies.recv()).await.expect("not cancelled").expect("a reply")
}

/// The numbers of all replies up to the end marker.
async fn numbers(replies: &mut Replies) -> Vec<u64> {
    let mut numbers = Vec::new();
    loop {
        let frames = next(replies).await;
        assert_eq!((frames.len(), &frames[0][..]), (4, &b""[..]), "the delimiter, the topic, the number, the payload");
        if frames[2][..] == END {
            return numbers;
        }
        numbers.push(u64::from_be_bytes(frames[2][..].try_into().expect("eight bytes")));
    }
}

/// The fault that ends the replies.
async fn fault(replies: &mut Replies) -> Fault {
    let fault = within("the end", async {
        loop {
            if let Err(fault) = replies.recv().await.expect("a fault comes before the end") {
                return fault;
            }
        }
    })
    .await;
    assert!(replies.recv().await.is_none(), "nothing comes after a fault");
    fault
}

#[tokio::test]
async fn a_replay_of_eight_thousand_batches_is_complete_from_any_start() {
    let (_router, options) = router(&["--replay", "8000", "2000"]).await;
    for start in [0, 7_990, 8_000, u64::MAX] {
        let (mut replies, task) = ask(options.clone(), start);
        assert_eq!(numbers(&mut replies).await, (start..8_000).collect::<Vec<_>>());
        drop(replies);
        within("the task's end", task).await.expect("no panic");
    }
}

#[tokio::test]
async fn a_replay_larger_than_its_buffer_makes_the_server_wait_and_loses_nothing() {
    let (_router, mut options) = router(&["--replay", "2000", "20000"]).await;
    options.buffer = 50_000;
    let (mut replies, _task) = ask(options, 0);
    assert_eq!(numbers(&mut replies).await, (0..2_000).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_reply_larger_than_the_buffer_passes_alone() {
    let (_router, mut options) = router(&["--replay", "3", "100000"]).await;
    options.buffer = 1_000;
    let (mut replies, _task) = ask(options, 0);
    assert_eq!(numbers(&mut replies).await, [0, 1, 2]);
}

#[tokio::test]
async fn a_replay_that_goes_nowhere_ends_with_the_reason() {
    let (mut replies, _task) = ask(ReplayOptions::new(free_port()), 0);
    assert_eq!(fault(&mut replies).await.reason(), "connect_failed");

    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let mut options = ReplayOptions::new(endpoint(&format!("tcp://{}", silent.local_addr().expect("its address"))));
    options.handshake = Duration::from_millis(50);
    let (mut replies, _task) = ask(options, 0);
    assert_eq!(fault(&mut replies).await.reason(), "handshake_deadline");

    let publisher = Libzmq::publisher("bind", &endpoint("tcp://127.0.0.1:*")).await;
    let (mut replies, _task) = ask(ReplayOptions::new(publisher.endpoint.clone()), 0);
    let reason = fault(&mut replies).await.reason();
    // libzmq may close before its own READY is read.
    assert!(["socket_type", "closed", "broken"].contains(&reason), "{reason}");

    let (_router, mut options) = router(&["--mute"]).await;
    options.idle = Duration::from_millis(50);
    let (mut replies, _task) = ask(options.clone(), 0);
    assert_eq!(fault(&mut replies).await.reason(), "idle");

    options.idle = Duration::MAX;
    options.total = Duration::from_millis(50);
    let (mut replies, _task) = ask(options, 0);
    assert_eq!(fault(&mut replies).await.reason(), "deadline");
}

#[tokio::test]
async fn a_reply_above_the_cap_ends_the_replay_with_the_reason() {
    let (_router, mut options) = router(&["--replay", "3", "5000"]).await;
    options.limits.message_bytes = 4_999;
    let (mut replies, _task) = ask(options, 0);
    assert_eq!(fault(&mut replies).await.reason(), "frame_too_large");
}

#[tokio::test]
async fn a_replay_ends_when_its_reader_has_enough_and_when_it_is_cancelled() {
    let (_router, mut options) = router(&["--replay", "8000", "2000"]).await;
    options.buffer = 10_000;
    let (mut replies, task) = ask(options.clone(), 0);
    next(&mut replies).await;
    drop(replies);
    within("the task's end", task).await.expect("no panic");

    let cancel = CancellationToken::new();
    let (mut replies, task) = replay(options, 0, &cancel).expect("an endpoint that can be used");
    next(&mut replies).await;
    cancel.cancel();
    within("the task's end", task).await.expect("no panic");
    while let Some(reply) = replies.recv().await {
        reply.expect("a cancelled replay is not a fault");
    }
}

#[test]
fn what_cannot_be_connected_to_is_refused_before_anything_starts() {
    let any = endpoint("tcp://*:5558");
    let refused = replay(ReplayOptions::new(any.clone()), 0, &CancellationToken::new()).map(drop);
    assert_eq!(refused, Err(EndpointError::Wildcard(any)));
}
