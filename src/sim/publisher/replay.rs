//! The task that owns the ROUTER socket.

use std::sync::Arc;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;
use zeromq::{RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage, ZmqResult};

use super::{ReplayLayout, Shared};

const END: [u8; 8] = [0xff; 8];

/// Answers replay requests, one after another.
pub(super) async fn serve(mut socket: RouterSocket, shared: Arc<Shared>, close: CancellationToken) {
    let answer = async {
        loop {
            let request = match socket.recv().await {
                Ok(request) => request,
                Err(error) => {
                    tracing::warn!(%error, "A simulated engine's replay socket failed.");
                    return;
                }
            };
            shared.awake().await;
            let Some((client, start)) = parse(request) else {
                tracing::debug!("Ignored a replay request that is not [client, empty, start].");
                continue;
            };
            if let Err(error) = replay(&mut socket, &shared, &client, start).await {
                // The client has gone: the rest of its replay has no reader.
                tracing::debug!(%error, "A replay ended early.");
            }
        }
    };
    tokio::select! {
        () = close.cancelled() => {}
        () = answer => {}
    }
    for error in socket.close().await {
        tracing::warn!(%error, "A simulated engine's replay socket did not close cleanly.");
    }
}

/// vLLM reads the start with `int.from_bytes(.., "big")`: any length, and what does not fit lies beyond every number.
fn parse(request: ZmqMessage) -> Option<(Bytes, u64)> {
    let [client, _delimiter, start]: [Bytes; 3] = request.into_vec().try_into().ok()?;
    let mut number: u64 = 0;
    for byte in start {
        number = number.checked_mul(256).map_or(u64::MAX, |n| n | u64::from(byte));
    }
    Some((client, number))
}

async fn replay(socket: &mut RouterSocket, shared: &Shared, client: &Bytes, start: u64) -> ZmqResult<()> {
    let messages: Vec<(u64, Bytes)> =
        shared.ring().iter().filter(|(sequence, _)| *sequence >= start).cloned().collect();
    for (sequence, payload) in messages {
        let sequence = Bytes::copy_from_slice(&sequence.to_be_bytes());
        socket.send(reply(shared.layout, client, shared.topic.clone(), sequence, payload)).await?;
    }
    socket.send(reply(shared.layout, client, Bytes::new(), Bytes::from_static(&END), Bytes::new())).await
}

fn reply(layout: ReplayLayout, client: &Bytes, topic: Bytes, sequence: Bytes, payload: Bytes) -> ZmqMessage {
    let mut message = ZmqMessage::from(client.clone());
    message.push_back(Bytes::new());
    if layout == ReplayLayout::WithTopic {
        message.push_back(topic);
    }
    message.push_back(sequence);
    message.push_back(payload);
    message
}
