//! All that the index's lock guards: the ranks by slot, and the scopes of each model.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use crate::block::Grid;
use crate::worker::RankId;

use super::apply::Hands;
use super::door::{Copies, IndexError, Limits};
use super::rank::Rank;
use super::scope::Scope;

/// Ranks that may be registered at one time.
pub(super) const MAX_RANKS: usize = 1 << 16;

/// Everything.
#[derive(Debug, Default)]
pub(super) struct State {
    limits: Limits,
    slots: Vec<Slot>,
    /// Slots without a rank that may be used again.
    free: Vec<u32>,
    models: HashMap<Arc<str>, Model>,
    /// What all ranks together weigh against `limits.blocks_in_all`.
    total: usize,
}

/// A place for a rank. Each registration has a generation of its own.
#[derive(Debug)]
struct Slot {
    generation: u32,
    rank: Option<Box<Rank>>,
}

/// The ranks of one model by grid.
#[derive(Debug, Default)]
pub(super) struct Model {
    ranks: usize,
    pub(super) scopes: BTreeMap<Grid, Scope>,
}

// === impl State ===

impl State {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, ..Self::default() }
    }

    pub(super) fn register(&mut self, model: &str, copies: Copies) -> Result<RankId, IndexError> {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < MAX_RANKS => {
                self.slots.push(Slot { generation: 0, rank: None });
                (self.slots.len() - 1) as u32
            }
            None => return Err(IndexError::TooManyRanks { max: MAX_RANKS }),
        };
        let Some(entry) = self.slots.get_mut(slot as usize) else {
            return Err(IndexError::TooManyRanks { max: MAX_RANKS });
        };
        let model: Arc<str> = match self.models.get_key_value(model) {
            Some((model, _)) => model.clone(),
            None => model.into(),
        };
        self.models.entry(model.clone()).or_default().ranks += 1;
        entry.generation += 1;
        entry.rank = Some(Box::new(Rank::new(model, copies)));
        Ok(RankId { slot, generation: entry.generation })
    }

    pub(super) fn remove(&mut self, id: RankId) {
        let Some(mut hands) = self.hands(id) else { return };
        hands.clear();
        self.leave_grid(id);
        let Some(slot) = self.slots.get_mut(id.slot as usize) else { return };
        let Some(rank) = slot.rank.take() else { return };
        // A generation never comes twice: a slot that has used them all up stays empty.
        if slot.generation < u32::MAX {
            self.free.push(id.slot);
        }
        if let Some(model) = self.models.get_mut(&rank.model) {
            model.ranks -= 1;
            if model.ranks == 0 {
                self.models.remove(&rank.model);
            }
        }
    }

    /// Drops what a rank holds and forgets what is known of its engine.
    pub(super) fn reset(&mut self, id: RankId) {
        let Some(mut hands) = self.hands(id) else { return };
        hands.clear();
        self.leave_grid(id);
        if let Some(rank) = self.rank_mut(id) {
            rank.forget_groups();
        }
    }

    pub(super) fn set_grid(&mut self, id: RankId, grid: Grid) -> Result<(), IndexError> {
        let Some(rank) = self.rank(id) else { return Err(IndexError::WorkerGone) };
        match rank.grid {
            Some(have) if have == grid => return Ok(()),
            Some(have) if !rank.names.is_empty() => return Err(IndexError::GridConflict { have, got: grid }),
            _ => {}
        }
        self.leave_grid(id);
        if let Some(rank) = self.rank_mut(id) {
            rank.grid = Some(grid);
            let model = rank.model.clone();
            self.models.entry(model).or_default().scopes.entry(grid).or_default().ranks += 1;
        }
        Ok(())
    }

    /// Takes a rank that holds no names off its grid.
    fn leave_grid(&mut self, id: RankId) {
        let Some(rank) = self.rank_mut(id) else { return };
        let Some(grid) = rank.grid.take() else { return };
        let model = rank.model.clone();
        let Some(scopes) = self.models.get_mut(&model).map(|model| &mut model.scopes) else { return };
        if let Some(scope) = scopes.get_mut(&grid) {
            scope.ranks -= 1;
            if scope.ranks == 0 {
                scopes.remove(&grid);
            }
        }
    }

    /// A rank, unless it was removed.
    pub(super) fn rank(&self, id: RankId) -> Option<&Rank> {
        let slot = self.slots.get(id.slot as usize)?;
        slot.rank.as_deref().filter(|_| slot.generation == id.generation)
    }

    /// The rank in a slot, with its full identity.
    pub(super) fn rank_in(&self, slot: u32) -> Option<(RankId, &Rank)> {
        let entry = self.slots.get(slot as usize)?;
        Some((RankId { slot, generation: entry.generation }, entry.rank.as_deref()?))
    }

    pub(super) fn rank_mut(&mut self, id: RankId) -> Option<&mut Rank> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        slot.rank.as_deref_mut().filter(|_| slot.generation == id.generation)
    }

    /// A rank with all that its changes touch.
    pub(super) fn hands(&mut self, id: RankId) -> Option<Hands<'_>> {
        let slot = self.slots.get_mut(id.slot as usize)?;
        let rank = slot.rank.as_deref_mut().filter(|_| slot.generation == id.generation)?;
        let scope = match rank.grid {
            Some(grid) => self.models.get_mut(&rank.model).and_then(|model| model.scopes.get_mut(&grid)),
            None => None,
        };
        Some(Hands { slot: id.slot, rank, scope, total: &mut self.total, limits: &self.limits })
    }

    pub(super) fn model(&self, model: &str) -> Option<&Model> {
        self.models.get(model)
    }
}
