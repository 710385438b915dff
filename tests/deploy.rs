//! The Kubernetes manifests, what monitoring is given, the status page and `kvtap top`: valid, restricted, and in agreement with the
//! binary.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "support/python.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod python;

use std::path::Path;
use std::process::Command;

/// Runs a script of tests/ that checks with unittest, and fails with what it said.
fn passes(script: &str, more: &[&str]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(script);
    let output = Command::new(python::interpreter())
        .arg("-B")
        .arg(script)
        .arg(env!("CARGO_BIN_EXE_kvtap"))
        .args(more)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{told}", String::from_utf8_lossy(&output.stdout));
    // That nothing was found to check would be a success too.
    assert!(told.contains("\nRan ") && !told.contains("\nRan 0 ") && !told.contains("skipped"), "{told}");
}

#[test]
fn the_manifests_build_validate_and_agree_with_the_binary() {
    passes("deploy/check.py", &[env!("CARGO")]);
}

#[test]
fn the_alerts_and_the_dashboard_ask_for_what_is_exported_and_a_prometheus_answers() {
    passes("deploy/observe.py", &[]);
}

#[test]
fn log_lines_levels_and_traces_are_what_was_asked_for() {
    passes("deploy/telemetry.py", &[]);
}

#[test]
fn the_status_page_works_in_a_browser() {
    passes("page/check.py", &[]);
}

#[test]
fn top_works_on_a_terminal() {
    passes("page/terminal.py", &[]);
}

#[test]
fn the_chart_and_the_schema_agree_with_the_manifests_and_the_binary() {
    passes("deploy/helm.py", &[]);
}
