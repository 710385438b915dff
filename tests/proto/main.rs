//! The protocol as it is published: its names, its numbers, which are for ever, and its page.
//!
//! `KVTAP_WRITE=1 cargo test --test proto` writes `docs/proto.md` and `tests/proto/numbers.lock` anew; a number that the lock
//! holds is never given up.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod numbers;
mod page;
mod schema;
mod style;

use std::path::{Path, PathBuf};

/// A file of this repository.
fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Compares a file with what it should hold, or writes it.
#[track_caller]
fn holds(name: &str, text: &str) {
    if std::env::var_os("KVTAP_WRITE").is_some() {
        std::fs::write(file(name), text).unwrap();
    }
    let held = std::fs::read_to_string(file(name)).unwrap_or_default();
    if let Some((held, wanted)) = held.lines().zip(text.lines()).find(|(held, wanted)| held != wanted) {
        panic!("{name} is not of this protocol: KVTAP_WRITE=1 cargo test --test proto\n- {held}\n+ {wanted}");
    }
    assert_eq!(held.lines().count(), text.lines().count(), "{name}: KVTAP_WRITE=1 cargo test --test proto");
}
