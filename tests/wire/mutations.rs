//! Captured messages, damaged: cut short, and with bytes changed.

use kvtap::wire::{Batch, Dialect, EventError, MessageError, decode, dynamo};

use crate::support::{self, lines, payloads, text};

/// The arenas' memory for a byte of payload, with room for their growth by doubling.
const MULTIPLE: usize = 64;

/// A way to decode, with the payloads that it is made for.
type Decoder = fn(&[u8], &mut Batch) -> Result<(), MessageError>;

fn auto(payload: &[u8], batch: &mut Batch) -> Result<(), MessageError> {
    decode(Dialect::Auto, payload, batch)
}

/// Every captured payload, with its decoder.
fn all() -> Vec<(Decoder, String, Vec<u8>)> {
    let zmq = payloads().into_iter().map(|(name, payload)| (auto as Decoder, name, payload));
    let json = lines("trtllm-json")
        .into_iter()
        .map(|line| (auto as Decoder, text(&line, "name").to_owned(), text(&line, "json_text").as_bytes().to_vec()));
    let router = ["nats-dynamo-1.6.1", "nats-dynamo-legacy"].into_iter().flat_map(lines).map(|line| {
        let key = if line["inner_payload_hex"].is_string() { "inner_payload_hex" } else { "payload_hex" };
        (dynamo::decode as Decoder, text(&line, "name").to_owned(), support::hex(text(&line, key)))
    });
    zmq.chain(json).chain(router).collect()
}

#[test]
fn a_message_cut_anywhere_is_truncated_and_leaves_nothing() {
    /// Above this only some of the places are cut.
    const WHOLE: usize = 256;
    let mut batch = Batch::default();
    for (decode, name, payload) in all() {
        let step = payload.len() / WHOLE + 1;
        for end in (0..payload.len()).filter(|end| end % step == 0 || *end < 64 || end + 64 > payload.len()) {
            let cut = decode(&payload[..end], &mut batch);
            assert_eq!(cut, Err(MessageError::Truncated), "{name} cut at {end}");
            assert!(batch.events.is_empty() && batch.rejected_events() == 0);
        }
    }
}

#[test]
fn changed_bytes_cost_no_more_than_the_message() {
    let mut rng = fastrand::Rng::with_seed(0x6b76_7461);
    let (mut refused, mut rejected, mut accepted) = (0_u64, 0_u64, 0_u64);
    for (decode, name, payload) in all() {
        let rounds = if payload.len() > 16 << 10 { 2 } else { 16 };
        for round in 0..rounds {
            let mut bytes = payload.clone();
            for _ in 0..=round % 4 {
                let at = rng.usize(..bytes.len());
                bytes[at] = match rng.u8(..3) {
                    0 => rng.u8(..),
                    1 => bytes[at] ^ (1 << rng.u8(..8)),
                    // The heads of containers and of long things.
                    _ => rng.u8(0xc0..=0xdf),
                };
            }
            let mut batch = Batch::default();
            match decode(&bytes, &mut batch) {
                Err(_) => {
                    refused += 1;
                    assert!(batch.events.is_empty() && batch.rejected_events() == 0, "{name}");
                }
                Ok(()) if batch.rejected_events() > 0 => rejected += 1,
                Ok(()) => accepted += 1,
            }
            assert!(batch.allocated_bytes() <= MULTIPLE * bytes.len() + (1 << 17), "{name}");
        }
    }
    assert!(refused > 0 && rejected > 0 && accepted > 0, "{refused} {rejected} {accepted}");
}

#[test]
fn declared_lengths_cost_nothing() {
    // Each a batch that says it holds four billion of something.
    for tail in [
        &b"\xdd\xff\xff\xff\xff"[..],
        b"\x92\xacBlockRemoved\xdd\xff\xff\xff\xff",
        b"\x96\xabBlockStored\x90\xc0\xdd\xff\xff\xff\xff",
        b"\x91\xdf\xff\xff\xff\xff",
        b"\x92\xacBlockRemoved\x91\xc6\xff\xff\xff\xff",
    ] {
        let mut bytes = b"\x92\x01\x91".to_vec();
        bytes.extend(tail);
        let mut batch = Batch::default();
        assert_eq!(decode(Dialect::Auto, &bytes, &mut batch), Err(MessageError::Truncated));
        assert!(batch.allocated_bytes() < 1 << 17);
    }
}

/// A batch of one store whose fields are `fields`, by name.
fn by_name(fields: &[(&str, &[u8])]) -> Vec<u8> {
    let mut bytes = b"\x92\x01\x91".to_vec();
    let text = |bytes: &mut Vec<u8>, text: &str| {
        bytes.push(0xa0 | text.len() as u8);
        bytes.extend(text.as_bytes());
    };
    bytes.push(0x80 | (fields.len() + 1) as u8);
    text(&mut bytes, "type");
    text(&mut bytes, "BlockStored");
    for (name, value) in fields {
        text(&mut bytes, name);
        bytes.extend(*value);
    }
    bytes
}

