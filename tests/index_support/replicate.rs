//! A history that reaches a replica as messages, over a connection that loses, repeats and breaks.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fastrand::Rng;
use kvtap::index::{Chain, Change, Delta, Heard, Index, Limits, Listener, RankMatch, TapBounds};
use kvtap::proto::v1;
use kvtap::proto::v1::event::Event;
use kvtap::replica::{BatchWriter, News, Replica, ReplicaError, encode};
use kvtap::worker::{Identity, RankId, Stamp};
use prost::Message;

use super::history::Step;
use super::{Check, MODELS, World, grid};

const OPEN: Limits = Limits { blocks_per_rank: usize::MAX, blocks_in_all: usize::MAX };

/// What histories came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Replicated {
    /// Answers of more than nothing that were the same.
    pub matches: usize,
    /// Messages that the replica refused because one before was lost.
    pub refused: usize,
    /// Messages that came twice.
    pub repeated: usize,
    /// How often the watch began anew.
    pub begun: usize,
}

/// The source's side: what it hears, as messages.
struct Source {
    index: Arc<Index>,
    listener: Listener,
    keys: BTreeMap<RankId, v1::RankKey>,
}

impl World {
    /// Tells a history; a replica hears of it in messages, and is compared after every step. `trouble`: how often, of
    /// 100 steps, a message is lost, all of them come twice, and the connection breaks.
    pub fn run_replicated(limits: Limits, ranks: u8, history: &[Step], trouble: [u8; 3]) -> Check<Replicated> {
        let mut world = Self::new(limits);
        let mut tally = Replicated::default();
        let mut replica = Replica::new(Index::new(OPEN));
        let mut source = Source::new(&world.index);
        let mut rng = Rng::with_seed(history.len() as u64);
        let [lose, repeat, cut] = trouble;
        let mut lacking: BTreeSet<String> = BTreeSet::new();
        for rank in 0..ranks {
            world.step(&Step::Batch { rank, ops: Vec::new(), commit: true })?;
        }
        for step in history {
            world.step(step)?;
            let mut messages = source.messages()?;
            if rng.u8(..100) < repeat {
                tally.repeated += messages.len();
                messages.extend(messages.clone().into_iter().filter(|event| matches!(event, Event::Delta(_))));
            }
            if rng.u8(..100) < lose
                && let Some(at) = messages.iter().position(|event| matches!(event, Event::Delta(_)))
                && let Event::Delta(lost) = messages.remove(at)
            {
                lacking.extend(lost.key.map(|key| key.worker));
            }
            let mut is_refused = false;
            for event in messages {
                match replica.apply(round_trip(event)?) {
                    Ok(_) => {}
                    Err(ReplicaError::Fault { worker, .. }) if lacking.contains(&worker) => is_refused = true,
                    Err(error) => return Err(format!("refused: {error}")),
                }
            }
            tally.refused += usize::from(is_refused);
            if is_refused || rng.u8(..100) < cut {
                tally.begun += 1;
                lacking.clear();
                source = Source::new(&world.index);
                source.begin(&mut replica)?;
            }
            world.same(&source, &replica, &lacking, &mut rng, &mut tally)?;
        }
        Ok(tally)
    }

    fn same(
        &self,
        source: &Source,
        replica: &Replica,
        lacking: &BTreeSet<String>,
        rng: &mut Rng,
        tally: &mut Replicated,
    ) -> Check {
        // The same ranks by the same names.
        let mut names: BTreeMap<RankId, &str> = BTreeMap::new();
        for (rank, model) in self.index.ranks() {
            let key = source.keys.get(&rank).ok_or("a rank without a name")?;
            if lacking.contains(&key.worker) {
                continue;
            }
            let mirror = replica.rank(&key.worker, &model, 0).ok_or("a rank without a mirror")?;
            if mirror.at().is_none() {
                return Err("a mirror that is not whole".to_owned());
            }
            names.insert(rank, &key.worker);
            let (held, mirrored) = (self.index.usage(rank), replica.index().usage(mirror.rank()));
            let seen = |usage: Option<kvtap::index::RankUsage>| usage.map(|usage| (usage.stamp, usage.grid));
            if seen(held.clone()) != seen(mirrored.clone()) {
                return Err(format!("usage of {rank:?}:\n  source  {held:?}\n  replica {mirrored:?}"));
            }
        }
        if names.is_empty() && replica.index().ranks().len() > self.index.ranks().len() {
            return Err("a mirror of a rank that is gone".to_owned());
        }
        let mirrors: BTreeMap<RankId, &str> = self
            .index
            .ranks()
            .into_iter()
            .filter_map(|(rank, model)| {
                let worker = *names.get(&rank)?;
                Some((replica.rank(worker, &model, 0)?.rank(), worker))
            })
            .collect();
        for _ in 0..8.min(self.paths.len()) {
            let chain = &self.paths[rng.usize(..self.paths.len())];
            let model = MODELS[usize::from(rng.u8(..8) == 0)];
            let expected = answers(&self.index, model, chain, &names);
            let mirrored = answers(replica.index(), model, chain, &mirrors);
            if expected != mirrored {
                return Err(format!("of {chain:?}:\n  source  {expected:#?}\n  replica {mirrored:#?}"));
            }
            tally.matches += expected.len();
        }
        Ok(())
    }
}

