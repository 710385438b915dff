//! Random histories, told to the index and to its reference model side by side.

pub mod follow;
mod history;
pub mod replicate;

use std::collections::BTreeMap;
use std::sync::Arc;

use kvtap::block::{Grid, Group};
use kvtap::hash::{ContentHash, EngineHash, PrefixHash, Seed};
use kvtap::index::model::{Model, ModelParent, Path};
use kvtap::index::{Block, Chain, Copies, Exported, Index, IndexError, Limits, Parent, RankMatch, RankWriter};
use kvtap::worker::{RankId, Stamp};

use history::{Op, Pick};
pub use history::{Profile, Step};

const MODELS: [&str; 2] = ["m", "n"];

/// The index and the model, told the same.
pub struct World {
    index: Arc<Index>,
    model: Model,
    ranks: BTreeMap<u8, Life>,
    /// Writers of removed ranks.
    gone: Vec<RankWriter>,
    /// Places that were stored at some time.
    paths: Vec<Path>,
    steps: u64,
    tally: Tally,
}

/// One registration of a rank.
struct Life {
    writer: RankWriter,
    copies: Copies,
    used: Vec<EngineHash>,
    hybrid: bool,
}

/// A difference between the two, in words.
pub type Check<T = ()> = Result<T, String>;

/// What histories came to, so that a test can tell that it tested something.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Answers of more than nothing.
    pub matches: usize,
    /// Of these, of ranks whose groups have a say.
    pub hybrid: usize,
    /// Answers cut by a group of unknown rule.
    pub cut: usize,
    /// Answers of ranks that evicted.
    pub partial: usize,
    pub copies: usize,
    pub moved: usize,
    pub evicted: usize,
    /// Pieces of blocks that were exported and restored.
    pub carried: usize,
    /// Removals of a copy, of the last copy, of nothing.
    pub removed: [usize; 3],
}

macro_rules! same {
    ($index:expr, $model:expr, $($what:tt)*) => {{
        let (index, model) = (&$index, &$model);
        if index != model {
            return Err(format!("{}:\n  index {index:?}\n  model {model:?}", format!($($what)*)));
        }
    }};
}

// === impl World ===

impl World {
    pub fn new(limits: Limits) -> Self {
        Self {
            index: Index::new(limits),
            model: Model::new(limits, 0),
            ranks: BTreeMap::new(),
            gone: Vec::new(),
            paths: Vec::new(),
            steps: 0,
            tally: Tally::default(),
        }
    }

    /// Tells a history and compares every rank's answers after every few steps, and all of them at the end.
    pub fn run(limits: Limits, ranks: u8, every: u64, history: &[Step]) -> Check<Tally> {
        let mut world = Self::new(limits);
        for rank in 0..ranks {
            world.step(&Step::Batch { rank, ops: Vec::new(), commit: true })?;
        }
        for step in history {
            world.step(step)?;
            if world.steps.is_multiple_of(every) {
                world.compare(6)?;
            }
        }
        world.compare(usize::MAX)?;
        Ok(world.tally)
    }

    fn step(&mut self, step: &Step) -> Check {
        self.steps += 1;
        match step {
            Step::Register { rank, model, copies } => {
                self.unregister(*rank);
                let model = MODELS[*model as usize];
                let writer = self.index.register(model, *copies).map_err(|e| e.to_string())?;
                self.model.register(writer.rank(), model, *copies);
                self.ranks.insert(*rank, Life { writer, copies: *copies, used: Vec::new(), hybrid: false });
            }
            Step::Unregister { rank } => self.unregister(*rank),
            Step::Carry { rank } => self.carry(*rank)?,
            Step::Batch { rank, ops, commit } => {
                if !self.ranks.contains_key(rank) {
                    self.step(&Step::Register { rank: *rank, model: 0, copies: Copies::Count })?;
                    self.step(&Step::Batch { rank: *rank, ops: vec![Op::Grid { size: 2 }], commit: true })?;
                }
                let Some(life) = self.ranks.get_mut(rank) else { return Ok(()) };
                let stamp = commit.then_some(self.steps);
                life.apply(*rank, &mut self.model, ops, stamp, &mut self.paths, &mut self.tally)?;
            }
        }
        for writer in &mut self.gone {
            same!(writer.begin().map(drop), Err::<(), _>(IndexError::WorkerGone), "a removed rank's writer");
        }
        Ok(())
    }

