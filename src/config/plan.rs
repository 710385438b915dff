//! What a configured feed means to the rooms below: the options of each rank's feed.

use std::io;
use std::sync::Arc;

use super::feed::{Engine, EventEndpoint, Feed};
use super::nats::{Nats, Subscription};
use super::sections::Tuning;
use super::{Config, Snapshot};
use crate::feed::http::PollOptions;
use crate::feed::nats::{ConnectionOptions, PlaneOptions};
use crate::feed::runner::Timing;
use crate::feed::zmq::{self, EndpointError, ReplayOptions, SubOptions};
use crate::feed::{self, Following, Snapshots};
use crate::normalize;
use crate::roster::{Plan, Wanted};
use crate::snapshot::Store;
use crate::wire::Dialect;
use crate::worker::Identity;

// === impl Config ===

impl Config {
    /// What the file wants to run.
    ///
    /// # Errors
    /// None for a configuration that was read: every rank's endpoint was checked.
    pub fn wanted(&self, snapshots: Option<&Snapshots>) -> Result<Vec<Wanted>, EndpointError> {
        let feeds = self.feeds.iter().enumerate();
        feeds.map(|(i, feed)| feed.wanted(format!("feeds[{i}]"), "", &self.nats, snapshots)).collect()
    }
}

// === impl Snapshot ===

impl Snapshot {
    /// Opens the folder that snapshots go to; `None` where there is to be none.
    ///
    /// # Errors
    /// Those of [`Store::open`].
    pub fn open(&self) -> io::Result<Option<Snapshots>> {
        let Some(directory) = &self.directory else { return Ok(None) };
        Ok(Some(Snapshots { store: Store::open(directory)?, interval: self.interval, afresh: false }))
    }
}

// === impl Feed ===

impl Feed {
    /// What this entry wants to run. `origin` and `instance` are those of [`Wanted`].
    ///
    /// # Errors
    /// None for a feed that was read: every rank's endpoint was checked.
    pub fn wanted(
        &self,
        origin: String,
        instance: &str,
        nats: &Nats,
        snapshots: Option<&Snapshots>,
    ) -> Result<Wanted, EndpointError> {
        let plans = match (self.poll(), self.nats(nats)) {
            (Some(poll), _) => vec![Plan::Polled(Box::new(self.polled_options(poll)))],
            (None, Some((connection, subscription))) => {
                vec![Plan::Plane(Box::new(self.plane_options(connection, subscription)))]
            }
            (None, None) => {
                let ranks = self.rank_numbers().filter_map(|rank| self.options(rank, snapshots).transpose());
                ranks.map(|options| Ok(Plan::Rank(Box::new(options?)))).collect::<Result<_, _>>()?
            }
        };
        Ok(Wanted { worker: self.worker.as_str().into(), origin, instance: instance.into(), plans })
    }

    /// What one of its ranks is called.
    pub fn identity(&self, rank: u32) -> Identity {
        Identity {
            worker: Arc::from(self.worker.as_str()),
            address: Arc::from(self.address.as_str()),
            aliases: Arc::from(self.names.as_slice()),
            model: Arc::from(self.model.as_str()),
            rank,
        }
    }

    /// The feed of one of its ranks; `None` where they are polled.
    fn options(&self, rank: u32, snapshots: Option<&Snapshots>) -> Result<Option<feed::Options>, EndpointError> {
        let Some(link) = self.link(rank)? else { return Ok(None) };
        Ok(Some(feed::Options {
            identity: self.identity(rank),
            link,
            replay: self.replay(rank)?,
            following: self.following(),
            snapshots: snapshots.cloned(),
        }))
    }

    /// The feeds of all of its ranks, which `poll` polls.
    fn polled_options(&self, poll: PollOptions) -> feed::PolledOptions {
        feed::PolledOptions {
            identities: self.rank_numbers().map(|rank| self.identity(rank)).collect(),
            poll,
            following: self.following(),
        }
    }

