//! The ways from frames to an answer, each driven as its authors drive it.

use std::hint::black_box;
use std::sync::Arc;
use std::thread::JoinHandle;

use dynamo_kv_router::indexer::{SyncIndexer, WorkerTask};
use dynamo_kv_router::protocols::{LocalBlockHash, RouterEvent, WorkerWithDpRank};
use dynamo_kv_router::zmq_wire::{ZmqEventNormalizer, decode_event_batch};
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, RadixTree};
use kvtap::block::Grid;
use kvtap::hash::Seed;
use kvtap::index::{Chain, Copies, Index, Limits};
use kvtap::normalize::{Normalizer, Options};
use kvtap::wire::{Batch, Dialect, decode, frames};
use kvtap::worker::Stamp;

use crate::engines::{BLOCK, Message, RANKS};

/// What an engine holds of a prompt, for a check at the end.
pub struct Prompt {
    pub rank: usize,
    pub tokens: Vec<u32>,
}

pub trait Contestant {
    fn name(&self) -> &'static str;
    /// From frames to what a match sees. Returns once all is visible.
    fn ingest(&mut self, messages: &[Message]);
    /// How many blocks of a prompt its rank holds.
    fn blocks(&mut self, prompt: &Prompt) -> usize;
}

const MODEL: &str = "model";

// === kvtap ===

pub struct Kvtap {
    index: Arc<Index>,
    normalizers: Vec<Normalizer>,
    batch: Batch,
}

impl Kvtap {
    pub fn new() -> Self {
        let index = Index::new(Limits::default());
        let normalizer = |_| Normalizer::new(index.register(MODEL, Copies::Count).unwrap(), Options::default());
        Self { normalizers: (0..RANKS).map(normalizer).collect(), batch: Batch::default(), index }
    }
}

impl Contestant for Kvtap {
    fn name(&self) -> &'static str {
        "kvtap"
    }

    fn ingest(&mut self, messages: &[Message]) {
        for message in messages {
            let live = frames::live(&message.frames).unwrap();
            decode(Dialect::Vllm, live.payload, &mut self.batch).unwrap();
            let stamp = Stamp { epoch: 1, sequence: Some(live.sequence) };
            self.normalizers[message.rank].apply(&self.batch, stamp).unwrap();
        }
    }

    fn blocks(&mut self, prompt: &Prompt) -> usize {
        let grid = Grid::new(BLOCK as u64).unwrap();
        let contents = grid.plain_contents(&bytes(prompt), Seed::PLAIN);
        let rank = self.normalizers[prompt.rank].rank();
        let mut out = Vec::new();
        self.index.match_chain(MODEL, grid, Chain::Content(&contents), Some(&[rank]), &mut out);
        out[0].blocks as usize
    }
}

/// kvtap's decoder alone.
#[derive(Default)]
pub struct KvtapDecode(Batch);

impl Contestant for KvtapDecode {
    fn name(&self) -> &'static str {
        "kvtap, decode only"
    }

    fn ingest(&mut self, messages: &[Message]) {
        for message in messages {
            let live = frames::live(&message.frames).unwrap();
            decode(Dialect::Vllm, live.payload, &mut self.0).unwrap();
            black_box(&self.0);
        }
    }

    fn blocks(&mut self, prompt: &Prompt) -> usize {
        prompt.tokens.len() / BLOCK
    }
}

// === Dynamo ===

/// A listener's part, as in its `apply_live_batch`: decode, normalize each event, and hand it on.
fn listen(normalizers: &mut [ZmqEventNormalizer], message: &Message, mut apply: impl FnMut(RouterEvent)) {
    let [_topic, sequence, payload] = &message.frames;
    let sequence = u64::from_be_bytes(sequence[..].try_into().unwrap());
    let batch = decode_event_batch(payload).unwrap();
    let rank = batch.data_parallel_rank.map_or(0, i32::cast_unsigned);
    let worker = WorkerWithDpRank::new(message.rank as u64, rank);
    for event in batch.events {
        if let Some(placed) = normalizers[message.rank].normalize(event, sequence, worker) {
            apply(placed.into_router_event().unwrap());
        }
    }
}

