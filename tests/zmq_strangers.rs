//! Strangers on a bound link: whatever they send, the process lives, does not grow, and hears its engine.
//!
//! A test binary of its own, because it looks at the memory of the whole process.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "support/libzmq.rs"]
mod libzmq;
#[path = "support/python.rs"]
mod python;

use std::time::Duration;

use kvtap::feed::zmq::{LinkEvent, Mode, SubOptions};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use libzmq::{Libzmq, Tap, endpoint, within};

const GREETING: &[u8; 64] =
    b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";
const READY: &[u8] = b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03PUB";
const HALF_GREETING: &[u8] = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NU";

/// More than the test itself needs, less than any of the lengths that strangers declare.
const GROWTH: u64 = 64 << 20;

fn options() -> SubOptions {
    let mut options = SubOptions::new(endpoint("tcp://127.0.0.1:0"), Mode::Bind);
    options.timing.handshake = Duration::from_millis(300);
    options
}

/// A link that hears its engine, and the address of its port.
async fn tapped(options: SubOptions) -> (Tap, Libzmq, String) {
    let (mut tap, bound) = Tap::bound(options).await;
    let mut engine = Libzmq::publisher("connect", &bound).await;
    engine.subscribed().await;
    hears(&mut tap, &mut engine).await;
    (tap, engine, bound.to_string().replace("tcp://", ""))
}

async fn hears(tap: &mut Tap, engine: &mut Libzmq) {
    engine.send(&[b"topic", b"payload"]).await;
    assert_eq!(tap.message().await, [&b"topic"[..], b"payload"]);
}

/// A stranger that has sent all of `parts`.
async fn stranger(address: &str, parts: &[&[u8]]) -> TcpStream {
    let mut stream = TcpStream::connect(address).await.expect("connected");
    // A stranger that is turned away in the middle of its lines has said enough.
    let _cut_short = stream.write_all(&parts.concat()).await;
    stream
}

/// Waits until the link closes the stranger's connection.
async fn closed(mut stream: TcpStream) {
    within("the end of the connection", async {
        let mut buffer = [0; 1024];
        while stream.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
    })
    .await;
}

/// One of the kernel's counts of this process's memory, in bytes: `VmHWM`, the most that was ever resident; `VmPeak`,
/// the most that was ever mapped; `VmData`, what is allocated now, touched or not.
fn memory(count: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find_map(|line| line.strip_prefix(count)?.strip_prefix(':')).expect("a known count");
    line.trim().trim_end_matches("kB").trim().parse::<u64>().expect("a number") << 10
}

