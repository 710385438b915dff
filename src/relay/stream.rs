//! The streams that keep what owners publish: made or adopted, and read where something is missing.

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
use super::subject::{PREFIX, Topic};

/// How long the server may take for one answer.
const ANSWER: Duration = Duration::from_secs(5);

/// The same for a follower that reads: a server that has gone takes the answer along, and until then nothing else of the
/// rank is looked at.
const READING: Duration = Duration::from_secs(2);

/// Publications with one message id within this time are kept once.
const DUPLICATES: Duration = Duration::from_secs(120);

/// Our clock and the server's may differ by so much.
const SKEW: Duration = Duration::from_secs(30);

/// Messages that are read at once, and messages and bytes in all for one reading.
const AT_ONCE: usize = 256;
const MOST: usize = 1 << 16;
const MOST_BYTES: usize = 64 << 20;

/// A message of a stream.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) subject: String,
    pub(super) bytes: Bytes,
    /// Its place in the stream.
    pub(super) sequence: u64,
    /// When the server took it.
    pub(super) written: SystemTime,
}

/// A context whose answers are not waited for longer than [`ANSWER`].
pub(super) fn context(client: &async_nats::Client) -> jetstream::Context {
    let mut context = jetstream::new(client.clone());
    context.set_timeout(ANSWER);
    context
}

/// A context for [`read`].
pub(super) fn reading(client: &async_nats::Client) -> jetstream::Context {
    let mut context = jetstream::new(client.clone());
    context.set_timeout(READING);
    context
}

/// Makes the stream of events, or sees that it is there.
pub(super) async fn ensure(context: &jetstream::Context, options: &StreamOptions) -> Result<(), async_nats::Error> {
    let config = Config {
        name: options.name.clone(),
        subjects: vec![format!("{PREFIX}.{}.>", Topic::Events.word())],
        duplicate_window: DUPLICATES.min(options.max_age),
        ..bounded(options)
    };
    adopt(context, config).await
}

/// The same for the stream that keeps each subject's last message.
pub(super) async fn ensure_kept(
    context: &jetstream::Context,
    options: &StreamOptions,
) -> Result<(), async_nats::Error> {
    let config = Config {
        name: options.kept_name(),
        subjects: [Topic::Owners, Topic::Kept].map(|topic| format!("{PREFIX}.{}.>", topic.word())).into(),
        max_messages_per_subject: 1,
        ..bounded(options)
    };
    adopt(context, config).await
}

fn bounded(options: &StreamOptions) -> Config {
    Config {
        retention: RetentionPolicy::Limits,
        discard: DiscardPolicy::Old,
        max_age: options.max_age,
        max_bytes: options.max_bytes,
        num_replicas: options.replicas,
        storage: if options.on_disk { StorageType::File } else { StorageType::Memory },
        ..Default::default()
    }
}

/// One that is there stays as it is: its bounds are its owner's business. One that keeps something else is no use.
async fn adopt(context: &jetstream::Context, config: Config) -> Result<(), async_nats::Error> {
    let (name, wanted) = (config.name.clone(), config.subjects.clone());
    let found = match context.get_stream(&name).await {
        Ok(found) => found,
        // Somebody else may make it at the same time.
        Err(_) => match context.create_stream(config).await {
            Ok(made) => made,
            Err(error) => context.get_stream(&name).await.map_err(|_| error)?,
        },
    };
    let subjects = &found.cached_info().config.subjects;
    match wanted.iter().find(|subject| !subjects.iter().any(|has| covers(has, subject))) {
        None => Ok(()),
        Some(missing) => Err(format!("the stream {name} is another's: it does not keep {missing}").into()),
    }
}

/// Whether a subject of a stream takes all that another does.
fn covers(has: &str, wanted: &str) -> bool {
    let mut wanted = wanted.split('.');
    for token in has.split('.') {
        match (token, wanted.next()) {
            (">", Some(_)) => return true,
            ("*", Some(other)) if other != ">" => {}
            (token, Some(other)) if token == other => {}
            _ => return false,
        }
    }
    wanted.next().is_none()
}

/// From when a stream is read for what came after `since`.
pub(super) fn after(since: SystemTime) -> DeliverPolicy {
    let start = since.checked_sub(SKEW).unwrap_or(SystemTime::UNIX_EPOCH);
    DeliverPolicy::ByStartTime { start_time: start.into() }
}

/// What a stream has under a subject, in its order; bounded.
pub(super) async fn read(
    context: &jetstream::Context,
    stream: &str,
    subject: String,
    from: DeliverPolicy,
) -> Result<Vec<Found>, async_nats::Error> {
    let stream = context.get_stream(stream).await?;
    let config = pull::Config {
        deliver_policy: from,
        ack_policy: AckPolicy::None,
        filter_subject: subject,
        inactive_threshold: Duration::from_secs(10),
        memory_storage: true,
        num_replicas: 1,
        ..Default::default()
    };
    let consumer = stream.create_consumer(config).await?;
    let mut left = consumer.cached_info().num_pending;
    let (mut found, mut bytes) = (Vec::new(), 0);
    let name = consumer.cached_info().name.clone();
    let read: Result<(), async_nats::Error> = async {
        while left > 0 && found.len() < MOST && bytes < MOST_BYTES {
            let mut messages = consumer.fetch().max_messages(AT_ONCE).messages().await?;
            let before = found.len();
            while let Some(message) = timeout(READING, messages.next()).await? {
                let message = message?;
                let (sequence, written) = {
                    let info = message.info()?;
                    (info.stream_sequence, SystemTime::from(info.published))
                };
                left = left.saturating_sub(1);
                bytes += message.payload.len();
                let (subject, payload) = (message.subject.to_string(), message.payload.clone());
                found.push(Found { subject, bytes: payload, sequence, written });
            }
            if found.len() == before {
                break;
            }
        }
        Ok(())
    }
    .await;
    // It would go by itself; where the server answers, it goes now, and nobody waits for that.
    tokio::spawn(async move {
        let _ = stream.delete_consumer(&name).await;
    });
    read.map(|()| found)
}

#[cfg(test)]
mod tests {
    use super::covers;

    #[test]
    fn a_stream_is_ours_where_it_takes_all_that_we_publish() {
        for has in ["kvtap.v1.events.>", "kvtap.>", ">", "kvtap.*.events.>"] {
            assert!(covers(has, "kvtap.v1.events.>"), "{has}");
        }
        for has in ["kvtap.v1.events.m.*.*", "kvtap.v1.owners.>", "kvtap.v1.events", "orders.>", "kvtap.v1.events.*"] {
            assert!(!covers(has, "kvtap.v1.events.>"), "{has}");
        }
    }
}
