//! Fixtures, and the comparison of a decoded batch with what a fixture says it means.

use std::path::PathBuf;

use kvtap::block::extra_keys::Item;
use kvtap::hash::EngineHash;
use kvtap::wire::{Batch, Event, Kind, Medium, Removed, Stored, Text};
use serde_json::Value;

/// The releases whose batches were captured.
pub const ENGINES: [&str; 12] = [
    "vllm-0.9.0",
    "vllm-0.10.2",
    "vllm-0.14.1",
    "vllm-0.19.1",
    "vllm-0.22.1",
    "vllm-0.25.1",
    "vllm-0.33.0",
    "sglang-0.4.10.post2",
    "sglang-0.5.6.post2",
    "sglang-0.5.10.post1",
    "sglang-0.5.18",
    "sglang-0.5.23",
];

/// Every line of a fixture.
pub fn lines(name: &str) -> Vec<Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/wire/{name}.jsonl"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(!lines.is_empty(), "{name} is empty");
    lines
}

pub fn text<'a>(line: &'a Value, key: &str) -> &'a str {
    line[key].as_str().unwrap_or_else(|| panic!("no text {key} in {}", line["name"]))
}

pub fn hex(digits: &str) -> Vec<u8> {
    assert!(digits.len().is_multiple_of(2));
    let digit = |c: u8| char::from(c).to_digit(16).unwrap() as u8;
    digits.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// One list of frames in hexadecimal.
pub fn frames(value: &Value) -> Vec<Vec<u8>> {
    value.as_array().unwrap().iter().map(|frame| hex(frame.as_str().unwrap())).collect()
}

/// The two publishers that speak of TensorRT-LLM in vLLM's way.
pub const TRTLLM: [&str; 2] = ["trtllm-native-zmq-main", "trtllm-dynamo-zmq-1.6.1"];

/// The payload of every captured ZMQ message of every release, with its name.
pub fn payloads() -> Vec<(String, Vec<u8>)> {
    let mut payloads = Vec::new();
    for engine in ENGINES.into_iter().chain(TRTLLM) {
        for line in lines(engine) {
            let payload = frames(&line["frames_hex"]).pop().unwrap();
            payloads.push((format!("{engine} {}", text(&line, "name")), payload));
        }
    }
    payloads
}

/// Asserts that `batch` means what a fixture's `expect` says.
pub fn assert_means(batch: &Batch, expect: &Value, name: &str) {
    assert_eq!(batch.rejected_events(), 0, "{name}: rejected {:?}", batch.rejected);
    if let Some(ts) = expect["ts"].as_f64() {
        // JSON readers may be off by the last bit of a float.
        assert!((batch.timestamp - ts).abs() < 1e-6, "{name}: ts");
    }
    assert_eq!(batch.rank.map(u64::from), expect["dp_rank"].as_u64(), "{name}: rank");
    let events = expect["events"].as_array().unwrap();
    assert_eq!(batch.events.len(), events.len(), "{name}: events");
    for (event, expect) in batch.events.iter().zip(events) {
        match (event, expect["type"].as_str().unwrap()) {
            (Event::Stored(stored), "stored") => assert_stored(batch, stored, expect, name),
            (Event::Removed(removed), "removed") => assert_removed(batch, removed, expect, name),
            (Event::Cleared, "cleared") => {}
            (event, wanted) => panic!("{name}: {event:?} where {wanted} is expected"),
        }
    }
}

fn assert_stored(batch: &Batch, stored: &Stored, expect: &Value, name: &str) {
    let known = [
        "type",
        "block_hashes",
        "parent",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
        "lookahead_token_ids",
        "cache_salt",
        "metadata",
        "mm_keys",
        "block_mm_infos",
        // Read by nobody: they say nothing about which blocks are where.
        "session_id",
        "locality",
        "ownership",
    ];
    for key in expect.as_object().unwrap().keys() {
        assert!(known.contains(&key.as_str()), "{name}: nobody compares {key}");
    }
    assert_hashes(batch.hashes(stored.hashes), &expect["block_hashes"], name);
    assert_eq!(stored.parent.map(bits), optional_hash(&expect["parent"]), "{name}: parent");
    assert_eq!(Some(stored.block_size), expect["block_size"].as_u64(), "{name}: block size");
    let (tokens, lookahead) = expected_tokens(expect);
    assert_eq!(tokens_of(batch, stored), tokens, "{name}: tokens");
    assert_eq!(stored.lookahead, lookahead, "{name}: lookahead");
    assert!(batch.contents(stored.contents).is_empty());
    assert_medium(batch, stored.medium, &expect["medium"], name);
    assert_eq!(stored.lora_id, expect["lora_id"].as_u64(), "{name}: lora id");
    assert_text(batch, stored.lora_name, &expect["lora_name"], name);
    let salt = if expect["metadata"].is_object() { &expect["metadata"]["cache_salt"] } else { &expect["cache_salt"] };
    assert_text(batch, stored.cache_salt, salt, name);
    let mut keys = batch.extra_keys(stored.extra_keys).to_vec();
    let expected = expected_keys(expect);
    assert!(keys.len() <= expected.len(), "{name}: more extra keys than blocks");
    assert!(keys.is_empty() || keys.iter().any(|keys| !keys.is_empty()), "{name}: a span of no keys");
    keys.resize(expected.len(), Vec::new());
    assert_eq!(keys, expected, "{name}: extra keys");
    assert_eq!(stored.group.map(u64::from), expect["group_idx"].as_u64(), "{name}: group");
    assert_eq!(stored.window, expect["kv_cache_spec_sliding_window"].as_u64(), "{name}: window");
    let kind = expect["kv_cache_spec_kind"].as_str().map(|word| match word {
        "full_attention" => Kind::Full,
        "sliding_window" => Kind::SlidingWindow,
        "mamba" | "chunked_local_attention" | "unknown" => Kind::Unknown,
        other => panic!("{name}: what kind is {other}?"),
    });
    assert_eq!(stored.kind, kind, "{name}: kind");
}

fn assert_removed(batch: &Batch, removed: &Removed, expect: &Value, name: &str) {
    assert_hashes(batch.hashes(removed.hashes), &expect["block_hashes"], name);
    assert_medium(batch, removed.medium, &expect["medium"], name);
    assert_eq!(removed.group.map(u64::from), expect["group_idx"].as_u64(), "{name}: group");
}

pub fn tokens_of(batch: &Batch, stored: &Stored) -> Vec<u32> {
    batch.tokens(stored.tokens).as_chunks::<4>().0.iter().map(|token| u32::from_le_bytes(*token)).collect()
}

pub fn bits(hash: EngineHash) -> (u64, u64) {
    (hash.low(), hash.high())
}

/// A hash as fixtures write it: a decimal number of either sign, or `0x` and the bytes.
pub fn hash(text: &str) -> (u64, u64) {
    match text.strip_prefix("0x") {
        Some(digits) => bits(EngineHash::from_bytes(&hex(digits))),
        None => (text.parse::<i128>().unwrap() as u64, 0),
    }
}

fn optional_hash(value: &Value) -> Option<(u64, u64)> {
    value.as_str().map(hash)
}

fn assert_hashes(hashes: &[EngineHash], expect: &Value, name: &str) {
    let hashes: Vec<_> = hashes.iter().copied().map(bits).collect();
    let expect: Vec<_> = expect.as_array().unwrap().iter().map(|text| hash(text.as_str().unwrap())).collect();
    assert_eq!(hashes, expect, "{name}: hashes");
}

fn assert_text(batch: &Batch, text: Option<Text>, expect: &Value, name: &str) {
    assert_eq!(text.map(|text| batch.text(text)), expect.as_str(), "{name}: text");
}

fn assert_medium(batch: &Batch, medium: Medium, expect: &Value, name: &str) {
    let expected = match expect.as_str() {
        None | Some("GPU") => "device",
        Some("CPU" | "CPU_PINNED" | "CPU_TIER1" | "cpu") => "host",
        Some("DISK" | "STORAGE") => "disk",
        Some("EXTERNAL") => "external",
        Some(other) => other,
    };
    let medium = match medium {
        Medium::Device => "device",
        Medium::Host => "host",
        Medium::Disk => "disk",
        Medium::External => "external",
        Medium::Other(text) => batch.text(text),
    };
    assert_eq!(medium, expected, "{name}: medium");
}

/// Plain tokens; pairs flattened; the last block's lookahead after them.
fn expected_tokens(expect: &Value) -> (Vec<u32>, u32) {
    let number = |value: &Value| u32::try_from(value.as_u64().unwrap()).unwrap();
    let ids = expect["token_ids"].as_array().unwrap();
    if ids.first().is_some_and(Value::is_array) {
        let mut tokens = vec![number(&ids[0][0])];
        tokens.extend(ids.iter().map(|pair| number(&pair[1])));
        return (tokens, 1);
    }
    let mut tokens: Vec<u32> = ids.iter().map(number).collect();
    let ahead: Vec<u32> = match expect["lookahead_token_ids"].as_array().and_then(|lists| lists.last()) {
        Some(last) => last.as_array().unwrap().iter().map(number).collect(),
        None => Vec::new(),
    };
    tokens.extend(&ahead);
    (tokens, ahead.len() as u32)
}

fn expected_keys(expect: &Value) -> Vec<Vec<Item>> {
    let blocks = |value: &Value, one: &dyn Fn(&Value) -> Vec<Item>| match value {
        Value::Null => Vec::new(),
        value => value.as_array().unwrap().iter().map(one).collect(),
    };
    if !expect["mm_keys"].is_null() {
        let pair = |key: &Value| Item::List(vec![item(&key["hash"]), item(&key["start_offset"])]);
        return blocks(&expect["mm_keys"], &|block| block.as_array().unwrap().iter().map(pair).collect());
    }
    if !expect["block_mm_infos"].is_null() {
        return blocks(&expect["block_mm_infos"], &|block| match &block["mm_objects"] {
            Value::Array(objects) => objects.iter().map(|object| item(&object["mm_hash"])).collect(),
            _ => Vec::new(),
        });
    }
    blocks(&expect["extra_keys"], &|block| match block {
        Value::Null => Vec::new(),
        block => block.as_array().unwrap().iter().map(item).collect(),
    })
}

fn item(value: &Value) -> Item {
    match value {
        Value::Null => Item::Nil,
        Value::Bool(value) => Item::Bool(*value),
        Value::String(text) => Item::Text(text.clone()),
        Value::Array(items) => Item::List(items.iter().map(item).collect()),
        Value::Object(bytes) => Item::Bytes(hex(bytes["bytes"].as_str().unwrap())),
        Value::Number(number) => match (number.as_u64(), number.as_i64()) {
            (Some(n), _) => Item::Unsigned(n),
            (None, Some(n)) => Item::Signed(n),
            (None, None) => Item::Float(number.as_f64().unwrap()),
        },
    }
}
