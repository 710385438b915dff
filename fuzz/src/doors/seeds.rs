//! What real peers send: the captured fixtures, in the form that each door takes.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvtap::feed::zmtp::{Greeting, SocketType, message, ping, pong, ready, subscribe};
use kvtap::index::{Copies, Heard, Index, Limits, Listener, TapBounds};
use kvtap::normalize::{Normalizer, Options};
use kvtap::proto::indexer::GetPodScoresRequest;
use kvtap::proto::v1;
use kvtap::proto::v1::event::Event;
use kvtap::proto::v1::match_request::Prompt;
use kvtap::proto::v1::watch_response::What;
use kvtap::relay::message::Batch;
use kvtap::replica::encode;
use kvtap::wire::{self, Dialect};
use kvtap::worker::Stamp;
use serde_json::Value;

use super::relay::{ANNOUNCEMENT, BATCH, COMPRESSED, LIFE, PIECE, WATCHED, key};
use super::{join, query as service, snapshot as file};

/// The longest seed: a fuzzer works on small inputs, and the captures hold large ones only for their size.
const LONGEST: usize = 4096;

/// The payloads of captured batches, and of the captured and composed malformed ones.
pub fn batches() -> Vec<Vec<u8>> {
    short(messages().into_iter().filter_map(|frames| frames.last().cloned()))
}

/// TensorRT-LLM's JSON, and the batches of its publishers.
pub fn trtllm() -> Vec<Vec<u8>> {
    let json =
        lines("trtllm-json").into_iter().filter_map(|line| Some(line["json_text"].as_str()?.as_bytes().to_vec()));
    let batches = ["trtllm-native-zmq-main", "trtllm-dynamo-zmq-1.6.1"].into_iter().flat_map(lines);
    short(json.chain(batches.filter_map(|line| frames_of(&line["frames_hex"])?.pop())))
}

/// Router events with and without an envelope.
pub fn dynamo() -> Vec<Vec<u8>> {
    let lines: Vec<_> = ["nats-dynamo-1.6.1", "nats-dynamo-legacy"].into_iter().flat_map(lines).collect();
    let keys = ["payload_hex", "inner_payload_hex"];
    short(keys.into_iter().flat_map(|key| lines.iter().filter_map(move |line| hex(line[key].as_str()?))))
}

/// Live messages, replies of replays, and Dynamo's plane.
pub fn frames() -> Vec<Vec<u8>> {
    let planes =
        lines("nats-dynamo-1.6.1").into_iter().filter_map(|line| frames_of(&line["zmq_event_plane_frames_hex"]));
    let replies = fixtures("replay-").into_iter().flat_map(|name| lines(&name)).flat_map(|line| {
        let replies = line["response_frames_hex"].as_array().cloned().unwrap_or_default();
        replies.iter().filter_map(frames_of).collect::<Vec<_>>()
    });
    short(messages().into_iter().chain(replies).chain(planes).map(|frames| join(&frames)))
}

/// Both halves of a connection, as this program writes them, with captured messages inside.
pub fn zmtp() -> Vec<Vec<u8>> {
    let mut halves = Vec::new();
    for (step, frames) in messages().into_iter().enumerate() {
        let mut half = bytes::BytesMut::from(&[step as u8][..]);
        half.extend_from_slice(&Greeting::ours());
        ready(&mut half, [SocketType::Pub, SocketType::Router][step % 2]);
        subscribe(&mut half, b"kv", (step % 3) as u8);
        ping(&mut half);
        pong(&mut half, b"context");
        message(&mut half, &frames.iter().map(Vec::as_slice).collect::<Vec<_>>());
        halves.push(half.to_vec());
    }
    short(halves)
}

/// The examples of the reference, and files with everything in them.
pub fn config() -> Vec<Vec<u8>> {
    let reference = fs::read_to_string(root().join("docs/config.md")).expect("docs/config.md");
    let examples = reference.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next());
    let mut seeds: Vec<Vec<u8>> = examples.map(|example| example.as_bytes().to_vec()).collect();
    for (file, variables) in CONFIGS {
        seeds.push(format!("{file}\0{variables}").into_bytes());
    }
    seeds
}

