//! Events as an engine tells them: parents by engine hash, blocks by tokens. Blocks whose parent is unknown wait.

use crate::block::{Group, Tier};
use crate::hash::{ContentHash, EngineHash, Seed};
use crate::index::door::{Block, IndexError, StoreOutcome};
use crate::worker::RankId;

use super::{Model, ModelParent, Rank};

/// Blocks that an engine stored in a group that means a prefix, the first under `parent`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreEvent {
    /// The engine's name of the block before the first; `None` for block 0 of a prompt.
    pub parent: Option<EngineHash>,
    /// The seed of a prompt that begins here. Blocks under a parent inherit their parent's.
    pub seed: Seed,
    /// Where the blocks lie.
    pub tier: Tier,
    /// The cache group.
    pub group: Group,
    /// The blocks.
    pub blocks: Vec<EventBlock>,
}

/// One block: its tokens cannot be hashed before its seed is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EventBlock {
    /// The engine's name.
    pub engine: EngineHash,
    /// Its tokens as little-endian u32 bytes.
    pub tokens: Vec<u8>,
    /// Its extra keys in canonical form.
    pub keys: Vec<u8>,
}

/// A store that waits for its parent.
#[derive(Clone, Debug)]
pub(super) struct Parked {
    event: StoreEvent,
    /// Which of its blocks were removed while they waited.
    removed: Vec<bool>,
}

// === impl Model ===

impl Model {
    /// Applies a store as an engine tells it. Blocks under an unknown parent wait for it; blocks that waited for one
    /// of these take their places.
    ///
    /// # Errors
    /// [`IndexError::WorkerGone`].
    pub fn store_event(&mut self, id: RankId, event: StoreEvent) -> Result<StoreOutcome, IndexError> {
        let removed = vec![false; event.blocks.len()];
        let mut outcome = self.place(id, Parked { event, removed })?;
        while let Some(ready) = self.take_ready(id)? {
            let more = self.place(id, ready)?;
            outcome.added += more.added;
            outcome.copies += more.copies;
            outcome.moved += more.moved;
            outcome.evicted += more.evicted;
        }
        Ok(outcome)
    }

    /// Blocks that wait for a parent.
    pub fn orphans(&self, id: RankId) -> usize {
        self.ranks.get(&id).map_or(0, Rank::orphans)
    }

    /// Blocks that waited and were given up, because too many did.
    pub fn lost_orphans(&self, id: RankId) -> u64 {
        self.ranks.get(&id).map_or(0, |rank| rank.lost_orphans)
    }

    /// Stores a run under its parent, or parks it.
    fn place(&mut self, id: RankId, run: Parked) -> Result<StoreOutcome, IndexError> {
        let mut outcome = StoreOutcome::default();
        let mut parent = match run.event.parent {
            None => ModelParent::Root(run.event.seed),
            Some(parent) => match self.find(id, parent) {
                Some(place) => ModelParent::Under(place),
                None => {
                    self.park(id, run)?;
                    return Ok(outcome);
                }
            },
        };
        let Parked { event, removed } = run;
        for (block, removed) in event.blocks.iter().zip(removed) {
            let seed = match &parent {
                ModelParent::Root(seed) => *seed,
                ModelParent::Under(place) => place.seed,
            };
            let content = ContentHash::of_tokens_and_keys(&block.tokens, &block.keys, seed);
            if !removed {
                let one =
                    self.store(id, &parent, event.tier, event.group, &[Block { engine: block.engine, content }])?;
                outcome.added += one.added;
                outcome.copies += one.copies;
                outcome.moved += one.moved;
                outcome.evicted += one.evicted;
            }
            let mut path = match parent {
                ModelParent::Root(_) => Vec::new(),
                ModelParent::Under(place) => place.path,
            };
            path.push(content);
            parent = ModelParent::Under(super::ModelPlace { path, seed });
        }
        Ok(outcome)
    }

    /// Parks a run; over the bound the runs that have waited longest are given up.
    fn park(&mut self, id: RankId, run: Parked) -> Result<(), IndexError> {
        let limit = self.orphan_limit;
        let rank = self.rank_mut(id)?;
        rank.parked.push(run);
        while rank.orphans() > limit {
            rank.lost_orphans += rank.parked.remove(0).waiting() as u64;
        }
        Ok(())
    }

    /// The first run that waits for a parent that is known by now.
    fn take_ready(&mut self, id: RankId) -> Result<Option<Parked>, IndexError> {
        let rank = self.rank_mut(id)?;
        let is_ready = |run: &Parked| run.event.parent.and_then(|parent| rank.known(parent)).is_some();
        let ready = rank.parked.iter().position(is_ready);
        Ok(ready.map(|i| rank.parked.remove(i)))
    }
}

// === impl Rank ===

impl Rank {
    fn orphans(&self) -> usize {
        self.parked.iter().map(Parked::waiting).sum()
    }

    /// A removal of a block that waits: the run that has waited longest loses it. 0: none is left of that one.
    pub(super) fn remove_parked(&mut self, tier: Tier, group: Group, hash: EngineHash) -> Option<u32> {
        let runs = self.parked.iter_mut().filter(|run| run.event.tier == tier && run.event.group == group);
        let blocks = runs.flat_map(|run| run.event.blocks.iter().zip(&mut run.removed));
        let mut blocks = blocks.filter(|(_, removed)| !**removed);
        let (_, removed) = blocks.find(|(block, _)| block.engine == hash || block.engine == hash.narrow())?;
        *removed = true;
        self.parked.retain(|run| run.waiting() > 0);
        Some(0)
    }
}

// === impl Parked ===

impl Parked {
    fn waiting(&self) -> usize {
        self.removed.iter().filter(|removed| !**removed).count()
    }
}
