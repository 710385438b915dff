//! A rank's content out of the index and back in, piece by piece, the oldest block first.
//!
//! The order of ages is the order of an export, so that a bound evicts after a restore what it would have evicted
//! without one. A child may be older than its parent, and a block that is held may have a hole above it: so before a
//! block is told, whatever of the way to it was not told yet is told as passed.
//!
//! An export keeps its rank's writer out, and by that everything the rank holds in its place; the forest it shares
//! with other ranks is left free every few blocks.
//!
//! A restore may take many transactions. In between, other ranks change the forest, and what a bound made this rank
//! forget may end: a place is known by its prefix hash, and looked at again before something is put under it. What is
//! only passed gets its place together with the first block behind it, which keeps it there.

mod rows;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::PoisonError;

use crate::block::{Group, Tier};
use crate::hash::{ContentHash, EngineHash, PrefixHash};
use crate::worker::Stamp;

use super::Tx;
use super::apart::Apart;
use super::copies::Tiers;
use super::door::{Block, Exported, IndexError};
use super::forest::{Forest, NONE};
use super::hold::Spot;
use super::odd::{Key, Odd, OddName};
use super::plan::Plan;
use super::rank::{Cell, Rank};

/// Blocks that are told before the forest is left free for others.
const AT_ONCE: usize = 1024;

/// 2^64 over the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// Tables of hashes and of numbers of runs, of which there are as many as a rank holds.
type Table<K, V> = HashMap<K, V, BuildHasherDefault<Folded>>;

/// Hashes one number that is spread well or counted up, by one multiplication.
#[derive(Default)]
struct Folded(u64);

/// What a restore knows of the pieces it was told. It is dropped when the transaction of the last one commits.
#[derive(Debug, Default)]
pub(super) struct Restoring {
    places: Table<PrefixHash, (u32, u32)>,
    /// Blocks on the way to others that have no place yet: content and parent. A parent is always told first.
    passed: Table<PrefixHash, (ContentHash, Option<PrefixHash>)>,
    /// The block that was restored last, while nobody else can have changed the forest since.
    last: Option<Last>,
    /// A bound has let go of something that was told.
    has_evicted: bool,
    /// Scratch.
    blocks: Vec<Block>,
    plan: Plan,
}

/// A block and its place in the forest.
#[derive(Clone, Copy, Debug)]
struct Last {
    at: PrefixHash,
    content: ContentHash,
    place: (u32, u32),
}

/// An export on its way.
struct Telling<'a> {
    rank: &'a Rank,
    odd: &'a Odd,
    /// How many leading blocks of a run were told. What is above them was told, too.
    told: Table<u32, u32>,
    way: Vec<(u32, u32, u32)>,
    /// The place that was told last, and the prefix hash there: most blocks follow it.
    last: Option<((u32, u32), PrefixHash)>,
    visit: &'a mut dyn FnMut(Exported),
}

/// Something to tell.
enum Aged {
    Ordinary(Spot),
    Odd(Key),
}

/// The way from block 0 to a block that is to be restored.
enum Way {
    /// The lowest place there is, and the blocks between, the first one last.
    From(Option<(u32, u32)>, Vec<(PrefixHash, ContentHash)>),
    /// A bound has let go of a part of it.
    Evicted,
}

// === exporting ===

/// Tells everything that a rank holds. Returns the stamp it is held under.
pub(super) fn export(cell: &Cell, rank: &Rank, visit: &mut dyn FnMut(Exported)) -> Stamp {
    let odd = cell.odd.read().unwrap_or_else(PoisonError::into_inner);
    visit(Exported::Rank {
        grid: rank.grid,
        evicted: rank.evicted,
        partial: rank.partial,
        too_many_groups: odd.too_many_groups,
    });
    for group in &rank.groups {
        let note = odd.notes.get(group).map(|note| (note.rule, note.block_size));
        visit(Exported::Group { group: *group, note });
    }
    let mut telling = Telling { rank, odd: &odd, told: Table::default(), way: Vec::new(), last: None, visit };
    let mut odds = odd.aged().peekable();
    let mut ordinary = rank.ages.standing(&rank.holds).peekable();
    let next = || match (ordinary.peek(), odds.peek()) {
        (Some((moment, _)), Some((odd, _))) if odd > moment => ordinary.next().map(|(_, spot)| Aged::Ordinary(spot)),
        (_, Some(_)) => odds.next().map(|(_, key)| Aged::Odd(key)),
        (_, None) => ordinary.next().map(|(_, spot)| Aged::Ordinary(spot)),
    };
    let mut all = std::iter::from_fn(next).peekable();
    while all.peek().is_some() {
        let forest = rank.scope.as_ref().map(|(gate, _)| gate.read());
        for aged in all.by_ref().take(AT_ONCE) {
            telling.tell(forest.as_deref(), aged);
        }
    }
    rank.stamp
}

