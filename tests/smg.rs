//! `SubscribeKvEvents`: SMG's gateway follows kvtap as it follows an engine.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "support/python.rs"]
mod python;
mod serve_support;

use std::collections::{BTreeMap, BTreeSet};
use std::process::Stdio;

use kvtap::block::{Grid, Group, Tier};
use kvtap::feed::status::State;
use kvtap::hash::{ContentHash, EngineHash, Seed};
use kvtap::index::{Change, What};
use kvtap::proto::smg::kv_cache_event::Data;
use kvtap::proto::smg::{KvCacheEvent, KvEventBatch, SubscribeKvEventsRequest};
use kvtap::proto::vllm::vllm_engine_client::VllmEngineClient;
use kvtap::serve::{Adapter, Options, WatchLimits};
use kvtap::worker::Stamp;
use serde_json::{Value, json};
use serve_support::{PATIENCE, Server, Worker, contents, eventually, le};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;
use tonic::{Code, Request, Status, Streaming};

/// What the gateway knows of a worker: for each block's name its parent and its content, and on which levels it lies.
#[derive(Debug, Default)]
struct Gateway {
    blocks: BTreeMap<i64, (Option<i64>, u64)>,
    copies: BTreeMap<(i64, i32), u32>,
    sequence: u64,
}

impl Gateway {
    /// Applies a batch as the gateway does: by its number, a block's content from its tokens, one copy a store.
    fn apply(&mut self, batch: &KvEventBatch) {
        match &batch.snapshot {
            // Everything that is held: what was known before is worth nothing, the number included.
            Some(chunk) if chunk.index == 0 => {}
            _ => assert_eq!(batch.sequence_number, self.sequence + 1, "a gap"),
        }
        self.sequence = batch.sequence_number;
        for event in &batch.events {
            match event.data.as_ref().unwrap() {
                Data::Cleared(_) => (self.blocks, self.copies) = Default::default(),
                Data::Removed(removed) => {
                    for name in &removed.block_hashes {
                        let copies = self.copies.get_mut(&(*name, removed.cache_level.unwrap_or(0))).unwrap();
                        *copies -= 1;
                    }
                    self.copies.retain(|_, copies| *copies > 0);
                }
                Data::Stored(stored) => {
                    let mut parent = stored.parent_block_hash;
                    assert!(
                        parent.is_none_or(|parent| self.is_held(parent)),
                        "a parent that the gateway does not hold"
                    );
                    for block in &stored.blocks {
                        let content = ContentHash::of_tokens(&le(&block.token_ids), Seed::PLAIN).0;
                        self.blocks.insert(block.block_hash, (parent, content));
                        *self.copies.entry((block.block_hash, block.cache_level.unwrap_or(0))).or_default() += 1;
                        parent = Some(block.block_hash);
                    }
                }
            }
        }
    }

    fn is_held(&self, name: i64) -> bool {
        (0..4).any(|level| self.copies.contains_key(&(name, level)))
    }

    /// Leading blocks of a prompt that are held.
    fn matched(&self, chain: &[ContentHash]) -> usize {
        let mut parent = None;
        for (depth, content) in chain.iter().enumerate() {
            let is_next =
                |(name, at): &(&i64, &(Option<i64>, u64))| **at == (parent, content.0) && self.is_held(**name);
            let Some((name, _)) = self.blocks.iter().find(is_next) else { return depth };
            parent = Some(*name);
        }
        chain.len()
    }

    /// Every block with every level on which it lies once.
    fn held(&self) -> BTreeSet<(u64, i32)> {
        assert!(self.copies.values().all(|copies| *copies == 1), "told twice");
        self.copies.keys().map(|(name, level)| (name.cast_unsigned(), *level)).collect()
    }
}

/// What some ranks hold together, by the index's own account.
fn held(server: &Server, workers: &[Worker]) -> BTreeSet<(u64, i32)> {
    let mut held = BTreeSet::new();
    for worker in workers {
        for change in server.fleet.index.snapshot(worker.entry.rank).unwrap().changes {
            if let Change::Run(run) = change
                && let What::Stored(tier) = run.what
            {
                held.extend(run.prefixes().map(|prefix| (prefix.0, (tier.index() as i32).min(3))));
            }
        }
    }
    held
}

async fn start() -> Server {
    start_with(WatchLimits::default()).await
}

