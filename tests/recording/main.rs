//! Recordings: the file by itself, what redaction leaves, and the commands against a real libzmq publisher.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../support/python.rs"]
mod python;

mod commands;
mod file;
mod redacted;
mod support;
