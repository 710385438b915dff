//! What engines publish, for the benches that include this file: messages as vLLM encodes them, from caches that evict a block for
//! each they store once they are full.

use std::collections::VecDeque;

use kvtap::sim::encode::{Dialect, batch};
use kvtap::sim::event::{Event, KIND, MEDIUM, Name, Removed, Stored};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Tokens a block.
pub const BLOCK: usize = 16;
/// Engines of most figures, each with a feed of its own.
pub const RANKS: usize = 8;
/// Blocks of an engine's cache, in most figures.
pub const CAPACITY: usize = 8192;
/// Token ids are below this.
const VOCABULARY: u32 = 128_000;

/// The form of a workload.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// A message for each block that decoding fills: 64 sequences of an engine grow by turns, to 64 blocks each.
    Decode,
    /// A message for each prompt of 512 blocks.
    Prefill,
}

/// One live message.
pub struct Message {
    pub rank: usize,
    pub frames: [Vec<u8>; 3],
    /// Blocks that it stores.
    pub stored: usize,
    /// Blocks that it removes.
    pub removed: usize,
}

/// Engines that speak by turns, one message each time; they never end.
pub struct Engines {
    engines: Vec<Engine>,
    turn: usize,
}

/// An engine's cache.
struct Engine {
    rank: usize,
    rng: fastrand::Rng,
    shape: Shape,
    dialect: Dialect,
    sequence: u64,
    capacity: usize,
    /// Prompts that grow.
    open: Vec<Chain>,
    turn: usize,
    /// Names of finished prompts, the next to be evicted first: a prompt's last block goes before its first.
    finished: VecDeque<u64>,
    held: usize,
}

#[derive(Clone, Default)]
struct Chain {
    tokens: Vec<u32>,
    names: Vec<u64>,
}

// === impl Shape ===

impl Shape {
    pub fn name(self) -> &'static str {
        match self {
            Self::Decode => "decode, 1 block a message",
            Self::Prefill => "prefill, 512 blocks a message",
        }
    }

    pub fn blocks_a_message(self) -> usize {
        match self {
            Self::Decode => 1,
            Self::Prefill => 512,
        }
    }

    /// Messages that fill the caches of so many engines.
    pub fn fill(self, ranks: usize) -> usize {
        ranks * CAPACITY / self.blocks_a_message()
    }

    fn chains(self) -> usize {
        match self {
            Self::Decode => 64,
            Self::Prefill => 1,
        }
    }

    fn blocks_a_prompt(self) -> usize {
        match self {
            Self::Decode => 64,
            Self::Prefill => 512,
        }
    }
}

// === impl Engines ===

impl Engines {
    /// So many engines of a cache of so many blocks each.
    pub fn new(shape: Shape, dialect: Dialect, ranks: usize, capacity: usize) -> Self {
        Self { engines: (0..ranks).map(|rank| Engine::new(rank, shape, dialect, capacity)).collect(), turn: 0 }
    }

    /// The whole prompt that an engine's last message has made longer.
    pub fn prompt(&self, rank: usize) -> &[u32] {
        let engine = &self.engines[rank];
        &engine.open[engine.turn].tokens
    }
}

impl Iterator for Engines {
    type Item = Message;

    fn next(&mut self) -> Option<Message> {
        let turn = self.turn;
        self.turn = (turn + 1) % self.engines.len();
        Some(self.engines[turn].step())
    }
}

// === impl Engine ===

impl Engine {
    fn new(rank: usize, shape: Shape, dialect: Dialect, capacity: usize) -> Self {
        Self {
            rank,
            rng: fastrand::Rng::with_seed(rank as u64),
            shape,
            dialect,
            sequence: 0,
            capacity,
            open: vec![Chain::default(); shape.chains()],
            turn: 0,
            finished: VecDeque::new(),
            held: 0,
        }
    }

    fn step(&mut self) -> Message {
        let blocks = self.shape.blocks_a_message();
        let mut events = Vec::new();
        // An engine makes room before it stores, and names each block that it evicts in an event of its own.
        let room = (self.held + blocks).saturating_sub(self.capacity);
        for name in self.finished.drain(..room) {
            let names = vec![Name::Int(name)];
            events.push(Event::Removed(Removed { names, medium: Some(MEDIUM.to_owned()), group: Some(0) }));
        }
        self.held += blocks - room;
        events.push(Event::Stored(self.grow(blocks)));
        let payload = batch(self.dialect, 1_764_500_000.5, &events, Some(0));
        let frames = [Vec::new(), self.sequence.to_be_bytes().to_vec(), payload];
        self.sequence += 1;
        Message { rank: self.rank, frames, stored: blocks, removed: room }
    }

    /// The next blocks of the prompt whose turn it is.
    fn grow(&mut self, blocks: usize) -> Stored {
        self.turn = (self.turn + 1) % self.open.len();
        let chain = &mut self.open[self.turn];
        if chain.names.len() >= self.shape.blocks_a_prompt() {
            self.finished.extend(chain.names.drain(..).rev());
            chain.tokens.clear();
        }
        let parent = chain.names.last().copied();
        let tokens: Vec<u32> = (0..blocks * BLOCK).map(|_| self.rng.u32(..VOCABULARY)).collect();
        let mut names = Vec::with_capacity(blocks);
        let mut last = parent.unwrap_or(self.rank as u64);
        for block in tokens.chunks(BLOCK) {
            let bytes: Vec<u8> = block.iter().flat_map(|token| token.to_le_bytes()).collect();
            last = xxh3_64_with_seed(&bytes, last);
            names.push(last);
        }
        chain.tokens.extend(&tokens);
        chain.names.extend(&names);
        Stored {
            names: names.into_iter().map(Name::Int).collect(),
            parent: parent.map(Name::Int),
            tokens,
            block_size: BLOCK as u32,
            lora: None,
            medium: Some(MEDIUM.to_owned()),
            extra_keys: None,
            group: Some(0),
            kind: Some(KIND.to_owned()),
            window: None,
        }
    }
}
