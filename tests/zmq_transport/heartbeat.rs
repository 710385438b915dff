//! Signs of life, asked for by either side.

use std::time::Duration;

use kvtap::feed::zmq::{Heartbeat, LinkEvent, Mode, SubOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::libzmq::{Libzmq, Tap, endpoint, within};

/// Waits until `times` signs of life have come after another, without a message or a disconnection.
async fn signs_of_life(tap: &mut Tap, times: usize) {
    within("signs of life", async {
        for _ in 0..times {
            let before = tap.events.last_heard();
            while tap.events.last_heard() == before {
                if let Some(event) = tap.events.try_recv() {
                    panic!("{event:?} on an idle link");
                }
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
    })
    .await;
}

async fn idle_link(heartbeat: Heartbeat, publisher: &[&str]) -> (Tap, Libzmq) {
    let mut publisher = Libzmq::start(publisher).await;
    let mut options = SubOptions::new(publisher.endpoint.clone(), Mode::Connect);
    options.timing.heartbeat = heartbeat;
    let mut tap = Tap::new(options);
    tap.connected().await;
    publisher.subscribed().await;
    (tap, publisher)
}

#[tokio::test]
async fn a_publisher_that_asks_for_heartbeats_gets_them_and_keeps_the_link() {
    let (mut tap, mut publisher) =
        idle_link(Heartbeat::NONE, &["xpub", "bind", "tcp://127.0.0.1:*", "--heartbeat", "200"]).await;
    // Unanswered, libzmq would have closed the connection after three of its intervals.
    signs_of_life(&mut tap, 8).await;
    publisher.send(&[b"still here"]).await;
    assert_eq!(tap.message().await, [&b"still here"[..]]);
}

#[tokio::test]
async fn a_publisher_that_is_asked_for_heartbeats_gives_them_and_keeps_the_link() {
    let heartbeat = Heartbeat { interval: Duration::from_millis(20), timeout: Duration::from_secs(10) };
    let (mut tap, mut publisher) = idle_link(heartbeat, &["xpub", "bind", "tcp://127.0.0.1:*"]).await;
    signs_of_life(&mut tap, 8).await;
    publisher.send(&[b"still here"]).await;
    assert_eq!(tap.message().await, [&b"still here"[..]]);
}

const PUBLISHER_READY: &[u8] = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB";

/// A publisher by hand, of ZMTP 3 and this minor version, that shakes hands and then neither reads nor answers.
async fn by_hand(address: &str, minor: u8) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    let mut greeting = [0; 64];
    greeting[0] = 0xFF;
    greeting[9] = 0x7F;
    greeting[10..16].copy_from_slice(&[3, minor, b'N', b'U', b'L', b'L']);
    stream.write_all(&greeting).await.expect("written");
    stream.write_all(PUBLISHER_READY).await.expect("written");
    stream
}

#[tokio::test]
async fn a_peer_that_knows_no_heartbeats_is_asked_for_none_and_one_that_does_not_answer_is_given_up() {
    let mut options = SubOptions::new(endpoint("tcp://127.0.0.1:0"), Mode::Bind);
    options.timing.heartbeat = Heartbeat { interval: Duration::from_millis(50), timeout: Duration::from_millis(50) };
    let (mut tap, at) = Tap::bound(options).await;
    let address = at.to_string().replace("tcp://", "");

    let mut old = by_hand(&address, 0).await;
    old.write_all(b"\x00\x03old").await.expect("written");
    assert_eq!(tap.message().await, [&b"old"[..]]);

    let mut new = by_hand(&address, 1).await;
    new.write_all(b"\x00\x03new").await.expect("written");
    assert_eq!(tap.message().await, [&b"new"[..]]);
    let mut sent = Vec::new();
    within("the end of the connection", new.read_to_end(&mut sent)).await.expect("closed");
    assert!(sent.ends_with(b"\x04\x0c\x04PING\0\0kvtap"), "{sent:?}");
    assert!(matches!(tap.next().await, LinkEvent::Disconnected(fault) if fault.reason() == "heartbeat"));

    // By now the other has been silent for longer; it is still there, and was sent nothing but the handshake.
    old.write_all(b"\x00\x0astill here").await.expect("written");
    assert_eq!(tap.message().await, [&b"still here"[..]]);
    let mut handshake = vec![0; 64 + 40 + 3];
    within("the handshake", old.read_exact(&mut handshake)).await.expect("read");
    assert!(handshake.ends_with(b"\x00\x01\x01"), "the subscription, as a message");
    assert_eq!(old.try_read(&mut [0]).map_err(|error| error.kind()), Err(std::io::ErrorKind::WouldBlock));
}
