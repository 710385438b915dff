//! The level of log lines, changeable while the process runs.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tracing_subscriber::Registry;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::reload::{self, Handle};

use super::ANNOUNCEMENTS;
use super::traces::REQUESTS;

/// Every level, the least talkative first.
pub const LEVELS: [&str; 5] = ["error", "warn", "info", "debug", "trace"];

/// The least important level of log lines, and the way to another. Clones share it. The default one controls nothing.
#[derive(Clone, Default)]
pub struct Level {
    word: Arc<Mutex<&'static str>>,
    filter: Option<Handle<Targets, Traced>>,
}

/// A word that is no level.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected error, warn, info, debug or trace, not `{0}`")]
pub struct UnknownLevel(String);

/// What the layer of log lines stands on.
type Traced = tracing_subscriber::layer::Layered<Option<super::traces::Layer>, Registry>;

// === impl Level ===

impl Level {
    /// The level `word`, and the filter that it controls. A word that is no level counts as `info`.
    pub(super) fn new(word: &str) -> (Self, reload::Layer<Targets, Traced>) {
        let word = known(word).unwrap_or("info");
        let (filter, handle) = reload::Layer::new(filter(word));
        (Self { word: Arc::new(Mutex::new(word)), filter: Some(handle) }, filter)
    }

    /// The word for it; empty where nothing is controlled.
    pub fn get(&self) -> &'static str {
        *self.word.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, lines of `word` and above are written.
    ///
    /// # Errors
    /// [`UnknownLevel`]; nothing has changed then.
    pub fn set(&self, word: &str) -> Result<(), UnknownLevel> {
        // The word is part of a request: so much of it may come back as can be a typing error.
        let known = known(word).ok_or_else(|| UnknownLevel(word.chars().take(16).collect()))?;
        let mut current = self.word.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(handle) = &self.filter {
            // It fails only once the subscriber is gone, and nothing is logged any more.
            let _ = handle.reload(filter(known));
        }
        let before = std::mem::replace(&mut *current, known);
        drop(current);
        if before != known {
            tracing::info!(before, now = known, "The log level was changed.");
        }
        Ok(())
    }
}

impl fmt::Debug for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Level").field(&self.get()).finish()
    }
}

fn known(word: &str) -> Option<&'static str> {
    LEVELS.into_iter().find(|level| *level == word)
}

fn filter(level: &str) -> Targets {
    // Other crates speak only when something is wrong.
    Targets::new()
        .with_default(LevelFilter::WARN)
        .with_target("kvtap", level.parse().unwrap_or(LevelFilter::INFO))
        .with_target(ANNOUNCEMENTS, LevelFilter::INFO)
        .with_target(REQUESTS, LevelFilter::OFF)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_is_changed_to_a_known_one_only() {
        let (level, _filter) = Level::new("warn");
        assert_eq!(level.get(), "warn");
        level.set("debug").unwrap();
        let clone = level.clone();
        assert_eq!(clone.get(), "debug");
        let refused = level.set("loud and a long story beside it").unwrap_err();
        assert_eq!(refused.to_string(), "expected error, warn, info, debug or trace, not `loud and a long `");
        assert_eq!(clone.get(), "debug");
    }
}