    /// The model is not told: nothing may have changed.
    fn carry(&mut self, rank: u8) -> Check {
        let Some(life) = self.ranks.get_mut(&rank) else { return Ok(()) };
        let id = life.writer.rank();
        let (pieces, stamp) = exported(&self.index, id)?;
        self.tally.carried += pieces.iter().filter(|piece| matches!(piece, Exported::Block { .. })).count();

        let fresh = Index::new(Limits { blocks_per_rank: usize::MAX, blocks_in_all: usize::MAX });
        let mut writer = fresh.register(MODELS[0], life.copies).map_err(|e| e.to_string())?;
        restore(&mut writer, &pieces, stamp)?;
        same!(exported(&fresh, writer.rank())?, (pieces.clone(), stamp), "what a fresh index exports of {id:?}");

        let mut tx = life.writer.begin().map_err(|e| e.to_string())?;
        tx.reset();
        drop(tx);
        restore_rows(&mut life.writer, &pieces, stamp)?;
        same!(exported(&self.index, id)?, (pieces, stamp), "what was taken back many at a time");
        Ok(())
    }

    fn unregister(&mut self, rank: u8) {
        let Some(life) = self.ranks.remove(&rank) else { return };
        self.index.remove(life.writer.rank());
        self.model.remove_rank(life.writer.rank());
        if self.gone.len() < 4 {
            self.gone.push(life.writer);
        }
    }

    /// Compares all that can be asked, for some of the chains that were stored and for chains near them.
    fn compare(&mut self, paths: usize) -> Check {
        let mut rng = fastrand::Rng::with_seed(self.steps);
        let ids: Vec<RankId> =
            self.ranks.values().map(|life| life.writer.rank()).chain(self.gone.iter().map(RankWriter::rank)).collect();
        for id in &ids {
            let usage = self.index.usage(*id).map(|mut usage| {
                usage.bytes = 0;
                usage
            });
            same!(usage, self.model.usage(*id), "usage of {id:?}");
        }
        for model in MODELS {
            same!(self.index.grids(model), self.model.grids(model), "grids of {model}");
        }
        for n in 0..paths.min(self.paths.len()) {
            let mut chain = match paths {
                usize::MAX => self.paths[n].clone(),
                _ => self.paths[rng.usize(self.paths.len().saturating_sub(60)..self.paths.len())].clone(),
            };
            match rng.u8(0..5) {
                0 => chain.push(content(rng.u8(0..3), Seed::PLAIN)),
                1 => chain.extend_from_slice(&self.paths[rng.usize(..self.paths.len())]),
                2 => {
                    let i = rng.usize(..chain.len());
                    chain[i] = content(rng.u8(0..3), Seed::PLAIN);
                }
                3 => chain.truncate(rng.usize(..=chain.len())),
                _ => {}
            }
            let some: Vec<RankId> = ids.iter().copied().filter(|_| rng.bool()).collect();
            let (model, size) = (MODELS[usize::from(rng.u8(..8) == 0)], if rng.u8(..6) == 0 { 4 } else { 2 });
            let both = (&*self.index, &self.model);
            let answers = compare_chain(both, model, grid(size), &chain, None)?;
            for answer in answers.iter().chain(&compare_chain(both, model, grid(size), &chain, Some(&some))?) {
                let hybrid = self.ranks.values().any(|life| life.hybrid && life.writer.rank() == answer.rank);
                self.tally.matches += usize::from(answer.blocks > 0);
                self.tally.hybrid += usize::from(answer.blocks > 0 && hybrid);
                self.tally.cut += usize::from(answer.cut_by_unknown_group);
                self.tally.partial += usize::from(answer.partial);
            }
        }
        Ok(())
    }
}

fn exported(index: &Index, rank: RankId) -> Check<(Vec<Exported>, Stamp)> {
    let mut pieces = Vec::new();
    let stamp = index.export(rank, &mut |piece| pieces.push(piece));
    Ok((pieces, stamp.ok_or("the rank was removed")?))
}

