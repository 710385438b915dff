//! Every captured message of every release means what its fixture says.

use kvtap::wire::{Batch, Dialect, decode, frames};

use crate::support::{self, ENGINES, assert_means, lines, text};

#[test]
fn every_captured_message_decodes_to_what_its_publisher_meant() {
    let mut batch = Batch::default();
    for engine in ENGINES {
        let dialect = if engine.starts_with("vllm") { Dialect::Vllm } else { Dialect::Sglang };
        for line in lines(engine) {
            let name = format!("{engine} {}", text(&line, "name"));
            let frames = support::frames(&line["frames_hex"]);
            let live = frames::live(&frames).unwrap();
            assert_eq!(Some(live.sequence), line["expect"]["seq"].as_u64(), "{name}: sequence");
            assert_eq!(live.topic.as_slice(), text(&line, "topic").as_bytes(), "{name}: topic");
            for dialect in [dialect, Dialect::Auto] {
                decode(dialect, live.payload, &mut batch).unwrap_or_else(|error| panic!("{name}: {error}"));
                assert_means(&batch, &line["expect"], &name);
            }
        }
    }
}

#[test]
fn foreign_tags_are_counted_and_the_message_stands() {
    let mut batch = Batch::default();
    for line in lines("mooncake-doc") {
        let frames = support::frames(&line["frames_hex"]);
        decode(Dialect::Auto, &frames[2], &mut batch).unwrap();
        assert!(batch.events.is_empty());
        assert_eq!(batch.rejected[kvtap::wire::EventError::UnknownTag.index()], 1);
        assert_eq!(batch.rejected_events(), 1);
    }
}

#[test]
fn a_batch_as_a_map_means_the_same() {
    let mut batch = Batch::default();
    for engine in ENGINES {
        for line in lines(engine) {
            let payload = support::frames(&line["frames_hex"]).pop().unwrap();
            // The head of the array, and of the float after it, have known lengths in these captures.
            let (count, ts, rest) = (payload[0] & 0x0f, &payload[1..10], &payload[10..]);
            if !matches!(payload[0], 0x92 | 0x93) || payload[1] != 0xcb {
                continue;
            }
            let (events, rank) = if count == 3 { rest.split_at(rest.len() - 1) } else { (rest, &[][..]) };
            let mut map = vec![0x80 | count];
            map.extend(b"\xa2ts");
            map.extend(ts);
            map.extend(b"\xa6events");
            map.extend(events);
            if count == 3 {
                if rank[0] > 0x7f {
                    continue;
                }
                map.extend(b"\xb2data_parallel_rank");
                map.extend(rank);
            }
            if decode(Dialect::Auto, &map, &mut batch).is_err() {
                // The rank took more than one byte: the split above was wrong.
                assert_ne!(line["expect"]["dp_rank"].as_u64().map(|rank| rank < 128), Some(true));
                continue;
            }
            assert_means(&batch, &line["expect"], text(&line, "name"));
        }
    }
}

#[test]
fn decoding_again_takes_no_more_memory() {
    let mut batch = Batch::default();
    for (name, payload) in support::payloads() {
        decode(Dialect::Auto, &payload, &mut batch).unwrap();
        if payload.len() > 1 << 16 {
            continue; // Larger than the memory that is kept.
        }
        let held = batch.allocated_bytes();
        decode(Dialect::Auto, &payload, &mut batch).unwrap();
        assert_eq!(batch.allocated_bytes(), held, "{name}");
    }
}
