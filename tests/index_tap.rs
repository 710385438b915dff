//! What a listener hears of an index, against what the index holds.

// Helpers of tests are tests too, which clippy cannot see. Each test of the index uses some of its support.
#![allow(clippy::expect_used, clippy::panic, dead_code)]

mod index_support;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::Arc;

use index_support::follow::{Followed, Follower, Held};
use index_support::{Profile, World, content, grid};
use kvtap::block::{Group, Tier};
use kvtap::hash::{ContentHash, EngineHash, PrefixHash, Seed};
use kvtap::index::{
    Block, Change, Copies, Cut, Delta, Heard, Index, Interest, Limits, Parent, RankWriter, TapBounds, What,
};
use kvtap::worker::Stamp;
use proptest::test_runner::{Config, TestCaseError, TestError, TestRunner};

const PLAIN: Profile = Profile { ranks: 4, notes: 0, odd_names: 0, carries: 2, steps: (1, 60) };
const HYBRID: Profile = Profile { ranks: 3, notes: 6, odd_names: 0, carries: 2, steps: (1, 60) };
const ODD: Profile = Profile { ranks: 3, notes: 1, odd_names: 8, carries: 2, steps: (1, 60) };
const WIDE_OPEN: Limits = Limits { blocks_per_rank: usize::MAX, blocks_in_all: usize::MAX };
const TIGHT: Limits = Limits { blocks_per_rank: 9, blocks_in_all: 20 };
const NOTHING: Limits = Limits { blocks_per_rank: 0, blocks_in_all: 0 };

