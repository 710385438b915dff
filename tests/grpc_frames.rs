//! HTTP/2 written by hand, as no client library would: floods of frames, drips of bytes, and callers who read nothing.
//! Others are answered all the while, and the process grows by nothing that lasts.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

mod tap_support;

use std::time::Duration;

use kvtap::proto::v1;
use kvtap::proto::v1::match_request::Prompt;
use kvtap::proto::v1::query_service_client::QueryServiceClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;
use tonic::Code;

use tap_support::kvtap::Kvtap;
use tap_support::{PATIENCE, eventually};

/// What a client says first: the preface, and empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Kinds of frames.
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// The flag that ends a head.
const END_HEADERS: u8 = 4;

/// A flood ends here, where nobody has ended it before: in bytes.
const FLOOD: usize = 8 << 20;
/// What the process may have grown by after a flood, in bytes.
const GROWTH: u64 = 32 << 20;

async fn serve(grpc: &str) -> Kvtap {
    Kvtap::start(&format!("grpc: {{ listen: [\"127.0.0.1:0\"], {grpc} }}\nfeeds: []\n")).await
}

/// Somebody else asks, and has an answer.
async fn somebody_else_is_answered(kvtap: &Kvtap) {
    let mut client = QueryServiceClient::connect(format!("http://{}", kvtap.grpc)).await.unwrap();
    let prompt = Some(Prompt::TokensLe(vec![0; 256].into()));
    let request = v1::MatchRequest { model: "m".to_owned(), prompt, ..Default::default() };
    let answer = timeout(PATIENCE, client.r#match(request)).await.expect("an answer");
    assert_eq!(answer.unwrap_err().code(), Code::NotFound);
}

/// The value of one series.
async fn metric(kvtap: &Kvtap, series: &str) -> u64 {
    let mut stream = TcpStream::connect(&kvtap.admin).await.unwrap();
    stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: kvtap\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut text = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut text)).await.unwrap().unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("{series} is not in\n{text}")).parse().unwrap()
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The head of a call of `Match`: nothing in it is indexed, so any number of them is understood.
fn head() -> Vec<u8> {
    let path = b"/kvtap.v1.QueryService/Match";
    let named = |name: &[u8], value: &[u8]| [name, &[value.len() as u8], value].concat();
    [
        // POST, http.
        &b"\x83\x86"[..],
        &named(b"\x04", path),
        &named(b"\x01", b"kvtap"),
        &named(b"\x0f\x10", b"application/grpc"),
        &named(b"\0\x02te", b"trailers"),
    ]
    .concat()
}

/// Writes `opening` and then `again` of 0, 1, 2..., reading nothing, until the other side has closed, takes nothing any
/// more, or has taken enough. Says whether it has closed. The connection stays open otherwise.
async fn flood(kvtap: &Kvtap, opening: &[u8], again: impl Fn(u32) -> Vec<u8>) -> (bool, TcpStream) {
    let socket = TcpSocket::new_v4().unwrap();
    // What it leaves unread is soon too much.
    socket.set_recv_buffer_size(4096).unwrap();
    let mut stream = socket.connect(kvtap.grpc.parse().unwrap()).await.unwrap();
    stream.write_all(&[PREFACE, opening].concat()).await.unwrap();
    let (mut written, mut n) = (0, 0);
    while written < FLOOD {
        let mut piece = Vec::new();
        while piece.len() < 16 << 10 {
            piece.extend(again(n));
            n += 1;
        }
        // Who takes nothing for a second has had enough, and that is an answer, too.
        match timeout(Duration::from_secs(1), stream.write_all(&piece)).await {
            Ok(Ok(())) => written += piece.len(),
            Ok(Err(_)) => return (true, stream),
            Err(_) => break,
        }
    }
    (false, stream)
}

/// The stream of the `n`th call of a client.
fn stream(n: u32) -> u32 {
    2 * n + 1
}

