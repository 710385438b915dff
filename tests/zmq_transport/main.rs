//! The ZMQ transport against real libzmq: links that connect, links that bind, replays.

#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "../support/libzmq.rs"]
mod libzmq;
#[path = "../support/python.rs"]
mod python;

mod bind;
mod connect;
mod flood;
mod half_open;
mod heartbeat;
mod replay;