async fn start_with(watch: WatchLimits) -> Server {
    let options = Options { adapters: vec![Adapter::Smg], watch, ..Options::default() };
    Server::start_with(options, Vec::new()).await
}

async fn subscribe(server: &Server, after: u64, worker: &str) -> Result<Streaming<KvEventBatch>, Status> {
    let mut request = Request::new(SubscribeKvEventsRequest { start_sequence_number: after });
    if !worker.is_empty() {
        request.metadata_mut().insert("kvtap-worker", worker.parse().unwrap());
    }
    Ok(VllmEngineClient::new(server.channel().await).subscribe_kv_events(request).await?.into_inner())
}

async fn next(stream: &mut Streaming<KvEventBatch>) -> Result<KvEventBatch, Status> {
    timeout(PATIENCE, stream.message()).await.unwrap().map(Option::unwrap)
}

fn grid() -> Grid {
    Grid::new(4).unwrap()
}

fn tokens(blocks: u32) -> Vec<u32> {
    (0..blocks * 4).collect()
}

fn chain(blocks: u32, seed: Seed) -> Vec<ContentHash> {
    contents(grid(), &tokens(blocks), seed)
}

/// As [`Worker::store`] names them.
fn names(chain: &[ContentHash]) -> Vec<EngineHash> {
    let name = |(i, content): (usize, &ContentHash)| content.0.wrapping_mul(31).wrapping_add(i as u64);
    chain.iter().enumerate().map(name).map(EngineHash::from_u64).collect()
}

fn remove(worker: &mut Worker, tier: Tier, chain: &[ContentHash], from: usize, to: usize) {
    let mut tx = worker.writer.begin().unwrap();
    tx.remove(tier, Group(0), &names(chain)[from..to]);
    tx.commit(Stamp { epoch: 1, sequence: Some(1) });
}

/// SMG's side in Python.
struct Peer {
    lines: Lines<BufReader<ChildStdout>>,
    _process: Child,
}

impl Peer {
    fn start(server: &Server, arguments: &[&str]) -> Self {
        let mut process = Command::new(python::interpreter())
            .arg(python::script("smg_gateway.py"))
            .args(["--server", &server.address.to_string()])
            .args(arguments)
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { lines, _process: process }
    }

    async fn line(&mut self) -> Value {
        let line = timeout(PATIENCE, self.lines.next_line()).await.unwrap().unwrap().unwrap();
        serde_json::from_str(&line).unwrap()
    }
}

#[tokio::test]
async fn the_gateway_reads_with_its_own_message_definitions_what_an_engine_would_have_told() {
    let server = start().await;
    let mut worker = server.worker("m", "pod-a", 0);
    worker.store(grid(), &tokens(2), Seed::PLAIN);
    for engine in ["vllm", "sglang", "trtllm", "tokenspeed"] {
        let mut gateway = Peer::start(&server, &["--engine", engine]);
        let first = gateway.line().await;
        assert_eq!(first["snapshot"], json!([0, 1, 2, 0]), "{engine}: {first}");
        let begun = first["sequence"].as_u64().unwrap();
        assert_eq!(first["events"][0], json!({ "cleared": true }));
        let stored = &first["events"][1];
        assert_eq!(stored["parent"], Value::Null);
        let blocks = stored["stored"].as_array().unwrap();
        for (block, content) in blocks.iter().zip(chain(2, Seed::PLAIN)) {
            let words: Vec<u32> = serde_json::from_value(block[1].clone()).unwrap();
            assert_eq!(ContentHash::of_tokens(&le(&words), Seed::PLAIN), content);
            assert_eq!((&block[2], &block[3]), (&json!(4), &Value::Null));
        }
        worker.store_on(Tier::Host, grid(), &chain(3, Seed::PLAIN), Seed::PLAIN);
        let more = gateway.line().await;
        assert_eq!((&more["sequence"], &more["events"][0]["stored"][2][3]), (&json!(begun + 1), &json!(1)), "{more}");
        remove(&mut worker, Tier::Host, &chain(3, Seed::PLAIN), 0, 3);
        let less = gateway.line().await;
        assert_eq!((&less["events"][0]["level"], &less["sequence"]), (&json!(1), &json!(begun + 2)), "{less}");
        assert_eq!(less["events"][0]["removed"].as_array().unwrap().len(), 3);
    }
    let mut late = Peer::start(&server, &["--engine", "vllm", "--after", "2"]);
    assert_eq!(late.line().await, json!({ "ended": "OUT_OF_RANGE" }));
    server.stop().await;
}

