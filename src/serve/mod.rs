//! gRPC: what routers ask. Conversion to and from the protocol happens in this room and nowhere else.
//!
//! ```text
//! bytes --request--> Query (checked, borrowed) --matching--> Answer --response--> bytes
//!                                                  |
//!                                        Index::match_chain, Board
//! ```
//!
//! * [`listen`]: tcp (both address families on one socket) and unix sockets, bound by the caller.
//! * `watch`: the normalized feed, to whoever keeps an index of their own.
//! * `explain`: the first block that a worker lacks of a prompt, and why.
//! * [`run`]: one server on any number of listeners, with health and reflection, and a drain that ends in time.
//!
//! What holds:
//!
//! 1. A request that cannot be answered exactly as asked is refused with the field's name and what is known; nothing
//!    is guessed, and an answer of zeros always means that zero blocks are held.
//! 2. A prompt is hashed once for each distinct grid, whatever the number of workers.
//! 3. A request costs memory in proportion to its own bytes, which are bounded
//!    ([`Options::max_message_bytes`]). One bad request of a stream costs that request.
//! 4. Nothing of a prompt (tokens, salt, keys, hashes) is logged or comes back in an error.

mod error;
mod explain;
pub mod listen;
mod matching;
mod oversize;
mod query;
mod request;
pub mod response;
mod server;
mod watch;

pub use listen::{ListenAddr, ListenError, Listener};
pub use server::{Options, ServeError, WatchLimits, run};