const CONFIGS: [(&str, &str); 3] = [
    (
        "grpc: { listen: [\"127.0.0.1:9400\", \"[::]:9400\", \"unix:///run/k.sock\"], max_message_bytes: 16MiB, reflection: false, drain_grace: 5s }\nadmin: { listen: \"127.0.0.1:9401\" }\nlog: { level: debug, format: json }\nlimits: { blocks_per_rank: 5, blocks_in_all: 50 }\ndefaults: { disconnect_grace: 1m, queue_messages: 7, replay_timeout: 2s }\nfeeds:\n  - worker: w\n    address: \"${IP}:8000\"\n    names: [\"a\", \"${NO:-b}\", \"$${c}\"]\n    model: m\n    engine: sglang\n    endpoint: tcp://127.0.0.1:5557\n    replay: tcp://127.0.0.1:6557\n    ranks: 3\n    block_size: 16\n    copies: set\n    topic: t\n",
        "IP=10.0.0.1\nKVTAP_LOG_LEVEL=warn\nKVTAP_GRPC_LISTEN=0.0.0.0:1, unix:///tmp/s\n",
    ),
    (
        "feeds:\n  - &a\n    worker: w\n    model: m\n    endpoint: ipc:///run/e\n  - <<: *a\n    worker: v\n    endpoint: tcp://*:6000\n    bind: true\n    engine: trtllm\n",
        "KVTAP_SERVICE_HOST=10.0.0.1\nKVTAP_PORT_9400_TCP_PROTO=tcp\nKVTAP_LIMITS_BLOCKS_PER_RANK=9\n",
    ),
    (
        "feeds: [{worker: w, enpoint: 7, ranks: 0, ranks: 1}, 7, []]\nlog: { level: loud }\ngrpc: 3\n",
        "KVTAP_GRPC_LISTN=x\n",
    ),
];

/// Requests in every form, by each call.
pub fn query() -> Vec<Vec<u8>> {
    let prompts = [
        Prompt::Tokens(v1::TokenList { ids: service::TOKENS.to_vec() }),
        Prompt::ContentHashes(v1::HashList { hashes: vec![1, u64::MAX, 3] }),
        Prompt::PrefixHashes(v1::HashList { hashes: vec![4, 5] }),
        Prompt::ContentHashesLe(vec![7; 32].into()),
        Prompt::PrefixHashesLe(vec![7; 16].into()),
        Prompt::TokensLe(vec![1; 31].into()),
    ];
    let mut requests = vec![service::good(), v1::MatchRequest::default()];
    for prompt in prompts {
        requests.push(v1::MatchRequest { prompt: Some(prompt), block_size: 4, ..service::good() });
    }
    requests.push(v1::MatchRequest {
        lora_name: "adapter".to_owned(),
        cache_salt: "salt".to_owned(),
        extra_keys: vec![b"key".to_vec().into(), Default::default()],
        block_size: 16,
        workers: vec!["a".to_owned(), "nobody".to_owned()],
        ranks: vec![0, 7],
        top_k: 1,
        min_blocks: 2,
        states: vec![3],
        ..service::good()
    });
    let list = v1::ListWorkersRequest { model: service::MODEL.to_owned(), workers: vec!["b".to_owned()] };
    let batch = v1::MatchBatchRequest { requests: requests.clone() };
    let scores = GetPodScoresRequest {
        prompt: "0, 1, 2, 3".to_owned(),
        model_name: service::MODEL.to_owned(),
        pod_identifiers: vec!["a".to_owned(), "nobody".to_owned()],
    };
    let mut seeds = vec![call(2, &list), call(3, &batch), call(4, &scores)];
    for request in requests {
        seeds.push(call(0, &request));
        seeds.push(call(1, &v1::MatchStreamRequest { id: 7, request: Some(request) }));
    }
    seeds
}

/// Runs of messages: of each engine in the order they were captured, a few at a time.
pub fn pipeline() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (how, payloads) in lives() {
        for (i, run) in payloads.chunks(RUN).enumerate() {
            // Every fourth run each with counted copies, with a set, and with a promised block size.
            let options = [0, 0x10, 0x20, 0][i % 4];
            seeds.push([&[how | options][..], &join(run)].concat());
        }
    }
    seeds
}

/// What an owner tells of such runs: a snapshot, a batch for each message, an announcement; the same as a `Watch` tells it.
pub fn relay() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (how, payloads) in lives() {
        for (i, run) in payloads.chunks(RUN).enumerate() {
            let mut owner = Owner::new();
            let half = run.len() / 2;
            run[..half].iter().for_each(|payload| owner.apply(how, payload));
            let mut told = if i % 2 == 0 { owner.snapshot() } else { owner.watch() };
            for payload in &run[half..] {
                owner.apply(how, payload);
                told.extend(if i % 2 == 0 { owner.batch() } else { owner.watched() });
            }
            told.push(owner.announcement());
            seeds.push(join(&told));
        }
    }
    seeds.sort_unstable();
    seeds.dedup();
    short(seeds)
}

