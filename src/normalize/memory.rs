//! What a normalizer has learned of its engine, as plain data: for whoever keeps it over a restart.
//!
//! No token, no salt and no key is in it. Blocks that wait for their parents are not in it either.

use crate::block::{Grid, Group, GroupRule};
use crate::hash::EngineHash;

use super::groups::{Groups, Media};
use super::naming::Naming;
use super::worker::Reader;

/// What was learned of one rank's engine in the present epoch.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Memory {
    /// The grid of the prefix blocks, once a store has shown it.
    pub grid: Option<Grid>,
    /// The groups whose stores were seen.
    pub groups: Vec<GroupMemory>,
    /// The widest window of the groups whose engine tells windows but no kinds, in tokens.
    pub widest: u32,
    /// The group whose blocks name content.
    pub prefix_group: Option<Group>,
    /// Media without a tier of their own, in the order of the tiers they were given.
    pub media: Vec<String>,
    /// How blocks are named.
    pub naming: NamingMemory,
    /// The grid may have been learned from a partial block.
    pub tentative: bool,
    /// The name announced last since the last clear.
    pub announced: Option<EngineHash>,
    /// There was a clear.
    pub cleared: bool,
}

/// What was learned of one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GroupMemory {
    /// Which.
    pub group: Group,
    /// Its rule.
    pub rule: GroupRule,
    /// Its block size, in tokens.
    pub block_size: u32,
    /// Its window in tokens, where its engine told one without a kind.
    pub bare_window: Option<u32>,
}

/// How an engine names blocks, as far as its events have shown.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum NamingMemory {
    /// Not seen yet.
    #[default]
    Unknown,
    /// A name stands for a block and all before it.
    Chained,
    /// A name stands for a block's tokens alone.
    Unchained {
        /// A nil parent means a root.
        nil_is_root: bool,
        /// Names that no longer tell which block is meant.
        doubtful: Vec<EngineHash>,
        /// There were too many of these: no name does.
        overflowed: bool,
    },
}

// === impl Reader ===

impl Reader {
    pub(super) fn memory(&self) -> Memory {
        let (groups, widest) = self.groups.memory();
        Memory {
            grid: self.grid,
            groups,
            widest,
            prefix_group: self.prefix_group,
            media: self.media.memory(),
            naming: self.naming.memory(),
            tentative: self.tentative,
            announced: self.announced,
            cleared: self.cleared,
        }
    }

    pub(super) fn recall(&mut self, memory: &Memory) {
        self.grid = memory.grid;
        self.groups = Groups::recall(&memory.groups, memory.widest);
        self.prefix_group = memory.prefix_group;
        self.media = Media::recall(&memory.media);
        self.naming = Naming::recall(&memory.naming);
        self.tentative = memory.tentative;
        self.announced = memory.announced;
        self.cleared = memory.cleared;
    }
}