    /// The subscription that it is followed by over NATS.
    fn plane_options(&self, connection: ConnectionOptions, subscription: &Subscription) -> PlaneOptions {
        PlaneOptions {
            identity: self.identity(self.first_rank),
            connection,
            pattern: subscription.subject.clone(),
            stream: subscription.stream.clone(),
            ranks: self.rank_numbers(),
            max_ranks: subscription.max_ranks,
            silence: subscription.silence_grace,
            following: self.following(),
            queue: self.tuning.queue,
        }
    }

    /// How its servers are reached, where it comes over NATS, and what it subscribes to there.
    pub fn nats(&self, nats: &Nats) -> Option<(ConnectionOptions, &Subscription)> {
        let subscription = self.subscription.as_ref()?;
        let defaults = ConnectionOptions::new(subscription.endpoint.clone());
        let Tuning { queue, reconnect_max, .. } = self.tuning;
        let connection = ConnectionOptions {
            security: nats.security.clone(),
            ping_interval: nats.ping_interval,
            first_retry: defaults.first_retry.min(reconnect_max),
            longest_retry: reconnect_max,
            subscription: queue.messages,
            ..defaults
        };
        Some((connection, subscription))
    }

    /// How its URL is polled, for all of its ranks; `None` where its ranks have sockets.
    pub fn poll(&self) -> Option<PollOptions> {
        let EventEndpoint::Http(endpoint) = &self.endpoint else { return None };
        let defaults = PollOptions::new(endpoint.clone());
        let Tuning { queue, reconnect_max, poll_interval, .. } = self.tuning;
        let first_retry = defaults.first_retry.min(reconnect_max);
        Some(PollOptions { interval: poll_interval, first_retry, longest_retry: reconnect_max, queue, ..defaults })
    }

    /// The event link of one of its ranks; `None` where they have none of their own.
    ///
    /// # Errors
    /// Those of [`Endpoint::at_rank`](zmq::Endpoint::at_rank), for a rank that is not one of [`Feed::rank_numbers`].
    pub fn link(&self, rank: u32) -> Result<Option<SubOptions>, EndpointError> {
        let Some(endpoint) = self.endpoint.socket(rank)? else { return Ok(None) };
        let Tuning { queue, reconnect_max, heartbeat, transport, .. } = self.tuning;
        let defaults = zmq::Timing::default();
        let first_retry = defaults.first_retry.min(reconnect_max);
        let timing = zmq::Timing { first_retry, longest_retry: reconnect_max, heartbeat, ..defaults };
        let options = SubOptions::new(endpoint, self.mode);
        Ok(Some(SubOptions { topic: self.topic.clone(), transport, queue, timing, ..options }))
    }

    /// A replay of one of its ranks; `None` where it has no replay socket.
    ///
    /// # Errors
    /// Like [`Feed::link`].
    pub fn replay(&self, rank: u32) -> Result<Option<ReplayOptions>, EndpointError> {
        let Some(replay) = &self.replay else { return Ok(None) };
        let options = ReplayOptions::new(replay.at_rank(rank)?);
        Ok(Some(ReplayOptions { idle: self.tuning.replay_timeout, ..options }))
    }

    /// How its messages are followed, whatever brings them.
    fn following(&self) -> Following {
        let grid = self.grid.map(|grid| grid.size());
        Following {
            copies: self.copies,
            normalize: normalize::Options { block_size: grid, ..Default::default() },
            timing: Timing { grace: Some(self.tuning.disconnect_grace), ..Timing::default() },
            ..Following::new(self.engine.name(), self.engine.dialect())
        }
    }
}

// === impl Engine ===

impl Engine {
    /// What its payloads look like.
    fn dialect(self) -> Dialect {
        match self {
            Self::Vllm => Dialect::Vllm,
            Self::Sglang => Dialect::Sglang,
            Self::Trtllm => Dialect::Trtllm,
            Self::Dynamo => Dialect::Dynamo,
            Self::Auto => Dialect::Auto,
        }
    }
}
