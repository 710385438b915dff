//! What strangers and heavy callers do to `kvtap serve`, run as the binary that people run: others are answered all the
//! while, nothing is held for ever, and every refusal says which limit it was and is counted.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

mod tap_support;

use std::process::Command;

use bytes::{Buf, BufMut, Bytes};
use futures_util::StreamExt;
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kvtap::proto::v1::match_request::Prompt;
use kvtap::proto::v1::query_service_client::QueryServiceClient;
use kvtap::proto::v1::{self, match_stream_response::Result as Outcome};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use tap_support::kvtap::Kvtap;
use tap_support::{PATIENCE, eventually};

/// The HTTP/2 preface, and empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

async fn serve(grpc: &str) -> Kvtap {
    Kvtap::start(&format!("grpc: {{ listen: [\"127.0.0.1:0\"], {grpc} }}\nfeeds: []\n")).await
}

async fn channel(kvtap: &Kvtap) -> Channel {
    Channel::from_shared(format!("http://{}", kvtap.grpc)).unwrap().connect().await.unwrap()
}

async fn client(kvtap: &Kvtap) -> QueryServiceClient<Channel> {
    QueryServiceClient::new(channel(kvtap).await)
}

fn request(tokens: usize) -> v1::MatchRequest {
    let prompt = Some(Prompt::TokensLe(vec![0; tokens * 4].into()));
    v1::MatchRequest { model: "m".to_owned(), prompt, ..Default::default() }
}

/// A connection to the admin port that stays open: it needs no new descriptor of the server.
struct Scraper(TcpStream);

impl Scraper {
    async fn new(kvtap: &Kvtap) -> Self {
        Self(TcpStream::connect(&kvtap.admin).await.unwrap())
    }

    /// The value of one series.
    async fn value(&mut self, series: &str) -> u64 {
        self.0.write_all(b"GET /metrics HTTP/1.1\r\nhost: kvtap\r\n\r\n").await.unwrap();
        let mut text = String::new();
        let mut bytes = vec![0; 1 << 16];
        while !text.ends_with("# EOF\n") {
            let read = timeout(PATIENCE, self.0.read(&mut bytes)).await.unwrap().unwrap();
            assert_ne!(read, 0, "the admin port has closed: {text}");
            text.push_str(std::str::from_utf8(&bytes[..read]).unwrap());
        }
        let line = text.lines().find_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("{series} is not in\n{text}")).parse().unwrap()
    }
}

async fn metric(kvtap: &Kvtap, series: &str) -> u64 {
    Scraper::new(kvtap).await.value(series).await
}

/// How often calls were refused for this reason.
async fn refused(kvtap: &Kvtap, reason: &str) -> u64 {
    metric(kvtap, &format!("kvtap_grpc_refused_total{{reason=\"{reason}\"}}")).await
}

/// How often connections were closed for this reason.
async fn closed(kvtap: &Kvtap, port: &str, reason: &str) -> u64 {
    metric(kvtap, &format!("kvtap_connections_closed_total{{port=\"{port}\",reason=\"{reason}\"}}")).await
}

/// Waits until the other side has closed.
async fn closes(mut stream: TcpStream) {
    let mut rest = Vec::new();
    // Closed or reset: either is an end.
    let _ = timeout(PATIENCE, stream.read_to_end(&mut rest)).await.expect("the server closes the connection");
}

/// Sends bytes as a message, whatever they are.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buf: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buf.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buf.copy_to_bytes(buf.remaining())))
    }
}

/// What `Match` says to these bytes.
async fn say(kvtap: &Kvtap, bytes: Bytes) -> Status {
    let mut client = tonic::client::Grpc::new(channel(kvtap).await);
    client.ready().await.unwrap();
    let path = "/kvtap.v1.QueryService/Match".parse().unwrap();
    client.unary(Request::new(bytes), path, Raw).await.expect_err("nothing of it can be answered")
}

#[tokio::test]
async fn told_to_stop_it_answers_what_a_stream_has_sent_and_then_ends_the_stream() {
    const SENT: u64 = 2_000;
    let kvtap = serve("drain_grace: 1m").await;
    let mut client = client(&kvtap).await;
    let (requests, pending) = tokio::sync::mpsc::unbounded_channel();
    let mut answers = client.match_stream(UnboundedReceiverStream::new(pending)).await.unwrap().into_inner();
    // More than the buffers between here and there hold.
    for id in 0..SENT {
        requests.send(v1::MatchStreamRequest { id, request: Some(request(1_000)) }).unwrap();
    }
    assert_eq!(answers.message().await.unwrap().unwrap().id, 0);
    kvtap.signal("TERM").await;
    for id in 1..SENT {
        let answer = answers.message().await.unwrap().expect("an answer to each");
        assert_eq!(answer.id, id);
        assert!(matches!(answer.result, Some(Outcome::Failure(failure)) if failure.code == Code::NotFound as i32));
    }
    assert!(answers.message().await.unwrap().is_none());
    let (status, log) = kvtap.ended().await;
    assert_eq!(status.code(), Some(0), "{log:?}");
}

