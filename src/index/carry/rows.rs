//! Blocks of an export taken back many at a time.
//!
//! An export tells blocks by age, so those of sequences that were decoded side by side lie between each other. Nearly all of
//! them are ordinary: pieces of a row are put together to chains again, each chain is stored as an engine would store it,
//! and the ages are noted in the order of the pieces. What is not ordinary goes one by one.

use std::collections::hash_map::Entry;

use crate::block::{Group, Tier};
use crate::hash::{PrefixHash, Seed};

use super::super::Tx;
use super::super::door::{Block, Exported, IndexError};
use super::super::forest::NONE;
use super::super::hold::Spot;
use super::Restoring;

/// A row of fewer pieces is taken back one by one.
const FEW: usize = 8;

/// In place of a run: the block is told by this row, and has no place yet.
const PENDING: u32 = NONE - 1;

/// Blocks that are stored before others of the model may go on.
const AT_ONCE: usize = 64;

/// What became of the pieces at the front.
enum Row {
    /// So many were taken back.
    Taken(usize),
    /// So many have to be taken back one by one.
    Alone(usize),
}

/// A block of the row.
struct Told {
    block: Block,
    at: PrefixHash,
    chain: usize,
    /// The next one of its chain.
    next: Option<usize>,
    /// Where it is, once its chain is stored: the place, and the rank's own number for it.
    placed: Option<((u32, u32), Spot)>,
}

/// Blocks of the row of which each is the child of the one before.
struct Chain {
    start: Start,
    parent: Option<PrefixHash>,
    seed: Seed,
    first: usize,
    last: usize,
}

/// What a chain begins behind.
#[derive(Clone, Copy)]
enum Start {
    Root,
    /// A block that was taken back before.
    Place(u32, u32),
    /// A block of the row.
    Behind(usize),
}

// === impl Tx ===

