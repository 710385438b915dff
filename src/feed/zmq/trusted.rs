//! The second implementation behind the door: the `zeromq` crate, under supervision.
//!
//! It reads as fast as libzmq, and serves links to the same pod. What it lacks is made up for here where it can
//! be: a deadline for connect and handshake together; the subscription after the connection, for otherwise a
//! failure to send it is swallowed; a socket made anew after any error, disconnection or long silence, for it
//! would wait up to 30 s to reconnect and never notices a half-open connection. What cannot be made up for is
//! that it allocates whatever length a peer declares: hence local peers only.

use std::time::Duration;

use futures_util::StreamExt;
use tokio::time::{Instant, sleep_until, timeout};
use zeromq::{Socket, SocketEvent, SocketOptions, SocketRecv, SubSocket, ZmqError, ZmqMessage};

use super::connection::after;
use super::presence::{Presence, Progress, Publisher};
use super::{Fault, Limits, SubOptions};
use crate::feed::drops::Dropped;

/// Connects, and receives until the publisher is gone: how long it was there.
///
/// # Errors
/// Why it could not connect. Later faults are told to the queue.
pub(super) async fn serve(options: &SubOptions, presence: &Presence) -> Result<Duration, Fault> {
    let deadline = options.timing.connect;
    let mut socket = SubSocket::with_options({
        let mut inner = SocketOptions::default();
        inner.connect_timeout(deadline);
        inner
    });
    let mut monitor = socket.monitor();
    timeout(deadline, async {
        socket.connect(&options.endpoint.to_string()).await?;
        socket.subscribe(&options.topic).await
    })
    .await
    .map_err(|_| Fault::ConnectDeadline)?
    .map_err(fault)?;
    let mut publisher = presence.join(&Progress::default());
    let fault = receive(&mut socket, &mut monitor, options, &mut publisher).await;
    let lived = publisher.since().elapsed();
    publisher.leave(fault);
    Ok(lived)
}

async fn receive(
    socket: &mut SubSocket,
    monitor: &mut (impl futures_util::Stream<Item = SocketEvent> + Unpin),
    options: &SubOptions,
    publisher: &mut Publisher,
) -> Fault {
    loop {
        let now = Instant::now();
        publisher.heard(now);
        tokio::select! {
            biased;
            received = socket.recv() => match received {
                Ok(message) => take(message, options.limits, publisher),
                Err(ZmqError::Network(error)) => return Fault::Broken(error),
                Err(error) => return fault(error),
            },
            // The messages before a disconnection have come before this.
            event = monitor.next() => match event {
                Some(SocketEvent::Disconnected(_) | SocketEvent::Closed) | None => return Fault::Closed,
                Some(_) => {}
            },
            () = sleep_until(after(now, options.timing.idle)) => return Fault::Idle,
        }
        // A publisher that never stops sending must not starve other tasks.
        tokio::task::consume_budget().await;
    }
}

/// Keeps to the caps as well as can be once a message has been read.
fn take(message: ZmqMessage, limits: Limits, publisher: &mut Publisher) {
    let frames = message.into_vec();
    let bytes = frames.iter().fold(0_usize, |sum, frame| sum.saturating_add(frame.len()));
    if frames.len() > limits.frames {
        publisher.lost(Dropped::TooManyFrames);
    } else if bytes > limits.message_bytes {
        publisher.lost(Dropped::MessageTooLarge);
    } else {
        publisher.message(frames);
    }
}

fn fault(error: ZmqError) -> Fault {
    match error {
        ZmqError::Network(error) => Fault::Connect(error),
        ZmqError::ConnectTimeout(_) => Fault::ConnectDeadline,
        ZmqError::NoMessage => Fault::Closed,
        other => Fault::Socket(other.to_string()),
    }
}
