//! A `MatchRequest`, checked as far as that goes without knowing the fleet.

use std::borrow::Cow;
use std::num::NonZeroU32;
use std::time::Instant;

use bytes::Bytes;

use super::error::QueryError;
use crate::block::MAX_BLOCK_SIZE;
use crate::hash::{ContentHash, PrefixHash, Seed};
use crate::proto::v1::{FeedState, MatchRequest, match_request};
use crate::proto::{MAX_EXTRA_KEYS, MAX_NAMES, MAX_STATES};

/// A checked request. Borrows the message.
#[derive(Debug)]
pub(super) struct Query<'a> {
    /// The model's name; may be unknown.
    pub(super) model: &'a str,
    /// The prompt.
    pub(super) prompt: Prompt<'a>,
    /// The only block size to answer on.
    pub(super) block_size: Option<NonZeroU32>,
    /// Whom to ask; empty for everybody.
    pub(super) workers: &'a [String],
    /// Which ranks to ask; empty for all.
    pub(super) ranks: &'a [u32],
    /// In which states feeds are asked; `None` for any. One bit each, by the state's number in the protocol.
    pub(super) states: Option<u64>,
    /// When the caller gives up.
    pub(super) deadline: Option<Instant>,
    /// How many ranks to answer with.
    pub(super) top_k: usize,
    /// How many blocks a rank must match to be answered with.
    pub(super) min_blocks: u32,
    /// Whether answers leave out what a score does not need.
    pub(super) brief: bool,
}

/// What is asked about, in one of its forms.
pub(super) enum Prompt<'a> {
    /// Tokens, which each grid cuts its own way.
    Tokens {
        /// Little-endian u32 bytes, whole tokens only.
        tokens_le: Cow<'a, [u8]>,
        /// LoRA name and salt.
        seed: Seed,
        /// Extra keys per block, canonical.
        keys: &'a [Bytes],
    },
    /// Content hashes.
    Contents(Vec<ContentHash>),
    /// Prefix hashes.
    Prefixes(Vec<PrefixHash>),
}

// === impl Query ===

impl<'a> Query<'a> {
    /// Checks a request. `deadline`: when the caller gives up.
    pub(super) fn new(request: &'a MatchRequest, deadline: Option<Instant>) -> Result<Self, QueryError> {
        if request.block_size > MAX_BLOCK_SIZE {
            return Err(QueryError::BadBlockSize { got: request.block_size, max: MAX_BLOCK_SIZE });
        }
        bounded("workers", request.workers.len(), MAX_NAMES)?;
        bounded("ranks", request.ranks.len(), MAX_NAMES)?;
        bounded("states", request.states.len(), MAX_STATES)?;
        bounded("extra_keys", request.extra_keys.len(), MAX_EXTRA_KEYS)?;
        if request.workers.iter().any(String::is_empty) {
            return Err(QueryError::EmptyName);
        }
        Ok(Self {
            model: &request.model,
            prompt: Prompt::new(request)?,
            block_size: NonZeroU32::new(request.block_size),
            workers: &request.workers,
            ranks: &request.ranks,
            states: states(&request.states)?,
            deadline,
            top_k: match request.top_k {
                0 => usize::MAX,
                k => k as usize,
            },
            min_blocks: request.min_blocks,
            brief: request.brief,
        })
    }
}

/// Refuses a list with too many entries.
pub(super) fn bounded(field: &'static str, got: usize, max: usize) -> Result<(), QueryError> {
    if got > max { Err(QueryError::TooMany { field, max }) } else { Ok(()) }
}

/// What a request takes to answer, in bytes of its prompt: what is hashed, and what is looked up.
pub(super) fn weight(request: &MatchRequest) -> usize {
    use match_request::Prompt as Form;
    let prompt = match &request.prompt {
        None => 0,
        Some(Form::TokensLe(raw) | Form::ContentHashesLe(raw) | Form::PrefixHashesLe(raw)) => raw.len(),
        Some(Form::Tokens(list)) => list.ids.len() * 4,
        Some(Form::ContentHashes(list) | Form::PrefixHashes(list)) => list.hashes.len() * 8,
    };
    prompt + request.extra_keys.iter().map(|key| key.len() + size_of::<Bytes>()).sum::<usize>()
}

