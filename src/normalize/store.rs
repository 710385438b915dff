//! The way of a store with content: from an event to a run of hashed blocks in its place.

use std::borrow::Cow;

use crate::block::extra_keys::Item;
use crate::block::{Grid, Group, Tier};
use crate::hash::{ContentHash, EngineHash, Seed};
use crate::index::{Block, IndexError, Parent, Tx};
use crate::wire::{Batch, Stored};

use super::keys;
use super::naming::{Naming, Suspicion, is_python_tuple_hash, is_root};
use super::orphans::Orphan;
use super::reason::Reason;
use super::worker::Reader;

/// A dense run of blocks, not hashed yet. Borrowed from a batch, or owned by an orphan.
#[derive(Debug)]
pub(super) struct Run<'a> {
    parent: Option<EngineHash>,
    hashes: Cow<'a, [EngineHash]>,
    tokens: Cow<'a, [u8]>,
    contents: Cow<'a, [ContentHash]>,
    keys: Cow<'a, [Vec<Item>]>,
    lora: Option<Cow<'a, str>>,
    salt: Option<Cow<'a, str>>,
    grid: Grid,
    tier: Tier,
    group: Group,
}

// === impl Run ===

impl<'a> Run<'a> {
    /// Reads a store of a prefix group; `None`, counted, where it is not a dense run on a valid grid.
    pub(super) fn read(
        reader: &mut Reader,
        batch: &'a Batch,
        stored: &Stored,
        tier: Tier,
        group: Group,
    ) -> Option<Self> {
        let hashes = batch.hashes(stored.hashes);
        let tokens = batch.tokens(stored.tokens);
        let contents = batch.contents(stored.contents);
        let promised = reader.options.block_size.map(u64::from);
        let blocks = hashes.len().max(1) as u64;
        let size = match (contents.is_empty(), stored.block_size, promised.or(reader.grid.map(|g| g.size().into()))) {
            (true, size, _) => size,
            (false, 0, Some(known)) => known,
            (false, 0, None) => {
                reader.drop_blocks(Reason::NoBlockSize, blocks);
                return None;
            }
            (false, size, _) => size,
        };
        let Ok(grid) = Grid::with_lookahead(size, stored.lookahead.into()) else {
            reader.drop_blocks(Reason::BadBlockSize, blocks);
            return None;
        };
        let dense = match contents.is_empty() {
            true => tokens.len() / 4 == hashes.len() * grid.size() as usize + grid.lookahead as usize,
            false => contents.len() == hashes.len(),
        };
        if hashes.is_empty() || !dense {
            reader.drop_blocks(Reason::NotDense, blocks);
            return None;
        }
        Some(Self {
            parent: stored.parent,
            hashes: Cow::Borrowed(hashes),
            tokens: Cow::Borrowed(tokens),
            contents: Cow::Borrowed(contents),
            keys: Cow::Borrowed(batch.extra_keys(stored.extra_keys)),
            lora: lora(batch, stored),
            salt: stored.cache_salt.map(|salt| batch.text(salt)).filter(|salt| !salt.is_empty()).map(Cow::Borrowed),
            grid,
            tier,
            group,
        })
    }

    fn from_orphan(orphan: Orphan) -> (Run<'static>, Vec<EngineHash>) {
        let run = Run {
            parent: Some(orphan.parent),
            hashes: Cow::Owned(orphan.hashes),
            tokens: Cow::Owned(orphan.tokens),
            contents: Cow::Owned(orphan.contents),
            keys: Cow::Owned(orphan.keys),
            lora: orphan.lora.map(Cow::Owned),
            salt: None,
            grid: orphan.grid,
            tier: orphan.tier,
            group: orphan.group,
        };
        (run, orphan.removed)
    }

    /// The first blocks of an orphan, at most so many.
    pub(super) fn beginning(orphan: &'a Orphan, blocks: usize) -> Self {
        Self {
            parent: Some(orphan.parent),
            hashes: Cow::Borrowed(orphan.hashes.get(..blocks).unwrap_or(&orphan.hashes)),
            tokens: Cow::Borrowed(&orphan.tokens),
            contents: Cow::Borrowed(&orphan.contents),
            keys: Cow::Borrowed(&orphan.keys),
            lora: orphan.lora.as_deref().map(Cow::Borrowed),
            salt: None,
            grid: orphan.grid,
            tier: orphan.tier,
            group: orphan.group,
        }
    }

