//! What travels in a fleet is small beside what engines say: deltas alone in their batch, which is the dearest way.

// Helpers of tests are tests too, which clippy cannot see.
#![allow(clippy::expect_used, reason = "a test that cannot go on fails")]

use std::collections::VecDeque;

use kvtap::index::{Copies, Heard, Index, Limits, TapBounds};
use kvtap::normalize::{Normalizer, Options};
use kvtap::replica::BatchWriter;
use kvtap::sim::encode::{Dialect, batch};
use kvtap::sim::event::{Event, KIND, MEDIUM, Name, Removed, Stored};
use kvtap::wire::{self, Batch, decode};
use kvtap::worker::Stamp;

/// Tokens a block, blocks a prompt, blocks of the engine's cache, and messages that are looked at once it is full.
const BLOCK: usize = 16;
const PROMPT: usize = 512;
const CACHE: usize = 4096;
const MEASURED: usize = 64;

/// A registration's life, as an owner numbers it: microseconds since 1970.
const LIFE: u64 = 1_764_500_000_000_000;

/// Bytes of an engine's messages of so many blocks, and of the batches that tell them on.
fn told(dialect: Dialect, blocks: usize, is_full: bool) -> (usize, usize) {
    let index = Index::new(Limits::default());
    let mut listener = index.listen(TapBounds::default());
    let writer = index.register("m", Copies::Count).expect("a rank");
    let rank = writer.rank();
    let mut normalizer = Normalizer::new(writer, Options::default());
    let (mut rng, mut decoded) = (fastrand::Rng::with_seed(3), Batch::default());
    let (mut prompt, mut finished): (Vec<u64>, VecDeque<u64>) = Default::default();
    let (mut raw, mut relayed) = (0, 0);
    let fill = if is_full { CACHE / blocks } else { 1 };
    for sequence in 0..(fill + MEASURED) as u64 {
        let mut events = Vec::new();
        let room = (prompt.len() + finished.len() + blocks).saturating_sub(CACHE);
        for name in finished.drain(..room) {
            let names = vec![Name::Int(name)];
            events.push(Event::Removed(Removed { names, medium: Some(MEDIUM.to_owned()), group: Some(0) }));
        }
        if prompt.len() >= PROMPT {
            finished.extend(prompt.drain(..).rev());
        }
        let parent = prompt.last().copied();
        let names: Vec<u64> = (0..blocks).map(|_| rng.u64(1 << 63..)).collect();
        prompt.extend(&names);
        events.push(Event::Stored(Stored {
            names: names.into_iter().map(Name::Int).collect(),
            parent: parent.map(Name::Int),
            tokens: (0..blocks * BLOCK).map(|_| rng.u32(..128_000)).collect(),
            block_size: BLOCK as u32,
            lora: None,
            medium: Some(MEDIUM.to_owned()),
            extra_keys: None,
            group: Some(0),
            kind: Some(KIND.to_owned()),
            window: None,
        }));
        let payload = batch(dialect, 1_764_500_000.5, &events, Some(0));
        decode(wire::Dialect::Vllm, &payload, &mut decoded).expect("an engine's message");
        let stamp = Stamp { epoch: 1, sequence: Some(sequence) };
        normalizer.apply(&decoded, stamp).expect("the rank is there");
        if sequence + 1 == fill as u64 {
            listener.attend(rank).expect("the rank is there");
        }
        while let Some(Heard::Delta(delta)) = listener.try_next().expect("it keeps up") {
            let mut writer = BatchWriter::new(LIFE);
            writer.add(&delta);
            relayed += writer.finish(sequence, false).len();
            raw += payload.len();
        }
    }
    (raw, relayed)
}

#[test]
fn what_engines_say_of_blocks_is_told_on_in_two_fifths_of_their_bytes() {
    for dialect in [Dialect::Array22, Dialect::Map33] {
        for blocks in [1, 512] {
            for is_full in [false, true] {
                let (raw, relayed) = told(dialect, blocks, is_full);
                let ratio = relayed as f64 / raw as f64;
                println!(
                    "{dialect:?}, {blocks} blocks a message, full: {is_full}: {relayed} of {raw} bytes, {ratio:.3}"
                );
                assert!(raw > 0 && ratio <= 0.4, "{dialect:?}, {blocks} blocks, full: {is_full}: {ratio:.3}");
            }
        }
    }
}
