//! Publications into the stream, and what became of them: bounded in number, tried again, and counted where the stream
//! does not keep them. Followers that listen get them either way; only gaps cannot be filled then.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::time::Duration;

use async_nats::HeaderMap;
use async_nats::jetstream::{self, context::PublishAckFuture};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use super::figures::{Figures, count};
use super::options::StreamOptions;
use super::stream;

/// Publications whose fate is not known yet. Beyond, the publisher waits, but not for long: a stream that takes nothing
/// must not keep an owner from saying that it is there.
const UNKNOWN: usize = 1024;

/// How often a publication is tried in all.
const TRIES: u32 = 3;

/// How long a publication waits for room among those. After that nobody learns its fate.
const PACE: Duration = Duration::from_millis(50);

/// The pause between two looks for a stream that is not there.
const STREAM_RETRY: Duration = Duration::from_millis(500);

/// The publishing side.
#[derive(Debug)]
pub(super) struct Acks {
    context: jetstream::Context,
    unknown: mpsc::Sender<(Publication, PublishAckFuture)>,
    figures: Arc<Figures>,
    tasks: [JoinHandle<()>; 2],
}

#[derive(Debug)]
struct Publication {
    subject: String,
    id: String,
    bytes: Bytes,
    tries: u32,
}

// === impl Acks ===

impl Acks {
    /// Sees to it that there is a stream, now and after it was deleted.
    pub(super) fn new(client: &async_nats::Client, options: StreamOptions, figures: Arc<Figures>) -> Self {
        let context = stream::context(client);
        let (unknown, waiting) = mpsc::channel(UNKNOWN);
        let (lost, missing) = mpsc::channel(1);
        let collect = collect(context.clone(), waiting, lost, Arc::clone(&figures));
        let keep = keep(context.clone(), options, missing);
        Self { context, unknown, figures, tasks: [tokio::spawn(collect), tokio::spawn(keep)] }
    }

    /// Publishes. Waits where too much is on the way; the outcome is somebody else's business.
    pub(super) async fn publish(&self, subject: String, id: String, bytes: Bytes) {
        let publication = Publication { subject, id, bytes, tries: 1 };
        let told = match send(&self.context, &publication).await {
            // The collecting task lives as long as this does.
            Some(ack) => timeout(PACE, self.unknown.send((publication, ack))).await.is_ok(),
            None => false,
        };
        if !told {
            count(&self.figures.unkept);
        }
    }
}

impl Drop for Acks {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

async fn send(context: &jetstream::Context, publication: &Publication) -> Option<PublishAckFuture> {
    let Publication { subject, id, bytes, .. } = publication;
    let mut headers = HeaderMap::new();
    headers.insert(async_nats::header::NATS_MESSAGE_ID, id.as_str());
    context.publish_with_headers(subject.clone(), headers, bytes.clone()).await.ok()
}

async fn collect(
    context: jetstream::Context,
    mut waiting: mpsc::Receiver<(Publication, PublishAckFuture)>,
    lost: mpsc::Sender<()>,
    figures: Arc<Figures>,
) {
    let outcome = |(publication, ack): (Publication, PublishAckFuture)| async move {
        (publication, ack.into_future().await.is_ok())
    };
    let mut pending = FuturesUnordered::new();
    loop {
        tokio::select! {
            next = waiting.recv(), if pending.len() < UNKNOWN => match next {
                Some(next) => pending.push(outcome(next)),
                None => return,
            },
            Some((mut publication, kept)) = pending.next() => {
                if kept {
                    count(&figures.kept);
                    continue;
                }
                // Perhaps there is no stream any more: one such word is enough.
                let _ = lost.try_send(());
                publication.tries += 1;
                let again = if publication.tries <= TRIES { send(&context, &publication).await } else { None };
                match again {
                    Some(ack) => pending.push(outcome((publication, ack))),
                    None => count(&figures.unkept),
                }
            }
        }
    }
}

/// Makes the stream at the start, and again whenever something was not kept.
async fn keep(context: jetstream::Context, options: StreamOptions, mut missing: mpsc::Receiver<()>) {
    loop {
        while let Err(error) = stream::ensure(&context, &options).await {
            tracing::warn!(stream = options.name, %error, "The stream is not there and cannot be made.");
            sleep(STREAM_RETRY.mul_f64(0.5 + fastrand::f64())).await;
        }
        if missing.recv().await.is_none() {
            return;
        }
        // Many may have lost it at the same time.
        sleep(STREAM_RETRY.mul_f64(fastrand::f64())).await;
    }
}
