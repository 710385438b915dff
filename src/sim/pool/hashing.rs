//! How a simulated engine names its blocks: a chain of 128-bit digests from a root of its own.

use xxhash_rust::xxh3::xxh3_128;

use crate::block::extra_keys::{self, Item};
use crate::sim::event::Name;

use super::Prompt;

/// How names go on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum HashForm {
    /// The low 64 bits of the digest, an unsigned integer: vLLM's default.
    #[default]
    Int,
    /// The whole digest, 16 bytes.
    Bytes,
}

/// The digest of a block and of everything before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Digest(u128);

/// Where the chains of one engine life begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Chain {
    root: Digest,
}

/// What block `index` of a prompt covers besides its tokens: the adapter's name on each, the salt on the first.
pub(super) fn extra_keys(prompt: &Prompt, index: usize) -> Option<Vec<Item>> {
    let lora = prompt.lora.as_ref().map(|lora| &lora.name);
    let salt = prompt.salt.as_ref().filter(|_| index == 0);
    let items: Vec<Item> = lora.into_iter().chain(salt).map(|text| Item::Text(text.clone())).collect();
    (!items.is_empty()).then_some(items)
}

// === impl Digest ===

impl Digest {
    pub(super) fn on_wire(self, form: HashForm) -> Name {
        match form {
            HashForm::Int => Name::Int(self.0 as u64),
            HashForm::Bytes => Name::Bytes(self.0.to_be_bytes().into()),
        }
    }
}

// === impl Chain ===

impl Chain {
    pub(super) fn new(root: u128) -> Self {
        Self { root: Digest(root) }
    }

    /// The name of every full block of a prompt.
    pub(super) fn names(&self, prompt: &Prompt, block_size: usize) -> Vec<Digest> {
        let mut names: Vec<Digest> = Vec::with_capacity(prompt.tokens.len() / block_size);
        for block in prompt.tokens.chunks_exact(block_size) {
            let name = self.name(names.last().copied(), block, prompt);
            names.push(name);
        }
        names
    }

    /// The name of the block `tokens` after `parent`; the first of its prompt where there is none.
    pub(super) fn name(&self, parent: Option<Digest>, tokens: &[u32], prompt: &Prompt) -> Digest {
        // Only whether it is the first block matters to the keys.
        let keys = extra_keys(prompt, usize::from(parent.is_some()));
        let mut bytes = Vec::with_capacity(16 + tokens.len() * 4);
        bytes.extend_from_slice(&parent.unwrap_or(self.root).0.to_le_bytes());
        for token in tokens {
            bytes.extend_from_slice(&token.to_le_bytes());
        }
        extra_keys::encode(&keys.unwrap_or_default(), &mut bytes);
        Digest(xxh3_128(&bytes))
    }
}
