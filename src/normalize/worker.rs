//! The normalizer of one rank: one batch, one transaction.

use std::collections::BTreeMap;

use crate::block::{Grid, Group, GroupRule, Tier};
use crate::hash::EngineHash;
use crate::index::{Block, Exported, IndexError, RankWriter, Tx};
use crate::wire::{Batch, Event, Medium, Removed, Stored};
use crate::worker::{RankId, Stamp};

use super::groups::{Groups, Media};
use super::memory::Memory;
use super::naming::Naming;
use super::orphans::{OrphanLimits, Orphans};
use super::reason::Reason;
use super::store::Run;
use super::waiting::WaitingRoom;

/// How one rank's events are to be read.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Options {
    /// The block size the configuration promises, in tokens; learned from events where `None`.
    pub block_size: Option<u32>,
    /// Bounds of the waiting room for stores whose parent is unknown.
    pub orphans: OrphanLimits,
}

/// What applying one batch came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// Events applied.
    pub events: u64,
    /// The batch held a clear: whatever was missing before it no longer matters.
    pub cleared: bool,
    /// The events show that this engine does not name blocks exactly, with the reason in a sentence.
    pub degraded: Option<&'static str>,
    /// See [`Normalizer::conflict`].
    pub conflict: Option<(Grid, Grid)>,
    /// Blocks that wait for their parent after it.
    pub orphans: u64,
}

/// The normalizer of one rank.
#[derive(Debug)]
pub struct Normalizer {
    writer: RankWriter,
    reader: Reader,
}

/// Everything but the writer, so that both can be borrowed at once.
#[derive(Debug)]
pub(super) struct Reader {
    pub(super) options: Options,
    /// The grid of the rank's prefix blocks, once a dense store has shown it.
    pub(super) grid: Option<Grid>,
    /// A store on the device has shown it. What lies elsewhere may be cut into chunks of another size (LMCache's, an
    /// offload store's), so until then it is only what such a store has shown.
    pub(super) seen_on_device: bool,
    pub(super) conflict: Option<(Grid, Grid)>,
    pub(super) groups: Groups,
    pub(super) media: Media,
    pub(super) naming: Naming,
    /// The group whose blocks name content: the first full-attention one that stored.
    pub(super) prefix_group: Option<Group>,
    /// The grid may have been learned from a lone partial block: this engine does not mark them (TensorRT-LLM).
    pub(super) tentative: bool,
    /// The name announced last since the last clear.
    pub(super) announced: Option<EngineHash>,
    /// Whether this epoch has seen a clear.
    pub(super) cleared: bool,
    pub(super) orphans: Orphans,
    pub(super) dropped: BTreeMap<&'static str, u64>,
    pub(super) blocks: Vec<Block>,
}

/// Removals that are made as one. Engines evict block after block and write an event for each; looked up together,
/// their names are waited for together.
#[derive(Debug)]
struct Removals {
    all: Removed,
    /// Where else the blocks may lie, where their engine does not say it.
    or: Option<Medium>,
    /// Events that are in it besides the first.
    more: usize,
}

// === impl Removals ===

impl Removals {
    /// `first` with those of `rest` that go on where it ends.
    fn gather(first: &Removed, rest: &[Event]) -> Self {
        let twin = |of: &Removed, at: usize| match rest.get(at) {
            Some(Event::Removed(next)) if next.is_twin_of(of) => Some(next.medium),
            _ => None,
        };
        if let or @ Some(_) = twin(first, 0) {
            return Self { all: first.clone(), or, more: 1 };
        }
        let mut removals = Self { all: first.clone(), or: None, more: 0 };
        while let Some(Event::Removed(next)) = rest.get(removals.more)
            && let Some(all) = removals.all.joined(next)
            && twin(next, removals.more + 1).is_none()
        {
            removals.all = all;
            removals.more += 1;
        }
        removals
    }
}

// === impl Normalizer ===

impl Normalizer {
    /// A normalizer that writes through `writer`.
    pub fn new(writer: RankWriter, options: Options) -> Self {
        let orphans = Orphans::new(options.orphans);
        Self {
            writer,
            reader: Reader {
                options,
                grid: None,
                seen_on_device: false,
                conflict: None,
                groups: Groups::default(),
                media: Media::default(),
                naming: Naming::default(),
                prefix_group: None,
                tentative: false,
                announced: None,
                cleared: false,
                orphans,
                dropped: BTreeMap::new(),
                blocks: Vec::new(),
            },
        }
    }

    /// The rank.
    pub fn rank(&self) -> RankId {
        self.writer.rank()
    }

    /// Applies one decoded batch as one transaction under `stamp`.
    ///
    /// # Errors
    /// [`IndexError::WorkerGone`] once the rank was removed: nothing was applied.
    pub fn apply(&mut self, batch: &Batch, stamp: Stamp) -> Result<Applied, IndexError> {
        self.apply_after(batch, stamp, |_| ())
    }

