//! Engines that fill their caches with prompts that begin alike, and the index that follows them.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{Shape, per_second};
use crate::block::Grid;
use crate::cli::Failure;
use crate::hash::{ContentHash, Seed};
use crate::index::{self, Chain, Copies, Index, RankMatch};
use crate::normalize::{self, Normalizer};
use crate::sim::encode::{self, Dialect};
use crate::sim::event::{Event, KIND, MEDIUM, Name, Removed, Stored};
use crate::wire::{self, Batch, frames};
use crate::worker::{RankId, Stamp};

/// The model that all of them serve.
pub(super) const MODEL: &str = "bench";

/// Prompts of a rank that are remembered to be asked for, the newest.
const REMEMBERED: usize = 64;

/// All engines, and what follows them.
pub(super) struct Fleet {
    pub(super) index: Arc<Index>,
    pub(super) engines: Vec<Engine>,
    beginnings: Vec<Vec<u32>>,
    shape: Shape,
    rng: fastrand::Rng,
    /// Whose turn it is.
    turn: usize,
    batch: Batch,
}

/// One rank's engine.
pub(super) struct Engine {
    pub(super) normalizer: Normalizer,
    /// The name of the last block of each beginning, once it holds it.
    heads: Vec<Option<u64>>,
    /// The blocks of each prompt behind its beginning, the oldest prompt first.
    tails: VecDeque<Vec<u64>>,
    held: usize,
    sequence: u64,
    /// Beginning and tail of the newest prompts.
    prompts: VecDeque<(usize, Vec<u32>)>,
}

/// What is asked for.
pub(super) struct Query {
    pub(super) tokens_le: Vec<u8>,
    pub(super) contents: Vec<ContentHash>,
}

/// A message, as it comes from the wire.
struct Message {
    engine: usize,
    frames: [Vec<u8>; 3],
    stored: u64,
}

// === impl Fleet ===

impl Fleet {
    pub(super) fn new(shape: Shape, beginnings: u32, seed: u64) -> Result<Self, Failure> {
        let mut rng = fastrand::Rng::with_seed(seed);
        let shared = (f64::from(shape.prompt_blocks) * shape.sharing).round() as usize * shape.block_size as usize;
        let beginnings: Vec<Vec<u32>> = (0..beginnings).map(|_| tokens(&mut rng, shared)).collect();
        let ranks = shape.workers as usize * shape.ranks as usize;
        let room = (shape.blocks_per_rank as usize).saturating_mul(2);
        let limits = index::Limits { blocks_per_rank: room, blocks_in_all: room.saturating_mul(ranks) };
        let index = Index::new(limits);
        let engines = (0..ranks)
            .map(|_| {
                let writer = index.register(MODEL, Copies::Count).map_err(failed)?;
                Ok(Engine {
                    normalizer: Normalizer::new(writer, normalize::Options::default()),
                    heads: vec![None; beginnings.len()],
                    tails: VecDeque::new(),
                    held: 0,
                    sequence: 0,
                    prompts: VecDeque::new(),
                })
            })
            .collect::<Result<_, Failure>>()?;
        Ok(Self { index, engines, beginnings, shape, rng, turn: 0, batch: Batch::default() })
    }

    /// Fills every cache. Blocks stored, the time that applying them took, and their bytes.
    pub(super) fn fill(&mut self) -> Result<(u64, Duration, u64), Failure> {
        let full = self.shape.blocks_per_rank as usize;
        let (mut stored, mut took, mut bytes) = (0, Duration::ZERO, 0);
        while let Some(at) = (0..self.engines.len()).find(|at| self.engines.get(*at).is_some_and(|e| e.held < full)) {
            let message = self.message(at, false);
            let (blocks, time, size) = self.apply(message)?;
            (stored, took, bytes) = (stored + blocks, took + time, bytes + size);
        }
        Ok((stored, took, bytes))
    }

    /// Goes on with full caches for so long, engine by engine.
    pub(super) fn steady(&mut self, duration: Duration) -> Result<(u64, Duration, u64), Failure> {
        let (mut stored, mut took, mut bytes) = (0, Duration::ZERO, 0);
        let began = Instant::now();
        while began.elapsed() < duration || stored == 0 {
            let (blocks, time, size) = self.turn()?;
            (stored, took, bytes) = (stored + blocks, took + time, bytes + size);
        }
        Ok((stored, took, bytes))
    }

