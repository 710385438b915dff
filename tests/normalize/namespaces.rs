//! LoRA names, salts, extra keys, grids.

use kvtap::block::Grid;
use kvtap::block::extra_keys::{Item, encode};
use kvtap::hash::{ContentHash, Seed};
use kvtap::normalize::Options;
use kvtap::wire::Dialect;
use serde_json::json;

use crate::support::{SIZE, Tap, le, prompt, removed, stored};

#[test]
fn a_salt_in_the_first_blocks_extra_keys_holds_for_the_whole_chain() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 3);
    tap.send(json!([
        stored(&[1, 2], None, &tokens[..2 * SIZE], json!({"extra_keys": [["tenant-a"], null]})),
        stored(&[3], Some(2), &tokens[2 * SIZE..], json!({"extra_keys": [null]})),
    ]));
    assert_eq!(tap.ask_as(&tokens, Seed::new(None, Some("tenant-a"))).blocks, 3);
    assert_eq!(tap.ask(&tokens).blocks, 0);
    assert_eq!(tap.ask_as(&tokens, Seed::new(None, Some("tenant-b"))).blocks, 0);
}

#[test]
fn a_salt_that_is_named_outright_counts_as_one() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 2);
    tap.send(json!([
        stored(&[1], None, &tokens[..SIZE], json!({"cache_salt": "s"})),
        stored(&[2], Some(1), &tokens[SIZE..], json!({"cache_salt": "s"})),
    ]));
    assert_eq!(tap.ask_as(&tokens, Seed::new(None, Some("s"))).blocks, 2);
}

#[test]
fn adapters_are_told_apart_by_name_and_by_number_only_without_a_name() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 1);
    tap.send(json!([
        stored(&[1], None, &tokens, json!({"lora_id": 7, "lora_name": "sql", "extra_keys": [["sql"]]})),
        stored(&[2], None, &tokens, json!({"lora_id": 9})),
    ]));
    assert_eq!(tap.ask_as(&tokens, Seed::new(Some("sql"), None)).blocks, 1);
    assert_eq!(tap.ask_as(&tokens, Seed::new(Some("7"), None)).blocks, 0);
    assert_eq!(tap.ask_as(&tokens, Seed::new(Some("9"), None)).blocks, 1);
    assert_eq!(tap.ask(&tokens).blocks, 0);
}

#[test]
fn an_empty_name_is_no_name_and_an_empty_salt_is_no_salt() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 1);
    tap.send(json!([
        stored(&[1], None, &tokens, json!({"lora_id": 7, "lora_name": ""})),
        stored(&[2], None, &tokens, json!({"cache_salt": "", "extra_keys": [["tenant"]]})),
    ]));
    assert_eq!(tap.ask_as(&tokens, Seed::new(Some("7"), None)).blocks, 1);
    assert_eq!(tap.ask_as(&tokens, Seed::new(None, Some("tenant"))).blocks, 1);
    assert_eq!(tap.ask(&tokens).blocks, 0, "neither is everybody's");
}

#[test]
fn beside_a_salt_that_is_named_outright_a_bare_text_is_an_image() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 1);
    tap.send(json!([stored(&[1], None, &tokens, json!({"cache_salt": "s", "extra_keys": [["s", "image"]]}))]));
    let seed = Seed::new(None, Some("s"));
    assert_eq!(tap.ask_as(&tokens, seed).blocks, 0, "without the image it is another prompt");
    let mut keys = Vec::new();
    encode(&[Item::Text("image".to_owned())], &mut keys);
    let chain = [ContentHash::of_tokens_and_keys(&le(&tokens), &keys, seed)];
    assert_eq!(tap.ask_chain(Grid::new(SIZE as u64).expect("a valid size"), &chain).blocks, 1);
}

#[test]
fn an_image_is_part_of_its_blocks_content() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 2);
    let keys = json!([["sql", ["image", 2], "tenant"], ["sql", ["image", -2]]]);
    tap.send(json!([stored(&[1, 2], None, &tokens, json!({"lora_name": "sql", "extra_keys": keys}))]));
    let image = |offset| {
        let mut bytes = Vec::new();
        encode(&[Item::List(vec![Item::Text("image".to_owned()), offset])], &mut bytes);
        bytes
    };
    let seed = Seed::new(Some("sql"), Some("tenant"));
    let blocks = [image(Item::Unsigned(2)), image(Item::Signed(-2))];
    let chain: Vec<_> = blocks
        .iter()
        .zip(tokens.chunks(SIZE))
        .map(|(keys, tokens)| ContentHash::of_tokens_and_keys(&le(tokens), keys, seed))
        .collect();
    let grid = Grid::new(SIZE as u64).expect("a valid size");
    assert_eq!(tap.ask_chain(grid, &chain).blocks, 2);
    assert_eq!(tap.ask_as(&tokens, seed).blocks, 0, "without the image it is another prompt");
}

