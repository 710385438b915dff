//! Engine events become index transactions: seeds, grids, groups, tiers, orphans. The door only, for now.

use std::collections::BTreeMap;

use crate::index::{IndexError, RankWriter};
use crate::wire::Batch;
use crate::worker::{RankId, Stamp};

/// How one rank's events are to be read.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// The block size the configuration promises, in tokens; learned from events where `None`.
    pub block_size: Option<u32>,
}

/// The normalizer of one rank.
#[derive(Debug)]
pub struct Normalizer {
    writer: RankWriter,
    dropped: BTreeMap<&'static str, u64>,
}

/// What applying one batch came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// Events applied.
    pub events: u64,
    /// The batch held a clear: whatever was missing before it no longer matters.
    pub cleared: bool,
    /// The events show that this engine does not name blocks exactly (old SGLang), with the reason.
    pub degraded: Option<&'static str>,
}

impl Normalizer {
    /// A normalizer that writes through `writer`.
    pub fn new(writer: RankWriter, _options: Options) -> Self {
        Self { writer, dropped: BTreeMap::new() }
    }

    /// The rank.
    pub fn rank(&self) -> RankId {
        self.writer.rank()
    }

    /// Applies one decoded batch as one transaction under `stamp`.
    ///
    /// # Errors
    /// [`IndexError::WorkerGone`] once the rank was removed: nothing was applied.
    pub fn apply(&mut self, _batch: &Batch, _stamp: Stamp) -> Result<Applied, IndexError> {
        Ok(Applied::default())
    }

    /// Drops all that the rank holds (a new epoch, a withdrawal) and commits `stamp`.
    ///
    /// # Errors
    /// [`IndexError::WorkerGone`] once the rank was removed.
    pub fn reset(&mut self, _stamp: Stamp) -> Result<(), IndexError> {
        Ok(())
    }

    /// Events and blocks that were dropped so far, by reason.
    pub fn dropped(&self) -> &BTreeMap<&'static str, u64> {
        &self.dropped
    }

    /// Blocks parked now because their parent is unknown. While this is not 0 the feed is not live.
    pub fn orphans(&self) -> u64 {
        0
    }
}
