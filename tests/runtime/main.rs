//! Which feeds run is decided while `kvtap serve` runs: by its file, by Admin calls, by Kubernetes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

mod admin;
mod api;
mod discovery;
mod engine;
#[path = "../support/libzmq.rs"]
mod libzmq;
mod reload;
mod roster;
mod snapshots;
#[path = "../tap_support/mod.rs"]
mod tap_support;
#[path = "../warm_support/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod warm_support;

use tap_support::python;
