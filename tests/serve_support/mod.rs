//! A real server on a real socket, over an index that the test fills.

#![allow(dead_code, reason = "each test binary uses its own part of this")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kvtap::admin::{Fleet, Readiness, RequestMetrics};
use kvtap::block::{Grid, Group, Tier};
use kvtap::feed::status::{Board, Entry, State};
use kvtap::hash::{EngineHash, Seed};
use kvtap::index::{Block, Copies, Index, Limits, Parent, RankWriter};
use kvtap::proto::v1;
use kvtap::proto::v1::match_request::Prompt;
use kvtap::proto::v1::query_service_client::QueryServiceClient;
use kvtap::serve::{ListenAddr, Listener, Options, ServeError};
use kvtap::worker::{Identity, Stamp};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

/// How long a condition may take to come true before a test fails.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A running server.
pub struct Server {
    pub fleet: Arc<Fleet>,
    pub readiness: Readiness,
    pub requests: RequestMetrics,
    pub shutdown: CancellationToken,
    pub address: SocketAddr,
    pub task: JoinHandle<Result<(), ServeError>>,
}

/// One rank that a test stores blocks for.
pub struct Worker {
    pub writer: RankWriter,
    pub entry: Arc<Entry>,
    sequence: u64,
}

impl Server {
    /// A server on a free port of the loopback.
    pub async fn start() -> Self {
        Self::start_with(Options::default(), Vec::new()).await
    }

    /// A server with `options`, on a free port of the loopback and on `more`.
    pub async fn start_with(options: Options, more: Vec<Listener>) -> Self {
        let fleet = Arc::new(Fleet::new(Index::new(Limits::default()), Arc::new(Board::default())));
        let readiness = Readiness::default();
        let requests = RequestMetrics::new();
        let shutdown = CancellationToken::new();
        let tcp = Listener::bind(&"127.0.0.1:0".parse().unwrap()).unwrap();
        let ListenAddr::Tcp(address) = tcp.address().unwrap() else { panic!("a tcp listener has a tcp address") };
        let listeners = std::iter::once(tcp).chain(more).collect();
        let task = tokio::spawn(kvtap::serve::run(
            listeners,
            Arc::clone(&fleet),
            requests.clone(),
            readiness.clone(),
            options,
            shutdown.clone(),
        ));
        Self { fleet, readiness, requests, shutdown, address, task }
    }

    /// A channel to it.
    pub async fn channel(&self) -> Channel {
        Channel::from_shared(format!("http://{}", self.address)).unwrap().connect().await.unwrap()
    }

    /// A client of it.
    pub async fn client(&self) -> QueryServiceClient<Channel> {
        QueryServiceClient::new(self.channel().await).max_decoding_message_size(64 << 20)
    }

    /// Registers a live rank.
    pub fn worker(&self, model: &str, worker: &str, rank: u32) -> Worker {
        self.named_worker(model, worker, rank, "", &[])
    }

    /// Registers a live rank that has more names.
    pub fn named_worker(&self, model: &str, worker: &str, rank: u32, address: &str, aliases: &[&str]) -> Worker {
        let writer = self.fleet.index.register(model, Copies::Count).unwrap();
        let identity = Identity {
            worker: worker.into(),
            address: address.into(),
            aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
            model: model.into(),
            rank,
        };
        let entry = Entry::new(writer.rank(), identity, "tcp://127.0.0.1:5557".to_owned(), None, "vllm");
        let entry = Arc::new(entry);
        {
            let mut status = entry.status();
            status.state = State::Live;
            status.why = "every message has been applied".to_owned();
            status.epoch = 1;
            status.last_heard = Some(std::time::Instant::now());
        }
        self.fleet.board.insert(Arc::clone(&entry));
        Worker { writer, entry, sequence: 0 }
    }

    /// Ends it and waits for that.
    pub async fn stop(self) {
        self.shutdown.cancel();
        tokio::time::timeout(PATIENCE, self.task).await.unwrap().unwrap().unwrap();
    }
}

impl Worker {
    /// Stores the blocks of a whole prompt on the device.
    pub fn store(&mut self, grid: Grid, tokens: &[u32], seed: Seed) {
        self.store_on(Tier::Device, grid, &contents(grid, tokens, seed), seed);
    }

    /// Stores blocks of these contents on a tier.
    pub fn store_on(&mut self, tier: Tier, grid: Grid, contents: &[kvtap::hash::ContentHash], seed: Seed) {
        let run: Vec<_> = contents
            .iter()
            .enumerate()
            .map(|(i, content)| Block {
                // An engine's names are chained: they say where a block stands as well as what it holds.
                engine: EngineHash::from_u64(content.0.wrapping_mul(31).wrapping_add(i as u64)),
                content: *content,
            })
            .collect();
        let stamp = Stamp { epoch: 1, sequence: Some(self.sequence) };
        let mut tx = self.writer.begin().unwrap();
        tx.set_grid(grid).unwrap();
        tx.store(Parent::Root(seed), tier, Group(0), &run);
        tx.commit(stamp);
        self.entry.status().last_sequence = Some(self.sequence);
        self.sequence += 1;
    }
}

/// The content hashes of a prompt.
pub fn contents(grid: Grid, tokens: &[u32], seed: Seed) -> Vec<kvtap::hash::ContentHash> {
    grid.plain_contents(&le(tokens), seed)
}

/// Token ids as raw bytes.
pub fn le(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

/// A request by raw tokens.
pub fn by_tokens(model: &str, tokens: &[u32]) -> v1::MatchRequest {
    request(model, Prompt::TokensLe(le(tokens).into()))
}

/// A request for a prompt in any form.
pub fn request(model: &str, prompt: Prompt) -> v1::MatchRequest {
    v1::MatchRequest { model: model.to_owned(), prompt: Some(prompt), ..Default::default() }
}

/// `(worker, rank, matched blocks)` of an answer, in its order.
pub fn depths(response: &v1::MatchResponse) -> Vec<(&str, u32, u32)> {
    let depth = |held: &v1::RankMatch| held.matched_blocks;
    response
        .matches
        .iter()
        .map(|held| {
            let who = held.worker_rank.as_ref().unwrap();
            (who.worker.as_str(), who.rank, depth(held))
        })
        .collect()
}

/// Waits until `condition` holds.
pub async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !condition() {
        assert!(tokio::time::Instant::now() < deadline, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
