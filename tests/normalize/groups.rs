//! Hybrid models: which group names content, and what the others cut.

use serde_json::json;

use crate::support::{SIZE, Tap, prompt, removed, stored};

fn full() -> serde_json::Value {
    json!({"group_idx": 0, "kv_cache_spec_kind": "full_attention"})
}

fn window(tokens: u32) -> serde_json::Value {
    json!({"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "kv_cache_spec_sliding_window": tokens})
}

#[test]
fn a_sliding_group_cuts_the_prefix_to_where_its_window_is_held() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 4);
    // A window of 2 blocks and one token: two whole blocks before the next token must be held.
    let sliding = window(2 * SIZE as u32 + 1);
    tap.send(json!([
        stored(&[1, 2, 3, 4], None, &tokens, full()),
        stored(&[1, 2, 3, 4], None, &tokens, sliding.clone()),
    ]));
    assert_eq!(tap.ask(&tokens).blocks, 4);
    tap.send(json!([removed(&[1], json!({"group_idx": 1}))]));
    assert_eq!(tap.ask(&tokens).blocks, 4, "the first block lies before the window");
    tap.send(json!([removed(&[3], json!({"group_idx": 1}))]));
    assert_eq!(tap.ask(&tokens).blocks, 0, "no two blocks in a row end anywhere, and block 0 is gone");
    tap.send(json!([stored(&[1], None, &tokens[..SIZE], sliding)]));
    assert_eq!(tap.ask(&tokens).blocks, 2, "a run that reaches block 0 will do");
}

#[test]
fn sparse_stores_of_a_sliding_group_are_held_by_name() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 4);
    tap.send(json!([
        stored(&[1, 2, 3, 4], None, &tokens, full()),
        stored(&[3, 4], None, &tokens, window(2 * SIZE as u32)),
    ]));
    assert_eq!(tap.dropped("not_dense"), 0);
    assert_eq!(tap.ask(&tokens).blocks, 4);
}

#[test]
fn a_group_whose_rule_nobody_knows_cuts_to_what_is_certain_and_says_so() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 3);
    tap.send(json!([
        stored(&[1, 2, 3], None, &tokens, full()),
        stored(&[3], None, &tokens, json!({"group_idx": 1, "kv_cache_spec_kind": "mamba", "block_size": SIZE})),
    ]));
    let answer = tap.ask(&tokens);
    assert_eq!((answer.blocks, answer.cut_by_unknown_group), (0, true));
}

#[test]
fn a_second_full_attention_group_must_hold_the_block_too() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 2);
    let second = json!({"group_idx": 3, "kv_cache_spec_kind": "full_attention"});
    tap.send(json!([stored(&[1, 2], None, &tokens, full()), stored(&[1, 2], None, &tokens, second)]));
    assert_eq!(tap.ask(&tokens).blocks, 2);
    tap.send(json!([removed(&[2], json!({"group_idx": 3}))]));
    assert_eq!(tap.ask(&tokens).blocks, 1);
}

#[test]
fn the_kind_of_a_group_is_remembered_for_its_removals() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 2);
    tap.send(json!([stored(&[1, 2], None, &tokens, full()), stored(&[1, 2], None, &tokens, window(5))]));
    tap.send(json!([removed(&[2], json!({"group_idx": 1}))]));
    assert_eq!(tap.dropped("unknown_block"), 0);
    assert_eq!(tap.ask(&tokens).blocks, 1);
}

#[test]
fn a_hybrid_engine_that_comes_back_without_groups_is_not_cut_by_the_old_ones() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 2);
    tap.send(json!([stored(&[1, 2], None, &tokens, full()), stored(&[], None, &tokens, window(5))]));
    assert_eq!(tap.ask(&tokens).blocks, 0);
    tap.normalizer.reset(kvtap::worker::Stamp { epoch: 2, sequence: None }).expect("the rank is registered");
    tap.send(json!([stored(&[1, 2], None, &tokens, json!({}))]));
    assert_eq!(tap.ask(&tokens).blocks, 2);
}