    /// The same until told to end, at `rate` blocks a second in all. The blocks a second that it came to.
    pub(super) fn load(&mut self, rate: Option<f64>, done: &AtomicBool) -> Result<f64, Failure> {
        let (began, mut stored) = (Instant::now(), 0);
        while !done.load(Ordering::Relaxed) {
            let (blocks, _, _) = self.turn()?;
            stored += blocks;
            if let Some(rate) = rate {
                let due = Duration::from_secs_f64(stored as f64 / rate);
                thread::sleep(due.saturating_sub(began.elapsed()).min(Duration::from_millis(100)));
            }
        }
        Ok(per_second(stored, began.elapsed()))
    }

    fn turn(&mut self) -> Result<(u64, Duration, u64), Failure> {
        self.turn = (self.turn + 1) % self.engines.len().max(1);
        let message = self.message(self.turn, true);
        self.apply(message)
    }

    /// An engine's next prompt, as it goes on the wire.
    fn message(&mut self, at: usize, evict: bool) -> Message {
        let Self { engines, beginnings, shape, rng, .. } = self;
        let mut message = Message { engine: at, frames: Default::default(), stored: 0 };
        let Some(engine) = engines.get_mut(at) else { return message };
        let (block_size, beginning) = (shape.block_size, rng.usize(..beginnings.len().max(1)));
        let shared = beginnings.get(beginning).map_or(&[][..], Vec::as_slice);
        let shared_blocks = shared.len() / block_size as usize;
        let mut events = Vec::new();
        let mut store = |parent: Option<u64>, names: &[u64], tokens: Vec<u32>| {
            message.stored += names.len() as u64;
            events.push(Event::Stored(Stored {
                names: names.iter().copied().map(Name::Int).collect(),
                parent: parent.map(Name::Int),
                tokens,
                block_size,
                lora: None,
                medium: Some(MEDIUM.to_owned()),
                extra_keys: None,
                group: Some(0),
                kind: Some(KIND.to_owned()),
                window: None,
            }));
        };
        let mut head = engine.heads.get(beginning).copied().flatten();
        if head.is_none() && shared_blocks > 0 {
            let names: Vec<u64> = (0..shared_blocks).map(|_| rng.u64(1..)).collect();
            store(None, &names, shared.to_vec());
            engine.held += names.len();
            head = names.last().copied();
            if let Some(known) = engine.heads.get_mut(beginning) {
                *known = head;
            }
        }
        // Where all of a prompt is shared, a block of its own tells it from the next.
        let tail_blocks = (shape.prompt_blocks as usize).saturating_sub(shared_blocks).max(1);
        let names: Vec<u64> = (0..tail_blocks).map(|_| rng.u64(1..)).collect();
        let tail = tokens(rng, tail_blocks * block_size as usize);
        store(head, &names, tail.clone());
        engine.held += names.len();
        engine.tails.push_back(names);
        engine.prompts.push_back((beginning, tail));
        if engine.prompts.len() > REMEMBERED {
            engine.prompts.pop_front();
        }
        if let Some(old) = engine.tails.pop_front_if(|_| evict) {
            engine.held -= old.len();
            // Engines evict the last block of a prompt first.
            let names = old.into_iter().rev().map(Name::Int).collect();
            events.insert(0, Event::Removed(Removed { names, medium: Some(MEDIUM.to_owned()), group: Some(0) }));
        }
        let payload = encode::batch(Dialect::Map33, engine.sequence as f64, &events, Some(0));
        message.frames = [Vec::new(), engine.sequence.to_be_bytes().to_vec(), payload];
        engine.sequence += 1;
        message
    }

