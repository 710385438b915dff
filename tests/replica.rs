//! A replica that is told by messages answers as its source does.

// Helpers of tests are tests too, which clippy cannot see. Each test of the index uses some of its support.
#![allow(clippy::expect_used, clippy::panic, dead_code)]

mod index_support;

use std::cell::RefCell;
use std::sync::Arc;

use index_support::replicate::Replicated;
use index_support::{Profile, World, content, grid};
use kvtap::block::{Group, Tier};
use kvtap::hash::{ContentHash, EngineHash, PrefixHash, Seed};
use kvtap::index::{Block, Chain, Copies, Delta, Heard, Index, Limits, Listener, Parent, RankWriter, TapBounds};
use kvtap::proto::v1;
use kvtap::proto::v1::event::Event;
use kvtap::replica::{Fault, Message, Mirror, Progress, encode};
use kvtap::worker::Stamp;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

const PLAIN: Profile = Profile { ranks: 4, notes: 0, odd_names: 0, carries: 1, steps: (1, 60) };
const HYBRID: Profile = Profile { ranks: 3, notes: 6, odd_names: 0, carries: 1, steps: (1, 60) };
const ODD: Profile = Profile { ranks: 3, notes: 1, odd_names: 8, carries: 1, steps: (1, 60) };
const OPEN: Limits = Limits { blocks_per_rank: usize::MAX, blocks_in_all: usize::MAX };
const TIGHT: Limits = Limits { blocks_per_rank: 9, blocks_in_all: 20 };
const CALM: [u8; 3] = [0, 0, 0];
const ROUGH: [u8; 3] = [6, 10, 4];

