//! The query service: request bodies that no client would write, over a real connection.

use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes};
use kvtap::admin::{Fleet, Readiness, RequestMetrics};
use kvtap::block::{Grid, Group, Tier};
use kvtap::feed::status::{Board, Entry};
use kvtap::hash::{EngineHash, Seed};
use kvtap::index::{Block, Copies, Index, Limits, Parent};
use kvtap::proto::v1;
use kvtap::proto::v1::match_request::Prompt;
use kvtap::serve::{Adapter, ListenAddr, Listener, Options};
use kvtap::worker::{Identity, Stamp};
use prost::Message as _;
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

/// The model that two workers serve, on different grids.
pub const MODEL: &str = "model";

/// The tokens that both hold.
pub const TOKENS: [u32; 32] = {
    let mut tokens = [0; 32];
    let mut i = 0;
    while i < tokens.len() {
        tokens[i] = i as u32;
        i += 1;
    }
    tokens
};

/// A server, and a client that sends bodies as they are.
struct Service {
    runtime: Runtime,
    client: Grpc<Channel>,
}

/// A codec that leaves bodies alone.
struct Raw;

thread_local! {
    /// One for each thread that knocks; it lives as long as the thread.
    static SERVICE: Service = Service::start();
}

/// The first byte chooses the call, the rest is the request's body.
pub fn query(bytes: &[u8]) {
    let Some((call, body)) = bytes.split_first() else { return };
    SERVICE.with(|service| {
        let (path, streamed) = match call % 5 {
            0 => ("/kvtap.v1.QueryService/Match", false),
            1 => ("/kvtap.v1.QueryService/MatchStream", true),
            2 => ("/kvtap.v1.QueryService/ListWorkers", false),
            3 => ("/kvtap.v1.QueryService/MatchBatch", false),
            _ => ("/indexer.v1.IndexerService/GetPodScores", false),
        };
        match service.call(path, streamed, Bytes::copy_from_slice(body)) {
            Ok(answers) if call % 5 == 0 => answers.iter().for_each(plausible),
            Ok(_) => {}
            Err(status) => {
                let fair = [Code::InvalidArgument, Code::NotFound];
                assert!(fair.contains(&status.code()), "{:?}: {}", status.code(), status.message());
            }
        }
        let answers = service.call("/kvtap.v1.QueryService/Match", false, good().encode_to_vec().into());
        let answers = answers.expect("a good request after another");
        let answer = v1::MatchResponse::decode(answers.concat().as_slice()).expect("an answer");
        let depths: Vec<_> = answer.matches.iter().map(|found| found.matched_tokens).collect();
        assert_eq!(depths, [32, 32], "a good request after another");
    });
}

/// A request that both workers answer in full.
pub fn good() -> v1::MatchRequest {
    let tokens: Vec<u8> = TOKENS.iter().flat_map(|token| token.to_le_bytes()).collect();
    v1::MatchRequest { model: MODEL.to_owned(), prompt: Some(Prompt::TokensLe(tokens.into())), ..Default::default() }
}

fn plausible(answer: &Bytes) {
    let answer = v1::MatchResponse::decode(answer.clone()).expect("an answer");
    for found in &answer.matches {
        assert!(u64::from(found.matched_blocks) <= found.asked_blocks, "more than was asked for");
        assert!(found.device_blocks <= found.matched_blocks, "more on the device than at all");
        assert!(u64::from(found.matched_blocks) <= found.held_blocks, "more than is held");
    }
}

// === impl Service ===

impl Service {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let client = runtime.block_on(async {
            let fleet = Arc::new(Fleet::new(Index::new(Limits::default()), Arc::new(Board::default())));
            worker(&fleet, "a", 4);
            worker(&fleet, "b", 16);
            let listener = Listener::bind(&"127.0.0.1:0".parse().expect("an address")).expect("a free port");
            let ListenAddr::Tcp(address) = listener.address().expect("an address") else { panic!("not tcp") };
            let (requests, ready) = (RequestMetrics::new(), Readiness::default());
            let options = Options { adapters: vec![Adapter::LlmD], ..Options::default() };
            tokio::spawn(kvtap::serve::run(vec![listener], fleet, requests, ready, options, CancellationToken::new()));
            let endpoint = Channel::from_shared(format!("http://{address}")).expect("an address");
            Grpc::new(endpoint.connect().await.expect("a connection"))
        });
        Self { runtime, client }
    }

    fn call(&self, path: &'static str, streamed: bool, body: Bytes) -> Result<Vec<Bytes>, Status> {
        let mut client = self.client.clone();
        self.runtime.block_on(async move {
            client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
            let path = PathAndQuery::from_static(path);
            if !streamed {
                return Ok(vec![client.unary(Request::new(body), path, Raw).await?.into_inner()]);
            }
            let bodies = tokio_stream::iter([body.clone(), body]);
            let mut answers = client.streaming(Request::new(bodies), path, Raw).await?.into_inner();
            let mut all = Vec::new();
            while let Some(answer) = answers.message().await? {
                all.push(answer);
            }
            Ok(all)
        })
    }
}

/// Registers a worker that holds [`TOKENS`] on blocks of `size`.
fn worker(fleet: &Fleet, name: &str, size: u64) {
    let grid = Grid::new(size).expect("a grid");
    let tokens: Vec<u8> = TOKENS.iter().flat_map(|token| token.to_le_bytes()).collect();
    let run: Vec<Block> = grid
        .plain_contents(&tokens, Seed::PLAIN)
        .into_iter()
        .enumerate()
        .map(|(i, content)| Block { engine: EngineHash::from_u64(i as u64), content })
        .collect();
    let mut writer = fleet.index.register(MODEL, Copies::Count).expect("a rank");
    let mut tx = writer.begin().expect("the rank is there");
    tx.set_grid(grid).expect("the first grid");
    tx.store(Parent::Root(Seed::PLAIN), Tier::Device, Group(0), &run);
    tx.commit(Stamp { epoch: 1, sequence: Some(0) });
    let identity =
        Identity { worker: name.into(), address: "".into(), aliases: [].into(), model: MODEL.into(), rank: 0 };
    fleet.board.insert(Arc::new(Entry::new(writer.rank(), identity, "tcp://127.0.0.1:1".to_owned(), None, "vllm")));
}

// === impl Raw ===

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

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, input: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(input.copy_to_bytes(input.remaining())))
    }
}
