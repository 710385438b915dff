//! Callers.

use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use prost::Message as _;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::{ProstCodec, ProstEncoder};

use crate::floor::pb::Message;
use crate::floor::pb::echo_client::EchoClient;
use crate::v1;
use crate::v1::query_service_client::QueryServiceClient;

/// Whom to call, with what.
#[derive(Clone)]
pub struct Target {
    pub name: &'static str,
    call: Call,
    next: usize,
}

#[derive(Clone)]
enum Call {
    Kvtap(QueryServiceClient<Channel>, Vec<v1::MatchRequest>),
    Unread(Grpc<Channel>, Vec<v1::MatchRequest>),
    Echo(EchoClient<Channel>, Vec<Message>),
}

/// Reads answers as what they are on the wire.
#[derive(Default)]
struct Unread;

/// A connection.
pub async fn channel(at: &str) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{at}")).unwrap();
    endpoint.initial_stream_window_size(1 << 20).initial_connection_window_size(8 << 20).connect().await.unwrap()
}

// === impl Unread ===

impl Codec for Unread {
    type Encode = v1::MatchRequest;
    type Decode = Bytes;
    type Encoder = ProstEncoder<v1::MatchRequest>;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        ProstCodec::<v1::MatchRequest, ()>::default().encoder()
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Decoder for Unread {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

// === impl Target ===

impl Target {
    pub fn kvtap(name: &'static str, channel: Channel, requests: Vec<v1::MatchRequest>) -> Self {
        Self { name, call: Call::Kvtap(QueryServiceClient::new(channel), requests), next: 0 }
    }

    /// The same, whose answers nobody looks into.
    pub fn unread(name: &'static str, channel: Channel, requests: Vec<v1::MatchRequest>) -> Self {
        Self { name, call: Call::Unread(Grpc::new(channel), requests), next: 0 }
    }

    pub fn echo(name: &'static str, channel: Channel, payloads: Vec<Bytes>, answer: u32) -> Self {
        let messages = payloads.into_iter().map(|payload| Message { payload, answer }).collect();
        let client = EchoClient::new(channel).max_decoding_message_size(64 << 20);
        Self { name, call: Call::Echo(client, messages), next: 0 }
    }

    async fn call(&mut self) {
        self.next += 1;
        match &mut self.call {
            Call::Kvtap(client, requests) => {
                let answer = client.r#match(requests[self.next % requests.len()].clone()).await.unwrap();
                assert_eq!(answer.get_ref().matches.len(), 64);
            }
            Call::Unread(client, requests) => {
                client.ready().await.unwrap();
                let request = tonic::Request::new(requests[self.next % requests.len()].clone());
                let path = PathAndQuery::from_static("/kvtap.v1.QueryService/Match");
                let answer: tonic::Response<Bytes> = client.unary(request, path, Unread).await.unwrap();
                // Once in a while it is an answer.
                if self.next.is_multiple_of(64) {
                    assert_eq!(v1::MatchResponse::decode(answer.into_inner()).unwrap().matches.len(), 64);
                }
            }
            Call::Echo(client, messages) => {
                client.echo(messages[self.next % messages.len()].clone()).await.unwrap();
            }
        }
    }

    /// Calls one after the other.
    pub async fn latencies(&mut self, turn: Duration) -> Vec<Duration> {
        for _ in 0..20 {
            self.call().await;
        }
        let (begun, mut times) = (Instant::now(), Vec::new());
        while begun.elapsed() < turn {
            let call = Instant::now();
            self.call().await;
            times.push(call.elapsed());
        }
        times
    }

    /// So many calls at a time; calls a second.
    pub async fn flight(&mut self, many: usize, turn: Duration) -> f64 {
        self.call().await;
        let begun = Instant::now();
        let mut callers = JoinSet::new();
        for n in 0..many {
            let mut caller = self.clone();
            caller.next += n;
            callers.spawn(async move {
                let mut calls = 0u64;
                while begun.elapsed() < turn {
                    caller.call().await;
                    calls += 1;
                }
                calls
            });
        }
        let calls = callers.join_all().await.into_iter().sum::<u64>();
        calls as f64 / begun.elapsed().as_secs_f64()
    }
}

/// So many requests at a time on one stream; requests a second.
pub async fn stream(channel: Channel, requests: &[v1::MatchRequest], many: usize, turn: Duration) -> f64 {
    let (sender, receiver) = mpsc::channel(many);
    let request =
        |id: usize| v1::MatchStreamRequest { id: id as u64, request: Some(requests[id % requests.len()].clone()) };
    for id in 0..many {
        sender.send(request(id)).await.unwrap();
    }
    let mut client = QueryServiceClient::new(channel);
    let mut answers = client.match_stream(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    answers.message().await.unwrap().unwrap();
    let (begun, mut answered) = (Instant::now(), 0);
    while begun.elapsed() < turn {
        sender.send(request(many + answered)).await.unwrap();
        let answer = answers.message().await.unwrap().unwrap();
        assert!(matches!(answer.result, Some(v1::match_stream_response::Result::Response(_))));
        answered += 1;
    }
    answered as f64 / begun.elapsed().as_secs_f64()
}
