//! Why a feed drops what it drops: one closed set, so that metrics begin at 0 and the page of metrics can be held
//! against it.
//!
//! Every room that refuses something has errors of its own. Each is counted here under one word: an error without a
//! word does not compile, and no counter takes any other.

use crate::feed::zmtp::Violation;
use crate::normalize::Reason;
use crate::wire::{EventError, MessageError};

/// An enum of words, whose lists cannot lack one.
macro_rules! words {
    ($(#[$about:meta])* $name:ident { $($(#[$what:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum $name {
            $($(#[$what])* $variant,)*
        }

        impl $name {
            /// Every word.
            pub const WORDS: &'static [&'static str] = &[$($word),*];

            /// The label of the metric and the key in `ListWorkers`: it stays.
            pub const fn word(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }
        }
    };
}

words! {
    /// Why something was dropped, room by room.
    Dropped {
        // A message's frames and payload (`wire::MessageError`).
        /// A message of another number of frames.
        FrameCount = "frame_count",
        /// A sequence frame that is not eight bytes.
        SequenceLength = "sequence_length",
        /// A payload that ends early.
        Truncated = "truncated",
        /// A payload that is no batch of events.
        NotABatch = "not_a_batch",
        /// A payload or an event's keys that nest too deep.
        TooDeep = "too_deep",
        /// A payload above the bound.
        TooLarge = "too_large",
        /// A batch under the number that ends a replay.
        ReservedSequence = "reserved_sequence",

        // One event of a batch (`wire::EventError`).
        /// Neither an array with a tag nor a map with a `type`.
        NotAnEvent = "not_an_event",
        /// A tag that is not known.
        UnknownTag = "unknown_tag",
        /// A field that every release sends is missing.
        MissingField = "missing_field",
        /// A block hash of a type that no engine sends.
        BadHash = "bad_hash",
        /// A token that is not an unsigned 32-bit integer.
        BadToken = "bad_token",
        /// A block size that is no number, or out of range.
        BadBlockSize = "bad_block_size",
        /// Another field of a type that no engine sends.
        BadField = "bad_field",

        // Blocks of an event (`normalize::Reason`), `bad_block_size` among them.
        /// Tokens that do not fill the blocks they are of.
        NotDense = "not_dense",
        /// A block smaller than its group's.
        PartialBlock = "partial_block",
        /// A block size other than the one of the blocks held.
        BlockSizeConflict = "block_size_conflict",
        /// Content hashes without a block size.
        NoBlockSize = "no_block_size",
        /// Blocks that this rank does not hold there.
        UnknownBlock = "unknown_block",
        /// A block that was removed while it waited for its parent.
        OrphanRemoved = "orphan_removed",
        /// A block for which there was no room to wait for its parent.
        OrphanEvicted = "orphan_evicted",
        /// A parent that is one of the event's own blocks.
        OwnParent = "own_parent",
        /// A root that cannot be believed.
        Unrooted = "unrooted",
        /// More media than there is room for.
        TooManyMedia = "too_many_media",
        /// More groups than there is room for.
        TooManyGroups = "too_many_groups",
        /// A group whose window was narrower than it was taken for.
        NarrowWindow = "narrow_window",
        /// The oldest blocks of an index that is full.
        Evicted = "evicted",

        // A peer on the socket (`zmtp::Violation`, `link::Fault`).
        /// Not a ZMTP greeting.
        NotZmtp = "not_zmtp",
        /// ZMTP before 3.0.
        ZmtpVersion = "zmtp_version",
        /// A security mechanism other than NULL.
        Mechanism = "mechanism",
        /// Reserved bits of a frame's flags.
        FrameFlags = "frame_flags",
        /// A frame above the cap.
        FrameTooLarge = "frame_too_large",
        /// A message above the cap.
        MessageTooLarge = "message_too_large",
        /// A message of more frames than the cap.
        TooManyFrames = "too_many_frames",
        /// A command above the cap.
        CommandTooLarge = "command_too_large",
        /// A malformed command.
        BadCommand = "bad_command",
        /// Something other than READY where READY is due.
        NotReady = "not_ready",
        /// A socket that does not fit ours.
        SocketType = "socket_type",
        /// A peer that refuses this side.
        Refused = "refused",
        /// No handshake in time.
        HandshakeDeadline = "handshake_deadline",
        /// More peers than a bound socket serves.
        Crowded = "crowded",
        /// A peer that asks for more answers than it reads.
        Backlog = "backlog",
        /// A connection that the system could not accept.
        AcceptFailed = "accept_failed",

        // A message of NATS (`nats`).
        /// A header that does not number a batch.
        BadHeader = "bad_header",
        /// A subject that says of no rank.
        UnknownSubject = "unknown_subject",
        /// A router event that does not say whose it is.
        UnownedEvent = "unowned_event",
        /// More workers than a subscription may bring.
        TooManyWorkers = "too_many_workers",
        /// More publishers than are told apart.
        TooManyPublishers = "too_many_publishers",
        /// The client's own queue was full.
        SlowConsumer = "slow_consumer",

        // A message of a fleet (`relay`).
        /// A message that speaks of another rank than its subject.
        ForeignKey = "foreign_key",
        /// A second owner of a rank.
        RivalOwner = "rival_owner",

        // The feed itself: `stale` and `buffer_full` are messages that a replay brings once more.
        /// The queue between a link and its reader was full.
        QueueOverflow = "queue_overflow",
        /// A number that no engine reaches.
        ImplausibleSequence = "implausible_sequence",
        /// A message of an epoch that is over.
        Stale = "stale",
        /// There was no room to wait during a recovery.
        BufferFull = "buffer_full",
        /// A batch that names another rank than its socket's.
        RankConflict = "rank_conflict",
        /// An event of a rank that no feed is configured for.
        OtherRank = "other_rank",
    }
}

// === impl Dropped ===

impl From<MessageError> for Dropped {
    fn from(error: MessageError) -> Self {
        match error {
            MessageError::FrameCount { .. } => Self::FrameCount,
            MessageError::SequenceLength { .. } => Self::SequenceLength,
            MessageError::ReservedSequence => Self::ReservedSequence,
            MessageError::Truncated => Self::Truncated,
            MessageError::NotABatch { .. } => Self::NotABatch,
            MessageError::TooDeep { .. } => Self::TooDeep,
            MessageError::TooLarge { .. } => Self::TooLarge,
        }
    }
}

impl From<EventError> for Dropped {
    fn from(error: EventError) -> Self {
        match error {
            EventError::NotAnEvent => Self::NotAnEvent,
            EventError::UnknownTag => Self::UnknownTag,
            EventError::MissingField => Self::MissingField,
            EventError::BadHash => Self::BadHash,
            EventError::BadToken => Self::BadToken,
            EventError::BadBlockSize => Self::BadBlockSize,
            EventError::BadField => Self::BadField,
            EventError::TooDeep => Self::TooDeep,
        }
    }
}

impl From<Reason> for Dropped {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::NotDense => Self::NotDense,
            Reason::PartialBlock => Self::PartialBlock,
            Reason::BlockSizeConflict => Self::BlockSizeConflict,
            Reason::BadBlockSize => Self::BadBlockSize,
            Reason::NoBlockSize => Self::NoBlockSize,
            Reason::UnknownBlock => Self::UnknownBlock,
            Reason::OrphanRemoved => Self::OrphanRemoved,
            Reason::OrphanEvicted => Self::OrphanEvicted,
            Reason::OwnParent => Self::OwnParent,
            Reason::Unrooted => Self::Unrooted,
            Reason::TooManyMedia => Self::TooManyMedia,
            Reason::TooManyGroups => Self::TooManyGroups,
            Reason::NarrowWindow => Self::NarrowWindow,
            Reason::Evicted => Self::Evicted,
        }
    }
}

