//! How a fleet is joined.

use std::time::Duration;

use super::subject::Topic;
use crate::feed::nats::ConnectionOptions;

/// How this process takes part in a fleet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RelayOptions {
    /// How the servers are reached.
    pub connection: ConnectionOptions,
    /// Whether its own ranks are published.
    pub publish: bool,
    /// Whose ranks are followed.
    pub follow: Follow,
    /// The stream that keeps what is published.
    pub stream: StreamOptions,
    /// How often an owner says that it is there.
    pub announce: Duration,
    /// How long an owner may be silent before its ranks are marked.
    pub patience: Duration,
    /// How long it may be before they are withdrawn.
    pub grace: Duration,
    /// A joiner waits for a random part of this before it asks for a snapshot.
    pub jitter: Duration,
    /// Snapshots that are fetched at a time.
    pub joins: usize,
    /// How often each own rank's snapshot is put away for the time after this process; `None`: never. Also whether those
    /// of others are used.
    pub keep: Option<Duration>,
    /// Ranks that are followed at most.
    pub max_ranks: usize,
    /// Deltas and announcements that may wait for each of them.
    pub queue: usize,
}

/// Whose ranks are followed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Follow {
    /// Nobody's.
    Nobody,
    /// Everybody's.
    Everybody,
    /// Those that serve these models.
    Models(Vec<String>),
}

/// The stream that keeps what is published, for gaps to be filled from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StreamOptions {
    /// Its name.
    pub name: String,
    /// How long a message is kept.
    pub max_age: Duration,
    /// How many bytes are kept; the oldest messages go.
    pub max_bytes: i64,
    /// On how many servers.
    pub replicas: usize,
    /// On disk, and not in memory.
    pub on_disk: bool,
}

// === impl RelayOptions ===

impl RelayOptions {
    /// Publishes, follows everybody, and leaves the rest at what `docs/config.md` says.
    pub fn new(connection: ConnectionOptions) -> Self {
        Self {
            connection,
            publish: true,
            follow: Follow::Everybody,
            stream: StreamOptions::default(),
            announce: Duration::from_secs(2),
            patience: Duration::from_secs(6),
            grace: Duration::from_secs(60),
            jitter: Duration::from_millis(500),
            joins: 4,
            keep: Some(Duration::from_secs(300)),
            max_ranks: 4096,
            queue: 8192,
        }
    }
}

impl Follow {
    /// What is subscribed to.
    pub(super) fn subjects(&self, topic: Topic) -> Vec<String> {
        match self {
            Self::Nobody => Vec::new(),
            Self::Everybody => vec![topic.of_model(None)],
            Self::Models(models) => models.iter().map(|model| topic.of_model(Some(model))).collect(),
        }
    }
}

impl StreamOptions {
    /// The name of the stream that keeps each subject's last message: snapshots and announcements.
    pub fn kept_name(&self) -> String {
        format!("{}_KEPT", self.name)
    }
}

impl Default for StreamOptions {
    /// `KVTAP`, ten minutes, 1 GiB, one server's memory.
    fn default() -> Self {
        Self {
            name: "KVTAP".to_owned(),
            max_age: Duration::from_secs(600),
            max_bytes: 1 << 30,
            replicas: 1,
            on_disk: false,
        }
    }
}
