//! What waits for its parent, seen from outside: whether a prompt goes on there, and under which parent.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::block::Grid;
use crate::hash::{ContentHash, EngineHash, Seed};

use super::orphans::Orphan;
use super::store::Run;

/// The orphans of one rank. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct WaitingRoom(Arc<Mutex<BTreeMap<u64, Orphan>>>);

/// A prompt that may wait.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The grid that it is cut on.
    pub grid: Grid,
    /// The content hashes of its blocks.
    pub contents: &'a [ContentHash],
    /// The first block that is looked for, from 0.
    pub from: usize,
    /// LoRA name and salt of the prompt, and the LoRA name alone, which a store says itself. `None`: the hashes came
    /// without them, and each store is taken for a prompt with its own LoRA name and no salt.
    pub namespace: Option<(Seed, &'a str)>,
}

/// A part of a prompt that waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiting {
    /// The first of the prompt's blocks that waits, from 0.
    pub first: usize,
    /// How many wait from there on, without those that were removed meanwhile.
    pub blocks: usize,
    /// What the engine calls the parent, which it has not stored as far as was heard.
    pub parent: EngineHash,
}

/// Stores that are looked at before the feed gets its turn.
const TURN: usize = 256;

// === impl WaitingRoom ===

impl WaitingRoom {
    /// The orphans, locked.
    pub(super) fn orphans(&self) -> MutexGuard<'_, BTreeMap<u64, Orphan>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where the prompt goes on in a store that waits: the one that begins earliest, of these the longest.
    ///
    /// A store without a parent has no place, so this says that the tokens are the same, not that it is this prompt.
    /// Hashes the first block of whatever waits: at most what the room's bound of bytes holds.
    pub fn find(&self, asked: Asked<'_>) -> Option<Waiting> {
        let mut places = HashMap::new();
        for (place, content) in asked.contents.iter().enumerate().skip(asked.from) {
            places.entry(*content).or_insert(place);
        }
        let mut best: Option<Waiting> = None;
        let mut next = 0;
        loop {
            let orphans = self.orphans();
            let mut last = None;
            for (number, orphan) in orphans.range(next..).take(TURN) {
                last = Some(*number);
                if let Some(found) = orphan.part_of(&asked, &places)
                    && best.is_none_or(|best| (found.first, best.blocks) < (best.first, found.blocks))
                {
                    best = Some(found);
                }
            }
            match last {
                Some(last) => next = last + 1,
                None => return best,
            }
        }
    }
}

// === impl Orphan ===

impl Orphan {
    /// The part of a prompt that this is, if it is any. `places`: where which content stands first.
    fn part_of(&self, asked: &Asked<'_>, places: &HashMap<ContentHash, usize>) -> Option<Waiting> {
        let lora = self.lora.as_deref();
        let seed = match asked.namespace {
            None => Seed::new(lora, None),
            Some((seed, name)) if lora.unwrap_or_default() == name => seed,
            Some(_) => return None,
        };
        if self.grid != asked.grid {
            return None;
        }
        let mut blocks = Vec::new();
        Run::beginning(self, 1).hash(seed, &mut blocks);
        let first = *places.get(&blocks.first()?.content)?;
        let prompt = asked.contents.get(first..)?;
        Run::beginning(self, prompt.len()).hash(seed, &mut blocks);
        let gone: HashSet<_> = self.removed.iter().collect();
        let same = blocks.iter().zip(prompt).take_while(|(block, content)| block.content == **content);
        let mut places = (first..).zip(same).filter(|(_, (block, _))| !gone.contains(&block.engine));
        let (first, _) = places.next()?;
        Some(Waiting { first, blocks: 1 + places.count(), parent: self.parent })
    }
}
