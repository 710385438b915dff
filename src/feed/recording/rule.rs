//! What may be read of each field in a redacted recording.

/// How a field's value is rewritten.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Rule {
    /// Numbers stay: sizes, groups, ranks, times. Anything else is secret.
    Number,
    /// One of a few words of the protocol stays. Anything else is secret.
    Word,
    /// Engine hashes.
    Hash,
    /// Token ids.
    Token,
    /// An id that makes a token another one; 0 is none, and stays.
    Extra,
    /// Whatever it holds.
    Secret,
    /// Values with names of their own.
    Named,
}

/// Words that mean something to a decoder and nothing about a prompt.
const WORDS: [&[u8]; 38] = [
    b"BlockStored",
    b"BlockRemoved",
    b"AllBlocksCleared",
    b"GPU",
    b"DEVICE",
    b"CPU",
    b"CPU_PINNED",
    b"CPU_TIER1",
    b"CPU_TIER2",
    b"DISK",
    b"NVME",
    b"STORAGE",
    b"FS",
    b"EXTERNAL",
    b"NETWORK",
    b"REMOTE",
    b"LOCAL",
    b"SHARED",
    b"OBJ",
    b"full_attention",
    b"mla_attention",
    b"sink_full_attention",
    b"sliding_window",
    b"sliding_window_mla",
    b"mamba",
    b"chunked_local_attention",
    b"encoder_only_attention",
    b"cross_attention",
    b"created",
    b"stored",
    b"removed",
    b"updated",
    b"stored_block",
    b"unique_token",
    b"event_diff",
    b"mm_key",
    b"v1_block_key",
    b"v2_sha256",
];

/// The order of a positional `BlockStored` after its tag.
pub(super) const STORED: [Rule; 11] = [
    Rule::Hash,
    Rule::Hash,
    Rule::Token,
    Rule::Number,
    Rule::Number,
    Rule::Word,
    Rule::Secret,
    Rule::Secret,
    Rule::Number,
    Rule::Word,
    Rule::Number,
];

/// The order of a positional `BlockRemoved` after its tag.
pub(super) const REMOVED: [Rule; 3] = [Rule::Hash, Rule::Word, Rule::Number];

// === impl Rule ===

impl Rule {
    /// The rule of a named field; `None` for a name that is not known, which is a secret itself.
    pub(super) fn of(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"block_hashes" | b"parent_block_hash" | b"block_hash" | b"parent_hash" => Self::Hash,
            b"token_ids" | b"lookahead_token_ids" | b"token_id" => Self::Token,
            b"token_extra_id" => Self::Extra,
            b"type" | b"medium" | b"kv_cache_spec_kind" | b"hash_algo" | b"locality" => Self::Word,
            b"block_size"
            | b"lora_id"
            | b"group_idx"
            | b"kv_cache_spec_sliding_window"
            | b"ts"
            | b"timestamp"
            | b"data_parallel_rank"
            | b"attn_dp_rank"
            | b"dp_rank"
            | b"event_id"
            | b"window_size"
            | b"attention_dp_rank"
            | b"layer_group_id"
            | b"old_value"
            | b"new_value"
            | b"num_blocks_per_cache_level" => Self::Number,
            b"data" | b"blocks" | b"tokens" | b"events" | b"cache_level" | b"priority" => Self::Named,
            b"lora_name" | b"cache_salt" | b"extra_keys" | b"mm_keys" | b"block_mm_infos" | b"mm_objects"
            | b"mm_hash" | b"offsets" | b"hash" | b"start_offset" | b"uuid" | b"session_id" | b"ownership" => {
                Self::Secret
            }
            _ => return None,
        })
    }

    /// Whether a text is a word of the protocol, in any case.
    pub(super) fn is_word(word: &[u8]) -> bool {
        WORDS.iter().any(|known| known.eq_ignore_ascii_case(word))
    }
}
