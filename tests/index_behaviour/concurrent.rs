//! Several threads at once.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kvtap::block::Tier;
use kvtap::hash::Seed;
use kvtap::index::{Block, Chain, Parent};
use kvtap::worker::Stamp;

use crate::fleet::{Fleet, GROUP, MODEL, grid, prompt};

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