    /// From frames to what a match sees. Blocks stored, the time it took, and the bytes.
    fn apply(&mut self, message: Message) -> Result<(u64, Duration, u64), Failure> {
        let Some(engine) = self.engines.get_mut(message.engine) else { return Ok((0, Duration::ZERO, 0)) };
        let start = Instant::now();
        let live = frames::live(&message.frames).map_err(failed)?;
        wire::decode(wire::Dialect::Vllm, live.payload, &mut self.batch).map_err(failed)?;
        let stamp = Stamp { epoch: 1, sequence: Some(live.sequence) };
        engine.normalizer.apply(&self.batch, stamp).map_err(failed)?;
        let took = start.elapsed();
        let bytes = message.frames.iter().map(|frame| frame.len() as u64).sum();
        Ok((message.stored, took, bytes))
    }

    /// Blocks that all of them hold, as the index counts them.
    pub(super) fn held(&self) -> u64 {
        let ranks = self.engines.iter().map(|engine| engine.normalizer.rank());
        ranks.filter_map(|rank| self.index.usage(rank)).map(|usage| usage.blocks).sum()
    }

    /// Memory that the engines' side takes, in bytes: it is no part of what is measured.
    pub(super) fn own_bytes(&self) -> u64 {
        let of = |engine: &Engine| {
            let tails: usize = engine.tails.iter().map(|names| names.capacity() * 8 + size_of::<Vec<u64>>()).sum();
            let prompts: usize =
                engine.prompts.iter().map(|(_, tail)| tail.capacity() * 4 + size_of::<Vec<u32>>()).sum();
            (tails + prompts) as u64
        };
        self.engines.iter().map(of).sum()
    }

    /// Prompts that some of them hold, and a block that nobody does.
    pub(super) fn queries(&mut self, count: usize) -> Vec<Query> {
        let size = self.shape.block_size as usize;
        let mut queries = Vec::new();
        for _ in 0..count {
            let engine = self.engines.get(self.rng.usize(..self.engines.len().max(1)));
            let Some((beginning, tail)) = engine.and_then(|engine| engine.prompts.back()) else { break };
            let shared = self.beginnings.get(*beginning).map_or(&[][..], Vec::as_slice);
            let fresh = tokens(&mut self.rng, size);
            queries.push(Query::new(shared.iter().chain(tail).chain(&fresh), self.shape.block_size));
        }
        queries
    }

    /// The newest prompt of every rank, and who must hold it.
    pub(super) fn newest(&self) -> Vec<(RankId, Query)> {
        let newest = self.engines.iter().filter_map(|engine| {
            let (beginning, tail) = engine.prompts.back()?;
            let shared = self.beginnings.get(*beginning).map_or(&[][..], Vec::as_slice);
            Some((engine.normalizer.rank(), Query::new(shared.iter().chain(tail), self.shape.block_size)))
        });
        newest.collect()
    }

    /// Whether every rank holds its newest prompt in full.
    ///
    /// # Errors
    /// [`Failure::Failed`]: then no figure is worth anything.
    pub(super) fn check(&self, grid: Grid) -> Result<(), Failure> {
        for (rank, query) in self.newest() {
            check(&self.index, grid, rank, &query)?;
        }
        Ok(())
    }
}

/// Whether a rank holds all of a prompt.
pub(super) fn check(index: &Index, grid: Grid, rank: RankId, query: &Query) -> Result<(), Failure> {
    let mut found: Vec<RankMatch> = Vec::new();
    index.match_chain(MODEL, grid, Chain::Content(&query.contents), Some(&[rank]), &mut found);
    match found.first() {
        Some(found) if found.blocks as usize == query.contents.len() => Ok(()),
        _ => Err(Failure::Failed("an answer was wrong: no figure is worth anything".to_owned())),
    }
}

fn tokens(rng: &mut fastrand::Rng, count: usize) -> Vec<u32> {
    (0..count).map(|_| rng.u32(..128_000)).collect()
}

pub(super) fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::Failed(error.to_string())
}

// === impl Query ===

impl Query {
    fn new<'a>(tokens: impl Iterator<Item = &'a u32>, block_size: u32) -> Self {
        let tokens_le: Vec<u8> = tokens.flat_map(|token| token.to_le_bytes()).collect();
        let contents = tokens_le
            .chunks_exact((block_size as usize).saturating_mul(4).max(4))
            .map(|block| ContentHash::of_tokens(block, Seed::PLAIN))
            .collect();
        Self { tokens_le, contents }
    }
}
