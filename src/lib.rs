//! kvtap taps the KV-cache event feeds of LLM inference engines and answers routers: for this prompt, how many
//! leading tokens does each worker already hold, and how far can that be trusted?
//!
//! The rooms, each importing only those below it:
//!
//! ```text
//! cli        one file per command
//! client     the way to one server, or to many
//! discovery  engines found in Kubernetes
//! config     the file, environment overrides, validation
//! serve      gRPC: requests are checked here, and answers written
//! admin      /live /ready /metrics /status
//! net        connections from outside: how many, and how long each may dawdle
//! telemetry  log lines, the last happenings, traces
//! roster     which feeds run: who wants which, who gets it
//! sim        a simulated engine: real cache policy, real wire bytes, real sockets
//! relay      fleets: what our ranks hold, told over NATS, and others' followed
//! feed       sockets, the state machine of one feed, supervision
//! replica    an index rebuilt from another's normalized feed, and the messages of that
//! snapshot   what a rank holds, in a file that outlives the process
//! normalize  engine events -> index transactions: seeds, groups, tiers, orphans
//! index      who holds what, and the reference model of that
//! wire       pure decoders: bytes -> engine events
//! hash block worker   the vocabulary
//! backoff    how long to wait before the next attempt
//! proto      the public protocol, generated
//! ```

#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable)]

pub mod admin;
pub mod backoff;
pub mod block;
pub mod cli;
pub mod client;
pub mod config;
pub mod discovery;
pub mod feed;
pub mod hash;
pub mod index;
pub mod net;
pub mod normalize;
pub mod proto;
pub mod relay;
pub mod replica;
pub mod roster;
pub mod serve;
pub mod sim;
pub mod snapshot;
pub mod telemetry;
pub mod wire;
pub mod worker;