#[tokio::test]
async fn the_gateway_goes_on_where_its_connection_broke() {
    let server = start().await;
    let mut worker = server.worker("m", "pod-a", 0);
    worker.store(grid(), &tokens(2), Seed::PLAIN);
    let mut gateway = Peer::start(&server, &["--engine", "vllm"]);
    let begun = gateway.line().await["sequence"].as_u64().unwrap();
    drop(gateway);
    worker.store(grid(), &[7, 7, 7, 7], Seed::PLAIN);
    let after = begun.to_string();
    let mut again = Peer::start(&server, &["--engine", "vllm", "--after", &after]);
    let more = again.line().await;
    assert_eq!((&more["sequence"], &more["snapshot"]), (&json!(begun + 1), &Value::Null), "{more}");
    let stored = more["events"][0]["stored"].as_array().unwrap();
    assert_eq!((stored.len(), more["events"].as_array().unwrap().len()), (1, 1), "{more}");
}

#[tokio::test]
async fn a_stream_goes_on_with_what_did_not_arrive_and_the_one_before_it_ends() {
    let server = start().await;
    let mut worker = server.worker("m", "pod-a", 0);
    let _other = server.worker("m", "pod-b", 0);
    worker.store(grid(), &tokens(2), Seed::PLAIN);
    let mut first = subscribe(&server, 0, "pod-a").await.unwrap();
    let mut gateway = Gateway::default();
    gateway.apply(&next(&mut first).await.unwrap());
    // Three batches were sent, and the gateway has seen one of them.
    let lost: Vec<KvEventBatch> = async {
        let mut lost = Vec::new();
        for word in [70, 71, 72] {
            worker.store(grid(), &[word; 4], Seed::PLAIN);
            lost.push(next(&mut first).await.unwrap());
        }
        lost
    }
    .await;
    gateway.apply(&lost[0]);
    // Its connection is dead, and kvtap does not know it yet.
    let mut second = subscribe(&server, gateway.sequence, "pod-a").await.unwrap();
    for batch in &lost[1..] {
        let again = next(&mut second).await.unwrap();
        assert_eq!(again, *batch);
        gateway.apply(&again);
    }
    worker.store(grid(), &[73; 4], Seed::PLAIN);
    gateway.apply(&next(&mut second).await.unwrap());
    assert_eq!(gateway.held(), held(&server, &[worker]));
    assert_eq!(next(&mut first).await.unwrap_err().code(), Code::Aborted);
    // Numbers are of one worker, and those that were never sent are of nobody.
    for (after, worker) in [(gateway.sequence, "pod-b"), (gateway.sequence + 1, "pod-a")] {
        assert_eq!(subscribe(&server, after, worker).await.unwrap_err().code(), Code::OutOfRange, "{worker}");
    }
}

#[tokio::test]
async fn whatever_happens_between_two_streams_is_told_once() {
    let server = start().await;
    let mut worker = server.worker("m", "pod-a", 0);
    let mut random = fastrand::Rng::with_seed(11);
    let mut gateway = Gateway::default();
    let mut stream = subscribe(&server, 0, "").await.unwrap();
    gateway.apply(&next(&mut stream).await.unwrap());
    for round in 0..40 {
        let chain = chain(random.u32(2..12), Seed::PLAIN);
        let before = random.bool();
        if before {
            drop(stream);
            stream = subscribe(&server, gateway.sequence, "").await.unwrap();
        }
        match random.u32(..4) {
            0 => remove(&mut worker, Tier::Device, &chain, 1, chain.len()),
            _ => worker.store_on(Tier::Device, grid(), &chain, Seed::PLAIN),
        }
        worker.store_on(Tier::Device, grid(), &contents(grid(), &[900 + round; 4], Seed::PLAIN), Seed::PLAIN);
        if !before {
            drop(stream);
            stream = subscribe(&server, gateway.sequence, "").await.unwrap();
        }
        let last = contents(grid(), &[900 + round; 4], Seed::PLAIN);
        while gateway.matched(&last) == 0 {
            gateway.apply(&next(&mut stream).await.unwrap());
        }
    }
    assert_eq!(gateway.held(), held(&server, &[worker]));
}

