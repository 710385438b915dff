//! One feed per rank: sockets, order, loss, restart.
//!
//! ```text
//! engine --PUB--> zmq link ---queue--> Runner --Input--> Machine --Command--> Runner --> decode --> normalize --> index
//!        <-ROUTER- zmq replay -------> |                                        |
//!        <-GET---- http poll --queue-> |                                        +--> status::Entry on the Board
//! server --NATS--> nats plane --queue> |
//! ```
//!
//! [`Feed::spawn`] is the door: it registers a rank with the index, puts an [`Entry`](status::Entry) on the
//! [`Board`](status::Board), and starts two tasks. The link's only receives; the [`Runner`](runner::Runner)'s asks the
//! [`Machine`](machine::Machine) about every message and does what it says. One socket is one rank: a batch that names
//! another rank is applied to the socket's all the same, and counted as `rank_conflict`. TensorRT-LLM's HTTP endpoint
//! speaks for all ranks: [`Feed::spawn_polled`] gives each its lane ([`http`]). So does a subscription of NATS, whose
//! ranks may appear as they speak ([`nats`]). What the three transports have in common is [`link`]; [`zmtp`] is the protocol of
//! ZMQ, pure.
//!
//! What holds:
//!
//! - All decisions about order, loss and restart are the machine's, which is pure. What it says of itself is in its page.
//! - `live` on the board means live in the machine, no block waiting for its parent, and events that name blocks exactly.
//!   The board never says so before the messages that make it so were applied.
//! - A message that could not be read leaves the feed incomplete: what it stored or removed is not known.
//! - A restored snapshot is not live before the machine has proven its epoch, and no epoch number is used twice.
//! - A feed that was stopped has left board and index, and nothing of it can come back: the index refuses its writer.

pub mod drops;
pub mod http;
mod keeper;
pub mod link;
pub mod machine;
pub mod nats;
mod options;
pub mod recording;
pub mod runner;
pub mod source;
mod spawn;
pub mod status;
mod tally;
pub mod zmq;
pub mod zmtp;

pub use keeper::Snapshots;
pub use options::{Following, Options, PolledOptions};
pub(crate) use spawn::Registration;
pub use spawn::{Feed, SpawnError};
