//! Captured messages, damaged: cut short, and with bytes changed.

use kvtap::wire::{Batch, Dialect, MessageError, decode, dynamo};

use crate::support::{self, lines, payloads, text};

/// The arenas' memory for a byte of payload, with room for their growth by doubling.
const MULTIPLE: usize = 128;

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
