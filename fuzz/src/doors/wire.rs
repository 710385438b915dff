//! The decoders of payloads.

use kvtap::block::extra_keys::Item;
use kvtap::wire::{Batch, Dialect, Event, MessageError, Stored, decode, dynamo as plane};

/// A way to decode.
type Decoder = fn(&[u8], &mut Batch) -> Result<(), MessageError>;

/// Bytes of arenas and keys for a byte of payload, with room for growth by doubling.
const MULTIPLE: usize = 128;
/// Bytes of arenas that any message may cost.
const CONSTANT: usize = 128 << 10;

/// `["BlockRemoved", [1, 2, 3]]` in a batch, and the same in TensorRT-LLM's and in Dynamo's words.
const GOOD: &[u8] = b"\x92\x01\x91\x92\xacBlockRemoved\x93\x01\x02\x03";
const GOOD_JSON: &[u8] = br#"{"event_id":1,"data":{"type":"removed","block_hashes":[1,2,3]}}"#;
const GOOD_ROUTER: &[u8] =
    br#"{"worker_id":1,"event":{"event_id":1,"dp_rank":0,"data":{"removed":{"block_hashes":[1,2,3]}}}}"#;

/// A payload in every dialect.
pub fn batch(bytes: &[u8]) {
    check(|payload, batch| decode(Dialect::Vllm, payload, batch), bytes, GOOD, 1);
    check(|payload, batch| decode(Dialect::Sglang, payload, batch), bytes, GOOD, 1);
    check(|payload, batch| decode(Dialect::Auto, payload, batch), bytes, GOOD_JSON, 2);
}

/// A payload of a TensorRT-LLM feed.
pub fn trtllm(bytes: &[u8]) {
    check(|payload, batch| decode(Dialect::Trtllm, payload, batch), bytes, GOOD_JSON, 2);
}

/// A message of Dynamo's event plane, with or without its envelope.
pub fn dynamo(bytes: &[u8]) {
    check(plane::decode, bytes, GOOD_ROUTER, 1);
    if let Ok(Some(envelope)) = plane::envelope(bytes) {
        assert!(envelope.payload.len() < bytes.len(), "an envelope smaller than what it holds");
        check(plane::decode, envelope.payload, GOOD_ROUTER, 1);
    }
}

/// Decodes `bytes`, and then `good`, which must come out as `events` events whatever came before.
fn check(decode: Decoder, bytes: &[u8], good: &[u8], events: usize) {
    let mut batch = Batch::default();
    let decoded = decode(bytes, &mut batch);
    assert!(batch.allocated_bytes() <= MULTIPLE * bytes.len() + CONSTANT, "memory out of proportion");
    match decoded {
        Ok(()) => whole(&batch),
        Err(error) => {
            assert!(batch.events.is_empty() && batch.runs.is_empty(), "a broken message left events");
            assert_eq!(batch.rejected_events(), 0, "a broken message left counts");
            assert!(!error.to_string().contains('\n'), "an error of several lines");
        }
    }

    // A batch that was used must not show it.
    let before = (batch.events.clone(), batch.rejected, batch.rank, batch.runs.clone());
    decode(good, &mut batch).expect("a good message after another");
    assert_eq!((batch.events.len(), batch.rejected_events()), (events, 0), "a good message after another");
    assert_eq!(decode(bytes, &mut batch).is_ok(), decoded.is_ok(), "another outcome the second time");
    assert_eq!((batch.events.clone(), batch.rejected, batch.rank, batch.runs.clone()), before, "other events");
}

/// Every span lies within its arena, and the runs cover the events in order.
fn whole(batch: &Batch) {
    for event in &batch.events {
        match event {
            Event::Stored(stored) => whole_store(batch, stored),
            Event::Removed(removed) => assert_eq!(batch.hashes(removed.hashes).len(), removed.hashes.len()),
            Event::Cleared => {}
        }
    }
    let mut next = 0;
    for run in &batch.runs {
        assert!(run.events.start == next && run.events.end >= next, "runs that do not follow one another");
        next = run.events.end;
    }
    assert!(batch.runs.is_empty() || next == batch.events.len(), "events in no run");
}

fn whole_store(batch: &Batch, stored: &Stored) {
    assert_eq!(batch.hashes(stored.hashes).len(), stored.hashes.len());
    assert_eq!(batch.tokens(stored.tokens).len(), stored.tokens.len());
    assert!(stored.tokens.len().is_multiple_of(4), "part of a token");
    assert_eq!(batch.contents(stored.contents).len(), stored.contents.len());
    let keys = batch.extra_keys(stored.extra_keys);
    assert_eq!(keys.len(), stored.extra_keys.len());
    for items in keys {
        assert!(items.iter().all(|item| depth(item) <= kvtap::wire::msgpack::MAX_DEPTH), "lists too deep");
    }
}

fn depth(item: &Item) -> usize {
    match item {
        Item::List(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}