fn states(states: &[i32]) -> Result<Option<u64>, QueryError> {
    let bit = |got: i32| match FeedState::try_from(got) {
        Ok(FeedState::Unspecified) | Err(_) => Err(QueryError::BadState { got }),
        Ok(state) => Ok(1u64 << (state as u32)),
    };
    let bits = states.iter().try_fold(0, |bits, got| Ok(bits | bit(*got)?))?;
    Ok((bits != 0).then_some(bits))
}

// === impl Prompt ===

impl<'a> Prompt<'a> {
    fn new(request: &'a MatchRequest) -> Result<Self, QueryError> {
        use match_request::Prompt as Form;
        let form = request.prompt.as_ref().ok_or(QueryError::NoPrompt)?;
        let tokens = |tokens_le| Self::Tokens {
            tokens_le,
            seed: Seed::new(Some(&request.lora_name), Some(&request.cache_salt)),
            keys: &request.extra_keys,
        };
        let prompt = match form {
            Form::TokensLe(raw) if !raw.len().is_multiple_of(4) => {
                return Err(QueryError::NotWhole { field: "tokens_le", got: raw.len(), unit: 4 });
            }
            Form::TokensLe(raw) => tokens(Cow::Borrowed(raw.as_ref())),
            Form::Tokens(list) => {
                let mut bytes = Vec::with_capacity(list.ids.len() * 4);
                bytes.extend(list.ids.iter().flat_map(|id| id.to_le_bytes()));
                tokens(Cow::Owned(bytes))
            }
            Form::ContentHashesLe(raw) => {
                Self::Contents(hashes_le("content_hashes_le", raw)?.map(ContentHash).collect())
            }
            Form::ContentHashes(list) => Self::Contents(list.hashes.iter().copied().map(ContentHash).collect()),
            Form::PrefixHashesLe(raw) => Self::Prefixes(hashes_le("prefix_hashes_le", raw)?.map(PrefixHash).collect()),
            Form::PrefixHashes(list) => Self::Prefixes(list.hashes.iter().copied().map(PrefixHash).collect()),
        };
        if !matches!(prompt, Self::Tokens { .. }) {
            // A salt that is given and not used would match another tenant's blocks.
            for (field, given) in [
                ("lora_name", !request.lora_name.is_empty()),
                ("cache_salt", !request.cache_salt.is_empty()),
                ("extra_keys", !request.extra_keys.is_empty()),
            ] {
                if given {
                    return Err(QueryError::OnlyWithTokens { field });
                }
            }
        }
        Ok(prompt)
    }

    /// The field that only one block size can answer, where there is one.
    pub(super) fn needs_block_size(&self) -> Option<&'static str> {
        match self {
            Self::Tokens { keys: [], .. } => None,
            Self::Tokens { .. } => Some("extra_keys"),
            Self::Contents(_) => Some("content hashes"),
            Self::Prefixes(_) => Some("prefix hashes"),
        }
    }
}

/// Shows the form and its length only: the rest is a prompt.
impl std::fmt::Debug for Prompt<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tokens { tokens_le, .. } => write!(f, "Tokens({} bytes)", tokens_le.len()),
            Self::Contents(hashes) => write!(f, "Contents({})", hashes.len()),
            Self::Prefixes(hashes) => write!(f, "Prefixes({})", hashes.len()),
        }
    }
}

fn hashes_le(field: &'static str, raw: &[u8]) -> Result<impl Iterator<Item = u64>, QueryError> {
    match raw.as_chunks::<8>() {
        (hashes, []) => Ok(hashes.iter().map(|bytes| u64::from_le_bytes(*bytes))),
        _ => Err(QueryError::NotWhole { field, got: raw.len(), unit: 8 }),
    }
}
