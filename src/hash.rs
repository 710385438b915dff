//! The three hash spaces, and the rules that lead from tokens to them.
//!
//! A newtype for each: a content hash handed in where a prefix hash belongs does not compile.
//!
//! * [`EngineHash`]: what an engine calls a block. Opaque; compared only within one rank.
//! * [`ContentHash`]: our hash of one block's tokens, wherever the block stands.
//! * [`PrefixHash`]: our rolling hash of every content hash up to and including a block.
//!
//! The last two are a public contract: a router may compute them itself and ask by hash. For text,
//! LoRA names and salts they equal what SMG's `kv-index` and Dynamo's router compute.

use std::fmt;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// The seed of every content and prefix hash, before LoRA and salt are added.
pub const BASE_SEED: u64 = 1337;

/// What an engine calls a block.
///
/// Engines name blocks by signed or unsigned 64-bit integers or by raw digests of 16 to 32 bytes. An
/// integer is kept bit for bit. Bytes keep their last eight as `low`, big-endian, which is what vLLM's
/// integer mode puts on the wire for the same digest, so the two forms of one digest can be joined by
/// [`EngineHash::narrow`]; what stands before them is folded into `high`, so that two digests of one
/// rank that share their last eight bytes are still two names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EngineHash {
    low: u64,
    high: u64,
}

/// Our hash of one block's tokens (and extra keys), independent of where the block stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct ContentHash(pub u64);

/// Our rolling hash of a block and of everything before it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(transparent)]
pub struct PrefixHash(pub u64);

/// The part of a namespace that hashing carries: LoRA name and cache salt folded into one seed.
///
/// Tokens under different seeds have different content hashes, so tenants never match each other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Seed(pub u64);

// === impl EngineHash ===

impl EngineHash {
    /// A 64-bit engine hash, bit for bit (a signed one is reinterpreted, not converted).
    pub const fn from_u64(bits: u64) -> Self {
        Self { low: bits, high: 0 }
    }

    /// A signed 64-bit engine hash: the same bits as the unsigned one.
    pub const fn from_i64(value: i64) -> Self {
        Self::from_u64(value as u64)
    }

    /// The name that has these halves ([`EngineHash::low`], [`EngineHash::high`]).
    pub const fn from_parts(low: u64, high: u64) -> Self {
        Self { low, high }
    }

    /// A digest in raw bytes, of any length.
    ///
    /// Up to eight bytes are the integer that they spell, big-endian. Of a longer digest the last eight
    /// are `low` and XXH3-64 of the rest is `high`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        match bytes.split_last_chunk::<8>() {
            None => Self { low: bytes.iter().fold(0, |n, b| (n << 8) | u64::from(*b)), high: 0 },
            Some((head, tail)) => Self {
                low: u64::from_be_bytes(*tail),
                // 0 is kept for integers: a long digest is never equal to one by accident.
                high: if head.is_empty() { 0 } else { xxh3_64(head).max(1) },
            },
        }
    }

    /// The low 64 bits: what an integer-mode engine would have sent for the same digest.
    pub const fn low(self) -> u64 {
        self.low
    }

    /// What distinguishes long digests that share their low 64 bits; 0 for integers.
    pub const fn high(self) -> u64 {
        self.high
    }

    /// The integer form of this name.
    pub const fn narrow(self) -> Self {
        Self::from_u64(self.low)
    }

    /// Whether the name came as a digest longer than eight bytes.
    pub const fn is_wide(self) -> bool {
        self.high != 0
    }
}

/// Engine hashes are derived from prompts: logs see that there is one, not which.
impl fmt::Debug for EngineHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if cfg!(test) {
            write!(f, "EngineHash({:#x}:{:#x})", self.high, self.low)
        } else {
            f.write_str("EngineHash(..)")
        }
    }
}

// === impl ContentHash ===

impl ContentHash {
    /// The hash of one block: XXH3-64 of its tokens as little-endian u32 bytes.
    ///
    /// `tokens_le` holds the block's tokens and nothing else (4 bytes a token).
    #[inline]
    pub fn of_tokens(tokens_le: &[u8], seed: Seed) -> Self {
        Self(xxh3_64_with_seed(tokens_le, seed.0))
    }

    /// The same with a block's extra keys, in canonical form ([`crate::block::extra_keys`]), after the tokens.
    pub fn of_tokens_and_keys(tokens_le: &[u8], keys: &[u8], seed: Seed) -> Self {
        if keys.is_empty() {
            return Self::of_tokens(tokens_le, seed);
        }
        let mut bytes = Vec::with_capacity(tokens_le.len() + keys.len());
        bytes.extend_from_slice(tokens_le);
        bytes.extend_from_slice(keys);
        Self(xxh3_64_with_seed(&bytes, seed.0))
    }
}

impl fmt::Debug for ContentHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if cfg!(test) { write!(f, "ContentHash({})", self.0) } else { f.write_str("ContentHash(..)") }
    }
}

// === impl PrefixHash ===

impl PrefixHash {
    /// The prefix hash of a first block: its content hash itself.
    #[inline]
    pub const fn root(content: ContentHash) -> Self {
        Self(content.0)
    }

    /// The prefix hash of the block `content` that follows `self`:
    /// XXH3-64 of both, little-endian, under seed 1337 (LoRA and salt are in the content hashes already).
    #[inline]
    pub fn then(self, content: ContentHash) -> Self {
        let mut bytes = [0u8; 16];
        bytes[..8].copy_from_slice(&self.0.to_le_bytes());
        bytes[8..].copy_from_slice(&content.0.to_le_bytes());
        Self(xxh3_64_with_seed(&bytes, BASE_SEED))
    }

    /// The prefix hash of `content` after `parent`, or of a first block where there is no parent.
    #[inline]
    pub fn after(parent: Option<Self>, content: ContentHash) -> Self {
        match parent {
            None => Self::root(content),
            Some(parent) => parent.then(content),
        }
    }

    /// The prefix hashes of a whole chain of content hashes from block 0.
    pub fn chain(contents: &[ContentHash]) -> Vec<Self> {
        let mut last = None;
        contents
            .iter()
            .map(|content| {
                let next = Self::after(last, *content);
                last = Some(next);
                next
            })
            .collect()
    }
}

impl fmt::Debug for PrefixHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if cfg!(test) { write!(f, "PrefixHash({})", self.0) } else { f.write_str("PrefixHash(..)") }
    }
}

// === impl Seed ===

impl Seed {
    /// The seed of plain prompts: no LoRA, no salt.
    pub const PLAIN: Self = Self(BASE_SEED);

    /// `1337 + xxh3(lora, seed 0) + xxh3(salt, seed 1)`, wrapping; an absent or empty string adds 0.
    pub fn new(lora: Option<&str>, salt: Option<&str>) -> Self {
        let part = |text: Option<&str>, seed| match text {
            None | Some("") => 0,
            Some(text) => xxh3_64_with_seed(text.as_bytes(), seed),
        };
        Self(BASE_SEED.wrapping_add(part(lora, 0)).wrapping_add(part(salt, 1)))
    }
}

impl fmt::Debug for Seed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::PLAIN { f.write_str("Seed(plain)") } else { f.write_str("Seed(..)") }
    }
}
