//! Several threads at once.

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvtap::block::Tier;
use kvtap::hash::{ContentHash, PrefixHash, Seed};
use kvtap::index::{Block, Chain, Parent};
use kvtap::worker::Stamp;

use crate::fleet::{Fleet, GROUP, MODEL, diverging_to, grid, prompt};

#[test]
fn a_reader_sees_a_whole_batch_or_none_of_it() {
    const BLOCKS: usize = 24;
    /// How often each state must have been read before the writers may stop.
    const ENOUGH: usize = 200;
    let fleet = Fleet::new();
    let chain = prompt(0, 0..BLOCKS);
    let mut writers: [_; 2] = fleet.workers();
    let ids = writers.each_ref().map(|worker| worker.id());
    let (done, full, empty) = (AtomicBool::new(false), AtomicUsize::new(0), AtomicUsize::new(0));
    let seen_enough = || full.load(Ordering::Relaxed) >= ENOUGH && empty.load(Ordering::Relaxed) >= ENOUGH;
    let deadline = Instant::now() + Duration::from_secs(60);

    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut out = Vec::new();
                let mut last = [0; 2];
                while !done.load(Ordering::Acquire) {
                    fleet.index.match_chain(MODEL, grid(), Chain::Content(&chain), Some(&ids), &mut out);
                    for found in &out {
                        let sequence = found.stamp.sequence.unwrap_or(0);
                        // Odd batches bring the whole chain, even ones take it away, block by block.
                        let expected = if sequence % 2 == 1 { BLOCKS as u32 } else { 0 };
                        assert_eq!((found.blocks, found.device), (expected, expected), "after batch {sequence}");
                        assert_eq!(found.held, u64::from(expected));
                        let newest = &mut last[usize::from(found.rank == ids[1])];
                        assert!(sequence >= *newest, "a later question is never answered from an earlier state");
                        *newest = sequence;
                        if sequence > 0 {
                            if expected > 0 { &full } else { &empty }.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    thread::yield_now();
                }
            });
        }
        let writing = writers.each_mut().map(|worker| {
            let (chain, seen_enough) = (&chain, &seen_enough);
            scope.spawn(move || {
                let names = worker.names(chain);
                for sequence in 1.. {
                    let mut tx = worker.writer.begin().expect("it is registered");
                    for i in 0..BLOCKS {
                        if sequence % 2 == 1 {
                            let parent = match i.checked_sub(1).map(|i| tx.find(names[i])) {
                                None => Parent::Root(Seed::PLAIN),
                                Some(found) => Parent::Under(found.expect("it was just stored").place),
                            };
                            let block = Block { engine: names[i], content: chain[i] };
                            tx.store(parent, Tier::Device, GROUP, &[block]);
                        } else {
                            tx.remove(Tier::Device, GROUP, &names[i..=i]);
                        }
                    }
                    tx.commit(Stamp { epoch: 1, sequence: Some(sequence) });
                    if seen_enough() || Instant::now() > deadline {
                        break;
                    }
                    thread::yield_now();
                }
            })
        });
        let ended = writing.map(|writer| writer.join());
        done.store(true, Ordering::Release);
        assert!(ended.iter().all(Result::is_ok), "a writer failed");
    });
    assert!(seen_enough(), "readers saw both states");
}

#[test]
fn the_last_holder_frees_a_block_while_others_store_it() {
    let fleet = Fleet::new();
    let chain = prompt(0, 0..8);
    let mut workers: [_; 4] = fleet.workers();
    thread::scope(|scope| {
        for worker in &mut workers {
            let chain = &chain;
            scope.spawn(move || {
                for _ in 0..200 {
                    worker.store(chain);
                    assert_eq!(worker.holds(chain), 8, "nobody else's removal takes this worker's blocks");
                    assert_eq!(worker.remove(chain, 0..8).removed, 8);
                    assert_eq!(worker.holds(chain), 0);
                }
            });
        }
    });
    assert!(fleet.ask(&chain).is_empty());
}

#[test]
fn ranks_come_and_go_under_readers_and_none_is_answered_for_after_its_end() {
    let fleet = Fleet::new();
    let chain = prompt(0, 0..8);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Acquire) {
                let mut out = Vec::new();
                fleet.index.match_chain(MODEL, grid(), Chain::Content(&chain), None, &mut out);
                for found in out {
                    assert_eq!(found.blocks, 8, "each worker stores all of it in one batch");
                }
                thread::yield_now();
            }
        });
        let comers = [(); 3].map(|()| {
            scope.spawn(|| {
                for _ in 0..200 {
                    let mut worker = fleet.worker();
                    worker.store(&chain);
                    fleet.index.remove(worker.id());
                    assert_eq!(worker.holds(&chain), 0);
                    assert!(worker.writer.begin().is_err());
                }
            })
        });
        let ended = comers.map(|comer| comer.join());
        done.store(true, Ordering::Release);
        assert!(ended.iter().all(Result::is_ok), "a worker failed");
    });
    assert!(fleet.ask(&chain).is_empty());
}

