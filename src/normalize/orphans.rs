//! Stores whose parent is unknown, parked until the parent arrives.
//!
//! An orphan never becomes a root: it waits, with its tokens (its seed is the parent's, so it cannot be hashed
//! yet), under the parent's engine hash. Removals that come meanwhile are remembered with it. The waiting room is
//! bounded; over the bound the longest waiting goes, counted.

use std::collections::{BTreeSet, HashMap, VecDeque};

use crate::block::extra_keys::{self, Item};
use crate::block::{Grid, Group, Tier};
use crate::hash::{ContentHash, EngineHash};

use super::waiting::WaitingRoom;

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
    /// The orphans themselves, by number.
    room: WaitingRoom,
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
        let keys: usize = self.keys.iter().map(|items| size_of::<Vec<Item>>() + extra_keys::memory(items)).sum();
        let lora = self.lora.as_ref().map_or(0, String::len);
        256 + self.tokens.len() + (self.hashes.len() * 3 + self.contents.len()) * 16 + keys + lora
    }
}

// === impl Orphans ===

impl Orphans {
    pub(super) fn new(limits: OrphanLimits) -> Self {
        Self {
            limits,
            room: WaitingRoom::default(),
            by_parent: HashMap::new(),
            names: HashMap::new(),
            order: VecDeque::new(),
            next: 0,
            blocks: 0,
            removed: 0,
            bytes: 0,
        }
    }

    /// Every orphan has blocks.
    pub(super) fn is_empty(&self) -> bool {
        self.blocks == 0
    }

    /// What waits, to be looked at from elsewhere.
    pub(super) const fn room(&self) -> &WaitingRoom {
        &self.room
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
        self.room.orphans().insert(number, orphan);
        self.order.push_back(number);
        let mut gone = 0;
        // What was removed meanwhile does not wait; its bytes are there still.
        while self.blocks - self.removed > self.limits.blocks || self.bytes > self.limits.bytes {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(orphan) = self.take(oldest) {
                gone += (orphan.hashes.len() - orphan.removed.len()) as u64;
            }
        }
        let orphans = self.room.orphans();
        if self.order.len() > 2 * orphans.len() + 64 {
            self.order.retain(|number| orphans.contains_key(number));
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
        let mut orphans = self.room.orphans();
        for number in numbers {
            let Some(orphan) = orphans.get_mut(number) else { continue };
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
        drop(orphans);
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
        // Whoever looks at the room goes on doing so.
        let room = self.room.clone();
        room.orphans().clear();
        *self = Self { room, ..Self::new(self.limits) };
    }

    fn take(&mut self, number: u64) -> Option<Orphan> {
        let orphan = self.room.orphans().remove(&number)?;
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

#[cfg(test)]
mod tests {
    use super::*;

    fn orphan(parent: u64, keys: Vec<Item>) -> Orphan {
        Orphan {
            parent: EngineHash::from_u64(parent),
            hashes: vec![EngineHash::from_u64(parent + 1)],
            tokens: vec![0; 64],
            contents: Vec::new(),
            keys: vec![keys],
            lora: None,
            grid: Grid::new(16).unwrap(),
            tier: Tier::Device,
            group: Group(0),
            removed: Vec::new(),
        }
    }

    #[test]
    fn what_extra_keys_and_adapters_are_called_counts_as_waiting_bytes() {
        let text = || "x".repeat(10_000);
        let limits = OrphanLimits { blocks: 100, bytes: 25_000 };
        for long in [
            orphan(1, vec![Item::Text(text())]),
            orphan(1, vec![Item::List(vec![Item::Bytes(text().into_bytes())])]),
            Orphan { lora: Some(text()), ..orphan(1, Vec::new()) },
        ] {
            let mut orphans = Orphans::new(limits);
            orphans.park(long);
            assert_eq!(orphans.park(orphan(3, vec![Item::Text(text())])), 0);
            assert_eq!(orphans.park(orphan(5, vec![Item::Text(text())])), 1, "the first has to go");
            assert_eq!(orphans.waiting(), 2);
            orphans.clear();
            assert_eq!(orphans.bytes, 0);
        }
    }

    #[test]
    fn a_block_that_was_removed_while_it_waited_takes_no_room_from_others() {
        let mut orphans = Orphans::new(OrphanLimits { blocks: 2, bytes: usize::MAX });
        let hashes = vec![EngineHash::from_u64(2), EngineHash::from_u64(3)];
        orphans.park(Orphan { hashes, ..orphan(1, Vec::new()) });
        assert!(orphans.remove(Tier::Device, Group(0), EngineHash::from_u64(3)));
        assert_eq!(orphans.park(orphan(5, Vec::new())), 0, "one waits, and there is room for two");
        assert_eq!(orphans.park(orphan(7, Vec::new())), 1);
        assert_eq!(orphans.waiting(), 2);
    }

    #[test]
    fn every_byte_that_waits_is_given_back() {
        let mut orphans = Orphans::new(OrphanLimits::default());
        orphans.park(orphan(1, vec![Item::Text("key".to_owned())]));
        orphans.park(Orphan { lora: Some("adapter".to_owned()), ..orphan(1, Vec::new()) });
        assert_eq!(orphans.take_children(EngineHash::from_u64(1)).len(), 2);
        assert_eq!((orphans.bytes, orphans.blocks), (0, 0));
    }
}
