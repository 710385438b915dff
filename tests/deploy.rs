//! The Kubernetes manifests and the Dockerfile: valid, restricted, and in agreement with the binary.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "support/python.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod python;

use std::path::Path;
use std::process::Command;

#[test]
fn the_manifests_build_validate_and_agree_with_the_binary() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/deploy/check.py");
    let output = Command::new(python::interpreter())
        .arg("-B")
        .arg(script)
        .args([env!("CARGO_BIN_EXE_kvtap"), env!("CARGO")])
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}\n{told}", String::from_utf8_lossy(&output.stdout));
    // That nothing was found to check would be a success too.
    assert!(told.contains("\nRan ") && !told.contains("\nRan 0 ") && !told.contains("skipped"), "{told}");
}
