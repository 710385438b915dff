//! NATS: feeds and fleets against a real nats-server, one for each test.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cluster;
mod command;
mod dynamo;
mod faults;
mod fleet;
mod hostile;
mod kept;
mod raw;
mod relay;
mod schedule;
mod secured;
mod server;
mod streamed;
mod tap;
mod trust;
