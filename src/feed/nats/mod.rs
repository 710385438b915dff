//! Feeds over NATS: one subscription, many ranks.
//!
//! ```text
//! server --subscription--> Link --Item--> Plane --whose?--> Lanes --queue of each rank--> Runner, as of a socket
//!        --stream, read--^                  |                 |
//!                                           |                 +-- Ledger: publishers' numbers -> each rank's own
//!                                           +-- Door: what is nobody's, on the board
//! ```
//!
//! Two kinds of payload come this way ([`Following::dialect`](super::Following::dialect)):
//!
//! - *Dynamo's event plane.* The envelope names its publisher and numbers its messages; router events inside name
//!   workers and ranks, which appear here as they speak. Its older form, JSON on JetStream, has no envelope: there the
//!   stream's own numbers count. JSON on a plain subscription has no numbers at all.
//! - *Raw batches*, as an engine would send them over ZMQ and a bridge publishes them. The subject says whose they are
//!   ([`Pattern`]); the headers [`SEQUENCE_HEADER`] and [`PUBLISHER_HEADER`] number them and name their publisher's life.
//!
//! What holds:
//!
//! - The state of each rank is its own machine's, as of every feed. What this room adds is what NATS knows: who
//!   published, under which number (the ledger).
//! - Core NATS delivers at most once, and gives nothing back: a number that is missing is a gap, and the rank is
//!   incomplete until a clear or a new life. A connection that is gone ends `live` at once; the next message of the same
//!   publisher proves whether anything was missed.
//! - The client's notice that it dropped messages is treated as a disconnection: whatever comes next must prove itself.
//! - Messages without numbers never make a rank `live`: a lost one would not be noticed.
//! - Ranks, publishers, queues and what one message may name are bounded; what is turned away is counted by reason.
//! - A worker that the wire names is called after the configured name, `NAME/WIRE`, so that it can never pass for a
//!   configured one; the wire's name is an alias. The board shows the subscription itself under `NAME`: it holds nothing.

mod connect;
mod door;
mod endpoint;
mod lanes;
mod ledger;
mod link;
mod plane;
mod stream;
mod subject;

pub use connect::{ConnectionOptions, Security};
pub use endpoint::{NatsEndpoint, NatsEndpointError};
pub use plane::{PUBLISHER_HEADER, Plane, PlaneOptions, SEQUENCE_HEADER};
pub use subject::{Pattern, PatternError, Reading};