#[tokio::test]
async fn lora_names_and_salts_are_in_what_stands_for_the_tokens() {
    let server = start().await;
    let mut worker = server.worker("m", "pod-a", 0);
    let seed = Seed::new(Some("adapter"), Some("salt"));
    worker.store(grid(), &tokens(3), seed);
    let mut gateway = Gateway::default();
    gateway.apply(&next(&mut subscribe(&server, 0, "").await.unwrap()).await.unwrap());
    assert_eq!(gateway.matched(&chain(5, seed)), 3);
    assert_eq!(gateway.matched(&chain(5, Seed::PLAIN)), 0);
}

#[tokio::test]
async fn the_gateway_holds_what_the_ranks_hold_together_whatever_they_do() {
    let server = start().await;
    let mut workers = [server.worker("m", "pod-a", 0), server.worker("m", "pod-a", 1)];
    let _other = server.worker("m", "pod-b", 0);
    workers[0].store(grid(), &tokens(9), Seed::PLAIN);
    let mut stream = subscribe(&server, 0, "pod-a").await.unwrap();
    let mut gateway = Gateway::default();
    let mut random = fastrand::Rng::with_seed(7);
    let tiers = [Tier::Device, Tier::Host, Tier::Disk, Tier::External];
    for round in 0..400 {
        let worker = &mut workers[random.usize(..2)];
        let seed = Seed::new(None, Some(["a", "b", "c"][random.usize(..3)]));
        let chain = chain(random.u32(1..12), seed);
        match random.u32(..20) {
            0 => {
                let mut tx = worker.writer.begin().unwrap();
                tx.clear();
                tx.commit(Stamp { epoch: 1, sequence: Some(round) });
            }
            1..=8 => {
                let from = random.usize(..chain.len());
                remove(worker, tiers[random.usize(..4)], &chain, from, random.usize(from..chain.len()) + 1);
            }
            _ => worker.store_on(tiers[random.usize(..4)], grid(), &chain, seed),
        }
    }
    // Each rank's own last block is heard after all else of that rank; what its snapshot has is not told again.
    let last = [[9; 4], [8; 4]].map(|tokens| contents(grid(), &tokens, Seed::PLAIN));
    for (worker, last) in workers.iter_mut().zip(&last) {
        worker.store_on(Tier::Device, grid(), last, Seed::PLAIN);
    }
    while last.iter().any(|last| gateway.matched(last) == 0) {
        gateway.apply(&next(&mut stream).await.unwrap());
    }
    assert_eq!(gateway.held(), held(&server, &workers));
    assert!(gateway.held().len() > 10, "something is left");
    // Whoever comes now is told the same at once.
    let (mut late, mut begun) = (subscribe(&server, 0, "pod-a").await.unwrap(), Gateway::default());
    begun.apply(&next(&mut late).await.unwrap());
    assert_eq!(begun.held(), gateway.held());
}

#[tokio::test]
async fn a_beginning_says_how_many_parts_it_has_and_whether_all_is_known() {
    let server = start().await;
    let mut worker = server.worker("m", "pod-a", 0);
    worker.store(grid(), &tokens(10_000), Seed::PLAIN);
    worker.entry.status().state = State::Incomplete;
    worker.entry.status().missed = 3;
    let mut stream = subscribe(&server, 0, "").await.unwrap();
    let mut gateway = Gateway::default();
    for index in 0..3 {
        let batch = next(&mut stream).await.unwrap();
        let chunk = batch.snapshot.unwrap();
        assert_eq!((chunk.index, chunk.count, chunk.blocks, chunk.unknown_before), (index, 3, 10_000, 3));
        assert!(batch.events.iter().all(|event| event.event_id == 0));
        gateway.apply(&batch);
    }
    assert_eq!(gateway.held().len(), 10_000);
    worker.store(grid(), &[7, 7, 7, 7], Seed::PLAIN);
    let batch = next(&mut stream).await.unwrap();
    assert_eq!((batch.snapshot, batch.events[0].event_id), (None, 1));
}

