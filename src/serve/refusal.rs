//! Why a call is refused before anybody looks at what it asks.

use std::time::Duration;

use tonic::{Code, Status};

use crate::admin::REFUSALS;
use crate::proto::codec::{MALFORMED, REASON, refused};

/// Why a call is refused. The text names the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(super) enum Refusal {
    /// A message over the size limit.
    #[error("prompt: the message is larger than the limit of {most} bytes ({} tokens as tokens_le)", .most / 4)]
    MessageTooLarge { most: usize },
    /// A message that does not arrive.
    #[error("message: it has not arrived within {}", seconds(.within))]
    TooSlow { within: Duration },
    /// Every place is taken.
    #[error("limits.in_flight: {most} requests are under way")]
    InFlight { most: usize },
    /// Every place that streams may take is taken.
    #[error("limits.in_flight: {most} streams are under way, and the other places are for single requests")]
    Streams { most: usize },
    /// The memory for requests is taken.
    #[error("limits.request_bytes: {most} bytes of requests are in memory")]
    Memory { most: usize },
    /// Too many a second.
    #[error("limits.requests_per_second: more than {most}")]
    Rate { most: u64 },
    /// No token, or another.
    #[error("authorization: a bearer token is required, and what came is not the one in force")]
    Token,
    /// The caller's own deadline has passed.
    #[error("grpc-timeout: the deadline has passed")]
    Deadline,
    /// The server ends.
    #[error("draining: ask another server; a request without an answer has not been looked at")]
    Draining,
}

fn seconds(time: &Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

// === impl Refusal ===

impl Refusal {
    /// A stable word for metrics and callers.
    pub(super) const fn reason(&self) -> &'static str {
        match self {
            Self::MessageTooLarge { .. } => "message_too_large",
            Self::TooSlow { .. } => "too_slow",
            Self::InFlight { .. } | Self::Streams { .. } => "in_flight",
            Self::Memory { .. } => "request_bytes",
            Self::Rate { .. } => "rate",
            Self::Token => "token",
            Self::Deadline => "deadline",
            Self::Draining => "draining",
        }
    }

    /// The gRPC status code.
    pub(super) const fn code(&self) -> Code {
        match self {
            Self::MessageTooLarge { .. } => Code::InvalidArgument,
            Self::TooSlow { .. } | Self::Deadline => Code::DeadlineExceeded,
            Self::InFlight { .. } | Self::Streams { .. } | Self::Memory { .. } | Self::Rate { .. } => {
                Code::ResourceExhausted
            }
            Self::Token => Code::Unauthenticated,
            Self::Draining => Code::Unavailable,
        }
    }
}

impl From<Refusal> for Status {
    fn from(refusal: Refusal) -> Self {
        refused(Self::new(refusal.code(), refusal.to_string()), refusal.reason())
    }
}

/// The reason of a status that no handler gave: one of [`REFUSALS`].
pub(super) fn reason(status: &Status) -> Option<&'static str> {
    let said = status.metadata().get(REASON).and_then(|word| word.to_str().ok());
    match said {
        Some(word) => REFUSALS.into_iter().find(|known| *known == word),
        // The transport's own words for a body that is no message: no handler answers so.
        None if status.code() == Code::Internal => Some(MALFORMED),
        None => None,
    }
}

/// The same status, as a caller should see it.
pub(super) fn worded(status: Status) -> Status {
    if status.code() == Code::Internal && status.metadata().get(REASON).is_none() {
        return refused(Status::invalid_argument(format!("message: {}", status.message())), MALFORMED);
    }
    status
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::codec::TOO_MANY_ENTRIES;

    #[test]
    fn every_refusal_is_counted_under_a_word_that_metrics_know() {
        let refusals = [
            Refusal::MessageTooLarge { most: 8 },
            Refusal::TooSlow { within: Duration::from_secs(1) },
            Refusal::InFlight { most: 1 },
            Refusal::Streams { most: 1 },
            Refusal::Memory { most: 1 },
            Refusal::Rate { most: 1 },
            Refusal::Token,
            Refusal::Deadline,
            Refusal::Draining,
        ];
        for refusal in refusals {
            assert_eq!(reason(&Status::from(refusal)), Some(refusal.reason()), "{refusal:?}");
        }
        assert!(REFUSALS.contains(&TOO_MANY_ENTRIES));
        assert_eq!(reason(&Status::internal("Missing request message.")), Some(MALFORMED));
        assert_eq!(reason(&Status::not_found("model")), None);
    }
}
