//! What is remembered of a rank's cache groups and media.
//!
//! A group's kind comes on stores only, so it is kept for removals and for offload stores. Engines number a
//! handful of groups; more than [`MAX_GROUPS`] is noise.

use crate::block::{Group, GroupRule, Tier};
use crate::wire::{Kind, Stored};

use super::memory::GroupMemory;

/// Groups that one rank may have.
const MAX_GROUPS: usize = 64;

/// What a rank's groups are.
#[derive(Debug, Default)]
pub(super) struct Groups {
    known: Vec<Known>,
    /// The largest window of the groups whose engine tells windows but no kinds (TensorRT-LLM), in tokens.
    widest: u32,
}

#[derive(Debug)]
struct Known {
    group: Group,
    rule: GroupRule,
    /// The largest block size seen, in tokens: partial blocks are smaller.
    block_size: u32,
    /// The window of a group without a kind, in tokens.
    bare_window: Option<u32>,
}

/// What a store has taught of its group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Learned {
    pub(super) rule: GroupRule,
    pub(super) block_size: u32,
    /// Rule or block size are new.
    pub(super) news: bool,
    /// A wider window than any before: the group that was taken for full attention until now is none.
    pub(super) widened: bool,
}

/// A rank's own names for media that this program does not know.
#[derive(Debug, Default)]
pub(super) struct Media {
    names: Vec<String>,
}

// === impl Groups ===

impl Groups {
    /// The rule of `group`, if a store has told it.
    pub(super) fn rule(&self, group: Group) -> Option<GroupRule> {
        self.known.iter().find(|known| known.group == group).map(|known| known.rule)
    }

    /// Learns from a store; `None` where there are too many groups.
    ///
    /// An engine that tells neither kinds nor windows (before vLLM 0.22, SGLang) has one group, 0, of full
    /// attention; other groups of such an engine have no known rule. Of an engine that tells windows only, the
    /// group with the widest has full attention.
    pub(super) fn learn(&mut self, group: Group, stored: &Stored) -> Option<Learned> {
        let window = stored.window.map(|window| u32::try_from(window).unwrap_or(u32::MAX));
        let mut widened = false;
        let told = match (stored.kind, window) {
            (Some(Kind::Full), _) => Some(GroupRule::Full),
            (Some(Kind::SlidingWindow), Some(tokens)) => Some(GroupRule::Window { tokens }),
            (Some(Kind::SlidingWindow | Kind::Unknown), _) => Some(GroupRule::Unknown),
            (None, Some(tokens)) if tokens < self.widest => Some(GroupRule::Window { tokens }),
            (None, Some(tokens)) => {
                widened = self.widest > 0 && tokens > self.widest;
                self.widest = tokens;
                if widened {
                    self.narrow_all();
                }
                Some(GroupRule::Full)
            }
            (None, None) => None,
        };
        let bare_window = window.filter(|_| stored.kind.is_none());
        let size = u32::try_from(stored.block_size).unwrap_or(0);
        if let Some(known) = self.known.iter_mut().find(|known| known.group == group) {
            let rule = told.unwrap_or(known.rule);
            let news = rule != known.rule || size > known.block_size;
            known.rule = rule;
            known.block_size = known.block_size.max(size);
            known.bare_window = bare_window;
            return Some(Learned { rule, block_size: known.block_size, news, widened });
        }
        if self.known.len() == MAX_GROUPS {
            return None;
        }
        let rule = told.unwrap_or(if group == Group(0) { GroupRule::Full } else { GroupRule::Unknown });
        self.known.push(Known { group, rule, block_size: size, bare_window });
        Some(Learned { rule, block_size: size, news: true, widened })
    }

    /// The groups that were noted, for an index that has forgotten them.
    pub(super) fn notes(&self) -> impl Iterator<Item = (Group, GroupRule, u32)> {
        let noted = self.known.iter().filter(|known| known.rule != GroupRule::Full);
        noted.map(|known| (known.group, known.rule, known.block_size))
    }

    /// What is remembered: each group, and the widest window of those without a kind.
    pub(super) fn memory(&self) -> (Vec<GroupMemory>, u32) {
        let groups = self.known.iter().map(|known| GroupMemory {
            group: known.group,
            rule: known.rule,
            block_size: known.block_size,
            bare_window: known.bare_window,
        });
        (groups.collect(), self.widest)
    }

    /// The groups that were remembered.
    pub(super) fn recall(groups: &[GroupMemory], widest: u32) -> Self {
        let known = groups.iter().take(MAX_GROUPS).map(|memory| Known {
            group: memory.group,
            rule: memory.rule,
            block_size: memory.block_size,
            bare_window: memory.bare_window,
        });
        Self { known: known.collect(), widest }
    }

    fn narrow_all(&mut self) {
        for known in &mut self.known {
            if let Some(tokens) = known.bare_window {
                known.rule = GroupRule::Window { tokens };
            }
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

// === impl Media ===

impl Media {
    /// The names, in the order of their tiers.
    pub(super) fn memory(&self) -> Vec<String> {
        self.names.clone()
    }

    /// The media that were remembered.
    pub(super) fn recall(names: &[String]) -> Self {
        Self { names: names.iter().take(Tier::OTHERS).cloned().collect() }
    }

    /// The tier of a medium that has no tier of its own among the known ones; `None` where a rank has named too
    /// many of them.
    pub(super) fn tier(&mut self, name: &str) -> Option<Tier> {
        /// No engine's word is nearly as long.
        const MAX_NAME: usize = 64;
        if name.len() > MAX_NAME {
            return None;
        }
        let known = self.names.iter().position(|known| known.eq_ignore_ascii_case(name));
        let n = known.or_else(|| {
            (self.names.len() < Tier::OTHERS).then(|| {
                self.names.push(name.to_owned());
                self.names.len() - 1
            })
        })?;
        u8::try_from(n).ok().map(Tier::Other)
    }
}
