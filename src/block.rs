//! What a block is: how many tokens it covers, where it lies, and what else its hash covers.

use std::fmt;
use std::num::NonZeroU32;

use crate::hash::{ContentHash, Seed};

/// The largest block size that is accepted, in tokens. Engines use 1 to 256, hybrid models up to a few thousand.
pub const MAX_BLOCK_SIZE: u32 = 1 << 16;

/// The largest lookahead that is accepted, in tokens.
pub const MAX_LOOKAHEAD: u32 = 64;

/// How a prompt is cut into blocks.
///
/// Block `i` covers tokens `[i * size, (i + 1) * size)`; its hash also covers the `lookahead` tokens
/// that follow (1 under EAGLE's token pairs, 0 everywhere else that we know of).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Grid {
    /// Tokens a block.
    pub block_size: NonZeroU32,
    /// Tokens past a block's end that its hash covers too.
    pub lookahead: u32,
}

/// Where a block lies.
///
/// An engine's word for a medium that we do not know is a tier of its own, numbered per rank, and never
/// counts as device.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Tier {
    /// The accelerator's memory.
    Device,
    /// The host's memory.
    Host,
    /// A local disk.
    Disk,
    /// Shared or remote storage.
    External,
    /// A medium this program does not know, the n-th that its rank has named (below [`Tier::OTHERS`]).
    Other(u8),
}

/// A hybrid model's cache group, as its engine numbers them; 0 where an engine has only one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Group(pub u32);

/// What a group's blocks must hold for a prefix to be usable: vLLM's rule for hybrid models.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GroupRule {
    /// Every block from the first on (`full_attention`, `mla_attention`, `sink_full_attention`).
    Full,
    /// The blocks that cover the last `tokens - 1` tokens of the prefix (`sliding_window`).
    Window {
        /// The window, in tokens.
        tokens: u32,
    },
    /// Nobody knows. Only what would satisfy every rule is certain: every block from the first on.
    Unknown,
}

/// Why a block size or a lookahead is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "block size {block_size} with lookahead {lookahead} is not between 1 and {MAX_BLOCK_SIZE} with at most {MAX_LOOKAHEAD}"
)]
pub struct InvalidGrid {
    /// The block size that was asked for.
    pub block_size: u64,
    /// The lookahead that was asked for.
    pub lookahead: u64,
}

// === impl Grid ===

impl Grid {
    /// A grid of `block_size` tokens without lookahead.
    ///
    /// # Errors
    /// [`InvalidGrid`] where the size is 0 or above [`MAX_BLOCK_SIZE`].
    pub fn new(block_size: u64) -> Result<Self, InvalidGrid> {
        Self::with_lookahead(block_size, 0)
    }

    /// A grid whose hashes cover `lookahead` tokens past each block.
    ///
    /// # Errors
    /// [`InvalidGrid`] where either number is out of range.
    pub fn with_lookahead(block_size: u64, lookahead: u64) -> Result<Self, InvalidGrid> {
        let invalid = InvalidGrid { block_size, lookahead };
        if lookahead > u64::from(MAX_LOOKAHEAD) {
            return Err(invalid);
        }
        let size = u32::try_from(block_size).ok().filter(|size| *size <= MAX_BLOCK_SIZE);
        let block_size = size.and_then(NonZeroU32::new).ok_or(invalid)?;
        Ok(Self { block_size, lookahead: lookahead as u32 })
    }

    /// Tokens a block, as a plain number.
    pub const fn size(self) -> u32 {
        self.block_size.get()
    }

    /// How many blocks `tokens` tokens fill: a trailing partial block, or one whose lookahead is
    /// missing, is none.
    pub const fn blocks(self, tokens: usize) -> usize {
        tokens.saturating_sub(self.lookahead as usize) / self.block_size.get() as usize
    }

    /// The content hash of every full block of a prompt.
    ///
    /// `tokens_le` is the prompt as little-endian u32 bytes; bytes past the last whole token are ignored.
    /// `keys(i)` are block i's extra keys in canonical form ([`extra_keys`]), empty for none.
    pub fn contents<'k>(
        self,
        tokens_le: &[u8],
        seed: Seed,
        keys: impl Fn(usize) -> &'k [u8],
        out: &mut Vec<ContentHash>,
    ) {
        let stride = self.block_size.get() as usize * 4;
        let width = stride + self.lookahead as usize * 4;
        let blocks = self.blocks(tokens_le.len() / 4);
        out.reserve(blocks);
        for i in 0..blocks {
            let Some(block) = tokens_le.get(i * stride..i * stride + width) else { return };
            out.push(ContentHash::of_tokens_and_keys(block, keys(i), seed));
        }
    }

    /// [`Grid::contents`] for a prompt without extra keys.
    pub fn plain_contents(self, tokens_le: &[u8], seed: Seed) -> Vec<ContentHash> {
        let mut out = Vec::new();
        self.contents(tokens_le, seed, |_| &[], &mut out);
        out
    }
}

impl fmt::Display for Grid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.lookahead {
            0 => write!(f, "{}", self.block_size),
            n => write!(f, "{}+{n}", self.block_size),
        }
    }
}

// === impl Tier ===