// === impl Telling ===

impl Telling<'_> {
    fn tell(&mut self, forest: Option<&Forest>, aged: Aged) {
        match (aged, forest) {
            (Aged::Ordinary(spot), Some(forest)) => {
                let (rank, engine) = (self.rank, self.rank.holds.name_at(spot));
                let hold = rank.holds.get(spot.hold);
                let (block, parent) = self.block(forest, engine, spot);
                let (tier, group) = (Tier::Device, rank.home);
                (self.visit)(Exported::Block { block, parent, seed: hold.seed, tier, group, copies: 1 });
            }
            (Aged::Odd(Key::Name(engine)), Some(forest)) => {
                if let Some(name) = self.odd.names.get(&engine) {
                    self.name(forest, engine, name);
                }
            }
            (Aged::Odd(Key::Other(group, engine)), _) => {
                let piles = self.odd.others.get(&(group, engine)).map(|other| &other.piles);
                for (tier, _, copies) in piles.into_iter().flat_map(|piles| piles.each()) {
                    (self.visit)(Exported::Other { group, engine, tier, copies });
                }
            }
            // Without a grid there are no names of prefix groups.
            (_, None) => {}
        }
    }

    fn name(&mut self, forest: &Forest, engine: EngineHash, name: &OddName) {
        let seed = name.seed;
        // Copies are counted by name, not by place: the first place on a tier tells them.
        let mut told = Tiers::default();
        for (spot, tiers) in name.places.in_order(name.piles.tiers()) {
            let (block, parent) = self.block(forest, engine, spot);
            for (tier, group, copies) in name.piles.each().filter(|(tier, ..)| tiers.has(*tier) && !told.has(*tier)) {
                (self.visit)(Exported::Block { block, parent, seed, tier, group, copies });
            }
            for tier in tiers.iter().filter(|tier| told.has(*tier)) {
                if let Some((_, group, _)) = name.piles.each().find(|(on, ..)| *on == tier) {
                    (self.visit)(Exported::Block { block, parent, seed, tier, group, copies: 0 });
                }
            }
            told = told.and(tiers);
        }
    }

    /// The block at a spot and the one before it. Tells what was not told yet of the way to it.
    fn block(&mut self, forest: &Forest, engine: EngineHash, spot: Spot) -> (Block, Option<PrefixHash>) {
        let run = self.rank.holds.get(spot.hold).run;
        self.pass(forest, run, spot.block);
        let told = self.told.entry(run).or_default();
        *told = (*told).max(spot.block + 1);
        let content = forest.run(run).contents.as_slice()[spot.block as usize];
        let parent = self.before(forest, run, spot.block);
        self.last = Some(((run, spot.block), PrefixHash::after(parent, content)));
        (Block { engine, content }, parent)
    }

    /// The prefix hash of the block before a place. A run has it at hand for one block of many only.
    fn before(&self, forest: &Forest, run: u32, block: u32) -> Option<PrefixHash> {
        let before = forest.before(run, block)?;
        Some(match self.last {
            Some((place, at)) if place == before => at,
            _ => forest.run(before.0).prefix(before.1 as usize),
        })
    }

    fn pass(&mut self, forest: &Forest, mut run: u32, mut block: u32) {
        loop {
            let told = self.told.get(&run).copied().unwrap_or(0);
            if told < block {
                self.way.push((run, told, block));
            }
            match forest.before(run, 0) {
                Some((above, last)) if told == 0 => (run, block) = (above, last + 1),
                _ => break,
            }
        }
        while let Some((run, from, to)) = self.way.pop() {
            for block in from..to {
                let content = forest.run(run).contents.as_slice()[block as usize];
                let parent = self.before(forest, run, block);
                self.last = Some(((run, block), PrefixHash::after(parent, content)));
                (self.visit)(Exported::Passed { content, parent });
            }
            self.told.insert(run, to);
        }
    }
}

