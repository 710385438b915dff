//! Captured messages, and an index made of them without any feed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvtap::block::Grid;
use kvtap::feed::recording::{Entry, Header, Record, VERSION};
use kvtap::hash::Seed;
use kvtap::index::{self, Chain, Copies, Index};
use kvtap::normalize::{self, Normalizer};
use kvtap::sim::captured::{self, Capture};
use kvtap::wire::{self, Batch, Dialect};
use kvtap::worker::Stamp;

pub const PATIENCE: Duration = Duration::from_secs(60);

/// A real engine's run, as `capture_pub.py` reads it too.
pub fn capture_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sim/captured.jsonl")
}

/// Its prompts and its messages' payloads, by sequence number.
pub fn capture() -> (Vec<Vec<u32>>, Vec<(u64, Bytes)>) {
    let (mut prompts, mut messages) = (Vec::new(), Vec::new());
    for entry in Capture::vllm().unwrap().entries {
        match entry {
            captured::Entry::Request { prompt, .. } => prompts.push(prompt.tokens),
            captured::Entry::Message { sequence, payload, .. } => messages.push((sequence, payload)),
            captured::Entry::Burst { .. } => {}
        }
    }
    (prompts, messages)
}

/// How many leading blocks of each prompt are held once all payloads were applied.
pub fn matches(payloads: &[(u64, Bytes)], prompts: &[Vec<u32>]) -> Vec<u32> {
    let index = Index::new(index::Limits { blocks_per_rank: 1 << 20, blocks_in_all: 1 << 20 });
    let writer = index.register("m", Copies::Count).unwrap();
    let mut normalizer = Normalizer::new(writer, normalize::Options::default());
    let mut batch = Batch::default();
    for (sequence, payload) in payloads {
        wire::decode(Dialect::Auto, payload, &mut batch).unwrap();
        normalizer.apply(&batch, Stamp { epoch: 1, sequence: Some(*sequence) }).unwrap();
    }
    matches_in(&index, "m", prompts)
}

/// The same of an index that is there, for its only rank.
pub fn matches_in(index: &Arc<Index>, model: &str, prompts: &[Vec<u32>]) -> Vec<u32> {
    let grids = index.grids(model).unwrap();
    let [grid] = grids.as_slice() else { panic!("{grids:?}") };
    prompts.iter().map(|prompt| matched(index, model, *grid, prompt)).collect()
}

fn matched(index: &Arc<Index>, model: &str, grid: Grid, prompt: &[u32]) -> u32 {
    let tokens: Vec<u8> = prompt.iter().copied().flat_map(u32::to_le_bytes).collect();
    let contents = grid.plain_contents(&tokens, Seed::PLAIN);
    let mut found = Vec::new();
    index.match_chain(model, grid, Chain::Content(&contents), None, &mut found);
    found.first().map_or(0, |found| found.blocks)
}

pub fn header() -> Header {
    assert_eq!(VERSION, 1);
    Header { recording: 7, part: 0, started_unix_ns: 1, program: "test".to_owned(), redacted: false, replayable: true }
}

pub fn message(sequence: u64, payload: Bytes) -> Record {
    let sequence_frame = Bytes::copy_from_slice(&sequence.to_be_bytes());
    Record {
        at: Duration::from_millis(sequence),
        entry: Entry::Message(vec![Bytes::from_static(b"kv"), sequence_frame, payload]),
    }
}