    /// [`Normalizer::apply`], and what it comes to is told before any reader can see it. The index may be locked
    /// meanwhile: `before` must not use it, nor wait for whoever does.
    ///
    /// # Errors
    /// Those of [`Normalizer::apply`]; nothing was told.
    pub fn apply_after(
        &mut self,
        batch: &Batch,
        stamp: Stamp,
        before: impl FnOnce(&Applied),
    ) -> Result<Applied, IndexError> {
        let mut tx = self.writer.begin()?;
        let mut applied = Applied::default();
        let mut rest = &batch.events[..];
        while let Some((event, tail)) = rest.split_first() {
            rest = tail;
            applied.events += 1;
            match event {
                Event::Stored(stored) => self.reader.stored(&mut tx, batch, stored),
                Event::Removed(first) => {
                    let removals = Removals::gather(first, rest);
                    // Both of a twin are one event of the engine.
                    applied.events += if removals.or.is_none() { removals.more as u64 } else { 0 };
                    rest = rest.get(removals.more..).unwrap_or_default();
                    self.reader.removed(&mut tx, batch, &removals.all, removals.or);
                }
                Event::Cleared => {
                    tx.clear();
                    self.reader.forget_blocks();
                    self.reader.cleared = true;
                    applied.cleared = true;
                }
            }
        }
        applied.orphans = self.reader.orphans.waiting();
        applied.degraded = self.reader.degraded();
        applied.conflict = self.reader.conflict;
        before(&applied);
        tx.commit(stamp);
        Ok(applied)
    }

    /// Why this engine's events cannot be exact, in a sentence, if they have shown that.
    pub fn degraded(&self) -> Option<&'static str> {
        self.reader.degraded()
    }

    /// What was learned of this engine; `None` while blocks wait for their parents, since they would be lost.
    pub fn memory(&self) -> Option<Memory> {
        self.reader.orphans.is_empty().then(|| self.reader.memory())
    }

    /// Takes back some of what was held. Nothing of it is published under a stamp yet: tell all of it, then
    /// [`Normalizer::restored`].
    ///
    /// # Errors
    /// Those of [`Tx::restore`].
    pub fn restore(&mut self, pieces: &[Exported]) -> Result<(), IndexError> {
        self.writer.begin()?.restore_all(pieces)?;
        // A rank has one grid, so whatever lies on the device has shown it.
        let on_device = |piece: &Exported| matches!(piece, Exported::Block { tier: Tier::Device, .. });
        self.reader.seen_on_device |= pieces.iter().any(on_device);
        Ok(())
    }

    /// Makes room for about so many blocks that are going to be taken back.
    pub fn reserve(&mut self, blocks: usize) {
        self.writer.reserve(blocks);
    }

    /// All that was held is back, as of `stamp`; and this is what was known then.
    ///
    /// # Errors
    /// [`IndexError::WorkerGone`] once the rank was removed.
    pub fn restored(&mut self, memory: &Memory, stamp: Stamp) -> Result<(), IndexError> {
        self.writer.begin()?.commit(stamp);
        self.reader.recall(memory);
        Ok(())
    }

    /// Whether the configuration promises another block size than `grid` has.
    pub fn refuses(&self, grid: Grid) -> bool {
        self.reader.options.block_size.is_some_and(|promised| promised != grid.size())
    }

    /// Forgets all that the rank holds and all that was learned of its engine (a new epoch, a withdrawal), and
    /// commits `stamp`. Counters stay.
    ///
    /// # Errors
    /// [`IndexError::WorkerGone`] once the rank was removed.
    pub fn reset(&mut self, stamp: Stamp) -> Result<(), IndexError> {
        let mut tx = self.writer.begin()?;
        tx.reset();
        tx.commit(stamp);
        let reader = &mut self.reader;
        reader.forget_blocks();
        reader.grid = None;
        reader.seen_on_device = false;
        reader.groups.clear();
        reader.naming = Naming::Unknown;
        reader.prefix_group = None;
        reader.cleared = false;
        Ok(())
    }

    /// Events and blocks that were dropped so far, by [`Reason::word`].
    pub fn dropped(&self) -> &BTreeMap<&'static str, u64> {
        &self.reader.dropped
    }

    /// Blocks parked now because their parent is unknown. While this is not 0 the feed is not live.
    pub fn orphans(&self) -> u64 {
        self.reader.orphans.waiting()
    }

    /// What waits there, for whoever explains what the rank lacks. Good for as long as the normalizer lives.
    pub fn waiting(&self) -> WaitingRoom {
        self.reader.orphans.room().clone()
    }

    /// The last block size that was refused: the one in force, then the one that came.
    pub fn conflict(&self) -> Option<(Grid, Grid)> {
        self.reader.conflict
    }
}

