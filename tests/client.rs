//! The client: one server, and many of which some are slow, gone or of another opinion.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

mod serve_support;

use std::time::Duration;

use kvtap::block::Grid;
use kvtap::client::{Client, ClientError, Credentials, Servers, ServersOptions};
use kvtap::hash::Seed;
use serde_json::Value;
use serve_support::{PATIENCE, Server, by_tokens, depths};
use tokio::net::TcpListener;
use tokio::process::Command;
use tonic::Code;

fn client(address: &str) -> Client {
    Client::new(address, &Credentials::default()).unwrap()
}

fn servers(addresses: &[&str], options: ServersOptions) -> Servers {
    Servers::new(addresses.iter().map(|address| client(address)).collect(), options)
}

/// A server whose worker holds so many blocks of 4.
async fn holding(worker: &str, blocks: u32) -> Server {
    let server = Server::start().await;
    let tokens: Vec<u32> = (0..4 * blocks).collect();
    server.worker("m", worker, 0).store(Grid::new(4).unwrap(), &tokens, Seed::PLAIN);
    server
}

/// A socket that takes connections and never says a word.
async fn silent() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

fn prompt() -> Vec<u32> {
    (0..64).collect()
}

#[tokio::test]
async fn addresses_of_every_kind_are_taken_and_others_refused() {
    for address in ["127.0.0.1:1", "http://pod:1", "unix:///run/kvtap.sock", "[::1]:1"] {
        assert_eq!(client(address).address(), address);
    }
    for address in ["", "pod", "ftp://pod:1"] {
        let refused = Client::new(address, &Credentials::default()).unwrap_err();
        assert_eq!(refused, ClientError::Address(address.to_owned()));
    }
    let refused = Client::new("https://pod:1", &Credentials::default()).unwrap_err();
    assert_eq!(refused.reason(), "no_authority");
}

#[tokio::test]
async fn one_server_answers_refuses_or_is_late() {
    let server = holding("a", 3).await;
    let asked = client(&server.address.to_string());
    let answer = asked.ask(by_tokens("m", &prompt()), PATIENCE).await.unwrap();
    assert_eq!(depths(&answer), [("a", 0, 3)]);
    let refused = asked.ask(by_tokens("other", &prompt()), PATIENCE).await.unwrap_err();
    assert!(matches!(refused, ClientError::Refused { code: Code::NotFound, .. }), "{refused:?}");
    server.stop().await;

    let (_listener, address) = silent().await;
    let late = client(&address).ask(by_tokens("m", &prompt()), Duration::from_millis(100)).await.unwrap_err();
    assert_eq!(late, ClientError::Late(Duration::from_millis(100)));
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let gone = client(&closed).ask(by_tokens("m", &prompt()), PATIENCE).await.unwrap_err();
    assert_eq!(gone.reason(), "unreachable", "{gone:?}");
}

#[tokio::test]
async fn many_servers_make_one_answer_and_who_is_missing_is_marked() {
    let (a, b, c) = (holding("a", 3).await, holding("b", 9).await, holding("c", 5).await);
    let (_listener, silent) = silent().await;
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let addresses =
        [a.address.to_string(), silent.clone(), b.address.to_string(), closed.clone(), c.address.to_string()];
    let addresses: Vec<_> = addresses.iter().map(String::as_str).collect();
    let options = ServersOptions { within: Duration::from_secs(2), hedge: Duration::from_millis(500), at_once: 8 };
    let gathered = servers(&addresses, options).ask(&by_tokens("m", &prompt())).await;
    assert_eq!(depths(&gathered.response), [("b", 0, 9), ("c", 0, 5), ("a", 0, 3)]);
    assert_eq!(gathered.answered, 3);
    let mut missing: Vec<_> =
        gathered.missing.iter().map(|missing| (missing.server.as_str(), missing.error.reason())).collect();
    missing.sort_unstable_by_key(|(_, reason)| *reason);
    assert_eq!(missing, [(silent.as_str(), "late"), (closed.as_str(), "unreachable")]);
    for server in [a, b, c] {
        server.stop().await;
    }
}

#[tokio::test]
async fn a_connection_that_died_without_a_word_costs_a_moment_and_not_the_answer() {
    let server = holding("a", 3).await;
    // Whoever connects first hears nothing; whoever connects next is passed on.
    let (listener, address) = silent().await;
    let behind = server.address;
    let relay = tokio::spawn(async move {
        let (_held, _) = listener.accept().await.unwrap();
        let (mut near, _) = listener.accept().await.unwrap();
        let mut far = tokio::net::TcpStream::connect(behind).await.unwrap();
        // It ends when either side has.
        let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
    });
    let options = ServersOptions { within: PATIENCE, hedge: Duration::from_millis(200), at_once: 1 };
    let gathered = servers(&[&address], options).ask(&by_tokens("m", &prompt())).await;
    assert_eq!((depths(&gathered.response), gathered.missing.len()), (vec![("a", 0, 3)], 0));
    relay.abort();
    server.stop().await;
}

#[tokio::test]
async fn the_command_asks_several_servers_and_says_who_is_missing() {
    let (a, b) = (holding("a", 3).await, holding("b", 9).await);
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().to_string();
    let tokens: Vec<_> = prompt().iter().map(u32::to_string).collect();
    let ask = async |servers: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kvtap"));
        command.args(["match", "--server", servers, "--model", "m", "--tokens", &tokens.join(","), "--json"]);
        tokio::time::timeout(PATIENCE, command.output()).await.unwrap().unwrap()
    };
    let output = ask(&format!("{},{closed},{}", a.address, b.address)).await;
    assert!(output.status.success(), "{output:?}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    let workers: Vec<_> =
        (0..2).map(|i| (&answer["workers"][i]["worker"], &answer["workers"][i]["matched_blocks"])).collect();
    assert_eq!(workers, [(&"b".into(), &9.into()), (&"a".into(), &3.into())]);
    assert_eq!(
        (&answer["missing"][0]["server"], &answer["missing"][0]["reason"]),
        (&closed.clone().into(), &"unreachable".into())
    );
    assert!(String::from_utf8_lossy(&output.stderr).starts_with(&format!("missing {closed}: ")), "{output:?}");

    let output = ask(&format!("{closed},{closed}")).await;
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    a.stop().await;
    b.stop().await;
}