#[tokio::test]
async fn strangers_neither_end_the_process_nor_grow_it_nor_silence_the_engine() {
    let (mut tap, mut engine, address) = tapped(options()).await;
    let (resident, mapped) = (memory("VmHWM"), memory("VmPeak"));
    let large_part = [&b"\x01\x02"[..], &[0; 2]].concat();
    let cases: [(&str, &[&[u8]]); 14] = [
        ("not_zmtp", &[b"GET / HTTP/1.1\r\n\r\n"]),
        ("not_zmtp", &[&[0; 4096]]),
        ("zmtp_version", &[b"\xff\0\0\0\0\0\0\0\x01\x7f\x01\x00"]),
        ("mechanism", &[b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01CURVE"]),
        ("frame_flags", &[GREETING, &[0xFF; 4096]]),
        ("command_too_large", &[GREETING, b"\x06\0\0\x01\0\0\0\0\0", &[0; 4096]]),
        ("bad_command", &[GREETING, b"\x04\x0a\x05READY\xff\xff\xff\xff"]),
        ("not_ready", &[GREETING, b"\x00\x05hello"]),
        ("socket_type", &[GREETING, b"\x04\x1a\x05READY\x0bSocket-Type\0\0\0\x04PUSH"]),
        ("frame_too_large", &[GREETING, READY, b"\x02\0\0\x01\0\0\0\0\0"]),
        ("frame_too_large", &[GREETING, READY, b"\x03\xff\xff\xff\xff\xff\xff\xff\xff", &[0; 4096]]),
        ("command_too_large", &[GREETING, READY, b"\x06\0\0\x01\0\0\0\0\0"]),
        ("too_many_frames", &[GREETING, READY, &large_part.repeat(1000)]),
        ("bad_command", &[GREETING, READY, b"\x04\x05\x04PING"]),
    ];
    for (reason, parts) in cases {
        let known: u64 = tap.rejected.iter().filter(|(word, _)| *word == reason).map(|(_, count)| count).sum();
        closed(stranger(&address, parts).await).await;
        tap.rejected(reason, known + 1).await;
        hears(&mut tap, &mut engine).await;
    }
    // Those that say too little are dropped at their deadline.
    let silent = [stranger(&address, &[]).await, stranger(&address, &[HALF_GREETING]).await];
    let stuck = stranger(&address, &[GREETING, b"\x04\x19\x05READY"]).await;
    hears(&mut tap, &mut engine).await;
    for stream in silent.into_iter().chain([stuck]) {
        closed(stream).await;
    }
    tap.rejected("handshake_deadline", 3).await;
    hears(&mut tap, &mut engine).await;
    assert!(
        memory("VmHWM").saturating_sub(resident) < GROWTH,
        "resident: {} bytes before, now {}",
        resident,
        memory("VmHWM")
    );
    assert!(
        memory("VmPeak").saturating_sub(mapped) < 1 << 32,
        "mapped: {} bytes before, now {}",
        mapped,
        memory("VmPeak")
    );
}

#[tokio::test]
async fn a_stranger_that_declares_much_and_sends_little_costs_what_it_sends() {
    let (mut tap, mut engine, address) = tapped(options()).await;
    let before = memory("VmData");
    let mut held = Vec::new();
    for _ in 0..12 {
        // As much as the cap admits, and then nothing.
        held.push(stranger(&address, &[GREETING, READY, b"\x02\0\0\0\0\x02\0\0\0", &[0; 1000]]).await);
        hears(&mut tap, &mut engine).await;
    }
    let now = memory("VmData");
    assert!(now.saturating_sub(before) < GROWTH, "allocated: {before} bytes before, now {now}");
}

#[tokio::test]
async fn a_stranger_that_asks_for_answers_and_never_reads_them_is_dropped() {
    let (mut tap, mut engine, address) = tapped(options()).await;
    let mut greedy = stranger(&address, &[GREETING, READY]).await;
    let pings = b"\x04\x17\x04PING\0\x000123456789abcdef".repeat(1000);
    within("the end of the connection", async { while greedy.write_all(&pings).await.is_ok() {} }).await;
    tap.rejected("backlog", 1).await;
    hears(&mut tap, &mut engine).await;
}

#[tokio::test]
async fn strangers_cannot_crowd_out_an_engine_that_has_spoken() {
    let mut options = options();
    options.max_peers = 4;
    options.timing.handshake = Duration::from_secs(60);
    let (mut tap, mut engine, address) = tapped(options).await;
    let mut held = Vec::new();
    for _ in 0..20 {
        held.push(stranger(&address, &[]).await);
        held.push(stranger(&address, &[GREETING, READY]).await);
    }
    tap.rejected("crowded", 37).await;
    hears(&mut tap, &mut engine).await;
}

#[tokio::test]
async fn an_engine_that_comes_to_a_crowded_link_finds_a_place() {
    let mut options = options();
    options.max_peers = 4;
    options.timing.handshake = Duration::from_secs(60);
    let (mut tap, bound) = Tap::bound(options).await;
    let address = bound.to_string().replace("tcp://", "");
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(stranger(&address, &[]).await);
    }
    tap.rejected("crowded", 2).await;
    let mut engine = Libzmq::publisher("connect", &bound).await;
    engine.subscribed().await;
    hears(&mut tap, &mut engine).await;
}

#[tokio::test]
async fn publishers_that_have_all_spoken_keep_their_places_and_the_next_is_turned_away() {
    let mut options = options();
    options.max_peers = 2;
    let (mut tap, mut engine, address) = tapped(options).await;
    let mut second = stranger(&address, &[GREETING, READY, b"\x00\x03two"]).await;
    assert_eq!(tap.message().await, [&b"two"[..]]);
    closed(stranger(&address, &[GREETING, READY]).await).await;
    second.write_all(b"\x00\x05still").await.expect("written");
    // Nobody has left meanwhile.
    assert!(matches!(tap.next().await, LinkEvent::Message(frames) if frames == [&b"still"[..]]));
    tap.rejected("crowded", 1).await;
    hears(&mut tap, &mut engine).await;
}