fn normalizers() -> Vec<ZmqEventNormalizer> {
    (0..RANKS).map(|_| ZmqEventNormalizer::new(BLOCK as u32)).collect()
}

/// The prompt's content hashes are Dynamo's too.
fn locals(prompt: &Prompt) -> Vec<LocalBlockHash> {
    let grid = Grid::new(BLOCK as u64).unwrap();
    grid.plain_contents(&bytes(prompt), Seed::PLAIN).iter().map(|content| LocalBlockHash(content.0)).collect()
}

/// Its index of one thread, called directly: without the channel that its service has in between.
pub struct DynamoRadix {
    normalizers: Vec<ZmqEventNormalizer>,
    tree: RadixTree,
}

impl DynamoRadix {
    pub fn new() -> Self {
        Self { normalizers: normalizers(), tree: RadixTree::new() }
    }
}

impl Contestant for DynamoRadix {
    fn name(&self) -> &'static str {
        "dynamo, RadixTree"
    }

    fn ingest(&mut self, messages: &[Message]) {
        for message in messages {
            listen(&mut self.normalizers, message, |event| self.tree.apply_event(event).unwrap());
        }
    }

    fn blocks(&mut self, prompt: &Prompt) -> usize {
        let scores = self.tree.find_matches(locals(prompt), false).scores;
        scores.iter().find(|(who, _)| who.worker_id == prompt.rank as u64).map_or(0, |(_, score)| *score as usize)
    }
}

/// Its index of several threads, behind a queue and a worker thread as in its service: two threads in all.
pub struct DynamoConcurrent {
    normalizers: Vec<ZmqEventNormalizer>,
    index: Arc<ConcurrentRadixTreeCompressed>,
    tasks: flume::Sender<WorkerTask>,
    worker: Option<JoinHandle<()>>,
}

impl DynamoConcurrent {
    pub fn new() -> Self {
        let index = Arc::new(ConcurrentRadixTreeCompressed::new());
        let (tasks, queue) = flume::unbounded();
        let lane = Arc::clone(&index);
        let worker = std::thread::spawn(move || lane.worker(queue, None).unwrap());
        Self { normalizers: normalizers(), index, tasks, worker: Some(worker) }
    }
}

impl Contestant for DynamoConcurrent {
    fn name(&self) -> &'static str {
        "dynamo, Concurrent.."
    }

    fn ingest(&mut self, messages: &[Message]) {
        for message in messages {
            listen(&mut self.normalizers, message, |event| self.tasks.send(WorkerTask::Event(event)).unwrap());
        }
        let (done, visible) = tokio::sync::oneshot::channel();
        self.tasks.send(WorkerTask::Flush(done)).unwrap();
        visible.blocking_recv().unwrap();
    }

    fn blocks(&mut self, prompt: &Prompt) -> usize {
        let scores = self.index.find_matches(&locals(prompt), false).scores;
        scores.iter().find(|(who, _)| who.worker_id == prompt.rank as u64).map_or(0, |(_, score)| *score as usize)
    }
}

impl Drop for DynamoConcurrent {
    fn drop(&mut self) {
        let _ = self.tasks.send(WorkerTask::Terminate);
        self.worker.take().map(JoinHandle::join);
    }
}

/// Dynamo's decoder alone.
pub struct DynamoDecode;

impl Contestant for DynamoDecode {
    fn name(&self) -> &'static str {
        "dynamo, decode only"
    }

    fn ingest(&mut self, messages: &[Message]) {
        for message in messages {
            black_box(decode_event_batch(&message.frames[2]).unwrap());
        }
    }

    fn blocks(&mut self, prompt: &Prompt) -> usize {
        prompt.tokens.len() / BLOCK
    }
}

fn bytes(prompt: &Prompt) -> Vec<u8> {
    prompt.tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}
