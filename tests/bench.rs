//! `kvtap bench`, in small: what it prints, and that it asks whether what it measured is right.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use std::process::{Command, Output};

use serde_json::Value;

fn bench(more: &[&str]) -> Output {
    let small = ["bench", "--workers", "2", "--blocks", "512", "--prompt-blocks", "16", "--duration", "50ms"];
    Command::new(env!("CARGO_BIN_EXE_kvtap")).args(small).args(more).output().unwrap()
}

#[test]
fn every_figure_is_there_for_programs() {
    for shape in [&["--ranks", "2"][..], &["--sharing", "0"], &["--sharing", "1", "--rate", "10000"]] {
        let output = bench(&[&["--json"], shape].concat());
        assert!(output.status.success(), "{shape:?}: {output:?}");
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        for figure in [
            "/ingest/fill_blocks_per_second",
            "/ingest/steady_blocks_per_second",
            "/ingest/nanoseconds_per_block",
            "/ingest/bytes_per_block_on_the_wire",
            "/match_idle/p50_us",
            "/match_idle_hashed/p99_us",
            "/match_under_load/p99_us",
            "/load_blocks_per_second",
            "/restart/first_answer_ms",
            "/restart/longest_stall_ms",
            "/restart/file_bytes_per_block",
        ] {
            let value = report.pointer(figure).and_then(Value::as_f64);
            assert!(value.is_some_and(|value| value > 0.0), "{figure}: {report:#}");
        }
        let blocks = report["memory"]["blocks"].as_u64().unwrap();
        assert!(blocks >= 1024 && report["restart"]["blocks"] == blocks, "{report:#}");
        assert!(report["memory"]["resident_bytes_per_block"].is_f64());
    }
}

#[test]
fn people_get_one_page() {
    let output = bench(&[]);
    let page = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && page.lines().count() < 25, "{page}");
    for part in ["ingest, one thread", "match against all ranks", "memory", "restart of kvtap with"] {
        assert!(page.contains(part), "{part} is missing in\n{page}");
    }
    assert!(page.lines().all(|line| line.len() <= 120), "{page}");
}

#[test]
fn shapes_that_make_no_sense_are_bad_usage() {
    for wrong in [["--workers", "0"], ["--sharing", "1.5"], ["--block-size", "0"], ["--rate", "nan"], ["--blocks", "1"]]
    {
        assert_eq!(bench(&wrong).status.code(), Some(64), "{wrong:?}");
    }
}