#[tokio::test]
async fn who_goes_on_asking_while_it_stops_hears_that_it_stops_and_no_broken_connection() {
    let kvtap = serve("drain_grace: 2s").await;
    let mut client = client(&kvtap).await;
    let (requests, pending) = tokio::sync::mpsc::channel(64);
    let mut answers = client.match_stream(ReceiverStream::new(pending)).await.unwrap().into_inner();
    let asking = tokio::spawn(async move {
        let mut id = 0;
        while requests.send(v1::MatchStreamRequest { id, request: Some(request(1_000)) }).await.is_ok() {
            id += 1;
        }
    });
    for id in 0..100 {
        assert_eq!(answers.message().await.unwrap().unwrap().id, id);
    }
    kvtap.signal("TERM").await;
    let mut next = 100;
    let ended = loop {
        match timeout(PATIENCE, answers.message()).await.unwrap() {
            Ok(answer) => assert_eq!(answer.expect("it does not end well").id, next),
            Err(status) => break status,
        }
        next += 1;
    };
    assert_eq!((ended.code(), ended.message().starts_with("draining: ")), (Code::Unavailable, true), "{ended:?}");
    drop(answers);
    asking.await.unwrap();
    let (status, log) = kvtap.ended().await;
    assert_eq!(status.code(), Some(0), "{log:?}");
}