fn follow(profile: Profile, limits: Limits, cases: u32) -> Followed {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 3_000, ..Config::default() };
    let all = RefCell::new(Followed::default());
    let outcome = TestRunner::new(config).run(&profile.history(), |history| {
        let followed = World::run_followed(limits, profile.ranks, &history).map_err(TestCaseError::fail)?;
        let mut all = all.borrow_mut();
        all.deltas += followed.deltas;
        all.compared += followed.compared;
        all.hybrid += followed.hybrid;
        Ok(())
    });
    match outcome {
        Ok(()) => all.into_inner(),
        Err(TestError::Fail(why, history)) => panic!("{why}\nafter the minimal history\n{history:#?}"),
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

#[test]
fn a_snapshot_and_the_deltas_after_it_are_what_a_plain_rank_holds_at_every_commit() {
    let open = follow(PLAIN, WIDE_OPEN, 60);
    let tight = follow(PLAIN, TIGHT, 60);
    assert!(open.compared > 1_000 && tight.compared > 1_000, "{open:?} {tight:?}");
}

#[test]
fn a_snapshot_and_the_deltas_after_it_are_what_a_hybrid_rank_holds_at_every_commit() {
    let open = follow(HYBRID, WIDE_OPEN, 80);
    let tight = follow(HYBRID, TIGHT, 60);
    assert!(open.hybrid > 500 && tight.hybrid > 100, "{open:?} {tight:?}");
}

#[test]
fn a_snapshot_and_the_deltas_after_it_are_what_is_held_where_names_move_and_stand_several_times() {
    for limits in [WIDE_OPEN, TIGHT, NOTHING] {
        assert!(follow(ODD, limits, 60).deltas > 500);
    }
}

#[test]
fn a_follower_that_begins_while_ranks_are_written_misses_nothing() {
    const WRITERS: u64 = 3;
    const STEPS: u64 = 3_000;
    let index = Index::new(WIDE_OPEN);
    let mut writers: Vec<RankWriter> = (0..WRITERS).map(|_| rank(&index)).collect();
    let ranks: Vec<_> = writers.iter().map(RankWriter::rank).collect();
    let mut follower = Follower::new(&index);
    std::thread::scope(|threads| {
        for (writer, seed) in writers.iter_mut().zip(0..) {
            threads.spawn(move || {
                let mut rng = fastrand::Rng::with_seed(seed);
                for step in 0..STEPS {
                    let mut tx = writer.begin().expect("the rank is there");
                    let chain: Vec<Block> = (0..rng.u64(1..20)).map(|n| block(n, n * 7 + rng.u64(0..2))).collect();
                    tx.store(Parent::Root(Seed::PLAIN), Tier::Device, Group(0), &chain);
                    let gone: Vec<EngineHash> = chain.iter().filter(|_| rng.bool()).map(|block| block.engine).collect();
                    tx.remove(Tier::Device, Group(0), &gone);
                    tx.commit(Stamp { epoch: 1, sequence: Some(step) });
                }
            });
        }
        for rank in &ranks {
            follower.follow(*rank);
            follower.hear().expect("deltas are in order");
        }
    });
    follower.hear().expect("deltas are in order");
    for rank in ranks {
        let held = Held::exported(&index, rank).expect("the rank is there");
        follower.compare(rank, &held).expect("nothing was missed");
    }
}

#[test]
fn a_listener_over_its_bounds_is_cut_and_told_and_the_writer_goes_on() {
    for bounds in [TapBounds { events: 3, bytes: usize::MAX }, TapBounds { events: usize::MAX, bytes: 2_000 }] {
        let index = Index::new(WIDE_OPEN);
        let mut writer = rank(&index);
        let mut slow = index.listen(bounds);
        let mut quick = index.listen(TapBounds::default());
        for listener in [&slow, &quick] {
            assert!(listener.follow(writer.rank()).is_some());
        }
        for step in 0..100 {
            commit(&mut writer, step, |tx| {
                tx.store(Parent::Root(Seed::PLAIN), Tier::Device, Group(0), &[block(step, step)]);
            });
        }
        assert_eq!(slow.try_next().map(drop), Err(Cut));
        assert_eq!(slow.try_next().map(drop), Err(Cut), "and stays so");
        let mut heard = 0;
        while let Some(Heard::Delta(delta)) = quick.try_next().expect("this one keeps up") {
            heard += 1;
            assert_eq!(delta.number, heard);
        }
        assert_eq!(heard, 100, "others are not cut with it");
    }
}

#[test]
fn what_is_given_back_is_written_anew_and_never_what_somebody_else_still_has() {
    let index = Index::new(WIDE_OPEN);
    let mut writer = rank(&index);
    let (mut listener, mut other) = (index.listen(TapBounds::default()), index.listen(TapBounds::default()));
    for listener in [&listener, &other] {
        assert!(listener.follow(writer.rank()).is_some());
    }
    let (mut heard, mut number, mut kept) = (VecDeque::new(), 0, Vec::new());
    let named = |name| Block { engine: EngineHash::from_u64(name), content: ContentHash(name) };
    for step in 0..200 {
        for i in 0..step % 5 {
            commit(&mut writer, step, |tx| {
                let first = step * 100 + i * 10;
                let run: Vec<Block> = (first..=first + i).map(named).collect();
                tx.store(Parent::Root(Seed::PLAIN), Tier::Device, Group(0), &run);
            });
        }
        if step == 100 {
            // From here on nobody else hears them, and those that were given back are used again.
            while let Some(heard) = other.try_next().expect("it keeps up") {
                kept.push((format!("{heard:?}"), heard));
            }
            other.unfollow(writer.rank());
        }
        listener.exchange(&mut heard).expect("it keeps up");
        assert_eq!(heard.len() as u64, step % 5);
        for (i, heard) in heard.iter().enumerate() {
            let Heard::Delta(delta) = heard else { panic!("{heard:?}") };
            number += 1;
            assert_eq!(delta.number, number);
            let [Change::Run(run)] = &delta.changes[..] else { panic!("{:?}", delta.changes) };
            let first = step * 100 + i as u64 * 10;
            let contents: Vec<_> = (first..=first + i as u64).map(ContentHash).collect();
            assert_eq!(*run.contents, contents);
        }
    }
    for (before, heard) in kept {
        assert_eq!(format!("{heard:?}"), before);
    }
}

#[test]
fn a_commit_that_changes_nothing_tells_its_stamp() {
    let index = Index::new(WIDE_OPEN);
    let mut writer = rank(&index);
    let mut listener = index.listen(TapBounds::default());
    let before = listener.follow(writer.rank()).expect("the rank is there");
    commit(&mut writer, 41, |_| ());
    drop(writer.begin().expect("the rank is there"));
    commit(&mut writer, 42, |_| ());
    for (sequence, number) in [(41, before.number + 1), (42, before.number + 2)] {
        let delta = next(&mut listener);
        assert_eq!((delta.number, delta.stamp.sequence, &*delta.changes), (number, Some(sequence), &[][..]));
    }
    assert!(listener.try_next().expect("it is not cut").is_none());
}

#[test]
fn a_copy_a_second_name_and_what_a_transaction_takes_back_are_no_changes() {
    let index = Index::new(WIDE_OPEN);
    let mut writer = rank(&index);
    commit(&mut writer, 0, |tx| {
        tx.store(Parent::Root(Seed::PLAIN), Tier::Device, Group(0), &[block(1, 1)]);
    });
    let mut listener = index.listen(TapBounds::default());
    listener.follow(writer.rank()).expect("the rank is there");
    let again = [block(1, 1)];
    let other_name = [block(2, 1)];
    commit(&mut writer, 1, |tx| {
        tx.store(Parent::Root(Seed::PLAIN), Tier::Device, Group(0), &again);
        tx.store(Parent::Root(Seed::PLAIN), Tier::Device, Group(0), &other_name);
    });
    commit(&mut writer, 2, |tx| {
        tx.remove(Tier::Device, Group(0), &[again[0].engine, other_name[0].engine]);
    });
    commit(&mut writer, 3, |tx| {
        tx.store(Parent::Root(Seed::PLAIN), Tier::Device, Group(0), &[block(5, 5)]);
        tx.remove(Tier::Device, Group(0), &[block(5, 5).engine]);
    });
    for _ in 1..=3 {
        assert_eq!(next(&mut listener).changes, []);
    }
    commit(&mut writer, 4, |tx| {
        tx.remove(Tier::Device, Group(0), &[again[0].engine]);
    });
    let last = next(&mut listener);
    let [Change::Run(run)] = &*last.changes else { panic!("{last:?}") };
    assert_eq!((run.what, run.parent, run.position), (What::Removed(Tier::Device), None, 0));
    assert_eq!(run.prefixes().collect::<Vec<_>>(), [PrefixHash::root(again[0].content)]);
}

#[test]
fn a_removed_rank_is_told_once_and_a_dropped_listener_costs_its_ranks_nothing() {
    let index = Index::new(WIDE_OPEN);
    let mut writer = rank(&index);
    let mut listener = index.listen(TapBounds::default());
    let gone = index.listen(TapBounds::default());
    for listener in [&listener, &gone] {
        listener.follow(writer.rank()).expect("the rank is there");
    }
    drop(gone);
    commit(&mut writer, 1, |tx| tx.clear());
    assert_eq!(next(&mut listener).changes, [Change::Cleared]);
    index.remove(writer.rank());
    assert_eq!(next(&mut listener).changes, [Change::Gone]);
    assert!(listener.follow(writer.rank()).is_none());
    assert!(listener.try_next().expect("it is not cut").is_none());
}

#[tokio::test]
async fn a_listener_that_waits_is_woken() {
    let index = Index::new(WIDE_OPEN);
    let mut writer = rank(&index);
    let mut listener = index.listen(TapBounds::default());
    listener.follow(writer.rank()).expect("the rank is there");
    let waiting = tokio::spawn(async move { listener.next().await });
    tokio::task::yield_now().await;
    commit(&mut writer, 7, |_| ());
    let heard = waiting.await.expect("the task ends");
    assert!(matches!(heard, Ok(Heard::Delta(delta)) if delta.stamp.sequence == Some(7)));
}

#[test]
fn a_listener_for_removals_hears_what_ends_and_nothing_of_stores_until_it_wants_everything() {
    let index = Index::new(WIDE_OPEN);
    let mut writer = rank(&index);
    let interest = Interest::in_removals();
    let mut few = index.listen_for(TapBounds::default(), Arc::clone(&interest));
    few.attend(writer.rank()).expect("there");
    let store = |writer: &mut RankWriter, n: u64| {
        commit(writer, n, |tx| {
            tx.store(Parent::Root(Seed::PLAIN), Tier::Device, Group(0), &[block(n, n)]);
        });
    };
    store(&mut writer, 1);
    store(&mut writer, 2);
    assert!(matches!(few.try_next(), Ok(None)), "nothing has ended");
    let mut all = index.listen(TapBounds::default());
    let from = all.follow(writer.rank()).expect("there").number;
    // With another listener who wants everything, stores are told to that one alone.
    store(&mut writer, 3);
    commit(&mut writer, 4, |tx| {
        tx.remove(Tier::Device, Group(0), &[EngineHash::from_u64(1)]);
    });
    let (stored, removed) = (next(&mut all), next(&mut all));
    assert_eq!((stored.number, removed.number), (from + 1, from + 2));
    let heard = next(&mut few);
    assert_eq!(heard, removed);
    assert!(
        heard
            .changes
            .iter()
            .any(|change| matches!(change, Change::Run(run) if run.what == What::Removed(Tier::Device)))
    );
    drop(all);
    store(&mut writer, 5);
    commit(&mut writer, 6, |tx| tx.clear());
    assert_eq!(next(&mut few).changes, [Change::Cleared]);
    interest.widen();
    store(&mut writer, 7);
    let heard = next(&mut few);
    assert_eq!(heard.stamp.sequence, Some(7));
    assert!(
        heard.changes.iter().any(|change| matches!(change, Change::Run(run) if run.what == What::Stored(Tier::Device)))
    );
}

fn rank(index: &Arc<Index>) -> RankWriter {
    let mut writer = index.register("m", Copies::Count).expect("there is room");
    let mut tx = writer.begin().expect("the rank is there");
    tx.set_grid(grid(2)).expect("it has no other");
    tx.commit(Stamp { epoch: 1, sequence: None });
    writer
}

fn commit(writer: &mut RankWriter, sequence: u64, act: impl FnOnce(&mut kvtap::index::Tx<'_>)) {
    let mut tx = writer.begin().expect("the rank is there");
    act(&mut tx);
    tx.commit(Stamp { epoch: 1, sequence: Some(sequence) });
}

fn next(listener: &mut kvtap::index::Listener) -> Arc<Delta> {
    match listener.try_next() {
        Ok(Some(Heard::Delta(delta))) => delta,
        other => panic!("{other:?}"),
    }
}

fn block(name: u64, tokens: u64) -> Block {
    Block { engine: EngineHash::from_u64(name), content: content(tokens as u8, Seed::PLAIN) }
}
