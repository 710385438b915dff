//! Files of former versions are read, and those of versions to come are refused by their number.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::path::PathBuf;
use std::process::Command;

use kvtap::block::Grid;
use kvtap::feed::recording::{self, ReadError};
use kvtap::hash::Seed;
use kvtap::index::{Chain, Copies, Index, Limits};
use kvtap::normalize::{Normalizer, Options};
use kvtap::snapshot::{Owner, Refusal, Snapshot, Store};
use serde_json::Value;

/// Where each file's version stands: after eight bytes that say what it is.
const VERSION: std::ops::Range<usize> = 8..12;

fn fixture(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/formats").join(name)
}

fn owner() -> Owner {
    Owner {
        worker: "pod-a".to_owned(),
        model: "m".to_owned(),
        rank: 0,
        endpoint: "ipc:///tmp/kvtap-formats/live".to_owned(),
        replay: Some("ipc:///tmp/kvtap-formats/replay".to_owned()),
        copies: Copies::Count,
    }
}

/// The prompt that the engine behind the files holds throughout.
fn prompt() -> Vec<u8> {
    (1..=33u32).flat_map(u32::to_le_bytes).collect()
}

#[test]
fn a_snapshot_of_version_1_gives_back_what_was_held() {
    let bytes = std::fs::read(fixture("snapshot-v1.kvtap")).unwrap();
    assert_eq!(bytes[VERSION], 1u32.to_le_bytes());
    let snapshot = Snapshot::read(&bytes, &owner()).unwrap();
    assert_eq!(snapshot.epoch, 1);
    let content = snapshot.content.unwrap();
    assert_eq!(content.stamp(1).sequence, Some(14));

    let index = Index::new(Limits { blocks_per_rank: 1 << 20, blocks_in_all: 1 << 20 });
    let mut normalizer = Normalizer::new(index.register("m", Copies::Count).unwrap(), Options::default());
    content.restore(1, &mut normalizer).unwrap();
    let rank = normalizer.rank();
    let usage = index.usage(rank).unwrap();
    let grid = Grid::new(16).unwrap();
    assert_eq!((usage.blocks, usage.grid), (83, Some(grid)));
    let mut found = Vec::new();
    let contents = grid.plain_contents(&prompt(), Seed::PLAIN);
    index.match_chain("m", grid, Chain::Content(&contents), Some(&[rank]), &mut found);
    assert_eq!((found[0].blocks, found[0].stamp.sequence), (2, Some(14)));
}

#[test]
fn a_snapshot_keeps_its_place_so_that_the_next_version_finds_it() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let name = store.file(&owner()).file_name().unwrap().to_owned();
    assert_eq!(name, "pod-a-8646c1aac08e7b41-0.kvtap");
}

#[test]
fn a_recording_of_version_1_plays_as_it_did() {
    let file = fixture("recording-v1.kvtap");
    assert_eq!(std::fs::read(&file).unwrap()[VERSION], 1u32.to_le_bytes());
    let tokens: Vec<String> = (1..=33).map(|token: u32| token.to_string()).collect();
    let output = Command::new(env!("CARGO_BIN_EXE_kvtap"))
        .args(["replay", file.to_str().unwrap(), "--into-index", "--tokens", &tokens.join(","), "--json"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let worker = &report["workers"][0];
    assert_eq!((&worker["state"], &worker["last_seq"], &worker["blocks"]), (&"live".into(), &14.into(), &83.into()));
    assert_eq!(report["match"]["matched_blocks"], 2);
}

#[test]
fn a_version_to_come_is_refused_by_its_number() {
    let mut bytes = std::fs::read(fixture("snapshot-v1.kvtap")).unwrap();
    bytes[VERSION].copy_from_slice(&9u32.to_le_bytes());
    let refusal = Snapshot::read(&bytes, &owner()).unwrap_err();
    assert_eq!((refusal, refusal.reason()), (Refusal::Version { found: 9 }, "version"));
    assert_eq!(refusal.to_string(), "it is of format version 9, and this program reads version 1");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("recording.kvtap");
    let mut bytes = std::fs::read(fixture("recording-v1.kvtap")).unwrap();
    bytes[VERSION].copy_from_slice(&9u32.to_le_bytes());
    std::fs::write(&file, &bytes).unwrap();
    let (path, error) = recording::open(std::slice::from_ref(&file)).unwrap_err();
    assert_eq!(path, file);
    assert!(matches!(error, ReadError::Version(9)), "{error}");
    assert_eq!(error.to_string(), "is a recording of version 9, not 1");
}