// === impl Folded ===

impl Hasher for Folded {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.write_u64(u64::from(number));
    }

    fn write_u64(&mut self, number: u64) {
        // Both halves, for a table looks at the low bits and at the high ones.
        let product = u128::from(self.0 ^ number) * u128::from(GOLDEN);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

// === impl Tx: restoring ===

impl Tx<'_> {
    /// Takes back one piece of an [`Index::export`](super::Index::export). Told all of it in its order, a rank that
    /// holds nothing and has the same [`Copies`](super::Copies) is what the exported one was, but for its stamp, and
    /// for what its bounds do not allow. The pieces may come in several transactions, of which the last one only is
    /// committed.
    ///
    /// # Errors
    /// [`IndexError::NotAnExport`] where no export says that at this point; nothing was changed then.
    pub fn restore(&mut self, piece: &Exported) -> Result<(), IndexError> {
        match *piece {
            Exported::Rank { grid, evicted, partial, too_many_groups } => {
                if self.rank.weight > 0 {
                    return Err(IndexError::NotAnExport);
                }
                if let Some(grid) = grid {
                    self.set_grid(grid)?;
                }
                self.rank.restoring = None;
                (self.rank.evicted, self.rank.partial) = (evicted, partial);
                self.hands().apart(|apart| apart.odd.too_many_groups = too_many_groups);
                Ok(())
            }
            Exported::Group { group, note } => {
                if !self.rank.admit(group) {
                    return Err(IndexError::NotAnExport);
                }
                if let Some((rule, block_size)) = note {
                    self.note_group(group, rule, block_size);
                }
                Ok(())
            }
            Exported::Block { .. } | Exported::Passed { .. } if self.rank.scope.is_none() => {
                Err(IndexError::NotAnExport)
            }
            Exported::Passed { content, parent } => {
                let restoring = self.rank.restoring.get_or_insert_default();
                restoring.pass(content, parent)
            }
            Exported::Block { block, parent, seed, tier, group, copies } => self.restoring(|apart, restoring| {
                let told = apart.told(&block, tier, group);
                if told.is_some_and(|told| !told.alike) {
                    return Err(IndexError::NotAnExport);
                }
                let way = restoring.way(parent, apart.forest.as_deref())?;
                let counted = copies > 0 || told.is_some_and(|told| told.counted);
                if !(counted || restoring.has_evicted) || !apart.rank.admit(group) {
                    return Err(IndexError::NotAnExport);
                }
                let at = PrefixHash::after(parent, block.content);
                let (start, passed) = match way {
                    Way::From(start, passed) if counted => (start, passed),
                    _ => {
                        apart.rank.evicted += 1;
                        apart.rank.partial = true;
                        restoring.evicted(at);
                        return Ok(());
                    }
                };
                let place = apart.locate(start, &passed, (at, block.content), restoring);
                let place = place.ok_or(IndexError::NotAnExport)?;
                for (at, _) in passed {
                    restoring.passed.remove(&at);
                }
                if !restoring.passed.is_empty() {
                    // It may have been passed by an older block, which a bound has let go of since.
                    restoring.passed.remove(&at);
                }
                let evicted = apart.restore_block(&block, place, seed, tier, group, copies);
                restoring.has_evicted |= evicted > 0;
                restoring.last = (evicted == 0).then_some(Last { at, content: block.content, place });
                Ok(())
            }),
            Exported::Other { group, engine, tier, copies } => {
                if copies == 0 || !self.rank.admit(group) {
                    return Err(IndexError::NotAnExport);
                }
                self.restoring(|apart, restoring| {
                    if apart.hold_block(tier, group, engine, copies) > 0 {
                        restoring.has_evicted = true;
                        restoring.last = None;
                    }
                    Ok(())
                })
            }
        }
    }

    fn restoring<T>(&mut self, act: impl FnOnce(&mut Apart<'_>, &mut Restoring) -> T) -> T {
        let mut restoring = self.rank.restoring.take().unwrap_or_default();
        if self.forest.is_none() {
            // Others may have changed it since the last transaction.
            restoring.last = None;
        }
        let done = self.hands().apart(|apart| act(apart, &mut restoring));
        self.rank.restoring = Some(restoring);
        done
    }
}

// === impl Restoring ===

impl Restoring {
    fn pass(&mut self, content: ContentHash, parent: Option<PrefixHash>) -> Result<(), IndexError> {
        let at = PrefixHash::after(parent, content);
        if self.knows(at) || parent.is_some_and(|parent| !self.knows(parent)) {
            return Err(IndexError::NotAnExport);
        }
        self.passed.insert(at, (content, parent));
        Ok(())
    }

    fn knows(&self, at: PrefixHash) -> bool {
        self.places.contains_key(&at) || self.passed.contains_key(&at)
    }

    /// The way down to `parent`.
    fn way(&self, mut parent: Option<PrefixHash>, forest: Option<&Forest>) -> Result<Way, IndexError> {
        if let (Some(at), Some(last), Some(forest)) = (parent, self.last, forest)
            && at == last.at
            && forest.run(last.place.0).contents.get(last.place.1 as usize) == Some(last.content)
        {
            return Ok(Way::From(Some(last.place), Vec::new()));
        }
        let mut between = Vec::new();
        while let Some(at) = parent {
            if let Some((run, block)) = self.places.get(&at) {
                return Ok(match forest {
                    Some(forest) if forest.is_at(*run, *block, at) => Way::From(Some((*run, *block)), between),
                    _ => Way::Evicted,
                });
            }
            // Each was told after its parent and once, so this ends.
            let (content, above) = self.passed.get(&at).ok_or(IndexError::NotAnExport)?;
            between.push((at, *content));
            parent = *above;
        }
        Ok(Way::From(None, between))
    }

    /// Notes a block that was told and has no place.
    fn evicted(&mut self, at: PrefixHash) {
        self.has_evicted = true;
        if !self.knows(at) {
            self.places.insert(at, (NONE, 0));
        }
    }
}

// === impl Apart: restoring ===

/// What a name that is known already says of a piece that tells more of it.
#[derive(Clone, Copy)]
struct Told {
    /// It has the same content.
    alike: bool,
    /// It has copies on that tier in that group.
    counted: bool,
}

impl Apart<'_> {
    fn told(&self, block: &Block, tier: Tier, group: Group) -> Option<Told> {
        if let Some(spot) = self.rank.spot(block.engine) {
            let alike = self.content(spot) == Some(block.content);
            return Some(Told { alike, counted: tier == Tier::Device && group == self.rank.home });
        }
        let name = self.odd.names.get(&block.engine)?;
        Some(Told { alike: name.content == block.content, counted: name.piles.on(tier, group) > 0 })
    }

    /// Finds or makes the places of what is passed, the last first, and of the block behind it, and notes them; the block's.
    fn locate(
        &mut self,
        start: Option<(u32, u32)>,
        passed: &[(PrefixHash, ContentHash)],
        last: (PrefixHash, ContentHash),
        restoring: &mut Restoring,
    ) -> Option<(u32, u32)> {
        let Restoring { places, blocks, plan, .. } = restoring;
        // The forest does not ask for names.
        let nameless = EngineHash::from_u64(0);
        let way = || passed.iter().rev().chain([&last]);
        blocks.clear();
        blocks.extend(way().map(|(_, content)| Block { engine: nameless, content: *content }));
        self.forest.as_deref_mut()?.locate(self.seat, start, blocks, plan);
        let segments = plan.segments.iter();
        let found = segments.flat_map(|segment| (segment.from..segment.to).map(|block| (segment.run, block)));
        let mut place = None;
        for ((at, _), found) in way().zip(found) {
            places.insert(*at, found);
            place = Some(found);
        }
        place
    }
}
