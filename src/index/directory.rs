//! Which ranks there are, and where the blocks of each model and grid are.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::block::Grid;
use crate::worker::RankId;

use super::door::{Copies, IndexError};
use super::forest::Forest;
use super::gate::Gate;
use super::rank::Cell;

/// Ranks that may be registered at one time.
pub(super) const MAX_RANKS: usize = 1 << 16;

/// Everything by name.
#[derive(Debug, Default)]
pub(super) struct Directory {
    slots: Vec<Slot>,
    /// Slots without a rank that may be used again.
    free: Vec<u32>,
    /// Few: an index serves a handful of models, and comparing names is faster than hashing one.
    models: Vec<Model>,
}

/// A place for a rank. Each registration has a generation of its own.
#[derive(Debug)]
struct Slot {
    generation: u32,
    cell: Option<Arc<Cell>>,
}

/// The ranks of one model by grid.
#[derive(Debug)]
struct Model {
    name: Arc<str>,
    ranks: usize,
    scopes: BTreeMap<Grid, Scope>,
}

/// One model on one grid, for as long as a rank has it.
#[derive(Debug)]
struct Scope {
    ranks: usize,
    gate: Arc<Gate<Forest>>,
}

// === impl Directory ===

impl Directory {
    pub(super) fn register(&mut self, model: &str, copies: Copies) -> Result<Arc<Cell>, IndexError> {
        let full = IndexError::TooManyRanks { max: MAX_RANKS };
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.slots.len() < MAX_RANKS => {
                self.slots.push(Slot { generation: 0, cell: None });
                (self.slots.len() - 1) as u32
            }
            None => return Err(full),
        };
        let Some(entry) = self.slots.get_mut(slot as usize) else { return Err(full) };
        let at = match self.models.iter().position(|known| *known.name == *model) {
            Some(at) => at,
            None => {
                self.models.push(Model { name: model.into(), ranks: 0, scopes: BTreeMap::new() });
                self.models.len() - 1
            }
        };
        self.models[at].ranks += 1;
        entry.generation += 1;
        let id = RankId { slot, generation: entry.generation };
        let cell = Arc::new(Cell::new(id, self.models[at].name.clone(), copies));
        entry.cell = Some(cell.clone());
        Ok(cell)
    }

    /// Takes a rank out, so that nobody finds it any more.
    pub(super) fn unregister(&mut self, id: RankId) -> Option<Arc<Cell>> {
        let slot = self.slots.get_mut(id.slot as usize).filter(|slot| slot.generation == id.generation)?;
        let cell = slot.cell.take()?;
        // A generation never comes twice: a slot that has used them all up stays empty.
        if slot.generation < u32::MAX {
            self.free.push(id.slot);
        }
        Some(cell)
    }

    /// Forgets a model with its last rank.
    pub(super) fn leave_model(&mut self, model: &str) {
        if let Some(at) = self.models.iter().position(|known| *known.name == *model) {
            self.models[at].ranks -= 1;
            if self.models[at].ranks == 0 {
                self.models.swap_remove(at);
            }
        }
    }

    pub(super) fn cells(&self) -> impl Iterator<Item = &Arc<Cell>> {
        self.slots.iter().filter_map(|slot| slot.cell.as_ref())
    }

    pub(super) fn cell(&self, id: RankId) -> Option<&Arc<Cell>> {
        let slot = self.slots.get(id.slot as usize)?;
        slot.cell.as_ref().filter(|_| slot.generation == id.generation)
    }

    pub(super) fn ranks(&self) -> impl Iterator<Item = &Arc<Cell>> {
        self.slots.iter().filter_map(|slot| slot.cell.as_ref())
    }

    /// The forest of a model on a grid, which one more rank has from now on.
    pub(super) fn join(&mut self, model: &str, grid: Grid) -> Option<Arc<Gate<Forest>>> {
        let model = self.models.iter_mut().find(|known| *known.name == *model)?;
        let new = || Scope { ranks: 0, gate: Arc::new(Gate::new(Forest::default())) };
        let scope = model.scopes.entry(grid).or_insert_with(new);
        scope.ranks += 1;
        Some(scope.gate.clone())
    }

    pub(super) fn leave(&mut self, model: &str, grid: Grid) {
        let Some(model) = self.models.iter_mut().find(|known| *known.name == *model) else { return };
        if let Some(scope) = model.scopes.get_mut(&grid) {
            scope.ranks -= 1;
            if scope.ranks == 0 {
                // Said before others can come to another forest.
                scope.gate.write().is_left = true;
                model.scopes.remove(&grid);
            }
        }
    }

    #[inline]
    pub(super) fn scope(&self, model: &str, grid: Grid) -> Option<&Arc<Gate<Forest>>> {
        let model = self.models.iter().find(|known| *known.name == *model)?;
        model.scopes.get(&grid).map(|scope| &scope.gate)
    }

    pub(super) fn grids(&self, model: &str) -> Option<Vec<Grid>> {
        let model = self.models.iter().find(|known| *known.name == *model)?;
        Some(model.scopes.keys().copied().collect())
    }
}
