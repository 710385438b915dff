//! What every decoder produces: one [`Batch`] of engine events, in a buffer that is used again.
//!
//! Events hold ranges into the batch's arenas, so that decoding a message allocates nothing once the arenas
//! have grown, and tokens lie ready to be hashed: little-endian u32, one after another.

use std::ops::Range;

use crate::block::extra_keys::{self, Item};
use crate::hash::{ContentHash, EngineHash};

use super::error::EventError;

/// One decoded engine message.
#[derive(Debug, Default)]
pub struct Batch {
    /// The engine's clock when it made the batch, in seconds; NaN where its feed sends none.
    pub timestamp: f64,
    /// The data-parallel rank that the batch itself names.
    pub rank: Option<u32>,
    /// Its engine tells of partial blocks as of others, and does not say which they are (TensorRT-LLM).
    pub has_unmarked_partials: bool,
    /// The events that could be decoded, in order.
    pub events: Vec<Event>,
    /// Events that could not, by [`EventError::index`].
    pub rejected: [u32; EventError::COUNT],
    /// Whose events these are, where a message carries those of several (TensorRT-LLM's JSON, Dynamo): runs in
    /// the order of the events, every event in one. Empty for an engine's own batch, which is all of one rank.
    pub runs: Vec<Run>,
    pub(super) tokens: Vec<u8>,
    pub(super) hashes: Vec<EngineHash>,
    pub(super) contents: Vec<ContentHash>,
    pub(super) text: String,
    pub(super) keys: Vec<Vec<Item>>,
    /// How many items these have, those in lists included.
    pub(super) items: usize,
    /// JSON, rewritten as msgpack.
    pub(super) scratch: Vec<u8>,
}

/// Events of a message, one after another, that share a source.
///
/// Their ids follow one another: where an id is missing, a new run begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// The worker, as Dynamo numbers them.
    pub worker: Option<u64>,
    /// The data-parallel rank.
    pub rank: Option<u32>,
    /// The source's own numbers of the first and the last message event of the run, also of one that was
    /// rejected or meant nothing to an index. Dynamo before 0.9 gives several events one number.
    pub ids: Option<(u64, u64)>,
    /// Which of [`Batch::events`].
    pub events: Range<usize>,
}

/// One engine event.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    /// Blocks were stored.
    Stored(Stored),
    /// Blocks were removed.
    Removed(Removed),
    /// The rank's whole cache was cleared.
    Cleared,
}

/// Blocks that an engine stored: the first under `parent`, each next under the one before.
#[derive(Clone, PartialEq, Debug)]
pub struct Stored {
    /// The engine's names, see [`Batch::hashes`].
    pub hashes: Span,
    /// The name of the block before the first; `None` for block 0 of a prompt.
    pub parent: Option<EngineHash>,
    /// The tokens, see [`Batch::tokens`]; empty where the engine sends none (offload placeholders).
    pub tokens: Span,
    /// Content hashes in place of tokens, see [`Batch::contents`] (feeds that hash for us).
    pub contents: Span,
    /// Tokens a block as the event says, unchecked; 0 where it does not say.
    pub block_size: u64,
    /// Tokens past each block that its hash covers: the tokens then number `blocks * block_size + lookahead`.
    pub lookahead: u32,
    /// Where the blocks lie.
    pub medium: Medium,
    /// LoRA adapter by name.
    pub lora_name: Option<Text>,
    /// LoRA adapter by number.
    pub lora_id: Option<u64>,
    /// The cache salt, where the event names it outright (SGLang).
    pub cache_salt: Option<Text>,
    /// Extra keys of each block, see [`Batch::extra_keys`]; empty where no block has any.
    pub extra_keys: Span,
    /// The cache group.
    pub group: Option<u32>,
    /// What kind of group that is.
    pub kind: Option<Kind>,
    /// A sliding-window group's window in tokens.
    pub window: Option<u64>,
}

/// Blocks that an engine removed.
#[derive(Clone, PartialEq, Debug)]
pub struct Removed {
    /// The engine's names.
    pub hashes: Span,
    /// From where.
    pub medium: Medium,
    /// From which cache group.
    pub group: Option<u32>,
}

/// An engine's word for where a block lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Medium {
    /// `GPU`, `DEVICE`, or nothing at all.
    Device,
    /// `CPU`, `CPU_PINNED`, `CPU_TIER1`.
    Host,
    /// `CPU_TIER2`, `DISK`, `NVME`, `STORAGE`, `FS`.
    Disk,
    /// `EXTERNAL`, `NETWORK`, `REMOTE`, `SHARED`, `OBJ`.
    External,
    /// Any other word, as it came.
    Other(Text),
}

/// A cache group's kind, by the engine's word for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `full_attention`, `mla_attention`, `sink_full_attention`: a held block means a present prefix.
    Full,
    /// `sliding_window` and its variants.
    SlidingWindow,
    /// `mamba`, `chunked_local_attention`, `encoder_only_attention`, `cross_attention`, or a word we do not know.
    Unknown,
}

/// A range of one of a batch's arenas.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Span {
    pub(super) start: u32,
    pub(super) end: u32,
}

/// A range of a batch's text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Text(pub(super) Span);

// === impl Batch ===

