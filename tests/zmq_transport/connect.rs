//! Links that connect, over both transports.

use std::time::Duration;

use kvtap::feed::zmq::{Endpoint, EndpointError, Fault, Mode, SubOptions, Transport, subscribe};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_util::sync::CancellationToken;

use crate::libzmq::{Libzmq, Tap, endpoint, free_port, within};

const BOTH: [Transport; 2] = [Transport::Own, Transport::Zeromq];

fn options(endpoint: &Endpoint, transport: Transport) -> SubOptions {
    SubOptions { transport, ..SubOptions::new(endpoint.clone(), Mode::Connect) }
}

/// A tap on a publisher, connected and subscribed.
async fn tapped(publisher: &mut Libzmq, transport: Transport) -> Tap {
    let mut tap = Tap::new(options(&publisher.endpoint, transport));
    tap.connected().await;
    publisher.subscribed().await;
    tap
}

#[tokio::test]
async fn messages_arrive_whole_and_in_order_over_tcp_and_ipc() {
    let folder = tempfile::tempdir().expect("a folder");
    let ipc = endpoint(&format!("ipc://{}/kv.sock", folder.path().display()));
    let large = vec![7; 300_000];
    let messages: [&[&[u8]]; 4] =
        [&[b"", b"\0\0\0\0\0\0\0\0", b"payload"], &[b"one"], &[b"a", b"", &large, b"b"], &[b""]];
    for at in [endpoint("tcp://127.0.0.1:*"), endpoint("tcp://[::1]:*"), ipc] {
        for transport in BOTH {
            let mut publisher = Libzmq::publisher("bind", &at).await;
            let mut tap = tapped(&mut publisher, transport).await;
            for frames in messages {
                publisher.send(frames).await;
            }
            for frames in messages {
                assert_eq!(tap.message().await, frames, "{at} by {transport:?}");
            }
        }
    }
}

#[tokio::test]
async fn only_the_topic_that_was_asked_for_arrives() {
    for transport in BOTH {
        let mut publisher = Libzmq::publisher("bind", &endpoint("tcp://127.0.0.1:*")).await;
        let asked = SubOptions { topic: "kv@pod-a".to_owned(), ..options(&publisher.endpoint, transport) };
        let mut tap = Tap::new(asked);
        assert_eq!(publisher.ask("subscribed").await, "6b7640706f642d61");
        publisher.send(&[b"kv@pod-b", b"no"]).await;
        publisher.send(&[b"", b"no"]).await;
        publisher.send(&[b"kv@pod-a@model", b"yes"]).await;
        assert_eq!(tap.message().await, [&b"kv@pod-a@model"[..], b"yes"], "{transport:?}");
    }
}

#[tokio::test]
async fn a_publisher_that_is_absent_at_first_is_found_when_it_comes() {
    for transport in BOTH {
        let at = free_port();
        let mut tap = Tap::new(options(&at, transport));
        // The crate retries within its deadline, so it says less of why.
        let reason = tap.unreachable().await.reason();
        assert_eq!(reason, if transport == Transport::Own { "connect_failed" } else { "connect_deadline" });
        let mut publisher = Libzmq::publisher("bind", &at).await;
        tap.connected().await;
        publisher.subscribed().await;
        publisher.send(&[b"here"]).await;
        assert_eq!(tap.message().await, [&b"here"[..]], "{transport:?}");
    }
}

#[tokio::test]
async fn a_publisher_that_is_killed_is_missed_at_once_and_found_again() {
    for transport in BOTH {
        let at = free_port();
        let mut first = Libzmq::publisher("bind", &at).await;
        let mut tap = tapped(&mut first, transport).await;
        first.send(&[b"last words"]).await;
        assert_eq!(tap.message().await, [&b"last words"[..]]);
        first.kill().await;
        let fault = tap.disconnected().await;
        assert!(matches!(fault, Fault::Closed | Fault::Broken(_) | Fault::Connect(_)), "{transport:?}: {fault:?}");

        let mut second = Libzmq::publisher("bind", &at).await;
        tap.connected().await;
        second.subscribed().await;
        second.send(&[b"again"]).await;
        assert_eq!(tap.message().await, [&b"again"[..]], "{transport:?}");
    }
}

#[tokio::test]
async fn a_publisher_of_type_pub_is_heard_too() {
    for transport in BOTH {
        let mut publisher = Libzmq::start(&["pub", "bind", "tcp://127.0.0.1:*"]).await;
        let mut tap = Tap::new(options(&publisher.endpoint, transport));
        // A PUB does not tell when a subscription has come, so it says it until it is heard.
        within("the first message", async {
            while tap.events.is_empty() {
                publisher.send(&[b"hello"]).await;
            }
        })
        .await;
        assert_eq!(tap.message().await, [&b"hello"[..]], "{transport:?}");
    }
}