#[tokio::test]
async fn a_worker_that_goes_is_cleared_and_told_again_when_it_comes_back() {
    let server = start().await;
    let mut worker = server.worker("m", "pod-a", 0);
    worker.store(grid(), &tokens(3), Seed::PLAIN);
    let mut stream = subscribe(&server, 0, "").await.unwrap();
    next(&mut stream).await.unwrap();
    server.fleet.board.remove(worker.entry.rank);
    server.fleet.index.remove(worker.entry.rank);
    let gone = next(&mut stream).await.unwrap();
    assert!(matches!(&*gone.events, [KvCacheEvent { data: Some(Data::Cleared(_)), .. }]), "{gone:?}");
    let mut again = server.worker("m", "pod-a", 0);
    again.store(grid(), &tokens(2), Seed::PLAIN);
    let mut gateway = Gateway { sequence: gone.sequence_number, ..Gateway::default() };
    while gateway.held().len() < 2 {
        gateway.apply(&next(&mut stream).await.unwrap());
    }
    assert_eq!(gateway.matched(&chain(3, Seed::PLAIN)), 2);
}

#[tokio::test]
async fn which_worker_is_meant_is_said_or_plain_and_never_guessed() {
    let server = start().await;
    let refused = subscribe(&server, 0, "").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    let mut a = server.named_worker("m", "pod-a", 0, "10.0.0.1:8000", &[]);
    a.store(grid(), &tokens(1), Seed::PLAIN);
    subscribe(&server, 0, "").await.unwrap();
    let dialled = server.address.to_string();
    let mut b = server.named_worker("m", "pod-b", 0, &dialled, &[]);
    b.store(grid(), &tokens(2), Seed::PLAIN);
    let blocks = async |worker: &str| {
        let mut stream = subscribe(&server, 0, worker).await?;
        Ok::<_, Status>(next(&mut stream).await?.snapshot.unwrap().blocks)
    };
    assert_eq!(blocks("10.0.0.1:8000").await.unwrap(), 1);
    assert_eq!(blocks("").await.unwrap(), 2, "the host that was dialled is a name of it");
    assert_eq!(blocks("nobody").await.unwrap_err().code(), Code::NotFound);
    server.fleet.board.remove(b.entry.rank);
    let _c = server.worker("m", "pod-c", 0);
    let refused = blocks("").await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().starts_with("kvtap-worker: required"), "{refused:?}");
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_is_cut_and_begins_anew() {
    let server = start_with(WatchLimits { history_bytes: 64 << 10, ..WatchLimits::default() }).await;
    let mut worker = server.worker("m", "pod-a", 0);
    let mut stream = subscribe(&server, 0, "").await.unwrap();
    let mut gateway = Gateway::default();
    gateway.apply(&next(&mut stream).await.unwrap());
    // More than the sockets, the windows and the history hold together.
    let long = chain(2_000, Seed::PLAIN);
    for _ in 0..400 {
        worker.store(grid(), &tokens(2_000), Seed::PLAIN);
        remove(&mut worker, Tier::Device, &long, 2, 2_000);
    }
    let ended = loop {
        match next(&mut stream).await {
            Ok(batch) => gateway.apply(&batch),
            Err(status) => break status,
        }
    };
    assert_eq!((ended.code(), ended.message().contains("too far behind")), (Code::Aborted, true), "{ended:?}");
    assert_eq!(subscribe(&server, gateway.sequence, "").await.unwrap_err().code(), Code::OutOfRange);
    let mut anew = Gateway::default();
    anew.apply(&next(&mut subscribe(&server, 0, "").await.unwrap()).await.unwrap());
    assert_eq!(anew.held(), held(&server, &[worker]));
}

#[tokio::test]
async fn it_is_off_unless_it_is_switched_on_and_takes_a_place_among_the_watchers() {
    let plain = Server::start().await;
    assert_eq!(subscribe(&plain, 0, "").await.unwrap_err().code(), Code::Unimplemented);
    let server = start_with(WatchLimits { watchers: 1, ..WatchLimits::default() }).await;
    let _worker = server.worker("m", "pod-a", 0);
    let first = subscribe(&server, 0, "").await.unwrap();
    let refused = subscribe(&server, 0, "").await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().starts_with("grpc.watch.watchers"), "{refused:?}");
    drop(first);
    let metrics = || kvtap::admin::Metrics::new(&server.fleet, &server.requests).encode().unwrap();
    eventually("the place is free", || metrics().contains("kvtap_watchers 0\n")).await;
    subscribe(&server, 0, "").await.unwrap();
    let told = metrics();
    for line in [
        "kvtap_grpc_requests_total{rpc=\"SubscribeKvEvents\",code=\"ok\"} 2\n",
        "kvtap_grpc_requests_total{rpc=\"SubscribeKvEvents\",code=\"resource_exhausted\"} 1\n",
    ] {
        assert!(told.contains(line), "{told}");
    }
}
