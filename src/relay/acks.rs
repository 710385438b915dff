//! Publications into the stream, and what became of them: bounded in number and bytes, tried again, and counted where the
//! stream does not keep them. Followers that listen get them either way; only gaps cannot be filled then.
//!
//! An answer of the stream costs its owner more than the message that it answers. So few publications ask for one, and it
//! stands for all that went before on the same connection, which servers take in their order. What a slow owner publishes asks
//! each time.

use std::future::IntoFuture as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use async_nats::jetstream::{self, context::PublishAckFuture};
use async_nats::{HeaderMap, Subject};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use super::figures::{Figures, count};
use super::options::StreamOptions;
use super::stream;

/// The shortest time from one question to the next, unless so many publications or bytes wait for an answer by then.
const ASK_EVERY: Duration = Duration::from_millis(20);
const UNASKED: usize = 256;
const UNASKED_BYTES: usize = 1 << 20;

/// Questions without an answer yet. Beyond, the publisher waits, but not for long: a stream that takes nothing must not
/// keep an owner from saying that it is there.
const UNKNOWN: usize = 32;

/// How often a publication is tried in all, and the pause before the next time: a stream that is gone says so at once, and
/// is made again a little later.
const TRIES: u32 = 3;
const AGAIN: Duration = Duration::from_millis(300);

/// How long publications wait for room among the questions. After that nobody learns their fate.
const PACE: Duration = Duration::from_millis(50);

/// The pause between two looks for a stream that is not there.
const STREAM_RETRY: Duration = Duration::from_millis(500);

/// The publishing side.
#[derive(Debug)]
pub(super) struct Acks {
    client: async_nats::Client,
    context: jetstream::Context,
    /// What was published since the last question, and when that was.
    unasked: Vec<Publication>,
    unasked_bytes: usize,
    asked: Option<Instant>,
    unknown: mpsc::Sender<Question>,
    figures: Arc<Figures>,
    tasks: [JoinHandle<()>; 2],
}

/// One message for the stream. Its id lets the stream keep it once, however often it is sent.
#[derive(Debug)]
pub(super) struct Publication {
    pub(super) subject: Subject,
    pub(super) id: String,
    pub(super) bytes: Bytes,
}

/// Publications whose fate the answer to the last of them tells.
#[derive(Debug)]
struct Question {
    of: Vec<Publication>,
    answer: PublishAckFuture,
    tries: u32,
}

// === impl Acks ===

impl Acks {
    /// Sees to it that there is a stream, now and after it was deleted.
    pub(super) fn new(client: &async_nats::Client, options: StreamOptions, figures: Arc<Figures>) -> Self {
        let context = stream::context(client);
        let (unknown, waiting) = mpsc::channel(UNKNOWN);
        let (lost, missing) = mpsc::channel(1);
        let collect = collect(client.clone(), context.clone(), waiting, lost, Arc::clone(&figures));
        let keep = keep(context.clone(), options, missing);
        Self {
            client: client.clone(),
            context,
            unasked: Vec::new(),
            unasked_bytes: 0,
            asked: None,
            unknown,
            figures,
            tasks: [tokio::spawn(collect), tokio::spawn(keep)],
        }
    }

    /// Publishes. Waits where too much is on the way; the outcome is somebody else's business.
    pub(super) async fn publish(&mut self, publication: Publication) {
        self.unasked_bytes += publication.bytes.len();
        let is_due = self.asked.is_none_or(|asked| asked.elapsed() >= ASK_EVERY)
            || self.unasked.len() + 1 >= UNASKED
            || self.unasked_bytes >= UNASKED_BYTES;
        if !is_due {
            match tell(&self.client, &publication).await {
                Some(()) => self.unasked.push(publication),
                None => count(&self.figures.unkept),
            }
            return;
        }
        self.asked = Some(Instant::now());
        self.unasked_bytes = 0;
        let answer = ask(&self.context, &publication).await;
        let mut of = std::mem::take(&mut self.unasked);
        of.push(publication);
        let count = of.len() as u64;
        let told = match answer {
            // The collecting task lives as long as this does.
            Some(answer) => {
                timeout(PACE, self.unknown.send(Question { of, answer, tries: 1 })).await.is_ok_and(|sent| sent.is_ok())
            }
            None => false,
        };
        if !told {
            self.figures.unkept.fetch_add(count, Relaxed);
        }
    }
}

impl Drop for Acks {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

fn headers(id: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(async_nats::header::NATS_MESSAGE_ID, id);
    headers
}

/// Publishes without a question.
async fn tell(client: &async_nats::Client, publication: &Publication) -> Option<()> {
    let Publication { subject, id, bytes } = publication;
    client.publish_with_headers(subject.clone(), headers(id), bytes.clone()).await.ok()
}

async fn ask(context: &jetstream::Context, publication: &Publication) -> Option<PublishAckFuture> {
    let Publication { subject, id, bytes } = publication;
    context.publish_with_headers(subject.clone(), headers(id), bytes.clone()).await.ok()
}

async fn collect(
    client: async_nats::Client,
    context: jetstream::Context,
    mut waiting: mpsc::Receiver<Question>,
    lost: mpsc::Sender<()>,
    figures: Arc<Figures>,
) {
    let answered = |Question { of, answer, tries }: Question| {
        let lost = lost.clone();
        async move {
            let kept = answer.into_future().await.is_ok();
            if !kept {
                // Perhaps there is no stream any more: one such word is enough.
                let _ = lost.try_send(());
                sleep(AGAIN).await;
            }
            (of, tries, kept)
        }
    };
    let mut pending = FuturesUnordered::new();
    loop {
        tokio::select! {
            next = waiting.recv(), if pending.len() < UNKNOWN => match next {
                Some(next) => pending.push(answered(next)),
                None => return,
            },
            Some((of, tries, kept)) = pending.next() => {
                let count = of.len() as u64;
                if kept {
                    figures.kept.fetch_add(count, Relaxed);
                    continue;
                }
                let again = if tries < TRIES { send_again(&client, &context, &of).await } else { None };
                match again {
                    Some(answer) => pending.push(answered(Question { of, answer, tries: tries + 1 })),
                    None => drop(figures.unkept.fetch_add(count, Relaxed)),
                }
            }
        }
    }
}

/// Sends publications once more, and asks with the last.
async fn send_again(
    client: &async_nats::Client,
    context: &jetstream::Context,
    publications: &[Publication],
) -> Option<PublishAckFuture> {
    let (last, before) = publications.split_last()?;
    for publication in before {
        tell(client, publication).await?;
    }
    ask(context, last).await
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
