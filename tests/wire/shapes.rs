//! Shapes that no capture happens to hold, and the sentences that decoding keeps about them.

use kvtap::block::extra_keys::Item;
use kvtap::wire::{Batch, Dialect, Event, EventError, Kind, Medium, Stored, decode, msgpack};
use serde_json::{Value, json};

use crate::support::{bits, tokens_of};

/// A batch of `events` in msgpack, decoded.
fn decoded(events: Value) -> Batch {
    let payload = rmp_serde::to_vec(&json!([1.5, events, 0])).unwrap();
    let mut batch = Batch::default();
    decode(Dialect::Auto, &payload, &mut batch).unwrap();
    batch
}

fn reasons(batch: &Batch) -> Vec<EventError> {
    EventError::ALL.into_iter().filter(|error| batch.rejected[error.index()] > 0).collect()
}

fn stored(batch: &Batch, index: usize) -> &Stored {
    match &batch.events[index] {
        Event::Stored(stored) => stored,
        event => panic!("{event:?} is not a store"),
    }
}

fn map(fields: Value) -> Value {
    let mut event = json!({
        "type": "BlockStored", "block_hashes": [1, 2], "parent_block_hash": null, "token_ids": [1, 2, 3, 4], "block_size": 2,
    });
    for (key, value) in fields.as_object().unwrap() {
        event[key] = value.clone();
    }
    event
}

#[test]
fn the_last_lookahead_is_kept_and_the_others_must_be_the_text() {
    let batch = decoded(json!([
        map(json!({"lookahead_token_ids": [[3], [5]]})),
        map(json!({"lookahead_token_ids": [[3, 4, 5], [5, 6, 7]]})),
        map(json!({"lookahead_token_ids": null})),
        map(json!({"lookahead_token_ids": []})),
        map(json!({"lookahead_token_ids": [[], []]})),
    ]));
    assert_eq!(reasons(&batch), []);
    let seen: Vec<_> = (0..5).map(|i| (tokens_of(&batch, stored(&batch, i)), stored(&batch, i).lookahead)).collect();
    let plain = (vec![1, 2, 3, 4], 0);
    assert_eq!(seen, [(vec![1, 2, 3, 4, 5], 1), (vec![1, 2, 3, 4, 5, 6, 7], 3), plain.clone(), plain.clone(), plain]);
}

#[test]
fn a_lookahead_that_speaks_of_other_text_is_refused() {
    for lookahead in
        [json!([[9], [5]]), json!([[3, 4, 9], [5, 6, 7]]), json!([[5]]), json!([[3], [5, 6]]), json!([[3], null])]
    {
        let batch = decoded(json!([map(json!({"lookahead_token_ids": lookahead})), map(json!({}))]));
        assert_eq!(reasons(&batch), [EventError::BadField], "{lookahead}");
        assert_eq!(tokens_of(&batch, stored(&batch, 0)), [1, 2, 3, 4], "the other event stands");
    }
}

#[test]
fn the_lookahead_of_masked_blocks_is_passed_over() {
    let masked = map(json!({"block_hashes": [1], "lookahead_token_ids": [[3]]}));
    let batch = decoded(json!([masked]));
    assert_eq!(tokens_of(&batch, stored(&batch, 0)), [1, 2, 3, 4]);
    assert_eq!(stored(&batch, 0).lookahead, 0);
}

#[test]
fn pairs_are_flattened_where_they_overlap() {
    let batch = decoded(json!([
        map(json!({"token_ids": [[7, 8], [8, 9], [9, 10], [10, 11]]})),
        map(json!({"token_ids": [[7, 8], [9, 10]]})),
        map(json!({"token_ids": [[7, 8, 9]]})),
        map(json!({"token_ids": [[7, 8], 8]})),
    ]));
    assert_eq!(tokens_of(&batch, stored(&batch, 0)), [7, 8, 9, 10, 11]);
    assert_eq!(stored(&batch, 0).lookahead, 1);
    assert_eq!(batch.events.len(), 1);
    assert_eq!(batch.rejected[EventError::BadToken.index()], 3);
}

#[test]
fn tokens_of_every_width_lie_little_endian_one_after_another() {
    let tokens = [0, 1, 127, 128, 255, 256, 65_535, 65_536, u32::MAX];
    let batch = decoded(json!([map(json!({"token_ids": tokens}))]));
    assert_eq!(tokens_of(&batch, stored(&batch, 0)), tokens);
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    assert_eq!(batch.tokens(stored(&batch, 0).tokens), bytes);
}

#[test]
fn tokens_are_read_in_longer_forms_too_and_up_to_the_payloads_end() {
    let forms: [(&[u8], u32); 9] = [
        (b"\x7f", 127),
        (b"\xcc\x05", 5),
        (b"\xcc\xff", 255),
        (b"\xcd\x00\x05", 5),
        (b"\xcd\xff\xff", 65_535),
        (b"\xce\x00\x01\x00\x00", 65_536),
        (b"\xce\xff\xff\xff\xff", u32::MAX),
        (b"\xcf\x00\x00\x00\x00\xff\xff\xff\xff", u32::MAX),
        (b"\xd1\x7f\xff", 32_767),
    ];
    // Each form in every place of a list that ends the payload: a batch of one event, whose last field it is.
    for turn in 0..forms.len() {
        let mut payload = b"\x92\x01\x91\x85\xa4type\xabBlockStored\xacblock_hashes\x91\x01".to_vec();
        payload.extend(b"\xb1parent_block_hash\xc0\xaablock_size\x09\xa9token_ids\x99");
        let turned: Vec<_> = forms.iter().cycle().skip(turn).take(forms.len()).collect();
        turned.iter().for_each(|(bytes, _)| payload.extend_from_slice(bytes));
        let mut batch = Batch::default();
        decode(Dialect::Auto, &payload, &mut batch).unwrap();
        assert_eq!(tokens_of(&batch, stored(&batch, 0)), turned.iter().map(|(_, token)| *token).collect::<Vec<_>>());
    }
}