#[tokio::test]
async fn calls_that_are_reset_as_soon_as_they_are_made_end_the_connection_or_cost_nothing() {
    let kvtap = serve("reflection: true").await;
    let before = kvtap.resident();
    let mut connections = Vec::new();
    for _ in 0..4 {
        let reset = |n| {
            let call = frame(HEADERS, END_HEADERS, stream(n), &head());
            [call, frame(RST_STREAM, 0, stream(n), &[0, 0, 0, 8])].concat()
        };
        connections.push(flood(&kvtap, &[], reset).await);
        somebody_else_is_answered(&kvtap).await;
    }
    assert!(kvtap.resident() < before + GROWTH, "{before} bytes have become {}", kvtap.resident());
    let under_way = "kvtap_connections{port=\"grpc\"}";
    drop(connections);
    eventually("everybody gone", async || metric(&kvtap, under_way).await, |open| *open == 0).await;
}

#[tokio::test]
async fn frames_that_mean_nothing_end_the_connection_or_cost_nothing() {
    type Again = fn(u32) -> Vec<u8>;
    let call = frame(HEADERS, END_HEADERS, 1, &head());
    let begun = frame(HEADERS, 0, 1, &head());
    let floods: [(&str, &[u8], Again); 7] = [
        ("pings", &[], |n| frame(PING, 0, 0, &u64::from(n).to_be_bytes())),
        ("settings", &[], |_| frame(SETTINGS, 0, 0, &[])),
        ("settings that change the table's size", &[], |n| {
            frame(SETTINGS, 0, 0, &[&[0, 1][..], &(n % 4096).to_be_bytes()].concat())
        }),
        ("priorities", &[], |n| frame(PRIORITY, 0, stream(n % 1000), &[0, 0, 0, 0, 1])),
        ("windows", &call, |_| frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])),
        ("data of nothing", &call, |_| frame(DATA, 0, 1, &[])),
        ("a head without an end", &begun, |_| frame(CONTINUATION, 0, 1, &[0x40, 1, b'a', 1, b'b'].repeat(100))),
    ];
    let kvtap = serve("reflection: true").await;
    let before = kvtap.resident();
    let mut connections = Vec::new();
    for (what, opening, again) in floods {
        connections.push(flood(&kvtap, opening, again).await);
        somebody_else_is_answered(&kvtap).await;
        assert!(kvtap.resident() < before + GROWTH, "{what}: {before} bytes have become {}", kvtap.resident());
    }
    let (_, mut endless) = connections.pop().unwrap();
    let mut rest = Vec::new();
    let ended = timeout(PATIENCE, endless.read_to_end(&mut rest)).await;
    assert!(ended.is_ok(), "whose head has no end is closed");
}

#[tokio::test]
async fn who_asks_and_reads_nothing_is_closed() {
    let kvtap = serve("limits: { stall_time: 200ms }").await;
    // Each ping is answered, and the answers are left where they are.
    let (_, mut stream) = flood(&kvtap, &[], |n| frame(PING, 0, 0, &u64::from(n).to_be_bytes())).await;
    let stalled = "kvtap_connections_closed_total{port=\"grpc\",reason=\"stalled\"}";
    eventually("closed", async || metric(&kvtap, stalled).await, |closed| *closed == 1).await;
    // What was written before it can be read still, and then it ends, one way or the other.
    let mut rest = Vec::new();
    let _ = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("an end");
    somebody_else_is_answered(&kvtap).await;
}

#[tokio::test]
async fn a_message_that_drips_is_given_up_like_one_that_does_not_come() {
    let kvtap = serve("limits: { request_time: 300ms }").await;
    let mut slow = TcpStream::connect(&kvtap.grpc).await.unwrap();
    // A message of 64 KiB is promised, and comes a byte at a time.
    let call = [frame(HEADERS, END_HEADERS, 1, &head()), frame(DATA, 0, 1, &[0, 0, 1, 0, 0])].concat();
    slow.write_all(&[PREFACE, &call].concat()).await.unwrap();
    let too_slow = "kvtap_grpc_refused_total{reason=\"too_slow\"}";
    let dripping = async || {
        // Once it has been refused nobody need take more.
        let _ = slow.write_all(&frame(DATA, 0, 1, &[0])).await;
        metric(&kvtap, too_slow).await
    };
    eventually("given up", dripping, |refused| *refused == 1).await;
    somebody_else_is_answered(&kvtap).await;
}
