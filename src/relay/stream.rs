//! The stream that keeps what owners publish: made or adopted, and read where something is missing.

use std::time::{Duration, SystemTime};

use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, DeliverPolicy, pull},
    stream::{Config, DiscardPolicy, RetentionPolicy, StorageType},
};
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::timeout;

use super::options::StreamOptions;
use super::subject::{Address, PREFIX, Topic};

/// How long the server may take for one answer.
const ANSWER: Duration = Duration::from_secs(5);

/// Publications with one message id within this time are kept once.
const DUPLICATES: Duration = Duration::from_secs(120);

/// Our clock and the server's may differ by so much.
const SKEW: Duration = Duration::from_secs(30);

/// Messages that are read at once, and in all for one gap.
const AT_ONCE: usize = 256;
const MOST: usize = 1 << 16;

/// A context whose answers are not waited for longer than [`ANSWER`].
pub(super) fn context(client: &async_nats::Client) -> jetstream::Context {
    let mut context = jetstream::new(client.clone());
    context.set_timeout(ANSWER);
    context
}

/// Makes the stream, or sees that it is there. One that is there stays as it is: its bounds are its owner's business.
pub(super) async fn ensure(context: &jetstream::Context, options: &StreamOptions) -> Result<(), async_nats::Error> {
    let config = Config {
        name: options.name.clone(),
        subjects: vec![format!("{PREFIX}.{}.>", Topic::Events.word())],
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::Old,
        max_age: options.max_age,
        max_bytes: options.max_bytes,
        num_replicas: options.replicas,
        storage: if options.on_disk { StorageType::File } else { StorageType::Memory },
        duplicate_window: DUPLICATES.min(options.max_age),
        ..Default::default()
    };
    if context.get_stream(&options.name).await.is_ok() {
        return Ok(());
    }
    // Somebody else may make it at the same time.
    match context.create_stream(config).await {
        Ok(_) => Ok(()),
        Err(error) => context.get_stream(&options.name).await.map(|_| ()).map_err(|_| error.into()),
    }
}

/// Everything the stream still has of a rank since `since`, in its order.
pub(super) async fn read(
    context: &jetstream::Context,
    stream: &str,
    address: &Address,
    since: SystemTime,
) -> Result<Vec<Bytes>, async_nats::Error> {
    let stream = context.get_stream(stream).await?;
    let start = since.checked_sub(SKEW).unwrap_or(SystemTime::UNIX_EPOCH);
    let config = pull::Config {
        deliver_policy: DeliverPolicy::ByStartTime { start_time: start.into() },
        ack_policy: AckPolicy::None,
        filter_subject: Topic::Events.of(address),
        inactive_threshold: Duration::from_secs(10),
        memory_storage: true,
        num_replicas: 1,
        ..Default::default()
    };
    let consumer = stream.create_consumer(config).await?;
    let mut left = consumer.cached_info().num_pending;
    let mut found = Vec::new();
    let read = async {
        while left > 0 && found.len() < MOST {
            let mut messages = consumer.fetch().max_messages(AT_ONCE).messages().await?;
            let before = found.len();
            while let Some(message) = messages.next().await {
                found.push(message?.payload.clone());
                left = left.saturating_sub(1);
            }
            if found.len() == before {
                break;
            }
        }
        Ok(())
    };
    let read: Result<(), async_nats::Error> = timeout(6 * ANSWER, read).await.unwrap_or_else(|late| Err(late.into()));
    let _ = timeout(ANSWER, stream.delete_consumer(&consumer.cached_info().name)).await;
    read.map(|()| found)
}
