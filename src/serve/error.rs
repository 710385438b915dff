//! Why a request is refused: the field, and what is known.

use std::fmt;

use tonic::{Code, Status};

use super::gate::code_name;

/// Why a request is refused. The text begins with the field's name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum QueryError {
    /// No model.
    #[error("model: required; known: {known}")]
    NoModel { known: Known },
    /// A model that no feed has.
    #[error("model: no worker serves {model:?}; known: {known}")]
    UnknownModel { model: String, known: Known },
    /// No prompt in any form.
    #[error(
        "prompt: required, in one of tokens_le, tokens, content_hashes_le, content_hashes, prefix_hashes_le, prefix_hashes"
    )]
    NoPrompt,
    /// Raw bytes that do not divide.
    #[error("{field}: {got} bytes, not a multiple of {unit}")]
    NotWhole { field: &'static str, got: usize, unit: usize },
    /// A block size out of range.
    #[error("block_size: {got} is not between 1 and {max}")]
    BadBlockSize { got: u32, max: u32 },
    /// A block size that no worker of the model has.
    #[error("block_size: no worker of the model has {got}; known: {known}")]
    UnknownBlockSize { got: u32, known: Known },
    /// A prompt whose blocks can lie on several grids.
    #[error("block_size: required with {field}, because workers of the model have different ones; known: {known}")]
    NoBlockSize { field: &'static str, known: Known },
    /// A field that makes no sense with hashes.
    #[error("{field}: only with tokens; hashes carry it already")]
    OnlyWithTokens { field: &'static str },
    /// Too many filters.
    #[error("{field}: more than {max} entries")]
    TooMany { field: &'static str, max: usize },
    /// A name that nobody can have.
    #[error("workers: a name is empty")]
    EmptyName,
    /// A state that no feed is ever in.
    #[error("states: {got} is no state of a feed")]
    BadState { got: i32 },
    /// The caller's own deadline has passed.
    #[error("grpc-timeout: the deadline has passed")]
    Deadline,
    /// More requests a second than are granted.
    #[error("limits.requests_per_second: more than {most}")]
    Rate { most: u64 },
    /// Not one worker where one is to be explained.
    #[error("workers: exactly one is required, and {got} are given")]
    NotOneWorker { got: usize },
    /// A worker that the model has not.
    #[error("workers: no worker of the model is called {worker:?}")]
    UnknownWorker { worker: String },
    /// Ranks that the worker has not.
    #[error("ranks: the worker has none of these")]
    UnknownRanks,
    /// More answers than a batch has room for.
    #[error(
        "requests: the answers to those before come to {most} bytes, after which a batch answers no more: ask for fewer at \
         once, or for less with brief, top_k or min_blocks"
    )]
    BatchFull { most: usize },
    /// A stream's request without a request in it.
    #[error("request: required")]
    NoRequest,
}

/// The values that a field may have, as far as they fit into a message.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Known {
    shown: Vec<String>,
    more: usize,
}

/// How many known values an error shows.
const SHOWN: usize = 10;
/// How much of one value an error shows, in characters.
const WIDTH: usize = 120;

// === impl QueryError ===

impl QueryError {
    /// The refusal of a model.
    pub(super) fn unknown_model(model: &str, known: Known) -> Self {
        Self::UnknownModel { model: shorten(model), known }
    }

    /// The refusal of a worker.
    pub(super) fn unknown_worker(worker: &str) -> Self {
        Self::UnknownWorker { worker: shorten(worker) }
    }

    /// The gRPC status code.
    pub(super) const fn code(&self) -> Code {
        match self {
            Self::UnknownModel { .. }
            | Self::UnknownBlockSize { .. }
            | Self::UnknownWorker { .. }
            | Self::UnknownRanks => Code::NotFound,
            Self::Deadline => Code::DeadlineExceeded,
            Self::Rate { .. } | Self::BatchFull { .. } => Code::ResourceExhausted,
            _ => Code::InvalidArgument,
        }
    }

    /// The same as a stable word for metrics.
    pub(super) const fn code_name(&self) -> &'static str {
        code_name(self.code())
    }
}

impl From<QueryError> for Status {
    fn from(error: QueryError) -> Self {
        Self::new(error.code(), error.to_string())
    }
}

// === impl Known ===

impl Known {
    /// The first few of `values`, which are in order, and how many more there are.
    pub(super) fn of<T: fmt::Display>(values: impl IntoIterator<Item = T>) -> Self {
        let mut values = values.into_iter();
        let shown = values.by_ref().take(SHOWN).map(|value| shorten(&value.to_string())).collect();
        Self { shown, more: values.count() }
    }
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.shown.is_empty() {
            return f.write_str("none");
        }
        f.write_str(&self.shown.join(", "))?;
        if self.more > 0 { write!(f, " and {} more", self.more) } else { Ok(()) }
    }
}

fn shorten(value: &str) -> String {
    let mut short: String = value.chars().take(WIDTH).collect();
    if short.len() < value.len() {
        short.push('…');
    }
    short
}