fn restore(writer: &mut RankWriter, pieces: &[Exported], stamp: Stamp) -> Check {
    // A large rank comes back in many transactions, of which only the last is committed.
    for some in pieces.chunks(1 + pieces.len() % 4) {
        let mut tx = writer.begin().map_err(|e| e.to_string())?;
        for piece in some {
            tx.restore(piece).map_err(|error| format!("{piece:?}: {error}"))?;
        }
    }
    writer.begin().map_err(|e| e.to_string())?.commit(stamp);
    Ok(())
}

/// The same, many pieces at a time.
fn restore_rows(writer: &mut RankWriter, pieces: &[Exported], stamp: Stamp) -> Check {
    for some in pieces.chunks(if pieces.len().is_multiple_of(2) { 20 } else { usize::MAX }) {
        let mut tx = writer.begin().map_err(|e| e.to_string())?;
        tx.restore_all(some).map_err(|error| format!("{some:?}: {error}"))?;
    }
    writer.begin().map_err(|e| e.to_string())?.commit(stamp);
    Ok(())
}

fn compare_chain(
    (index, model): (&Index, &Model),
    name: &str,
    grid: Grid,
    contents: &[ContentHash],
    listed: Option<&[RankId]>,
) -> Check<Vec<RankMatch>> {
    let prefixes = PrefixHash::chain(contents);
    let mut answers: Vec<RankMatch> = Vec::new();
    for chain in [Chain::Content(contents), Chain::Prefix(&prefixes)] {
        index.match_chain(name, grid, chain, listed, &mut answers);
        answers.sort_by_key(|answer| answer.rank);
        same!(answers, model.match_chain(name, grid, chain, listed), "{chain:?} of {name} on {grid} among {listed:?}");
    }
    Ok(answers)
}

/// Plays each history on a rank and a thread of its own, over one index. Nobody else changes a rank, so each thread
/// compares its rank with a model of its own as it goes.
pub fn run_together(histories: &[Vec<Step>]) -> Check {
    let limits = Limits { blocks_per_rank: usize::MAX, blocks_in_all: usize::MAX };
    let index = Index::new(limits);
    let play = |n: u8, history: &[Step]| -> Check {
        let writer = index.register(MODELS[0], Copies::Count).map_err(|e| e.to_string())?;
        let id = writer.rank();
        let mut model = Model::new(limits, 0);
        model.register(id, MODELS[0], Copies::Count);
        let mut life = Life { writer, copies: Copies::Count, used: Vec::new(), hybrid: false };
        let (mut paths, mut tally) = (Vec::new(), Tally::default());
        life.apply(n, &mut model, &[Op::Grid { size: 2 }], None, &mut paths, &mut tally)?;
        for (step, sequence) in history.iter().zip(1..) {
            let Step::Batch { ops, commit, .. } = step else { continue };
            life.apply(n, &mut model, ops, commit.then_some(sequence), &mut paths, &mut tally)?;
            if let Some(path) = paths.last() {
                compare_chain((&index, &model), MODELS[0], grid(2), path, Some(&[id]))?;
            }
        }
        for path in &paths {
            compare_chain((&index, &model), MODELS[0], grid(2), path, Some(&[id]))?;
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let playing: Vec<_> =
            (0u8..).zip(histories).map(|(n, history)| scope.spawn(move || play(n, history))).collect();
        playing.into_iter().try_for_each(|thread| thread.join().map_err(|_| "a thread failed".to_owned())?)
    })
}

// === impl Life ===

