//! TensorRT-LLM: its JSON, its own publisher, and Dynamo's publisher for it.

use kvtap::block::extra_keys::Item;
use kvtap::wire::{Batch, Dialect, Event, EventError, Medium, MessageError, Removed, Stored, decode, frames};
use serde_json::{Value, json};

use crate::support::{self, TRTLLM, assert_means, bits, hash, lines, text, tokens_of};

fn decoded(json: &str) -> Batch {
    let mut batch = Batch::default();
    decode(Dialect::Trtllm, json.as_bytes(), &mut batch).unwrap_or_else(|error| panic!("{error}"));
    let mut auto = Batch::default();
    decode(Dialect::Auto, json.as_bytes(), &mut auto).unwrap();
    assert_eq!(batch.events, auto.events, "JSON is known by its look");
    batch
}

fn stored(batch: &Batch, index: usize) -> &Stored {
    match &batch.events[index] {
        Event::Stored(stored) => stored,
        event => panic!("{event:?} is not a store"),
    }
}

fn removed(batch: &Batch, index: usize) -> &Removed {
    match &batch.events[index] {
        Event::Removed(removed) => removed,
        event => panic!("{event:?} is not a removal"),
    }
}

fn hash_of(value: &Value) -> (u64, u64) {
    match value {
        Value::String(digits) => hash(&format!("0x{digits}")),
        number => (number.as_u64().unwrap(), 0),
    }
}

/// Asserts that the events of `batch` from `at` on are what one JSON event means; how many those are.
fn assert_event(batch: &Batch, at: usize, event: &Value, name: &str) -> usize {
    let data = &event["data"];
    let window = event["window_size"].as_u64();
    let group = event["layer_group_id"].as_u64().or(window).map(|group| group as u32);
    let hashes = |span| batch.hashes(span).iter().copied().map(bits).collect::<Vec<_>>();
    match data["type"].as_str().unwrap() {
        "created" => 0,
        "stored" => {
            let store = stored(batch, at);
            let blocks = data["blocks"].as_array().unwrap();
            assert_eq!(hashes(store.hashes), blocks.iter().map(|b| hash_of(&b["block_hash"])).collect::<Vec<_>>());
            let parent = Some(&data["parent_hash"]).filter(|parent| !parent.is_null()).map(hash_of);
            assert_eq!(store.parent.map(bits), parent, "{name}");
            let tokens: Vec<u32> = blocks
                .iter()
                .flat_map(|block| block["tokens"].as_array().unwrap())
                .map(|token| token["token_id"].as_u64().unwrap() as u32)
                .collect();
            assert_eq!(tokens_of(batch, store), tokens, "{name}");
            assert_eq!(store.block_size as usize, blocks[0]["tokens"].as_array().unwrap().len(), "{name}");
            assert_eq!((store.medium, store.lookahead), (Medium::Device, 0), "{name}");
            assert_eq!((store.group, store.window, store.kind), (group, window, None), "{name}");
            let salt = store.cache_salt.map(|salt| batch.text(salt));
            assert_eq!(salt, blocks[0]["cache_salt"].as_str(), "{name}");
            1
        }
        "removed" => {
            for (removal, medium) in [(removed(batch, at), Medium::Device), (removed(batch, at + 1), Medium::Host)] {
                let expect: Vec<_> = data["block_hashes"].as_array().unwrap().iter().map(hash_of).collect();
                assert_eq!(hashes(removal.hashes), expect, "{name}");
                assert_eq!((removal.medium, removal.group), (medium, group), "{name}");
            }
            2
        }
        "updated" => {
            if data["cache_level"].is_null() {
                return 0;
            }
            let (store, removal) = (stored(batch, at), removed(batch, at + 1));
            let levels = [Medium::Device, Medium::Host];
            let level = |key: &str| levels[data["cache_level"][key].as_u64().unwrap() as usize];
            assert_eq!(hashes(store.hashes), [hash_of(&data["block_hash"])], "{name}");
            assert!(store.tokens.is_empty() && store.parent.is_none(), "{name}");
            assert_eq!((store.medium, store.group), (level("new_value"), group), "{name}");
            assert_eq!(removal.hashes, store.hashes, "{name}");
            assert_eq!((removal.medium, removal.group), (level("old_value"), group), "{name}");
            2
        }
        kind => panic!("{name}: what is {kind}?"),
    }
}

