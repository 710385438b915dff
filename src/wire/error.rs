//! Why bytes are refused: a closed set, with the words that metrics and `ListWorkers` show.

/// Why a whole message is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum MessageError {
    /// A live message has three frames: topic, sequence, payload.
    #[error("{got} frames where topic, sequence and payload are expected")]
    FrameCount {
        /// How many came.
        got: usize,
    },
    /// The sequence frame is eight bytes.
    #[error("a sequence frame of {got} bytes where 8 are expected")]
    SequenceLength {
        /// How long it was.
        got: usize,
    },
    /// A batch under the sequence number that marks the end of a replay.
    #[error("a batch under the sequence number that marks the end of a replay")]
    ReservedSequence,
    /// The payload ends before what it declares.
    #[error("the payload ends early, or declares more than it holds")]
    Truncated,
    /// The payload is not msgpack, or not a batch of events.
    #[error("the payload is not a batch: {what}")]
    NotABatch {
        /// What was met instead.
        what: &'static str,
    },
    /// Values are nested deeper than any engine nests them.
    #[error("the payload nests deeper than {max} levels")]
    TooDeep {
        /// The bound.
        max: usize,
    },
    /// The payload is larger than the bound.
    #[error("a message of {got} bytes, more than {max}")]
    TooLarge {
        /// How long it was.
        got: usize,
        /// The bound.
        max: usize,
    },
}

/// Why one event of a batch is refused. The others of the batch stand.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum EventError {
    /// Neither a positional array nor a map with a `type`.
    #[error("an event is neither an array with a tag nor a map with a `type`")]
    NotAnEvent,
    /// A tag this program does not know.
    #[error("an unknown event tag")]
    UnknownTag,
    /// A field that every release sends is missing.
    #[error("a required field is missing")]
    MissingField,
    /// A block hash or a parent hash of a type that no engine sends.
    #[error("a block hash is neither an integer nor bytes")]
    BadHash,
    /// A token that is not an unsigned 32-bit integer.
    #[error("a token is not an unsigned 32-bit integer")]
    BadToken,
    /// A block size that is not an unsigned integer.
    #[error("`block_size` is not an unsigned integer")]
    BadBlockSize,
    /// Another field of a type that no engine sends.
    #[error("a field has a type that no engine sends")]
    BadField,
    /// Extra keys are nested deeper than any engine nests them.
    #[error("extra keys nest deeper than any engine nests them")]
    TooDeep,
}

// === impl MessageError ===

impl MessageError {
    /// A stable word for metrics.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::FrameCount { .. } => "frame_count",
            Self::SequenceLength { .. } => "sequence_length",
            Self::ReservedSequence => "reserved_sequence",
            Self::Truncated => "truncated",
            Self::NotABatch { .. } => "not_a_batch",
            Self::TooDeep { .. } => "too_deep",
            Self::TooLarge { .. } => "too_large",
        }
    }
}

// === impl EventError ===

impl EventError {
    /// How many reasons there are.
    pub const COUNT: usize = 8;

    /// Every reason, in the order of [`EventError::index`].
    pub const ALL: [Self; Self::COUNT] = [
        Self::NotAnEvent,
        Self::UnknownTag,
        Self::MissingField,
        Self::BadHash,
        Self::BadToken,
        Self::BadBlockSize,
        Self::BadField,
        Self::TooDeep,
    ];

    /// A dense number below [`EventError::COUNT`].
    pub const fn index(self) -> usize {
        self as usize
    }

    /// A stable word for metrics.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::NotAnEvent => "not_an_event",
            Self::UnknownTag => "unknown_tag",
            Self::MissingField => "missing_field",
            Self::BadHash => "bad_hash",
            Self::BadToken => "bad_token",
            Self::BadBlockSize => "bad_block_size",
            Self::BadField => "bad_field",
            Self::TooDeep => "too_deep",
        }
    }
}