#[test]
fn the_place_of_the_lora_name_is_read_by_its_type() {
    let event = |seventh: Value| json!(["BlockStored", [1], null, [1, 2], 2, null, "GPU", seventh]);
    let batch = decoded(json!([
        event(json!("adapter")),
        event(json!({"cache_salt": "salt", "lora_name": "adapter", "new": [[]]})),
        event(json!(null)),
        event(json!(5)),
    ]));
    let seen: Vec<_> = (0..3)
        .map(|i| stored(&batch, i))
        .map(|event| (event.lora_name.map(|t| batch.text(t)), event.cache_salt.map(|t| batch.text(t))))
        .collect();
    assert_eq!(seen, [(Some("adapter"), None), (Some("adapter"), Some("salt")), (None, None)]);
    assert_eq!(reasons(&batch), [EventError::BadField]);
}

#[test]
fn a_store_that_does_not_say_its_parent_is_no_root() {
    let mut event = map(json!({}));
    event.as_object_mut().unwrap().remove("parent_block_hash");
    assert_eq!(reasons(&decoded(json!([event]))), [EventError::MissingField]);
}

#[test]
fn media_are_known_in_any_case_and_others_are_kept_by_name() {
    let words =
        ["GPU", "device", "Cpu", "cpu_pinned", "CPU_TIER1", "cpu_tier2", "nvme", "fs", "Remote", "OBJ", "", "hbm2"];
    let events: Vec<_> = words.iter().map(|word| json!(["BlockRemoved", [1], word])).collect();
    let batch = decoded(json!(events));
    let seen: Vec<_> = batch
        .events
        .iter()
        .map(|event| match event {
            Event::Removed(removed) => match removed.medium {
                Medium::Device => "device",
                Medium::Host => "host",
                Medium::Disk => "disk",
                Medium::External => "external",
                Medium::Other(text) => batch.text(text),
            },
            _ => panic!("not a removal"),
        })
        .collect();
    assert_eq!(
        seen,
        ["device", "device", "host", "host", "host", "disk", "disk", "disk", "external", "external", "", "hbm2"]
    );
}

#[test]
fn only_kinds_that_mean_a_present_prefix_are_full() {
    for (word, kind) in [
        ("full_attention", Kind::Full),
        ("mla_attention", Kind::Full),
        ("sink_full_attention", Kind::Full),
        ("sliding_window", Kind::SlidingWindow),
        ("sliding_window_mla", Kind::SlidingWindow),
        ("mamba", Kind::Unknown),
        ("cross_attention", Kind::Unknown),
        ("invented_tomorrow", Kind::Unknown),
    ] {
        let batch = decoded(json!([map(json!({"kv_cache_spec_kind": word}))]));
        assert_eq!(stored(&batch, 0).kind, Some(kind), "{word}");
    }
}

#[test]
fn extra_keys_keep_their_block_and_their_order() {
    let batch = decoded(json!([
        map(json!({"extra_keys": [null, null]})),
        map(json!({"extra_keys": [null, ["a", ["b", -3]]]})),
        map(json!({"extra_keys": [[], []], "mm_keys": [[{"type": "mm_key", "hash": "ff", "start_offset": 4}], null]})),
        map(
            json!({"extra_keys": [[7], null], "block_mm_infos": [{"mm_objects": [{"mm_hash": 3, "offsets": []}]}, null]})
        ),
    ]));
    assert_eq!(reasons(&batch), []);
    let keys = |i: usize| batch.extra_keys(stored(&batch, i).extra_keys).to_vec();
    let text = |text: &str| Item::Text(text.to_owned());
    assert_eq!(keys(0), [] as [Vec<Item>; 0]);
    assert_eq!(keys(1), [vec![], vec![text("a"), Item::List(vec![text("b"), Item::Signed(-3)])]]);
    assert_eq!(keys(2), [vec![Item::List(vec![text("ff"), Item::Unsigned(4)])]]);
    assert_eq!(keys(3), [vec![Item::Unsigned(3), Item::Unsigned(7)]]);
}

#[test]
fn extra_keys_nest_to_the_bound_and_no_further() {
    let nested = |depth: usize| (1..depth).fold(json!([1]), |inner, _| json!([inner]));
    let fits = decoded(json!([map(json!({"extra_keys": [nested(msgpack::MAX_DEPTH)]}))]));
    assert_eq!(reasons(&fits), []);
    let too_deep = decoded(json!([map(json!({"extra_keys": [nested(msgpack::MAX_DEPTH + 1)]}))]));
    assert_eq!(reasons(&too_deep), [EventError::TooDeep]);
}

#[test]
fn a_rejected_event_leaves_no_trace() {
    let bad = map(json!({"lora_name": "tenant", "extra_keys": [["key"]], "group_idx": "x"}));
    let batch = decoded(json!([bad, map(json!({})), ["BlockRemoved", [5, 6]]]));
    assert_eq!(reasons(&batch), [EventError::BadField]);
    let store = stored(&batch, 0);
    let alone = decoded(json!([map(json!({})), ["BlockRemoved", [5, 6]]]));
    assert_eq!(store, stored(&alone, 0), "the same places of the arenas");
    assert_eq!(batch.hashes(store.hashes).iter().map(|hash| bits(*hash).0).collect::<Vec<_>>(), [1, 2]);
}
