//! What every link has in common, whatever its transport: it brings one rank's messages, says what happens to the
//! connection, and is bounded.
//!
//! ```text
//! zmq   a task per socket        --+
//! http  a task per URL           --+-- QueueSender --> queue, bounded --> QueueReceiver --LinkEvent--> Runner
//! nats  a task per subscription  --+                                          ^-- QueueGauge, for who answers
//! ```
//!
//! What holds:
//!
//! - Messages, losses, connections and disconnections stay in their order. What does not fit is dropped, and the loss is
//!   reported in its place.
//! - A [`LinkEvent`] says only what a transport knows. What follows from it is the state machine's.
//! - [`Fault`] says why a connection ended, or never came to be; an attempt follows each after a [`Backoff`](crate::backoff::Backoff).

mod endpoint;
mod fault;
mod queue;

pub use endpoint::{Endpoint, EndpointError, Host, Mode};
pub use fault::Fault;
pub use queue::{LinkEvent, QueueGauge, QueueLimits, QueueReceiver, Waiting};
pub(super) use queue::{QueueSender, queue};