#[test]
fn every_json_event_means_what_its_fields_say() {
    for line in lines("trtllm-json") {
        let name = text(&line, "name");
        let json = text(&line, "json_text");
        let batch = decoded(json);
        assert_eq!(batch.rejected_events(), 0, "{name}");
        let events = match serde_json::from_str(json).unwrap() {
            Value::Array(events) => events,
            event => vec![event],
        };
        let mut at = 0;
        for event in &events {
            at += assert_event(&batch, at, event, name);
        }
        assert_eq!(batch.events.len(), at, "{name}");
        assert_eq!(batch.rank.map(u64::from), events[0]["attention_dp_rank"].as_u64(), "{name}");
        let ids: Vec<_> = events.iter().map(|event| event["event_id"].as_u64().unwrap()).collect();
        assert_eq!(batch.runs.first().and_then(|run| run.ids).map(|ids| ids.0), ids.first().copied(), "{name}");
        assert_eq!(batch.runs.last().and_then(|run| run.ids).map(|ids| ids.1), ids.last().copied(), "{name}");
    }
}

#[test]
fn its_own_publisher_and_dynamos_speak_like_vllm() {
    let mut batch = Batch::default();
    let mut strings = 0;
    for file in TRTLLM {
        for line in lines(file) {
            let name = text(&line, "name");
            let frames = support::frames(&line["frames_hex"]);
            let live = frames::live(&frames).unwrap();
            assert_eq!(Some(live.sequence), line["expect"]["seq"].as_u64(), "{name}");
            decode(Dialect::Trtllm, live.payload, &mut batch).unwrap();
            if name == "stored_string_token_ids" {
                // A token that is no number cannot be asked for: the store is refused, and counted.
                assert_eq!((batch.rejected[EventError::BadToken.index()], batch.events.len()), (1, 0));
                strings += 1;
                continue;
            }
            assert_means(&batch, &line["expect"], name);
        }
    }
    assert_eq!(strings, 1);
}

fn block(hash: u64, tokens: &[u32], level: u64) -> Value {
    let tokens: Vec<_> = tokens.iter().map(|token| json!({"token_id": token, "token_extra_id": 0})).collect();
    json!({"type": "stored_block", "block_hash": hash, "tokens": tokens, "cache_level": level})
}

fn store(id: u64, blocks: &[Value]) -> Value {
    json!({"event_id": id, "data": {"type": "stored", "parent_hash": null, "blocks": blocks}})
}

#[test]
fn a_partial_block_after_full_ones_is_no_block() {
    let batch = decoded(&store(0, &[block(1, &[1, 2], 0), block(2, &[3, 4], 0), block(3, &[5], 0)]).to_string());
    let store = stored(&batch, 0);
    assert_eq!(tokens_of(&batch, store), [1, 2, 3, 4]);
    assert_eq!((batch.hashes(store.hashes).len(), store.block_size), (2, 2));
    assert_eq!(batch.rejected_events(), 0);
}

#[test]
fn a_lone_partial_block_says_its_own_size() {
    let batch = decoded(&json!([store(0, &[block(1, &[1, 2], 0)]), store(1, &[block(2, &[3], 0)])]).to_string());
    assert_eq!((stored(&batch, 0).block_size, stored(&batch, 1).block_size), (2, 1));
}

