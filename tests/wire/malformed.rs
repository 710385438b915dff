//! What strangers might send: each case of the catalogue against its verdict.

use kvtap::wire::{Batch, Dialect, Event, EventError, MessageError, decode, frames};
use serde_json::Value;

use crate::support::{self, hash, lines, text};

/// What a message came to: the batch's events and rejections, or why it was refused.
fn outcome(line: &Value, batch: &mut Batch) -> Result<(), MessageError> {
    let frames = support::frames(&line["frames_hex"]);
    let live = frames::live(&frames)?;
    decode(Dialect::Auto, live.payload, batch)
}

fn case<'a>(lines: &'a [Value], name: &str) -> &'a Value {
    lines.iter().find(|line| line["name"] == name).unwrap_or_else(|| panic!("no case {name}"))
}

#[test]
fn every_case_comes_to_its_verdict() {
    let mut batch = Batch::default();
    for line in lines("malformed") {
        let name = text(&line, "name");
        let outcome = outcome(&line, &mut batch);
        let valid = line["valid_events"].as_u64();
        match text(&line, "expect") {
            "reject_message" => {
                assert!(outcome.is_err(), "{name}");
                assert!(batch.events.is_empty() && batch.rejected_events() == 0, "{name}: nothing of it is applied");
            }
            "reject_event" => {
                assert_eq!(outcome, Ok(()), "{name}");
                assert!(batch.rejected_events() > 0, "{name}");
                assert_eq!(batch.events.len() as u64, valid.unwrap_or(0), "{name}: the others stand");
            }
            "tolerate" => {
                assert_eq!(outcome, Ok(()), "{name}");
                assert_eq!(batch.rejected_events(), 0, "{name}");
                assert_eq!(batch.events.len() as u64, valid.unwrap_or(1), "{name}");
            }
            "must_not_crash" => {
                if outcome.is_ok() {
                    assert!(batch.events.len() as u64 + batch.rejected_events() > 0, "{name}: lost without a count");
                }
            }
            verdict => panic!("{name}: what is {verdict}?"),
        }
    }
}

#[test]
fn cases_that_are_left_open_are_decided_here() {
    let lines = lines("malformed");
    let mut batch = Batch::default();
    let mut message = |name: &str| outcome(case(&lines, name), &mut batch).unwrap_err();
    // No batch has the number that ends a replay; taken for one, every later number would be a restart.
    assert_eq!(message("seq_max"), MessageError::ReservedSequence);
    // Its extents do not add up, so what was read may not be what was sent.
    assert_eq!(message("trailing_garbage"), MessageError::NotABatch { what: "bytes after its end" });
    assert!(matches!(message("ts_msgpack_timestamp"), MessageError::NotABatch { .. }));
    // The innermost array takes what was meant as the rank: the bytes end early.
    assert_eq!(message("nested_arrays_1000"), MessageError::Truncated);
    assert_eq!(message("nested_arrays_100000"), MessageError::Truncated);

    let mut event = |name: &str| {
        outcome(case(&lines, name), &mut batch).unwrap_or_else(|error| panic!("{name}: {error}"));
        let reasons: Vec<_> = EventError::ALL.into_iter().filter(|e| batch.rejected[e.index()] > 0).collect();
        (reasons, batch.events.len())
    };
    for (name, reason, survivors) in [
        ("event_tag_bin", EventError::NotAnEvent, 0),
        ("map_bin_keys", EventError::NotAnEvent, 0),
        ("nested_in_extra_keys", EventError::TooDeep, 0),
        // Nobody can say which of the two was meant.
        ("map_duplicate_key", EventError::BadField, 0),
        ("medium_int", EventError::BadField, 0),
        ("medium_64k", EventError::BadField, 0),
        // Read as absent, tenants of different adapters would match each other.
        ("lora_id_string", EventError::BadField, 0),
        ("group_idx_string", EventError::BadField, 0),
        ("extra_keys_not_list", EventError::BadField, 0),
        ("raw_old_msgpack_bytes_as_str", EventError::BadHash, 0),
        ("token_id_pair_mixed_with_int", EventError::BadToken, 1),
        // No client could ask for a token that is not a number.
        ("token_ids_strings_trtllm", EventError::BadToken, 0),
    ] {
        assert_eq!(event(name), (vec![reason], survivors), "{name}");
    }
    for (name, events) in [
        ("nested_in_unknown_key", 1),
        ("hashes_strings", 1),
        ("hash_bin_64KiB", 1),
        ("lora_id_u64max", 1),
        ("dp_rank_2^31", 1),
        ("dp_rank_float", 1),
        ("dp_rank_array", 1),
        // Whether the numbers make sense together is for the reader of the event to judge.
        ("block_size_zero_with_tokens", 2),
        ("block_size_2^31", 2),
        ("block_size_2^63", 2),
        ("tokens_not_multiple", 1),
        ("more_hashes_than_tokens", 1),
        ("parent_cycle_two", 2),
    ] {
        assert_eq!(event(name), (vec![], events), "{name}");
    }
}

#[test]
fn a_rank_that_is_no_rank_names_none() {
    let lines = lines("malformed");
    let mut batch = Batch::default();
    for (name, rank) in
        [("dp_rank_2^31", Some(1 << 31)), ("dp_rank_u64_max", None), ("dp_rank_float", None), ("dp_rank_array", None)]
    {
        outcome(case(&lines, name), &mut batch).unwrap();
        assert_eq!(batch.rank, rank, "{name}");
    }
}

#[test]
fn tolerated_oddities_mean_what_they_say() {
    let lines = lines("malformed");
    let mut batch = Batch::default();
    outcome(case(&lines, "nonminimal_ints"), &mut batch).unwrap();
    let Event::Stored(stored) = &batch.events[0] else { panic!("not a store") };
    assert_eq!(batch.hashes(stored.hashes).iter().map(|hash| hash.low()).collect::<Vec<_>>(), [5]);
    assert_eq!(support::tokens_of(&batch, stored), [7, 8]);
    assert_eq!(stored.block_size, 2);

    outcome(case(&lines, "stored_extra_map_tail"), &mut batch).unwrap();
    let Event::Stored(stored) = &batch.events[0] else { panic!("not a store") };
    assert_eq!(stored.cache_salt.map(|salt| batch.text(salt)), Some("t"));
    assert_eq!(stored.lora_name, None);

    outcome(case(&lines, "hashes_strings"), &mut batch).unwrap();
    let Event::Stored(stored) = &batch.events[0] else { panic!("not a store") };
    assert_eq!(support::bits(batch.hashes(stored.hashes)[0]), hash(&format!("0x{}", "ab".repeat(32))));

    outcome(case(&lines, "ts_int"), &mut batch).unwrap();
    assert_eq!(batch.timestamp, 1_764_486_000.0);
}

#[test]
fn an_oversized_payload_is_refused_unread() {
    let payload = vec![0; kvtap::wire::MAX_PAYLOAD + 1];
    let refused = decode(Dialect::Auto, &payload, &mut Batch::default());
    assert_eq!(refused, Err(MessageError::TooLarge { got: payload.len(), max: kvtap::wire::MAX_PAYLOAD }));
}
