//! gRPC: what routers ask. Requests are read and answers are written in this room and nowhere else; what the protocol
//! calls a rank and a state, [`proto`](crate::proto) and [`feed`](crate::feed) say, and the events of a feed
//! [`replica`](crate::replica) encodes.
//!
//! ```text
//! bytes --request--> Query (checked, borrowed) --matching--> Answer --response--> bytes
//!                                                  |
//!                                        Index::match_chain, Board
//! ```
//!
//! ```text
//! socket --net::Door--> connection (TLS, HTTP/2) --gate (token, limits, deadline, pace)--> query --stream
//! ```
//!
//! * [`listen`]: tcp (both address families on one socket) and unix sockets, bound by the caller.
//! * [`admin_rpc`]: feeds changed by call, on sockets of its own.
//! * `sockets`: what both servers have in common: who may call, what a connection is granted, the end.
//! * `watch`: the normalized feed, to whoever keeps an index of their own.
//! * `kv_events`: the same, in the words of SMG's gateway, where that is switched on.
//! * `explain`: the first block that a worker lacks of a prompt, and why.
//! * [`run`]: one server on any number of listeners, with health and reflection, and a drain that ends in time.
//!
//! What holds:
//!
//! 1. A request that cannot be answered exactly as asked is refused with the field's name and what is known; nothing
//!    is guessed, and an answer of zeros always means that zero blocks are held.
//! 2. A prompt is hashed once for each distinct grid, whatever the number of workers.
//! 3. A request costs memory in proportion to its own bytes, which are bounded each
//!    ([`Options::max_message_bytes`]) and together ([`Limits::request_bytes`]). One bad request of a stream costs that
//!    request.
//! 4. Nothing of a prompt (tokens, salt, keys, hashes) is logged or comes back in an error.
//! 5. One caller costs the others nothing but its share: connections, requests and bytes are counted, a message that
//!    does not arrive is given up, and large prompts are decoded and hashed aside, in turn.

pub mod admin_rpc;
mod answer;
mod connection;
mod error;
mod explain;
mod files;
mod gate;
mod kv_events;
mod limits;
pub mod listen;
mod matching;
mod outbox;
mod paced;
mod pod_scores;
mod query;
mod refusal;
mod request;
pub mod response;
mod server;
mod sockets;
mod stream;
mod tls;
mod token;
mod watch;

pub use admin_rpc::{AdminRpc, Guards, ReadFeed};
pub use connection::KeepAlive;
pub use files::FileError;
pub use limits::Limits;
pub use listen::{ListenAddr, ListenError, Listener};
pub use server::{Adapter, Options, ServeError, WatchLimits, run};
pub use tls::TlsFiles;
