//! The simulated engine is judged here by what real engines did, and by models that are simpler than it is.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "helpers of tests fail by panicking")]

mod captured;
mod cli;
mod demo;
mod encode;
mod engine;
mod load;
mod peer;
mod pool;
mod publisher;
mod support;