/// Files of what such runs come to.
pub fn snapshot() -> Vec<Vec<u8>> {
    let mut seeds = vec![kvtap::snapshot::encode(&file::owner(), 3, None, |_| {})];
    for (how, payloads) in lives() {
        for run in payloads.chunks(RUN) {
            let mut owner = Owner::new();
            run.iter().for_each(|payload| owner.apply(how, payload));
            if let Some(memory) = owner.normalizer.memory() {
                let bytes = file::file(&owner.index, &owner.normalizer, 2, vec![(3, 4), (9, 11)], memory);
                seeds.push(file::rest(&bytes));
            }
        }
    }
    seeds.sort_unstable();
    seeds.dedup();
    short(seeds)
}

/// Messages of a run.
const RUN: usize = 12;

/// Two blocks of the same four tokens, of an engine that does not chain its hashes: so they have one name.
const SAME_NAME_TWICE: &[u8] =
    b"\x92\x01\x91\x97\xabBlockStored\x92\x2a\x2a\xc0\x98\x01\x02\x03\x04\x01\x02\x03\x04\x04\xc0\xc0";

/// What each engine has sent, and how it is to be decoded: 0 any dialect, 1 vLLM's, 2 router events.
fn lives() -> Vec<(u8, Vec<Vec<u8>>)> {
    let engines = ["vllm-", "sglang-", "trtllm-native", "trtllm-dynamo"].into_iter().flat_map(fixtures);
    let mut lives: Vec<(u8, Vec<Vec<u8>>)> = Vec::new();
    for engine in engines {
        let payloads = lines(&engine).into_iter().filter_map(|line| frames_of(&line["frames_hex"])?.pop());
        lives.push((0, short(payloads)));
    }
    lives.push((0, trtllm()));
    lives.push((2, dynamo()));
    let replays = fixtures("replay-").into_iter().filter_map(|name| {
        let live = lines(&name).into_iter().find_map(|line| line["live_frames_hex"].as_array().cloned())?;
        Some((1, live.iter().filter_map(|frames| frames_of(frames)?.pop()).collect()))
    });
    lives.extend(replays);
    lives.push((1, vec![SAME_NAME_TWICE.to_vec()]));
    lives
}

/// Who taps the rank that the seeds tell of.
struct Owner {
    index: Arc<Index>,
    listener: Listener,
    normalizer: Normalizer,
    batch: wire::Batch,
    sequence: u64,
    batches: u64,
}

// === impl Owner ===

impl Owner {
    fn new() -> Self {
        let index = Index::new(Limits::default());
        let listener = index.listen(TapBounds::default());
        let writer = index.register(super::beside::MODEL, Copies::Count).expect("a rank");
        let normalizer = Normalizer::new(writer, Options::default());
        Self { index, listener, normalizer, batch: wire::Batch::default(), sequence: 0, batches: 0 }
    }

    fn apply(&mut self, how: u8, payload: &[u8]) {
        let decoded = match how {
            0 => wire::decode(Dialect::Auto, payload, &mut self.batch),
            1 => wire::decode(Dialect::Vllm, payload, &mut self.batch),
            _ => wire::dynamo::decode(payload, &mut self.batch),
        };
        if decoded.is_ok() {
            self.sequence += 1;
            let stamp = Stamp { epoch: 1, sequence: Some(self.sequence) };
            self.normalizer.apply(&self.batch, stamp).expect("the rank is there");
        }
    }

    /// What it holds, and from here on what changes.
    fn told(&mut self) -> Vec<Event> {
        while let Ok(Some(_)) = self.listener.try_next() {}
        let whole = self.listener.follow(self.normalizer.rank()).expect("the rank is there");
        encode::Snapshot::new(key(), Arc::new(whole)).collect()
    }

    /// Every second piece as it travels, the others as they are before that.
    fn snapshot(&mut self) -> Vec<Vec<u8>> {
        let pieces = self.told().into_iter().enumerate();
        let kind = |i: usize, event| match i % 2 {
            0 => call(PIECE, &v1::Event { event: Some(event) }),
            _ => [&[COMPRESSED][..], &kvtap::relay::message::encode_piece(event).expect("compressed")].concat(),
        };
        pieces.map(|(i, event)| kind(i, event)).collect()
    }