    fn into_orphan(self, parent: EngineHash) -> Orphan {
        Orphan {
            parent,
            hashes: self.hashes.into_owned(),
            tokens: self.tokens.into_owned(),
            contents: self.contents.into_owned(),
            keys: self.keys.into_owned(),
            lora: self.lora.map(Cow::into_owned),
            grid: self.grid,
            tier: self.tier,
            group: self.group,
            removed: Vec::new(),
        }
    }

    /// Where the salt stands among the first block's extra keys: only a prompt's first block carries one.
    fn salt_position(&self) -> Option<usize> {
        match self.parent {
            Some(parent) if !is_root(parent) => None,
            _ => keys::salt_position(&self.keys, self.lora.as_deref(), self.salt.as_deref()),
        }
    }

    /// The seed of a prompt that begins with this run.
    fn root_seed(&self) -> Seed {
        let in_keys = self.salt_position().and_then(|i| match self.keys.first()?.get(i)? {
            Item::Text(salt) => Some(salt.as_str()),
            _ => None,
        });
        Seed::new(self.lora.as_deref(), self.salt.as_deref().or(in_keys))
    }

    /// Hashes every block under `seed` into `out`.
    pub(super) fn hash(&self, seed: Seed, out: &mut Vec<Block>) {
        out.clear();
        if !self.contents.is_empty() {
            out.extend(self.hashes.iter().zip(&*self.contents).map(|(e, c)| Block { engine: *e, content: *c }));
            return;
        }
        let stride = self.grid.size() as usize * 4;
        let width = stride + self.grid.lookahead as usize * 4;
        let salt = self.salt_position();
        let mut extra = Vec::new();
        for (i, engine) in self.hashes.iter().enumerate() {
            let Some(tokens) = self.tokens.get(i * stride..i * stride + width) else { return };
            extra.clear();
            if let Some(items) = self.keys.get(i).filter(|items| !items.is_empty()) {
                keys::canonical(items, self.lora.as_deref(), salt.filter(|_| i == 0), &mut extra);
            }
            let content = ContentHash::of_tokens_and_keys(tokens, &extra, seed);
            out.push(Block { engine: *engine, content });
        }
    }
}

/// The adapter's name; its number, in decimal, only where an engine gives no name.
fn lora<'a>(batch: &'a Batch, stored: &Stored) -> Option<Cow<'a, str>> {
    // An empty name is none: it would put every adapter of such an engine into one namespace.
    let name = stored.lora_name.map(|name| batch.text(name)).filter(|name| !name.is_empty());
    match (name, stored.lora_id) {
        (Some(name), _) => Some(Cow::Borrowed(name)),
        (None, Some(id)) => Some(Cow::Owned(id.to_string())),
        (None, None) => None,
    }
}

// === impl Reader ===

impl Reader {
    /// Puts a run in its place, and after it whatever was waiting for its blocks.
    pub(super) fn place(&mut self, tx: &mut Tx<'_>, run: Run<'_>) {
        self.learn_naming(&run);
        let last = run.hashes.last().copied();
        let mut ready = self.place_one(tx, run);
        self.announced = last.or(self.announced);
        // A work list, not recursion: a chain of orphans may be as long as the waiting room.
        while let Some(parent) = ready.pop() {
            for orphan in self.orphans.take_children(parent) {
                let (tier, group) = (orphan.tier, orphan.group);
                let (run, removed) = Run::from_orphan(orphan);
                ready.extend(self.place_one(tx, run));
                let unknown = tx.remove(tier, group, &removed).unknown;
                self.drop_blocks(Reason::UnknownBlock, unknown as u64);
            }
        }
    }

