//! One feed per rank: sockets, order, loss, restart.

pub mod status;
pub mod zmq;
