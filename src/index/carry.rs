//! A rank's content out of the index and back in, piece by piece, the oldest block first.
//!
//! The order of ages is the order of an export, so that a bound evicts after a restore what it would have evicted
//! without one. Parents need not come first: a place is a prefix hash, and whether the block before it is held is
//! nothing to it.

use crate::hash::{EngineHash, PrefixHash};
use crate::worker::{RankId, Stamp};

use super::ages::Kind;
use super::copies::Tiers;
use super::door::{Block, Exported, IndexError};
use super::rank::{Name, Places, Rank, Spot};
use super::state::State;

// === impl Rank ===

impl Rank {
    /// Tells everything that is held. Returns the stamp it is held under.
    pub(super) fn export(&self, visit: &mut dyn FnMut(Exported)) -> Stamp {
        visit(Exported::Rank {
            grid: self.grid,
            evicted: self.evicted,
            partial: self.partial,
            too_many_groups: self.too_many_groups,
        });
        for group in &self.groups {
            let note = self.notes.get(group).map(|note| (note.rule, note.block_size));
            visit(Exported::Group { group: *group, note });
        }
        for aged in self.ages.iter().filter(|aged| Self::is_live(&self.names, &self.others, aged)) {
            match aged.kind {
                Kind::Prefix => {
                    if let Some(name) = self.names.get(&aged.hash) {
                        name.export(aged.hash, visit);
                    }
                }
                Kind::Other(group) => {
                    let piles = self.others.get(&(group, aged.hash)).map(|other| &other.piles);
                    for (tier, _, copies) in piles.into_iter().flat_map(|piles| piles.each()) {
                        visit(Exported::Other { group, engine: aged.hash, tier, copies });
                    }
                }
            }
        }
        self.stamp
    }
}

// === impl Name ===

impl Name {
    fn export(&self, engine: EngineHash, visit: &mut dyn FnMut(Exported)) {
        let block = Block { engine, content: self.content };
        // Copies are counted by name, not by place: the first place on a tier tells them.
        let mut told = Tiers::default();
        let mut place = |parent, tiers: Tiers| {
            for (tier, group, copies) in self.piles.each().filter(|(tier, ..)| tiers.has(*tier) && !told.has(*tier)) {
                visit(Exported::Block { block, parent, seed: self.seed, tier, group, copies });
            }
            for tier in tiers.iter().filter(|tier| told.has(*tier)) {
                if let Some((_, group, _)) = self.piles.each().find(|(on, ..)| *on == tier) {
                    visit(Exported::Block { block, parent, seed: self.seed, tier, group, copies: 0 });
                }
            }
            told = tiers.iter().fold(told, Tiers::with);
        };
        match &self.places {
            Places::One(spot) => place(spot.parent, self.piles.tiers()),
            Places::Many(many) => {
                let mut standing: Vec<_> = many.at.iter().collect();
                standing.sort_unstable_by_key(|(at, standing)| (**at == many.last, standing.stored));
                for (_, standing) in standing {
                    place(standing.parent, standing.tiers);
                }
            }
        }
    }
}

// === impl State ===

impl State {
    pub(super) fn restore(&mut self, id: RankId, piece: &Exported) -> Result<(), IndexError> {
        let rank = self.rank_mut(id).ok_or(IndexError::WorkerGone)?;
        match *piece {
            Exported::Rank { grid, evicted, partial, too_many_groups } => {
                if !rank.names.is_empty() || !rank.others.is_empty() {
                    return Err(IndexError::NotAnExport);
                }
                (rank.evicted, rank.partial, rank.too_many_groups) = (evicted, partial, too_many_groups);
                grid.map_or(Ok(()), |grid| self.set_grid(id, grid))
            }
            Exported::Group { group, note } => {
                if !rank.admit(group) {
                    return Err(IndexError::NotAnExport);
                }
                if let Some((rule, block_size)) = note {
                    rank.note_group(group, rule, block_size);
                }
                Ok(())
            }
            Exported::Block { block, parent, seed, tier, group, copies } => {
                let told = rank.names.get(&block.engine);
                let alike = told.is_none_or(|name| name.content == block.content);
                let counted = copies > 0 || told.is_some_and(|name| name.piles.on(tier, group) > 0);
                if rank.grid.is_none() || !alike || !counted || !rank.admit(group) {
                    return Err(IndexError::NotAnExport);
                }
                let mut hands = self.hands(id).ok_or(IndexError::WorkerGone)?;
                let spot = Spot { at: PrefixHash::after(parent, block.content), parent };
                hands.store_block(&block, spot, seed, tier, group, copies);
                hands.keep_bounds();
                Ok(())
            }
            Exported::Other { group, engine, tier, copies } => {
                if copies == 0 || !rank.admit(group) {
                    return Err(IndexError::NotAnExport);
                }
                let mut hands = self.hands(id).ok_or(IndexError::WorkerGone)?;
                hands.hold_block(tier, group, engine, copies);
                hands.keep_bounds();
                Ok(())
            }
        }
    }
}
