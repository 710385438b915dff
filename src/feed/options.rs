//! Feeds as they are configured: where the messages of each come from, and how they are followed.

use super::http::PollOptions;
use super::keeper::Snapshots;
use super::machine::Limits;
use super::runner::Timing;
use super::zmq::{EndpointError, ReplayOptions, SubOptions};
use crate::index::Copies;
use crate::normalize;
use crate::wire::Dialect;
use crate::worker::Identity;

/// How an engine's messages are followed, whatever brings them.
#[derive(Clone, PartialEq, Debug)]
pub struct Following {
    /// The engine, by its configured word.
    pub engine: &'static str,
    /// What its payloads look like.
    pub dialect: Dialect,
    /// Whether copies of a block are counted.
    pub copies: Copies,
    /// How its events are read.
    pub normalize: normalize::Options,
    /// How long a feed waits for what.
    pub timing: Timing,
    /// What may wait during a recovery.
    pub limits: Limits,
}

/// One rank's feed, as configured. Equal options make equal feeds.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// What the worker is called.
    pub identity: Identity,
    /// The link to its publisher.
    pub link: SubOptions,
    /// Where and how to ask for a replay.
    pub replay: Option<ReplayOptions>,
    /// How its messages are followed.
    pub following: Following,
    /// Whether what it holds is to outlive the process.
    pub snapshots: Option<Snapshots>,
}

/// The feeds of an engine whose ranks all speak through one HTTP endpoint, as configured. Equal options make equal feeds.
#[derive(Clone, PartialEq, Debug)]
pub struct PolledOptions {
    /// What each rank is called.
    pub identities: Vec<Identity>,
    /// How the endpoint is polled.
    pub poll: PollOptions,
    /// How its messages are followed.
    pub following: Following,
}

// === impl Following ===

impl Following {
    /// An engine, by its configured word, whose payloads look like `dialect`; all else by default: copies are counted, and
    /// the block size is learned from events.
    pub fn new(engine: &'static str, dialect: Dialect) -> Self {
        Self {
            engine,
            dialect,
            copies: Copies::Count,
            normalize: normalize::Options::default(),
            timing: Timing::default(),
            limits: Limits::default(),
        }
    }
}

// === impl Options ===

impl Options {
    /// The same feed for data-parallel rank `rank`, where these are the options as configured, for rank 0.
    ///
    /// # Errors
    /// Those of [`Endpoint::at_rank`](super::zmq::Endpoint::at_rank), for either endpoint.
    pub fn at_rank(&self, rank: u32) -> Result<Self, EndpointError> {
        let mut options = self.clone();
        options.identity.rank = rank;
        options.link.endpoint = self.link.endpoint.at_rank(rank)?;
        if let Some(replay) = &mut options.replay {
            replay.endpoint = replay.endpoint.at_rank(rank)?;
        }
        Ok(options)
    }
}