impl Tx<'_> {
    /// [`Tx::restore`] of one piece after the other, but many times quicker where they are ordinary. In between readers may
    /// see a part of them.
    ///
    /// # Errors
    /// As there, at the first piece that is refused; some of those that were told beside it are taken back.
    pub fn restore_all(&mut self, pieces: &[Exported]) -> Result<(), IndexError> {
        let mut rest = pieces;
        while !rest.is_empty() {
            let done = match self.restore_row(rest)? {
                Row::Taken(taken) => taken,
                Row::Alone(alone) => {
                    rest.iter().take(alone).try_for_each(|piece| self.restore(piece))?;
                    alone
                }
            };
            rest = rest.get(done..).unwrap_or_default();
        }
        Ok(())
    }

    fn restore_row(&mut self, pieces: &[Exported]) -> Result<Row, IndexError> {
        let Some(Exported::Block { group, .. }) = pieces.first().copied() else { return Ok(Row::Alone(1)) };
        let plain = pieces.iter().take_while(|piece| is_plain(piece, group)).count();
        let pieces = &pieces[..plain];
        if plain < FEW || !self.takes_rows(group, plain) {
            return Ok(Row::Alone(plain.max(1)));
        }
        let mut restoring = self.rank.restoring.take().unwrap_or_default();
        restoring.last = None;
        let row = match restoring.has_evicted || !restoring.passed.is_empty() {
            true => None,
            false => self.link(pieces, &mut restoring),
        };
        let Some((mut told, chains)) = row else {
            self.rank.restoring = Some(restoring);
            return Ok(Row::Alone(plain));
        };
        self.store_chains(&mut told, &chains);
        for told in &told {
            match told.placed {
                Some((place, spot)) => {
                    restoring.places.insert(told.at, place);
                    self.rank.ages.push(spot.hold, spot.block, 1);
                }
                None => drop(restoring.places.remove(&told.at)),
            }
        }
        self.rank.restoring = Some(restoring);
        // No export tells such a row: one by one it is found out what is wrong with it.
        for (piece, _) in pieces.iter().zip(&told).filter(|(_, told)| told.placed.is_none()) {
            self.restore(piece)?;
        }
        Ok(Row::Taken(told.len()))
    }

    /// Whether the rank can store so many blocks of a group the ordinary way.
    fn takes_rows(&mut self, group: Group, blocks: usize) -> bool {
        let rank = &mut *self.rank;
        let fits = rank.scope.is_some()
            && !rank.has_odd
            && self.index.bounds.has_room(rank, blocks)
            && rank.holds.has_room(blocks)
            && rank.admit(group);
        if fits && rank.ordinary == 0 {
            rank.home = group;
        }
        fits && rank.home == group
    }

    /// Puts the pieces together to chains, as many from the front as have a place of their own. `None`: not one, or
    /// something stands where no ordinary block can be put behind it.
    fn link(&mut self, pieces: &[Exported], restoring: &mut Restoring) -> Option<(Vec<Told>, Vec<Chain>)> {
        let (mut told, mut chains): (Vec<Told>, Vec<Chain>) = (Vec::with_capacity(pieces.len()), Vec::new());
        for (i, piece) in pieces.iter().enumerate() {
            let Exported::Block { block, parent, seed, .. } = *piece else { break };
            let before = told.last().map(|told| told.at);
            let start = match parent {
                None => Start::Root,
                Some(_) if parent == before => Start::Behind(i - 1),
                Some(parent) => match restoring.places.get(&parent) {
                    Some((PENDING, behind)) => Start::Behind(*behind as usize),
                    Some((run, block)) if *run != NONE => Start::Place(*run, *block),
                    _ => break,
                },
            };
            let at = PrefixHash::after(parent, block.content);
            match restoring.places.entry(at) {
                Entry::Vacant(new) => drop(new.insert((PENDING, i as u32))),
                Entry::Occupied(_) => break,
            }
            let goes_on = |behind: usize| {
                let chain = told.get(behind)?.chain;
                chains.get(chain).is_some_and(|chain| chain.last == behind && chain.seed == seed).then_some(chain)
            };
            let goes_on = if let Start::Behind(behind) = start { goes_on(behind) } else { None };
            let chain = match goes_on {
                Some(at) => {
                    if let Some(chain) = chains.get_mut(at) {
                        if let Some(last) = told.get_mut(chain.last) {
                            last.next = Some(i);
                        }
                        chain.last = i;
                    }
                    at
                }
                None => {
                    chains.push(Chain { start, parent, seed, first: i, last: i });
                    chains.len() - 1
                }
            };
            told.push(Told { block, at, chain, next: None, placed: None });
        }
        if !told.is_empty() && chains.iter().all(|chain| self.is_ordinary(chain)) {
            return Some((told, chains));
        }
        for told in &told {
            restoring.places.remove(&told.at);
        }
        None
    }

    /// Whether blocks can be stored the ordinary way behind the place that a chain begins behind, which is still there.
    fn is_ordinary(&self, chain: &Chain) -> bool {
        let (Start::Place(run, block), Some(parent)) = (chain.start, chain.parent) else { return true };
        let Some((gate, seat)) = &self.rank.scope else { return false };
        let reading = if self.forest.is_none() { Some(gate.read()) } else { None };
        let Some(forest) = self.forest.as_deref().or(reading.as_deref()) else { return false };
        forest.is_at(run, block, parent)
            && forest.holder(run, *seat).is_some_and(|holder| {
                let end = Spot { hold: holder.hold, block: holder.lead() };
                holder.lead() > block && self.rank.holds.ends_at(end, chain.seed)
            })
    }

    /// Stores the chains. Their ages are left out.
    fn store_chains(&mut self, told: &mut [Told], chains: &[Chain]) {
        let mark = self.rank.ages.close();
        let (mut blocks, mut of): (Vec<Block>, Vec<usize>) = (Vec::new(), Vec::new());
        let mut waited = 0;
        for chain in chains {
            blocks.clear();
            of.clear();
            let mut next = Some(chain.first);
            while let Some((i, told)) = next.and_then(|i| Some((i, told.get(i)?))) {
                blocks.push(told.block);
                of.push(i);
                next = told.next;
            }
            let start = match chain.start {
                Start::Root => None,
                Start::Place(run, block) => Some((run, block)),
                Start::Behind(i) => match told.get(i).and_then(|told| told.placed) {
                    Some((place, _)) => Some(place),
                    None => continue,
                },
            };
            let mut hands = self.hands();
            hands.finish();
            if hands.store_ordinary(start, chain.seed, &blocks).is_none() {
                continue;
            }
            let segments = hands.rank.scratch.iter().flat_map(|scratch| scratch.placed());
            let places = segments.flat_map(|(segment, hold)| {
                (segment.from..segment.to).map(move |block| ((segment.run, block), Spot { hold, block }))
            });
            for (placed, i) in places.zip(&of) {
                if let Some(told) = told.get_mut(*i) {
                    told.placed = Some(placed);
                }
            }
            waited += blocks.len();
            if waited >= AT_ONCE {
                hands.leave();
                waited = 0;
            }
            hands.finish();
            hands.rank.ages.rewind(mark);
        }
    }
}

fn is_plain(piece: &Exported, wanted: Group) -> bool {
    matches!(piece, Exported::Block { tier: Tier::Device, copies: 1, group, .. } if *group == wanted)
}