#[test]
fn blocks_of_uneven_size_cost_their_event() {
    let uneven = store(1, &[block(1, &[1, 2], 0), block(2, &[3], 0), block(3, &[4, 5], 0)]);
    let longer = store(2, &[block(1, &[1, 2], 0), block(2, &[3, 4, 5], 0)]);
    let batch = decoded(&json!([uneven, longer, store(3, &[block(4, &[9], 0)])]).to_string());
    assert_eq!(batch.rejected[EventError::BadField.index()], 2);
    assert_eq!(tokens_of(&batch, stored(&batch, 0)), [9]);
    assert_eq!(batch.runs.len(), 1, "a rejected event is not a missing one");
}

#[test]
fn blocks_of_one_event_in_two_places_are_two_stores() {
    let salted = {
        let mut block = block(3, &[5, 6], 1);
        block["cache_salt"] = json!("tenant");
        block
    };
    let batch = decoded(&store(0, &[block(1, &[1, 2], 0), block(2, &[3, 4], 1), salted]).to_string());
    let seen: Vec<_> = (0..3)
        .map(|i| stored(&batch, i))
        .map(|s| (s.parent.map(|p| p.low()), tokens_of(&batch, s), s.medium, s.cache_salt.map(|salt| batch.text(salt))))
        .collect();
    assert_eq!(
        seen,
        [
            (None, vec![1, 2], Medium::Device, None),
            (Some(1), vec![3, 4], Medium::Host, None),
            (Some(2), vec![5, 6], Medium::Host, Some("tenant")),
        ]
    );
}

#[test]
fn what_makes_equal_tokens_different_becomes_an_extra_key() {
    let mut second = block(2, &[3, 4], 0);
    second["tokens"][1]["token_extra_id"] = json!(77);
    second["mm_keys"] = json!([{"type": "mm_key", "hash": "ab", "start_offset": 4}]);
    let batch = decoded(&store(0, &[block(1, &[1, 2], 0), second]).to_string());
    let text = |text: &str| Item::Text(text.to_owned());
    let keys = batch.extra_keys(stored(&batch, 0).extra_keys);
    assert_eq!(keys.len(), 2);
    assert_eq!(keys[0], []);
    assert!(keys[1].contains(&Item::List(vec![text("token_extra_id"), Item::Unsigned(1), Item::Unsigned(77)])));
    assert!(keys[1].contains(&Item::List(vec![text("ab"), Item::Unsigned(4)])));
}

#[test]
fn a_change_of_priority_moves_nothing() {
    let change =
        json!({"event_id": 1, "data": {"type": "updated", "block_hash": 5, "cache_level": null, "priority": {}}});
    let batch = decoded(&change.to_string());
    assert!(batch.events.is_empty() && batch.rejected_events() == 0);
}

#[test]
fn events_of_several_ranks_and_missing_ids_are_told_apart() {
    let event = |id: u64, rank: u64| {
        let mut event = store(id, &[block(id, &[1], 0)]);
        event["attention_dp_rank"] = json!(rank);
        event
    };
    let batch = decoded(&json!([event(1, 0), event(2, 0), event(4, 0), event(9, 1)]).to_string());
    let runs: Vec<_> = batch.runs.iter().map(|run| (run.rank, run.ids, run.events.clone())).collect();
    assert_eq!(runs, [(Some(0), Some((1, 2)), 0..2), (Some(0), Some((4, 4)), 2..3), (Some(1), Some((9, 9)), 3..4)]);
    assert_eq!(batch.rank, None);
}

#[test]
fn json_that_is_no_list_of_events_is_refused() {
    let mut batch = Batch::default();
    let mut refused = |json: &str| decode(Dialect::Auto, json.as_bytes(), &mut batch).unwrap_err();
    assert!(matches!(refused("[1.5, [], 0]"), MessageError::NotABatch { .. }));
    assert!(matches!(refused("{} x"), MessageError::NotABatch { .. }));
    assert!(matches!(refused("[nonsense"), MessageError::NotABatch { .. }));
    assert_eq!(refused("[{\"data\": "), MessageError::Truncated);
    assert!(matches!(refused(&"[".repeat(100_000)), MessageError::TooDeep { .. }));
}
