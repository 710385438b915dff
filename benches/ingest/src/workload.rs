//! What engines publish: messages as vLLM encodes them, from full caches that store a block for each they evict.

use kvtap::sim::encode::{Dialect, batch};
use kvtap::sim::event::{Event, KIND, MEDIUM, Name, Removed, Stored};
use std::collections::VecDeque;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Tokens a block.
pub const BLOCK: u32 = 16;
/// Engines, each with a feed of its own.
pub const RANKS: usize = 8;
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
    pub stored: u64,
    /// Blocks that it removes.
    pub removed: u64,
}

/// What an engine still holds of a prompt, for a check at the end.
#[derive(Clone)]
pub struct Prompt {
    pub rank: usize,
    pub tokens: Vec<u32>,
}

/// An engine's cache.
struct Engine {
    rank: usize,
    rng: fastrand::Rng,
    shape: Shape,
    dialect: Dialect,
    sequence: u64,
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

    /// Blocks of an engine's cache.
    fn capacity(self) -> usize {
        8192
    }

    fn blocks_a_message(self) -> usize {
        match self {
            Self::Decode => 1,
            Self::Prefill => 512,
        }
    }

    fn blocks_a_prompt(self) -> usize {
        match self {
            Self::Decode => 64,
            Self::Prefill => 512,
        }
    }

    /// Messages that fill every cache.
    pub fn fill(self) -> usize {
        RANKS * self.capacity() / self.blocks_a_message()
    }

    /// Messages of a round: as many blocks in either shape.
    pub fn round(self) -> usize {
        RANKS * 4096 / self.blocks_a_message()
    }
}

/// The messages that fill the caches, then those of so many rounds, and what is held at the end.
pub fn messages(shape: Shape, dialect: Dialect, rounds: usize) -> (Vec<Message>, Vec<Prompt>) {
    let mut engines: Vec<Engine> = (0..RANKS).map(|rank| Engine::new(rank, shape, dialect)).collect();
    let total = shape.fill() + rounds * shape.round();
    let messages = (0..total).map(|i| engines[i % RANKS].step()).collect();
    let held = engines.iter().filter_map(Engine::newest).collect();
    (messages, held)
}

// === impl Engine ===

impl Engine {
    fn new(rank: usize, shape: Shape, dialect: Dialect) -> Self {
        let open = match shape {
            Shape::Decode => vec![Chain::default(); 64],
            Shape::Prefill => vec![Chain::default()],
        };
        let rng = fastrand::Rng::with_seed(rank as u64);
        Self { rank, rng, shape, dialect, sequence: 0, open, turn: 0, finished: VecDeque::new(), held: 0 }
    }

    fn step(&mut self) -> Message {
        let blocks = self.shape.blocks_a_message();
        let mut events = Vec::new();
        // An engine makes room before it stores, and names each block that it evicts in an event of its own.
        let room = (self.held + blocks).saturating_sub(self.shape.capacity());
        for name in self.finished.drain(..room) {
            let names = vec![Name::Int(name)];
            events.push(Event::Removed(Removed { names, medium: Some(MEDIUM.to_owned()), group: Some(0) }));
        }
        self.held += blocks - room;
        events.push(Event::Stored(self.grow(blocks)));
        let payload = batch(self.dialect, 1_764_500_000.5, &events, Some(0));
        let frames = [Vec::new(), self.sequence.to_be_bytes().to_vec(), payload];
        self.sequence += 1;
        Message { rank: self.rank, frames, stored: blocks as u64, removed: room as u64 }
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
        let tokens: Vec<u32> = (0..blocks as u32 * BLOCK).map(|_| self.rng.u32(..VOCABULARY)).collect();
        let mut names = Vec::with_capacity(blocks);
        let mut last = parent.unwrap_or(self.rank as u64);
        for block in tokens.chunks(BLOCK as usize) {
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
            block_size: BLOCK,
            lora: None,
            medium: Some(MEDIUM.to_owned()),
            extra_keys: None,
            group: Some(0),
            kind: Some(KIND.to_owned()),
            window: None,
        }
    }

    fn newest(&self) -> Option<Prompt> {
        let chain = &self.open[self.turn];
        (!chain.tokens.is_empty()).then(|| Prompt { rank: self.rank, tokens: chain.tokens.clone() })
    }
}
