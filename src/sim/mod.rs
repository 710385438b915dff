//! A simulated engine that behaves like vLLM towards its KV event feed: real cache policy, real wire bytes,
//! real sockets, faults on demand. `kvtap sim`, `kvtap demo` and the tests stand on it.
//!
//! ```text
//! load ---prompts, decoded tokens---> engine --> pool      which blocks are held; the engine's own hit count
//!                                       |          | events
//!                                       |        encode    msgpack, arrays or maps, as one release sends it
//!                                       |          | payload
//!                                       +------> publisher PUB + ROUTER replay, sequence numbers, the ring of old ones
//!                                          faults          what happens to a publication on its way out
//! ```
//!
//! What holds:
//!
//! * Every event comes out of the pool: nothing is announced that the pool did not do, and nothing it did is left out.
//! * The pool's hit count ([`pool::Admitted::cached_tokens`]) is what vLLM reports as `num_cached_tokens`. It is the truth that
//!   an index is measured against, so nothing in this room uses the index or the normalizer.
//! * A message that a fault takes away still burns its sequence number, as a real engine's does.

pub mod captured;
pub mod encode;
pub mod engine;
pub mod event;
pub mod faults;
pub mod load;
pub mod pool;
pub mod publisher;