fn replicate(profile: Profile, limits: Limits, cases: u32, trouble: [u8; 3]) -> Replicated {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 3_000, ..Config::default() };
    let all = RefCell::new(Replicated::default());
    let outcome = TestRunner::new(config).run(&profile.history(), |history| {
        let one = World::run_replicated(limits, profile.ranks, &history, trouble).map_err(TestCaseError::fail)?;
        let mut all = all.borrow_mut();
        all.matches += one.matches;
        all.refused += one.refused;
        all.repeated += one.repeated;
        all.begun += one.begun;
        Ok(())
    });
    match outcome {
        Ok(()) => all.into_inner(),
        Err(TestError::Fail(why, history)) => panic!("{why}\nafter the minimal history\n{history:#?}"),
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

#[test]
fn a_replica_matches_as_its_source_does_under_churn() {
    for profile in [PLAIN, HYBRID, ODD] {
        for limits in [OPEN, TIGHT] {
            let replicated = replicate(profile, limits, 40, CALM);
            assert!(replicated.matches > 500, "{replicated:?}");
        }
    }
}

#[test]
fn a_replica_matches_as_its_source_does_over_a_connection_that_loses_repeats_and_breaks() {
    for profile in [PLAIN, HYBRID, ODD] {
        let rough = replicate(profile, OPEN, 60, ROUGH);
        assert!(rough.matches > 500 && rough.refused > 5 && rough.repeated > 50 && rough.begun > 5, "{rough:?}");
    }
}

#[test]
fn a_gap_leaves_a_mirror_empty_until_a_snapshot_comes() {
    let mut pair = Pair::new();
    pair.store(0, 3);
    pair.tell();
    assert_eq!(pair.matched(3), 3);
    pair.store(3, 5);
    drop(pair.deltas());
    pair.store(5, 6);
    let late = pair.deltas();
    assert_eq!(pair.hear(&late[0]), Err(Fault::Gap { have: 2, got: 4 }));
    assert_eq!((pair.matched(6), pair.mirror.at()), (0, None));
    assert_eq!(pair.hear(&late[0]), Ok(Progress::Waiting));
    pair.snapshot();
    assert_eq!(pair.matched(6), 6);
    assert_eq!(pair.hear(&late[0]), Ok(Progress::Known));
}

#[test]
fn a_delta_of_several_messages_is_applied_with_its_last_and_in_one_piece() {
    let mut pair = Pair::new();
    let blocks = encode::MAX_BLOCKS as u64 * 2 + 10;
    pair.store(0, blocks);
    let messages = pair.deltas();
    assert_eq!(messages.len(), 3);
    for message in &messages[..2] {
        assert_eq!(pair.hear(message), Ok(Progress::Applied));
        assert_eq!(pair.matched(blocks), 0, "not before it is whole");
    }
    pair.mirror.reconnect();
    for message in &messages {
        assert_eq!(pair.hear(message), Ok(Progress::Applied));
    }
    assert_eq!(pair.matched(blocks), blocks as u32);
}

#[test]
fn a_snapshot_that_lacks_a_part_is_no_snapshot() {
    let mut pair = Pair::new();
    pair.store(0, encode::MAX_BLOCKS as u64 * 3);
    let mut messages = pair.snapshot_messages();
    assert_eq!(messages.len(), 2 + 3);
    messages.remove(3);
    let torn: Result<Vec<Progress>, Fault> = messages.iter().map(|event| pair.hear_event(event)).collect();
    assert_eq!(torn, Err(Fault::Torn { told: 3, got: 2 }));
    assert_eq!(pair.matched(10), 0);
}

#[test]
fn what_another_life_of_a_rank_tells_is_not_mixed_with_the_one_before() {
    let mut pair = Pair::new();
    pair.store(0, 3);
    let delta = pair.deltas().remove(0);
    pair.key.life += 1;
    assert_eq!(pair.hear(&delta), Err(Fault::OtherLife));
    assert_eq!(pair.matched(3), 0);
}

#[test]
fn messages_that_lie_are_refused_by_the_name_of_the_field() {
    let mut pair = Pair::new();
    pair.store(0, 3);
    let delta = pair.deltas().remove(0);
    type Lie = fn(&mut v1::BlockRun);
    let lies: [(&str, Lie); 8] = [
        ("content_hashes", |run| run.content_hashes.clear()),
        ("prefix_hashes", |run| run.prefix_hashes.truncate(1)),
        ("prefix_hashes", |run| run.prefix_hashes[1] += 1),
        ("position", |run| run.position = 1),
        ("position", |run| run.parent = Some(5)),
        ("kind", |run| run.kind = 0),
        ("tier", |run| run.tier = 99),
        ("group", |run| run.group = Some(u32::MAX)),
    ];
    for (field, lie) in lies {
        let mut delta = delta.clone();
        let Some(v1::change::Change::Run(run)) = &mut delta.changes[0].change else { panic!("{delta:?}") };
        lie(run);
        assert_eq!(Message::delta(&delta).map_err(|error| error.field), Err(field));
    }
    let without = v1::RankDelta { at: None, ..delta };
    assert_eq!(Message::delta(&without).map_err(|error| error.field), Err("at"));
}

#[test]
fn a_block_under_one_that_nobody_told_of_and_ways_that_lead_in_a_circle_are_refused() {
    let parent = PrefixHash(5);
    let stored = block_run(v1::RunKind::Stored, Some(parent), &[content(1, Seed::PLAIN)]);
    let mut pair = Pair::new();
    assert_eq!(pair.hear(&told(2, vec![stored.clone()])), Err(Fault::Misfit));
    let mut pair = Pair::new();
    let removed = block_run(v1::RunKind::Removed, None, &[content(1, Seed::PLAIN)]);
    assert_eq!(pair.hear(&told(2, vec![removed])), Err(Fault::Misfit));
    // No hash leads to itself that anybody could find; what passes must end all the same.
    let mut pair = Pair::new();
    let passed = block_run(v1::RunKind::Passed, Some(parent), &[content(2, Seed::PLAIN)]);
    assert_eq!(pair.hear(&told(2, vec![passed, stored])), Err(Fault::Misfit));
}

/// A source with one rank, and its mirror.
struct Pair {
    source: Arc<Index>,
    writer: RankWriter,
    listener: Listener,
    copy: Arc<Index>,
    mirror: Mirror,
    key: v1::RankKey,
    sequence: u64,
}

impl Pair {
    fn new() -> Self {
        let (source, copy) = (Index::new(OPEN), Index::new(OPEN));
        let writer = source.register("m", Copies::Count).expect("there is room");
        let listener = source.listen(TapBounds::default());
        let mirror = Mirror::new(copy.register("m", Copies::Set).expect("there is room"));
        let key = v1::RankKey { worker: "pod-a".to_owned(), model: "m".to_owned(), rank: 0, life: 9 };
        let mut pair = Self { source, writer, listener, copy, mirror, key, sequence: 0 };
        pair.snapshot();
        let mut tx = pair.writer.begin().expect("the rank is there");
        tx.set_grid(grid(2)).expect("it has no other");
        tx.commit(Stamp { epoch: 1, sequence: None });
        pair.tell();
        pair
    }

    fn store(&mut self, from: u64, to: u64) {
        let mut tx = self.writer.begin().expect("the rank is there");
        let parent = match from.checked_sub(1) {
            None => Parent::Root(Seed::PLAIN),
            Some(before) => Parent::Under(tx.find(name(before)).expect("it is held").place),
        };
        let run: Vec<Block> = (from..to).map(|n| Block { engine: name(n), content: chain_content(n) }).collect();
        tx.store(parent, Tier::Device, Group(0), &run);
        self.sequence += 1;
        tx.commit(Stamp { epoch: 1, sequence: Some(self.sequence) });
    }

    fn deltas(&mut self) -> Vec<v1::RankDelta> {
        let mut messages = Vec::new();
        while let Ok(Some(heard)) = self.listener.try_next() {
            if let Heard::Delta(delta) = heard {
                messages.extend(encode::delta(&self.key, &delta));
            }
        }
        messages
    }

    fn hear(&mut self, delta: &v1::RankDelta) -> Result<Progress, Fault> {
        self.mirror.apply(self.key.life, Message::delta(delta).expect("it can be read"))
    }

    fn tell(&mut self) {
        for delta in self.deltas() {
            assert_eq!(self.hear(&delta), Ok(Progress::Applied));
        }
    }

    fn snapshot_messages(&mut self) -> Vec<Event> {
        let snapshot: Delta = self.listener.follow(self.writer.rank()).expect("the rank is there");
        encode::Snapshot::new(self.key.clone(), Arc::new(snapshot)).collect()
    }

    fn hear_event(&mut self, event: &Event) -> Result<Progress, Fault> {
        let message = match event {
            Event::SnapshotBegin(begin) => Message::begin(begin),
            Event::SnapshotPart(part) => Message::part(part),
            Event::SnapshotEnd(end) => Message::end(end),
            other => panic!("{other:?}"),
        };
        self.mirror.apply(self.key.life, message.expect("it can be read"))
    }

    fn snapshot(&mut self) {
        for event in self.snapshot_messages() {
            assert_eq!(self.hear_event(&event), Ok(Progress::Applied));
        }
    }

    fn matched(&self, blocks: u64) -> u32 {
        let chain: Vec<ContentHash> = (0..blocks).map(chain_content).collect();
        let mut found = Vec::new();
        self.copy.match_chain("m", grid(2), Chain::Content(&chain), None, &mut found);
        assert!(self.source.ranks().len() == 1 && found.len() <= 1);
        found.first().map_or(0, |held| held.blocks)
    }
}

fn name(n: u64) -> EngineHash {
    EngineHash::from_u64(1_000_000 + n)
}

fn chain_content(n: u64) -> ContentHash {
    ContentHash(n.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
}

fn block_run(kind: v1::RunKind, parent: Option<PrefixHash>, contents: &[ContentHash]) -> v1::BlockRun {
    let mut last = parent;
    let prefixes = contents.iter().map(|content| {
        let next = PrefixHash::after(last, *content);
        last = Some(next);
        next.0
    });
    v1::BlockRun {
        kind: kind.into(),
        tier: v1::Tier::Device.into(),
        group: None,
        parent: parent.map(|parent| parent.0),
        position: u32::from(parent.is_some()),
        prefix_hashes: prefixes.collect(),
        content_hashes: contents.iter().map(|content| content.0).collect(),
    }
}

fn told(number: u64, runs: Vec<v1::BlockRun>) -> v1::RankDelta {
    let change = |run| v1::Change { change: Some(v1::change::Change::Run(run)) };
    v1::RankDelta {
        key: None,
        at: Some(v1::Point { number, epoch: 1, sequence: Some(0) }),
        changes: runs.into_iter().map(change).collect(),
        goes_on: false,
    }
}