impl Life {
    fn apply(
        &mut self,
        rank: u8,
        model: &mut Model,
        ops: &[Op],
        commit: Option<u64>,
        paths: &mut Vec<Path>,
        tally: &mut Tally,
    ) -> Check {
        let id = self.writer.rank();
        let mut tx = self.writer.begin().map_err(|e| e.to_string())?;
        let names = |used: &[EngineHash], picks: &[Pick]| picks.iter().map(|p| p.name(used)).collect::<Vec<_>>();
        for op in ops {
            match op {
                Op::Grid { size } => {
                    same!(tx.set_grid(grid(*size)), model.set_grid(id, grid(*size)), "set_grid");
                }
                Op::Note { group, rule, size } => {
                    self.hybrid = true;
                    tx.note_group(Group(u32::from(*group)), *rule, u32::from(*size));
                    gone(model.note_group(id, Group(u32::from(*group)), *rule, u32::from(*size)))?;
                }
                Op::Store { under, salted, contents, naming, tier, group, hold } => {
                    let group = Group(u32::from(*group));
                    let seed = if *salted { Seed::new(None, Some("salt")) } else { Seed::PLAIN };
                    let (parent, model_parent, mut path) = match under {
                        None => (Parent::Root(seed), ModelParent::Root(seed), Path::new()),
                        Some(pick) => {
                            let hash = pick.name(&self.used);
                            let (found, known) = (tx.find(hash), model.find(id, hash));
                            same!(found.map(|f| f.seed), known.as_ref().map(|p| p.seed), "find {hash:?}");
                            // An unknown parent: the index would not be told.
                            let (Some(found), Some(known)) = (found, known) else { continue };
                            let path = known.path.clone();
                            if path.len() > 9 {
                                continue;
                            }
                            (Parent::Under(found.place), ModelParent::Under(known), path)
                        }
                    };
                    let seed = match &model_parent {
                        ModelParent::Root(seed) => *seed,
                        ModelParent::Under(place) => place.seed,
                    };
                    let mut run = Vec::new();
                    for (i, c) in contents.iter().enumerate() {
                        let content = content(*c, seed);
                        path.push(content);
                        let engine = naming.name(rank, i as u8, &path);
                        self.used.push(engine);
                        run.push(Block { engine, content });
                    }
                    let outcome = tx.store(parent, *tier, group, &run);
                    let expected = gone(model.store(id, &model_parent, *tier, group, &run))?;
                    same!(outcome, expected, "store");
                    tally.copies += outcome.copies;
                    tally.moved += outcome.moved;
                    tally.evicted += outcome.evicted;
                    let held: Vec<EngineHash> = (0u8..)
                        .zip(&run)
                        .filter(|(i, _)| hold >> (i % 8) & 1 == 1)
                        .map(|(_, block)| block.engine)
                        .collect();
                    for group in [Group(1), Group(2)] {
                        if !held.is_empty() {
                            tx.hold(*tier, group, &held);
                            gone(model.hold(id, *tier, group, &held))?;
                        }
                    }
                    paths.push(path);
                }
                Op::Known { tier, group, picks } => {
                    let (group, names) = (Group(u32::from(*group)), names(&self.used, picks));
                    let unknown = tx.store_known(*tier, group, &names);
                    same!(unknown, gone(model.store_known(id, *tier, group, &names))?, "store_known {names:?}");
                }
                Op::Hold { tier, group, picks } => {
                    let (group, names) = (Group(u32::from(*group)), names(&self.used, picks));
                    tx.hold(*tier, group, &names);
                    gone(model.hold(id, *tier, group, &names))?;
                }
                Op::Remove { tier, group, picks } => {
                    let (group, names) = (Group(u32::from(*group)), names(&self.used, picks));
                    let outcome = tx.remove(*tier, group, &names);
                    same!(outcome, gone(model.remove(id, *tier, group, &names))?, "remove {names:?}");
                    let removed = [outcome.copies, outcome.removed, outcome.unknown];
                    tally.removed.iter_mut().zip(removed).for_each(|(all, more)| *all += more);
                }
                Op::Clear => {
                    tx.clear();
                    gone(model.clear(id))?;
                }
                Op::Reset => {
                    tx.reset();
                    gone(model.reset(id))?;
                }
            }
        }
        if let Some(sequence) = commit {
            let stamp = Stamp { epoch: 1, sequence: Some(sequence) };
            tx.commit(stamp);
            gone(model.commit(id, stamp))?;
        }
        Ok(())
    }
}

fn gone<T>(result: Result<T, IndexError>) -> Result<T, String> {
    result.map_err(|error| format!("the model refuses: {error}"))
}

pub fn content(c: u8, seed: Seed) -> ContentHash {
    ContentHash::of_tokens(&[c, 0, 0, 0], seed)
}

pub fn grid(size: u8) -> Grid {
    Grid::new(u64::from(size)).expect("a small block size is valid")
}
