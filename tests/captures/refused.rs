//! What is refused, by the lines of the captures: stated, not computed.

/// What is refused, or says nothing: the line, the reason, how many blocks or events.
pub type Refusal = (&'static str, &'static str, u64);

/// A batch names another rank than its socket has: applied all the same.
pub const SGLANG_RANKS: &[Refusal] = &[
    ("dp_rank_1_connect_mode", "rank_conflict", 1),
    ("dp_rank_2_connect_mode", "rank_conflict", 1),
    ("dp_rank_bind_wildcard", "rank_conflict", 1),
    ("synthetic_dp_rank_caller", "rank_conflict", 1),
];
pub const VLLM_RANKS: &[Refusal] = &[
    ("dp_rank_1_connect_mode", "rank_conflict", 1),
    ("dp_rank_3_connect_mode", "rank_conflict", 1),
    ("dp_rank_bind_wildcard", "rank_conflict", 1),
    ("synthetic_dp_rank_300", "rank_conflict", 1),
    ("synthetic_dp_rank_set_by_caller_7", "rank_conflict", 1),
];
/// Two blocks are stored, a clear drops them, and one of them is removed after it.
pub const SGLANG_REMOVED_AFTER_A_CLEAR: &[Refusal] = &[("synthetic_order_mixed", "unknown_block", 1)];
pub const VLLM_REMOVED_AFTER_A_CLEAR: &[Refusal] =
    &[("synthetic_order_stored_removed_cleared_stored", "unknown_block", 1)];
/// Blocks under a parent that nobody knows are removed while they wait for it.
pub const SGLANG_REMOVED_WAITING: &[Refusal] = &[("synthetic_hash_negative_widths", "orphan_removed", 10)];
pub const VLLM_REMOVED_WAITING: &[Refusal] =
    &[("synthetic_hash_negative_widths", "orphan_removed", 10), ("synthetic_hash_bytes_32", "orphan_removed", 1)];
/// Where names are not chained an unknown parent proves nothing, so such blocks are not even kept waiting.
pub const SGLANG_UNROOTED: &[Refusal] = &[
    ("synthetic_hash_unsigned_widths", "unrooted", 15),
    ("synthetic_hash_negative_widths", "unrooted", 10),
    ("synthetic_hash_negative_widths", "unknown_block", 10),
    ("synthetic_parent_zero", "unrooted", 1),
];
/// Blocks that nobody has stored are removed.
pub const SGLANG_REMOVED_BY_NUMBER: &[Refusal] = &[("synthetic_remove_70000", "unknown_block", 70_000)];
pub const VLLM_REMOVED_BY_NUMBER: &[Refusal] = &[("synthetic_remove_many_in_one_event", "unknown_block", 70_000)];
/// 31 tokens for two blocks of 16; and a block of a name that was never announced with tokens.
pub const VLLM_WITHOUT_ITS_TOKENS: &[Refusal] =
    &[("synthetic_tokens_not_multiple", "not_dense", 2), ("synthetic_block_size_zero_placeholder", "unknown_block", 1)];
/// A medium with a name of many kilobytes: its store and its removal.
pub const VLLM_LONG_MEDIUM: &[Refusal] = &[("synthetic_medium_long", "too_many_media", 2)];
/// The tokens cover more blocks than have names, and which is not said.
pub const VLLM_NULL_BLOCKS: &[Refusal] =
    &[("engine_all_null_blocks", "not_dense", 1), ("engine_null_blocks_skipped", "not_dense", 3)];
/// Three blocks are offloaded and dropped again that the device's events never announced: the capture begins too late.
pub const VLLM_OFFLOADED: &[Refusal] = &[("engine_offloading_connector_cpu", "unknown_block", 6)];
pub const VLLM_OFFLOADED_PLACEHOLDERS: &[Refusal] = &[
    ("engine_offloading_cpu_placeholder", "unknown_block", 6),
    ("engine_offloading_storage_remote", "unknown_block", 6),
];
/// Two blocks move to the host; of the device, which they leave, the capture has not seen them come.
pub const SGLANG_MOVED: &[Refusal] = &[("engine_hicache_cpu_store_gpu_remove", "unknown_block", 2)];

/// Blocks of 16 tokens are promised; these have 1, 2, 4 or 64. A lone smaller block looks like a partial one. What of
/// them is removed later was never held.
pub const SGLANG_NOT_OF_16: &[Refusal] = &[
    ("dp_rank_0_connect_mode", "partial_block", 1),
    ("dp_rank_1_connect_mode", "partial_block", 1),
    ("dp_rank_2_connect_mode", "partial_block", 1),
    ("engine_eagle_bigram_token_pairs", "block_size_conflict", 3),
    ("engine_page_size_1", "block_size_conflict", 4),
    ("engine_page_size_64", "block_size_conflict", 4),
    ("engine_wide_token_ids", "block_size_conflict", 3),
    ("synthetic_hash_negative_widths", "block_size_conflict", 10),
    ("synthetic_hash_negative_widths", "unknown_block", 10),
    ("synthetic_hash_unsigned_widths", "block_size_conflict", 15),
    ("synthetic_lora_id_int", "partial_block", 1),
    ("synthetic_medium_CPU", "partial_block", 1),
    ("synthetic_medium_CPU", "unknown_block", 1),
    ("synthetic_medium_CPU_PINNED", "partial_block", 1),
    ("synthetic_medium_CPU_PINNED", "unknown_block", 1),
    ("synthetic_medium_DISK", "partial_block", 1),
    ("synthetic_medium_DISK", "unknown_block", 1),
    ("synthetic_medium_EXTERNAL", "partial_block", 1),
    ("synthetic_medium_EXTERNAL", "unknown_block", 1),
    ("synthetic_medium_GPU", "partial_block", 1),
    ("synthetic_medium_GPU", "unknown_block", 1),
    ("synthetic_medium_None", "partial_block", 1),
    ("synthetic_medium_None", "unknown_block", 1),
    ("synthetic_order_mixed", "block_size_conflict", 2),
    ("synthetic_order_mixed", "partial_block", 1),
    ("synthetic_order_mixed", "unknown_block", 2),
    ("synthetic_parent_zero", "partial_block", 1),
    ("topic_??_?", "partial_block", 1),
    ("topic_kv-events", "partial_block", 1),
    ("topic_kv@pod-1@m", "partial_block", 1),
];