// === impl Reader ===

impl Reader {
    /// Why this engine's events cannot be exact, in a sentence, if they have shown that.
    fn degraded(&self) -> Option<&'static str> {
        match &self.naming {
            Naming::Unchained(_) => Some(
                "the engine names a block by its own tokens alone, so equal blocks of two prompts cannot be told apart",
            ),
            Naming::Unknown | Naming::Chained => None,
        }
    }

    pub(super) fn drop_blocks(&mut self, reason: Reason, n: u64) {
        if n > 0 {
            *self.dropped.entry(reason.word()).or_default() += n;
        }
    }

    pub(super) fn forget_blocks(&mut self) {
        self.orphans.clear();
        self.conflict = None;
        self.announced = None;
        if let Naming::Unchained(suspicion) = &mut self.naming {
            suspicion.clear();
        }
    }

    fn tier(&mut self, batch: &Batch, medium: Medium) -> Option<Tier> {
        match medium {
            Medium::Device => Some(Tier::Device),
            Medium::Host => Some(Tier::Host),
            Medium::Disk => Some(Tier::Disk),
            Medium::External => Some(Tier::External),
            Medium::Other(name) => {
                let tier = self.media.tier(batch.text(name));
                if tier.is_none() {
                    self.drop_blocks(Reason::TooManyMedia, 1);
                }
                tier
            }
        }
    }

    fn stored(&mut self, tx: &mut Tx<'_>, batch: &Batch, stored: &Stored) {
        let Some(tier) = self.tier(batch, stored.medium) else { return };
        let group = Group(stored.group.unwrap_or(0));
        let hashes = batch.hashes(stored.hashes);
        if stored.tokens.is_empty() && stored.contents.is_empty() {
            self.offloaded(tx, tier, group, hashes);
            return;
        }
        let Some(learned) = self.groups.learn(group, stored) else {
            self.drop_blocks(Reason::TooManyGroups, 1);
            return;
        };
        if learned.widened {
            self.start_over(tx);
        }
        // The first full-attention group names content; whatever other groups there are must agree with it.
        if learned.rule != GroupRule::Full || *self.prefix_group.get_or_insert(group) != group {
            if learned.news {
                tx.note_group(group, learned.rule, learned.block_size);
            }
            tx.hold(tier, group, hashes);
            return;
        }
        self.tentative = stored.kind.is_none() && (stored.window.is_some() || batch.has_unmarked_partials);
        if let Some(run) = Run::read(self, batch, stored, tier, group) {
            self.place(tx, run);
        }
    }

    /// A narrower window was taken for full attention until now. What it named proves nothing.
    fn start_over(&mut self, tx: &mut Tx<'_>) {
        tx.reset();
        for (group, rule, block_size) in self.groups.notes() {
            tx.note_group(group, rule, block_size);
        }
        self.drop_blocks(Reason::NarrowWindow, 1);
        self.forget_blocks();
        self.prefix_group = None;
        self.grid = None;
        self.seen_on_device = false;
    }

    /// Offload stores carry names only: each block must be known to the rank already.
    fn offloaded(&mut self, tx: &mut Tx<'_>, tier: Tier, group: Group, hashes: &[EngineHash]) {
        match self.groups.rule(group) {
            None | Some(GroupRule::Full) => {
                let unknown = tx.store_known(tier, group, hashes);
                self.drop_blocks(Reason::UnknownBlock, unknown as u64);
            }
            Some(GroupRule::Window { .. } | GroupRule::Unknown) => tx.hold(tier, group, hashes),
        }
    }

    /// Removes blocks from where an event says, or, where its engine does not say it, from whichever of two media
    /// holds each (`or`).
    fn removed(&mut self, tx: &mut Tx<'_>, batch: &Batch, removed: &Removed, or: Option<Medium>) {
        let Some(tier) = self.tier(batch, removed.medium) else { return };
        let or = or.and_then(|medium| self.tier(batch, medium));
        let group = Group(removed.group.unwrap_or(0));
        let hashes = batch.hashes(removed.hashes);
        if self.orphans.is_empty() && or.is_none() {
            let outcome = tx.remove(tier, group, hashes);
            self.drop_blocks(Reason::UnknownBlock, outcome.unknown as u64);
            return;
        }
        for hash in hashes {
            let held = [Some(tier), or]
                .into_iter()
                .flatten()
                .any(|tier| tx.remove(tier, group, std::slice::from_ref(hash)).unknown == 0);
            if !held {
                let reason = match self.orphans.remove(tier, group, *hash) {
                    true => Reason::OrphanRemoved,
                    false => Reason::UnknownBlock,
                };
                self.drop_blocks(reason, 1);
            }
        }
    }
}