impl Tier {
    /// How many unknown media one rank may name.
    pub const OTHERS: usize = 4;
    /// How many tiers are known: device, host, disk and external, from the nearest to the farthest.
    pub const KNOWN: usize = 4;
    /// How many tiers there are: the known ones, then the unknown ones.
    pub const COUNT: usize = Self::KNOWN + Self::OTHERS;

    /// A dense number below [`Tier::COUNT`]: device 0, host 1, disk 2, external 3, then the others.
    pub const fn index(self) -> usize {
        match self {
            Self::Device => 0,
            Self::Host => 1,
            Self::Disk => 2,
            Self::External => 3,
            Self::Other(n) => 4 + (n as usize) % Self::OTHERS,
        }
    }

    /// Every tier, in the order of [`Tier::index`].
    pub const fn all() -> [Self; Self::COUNT] {
        [
            Self::Device,
            Self::Host,
            Self::Disk,
            Self::External,
            Self::Other(0),
            Self::Other(1),
            Self::Other(2),
            Self::Other(3),
        ]
    }

    /// The tier's word in metrics and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Host => "host",
            Self::Disk => "disk",
            Self::External => "external",
            Self::Other(_) => "other",
        }
    }
}

pub mod extra_keys {
    //! The canonical bytes of what an engine folds into a block's hash besides its tokens.
    //!
    //! LoRA name and cache salt are taken out first (they are in the seed). What is left of one block, in
    //! the engine's order, becomes:
    //!
    //! | the block's items | bytes |
    //! |---|---|
    //! | none | nothing |
    //! | plain unsigned integers only | each as u64 little-endian, sorted ascending |
    //! | anything else | each item in order: a tag, then its body |
    //!
    //! | item | tag | body |
    //! |---|---|---|
    //! | text | `s` | length u32 LE, UTF-8 bytes |
    //! | bytes | `b` | length u32 LE, the bytes |
    //! | integer | `i` | i64 LE (an unsigned one above i64::MAX: tag `u`, u64 LE) |
    //! | float | `f` | f64 bits LE |
    //! | nil, false, true | `n`, `0`, `1` | nothing |
    //! | list | `[` | length u32 LE, then its items |
    //!
    //! The plain-integer form is what SMG and Dynamo append for multimodal hashes.
    //!
    //! Decoders bound the depth of lists (`wire::msgpack::MAX_DEPTH`), so what walks them here may recurse.

    /// One item of a block's extra keys, as an engine or a client sends it.
    #[derive(Clone, PartialEq, Debug)]
    pub enum Item {
        /// Text: a multimodal identifier, for instance.
        Text(String),
        /// Raw bytes: a prompt-embeds digest, for instance.
        Bytes(Vec<u8>),
        /// A signed integer (negative ones only; others are `Unsigned`).
        Signed(i64),
        /// An unsigned integer: a multimodal hash.
        Unsigned(u64),
        /// A float.
        Float(f64),
        /// Nothing.
        Nil,
        /// A truth value.
        Bool(bool),
        /// A list: `[identifier, offset]`, for instance.
        List(Vec<Item>),
    }

    /// How much memory items take, in bytes: their vector, and whatever they point to.
    pub fn memory(items: &Vec<Item>) -> usize {
        let behind = |item: &Item| match item {
            Item::Text(text) => text.capacity(),
            Item::Bytes(bytes) => bytes.capacity(),
            Item::List(items) => memory(items),
            Item::Signed(_) | Item::Unsigned(_) | Item::Float(_) | Item::Nil | Item::Bool(_) => 0,
        };
        items.capacity() * size_of::<Item>() + items.iter().map(behind).sum::<usize>()
    }

    /// Appends the canonical bytes of one block's items to `out`.
    pub fn encode(items: &[Item], out: &mut Vec<u8>) {
        let plain: Option<Vec<u64>> = items
            .iter()
            .map(|item| match item {
                Item::Unsigned(n) => Some(*n),
                _ => None,
            })
            .collect();
        match plain {
            Some(mut numbers) => {
                numbers.sort_unstable();
                for n in numbers {
                    out.extend_from_slice(&n.to_le_bytes());
                }
            }
            None => {
                for item in items {
                    encode_item(item, out);
                }
            }
        }
    }

    fn encode_item(item: &Item, out: &mut Vec<u8>) {
        let mut sized = |tag: u8, bytes: &[u8]| {
            out.push(tag);
            out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            out.extend_from_slice(bytes);
        };
        match item {
            Item::Text(text) => sized(b's', text.as_bytes()),
            Item::Bytes(bytes) => sized(b'b', bytes),
            Item::Signed(n) => {
                out.push(b'i');
                out.extend_from_slice(&n.to_le_bytes());
            }
            Item::Unsigned(n) => {
                match i64::try_from(*n) {
                    Ok(_) => out.push(b'i'),
                    Err(_) => out.push(b'u'),
                }
                out.extend_from_slice(&n.to_le_bytes());
            }
            Item::Float(x) => {
                out.push(b'f');
                out.extend_from_slice(&x.to_bits().to_le_bytes());
            }
            Item::Nil => out.push(b'n'),
            Item::Bool(false) => out.push(b'0'),
            Item::Bool(true) => out.push(b'1'),
            Item::List(items) => {
                out.push(b'[');
                out.extend_from_slice(&(items.len() as u32).to_le_bytes());
                for item in items {
                    encode_item(item, out);
                }
            }
        }
    }
}
