//! Dynamo's event plane: every captured message of three transports.

use kvtap::hash::ContentHash;
use kvtap::wire::dynamo::{self, Envelope};
use kvtap::wire::{Batch, Event, EventError, Medium, MessageError};
use serde_json::{Value, json};

use crate::support::{self, bits, hex, lines, text};

const FILES: [&str; 2] = ["nats-dynamo-1.6.1", "nats-dynamo-legacy"];

/// Asserts that `batch` means these router events.
fn assert_means(batch: &Batch, router_events: &[Value], name: &str) {
    assert_eq!(batch.rejected_events(), 0, "{name}");
    assert_eq!(batch.events.len(), router_events.len(), "{name}");
    for (index, (event, router)) in batch.events.iter().zip(router_events).enumerate() {
        let run = batch.runs.iter().find(|run| run.events.contains(&index)).unwrap();
        assert_eq!(run.worker, router["worker_id"].as_u64(), "{name}: worker");
        assert_eq!(run.rank.map(u64::from), router["event"]["dp_rank"].as_u64(), "{name}: rank");
        let id = router["event"]["event_id"].as_u64().unwrap();
        let (first, last) = run.ids.unwrap();
        assert!((first..=last).contains(&id), "{name}: id");
        let medium = match router["storage_tier"].as_str() {
            None | Some("device") => Medium::Device,
            Some("host_pinned") => Medium::Host,
            Some(tier) => panic!("{name}: what is {tier}?"),
        };
        let data = &router["event"]["data"];
        match event {
            Event::Cleared => assert_eq!(data, "cleared", "{name}"),
            Event::Removed(removed) => {
                let hashes: Vec<_> = batch.hashes(removed.hashes).iter().map(|hash| hash.low()).collect();
                let expect = data["removed"]["block_hashes"].as_array().unwrap();
                assert_eq!(hashes, expect.iter().map(|n| n.as_u64().unwrap()).collect::<Vec<_>>(), "{name}");
                assert_eq!(removed.medium, medium, "{name}");
            }
            Event::Stored(stored) => {
                let data = &data["stored"];
                assert_eq!(stored.parent.map(|hash| bits(hash).0), data["parent_hash"].as_u64(), "{name}");
                assert_eq!(stored.medium, medium, "{name}");
                assert!(stored.tokens.is_empty() && stored.block_size == 0, "{name}: not said");
                let blocks = data["blocks"].as_array().unwrap();
                let column = |key: &str| blocks.iter().map(|b| b[key].as_u64().unwrap()).collect::<Vec<_>>();
                let hashes: Vec<_> = batch.hashes(stored.hashes).iter().map(|hash| hash.low()).collect();
                assert_eq!(hashes, column("block_hash"), "{name}");
                let contents: Vec<_> = batch.contents(stored.contents).iter().map(|ContentHash(n)| *n).collect();
                assert_eq!(contents, column("tokens_hash"), "{name}");
            }
        }
    }
}

#[test]
fn every_captured_message_decodes_to_what_its_publisher_meant() {
    let mut batch = Batch::default();
    for line in FILES.into_iter().flat_map(lines) {
        let name = text(&line, "name");
        let message = hex(text(&line, "payload_hex"));
        let expect = &line["expect"];
        let payload = match dynamo::envelope(&message).unwrap() {
            Some(Envelope { publisher, sequence, payload }) => {
                assert_eq!(Some(publisher), expect["envelope"]["publisher_id"].as_u64(), "{name}");
                assert_eq!(Some(sequence), expect["envelope"]["sequence"].as_u64(), "{name}");
                assert_eq!(payload, hex(text(&line, "inner_payload_hex")), "{name}");
                payload
            }
            None => {
                assert_eq!(line["transport"], "nats-jetstream", "{name}");
                &message
            }
        };
        let events = match &expect["router_events"] {
            Value::Array(events) => events.clone(),
            _ => vec![expect["router_event"].clone()],
        };
        dynamo::decode(payload, &mut batch).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_means(&batch, &events, name);
    }
}

