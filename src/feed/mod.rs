//! One feed per rank: sockets, order, loss, restart.

pub mod machine;
pub mod status;
pub mod zmq;
