//! What is remembered of a rank's cache groups and media.
//!
//! A group's kind comes on stores only, so it is kept for removals and for offload stores. Engines number a
//! handful of groups; more than [`MAX_GROUPS`] is noise.

use crate::block::{Group, GroupRule, Tier};
use crate::wire::{Kind, Stored};

/// Groups that one rank may have.
const MAX_GROUPS: usize = 64;

/// What a rank's groups are.
#[derive(Debug, Default)]
pub(super) struct Groups {
    known: Vec<Known>,
}

#[derive(Debug)]
struct Known {
    group: Group,
    rule: GroupRule,
    /// The largest block size seen, in tokens: partial blocks are smaller.
    block_size: u32,
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

    /// Learns from a store. Returns the group's rule and block size, and whether either is news; `None` where
    /// there are too many groups.
    ///
    /// An engine that does not tell kinds (before vLLM 0.22, SGLang) has one group, 0, of full attention; other
    /// groups without a kind have no known rule.
    pub(super) fn learn(&mut self, group: Group, stored: &Stored) -> Option<(GroupRule, u32, bool)> {
        let told = stored.kind.map(|kind| match kind {
            Kind::Full => GroupRule::Full,
            Kind::SlidingWindow => match stored.window.and_then(|window| u32::try_from(window).ok()) {
                Some(tokens) => GroupRule::Window { tokens },
                None => GroupRule::Unknown,
            },
            Kind::Unknown => GroupRule::Unknown,
        });
        let size = u32::try_from(stored.block_size).unwrap_or(0);
        if let Some(known) = self.known.iter_mut().find(|known| known.group == group) {
            let rule = told.unwrap_or(known.rule);
            let news = rule != known.rule || size > known.block_size;
            known.rule = rule;
            known.block_size = known.block_size.max(size);
            return Some((rule, known.block_size, news));
        }
        if self.known.len() == MAX_GROUPS {
            return None;
        }
        let rule = told.unwrap_or(if group == Group(0) { GroupRule::Full } else { GroupRule::Unknown });
        self.known.push(Known { group, rule, block_size: size });
        Some((rule, size, true))
    }

    pub(super) fn clear(&mut self) {
        self.known.clear();
    }
}

// === impl Media ===

impl Media {
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
