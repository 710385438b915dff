//! Why an event, or blocks of one, did not reach the index: a closed set.

/// Why something was dropped. The word is the metric's label.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reason {
    /// Tokens do not number `blocks * block_size`: null or masked blocks, which are not said.
    NotDense,
    /// A block smaller than the others on the device: a partial block is not a block.
    PartialBlock,
    /// The block size disagrees with the blocks on the device, or with the configuration.
    BlockSizeConflict,
    /// The block size or the lookahead is out of range.
    BadBlockSize,
    /// A feed that sends content hashes must be told the block size, and was not.
    NoBlockSize,
    /// An offload store or a removal names blocks that this rank does not hold there.
    UnknownBlock,
    /// A removal took back a block that was waiting for its parent.
    OrphanRemoved,
    /// The waiting room for orphans was full.
    OrphanEvicted,
    /// The parent is one of the event's own blocks.
    OwnParent,
    /// The engine's nil parent cannot be believed, or its unchained parent is unknown.
    Unrooted,
    /// The rank names more media than there is room for.
    TooManyMedia,
    /// The rank numbers more groups than there is room for.
    TooManyGroups,
    /// A group was taken for full attention until one with a wider window came: all its blocks were dropped.
    NarrowWindow,
    /// The oldest blocks went because the index reached a bound.
    Evicted,
}

// === impl Reason ===

impl Reason {
    /// Every reason.
    pub const ALL: [Self; 14] = [
        Self::NotDense,
        Self::PartialBlock,
        Self::BlockSizeConflict,
        Self::BadBlockSize,
        Self::NoBlockSize,
        Self::UnknownBlock,
        Self::OrphanRemoved,
        Self::OrphanEvicted,
        Self::OwnParent,
        Self::Unrooted,
        Self::TooManyMedia,
        Self::TooManyGroups,
        Self::NarrowWindow,
        Self::Evicted,
    ];

    /// A stable word for metrics and `ListWorkers`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::NotDense => "not_dense",
            Self::PartialBlock => "partial_block",
            Self::BlockSizeConflict => "block_size_conflict",
            Self::BadBlockSize => "bad_block_size",
            Self::NoBlockSize => "no_block_size",
            Self::UnknownBlock => "unknown_block",
            Self::OrphanRemoved => "orphan_removed",
            Self::OrphanEvicted => "orphan_evicted",
            Self::OwnParent => "own_parent",
            Self::Unrooted => "unrooted",
            Self::TooManyMedia => "too_many_media",
            Self::TooManyGroups => "too_many_groups",
            Self::NarrowWindow => "narrow_window",
            Self::Evicted => "evicted",
        }
    }
}
