//! The task that owns the PUB socket.

use std::sync::Arc;

use bytes::Bytes;
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use zeromq::{PubSocket, Socket, SocketEvent, SocketSend, ZmqMessage};

use super::Shared;

type Queue = mpsc::Receiver<(u64, Bytes)>;

/// Sends what comes, to whoever is connected.
pub(super) async fn bound(mut socket: PubSocket, mut queue: Queue, shared: Arc<Shared>, close: CancellationToken) {
    let publish = async {
        while let Some((sequence, payload)) = queue.recv().await {
            shared.awake().await;
            send(&mut socket, &shared, sequence, payload).await;
        }
    };
    tokio::select! {
        () = close.cancelled() => {}
        () = publish => {}
    }
    for error in socket.close().await {
        tracing::warn!(%error, "A simulated engine's socket did not close cleanly.");
    }
}

/// Connects to a subscriber that listens, again whenever it goes away. Without one, what comes is lost.
pub(super) async fn connected(endpoint: String, mut queue: Queue, shared: Arc<Shared>, close: CancellationToken) {
    let publish = async {
        let mut open = true;
        while open {
            let mut socket = PubSocket::new();
            let mut events = socket.monitor();
            if !connect(&mut socket, &endpoint, &mut queue).await {
                return;
            }
            open = until_disconnected(&mut socket, &mut events, &mut queue, &shared).await;
        }
    };
    tokio::select! {
        () = close.cancelled() => {}
        () = publish => {}
    }
}

/// False once the publisher is gone.
async fn connect(socket: &mut PubSocket, endpoint: &str, queue: &mut Queue) -> bool {
    loop {
        let attempt = socket.connect(endpoint);
        tokio::pin!(attempt);
        let outcome = loop {
            tokio::select! {
                outcome = &mut attempt => break outcome,
                lost = queue.recv() => if lost.is_none() { return false },
            }
        };
        match outcome {
            Ok(()) => return true,
            Err(error) => {
                tracing::debug!(%error, endpoint, "No subscriber to connect to.");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

/// False once the publisher is gone.
async fn until_disconnected(
    socket: &mut PubSocket,
    events: &mut (impl futures_util::Stream<Item = SocketEvent> + Unpin),
    queue: &mut Queue,
    shared: &Shared,
) -> bool {
    loop {
        tokio::select! {
            event = events.next() => match event {
                Some(SocketEvent::Disconnected(_)) | None => return true,
                Some(_) => {}
            },
            message = queue.recv() => match message {
                Some((sequence, payload)) => {
                    shared.awake().await;
                    send(socket, shared, sequence, payload).await;
                }
                None => return false,
            },
        }
    }
}

async fn send(socket: &mut PubSocket, shared: &Shared, sequence: u64, payload: Bytes) {
    let mut message = ZmqMessage::from(shared.topic.clone());
    message.push_back(Bytes::copy_from_slice(&sequence.to_be_bytes()));
    message.push_back(payload);
    if let Err(error) = socket.send(message).await {
        tracing::warn!(%error, sequence, "A simulated engine could not send a message.");
    }
}
