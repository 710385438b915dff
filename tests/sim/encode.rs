use kvtap::block::extra_keys::Item;
use kvtap::sim::encode::{self, Dialect};
use kvtap::sim::event::{Event, Lora, Name, Removed, Stored};
use serde_json::Value;

/// What the real engine meant, as an event of ours.
fn event(expect: &Value) -> Event {
    let text = |field: &str| expect[field].as_str().map(str::to_owned);
    let number = |field: &str| expect[field].as_u64();
    let names = || expect["block_hashes"].as_array().unwrap().iter().map(|name| name_of(name).unwrap()).collect();
    match expect["type"].as_str().unwrap() {
        "cleared" => Event::Cleared,
        "removed" => Event::Removed(Removed {
            names: names(),
            medium: text("medium"),
            group: number("group_idx").map(|group| group as u32),
        }),
        "stored" => Event::Stored(Stored {
            names: names(),
            parent: name_of(&expect["parent"]),
            tokens: expect["token_ids"]
                .as_array()
                .unwrap()
                .iter()
                .map(|token| token.as_u64().unwrap() as u32)
                .collect(),
            block_size: number("block_size").unwrap() as u32,
            lora: number("lora_id").map(|id| Lora { id, name: text("lora_name").unwrap() }),
            medium: text("medium"),
            extra_keys: expect["extra_keys"].as_array().map(|blocks| {
                blocks.iter().map(|block| block.as_array().map(|items| items.iter().map(item).collect())).collect()
            }),
            group: number("group_idx").map(|group| group as u32),
            kind: text("kv_cache_spec_kind"),
            window: number("kv_cache_spec_sliding_window").map(|window| window as u32),
        }),
        other => panic!("an event of type {other}"),
    }
}

fn name_of(value: &Value) -> Option<Name> {
    let text = value.as_str()?;
    Some(match text.strip_prefix("0x") {
        Some(hex) => Name::Bytes(unhex(hex).into()),
        None => Name::Int(text.parse().unwrap()),
    })
}

fn item(value: &Value) -> Item {
    match value {
        Value::Null => Item::Nil,
        Value::Bool(value) => Item::Bool(*value),
        Value::String(text) => Item::Text(text.clone()),
        Value::Array(items) => Item::List(items.iter().map(item).collect()),
        Value::Object(bytes) => Item::Bytes(unhex(bytes["bytes"].as_str().unwrap())),
        Value::Number(n) => match (n.as_u64(), n.as_i64()) {
            (Some(n), _) => Item::Unsigned(n),
            (None, Some(n)) => Item::Signed(n),
            (None, None) => Item::Float(n.as_f64().unwrap()),
        },
    }
}

fn unhex(hex: &str) -> Vec<u8> {
    hex.as_bytes().chunks(2).map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn reproduces(dialect: Dialect, fixture: &str, cases: usize) {
    for line in fixture.lines() {
        let case: Value = serde_json::from_str(line).unwrap();
        let expect = &case["expect"];
        let events: Vec<Event> = expect["events"].as_array().unwrap().iter().map(event).collect();
        let rank = expect["dp_rank"].as_u64().map(|rank| rank as u32);
        // Text in the fixture: a JSON number would lose the last bit.
        let timestamp = expect["ts"].as_str().unwrap().parse().unwrap();
        let ours = encode::batch(dialect, timestamp, &events, rank);
        assert_eq!(ours, unhex(case["payload_hex"].as_str().unwrap()), "{}", case["name"]);
    }
    assert_eq!(fixture.lines().count(), cases);
}

#[test]
fn arrays_without_groups_are_the_bytes_of_vllm_0_19_1() {
    reproduces(Dialect::Array19, include_str!("../fixtures/sim/vllm-0.19.1.jsonl"), 19);
}

#[test]
fn arrays_with_groups_are_the_bytes_of_vllm_0_22_1() {
    reproduces(Dialect::Array22, include_str!("../fixtures/sim/vllm-0.22.1.jsonl"), 21);
}

#[test]
fn maps_are_the_bytes_of_vllm_0_25_1() {
    reproduces(Dialect::Map24, include_str!("../fixtures/sim/vllm-0.25.1.jsonl"), 21);
}

#[test]
fn maps_with_a_wide_header_are_the_bytes_of_vllm_0_33_0() {
    reproduces(Dialect::Map33, include_str!("../fixtures/sim/vllm-0.33.0.jsonl"), 21);
}