/// An array of `n` values of these bytes, and `last`.
fn array(n: u32, each: &[u8], last: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0xdd];
    bytes.extend((n + u32::from(!last.is_empty())).to_be_bytes());
    bytes.extend(each.repeat(n as usize));
    bytes.extend(last);
    bytes
}

#[test]
fn keys_of_blocks_that_an_event_does_not_name_cost_that_event_and_no_memory() {
    const N: u32 = 1 << 20;
    let one = array(1, b"\x07", b"");
    let tokens = array(1, b"\x09", b"");
    let store = |keys: &[u8], first: bool| {
        let named =
            [("block_hashes", &*one), ("parent_block_hash", b"\xc0"), ("token_ids", &tokens), ("block_size", b"\x01")];
        let keys = [("extra_keys", keys)];
        by_name(&if first { [&keys[..], &named].concat() } else { [&named[..], &keys].concat() })
    };
    for (keys, verdict) in [
        (array(N, b"\xc0", b"\x91\xa1x"), (0, 1)),
        (array(N, b"\x91\xc0", b""), (0, 1)),
        // One block, and more items than any engine step has, in one list, in lists of lists, and in lists of one.
        (array(1, &array(N, b"\xc0", b""), b""), (0, 1)),
        (array(1, &array(N / 8, &[0x97, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0, 0xc0], b""), b""), (0, 1)),
        (array(1, &array(N / 2, b"\x91\xc0", b""), b""), (0, 1)),
        // What says nothing is no key.
        (array(N, b"\xc0", b""), (1, 0)),
        (array(1, b"\x91\xa1x", b"\xc0"), (1, 0)),
    ] {
        for first in [false, true] {
            let bytes = store(&keys, first);
            let mut batch = Batch::default();
            decode(Dialect::Auto, &bytes, &mut batch).unwrap();
            let rejected = batch.rejected[EventError::BadField.index()];
            assert_eq!((batch.events.len() as u64, rejected.into()), verdict, "{} bytes", bytes.len());
            assert_eq!(batch.rejected_events(), verdict.1);
            assert!(batch.allocated_bytes() < 1 << 17, "{}", batch.allocated_bytes());
        }
    }
}

#[test]
fn no_shape_costs_more_than_a_small_multiple_of_the_message() {
    // Arenas grow by doubling: one more than they have room for.
    const N: u32 = (1 << 20) + 1;
    let named = |n: u32| array(n, b"\x07", b"");
    let store = |n: u32, tokens: &[u8], keys: &[u8]| {
        let fields = [("block_hashes", &*named(n)), ("parent_block_hash", b"\xc0"), ("token_ids", tokens)];
        by_name(&[&fields[..], &[("block_size", b"\x01"), ("extra_keys", keys)]].concat())
    };
    let tokens = |n: u32| array(n, b"\x09", b"");
    let events = |n: u32, event: &[u8]| [b"\x92\x01", &*array(n, event, b"")].concat();
    for (shape, bytes) in [
        ("tokens", store(1, &tokens(4 * N), b"\xc0")),
        ("names", store(N, &tokens(1), b"\xc0")),
        ("more names than a message may have", store(8 * N, &tokens(1), b"\xc0")),
        ("keys of the last block", store(N, &tokens(N), &array(N - 1, b"\xc0", b"\x91\xc0"))),
        ("a key a block", store(N / 8 + 1, &tokens(N / 8 + 1), &array(N / 8 + 1, b"\x91\xc0", b""))),
        ("more keys than a message may have", store(N, &tokens(N), &array(N, b"\x91\xc0", b""))),
        ("clears", events(N / 4 + 1, b"\x91\xb0AllBlocksCleared")),
        ("removals of nothing", events(N / 4 + 1, b"\x92\xacBlockRemoved\x90")),
        ("stores of nothing", events(N / 4 + 1, b"\x96\xabBlockStored\x90\xc0\x90\x00\xc0")),
    ] {
        let mut batch = Batch::default();
        decode(Dialect::Auto, &bytes, &mut batch).unwrap();
        let multiple = batch.allocated_bytes() as f64 / bytes.len() as f64;
        assert!(multiple <= 33.0, "{shape}: {multiple:.1} bytes a byte");
    }
}

#[test]
fn lists_of_one_in_one_another_cost_no_more_than_other_keys() {
    // As many bytes as there are lists, each with room for one: what a declared list of one is worth.
    const LISTS: usize = 7;
    const BLOCKS: u16 = 1000;
    let mut bytes = b"\x92\x01\x91\x99\xabBlockStored".to_vec();
    bytes.extend(array(BLOCKS.into(), b"\x01", b""));
    bytes.extend(b"\xc0\x91\x01\x01\xc0\xc0\xc0\xdc");
    bytes.extend(BLOCKS.to_be_bytes());
    for _ in 0..BLOCKS {
        bytes.extend([0x91; LISTS + 1]);
        bytes.push(0xc0);
    }
    let mut batch = Batch::default();
    decode(Dialect::Auto, &bytes, &mut batch).unwrap();
    assert_eq!((batch.events.len(), batch.rejected_events()), (1, 0));
    assert!(batch.allocated_bytes() <= 64 * bytes.len(), "{} for {}", batch.allocated_bytes(), bytes.len());
}
