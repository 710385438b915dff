//! Every word by which a feed counts what it drops: one list, so that metrics begin at 0 and the page of metrics can
//! be held against it.

/// The words, room by room. They are labels of a metric and keys of `ListWorkers`: they stay.
pub const WORDS: [&str; 57] = [
    // A message's frames and payload (`wire::MessageError`).
    "frame_count",
    "sequence_length",
    "truncated",
    "not_a_batch",
    "too_deep",
    "too_large",
    "reserved_sequence",
    // One event of a batch (`wire::EventError`).
    "not_an_event",
    "unknown_tag",
    "missing_field",
    "bad_hash",
    "bad_token",
    "bad_block_size",
    "bad_field",
    // Blocks of an event (`normalize::Reason`), `bad_block_size` among them.
    "not_dense",
    "partial_block",
    "block_size_conflict",
    "no_block_size",
    "unknown_block",
    "orphan_removed",
    "orphan_evicted",
    "own_parent",
    "unrooted",
    "too_many_media",
    "too_many_groups",
    "narrow_window",
    "evicted",
    // A peer on the socket (`zmq::Fault`).
    "not_zmtp",
    "zmtp_version",
    "mechanism",
    "frame_flags",
    "frame_too_large",
    "message_too_large",
    "too_many_frames",
    "command_too_large",
    "bad_command",
    "not_ready",
    "socket_type",
    "refused",
    "handshake_deadline",
    "crowded",
    "backlog",
    "accept_failed",
    // A message of NATS (`nats`).
    "bad_header",
    "unknown_subject",
    "unowned_event",
    "too_many_workers",
    "too_many_publishers",
    "slow_consumer",
    // A message of a fleet (`relay`).
    "foreign_key",
    "rival_owner",
    // The feed itself: `stale` and `buffer_full` are messages that a replay brings once more.
    "queue_overflow",
    "implausible_sequence",
    "stale",
    "buffer_full",
    "rank_conflict",
    "other_rank",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::normalize::Reason;
    use crate::wire::{EventError, MessageError};

    #[test]
    fn every_room_that_drops_has_its_words_in_the_list() {
        let messages = [
            MessageError::FrameCount { got: 0 },
            MessageError::SequenceLength { got: 0 },
            MessageError::Truncated,
            MessageError::NotABatch { what: "" },
            MessageError::TooDeep { max: 0 },
            MessageError::TooLarge { got: 0, max: 0 },
            MessageError::ReservedSequence,
        ];
        let messages = messages.iter().map(MessageError::reason);
        let events = EventError::ALL.map(EventError::reason);
        for word in messages.chain(events).chain(Reason::ALL.map(Reason::word)) {
            assert!(WORDS.contains(&word), "{word}");
        }
    }

    #[test]
    fn no_word_stands_twice() {
        let distinct: std::collections::BTreeSet<_> = WORDS.iter().collect();
        assert_eq!(distinct.len(), WORDS.len());
    }
}