#[test]
fn a_block_that_is_appended_while_others_read_is_seen_with_its_stamp_or_not_at_all() {
    const SHARED: usize = 5;
    const BLOCKS: usize = 600;
    const LIVES: u64 = 40;
    let fleet = Fleet::new();
    let chain = prompt(0, 0..BLOCKS);
    let prefixes = PrefixHash::chain(&chain);
    let (mut decoding, mut idle) = (fleet.worker(), fleet.worker());
    idle.store(&chain[..SHARED]);
    let (id, names) = (decoding.id(), decoding.names(&chain));
    let block = |i: usize| Block { engine: names[i], content: chain[i] };
    let (done, between) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        for by_prefix in [false, true] {
            let (chain, prefixes, fleet, done, between) = (&chain, &prefixes, &fleet, &done, &between);
            scope.spawn(move || {
                let asked = if by_prefix { Chain::Prefix(prefixes) } else { Chain::Content(chain) };
                let (mut out, mut scores, mut last) = (Vec::new(), Vec::new(), (0, 0));
                while !done.load(Ordering::Acquire) {
                    fleet.index.match_chain(MODEL, grid(), asked, None, &mut out);
                    for found in &out {
                        if found.rank != id {
                            assert_eq!(found.blocks as usize, SHARED);
                            continue;
                        }
                        let now = (found.stamp.epoch, found.stamp.sequence.unwrap_or(0));
                        assert_eq!((u64::from(found.blocks), found.held), (now.1, now.1), "a block a message");
                        assert!(now >= last, "a later question is never answered from an earlier state");
                        last = now;
                        between.fetch_add(usize::from(found.blocks as usize > SHARED), Ordering::Relaxed);
                    }
                    scores.clear();
                    fleet.index.score_chain(MODEL, grid(), asked, &mut scores);
                    let score = scores.iter().find(|score| score.rank == id).map_or(0, |score| u64::from(score.blocks));
                    fleet.index.match_chain(MODEL, grid(), asked, Some(&[id]), &mut out);
                    let [after] = &out[..] else { panic!("the one that was asked about comes back") };
                    if after.stamp.epoch == last.0 {
                        assert!(last.1 <= score && score <= u64::from(after.blocks));
                    }
                }
            });
        }
        for life in 1..=LIVES {
            let mut tx = decoding.writer.begin().expect("it is registered");
            tx.clear();
            tx.store(Parent::Root(Seed::PLAIN), Tier::Device, GROUP, &(0..SHARED).map(block).collect::<Vec<_>>());
            tx.commit(Stamp { epoch: life, sequence: Some(SHARED as u64) });
            for i in SHARED..BLOCKS {
                let mut tx = decoding.writer.begin().expect("it is registered");
                let parent = tx.find(names[i - 1]).expect("it was just stored").place;
                tx.store(Parent::Under(parent), Tier::Device, GROUP, &[block(i)]);
                tx.commit(Stamp { epoch: life, sequence: Some(i as u64 + 1) });
            }
            thread::yield_now();
        }
        done.store(true, Ordering::Release);
    });
    let shape = fleet.index.shape(MODEL, grid()).expect("ranks are there");
    assert!(shape.appended_beside > LIVES * BLOCKS as u64 / 2, "{} blocks beside readers", shape.appended_beside);
    assert!(between.into_inner() > 0, "readers have seen it grow");
}

