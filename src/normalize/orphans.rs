//! Stores whose parent is unknown, parked until the parent arrives.
//!
//! An orphan never becomes a root: it waits, with its tokens (its seed is the parent's, so it cannot be hashed
//! yet), under the parent's engine hash. Removals that come meanwhile are remembered with it. The waiting room is
//! bounded; over the bound the longest waiting goes, counted.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::block::extra_keys::Item;
use crate::block::{Grid, Group, Tier};
use crate::hash::{ContentHash, EngineHash};

/// Bounds of one rank's waiting room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OrphanLimits {
    /// Blocks that may wait.
    pub blocks: usize,
    /// Bytes (tokens, names, keys) that may wait.
    pub bytes: usize,
}

/// A store that waits.
#[derive(Debug)]
pub(super) struct Orphan {
    pub(super) parent: EngineHash,
    pub(super) hashes: Vec<EngineHash>,
    pub(super) tokens: Vec<u8>,
    pub(super) contents: Vec<ContentHash>,
    pub(super) keys: Vec<Vec<Item>>,
    pub(super) lora: Option<String>,
    pub(super) grid: Grid,
    pub(super) tier: Tier,
    pub(super) group: Group,
    /// Names removed while waiting, one copy each, all on the orphan's own tier and group.
    pub(super) removed: Vec<EngineHash>,
}

/// One rank's waiting room.
#[derive(Debug)]
pub(super) struct Orphans {
    limits: OrphanLimits,
    by_number: HashMap<u64, Orphan>,
    by_parent: HashMap<EngineHash, BTreeSet<u64>>,
    /// Which waiting orphans carry a name.
    names: HashMap<EngineHash, BTreeSet<u64>>,
    order: VecDeque<u64>,
    next: u64,
    blocks: usize,
    removed: usize,
    bytes: usize,
}

// === impl OrphanLimits ===

impl Default for OrphanLimits {
    /// 65,536 blocks and 32 MiB a rank.
    fn default() -> Self {
        Self { blocks: 1 << 16, bytes: 32 << 20 }
    }
}

// === impl Orphan ===

impl Orphan {
    fn bytes(&self) -> usize {
        let keys: usize = self.keys.iter().map(|items| 32 + items.len() * 64).sum();
        256 + self.tokens.len() + (self.hashes.len() * 3 + self.contents.len()) * 16 + keys
    }
}

// === impl Orphans ===

impl Orphans {
    pub(super) fn new(limits: OrphanLimits) -> Self {
        Self {
            limits,
            by_number: HashMap::new(),
            by_parent: HashMap::new(),
            names: HashMap::new(),
            order: VecDeque::new(),
            next: 0,
            blocks: 0,
            removed: 0,
            bytes: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_number.is_empty()
    }

    /// Blocks that wait and have not been removed meanwhile.
    pub(super) fn waiting(&self) -> u64 {
        (self.blocks - self.removed) as u64
    }

    /// Parks an orphan. Returns how many blocks had to go for it (its own, where it alone is over the bound).
    pub(super) fn park(&mut self, orphan: Orphan) -> u64 {
        let number = self.next;
        self.next += 1;
        self.blocks += orphan.hashes.len();
        self.bytes += orphan.bytes();
        for hash in &orphan.hashes {
            self.names.entry(*hash).or_default().insert(number);
        }
        self.by_parent.entry(orphan.parent).or_default().insert(number);
        self.by_number.insert(number, orphan);
        self.order.push_back(number);
        let mut gone = 0;
        while self.blocks > self.limits.blocks || self.bytes > self.limits.bytes {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(orphan) = self.take(oldest) {
                gone += (orphan.hashes.len() - orphan.removed.len()) as u64;
            }
        }
        if self.order.len() > 2 * self.by_number.len() + 64 {
            self.order.retain(|number| self.by_number.contains_key(number));
        }
        gone
    }

    /// Takes out every orphan that waits for `parent`, longest waiting first.
    pub(super) fn take_children(&mut self, parent: EngineHash) -> Vec<Orphan> {
        let numbers = self.by_parent.remove(&parent).unwrap_or_default();
        numbers.into_iter().filter_map(|number| self.take(number)).collect()
    }

    /// Notes the removal of one copy of `hash`. Returns whether an orphan that carries it was waiting there.
    pub(super) fn remove(&mut self, tier: Tier, group: Group, hash: EngineHash) -> bool {
        let Some(numbers) = self.names.get(&hash) else { return false };
        let mut done = None;
        for number in numbers {
            let Some(orphan) = self.by_number.get_mut(number) else { continue };
            let copies = orphan.hashes.iter().filter(|h| **h == hash).count();
            let gone = orphan.removed.iter().filter(|h| **h == hash).count();
            if orphan.tier == tier && orphan.group == group && gone < copies {
                orphan.removed.push(hash);
                self.removed += 1;
                self.bytes += size_of::<EngineHash>();
                done = Some((*number, orphan.removed.len() == orphan.hashes.len()));
                break;
            }
        }
        match done {
            None => false,
            Some((number, emptied)) => {
                if emptied {
                    self.take(number);
                }
                true
            }
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::new(self.limits);
    }

    fn take(&mut self, number: u64) -> Option<Orphan> {
        let orphan = self.by_number.remove(&number)?;
        self.blocks -= orphan.hashes.len();
        self.removed -= orphan.removed.len();
        self.bytes -= orphan.bytes() + orphan.removed.len() * size_of::<EngineHash>();
        for hash in &orphan.hashes {
            forget(&mut self.names, *hash, number);
        }
        forget(&mut self.by_parent, orphan.parent, number);
        Some(orphan)
    }
}

fn forget(map: &mut HashMap<EngineHash, BTreeSet<u64>>, key: EngineHash, number: u64) {
    if let Some(numbers) = map.get_mut(&key) {
        numbers.remove(&number);
        if numbers.is_empty() {
            map.remove(&key);
        }
    }
}
