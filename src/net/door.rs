//! Accepting: each connection with a slot of its own, whatever the socket, and whatever goes wrong.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::time::sleep;

use super::counts::{ConnectionCounts, Ending};
use super::slots::{Slot, Slots};
use crate::backoff::Backoff;

/// Anything that bytes go to and come from.
pub trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A bound socket.
#[derive(Debug)]
pub enum Socket {
    /// tcp.
    Tcp(TcpListener),
    /// unix.
    Unix(UnixListener),
}

/// Lets connections in.
#[derive(Debug)]
pub struct Door {
    socket: Socket,
    slots: Slots,
    counts: ConnectionCounts,
    /// The port's word in metrics and in the log.
    port: &'static str,
    /// While connections cannot be accepted: how many times in a row, and the kind of error.
    trouble: Option<(u64, io::ErrorKind)>,
}

/// How long accepting rests after it failed first, and at most: without file descriptors, trying again at once would
/// spin.
const REST: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(1));

// === impl Door ===

impl Door {
    /// The door of one socket. Doors that share `slots` share the bound on connections.
    pub const fn new(socket: Socket, slots: Slots, counts: ConnectionCounts, port: &'static str) -> Self {
        Self { socket, slots, counts, port, trouble: None }
    }

    /// The next connection. Never fails: a connection that could not be accepted is one less.
    pub async fn accept(&mut self) -> (Box<dyn Stream>, Slot) {
        loop {
            let (stream, peer) = match self.next().await {
                Ok(accepted) => accepted,
                // The peer has gone before it was accepted.
                Err(error) if gone(error.kind()) => continue,
                Err(error) => {
                    self.counts.closed(self.port, Ending::NotAccepted);
                    self.rest(&error).await;
                    continue;
                }
            };
            if let Some((times, _)) = self.trouble.take() {
                tracing::info!(port = self.port, failures = times, "Connections are accepted again.");
            }
            match self.slots.take(peer) {
                Some(slot) => return (stream, slot),
                None => self.counts.closed(self.port, Ending::Crowded),
            }
        }
    }

    async fn next(&self) -> io::Result<(Box<dyn Stream>, Option<SocketAddr>)> {
        match &self.socket {
            Socket::Tcp(listener) => {
                let (stream, peer) = tcp(listener).await?;
                Ok((Box::new(stream), Some(peer)))
            }
            Socket::Unix(listener) => Ok((Box::new(listener.accept().await?.0), None)),
        }
    }

    /// Says it once for each kind of error, and waits longer each time.
    async fn rest(&mut self, error: &io::Error) {
        let times = match self.trouble {
            Some((times, kind)) if kind == error.kind() => times,
            before => {
                tracing::warn!(port = self.port, %error, "Connections cannot be accepted.");
                before.map_or(0, |(times, _)| times)
            }
        };
        self.trouble = Some((times + 1, error.kind()));
        sleep(REST.after(u32::try_from(times).unwrap_or(u32::MAX))).await;
    }
}

async fn tcp(listener: &TcpListener) -> io::Result<(TcpStream, SocketAddr)> {
    let (stream, peer) = listener.accept().await?;
    // Without it, Nagle's algorithm and delayed acknowledgements cost 40 ms a call. A socket that refuses it is gone.
    stream.set_nodelay(true).map_err(|_| io::ErrorKind::ConnectionReset)?;
    Ok((stream, peer))
}

fn gone(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_accepted_connection_does_not_wait_to_fill_its_packets() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        assert!(tcp(&listener).await.unwrap().0.nodelay().unwrap());
    }
}