type Answer<'n> = (&'n str, u32, u32, [u32; 8], Stamp, bool, bool);

fn answers<'n>(
    index: &Index,
    model: &str,
    chain: &[kvtap::hash::ContentHash],
    names: &BTreeMap<RankId, &'n str>,
) -> Vec<Answer<'n>> {
    let mut found: Vec<RankMatch> = Vec::new();
    index.match_chain(model, grid(2), Chain::Content(chain), None, &mut found);
    let named = found.iter().filter_map(|held| {
        let name = names.get(&held.rank)?;
        Some((*name, held.blocks, held.device, held.tiers, held.stamp, held.partial, held.cut_by_unknown_group))
    });
    let mut named: Vec<_> = named.collect();
    named.sort_unstable_by_key(|answer| answer.0);
    named
}

/// Through bytes, as over a wire.
fn round_trip(event: Event) -> Check<v1::Event> {
    let bytes = v1::Event { event: Some(event) }.encode_to_vec();
    v1::Event::decode(&*bytes).map_err(|error| error.to_string())
}

/// A batch that is written without messages has the bytes of the message.
fn same_bytes(delta: &Delta) -> Check {
    let deltas = encode::bare(delta);
    let mut batch = BatchWriter::new(9);
    match &deltas[..] {
        [_] => batch.add(delta),
        pieces => pieces.iter().for_each(|piece| batch.add_piece(piece)),
    }
    let (number, continues) = (delta.number, delta.number.is_multiple_of(2));
    let message = v1::RelayBatch { life: 9, deltas, number, continues };
    match batch.finish(number, continues) == message.encode_to_vec() {
        true => Ok(()),
        false => Err(format!("other bytes than those of {message:?}")),
    }
}

// === impl Source ===

impl Source {
    fn new(index: &Arc<Index>) -> Self {
        Self { index: index.clone(), listener: index.listen(TapBounds::default()), keys: BTreeMap::new() }
    }

    /// Everything there is, as a watch begins.
    fn begin(&mut self, replica: &mut Replica) -> Check {
        let hear = |replica: &mut Replica, what| {
            let response = v1::WatchResponse { what: Some(what), cursor: Default::default() };
            replica.hear(response).map_err(|error| format!("refused at the beginning: {error}"))
        };
        use v1::watch_response::What;
        hear(replica, What::Started(v1::WatchStarted::default()))?;
        for (rank, model) in self.index.ranks() {
            for event in self.follow(rank, &model) {
                hear(replica, What::Event(round_trip(event)?))?;
            }
        }
        let news = hear(replica, What::Synced(v1::WatchSynced {}))?;
        if news != News::Synced || !replica.is_synced() {
            return Err("not synced after everything was told".to_owned());
        }
        Ok(())
    }

    fn follow(&mut self, rank: RankId, model: &str) -> Vec<Event> {
        // Whoever takes a slot again is called the same.
        let identity = Identity {
            worker: format!("pod-{}", rank.slot).into(),
            address: "".into(),
            aliases: Arc::default(),
            model: model.into(),
            rank: 0,
        };
        let key = encode::key(&identity, rank, 77);
        let Some(snapshot) = self.listener.follow(rank) else { return Vec::new() };
        self.keys.insert(rank, key.clone());
        let added = v1::WorkerAdded { key: Some(key.clone()), ..Default::default() };
        let snapshot = encode::Snapshot::new(key, Arc::new(snapshot));
        std::iter::once(Event::Added(added)).chain(snapshot).collect()
    }

    fn messages(&mut self) -> Check<Vec<Event>> {
        let mut messages = Vec::new();
        while let Some(heard) = self.listener.try_next().map_err(|cut| cut.to_string())? {
            match heard {
                Heard::Registered { rank, model } => messages.extend(self.follow(rank, &model)),
                Heard::Delta(delta) => {
                    same_bytes(&delta)?;
                    let Some(key) = self.keys.get(&delta.rank) else { continue };
                    match delta.changes.contains(&Change::Gone) {
                        true => messages.push(Event::Gone(v1::WorkerGone { key: Some(key.clone()) })),
                        false => messages.extend(encode::delta(key, &delta).into_iter().map(Event::Delta)),
                    }
                }
            }
        }
        Ok(messages)
    }
}
