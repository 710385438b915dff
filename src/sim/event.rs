//! What a simulated engine announces: the fields of vLLM's events, before they are bytes.

use crate::block::extra_keys::Item;

/// What an engine calls a block, in the form that it goes on the wire.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Name {
    /// An unsigned integer: vLLM's default, the low 64 bits of a digest.
    Int(u64),
    /// A raw digest, 16 or 32 bytes (`VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0`).
    Bytes(Box<[u8]>),
}

/// A LoRA adapter.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lora {
    /// Its number in the engine.
    pub id: u64,
    /// Its name.
    pub name: String,
}

/// One KV cache event.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// Blocks were filled, the first under `parent`, each next under the one before.
    Stored(Stored),
    /// Blocks were evicted.
    Removed(Removed),
    /// The whole cache was reset.
    Cleared,
}

/// The fields of a `BlockStored`.
#[derive(Clone, PartialEq, Debug)]
pub struct Stored {
    /// The blocks' names.
    pub names: Vec<Name>,
    /// The block before the first; `None` for block 0 of a prompt.
    pub parent: Option<Name>,
    /// The tokens of all blocks.
    pub tokens: Vec<u32>,
    /// Tokens a block.
    pub block_size: u32,
    /// The adapter.
    pub lora: Option<Lora>,
    /// Where the blocks lie.
    pub medium: Option<String>,
    /// Per block what its hash covers besides tokens; the salt in the first block of a prompt only.
    pub extra_keys: Option<Vec<Option<Vec<Item>>>>,
    /// The cache group.
    pub group: Option<u32>,
    /// The group's kind.
    pub kind: Option<String>,
    /// A sliding-window group's window, in tokens.
    pub window: Option<u32>,
}

/// The fields of a `BlockRemoved`.
#[derive(Clone, PartialEq, Debug)]
pub struct Removed {
    /// The blocks' names.
    pub names: Vec<Name>,
    /// From where.
    pub medium: Option<String>,
    /// From which cache group.
    pub group: Option<u32>,
}

/// The medium that vLLM names for its own cache.
pub const MEDIUM: &str = "GPU";

/// The kind that vLLM names for a plain model's one group.
pub const KIND: &str = "full_attention";