    /// Places one run; returns the names under which others may be waiting.
    fn place_one(&mut self, tx: &mut Tx<'_>, run: Run<'_>) -> Vec<EngineHash> {
        if let Err(have) = self.accept_grid(tx, run.grid, run.tier) {
            let partial = self.grid == Some(have)
                && self.seen_on_device
                && run.grid.lookahead == have.lookahead
                && run.grid.size() < have.size()
                && run.hashes.len() == 1;
            // What another cache keeps beside the engine (LMCache's chunks) has a size of its own.
            if !partial && run.tier == Tier::Device {
                self.conflict = Some((have, run.grid));
            }
            self.refuse(&run, if partial { Reason::PartialBlock } else { Reason::BlockSizeConflict });
            return Vec::new();
        }
        let (parent, seed) = match run.parent {
            parent if parent.map_or_else(|| self.believes_root(), is_root) => {
                let seed = run.root_seed();
                (Parent::Root(seed), seed)
            }
            None => {
                self.refuse(&run, Reason::Unrooted);
                return Vec::new();
            }
            Some(hash) if run.hashes.contains(&hash) => {
                self.refuse(&run, Reason::OwnParent);
                return Vec::new();
            }
            Some(hash) => match (tx.find(hash), &self.naming) {
                (Some(found), Naming::Unchained(suspicion)) if found.ambiguous || !suspicion.believes_parent(hash) => {
                    self.refuse(&run, Reason::Unrooted);
                    return Vec::new();
                }
                (None, Naming::Unchained(_)) => {
                    self.refuse(&run, Reason::Unrooted);
                    return Vec::new();
                }
                (Some(found), _) => (Parent::Under(found.place), found.seed),
                (None, _) => {
                    let gone = self.orphans.park(run.into_orphan(hash));
                    self.drop_blocks(Reason::OrphanEvicted, gone);
                    return Vec::new();
                }
            },
        };
        let mut scratch = std::mem::take(&mut self.blocks);
        run.hash(seed, &mut scratch);
        let outcome = tx.store(parent, run.tier, run.group, &scratch);
        self.blocks = scratch;
        self.drop_blocks(Reason::Evicted, outcome.evicted as u64);
        match self.orphans.is_empty() {
            true => Vec::new(),
            false => run.hashes.into_owned(),
        }
    }

    /// Counts a run that is not placed, and doubts its names where they are not chained.
    fn refuse(&mut self, run: &Run<'_>, reason: Reason) {
        self.drop_blocks(reason, run.hashes.len() as u64);
        if let Naming::Unchained(suspicion) = &mut self.naming {
            suspicion.doubt(&run.hashes);
        }
    }

    /// Fixes or checks the grid of the rank's prefix blocks, as a store on `tier` shows it. `Err` is the grid in force.
    fn accept_grid(&mut self, tx: &mut Tx<'_>, grid: Grid, tier: Tier) -> Result<(), Grid> {
        let on_device = tier == Tier::Device;
        if self.grid == Some(grid) {
            self.seen_on_device |= on_device;
            return Ok(());
        }
        if let Some(promised) = self.options.block_size
            && promised != grid.size()
        {
            return Err(Grid::with_lookahead(promised.into(), grid.lookahead.into()).unwrap_or(grid));
        }
        match self.grid {
            // Not even where nothing is held: the device's blocks come back on their own grid.
            Some(have) if self.seen_on_device && !on_device => return Err(have),
            Some(_) if on_device && !self.seen_on_device => {
                // Elsewhere blocks were cut in another way: whatever they are, they are not the engine's.
                self.let_go(tx, Reason::BlockSizeConflict);
            }
            // What was taken for blocks were partial ones.
            Some(have) if self.tentative && have.size() < grid.size() => self.let_go(tx, Reason::PartialBlock),
            _ => {}
        }
        match tx.set_grid(grid) {
            Ok(()) => {
                self.grid = Some(grid);
                self.seen_on_device = on_device;
                Ok(())
            }
            Err(IndexError::GridConflict { have, .. }) => Err(have),
            Err(IndexError::WorkerGone | IndexError::NotAnExport | IndexError::TooManyRanks { .. }) => {
                Err(self.grid.unwrap_or(grid))
            }
        }
    }

    /// Drops all that is held and all that waits, for it lies on a grid that is not the engine's: one drop for the former,
    /// whose blocks are not counted, and one for each block that waits.
    fn let_go(&mut self, tx: &mut Tx<'_>, reason: Reason) {
        let waiting = self.orphans.waiting();
        tx.clear();
        self.forget_blocks();
        self.drop_blocks(reason, 1 + waiting);
    }

    fn learn_naming(&mut self, run: &Run<'_>) {
        match &mut self.naming {
            Naming::Chained => {}
            Naming::Unchained(suspicion) => suspicion.learn(run.parent, self.announced),
            naming @ Naming::Unknown => {
                let first = run.hashes.first().zip(run.tokens.get(..run.grid.size() as usize * 4));
                let by_tokens = run.grid.lookahead == 0
                    && first.is_some_and(|(name, tokens)| !name.is_wide() && is_python_tuple_hash(name.low(), tokens));
                *naming = match by_tokens || run.parent.is_some_and(is_root) {
                    true => Naming::Unchained(Suspicion::default()),
                    false => Naming::Chained,
                };
            }
        }
    }

    fn believes_root(&self) -> bool {
        match &self.naming {
            Naming::Unknown | Naming::Chained => true,
            Naming::Unchained(suspicion) => suspicion.believes_root(self.cleared && self.announced.is_none()),
        }
    }
}