impl Batch {
    /// Empties the batch and keeps its memory, up to what an ordinary message needs.
    pub fn clear(&mut self) {
        /// Arenas larger than this (bytes) are given back after the message that needed them.
        const KEEP: usize = 1 << 20;
        self.timestamp = f64::NAN;
        self.rank = None;
        self.has_unmarked_partials = false;
        self.events.clear();
        self.rejected = [0; EventError::COUNT];
        self.runs.clear();
        self.tokens.clear();
        self.hashes.clear();
        self.contents.clear();
        self.text.clear();
        self.keys.clear();
        self.items = 0;
        self.scratch.clear();
        self.tokens.shrink_to(KEEP);
        self.hashes.shrink_to(KEEP / size_of::<EngineHash>());
        self.contents.shrink_to(KEEP / size_of::<ContentHash>());
        self.text.shrink_to(KEEP);
        self.keys.shrink_to(KEEP / size_of::<Vec<Item>>());
        self.events.shrink_to(KEEP / size_of::<Event>());
        self.runs.shrink_to(KEEP / size_of::<Run>());
        self.scratch.shrink_to(KEEP);
    }

    /// The engine hashes of an event.
    pub fn hashes(&self, span: Span) -> &[EngineHash] {
        self.hashes.get(span.range()).unwrap_or_default()
    }

    /// The tokens of an event as little-endian u32 bytes.
    pub fn tokens(&self, span: Span) -> &[u8] {
        self.tokens.get(span.range()).unwrap_or_default()
    }

    /// The content hashes of an event whose feed sends them in place of tokens.
    pub fn contents(&self, span: Span) -> &[ContentHash] {
        self.contents.get(span.range()).unwrap_or_default()
    }

    /// The extra keys of each block of an event, as the engine sent them (LoRA name and salt still in);
    /// shorter than the event has blocks where the engine sent fewer.
    pub fn extra_keys(&self, span: Span) -> &[Vec<Item>] {
        self.keys.get(span.range()).unwrap_or_default()
    }

    /// A piece of text.
    pub fn text(&self, text: Text) -> &str {
        self.text.get(text.0.range()).unwrap_or_default()
    }

    /// How much memory the arenas hold, in bytes, used or not.
    pub fn allocated_bytes(&self) -> usize {
        self.tokens.capacity()
            + self.hashes.capacity() * size_of::<EngineHash>()
            + self.contents.capacity() * size_of::<ContentHash>()
            + self.text.capacity()
            + self.keys.capacity() * size_of::<Vec<Item>>()
            + self.keys.iter().map(extra_keys::memory).sum::<usize>()
            + self.events.capacity() * size_of::<Event>()
            + self.runs.capacity() * size_of::<Run>()
            + self.scratch.capacity()
    }

    /// How many events could not be decoded.
    pub fn rejected_events(&self) -> u64 {
        self.rejected.iter().map(|n| u64::from(*n)).sum()
    }
}

// === impl Removed ===

impl Removed {
    /// Both as one, where `next` is from the same place and its names stand behind these.
    pub fn joined(&self, next: &Self) -> Option<Self> {
        let goes_on = self.hashes.end == next.hashes.start && self.medium == next.medium && self.group == next.group;
        goes_on.then(|| Self { hashes: Span { end: next.hashes.end, ..self.hashes }, ..self.clone() })
    }

    /// Whether `self` names the very blocks of `other` once more, for another medium: what a decoder makes of a
    /// removal whose engine does not say where the blocks lay (TensorRT-LLM).
    pub fn is_twin_of(&self, other: &Self) -> bool {
        !self.hashes.is_empty()
            && self.hashes == other.hashes
            && self.group == other.group
            && self.medium != other.medium
    }
}

// === impl Medium ===

impl Medium {
    /// The medium that an engine's `word` means, in any case. `None` where the word is not one we know.
    pub(super) fn known(word: &[u8]) -> Option<Self> {
        const WORDS: [(&[u8], Medium); 15] = [
            (b"GPU", Medium::Device),
            (b"DEVICE", Medium::Device),
            (b"CPU", Medium::Host),
            (b"CPU_PINNED", Medium::Host),
            (b"CPU_TIER1", Medium::Host),
            (b"CPU_TIER2", Medium::Disk),
            (b"DISK", Medium::Disk),
            (b"NVME", Medium::Disk),
            (b"STORAGE", Medium::Disk),
            (b"FS", Medium::Disk),
            (b"EXTERNAL", Medium::External),
            (b"NETWORK", Medium::External),
            (b"REMOTE", Medium::External),
            (b"SHARED", Medium::External),
            (b"OBJ", Medium::External),
        ];
        match word {
            b"GPU" => Some(Self::Device),
            b"CPU" => Some(Self::Host),
            _ => WORDS.iter().find(|(known, _)| known.eq_ignore_ascii_case(word)).map(|(_, medium)| *medium),
        }
    }
}

// === impl Kind ===

impl Kind {
    /// The kind that an engine's `word` means.
    pub(super) fn of(word: &[u8]) -> Self {
        match word {
            b"full_attention" | b"mla_attention" | b"sink_full_attention" => Self::Full,
            _ if word.starts_with(b"sliding_window") => Self::SlidingWindow,
            _ => Self::Unknown,
        }
    }
}

// === impl Span ===

impl Span {
    /// Decoders keep both below `u32::MAX`, see `wire::arena`.
    pub(super) const fn new(start: usize, end: usize) -> Self {
        Self { start: start as u32, end: end as u32 }
    }

    /// How many items (bytes, for tokens) the range holds.
    pub const fn len(self) -> usize {
        (self.end - self.start) as usize
    }

    /// Whether there is nothing in it.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    pub(super) const fn range(self) -> Range<usize> {
        self.start as usize..self.end as usize
    }
}