#[test]
fn ranks_that_come_to_the_end_of_one_run_at_once_share_what_is_the_same_and_nothing_else() {
    const BLOCKS: usize = 48;
    let fleet = Fleet::new();
    let mut workers: [_; 3] = fleet.workers();
    let start = Barrier::new(workers.len());
    for round in 0..300 {
        // All begin alike; each goes its own way from some block on, one of them never.
        let parts = [BLOCKS, 17 + round % 20, 19 + round % 13];
        let chain_of = |which: usize| diverging_to(which as u64, parts[which], BLOCKS);
        let chains: [_; 3] = std::array::from_fn(chain_of);
        thread::scope(|scope| {
            for (worker, chain) in workers.iter_mut().zip(&chains) {
                let start = &start;
                scope.spawn(move || {
                    worker.store(&chain[..16]);
                    start.wait();
                    for i in 16..BLOCKS {
                        let stored = worker.store_on(Tier::Device, chain, i..i + 1).expect("its parent was stored");
                        assert_eq!(stored.added, 1);
                    }
                });
            }
        });
        for chain in &chains {
            let common = |other: &[ContentHash]| chain.iter().zip(other).take_while(|(a, b)| a == b).count() as u32;
            let expected: Vec<_> =
                workers.iter().zip(&chains).map(|(worker, other)| (worker.id(), common(other))).collect();
            assert_eq!(fleet.ask(chain), expected);
        }
        for (worker, chain) in workers.iter_mut().zip(&chains) {
            assert_eq!(worker.remove(chain, 0..BLOCKS).removed, BLOCKS);
        }
        let shape = fleet.index.shape(MODEL, grid()).expect("ranks are there");
        assert_eq!((shape.runs, shape.blocks), (0, 0), "nothing is left of round {round}");
    }
}

#[test]
fn who_stores_a_prompt_that_its_one_holder_is_lengthening_shares_all_of_it() {
    const PROMPT: usize = 18;
    const BLOCKS: usize = 25;
    const ROUNDS: usize = 3_000;
    let fleet = Fleet::new();
    let [mut decoding, mut coming] = fleet.workers();
    let ids = [decoding.id(), coming.id()];
    let chain = prompt(0, 0..BLOCKS);
    let (both, mut wrong) = (Barrier::new(2), Vec::new());
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                decoding.store(&chain[..PROMPT]);
                both.wait();
                for i in PROMPT..BLOCKS {
                    decoding.store_on(Tier::Device, &chain, i..i + 1).expect("its parent was stored");
                }
                both.wait();
                both.wait();
                decoding.clear();
            }
        });
        for round in 0..ROUNDS {
            both.wait();
            // It comes somewhat later each time.
            (0..round % 64).for_each(|_| std::hint::spin_loop());
            coming.store(&chain);
            both.wait();
            let answer = fleet.ask(&chain);
            if answer != ids.map(|id| (id, BLOCKS as u32)) {
                wrong.push((round, answer));
            }
            coming.clear();
            both.wait();
        }
    });
    assert_eq!(wrong, []);
}

#[test]
fn prompts_that_ranks_store_and_evict_at_once_are_there_once_wherever_they_are_the_same() {
    const BLOCKS: usize = 96;
    let fleet = Fleet::new();
    let mut workers: [_; 3] = fleet.workers();
    let start = Barrier::new(workers.len());
    for round in 0..400 {
        // All begin alike; each goes its own way from some block on, one of them never.
        let parts = [BLOCKS, 20 + round % 40, 20 + round * 7 % 60];
        let chain_of = |which: usize| diverging_to(which as u64, parts[which], BLOCKS);
        let chains: [_; 3] = std::array::from_fn(chain_of);
        thread::scope(|scope| {
            for (which, (worker, chain)) in workers.iter_mut().zip(&chains).enumerate() {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    for part in 1..6 {
                        // Cut and stored again, so that what another has planned behind it may be gone, or another's.
                        worker.store(chain);
                        let keep = (round * 11 + which * 29) % (15 * part);
                        assert_eq!(worker.remove(chain, keep..BLOCKS).removed, BLOCKS - keep);
                        if keep > 0 {
                            worker.store_on(Tier::Device, chain, keep..BLOCKS).expect("its parent is there");
                            worker.remove(chain, 0..BLOCKS);
                        }
                    }
                    worker.store(chain);
                });
            }
        });
        let common = |a: &[ContentHash], b: &[ContentHash]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
        for chain in &chains {
            let expected: Vec<_> =
                workers.iter().zip(&chains).map(|(w, other)| (w.id(), common(chain, other) as u32)).collect();
            assert_eq!(fleet.ask(chain), expected);
        }
        let [all, one, two] = &chains;
        let shared = common(all, one) + common(all, two).max(common(one, two));
        let shape = fleet.index.shape(MODEL, grid()).expect("ranks are there");
        assert_eq!(shape.blocks as usize, 3 * BLOCKS - shared, "each block is there once, in round {round}");
        for (worker, chain) in workers.iter_mut().zip(&chains) {
            assert_eq!(worker.remove(chain, 0..BLOCKS).removed, BLOCKS);
        }
        let shape = fleet.index.shape(MODEL, grid()).expect("ranks are there");
        assert_eq!((shape.runs, shape.blocks), (0, 0), "nothing is left of round {round}");
    }
}