#[tokio::test]
async fn a_publisher_of_zmtp_3_0_is_heard_too() {
    use zeromq::{Socket, SocketSend};
    for transport in BOTH {
        let mut publisher = zeromq::PubSocket::new();
        let at = publisher.bind("tcp://127.0.0.1:0").await.expect("bound").to_string();
        let mut tap = Tap::new(options(&endpoint(&at), transport));
        tap.connected().await;
        within("the first message", async {
            while tap.events.is_empty() {
                publisher.send("hello".into()).await.expect("sent");
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert_eq!(tap.message().await, [&b"hello"[..]], "{transport:?}");
    }
}

#[tokio::test]
async fn a_listener_that_never_answers_is_given_up_again_and_again_until_a_publisher_takes_its_place() {
    for transport in BOTH {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
        let at = endpoint(&format!("tcp://{}", silent.local_addr().expect("its address")));
        let mut options = options(&at, transport);
        options.timing.connect = Duration::from_millis(300);
        options.timing.handshake = Duration::from_millis(100);
        let mut tap = Tap::new(options);
        for _ in 0..2 {
            let reason = tap.unreachable().await.reason();
            assert_eq!(reason, if transport == Transport::Own { "handshake_deadline" } else { "connect_deadline" });
        }
        drop(silent);
        let mut publisher = Libzmq::publisher("bind", &at).await;
        tap.connected().await;
        publisher.subscribed().await;
        publisher.send(&[b"here"]).await;
        assert_eq!(tap.message().await, [&b"here"[..]], "{transport:?}");
    }
}

#[tokio::test]
async fn a_server_of_another_protocol_is_counted_by_what_it_does_wrong() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let at = endpoint(&format!("tcp://{}", listener.local_addr().expect("its address")));
    let server = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.expect("accepted");
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.expect("written");
            let mut rest = Vec::new();
            let _closed = stream.read_to_end(&mut rest).await;
        }
    });
    let mut tap = Tap::new(options(&at, Transport::Own));
    tap.rejected("not_zmtp", 2).await;
    assert_eq!(tap.unreachable().await.reason(), "not_zmtp");
    server.abort();
}

#[tokio::test]
async fn a_message_above_the_caps_is_counted_and_the_next_ones_arrive() {
    let large = [0; 5_000];
    let cases: [(Transport, &[&[u8]], &str); 4] = [
        (Transport::Own, &[&large], "frame_too_large"),
        (Transport::Own, &[b"", &large[..2_000], &large[..2_500]], "message_too_large"),
        (Transport::Zeromq, &[b"", &large[..2_000], &large[..2_500]], "message_too_large"),
        (Transport::Zeromq, &[&[][..]; 17], "too_many_frames"),
    ];
    for (transport, frames, reason) in cases {
        let mut publisher = Libzmq::publisher("bind", &endpoint("tcp://127.0.0.1:*")).await;
        let mut options = options(&publisher.endpoint, transport);
        options.limits.message_bytes = 4_000;
        let mut tap = Tap::new(options);
        publisher.subscribed().await;
        publisher.send(frames).await;
        tap.rejected(reason, 1).await;
        if transport == Transport::Own {
            // It costs the peer its connection, and the peer comes again.
            publisher.subscribed().await;
        }
        publisher.send(&[b"next"]).await;
        assert_eq!(tap.message().await, [&b"next"[..]], "{transport:?}");
    }
}

#[tokio::test]
async fn a_link_ends_when_it_is_cancelled_and_when_its_reader_is_dropped() {
    for transport in BOTH {
        let mut tap = Tap::new(options(&free_port(), transport));
        tap.cancel.cancel();
        within("the task's end", tap.task).await.expect("no panic");
        while tap.events.recv().await.is_some() {}

        let tap = Tap::new(options(&free_port(), transport));
        drop(tap.events);
        within("the task's end", tap.task).await.expect("no panic");
    }
}

#[tokio::test]
async fn what_cannot_be_connected_to_is_refused_before_anything_starts() {
    let refused = |options| subscribe(options, &CancellationToken::new()).map(drop);
    let any = endpoint("tcp://*:5557");
    assert_eq!(refused(options(&any, Transport::Own)), Err(EndpointError::Wildcard(any)));
    let far = endpoint("tcp://engine-0.engines:5557");
    assert_eq!(refused(options(&far, Transport::Zeromq)), Err(EndpointError::NotLocal(far)));
}
