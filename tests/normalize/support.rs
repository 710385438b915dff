//! One rank, fed with events written as JSON and encoded as an engine would.

use std::sync::Arc;

use kvtap::block::Grid;
use kvtap::hash::{ContentHash, Seed};
use kvtap::index::{Chain, Copies, Index, Limits, RankMatch};
use kvtap::normalize::{Applied, Normalizer, Options};
use kvtap::wire::{Batch, Dialect, decode};
use kvtap::worker::Stamp;
use serde_json::{Value, json};

pub const MODEL: &str = "m";
/// Tokens a block in these tests, unless a test says otherwise.
pub const SIZE: usize = 4;

pub struct Tap {
    pub index: Arc<Index>,
    pub normalizer: Normalizer,
    sequence: u64,
}

impl Tap {
    pub fn new() -> Self {
        Self::with(Options::default())
    }

    pub fn with(options: Options) -> Self {
        let index = Index::new(Limits::default());
        let writer = index.register(MODEL, Copies::Count).expect("there is room");
        Self { index, normalizer: Normalizer::new(writer, options), sequence: 0 }
    }

    /// Sends one batch of events through the decoder.
    pub fn send(&mut self, events: Value) -> Applied {
        let payload = rmp_serde::to_vec(&json!([0.5, events, 0])).expect("JSON values encode");
        self.hear(Dialect::Auto, &payload)
    }

    /// Sends one payload of an engine of this dialect.
    pub fn hear(&mut self, dialect: Dialect, payload: &[u8]) -> Applied {
        let mut batch = Batch::default();
        decode(dialect, payload, &mut batch).expect("the test's batch decodes");
        assert_eq!(batch.rejected_events(), 0, "the test's events decode");
        let stamp = Stamp { epoch: 1, sequence: Some(self.sequence) };
        self.sequence += 1;
        self.normalizer.apply(&batch, stamp).expect("the rank is registered")
    }

    /// What the rank holds of a plain prompt.
    pub fn ask(&self, tokens: &[u32]) -> RankMatch {
        self.ask_as(tokens, Seed::PLAIN)
    }

    pub fn ask_as(&self, tokens: &[u32], seed: Seed) -> RankMatch {
        let grid = Grid::new(SIZE as u64).expect("a valid size");
        self.ask_chain(grid, &grid.plain_contents(&le(tokens), seed))
    }

    pub fn ask_chain(&self, grid: Grid, chain: &[ContentHash]) -> RankMatch {
        let mut out = Vec::new();
        let listed = [self.normalizer.rank()];
        self.index.match_chain(MODEL, grid, Chain::Content(chain), Some(&listed), &mut out);
        out.pop().expect("a listed rank comes back")
    }

    pub fn held(&self) -> u64 {
        self.index.usage(self.normalizer.rank()).expect("the rank is registered").blocks
    }

    pub fn dropped(&self, reason: &str) -> u64 {
        self.normalizer.dropped().get(reason).copied().unwrap_or(0)
    }
}

pub fn le(tokens: &[u32]) -> Vec<u8> {
    tokens.iter().flat_map(|token| token.to_le_bytes()).collect()
}

/// `n` blocks of tokens that no other `from` shares.
pub fn prompt(from: u32, blocks: usize) -> Vec<u32> {
    (0..(blocks * SIZE) as u32).map(|i| from * 1_000 + i).collect()
}

/// A store event as vLLM 0.24 and later send it; `more` is laid over it.
pub fn stored(hashes: &[u64], parent: Option<u64>, tokens: &[u32], more: Value) -> Value {
    let mut event = json!({
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens,
        "block_size": SIZE, "lora_id": null, "medium": "GPU", "lora_name": null,
    });
    lay_over(&mut event, more);
    event
}

pub fn removed(hashes: &[u64], more: Value) -> Value {
    let mut event = json!({"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"});
    lay_over(&mut event, more);
    event
}

pub fn cleared() -> Value {
    json!({"type": "AllBlocksCleared"})
}

fn lay_over(event: &mut Value, more: Value) {
    if let (Some(event), Value::Object(more)) = (event.as_object_mut(), more) {
        event.extend(more);
    }
}
