//! Random histories, told to the index and to its reference model side by side.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvtap::block::{Grid, Group, GroupRule, Tier};
use kvtap::hash::{ContentHash, EngineHash, PrefixHash, Seed};
use kvtap::index::model::{Model, ModelParent, Path};
use kvtap::index::{Block, Chain, Copies, Index, IndexError, Limits, Parent, RankMatch, RankWriter};
use kvtap::worker::{RankId, Stamp};
use proptest::prelude::*;

/// One step of a history.
#[derive(Clone, Debug)]
pub enum Step {
    /// A rank comes, or comes again: then its former life is removed first.
    Register { rank: u8, model: u8, copies: Copies },
    /// A rank goes; its writer is kept and tried again later.
    Unregister { rank: u8 },
    /// One transaction, of a rank that comes for it if need be. Without a commit its stamp is not published.
    Batch { rank: u8, ops: Vec<Op>, commit: bool },
}

/// One verb of a transaction.
#[derive(Clone, Debug)]
pub enum Op {
    Grid { size: u8 },
    Note { group: u8, rule: GroupRule, size: u8 },
    Store { under: Option<Pick>, salted: bool, contents: Vec<u8>, naming: Naming, tier: Tier, group: u8, hold: u8 },
    Known { tier: Tier, group: u8, picks: Vec<Pick> },
    Hold { tier: Tier, group: u8, picks: Vec<Pick> },
    Remove { tier: Tier, group: u8, picks: Vec<Pick> },
    Clear,
}

/// One of the names that a rank's history has used, counted from the latest; or its digest form; or a stranger.
#[derive(Clone, Copy, Debug)]
pub struct Pick {
    back: u8,
    form: Form,
}

#[derive(Clone, Copy, Debug)]
pub enum Form {
    AsUsed,
    Wide,
    Stranger,
}

/// How an engine names its blocks.
#[derive(Clone, Copy, Debug)]
pub enum Naming {
    /// By everything before: the usual way.
    Chained,
    /// The same, as digests whose integer forms are the usual names.
    Wide,
    /// By content alone: one name, several places.
    Unchained,
    /// By a number out of a few: names come again for other content.
    Reused(u8),
}

/// What a history is about: weights of its verbs.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    pub ranks: u8,
    /// How often groups are noted, of 10.
    pub notes: u32,
    /// How often blocks are named otherwise than by chain, of 10.
    pub odd_names: u32,
    pub steps: (usize, usize),
}

const MODELS: [&str; 2] = ["m", "n"];

// === impl Profile ===

impl Profile {
    pub fn history(self) -> impl Strategy<Value = Vec<Step>> {
        prop::collection::vec(self.step(), self.steps.0..=self.steps.1)
    }

    fn step(self) -> impl Strategy<Value = Step> {
        let rank = 0..self.ranks;
        let copies = prop_oneof![3 => Just(Copies::Count), 1 => Just(Copies::Set)];
        prop_oneof![
            1 => (rank.clone(), prop_oneof![5 => Just(0u8), 1 => Just(1)], copies)
                .prop_map(|(rank, model, copies)| Step::Register { rank, model, copies }),
            1 => rank.clone().prop_map(|rank| Step::Unregister { rank }),
            60 => (rank, prop::collection::vec(self.op(), 1..5), prop::bool::weighted(0.9))
                .prop_map(|(rank, ops, commit)| Step::Batch { rank, ops, commit }),
        ]
    }