impl From<Violation> for Dropped {
    fn from(violation: Violation) -> Self {
        match violation {
            Violation::Signature => Self::NotZmtp,
            Violation::Version { .. } => Self::ZmtpVersion,
            Violation::Mechanism => Self::Mechanism,
            Violation::Flags { .. } => Self::FrameFlags,
            Violation::FrameTooLarge { .. } => Self::FrameTooLarge,
            Violation::MessageTooLarge { .. } => Self::MessageTooLarge,
            Violation::TooManyFrames { .. } => Self::TooManyFrames,
            Violation::CommandTooLarge { .. } => Self::CommandTooLarge,
            Violation::BadCommand => Self::BadCommand,
            Violation::NotReady => Self::NotReady,
            Violation::SocketType => Self::SocketType,
            Violation::Refused => Self::Refused,
            Violation::Backlog => Self::Backlog,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::link::Fault;

    #[test]
    fn an_error_is_counted_under_the_word_that_its_own_room_gives_it() {
        let messages = [
            MessageError::FrameCount { got: 0 },
            MessageError::SequenceLength { got: 0 },
            MessageError::Truncated,
            MessageError::NotABatch { what: "" },
            MessageError::TooDeep { max: 0 },
            MessageError::TooLarge { got: 0, max: 0 },
            MessageError::ReservedSequence,
        ];
        let violations = [
            Violation::Signature,
            Violation::Version { major: 2 },
            Violation::Mechanism,
            Violation::Flags { flags: 0 },
            Violation::FrameTooLarge { declared: 0, max: 0 },
            Violation::MessageTooLarge { max: 0 },
            Violation::TooManyFrames { max: 0 },
            Violation::CommandTooLarge { declared: 0, max: 0 },
            Violation::BadCommand,
            Violation::NotReady,
            Violation::SocketType,
            Violation::Refused,
            Violation::Backlog,
        ];
        let pairs = messages.map(|error| (Dropped::from(error), error.reason())).into_iter();
        let pairs = pairs.chain(EventError::ALL.map(|error| (error.into(), error.reason())));
        let pairs = pairs.chain(Reason::ALL.map(|reason| (reason.into(), reason.word())));
        let pairs = pairs.chain(violations.map(|violation| (violation.into(), violation.reason())));
        for (dropped, word) in pairs {
            assert_eq!(dropped.word(), word);
        }
        for fault in [Fault::HandshakeDeadline, Fault::Crowded, Fault::Violation(Violation::Signature)] {
            assert_eq!(fault.rejection().map(Dropped::word), Some(fault.reason()));
        }
        assert_eq!(Fault::Closed.rejection(), None);
    }

    #[test]
    fn no_word_stands_twice() {
        let distinct: std::collections::BTreeSet<_> = Dropped::WORDS.iter().collect();
        assert_eq!((distinct.len(), Dropped::WORDS.len()), (57, 57));
    }
}
