use std::num::NonZeroUsize;

use kvtap::sim::captured::{Capture, Entry};
use kvtap::sim::event::Event;
use kvtap::sim::pool::{HashForm, Pool, Shape};
use serde_json::Value;

/// The tokens of each block that a captured batch stores, and how many it removes.
fn blocks_of(payload: &[u8]) -> (Vec<Vec<u64>>, usize) {
    let batch: Value = rmp_serde::from_slice(payload).unwrap();
    let mut stored = Vec::new();
    let mut removed = 0;
    for event in batch[1].as_array().unwrap() {
        match event["type"].as_str().unwrap() {
            "BlockStored" => {
                let tokens: Vec<u64> =
                    event["token_ids"].as_array().unwrap().iter().map(|token| token.as_u64().unwrap()).collect();
                let size = event["block_size"].as_u64().unwrap() as usize;
                stored.extend(tokens.chunks(size).map(<[u64]>::to_vec));
            }
            "BlockRemoved" => removed += event["block_hashes"].as_array().unwrap().len(),
            other => panic!("{other} in the capture"),
        }
    }
    (stored, removed)
}

#[test]
fn the_capture_begins_a_life_and_holds_requests_before_and_after_its_cache_overflowed() {
    let capture = Capture::vllm().unwrap();
    let sequences: Vec<u64> = capture
        .entries
        .iter()
        .filter_map(|entry| match entry {
            Entry::Message { sequence, .. } => Some(*sequence),
            _ => None,
        })
        .collect();
    assert_eq!(sequences, (0..sequences.len() as u64).collect::<Vec<_>>());
    let burst = capture.entries.iter().position(|entry| matches!(entry, Entry::Burst { .. })).unwrap();
    let hits = |entries: &[Entry]| {
        entries.iter().filter(|entry| matches!(entry, Entry::Request { cached_tokens: 1.., .. })).count()
    };
    assert_eq!((hits(&capture.entries[..burst]), hits(&capture.entries[burst..])), (6, 2));
}

#[test]
fn the_pool_reports_and_stores_exactly_what_the_real_engine_did_for_the_same_requests() {
    let capture = Capture::vllm().unwrap();
    let mut pool = Pool::new(
        Shape {
            blocks: capture.blocks,
            block_size: NonZeroUsize::new(capture.block_size).unwrap(),
            hash_form: HashForm::Int,
        },
        1,
    );
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    let mut requests = 0;
    for entry in &capture.entries {
        match entry {
            Entry::Request { prompt, output, cached_tokens } => {
                assert_eq!(ours, theirs);
                let admitted = pool.admit(prompt.clone()).unwrap();
                assert_eq!(admitted.cached_tokens, *cached_tokens);
                for token in output.iter().take(output.len() - 1) {
                    pool.decode(admitted.request, *token).unwrap();
                }
                pool.finish(admitted.request).unwrap();
                for event in pool.step() {
                    let Event::Stored(stored) = event else { panic!("{event:?} before the pool was full") };
                    let blocks = stored.tokens.chunks(capture.block_size);
                    ours.extend(blocks.map(|block| block.iter().map(|token| u64::from(*token)).collect::<Vec<_>>()));
                }
                requests += 1;
            }
            // From here on the real engine's order depended on its scheduling.
            Entry::Burst { .. } => break,
            Entry::Message { payload, .. } => {
                let (stored, removed) = blocks_of(payload);
                theirs.extend(stored);
                assert_eq!(removed, 0);
            }
        }
    }
    assert_eq!(ours, theirs);
    assert_eq!(requests, 11);
}