    fn op(self) -> impl Strategy<Value = Op> {
        let names = || (tier(), group(), prop::collection::vec(pick(), 1..5));
        let naming = prop_oneof![
            20 => Just(Naming::Chained),
            2 + self.odd_names => Just(Naming::Wide),
            self.odd_names * 2 => Just(Naming::Unchained),
            self.odd_names * 2 => (0..6u8).prop_map(Naming::Reused),
        ];
        let contents = prop::collection::vec(0..3u8, 1..5);
        let hold =
            if self.notes > 0 { prop_oneof![Just(0u8), Just(0xff), any::<u8>()].boxed() } else { Just(0).boxed() };
        let store =
            (prop::option::weighted(0.6, pick()), prop::bool::weighted(0.1), contents, naming, tier(), group(), hold);
        prop_oneof![
            1 => prop_oneof![6 => Just(2u8), 1 => Just(4)].prop_map(|size| Op::Grid { size }),
            1 + self.notes => (prop_oneof![1 => Just(0u8), 6 => Just(1), 2 => Just(2)], rule(), 1..7u8)
                .prop_map(move |(group, rule, size)| match self.notes {
                    0 => Op::Grid { size: 2 },
                    _ => Op::Note { group, rule, size },
                }),
            25 => store.prop_map(|(under, salted, contents, naming, tier, group, hold)| {
                Op::Store { under, salted, contents, naming, tier, group, hold }
            }),
            4 => names().prop_map(|(tier, group, picks)| Op::Known { tier, group, picks }),
            1 + self.notes => names().prop_map(|(tier, group, picks)| Op::Hold { tier, group, picks }),
            10 => names().prop_map(|(tier, group, picks)| Op::Remove { tier, group, picks }),
            8 => prop::collection::vec(pick(), 1..5)
                .prop_map(|picks| Op::Remove { tier: Tier::Device, group: 0, picks }),
            1 => prop_oneof![1 => Just(Op::Clear), 2 => Just(Op::Grid { size: 2 })],
        ]
    }
}

fn tier() -> impl Strategy<Value = Tier> {
    prop_oneof![8 => Just(Tier::Device), 3 => Just(Tier::Host), 1 => Just(Tier::Disk), 1 => Just(Tier::Other(1))]
}

fn group() -> impl Strategy<Value = u8> {
    prop_oneof![10 => Just(0u8), 3 => Just(1), 1 => Just(2)]
}

fn pick() -> impl Strategy<Value = Pick> {
    let form = prop_oneof![12 => Just(Form::AsUsed), 2 => Just(Form::Wide), 1 => Just(Form::Stranger)];
    (0..24u8, form).prop_map(|(back, form)| Pick { back, form })
}

fn rule() -> impl Strategy<Value = GroupRule> {
    prop_oneof![
        1 => Just(GroupRule::Full),
        1 => Just(GroupRule::Unknown),
        6 => (0..14u32).prop_map(|tokens| GroupRule::Window { tokens }),
    ]
}

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
                self.ranks.insert(*rank, Life { writer, used: Vec::new(), hybrid: false });
            }
            Step::Unregister { rank } => self.unregister(*rank),
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
        let mut life = Life { writer, used: Vec::new(), hybrid: false };
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
                    if !held.is_empty() {
                        tx.hold(*tier, Group(1), &held);
                        gone(model.hold(id, *tier, Group(1), &held))?;
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

// === impl Pick ===

impl Pick {
    fn name(self, used: &[EngineHash]) -> EngineHash {
        let back = usize::from(self.back).min(used.len().saturating_sub(1));
        let name = used.len().checked_sub(back + 1).and_then(|i| used.get(i)).copied();
        match (name, self.form) {
            (None, _) | (_, Form::Stranger) => EngineHash::from_u64(0xdead_0000 + u64::from(self.back)),
            (Some(name), Form::AsUsed) => name,
            (Some(name), Form::Wide) => widen(name.low()),
        }
    }
}

// === impl Naming ===

impl Naming {
    fn name(self, rank: u8, i: u8, path: &Path) -> EngineHash {
        let last = path.last().expect("a block has a content");
        let chained = PrefixHash::chain(path).last().expect("a block has a prefix").0;
        // Even ranks share their engine's names, as ranks of one engine do; odd ones have their own.
        let own = if rank.is_multiple_of(2) { 0x5555 } else { u64::from(rank) << 32 };
        match self {
            Self::Chained => EngineHash::from_u64(chained ^ own),
            Self::Wide => widen(chained ^ own),
            Self::Unchained => EngineHash::from_u64(last.0 ^ own ^ 0xffff_0000),
            Self::Reused(n) => EngineHash::from_u64(u64::from((n + i) % 6)),
        }
    }
}

/// A digest whose integer form is `low`.
pub fn widen(low: u64) -> EngineHash {
    let mut digest = [7; 32];
    digest[24..].copy_from_slice(&low.to_be_bytes());
    EngineHash::from_bytes(&digest)
}

pub fn content(c: u8, seed: Seed) -> ContentHash {
    ContentHash::of_tokens(&[c, 0, 0, 0], seed)
}

pub fn grid(size: u8) -> Grid {
    Grid::new(u64::from(size)).expect("a small block size is valid")
}
