//! Reading a JetStream stream from where it was left, whatever happens to its consumers, its server or itself.

use std::time::Duration;

use async_nats::jetstream::{
    self,
    consumer::{AckPolicy, DeliverPolicy, pull},
};
use futures_util::StreamExt;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::ledger::Name;
use super::link::{Item, Since};

/// A consumer that nobody reads from is removed by the server after this time.
const INACTIVE: Duration = Duration::from_secs(60);

/// How often the server says that it is still there, where it has nothing else to say.
const HEARTBEAT: Duration = Duration::from_secs(2);

/// Messages that are asked for at once.
const AT_ONCE: usize = 256;

/// How long the server may take to say what a stream is.
const ANSWER: Duration = Duration::from_secs(5);

/// What was read of one stream, under whichever consumer.
#[derive(Debug)]
pub(super) struct Reader {
    stream: String,
    /// The stream that was read, and its last sequence number that was.
    read: Option<(Name, u64)>,
    /// How often it had forgotten what was read of it.
    forgotten: u64,
    advanced: bool,
}

// === impl Reader ===

impl Reader {
    pub(super) fn new(stream: String) -> Self {
        Self { stream, read: None, forgotten: 0, advanced: false }
    }

    /// Whether the last attempt brought anything.
    pub(super) fn has_read(&mut self) -> bool {
        std::mem::take(&mut self.advanced)
    }

    /// Reads until it cannot go on, and says why.
    pub(super) async fn read(&mut self, client: async_nats::Client, told: &mpsc::Sender<Item>) -> String {
        match self.try_read(client, told).await {
            Ok(()) => "the consumer ended".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    async fn try_read(
        &mut self,
        client: async_nats::Client,
        told: &mpsc::Sender<Item>,
    ) -> Result<(), async_nats::Error> {
        let mut context = jetstream::new(client);
        context.set_timeout(ANSWER);
        let stream = context.get_stream(&self.stream).await?;
        let info = stream.cached_info();
        let created = (info.created.unix_timestamp_nanos() as u64).wrapping_add(self.forgotten);
        let mut name = created;
        let start = match self.read {
            Some((known, last)) if known == created && info.state.last_sequence >= last => last + 1,
            Some((known, _)) if known == created => {
                // A restored or emptied store: its numbers are used again.
                self.forgotten += 1;
                name = created.wrapping_add(1);
                info.state.first_sequence.max(1)
            }
            _ => info.state.first_sequence.max(1),
        };
        let since = match self.read {
            Some((known, _)) if known != name => Since::Replaced,
            Some(_) if info.state.first_sequence > start => Since::Trimmed,
            _ => Since::GoesOn,
        };
        let config = pull::Config {
            deliver_policy: DeliverPolicy::ByStartSequence { start_sequence: start },
            ack_policy: AckPolicy::None,
            inactive_threshold: INACTIVE,
            memory_storage: true,
            num_replicas: 1,
            ..Default::default()
        };
        let consumer = stream.create_consumer(config).await?;
        let id = consumer.cached_info().name.clone();
        let messages = consumer.stream().max_messages_per_batch(AT_ONCE).heartbeat(HEARTBEAT).messages().await;
        let ended = match messages {
            Ok(mut messages) => {
                let _ = told.send(Item::Reading(name, since)).await;
                self.read.get_or_insert((name, start.saturating_sub(1)));
                if since == Since::Replaced {
                    self.read = Some((name, start.saturating_sub(1)));
                }
                loop {
                    match messages.next().await {
                        None => break Ok(()),
                        Some(Err(error)) => break Err(error.into()),
                        Some(Ok(message)) => {
                            let sequence = message.info()?.stream_sequence;
                            self.advanced = true;
                            self.read = Some((name, sequence));
                            let (message, _acker) = message.split();
                            let numbered = Some((name, sequence.saturating_sub(1)));
                            let _ = told.send(Item::Message(Box::new(message), numbered)).await;
                        }
                    }
                }
            }
            Err(error) => Err(error.into()),
        };
        // It would go by itself; where the server answers, it goes now.
        let _ = timeout(HEARTBEAT, stream.delete_consumer(&id)).await;
        ended
    }
}