#[test]
fn its_zmq_plane_holds_the_same_envelope() {
    for line in lines("nats-dynamo-1.6.1") {
        let frames = support::frames(&line["zmq_event_plane_frames_hex"]);
        assert_eq!(dynamo::plane(&frames).unwrap(), hex(text(&line, "payload_hex")), "{}", line["name"]);
    }
    let eight = &[0; 8][..];
    assert_eq!(dynamo::plane(&[eight; 3]), Err(MessageError::FrameCount { got: 3 }));
    assert_eq!(dynamo::plane(&[eight, b"1234", eight, eight]), Err(MessageError::SequenceLength { got: 4 }));
    assert_eq!(dynamo::plane(&[eight, eight, eight, &[1, 0, 0, 0, 9, 0]]), Err(MessageError::Truncated));
    assert!(matches!(dynamo::plane(&[eight, eight, eight, &[2, 0, 0, 0, 0]]), Err(MessageError::NotABatch { .. })));
}

#[test]
fn an_envelope_cut_anywhere_is_refused() {
    for line in FILES.into_iter().flat_map(lines).filter(|line| line["inner_payload_hex"].is_string()) {
        let message = hex(text(&line, "payload_hex"));
        for end in 0..message.len() {
            assert_eq!(dynamo::envelope(&message[..end]), Err(MessageError::Truncated));
        }
    }
}

fn decoded(events: Value) -> Batch {
    let mut batch = Batch::default();
    dynamo::decode(&rmp_serde::to_vec(&events).unwrap(), &mut batch).unwrap();
    batch
}

fn router(worker: u64, rank: u64, id: u64, data: Value) -> Value {
    json!({"worker_id": worker, "event": {"event_id": id, "dp_rank": rank, "data": data}})
}

#[test]
fn events_of_several_workers_are_told_apart() {
    let batch = decoded(json!([
        router(1, 0, 5, json!("cleared")),
        router(1, 0, 5, json!("cleared")),
        router(1, 1, 6, json!("cleared")),
        router(2, 1, 6, json!("cleared")),
        router(2, 1, 7, json!({"invented": {}})),
        router(2, 1, 8, json!("cleared")),
    ]));
    let runs: Vec<_> = batch.runs.iter().map(|run| (run.worker, run.rank, run.ids, run.events.clone())).collect();
    assert_eq!(
        runs,
        [
            (Some(1), Some(0), Some((5, 5)), 0..2),
            (Some(1), Some(1), Some((6, 6)), 2..3),
            (Some(2), Some(1), Some((6, 8)), 3..5),
        ]
    );
    assert_eq!(batch.rejected[EventError::UnknownTag.index()], 1);
}

#[test]
fn a_store_that_starts_later_without_a_parent_is_no_root() {
    let store = |position: Value| json!({"stored": {"parent_hash": null, "start_position": position, "blocks": []}});
    let batch = decoded(json!([router(1, 0, 1, store(json!(3))), router(1, 0, 2, store(json!(0)))]));
    assert_eq!(batch.rejected[EventError::BadField.index()], 1);
    assert_eq!(batch.events.len(), 1);
}

#[test]
fn tiers_are_media_and_blocks_that_no_worker_owns_are_refused() {
    let tier = |key: &str, word: &str| {
        let mut event = router(1, 0, 1, json!({"removed": {"block_hashes": [1]}}));
        event[key] = json!(word);
        let batch = decoded(json!([event]));
        match batch.events.first() {
            Some(Event::Removed(removed)) => Some(removed.medium),
            _ => None,
        }
    };
    assert_eq!(tier("storage_tier", "device"), Some(Medium::Device));
    assert_eq!(tier("storage_tier", "host_pinned"), Some(Medium::Host));
    assert_eq!(tier("storage_tier", "disk"), Some(Medium::Disk));
    assert_eq!(tier("storage_tier", "external"), Some(Medium::External));
    assert!(matches!(tier("storage_tier", "moon"), Some(Medium::Other(_))));
    assert_eq!(tier("residency_domain", "worker"), Some(Medium::Device));
    assert_eq!(tier("residency_domain", "cluster"), None);
}