/// A call by hand, of a client that does not watch its own deadline: its body begins with `bytes` and never ends.
/// The status of the answer.
async fn call_within(kvtap: &Kvtap, method: &str, within: &str, bytes: Bytes) -> String {
    let stream = TcpStream::connect(&kvtap.grpc).await.unwrap();
    let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let begun = futures_util::stream::iter([Ok::<_, std::convert::Infallible>(Frame::data(bytes))]);
    let body = StreamBody::new(begun.chain(futures_util::stream::pending()));
    let request = hyper::Request::post(format!("http://{}/kvtap.v1.QueryService/{method}", kvtap.grpc))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-timeout", within)
        .body(body)
        .unwrap();
    let answer = timeout(PATIENCE, sender.send_request(request)).await.expect("an answer").unwrap();
    let (head, body) = answer.into_parts();
    let trailers = timeout(PATIENCE, body.collect()).await.expect("an end").unwrap();
    let status = head.headers.get("grpc-status").or_else(|| trailers.trailers()?.get("grpc-status")).unwrap();
    connection.abort();
    status.to_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_deadline_that_passes_is_answered_also_where_the_client_does_not_watch_it() {
    let kvtap = serve("reflection: true").await;
    // Half of a head: the message never comes.
    assert_eq!(call_within(&kvtap, "Match", "150m", Bytes::from_static(&[0, 0])).await, "4");
    // A stream that is asked nothing, and one that has been answered already.
    assert_eq!(call_within(&kvtap, "MatchStream", "150m", Bytes::new()).await, "4");
    assert_eq!(call_within(&kvtap, "MatchStream", "300m", Bytes::from_static(&[0, 0, 0, 0, 0])).await, "4");
}

#[tokio::test]
async fn ten_thousand_streams_that_stay_leave_room_for_who_asks_once() {
    let kvtap = serve("limits: { streams: 1000, in_flight: 1000 }").await;
    let before = kvtap.resident();
    let mut streams = Vec::new();
    for _ in 0..10 {
        let client = client(&kvtap).await;
        for _ in 0..1000 {
            let mut client = client.clone();
            streams.push(tokio::spawn(async move {
                client
                    .match_stream(tokio_stream::pending::<v1::MatchStreamRequest>())
                    .await
                    .map(tonic::Response::into_inner)
            }));
        }
    }
    let (mut open, mut refused) = (Vec::new(), 0);
    for stream in streams {
        match timeout(PATIENCE, stream).await.expect("an answer").unwrap() {
            Ok(stream) => open.push(stream),
            Err(status) => {
                assert_eq!((status.code(), status.message().contains("in_flight")), (Code::ResourceExhausted, true));
                refused += 1;
            }
        }
    }
    assert_eq!((open.len(), refused), (500, 9_500));
    assert_eq!(client(&kvtap).await.r#match(request(64)).await.unwrap_err().code(), Code::NotFound);
    assert!(kvtap.resident() < before + (64 << 20), "{before} {}", kvtap.resident());
}

#[tokio::test]
async fn who_says_nothing_is_closed_and_so_is_who_has_nothing_to_ask() {
    let kvtap = serve("limits: { handshake_time: 300ms, idle_time: 300ms }").await;
    closes(TcpStream::connect(&kvtap.grpc).await.unwrap()).await;
    let mut half = TcpStream::connect(&kvtap.grpc).await.unwrap();
    half.write_all(&PREFACE[..20]).await.unwrap();
    closes(half).await;
    assert_eq!(closed(&kvtap, "grpc", "handshake").await + closed(&kvtap, "grpc", "idle").await, 2);
    let before = closed(&kvtap, "grpc", "idle").await;
    let mut idle = TcpStream::connect(&kvtap.grpc).await.unwrap();
    // With half of a request's head after it.
    idle.write_all(&[PREFACE, b"\0\0\x40\x01\0\0\0\0\x01\x82"].concat()).await.unwrap();
    closes(idle).await;
    assert_eq!(closed(&kvtap, "grpc", "idle").await, before + 1);
}

#[tokio::test]
async fn a_request_that_does_not_arrive_is_given_up() {
    let kvtap = serve("limits: { request_time: 300ms }").await;
    for begun in [true, false] {
        let mut client = tonic::client::Grpc::new(channel(&kvtap).await);
        client.ready().await.unwrap();
        // Either the end of the body is missing, or all of it.
        let first = begun.then(v1::ListWorkersRequest::default);
        let body = futures_util::StreamExt::chain(tokio_stream::iter(first), futures_util::stream::pending());
        let path = "/kvtap.v1.QueryService/ListWorkers".parse().unwrap();
        let codec = tonic_prost::ProstCodec::<v1::ListWorkersRequest, v1::ListWorkersResponse>::default();
        let call = client.client_streaming(Request::new(body), path, codec);
        let status = timeout(PATIENCE, call).await.unwrap().unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
        assert_eq!(status.message(), "message: it has not arrived within 0.3 s");
    }
    assert_eq!(refused(&kvtap, "too_slow").await, 2);
}

#[tokio::test]
async fn strangers_who_take_every_connection_make_room_for_who_asks() {
    let kvtap = serve("limits: { connections: 8 }").await;
    let mut strangers = Vec::new();
    for i in 0..50 {
        let mut stranger = TcpStream::connect(&kvtap.grpc).await.unwrap();
        if i % 2 == 0 {
            // It may have been closed already, to make room for the next.
            let _ = stranger.write_all(PREFACE).await;
        }
        strangers.push(stranger);
    }
    client(&kvtap).await.list_workers(v1::ListWorkersRequest::default()).await.unwrap();
    assert!(closed(&kvtap, "grpc", "evicted").await >= 43);
    assert!(metric(&kvtap, "kvtap_connections{port=\"grpc\"}").await <= 9);
}

#[tokio::test]
async fn the_admin_port_closes_who_does_not_ask_and_answers_others() {
    let kvtap =
        Kvtap::start("admin: { listen: \"127.0.0.1:0\", request_time: 300ms, connections: 8 }\nfeeds: []\n").await;
    let mut half = TcpStream::connect(&kvtap.admin).await.unwrap();
    half.write_all(b"GET /metrics HTTP/1.1\r\nhos").await.unwrap();
    closes(half).await;
    let mut strangers = Vec::new();
    for _ in 0..30 {
        strangers.push(TcpStream::connect(&kvtap.admin).await.unwrap());
    }
    let counted = metric(&kvtap, "kvtap_connections_closed_total{port=\"admin\",reason=\"evicted\"}").await;
    let late = closed(&kvtap, "admin", "handshake").await;
    assert!(counted + late > 0, "{counted} evicted, {late} late");
}

#[tokio::test]
async fn running_out_of_descriptors_is_logged_once_and_passes() {
    let kvtap = serve("drain_grace: 1s").await;
    let limit = |soft: &str| {
        let pid = kvtap.pid().to_string();
        let set = Command::new("prlimit").args(["--pid", &pid, &format!("--nofile={soft}:")]).status();
        assert!(set.unwrap().success());
    };
    let mut scraper = Scraper::new(&kvtap).await;
    let not_accepted = "kvtap_connections_closed_total{port=\"grpc\",reason=\"not_accepted\"}";
    assert_eq!(scraper.value(not_accepted).await, 0);
    limit("3");
    let waiting = TcpStream::connect(&kvtap.grpc).await.unwrap();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while scraper.value(not_accepted).await < 4 {
        assert!(tokio::time::Instant::now() < deadline, "accepting does not fail");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    limit("1024");
    let said = |words: &str| kvtap.log().iter().filter(|line| line.contains(words) && line.contains("grpc")).count();
    eventually("accepting again", async || said("Connections are accepted again."), |said| *said == 1).await;
    assert_eq!(said("Connections cannot be accepted."), 1, "{:?}", kvtap.log());
    drop(waiting);
    client(&kvtap).await.list_workers(v1::ListWorkersRequest::default()).await.unwrap();
}

#[tokio::test]
async fn what_is_no_message_is_an_invalid_argument_and_counted() {
    let kvtap = serve("reflection: true").await;
    // A field's length beyond the end; a model that is not UTF-8.
    for (bytes, words) in [(&b"\x0a\x7f"[..], "message: "), (b"\x0a\x01\xff", "MatchRequest.model")] {
        let status = say(&kvtap, Bytes::from_static(bytes)).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert!(status.message().contains(words), "{status:?}");
    }
    assert_eq!(refused(&kvtap, "malformed").await, 2);
    let counted = metric(&kvtap, "kvtap_grpc_requests_total{rpc=\"Match\",code=\"invalid_argument\"}").await;
    assert_eq!(counted, 2);
}

#[tokio::test]
async fn a_prompt_in_two_forms_is_refused_whichever_comes_last() {
    let kvtap = serve("reflection: true").await;
    let form = |prompt| v1::MatchRequest { prompt: Some(prompt), ..Default::default() }.encode_to_vec();
    let tokens = form(Prompt::TokensLe(vec![0; 16].into()));
    let hashes = form(Prompt::PrefixHashesLe(vec![0; 16].into()));
    let listed = form(Prompt::Tokens(v1::TokenList { ids: vec![1, 2, 3] }));
    for (one, other) in [(&tokens, &hashes), (&hashes, &tokens), (&listed, &tokens), (&tokens, &tokens)] {
        let status = say(&kvtap, [&b"\x0a\x01m"[..], one, other].concat().into()).await;
        assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
        assert_eq!(status.message(), "prompt: given more than once; one form of it is asked for");
    }
    assert_eq!(refused(&kvtap, "malformed").await, 4);
    // Alone, each is looked at.
    assert_eq!(say(&kvtap, [&b"\x0a\x01m"[..], &tokens].concat().into()).await.code(), Code::NotFound);
}

#[tokio::test]
async fn four_million_extra_keys_are_refused_by_name_and_cost_no_memory() {
    let kvtap = serve("reflection: true").await;
    let before = kvtap.resident();
    let keys = v1::MatchRequest { extra_keys: vec![Bytes::new(); 4_000_000], ..request(16) }.encode_to_vec();
    let status = say(&kvtap, keys.into()).await;
    assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
    assert_eq!(status.message(), "extra_keys: more than 65536 entries");
    assert_eq!(refused(&kvtap, "too_many_entries").await, 1);
    // The message itself takes 8 MB twice over; its entries would take 128 MB.
    assert!(kvtap.resident() < before + (64 << 20), "{before} bytes have become {}", kvtap.resident());
}

#[tokio::test]
async fn a_message_over_the_limit_is_counted() {
    let kvtap = serve("max_message_bytes: 64KiB").await;
    let status = client(&kvtap).await.r#match(request(20_000)).await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(
        status.message(),
        "prompt: the message is larger than the limit of 65536 bytes (16384 tokens as tokens_le)"
    );
    assert_eq!(refused(&kvtap, "message_too_large").await, 1);
}

#[tokio::test]
async fn a_limit_that_is_reached_is_named_and_passes() {
    let kvtap = serve("limits: { in_flight: 1, request_bytes: 1MiB }").await;
    let mut holder = client(&kvtap).await;
    let (requests, pending) = tokio::sync::mpsc::unbounded_channel();
    let held = holder.match_stream(UnboundedReceiverStream::new(pending)).await.unwrap();
    let mut other = client(&kvtap).await;
    let status = other.list_workers(v1::ListWorkersRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted);
    assert_eq!(status.message(), "limits.in_flight: 1 requests are under way");
    // Probes are not refused for load.
    HealthClient::new(channel(&kvtap).await).check(HealthCheckRequest::default()).await.unwrap();
    drop((held, requests));
    let free = async || other.clone().list_workers(v1::ListWorkersRequest::default()).await.is_ok();
    eventually("room again", free, |free| *free).await;

    let status = other.r#match(request(1 << 19)).await.unwrap_err();
    assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
    assert_eq!(status.message(), "limits.request_bytes: 1048576 bytes of requests are in memory");
    assert_eq!(refused(&kvtap, "request_bytes").await, 1);
    assert_eq!(other.r#match(request(1 << 12)).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn requests_beyond_the_rate_are_refused_one_by_one_also_in_streams_and_batches() {
    let kvtap = serve("limits: { requests_per_second: 1 }").await;
    let client = client(&kvtap).await;
    let batch = v1::MatchBatchRequest { requests: vec![request(4); 100] };
    let refusals = async || {
        // The call itself may be refused, or what comes after the first of it.
        match client.clone().match_batch(batch.clone()).await {
            Err(status) => (status.code() == Code::ResourceExhausted).then_some(vec![8; 100]),
            Ok(results) => results
                .into_inner()
                .results
                .into_iter()
                .map(|result| match result.result {
                    Some(v1::match_batch_result::Result::Failure(failure)) => Some(failure.code),
                    _ => None,
                })
                .collect(),
        }
    };
    let codes = refusals().await.expect("failures");
    assert!(codes[1..].iter().filter(|code| **code == 8).count() > 50, "{codes:?}");
    let requests = (0..100).map(|id| v1::MatchStreamRequest { id, request: Some(request(4)) });
    let open = async || client.clone().match_stream(tokio_stream::iter(requests.clone())).await;
    let mut answers = eventually("a stream", open, Result::is_ok).await.unwrap().into_inner();
    let mut refused = 0;
    while let Some(answer) = answers.message().await.unwrap() {
        refused += usize::from(matches!(answer.result, Some(Outcome::Failure(failure)) if failure.code == 8));
    }
    assert!(refused > 50, "{refused}");
}

#[tokio::test]
async fn ten_thousand_requests_at_once_on_one_connection_are_all_answered() {
    let kvtap = serve("reflection: true").await;
    let client = client(&kvtap).await;
    let before = kvtap.resident();
    let calls: Vec<_> = (0..10_000)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move { client.r#match(request(64)).await.unwrap_err().code() })
        })
        .collect();
    for call in calls {
        assert_eq!(call.await.unwrap(), Code::NotFound);
    }
    assert!(kvtap.resident() < before + (64 << 20));
}

#[tokio::test]
async fn many_streams_of_large_requests_do_not_wait_for_each_other_for_ever() {
    let kvtap = serve("limits: { request_bytes: 1GiB }").await;
    let client = client(&kvtap).await;
    let streams: Vec<_> = (0..16)
        .map(|_| {
            let mut client = client.clone();
            tokio::spawn(async move {
                let requests = (0..4).map(|id| v1::MatchStreamRequest { id, request: Some(request(100_000)) });
                let mut answers = client.match_stream(tokio_stream::iter(requests)).await.unwrap().into_inner();
                let mut answered = 0;
                while answers.message().await.unwrap().is_some() {
                    answered += 1;
                }
                answered
            })
        })
        .collect();
    for stream in streams {
        assert_eq!(timeout(PATIENCE, stream).await.expect("an end").unwrap(), 4);
    }
}

#[tokio::test]
async fn a_flood_of_calls_that_are_taken_back_harms_nobody_else() {
    let kvtap = serve("reflection: true").await;
    let flood = client(&kvtap).await;
    let mut other = client(&kvtap).await;
    for _ in 0..20 {
        for _ in 0..250 {
            let mut client = flood.clone();
            // Dropped as soon as it is under way: a reset.
            let _ = timeout(std::time::Duration::ZERO, client.r#match(request(64))).await;
        }
        assert_eq!(other.r#match(request(64)).await.unwrap_err().code(), Code::NotFound);
    }
}

#[tokio::test]
async fn a_batch_answers_each_request_for_itself_and_an_empty_name_is_refused() {
    let kvtap = serve("reflection: true").await;
    let mut client = client(&kvtap).await;
    let nameless = v1::MatchRequest { workers: vec![String::new()], ..request(16) };
    let status = client.r#match(nameless.clone()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::InvalidArgument, "workers: a name is empty"));
    let batch = v1::MatchBatchRequest { requests: vec![request(16), nameless] };
    let results = client.match_batch(batch).await.unwrap().into_inner().results;
    let codes: Vec<_> = results
        .into_iter()
        .map(|result| match result.result {
            Some(v1::match_batch_result::Result::Failure(failure)) => failure.code,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(codes, [Code::NotFound as i32, Code::InvalidArgument as i32]);
}