#[test]
fn token_pairs_hash_one_token_past_each_block() {
    let mut tap = Tap::new();
    let tokens: Vec<u32> = (0..2 * SIZE as u32 + 1).collect();
    let pairs: Vec<_> = tokens.windows(2).map(|pair| json!([pair[0], pair[1]])).collect();
    tap.send(json!([stored(&[1, 2], None, &[], json!({"token_ids": pairs}))]));
    let grid = Grid::with_lookahead(SIZE as u64, 1).expect("a valid grid");
    assert_eq!(tap.ask_chain(grid, &grid.plain_contents(&le(&tokens), Seed::PLAIN)).blocks, 2);
    assert_eq!(tap.ask(&tokens).blocks, 0);
}

#[test]
fn a_block_size_that_disagrees_is_refused_with_both_numbers() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 2);
    tap.send(json!([stored(&[1, 2], None, &tokens, json!({}))]));
    tap.send(json!([stored(&[9], None, &tokens, json!({"block_size": 2 * SIZE}))]));
    assert_eq!(tap.dropped("block_size_conflict"), 1);
    let (have, got) = tap.normalizer.conflict().expect("the conflict is remembered");
    assert_eq!((have.size() as usize, got.size() as usize), (SIZE, 2 * SIZE));
    assert_eq!(tap.ask(&tokens).blocks, 2, "what was held stays");
}

#[test]
fn a_block_size_other_than_the_configured_one_is_refused() {
    let mut tap = Tap::with(Options { block_size: Some(16), ..Options::default() });
    tap.send(json!([stored(&[1], None, &prompt(1, 1), json!({}))]));
    assert_eq!(tap.dropped("block_size_conflict"), 1);
    assert_eq!(tap.held(), 0);
}

#[test]
fn block_sizes_out_of_range_cost_their_event_only() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 1);
    tap.send(json!([
        stored(&[8], None, &tokens, json!({"block_size": 0})),
        stored(&[9], None, &tokens, json!({"block_size": u64::MAX})),
        stored(&[1], None, &tokens, json!({})),
    ]));
    assert_eq!(tap.dropped("bad_block_size"), 2);
    assert_eq!(tap.ask(&tokens).blocks, 1);
}

#[test]
fn tokens_that_do_not_fill_the_named_blocks_are_not_guessed_at() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 3);
    tap.send(json!([
        stored(&[1, 3], None, &tokens, json!({})),
        stored(&[], None, &tokens, json!({})),
        removed(&[1, 3], json!({})),
    ]));
    assert_eq!(tap.dropped("not_dense"), 3);
    assert_eq!(tap.dropped("unknown_block"), 2);
    assert_eq!(tap.held(), 0);
}

#[test]
fn a_partial_block_of_tensorrt_llm_fixes_no_grid_whether_a_window_is_named_or_not() {
    let stored = |event: u64, parent: Option<u64>, name: u64, tokens: &[u32], window: Option<u32>| {
        let tokens: Vec<_> = tokens.iter().map(|token| json!({"token_id": token, "token_extra_id": 0})).collect();
        let block = json!({"block_hash": name, "tokens": tokens, "cache_level": 0});
        let data = json!({"type": "stored", "parent_hash": parent, "blocks": [block]});
        let mut event = json!({"event_id": event, "data": data});
        if let Some(window) = window {
            event["window_size"] = json!(window);
        }
        event.to_string()
    };
    for window in [None, Some(4096)] {
        let mut tap = Tap::new();
        let tokens = prompt(1, 2);
        for event in [
            stored(0, None, 7, &[9, 9], window),
            stored(1, None, 1, &tokens[..SIZE], window),
            stored(2, Some(1), 2, &tokens[SIZE..], window),
            stored(3, Some(2), 3, &[8, 8, 8], window),
        ] {
            tap.hear(Dialect::Trtllm, event.as_bytes());
        }
        assert_eq!((tap.ask(&tokens).blocks, tap.held(), tap.dropped("partial_block")), (2, 2, 2), "{window:?}");
        assert_eq!(tap.normalizer.conflict(), None);
    }
    // As batches of its own publisher they come in vLLM's words.
    let mut tap = Tap::new();
    let tokens = prompt(1, 2);
    for (name, tokens) in [(7, &[9, 9][..]), (1, &tokens[..SIZE])] {
        let event = crate::support::stored(&[name], None, tokens, json!({"block_size": tokens.len()}));
        tap.hear(Dialect::Trtllm, &rmp_serde::to_vec(&json!([0.5, [event]])).expect("JSON values encode"));
    }
    assert_eq!((tap.ask(&tokens).blocks, tap.dropped("partial_block")), (1, 1));
}

#[test]
fn a_new_epoch_forgets_block_size_and_blocks() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 2);
    tap.send(json!([stored(&[1, 2], None, &tokens, json!({}))]));
    tap.normalizer.reset(kvtap::worker::Stamp { epoch: 2, sequence: None }).expect("the rank is registered");
    assert_eq!(tap.held(), 0);
    tap.send(json!([stored(&[1], None, &tokens, json!({"block_size": 2 * SIZE}))]));
    assert_eq!(tap.dropped("block_size_conflict"), 0);
    assert_eq!(tap.held(), 1);
}
