//! Links that bind: the engine connects.

use std::os::unix::net::UnixListener;

use kvtap::feed::zmq::{Endpoint, Host, LinkEvent, Mode, SubOptions, Transport};

use crate::libzmq::{Libzmq, Tap, endpoint};

fn options(at: &str) -> SubOptions {
    SubOptions::new(endpoint(at), Mode::Bind)
}

/// Where an engine connects to reach what is bound at `at`.
fn reach(at: &Endpoint, host: &str) -> Endpoint {
    match at {
        Endpoint::Tcp { port, .. } => endpoint(&format!("tcp://{host}:{port}")),
        ipc => ipc.clone(),
    }
}

#[tokio::test]
async fn engines_connect_over_tcp_of_both_families_and_ipc() {
    let folder = tempfile::tempdir().expect("a folder");
    let ipc = format!("ipc://{}/kv.sock", folder.path().display());
    for (at, hosts) in [
        ("tcp://127.0.0.1:0", &["127.0.0.1"][..]),
        ("tcp://0.0.0.0:0", &["127.0.0.1"]),
        ("tcp://[::1]:0", &["[::1]"]),
        ("tcp://[::]:0", &["127.0.0.1", "[::1]"]),
        ("tcp://*:*", &["127.0.0.1", "[::1]"]),
        ("tcp://localhost:0", &["localhost"]),
        (&ipc, &[""]),
    ] {
        let (mut tap, bound) = Tap::bound(options(at)).await;
        assert!(!matches!(bound, Endpoint::Tcp { port: 0, .. } | Endpoint::Tcp { host: Host::Any, .. }), "{bound}");
        for host in hosts {
            let mut engine = Libzmq::publisher("connect", &reach(&bound, host)).await;
            engine.subscribed().await;
            engine.send(&[b"topic", host.as_bytes()]).await;
            assert_eq!(tap.message().await, [&b"topic"[..], host.as_bytes()], "{at}");
        }
    }
}

#[tokio::test]
async fn a_bound_link_uses_the_capped_reader_whatever_transport_is_asked_for() {
    let (mut tap, bound) = Tap::bound(SubOptions { transport: Transport::Zeromq, ..options("tcp://*:0") }).await;
    let mut engine = Libzmq::publisher("connect", &reach(&bound, "127.0.0.1")).await;
    engine.subscribed().await;
    engine.send(&[b"here"]).await;
    assert_eq!(tap.message().await, [&b"here"[..]]);
}

#[tokio::test]
async fn messages_of_several_engines_come_into_one_feed() {
    let (mut tap, bound) = Tap::bound(options("tcp://127.0.0.1:0")).await;
    let mut engines = Vec::new();
    for _ in 0..3 {
        let mut engine = Libzmq::publisher("connect", &bound).await;
        engine.subscribed().await;
        engines.push(engine);
    }
    for round in *b"123" {
        for (name, engine) in [b'a', b'b', b'c'].iter().zip(&mut engines) {
            engine.send(&[&[*name, round]]).await;
            assert_eq!(tap.message().await, [&[*name, round][..]]);
        }
    }
}

#[tokio::test]
async fn an_engine_that_restarts_is_heard_again_and_its_end_is_told() {
    let (mut tap, bound) = Tap::bound(options("tcp://127.0.0.1:0")).await;
    for life in [b"first", b"again"] {
        let mut engine = Libzmq::publisher("connect", &bound).await;
        tap.connected().await;
        engine.subscribed().await;
        engine.send(&[life]).await;
        assert_eq!(tap.message().await, [&life[..]]);
        engine.kill().await;
        tap.disconnected().await;
    }
}

#[tokio::test]
async fn a_bound_link_keeps_its_engine_when_it_restarts_itself() {
    let (tap, bound) = Tap::bound(options("tcp://127.0.0.1:0")).await;
    let mut engine = Libzmq::publisher("connect", &bound).await;
    engine.subscribed().await;
    tap.cancel.cancel();
    tap.task.await.expect("no panic");

    let (mut tap, _) = Tap::bound(options(&bound.to_string())).await;
    engine.subscribed().await;
    engine.send(&[b"here"]).await;
    assert_eq!(tap.message().await, [&b"here"[..]]);
}

#[tokio::test]
async fn a_port_that_is_taken_is_bound_once_it_is_free() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let mut tap = Tap::new(options(&format!("tcp://{}", taken.local_addr().expect("its address"))));
    assert_eq!(tap.unreachable().await.reason(), "bind_failed");
    drop(taken);
    tap.until("listening", |event| matches!(event, LinkEvent::Listening(_)).then_some(())).await;
}

#[tokio::test]
async fn a_socket_file_is_replaced_where_nobody_listens_and_only_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("kv.sock");
    let at = format!("ipc://{}", path.display());

    drop(UnixListener::bind(&path).expect("bound"));
    assert!(path.exists(), "a socket file that its process left behind");
    let (tap, _) = Tap::bound(options(&at)).await;
    tap.cancel.cancel();
    tap.task.await.expect("no panic");
    assert!(!path.exists(), "the link takes its own file away");

    let alive = UnixListener::bind(&path).expect("bound");
    let mut tap = Tap::new(options(&at));
    assert_eq!(tap.unreachable().await.reason(), "bind_failed");
    drop((tap, alive));
    std::fs::remove_file(&path).expect("still there");

    std::fs::write(&path, "precious").expect("written");
    let mut tap = Tap::new(options(&at));
    assert_eq!(tap.unreachable().await.reason(), "bind_failed");
    assert_eq!(std::fs::read(&path).expect("still there"), b"precious");
}
