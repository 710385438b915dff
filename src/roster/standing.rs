//! What is wanted, by whom, and what has become of it: written by the roster, read by whoever shows it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::wanted::Source;

/// The picture of the roster, for those who show it. It says nothing before the first change.
#[derive(Debug, Default)]
pub struct Standing {
    picture: Mutex<Picture>,
}

/// One moment of a [`Standing`].
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Picture {
    /// Every entry of every source: by source in order of precedence, and in that source's order.
    pub entries: Vec<EntryReport>,
    /// Feeds that were changed since the start, by what was done: `begun`, `changed`, `withdrawn`, `cleared`.
    pub changes: BTreeMap<&'static str, u64>,
}

/// What has become of one entry. Its JSON field names are relied on by other programs.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct EntryReport {
    /// The worker's name.
    pub worker: String,
    /// Who wants it.
    pub source: Source,
    /// Where it stands in that source.
    pub origin: String,
    /// What tells this engine from an earlier one of that name; empty where nothing does.
    pub instance: String,
    /// Whether it runs.
    pub place: Place,
    /// Why it does not, in one sentence; empty where it does.
    pub why: String,
    /// The model.
    pub model: String,
    /// The engine, by its configured word.
    pub engine: String,
    /// The address that routers reach it at; empty where none is configured.
    pub address: String,
    /// Further names.
    pub aliases: Vec<String>,
    /// Its ranks.
    pub ranks: Vec<u32>,
    /// The event endpoint of its first rank.
    pub endpoint: String,
    /// The replay endpoint of its first rank, where there is one.
    pub replay_endpoint: Option<String>,
}

/// Where an entry stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Its feeds run.
    Running,
    /// Somebody of more precedence has what it wants.
    SetAside,
    /// It could not be begun; it is tried again with each change of any source, and by itself within a minute.
    Failed,
}

// === impl Standing ===

impl Standing {
    /// How things stand now.
    pub fn picture(&self) -> Picture {
        self.lock().clone()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Picture> {
        self.picture.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl Picture ===

impl Picture {
    /// What is done to feeds, by the words of [`Picture::changes`].
    pub const CHANGES: [&'static str; 4] = [Self::BEGUN, Self::CHANGED, Self::WITHDRAWN, Self::CLEARED];

    pub(super) const BEGUN: &'static str = "begun";
    pub(super) const CHANGED: &'static str = "changed";
    pub(super) const WITHDRAWN: &'static str = "withdrawn";
    pub(super) const CLEARED: &'static str = "cleared";

    /// Entries of one source at one place.
    pub fn count(&self, source: Source, place: Place) -> usize {
        self.entries.iter().filter(|entry| entry.source == source && entry.place == place).count()
    }
}

// === impl Place ===

impl Place {
    /// Every place.
    pub const ALL: [Self; 3] = [Self::Running, Self::SetAside, Self::Failed];

    /// The place's word in metrics, status and answers.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::SetAside => "set_aside",
            Self::Failed => "failed",
        }
    }
}
