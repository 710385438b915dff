//! A client: one server, or many at once.
//!
//! ```text
//! request --Servers--> every server, so many at a time, until the deadline --gathered--> one answer, and who is missing
//! ```
//!
//! * [`Client`]: the way to one server, in plaintext or TLS, with a token or without. It connects when it is first
//!   used and again when it must.
//! * [`Servers`]: many sidecars, each of which knows its own engine. A question goes to all of them.
//! * [`Gathered`]: what came, put together, and of whom nothing came and why.
//!
//! What holds:
//!
//! 1. An answer is there at its deadline, whatever a server does. What is not there then is marked: an answer without
//!    `missing` is whole.
//! 2. A server that is slow is asked once more, over another connection, before the deadline: a connection that died
//!    without a word costs a moment, not the answer.
//! 3. No more than [`ServersOptions::at_once`] questions are under way.

mod connect;
mod gathered;
mod servers;

pub use connect::{Client, ClientError, Connection, Credentials, Service, Tls, Token};
pub use gathered::{Gathered, Missing};
pub use servers::{Servers, ServersOptions};