    fn batch(&mut self) -> Option<Vec<u8>> {
        let mut deltas = Vec::new();
        while let Ok(Some(heard)) = self.listener.try_next() {
            if let Heard::Delta(delta) = heard {
                deltas.extend(encode::bare(&delta));
            }
        }
        let number = self.batches;
        self.batches += 1;
        let batch = Batch { life: LIFE, deltas, number, continues: false };
        Some([&[BATCH][..], &batch.encode()].concat())
    }

    fn watch(&mut self) -> Vec<Vec<u8>> {
        let started = v1::WatchStarted { resumed: false, ..v1::WatchStarted::default() };
        let added = Event::Added(v1::WorkerAdded { key: Some(key()), ..v1::WorkerAdded::default() });
        let events = std::iter::once(added).chain(self.told());
        let events = events.map(|event| What::Event(v1::Event { event: Some(event) }));
        let all = std::iter::once(What::Started(started)).chain(events).chain([What::Synced(v1::WatchSynced {})]);
        all.map(response).collect()
    }

    fn watched(&mut self) -> Option<Vec<u8>> {
        match self.listener.try_next() {
            Ok(Some(Heard::Delta(delta))) => {
                let told = encode::delta(&key(), &delta).into_iter().next()?;
                Some(response(What::Event(v1::Event { event: Some(Event::Delta(told)) })))
            }
            _ => None,
        }
    }

    fn announcement(&self) -> Vec<u8> {
        let key = key();
        let named = v1::WorkerRank {
            worker: key.worker.clone(),
            address: "10.0.0.1:8000".to_owned(),
            aliases: vec!["a".to_owned()],
            model: key.model.clone(),
            rank: key.rank,
        };
        let announcement = v1::Announcement {
            key: Some(key),
            at: Some(v1::Point { number: self.sequence, epoch: 1, sequence: Some(self.sequence) }),
            worker_rank: Some(named),
            state: v1::FeedState::Live.into(),
            why: String::new(),
            owner: "1-2-3".to_owned(),
            leaves: false,
            gone: false,
        };
        call(ANNOUNCEMENT, &announcement)
    }
}

fn response(what: What) -> Vec<u8> {
    call(WATCHED, &v1::WatchResponse { what: Some(what), cursor: vec![1, 2].into() })
}

fn call(number: u8, request: &impl prost::Message) -> Vec<u8> {
    [&[number][..], &request.encode_to_vec()].concat()
}

/// The frames of every captured live message, and of the malformed ones.
fn messages() -> Vec<Vec<Vec<u8>>> {
    let files = ["vllm-", "sglang-", "trtllm-native", "trtllm-dynamo", "mooncake", "malformed"];
    let lines = files.into_iter().flat_map(fixtures).flat_map(|name| lines(&name));
    lines.filter_map(|line| frames_of(&line["frames_hex"])).collect()
}

fn short(seeds: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    seeds.into_iter().filter(|seed| seed.len() <= LONGEST).collect()
}

/// The repository's folder, whichever package this is compiled into.
fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    if package.join("tests/fixtures").is_dir() { package.to_owned() } else { package.join("..") }
}

/// The names of the fixtures that begin with `prefix`, ascending.
fn fixtures(prefix: &str) -> Vec<String> {
    let folder = fs::read_dir(root().join("tests/fixtures/wire")).expect("tests/fixtures/wire");
    let names = folder.filter_map(|entry| entry.ok()?.file_name().to_str()?.strip_suffix(".jsonl").map(str::to_owned));
    let mut names: Vec<_> = names.filter(|name| name.starts_with(prefix)).collect();
    names.sort_unstable();
    assert!(!names.is_empty(), "no fixture begins with {prefix}");
    names
}

fn lines(name: &str) -> Vec<Value> {
    let text = fs::read_to_string(root().join(format!("tests/fixtures/wire/{name}.jsonl"))).expect("a fixture");
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

fn frames_of(value: &Value) -> Option<Vec<Vec<u8>>> {
    value.as_array()?.iter().map(|frame| hex(frame.as_str()?)).collect()
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| char::from(c).to_digit(16).map(|d| d as u8);
    digits.as_bytes().chunks(2).map(|pair| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?)).collect()
}
