//! What is found: by a word for scripts, in a sentence for people, with its fix.

use serde::Serialize;

use super::Target;
use super::past::Past;
use super::watch::Live;

/// How bad it is, the worst first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Level {
    /// kvtap cannot follow this feed as configured.
    Fault,
    /// It can, with what is said.
    Warning,
    /// Worth knowing.
    Note,
}

/// One thing that was found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(super) struct Finding {
    /// A stable word.
    pub(super) code: &'static str,
    pub(super) level: Level,
    /// What was seen.
    pub(super) what: String,
    /// What to do about it; empty where nothing is to be done.
    pub(super) fix: String,
}

/// One feed, and all that was found out about it.
#[derive(Debug)]
pub(super) struct Examined {
    pub(super) target: Target,
    pub(super) live: Live,
    pub(super) past: Option<Past>,
    pub(super) findings: Vec<Finding>,
}

// === impl Finding ===

impl Finding {
    pub(super) fn fault(code: &'static str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { code, level: Level::Fault, what: what.into(), fix: fix.into() }
    }

    pub(super) fn warning(code: &'static str, what: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { level: Level::Warning, ..Self::fault(code, what, fix) }
    }

    pub(super) fn note(code: &'static str, what: impl Into<String>) -> Self {
        Self { level: Level::Note, ..Self::fault(code, what, "") }
    }
}

// === impl Level ===

impl Level {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Fault => "FAULT",
            Self::Warning => "WARNING",
            Self::Note => "NOTE",
        }
    }
}
