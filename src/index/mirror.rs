//! What only an index needs that mirrors another one, told by its deltas.

use crate::hash::{ContentHash, EngineHash};

use super::door::{Block, Parent, Place};
use super::lines::MAX_POSITIONS;
use super::rank::Rank;
use super::{RankWriter, Tx};

impl RankWriter {
    /// Says that every block which this writer stores is named by its prefix hash: it need not be worked out again.
    pub fn name_by_prefix(&mut self) {
        self.cell.lock().is_named_by_prefix = true;
    }

    /// Makes room at once for the names of so many blocks in all, which are going to be stored, if the bounds allow as
    /// many. It takes some five bytes each, whether they come or not: ask for what is known to come.
    pub fn reserve(&mut self, blocks: usize) {
        let mut rank = self.cell.lock();
        let blocks = blocks.min(MAX_POSITIONS);
        if !rank.gone && self.index.bounds.has_room(&rank, blocks.saturating_sub(rank.weight)) {
            let Rank { names, holds, .. } = &mut *rank;
            names.reserve(blocks, holds.lines());
        }
    }
}

impl Tx<'_> {
    /// The place of the last of `contents`, which stand under `parent` one under the other, whether anybody holds
    /// them or not: for blocks that are held behind a hole. It is there until the transaction ends, and after it for
    /// as long as something behind it is held. `None` without a grid, or without contents.
    pub fn pass(&mut self, parent: Parent, contents: &[ContentHash]) -> Option<Place> {
        let (start, seed) = match parent {
            Parent::Root(seed) => (None, seed),
            Parent::Under(place) => (Some((place.run, place.block)), place.seed),
        };
        // The forest does not ask for names.
        let nameless = EngineHash::from_u64(0);
        let blocks: Vec<Block> = contents.iter().map(|content| Block { engine: nameless, content: *content }).collect();
        self.hands().apart(|apart| {
            let forest = apart.forest.as_deref_mut()?;
            let mut plan = super::plan::Plan::default();
            forest.locate(apart.seat, start, &blocks, &mut plan);
            plan.segments.iter().for_each(|segment| forest.touch(segment.run));
            let last = plan.segments.last()?;
            Some(Place { run: last.run, block: last.to.checked_sub(1)?, seed })
        })
    }

    /// Takes over that the other index knows of more groups than it keeps.
    pub fn mark_groups(&mut self, too_many: bool) {
        if too_many || self.rank.has_odd {
            self.hands().apart(|apart| apart.odd.too_many_groups = too_many);
        }
    }

    /// Takes over that a bound has made the other index forget blocks.
    pub fn mark_partial(&mut self, partial: bool) {
        self.rank.partial = partial;
    }
}
