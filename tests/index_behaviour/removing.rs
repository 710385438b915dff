//! Removals, clears and workers that go.

use kvtap::block::Tier;
use kvtap::hash::EngineHash;
use kvtap::index::{Copies, IndexError, RemoveOutcome};
use kvtap::worker::{RankId, Stamp};

use crate::fleet::{Fleet, GROUP, prompt};

#[test]
fn removing_an_unknown_worker_changes_nothing() {
    let fleet = Fleet::new();
    let mut worker = fleet.worker();
    let chain = prompt(0, 0..3);
    worker.store(&chain);
    fleet.index.remove(RankId { slot: 77, generation: 1 });
    fleet.index.remove(RankId { generation: worker.id().generation + 1, ..worker.id() });
    assert_eq!(worker.holds(&chain), 3);
}

#[test]
fn an_unknown_block_is_counted_and_does_not_stop_the_rest_of_a_removal() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..3);
    worker.store(&chain);
    let names = [worker.names(&chain)[2], EngineHash::from_u64(404), worker.names(&chain)[1]];
    let mut tx = worker.writer.begin().expect("it is registered");
    let outcome = tx.remove(Tier::Device, GROUP, &names);
    tx.commit(Stamp::default());
    assert_eq!(outcome, RemoveOutcome { removed: 2, copies: 0, unknown: 1 });
    assert_eq!(worker.holds(&chain), 1);
}

#[test]
fn a_block_removed_twice_is_unknown_the_second_time() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..3);
    worker.store(&chain);
    assert_eq!(worker.remove(&chain, 2..3).removed, 1);
    assert_eq!(worker.remove(&chain, 2..3), RemoveOutcome { removed: 0, copies: 0, unknown: 1 });
    assert_eq!(worker.holds(&chain), 2);
}

#[test]
fn a_block_announced_twice_and_removed_once_is_still_held() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..3);
    worker.store(&chain);
    worker.store_on(Tier::Device, &chain, 2..3).expect("the parent is known");
    assert_eq!(worker.remove(&chain, 2..3), RemoveOutcome { removed: 0, copies: 1, unknown: 0 });
    assert_eq!(worker.holds(&chain), 3);
    worker.remove(&chain, 2..3);
    assert_eq!(worker.holds(&chain), 2);
}

#[test]
fn where_copies_are_a_set_one_removal_ends_a_block() {
    let mut worker = Fleet::new().worker_counting(Copies::Set);
    let chain = prompt(0, 0..3);
    worker.store(&chain);
    worker.store(&chain);
    assert_eq!(worker.remove(&chain, 2..3).removed, 1);
    assert_eq!((worker.holds(&chain), worker.usage().extra_copies), (2, 0));
}

#[test]
fn a_removed_middle_block_stops_the_match_there() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..10);
    worker.store(&chain);
    worker.remove(&chain, 5..6);
    assert_eq!((worker.holds(&chain), worker.usage().blocks), (5, 9));
}

#[test]
fn children_of_a_removed_parent_stay_but_the_match_stops_there() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..4);
    worker.store(&chain);
    worker.remove(&chain, 0..1);
    assert_eq!((worker.holds(&chain), worker.usage().blocks), (0, 3));
    worker.store(&chain[..1]);
    assert_eq!(worker.holds(&chain), 4);
}

#[test]
fn blocks_80_to_99_of_100_go_and_80_stay() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..100);
    worker.store(&chain);
    assert_eq!(worker.remove(&chain, 80..100).removed, 20);
    assert_eq!((worker.holds(&chain), worker.usage().blocks), (80, 80));
}

#[test]
fn a_removal_of_one_worker_leaves_the_blocks_of_others() {
    let fleet = Fleet::new();
    let [mut a, mut b] = fleet.workers();
    let chain = prompt(0, 0..5);
    a.store(&chain);
    b.store(&chain);
    a.remove(&chain, 0..5);
    assert_eq!(fleet.ask(&chain), [(b.id(), 5)]);
    assert_eq!(a.usage().blocks, 0);
}

#[test]
fn a_worker_cleared_and_built_up_anew_holds_only_the_new() {
    let mut worker = Fleet::new().worker();
    let (old, new) = (prompt(0, 0..8), prompt(1, 0..3));
    worker.store(&old);
    worker.store_on(Tier::Host, &old, 0..8);
    worker.clear();
    worker.store(&new);
    assert_eq!((worker.holds(&old), worker.holds(&new), worker.usage().blocks), (0, 3, 3));
    assert_eq!(worker.usage().by_tier[Tier::Host.index()], 0);
}

#[test]
fn a_clear_drops_exactly_that_workers_blocks_and_keeps_the_worker() {
    let fleet = Fleet::new();
    let [mut a, mut b] = fleet.workers();
    let chain = prompt(0, 0..5);
    a.store(&chain);
    b.store(&chain);
    a.clear();
    assert_eq!(fleet.ask(&chain), [(b.id(), 5)]);
    assert_eq!(a.usage().grid, Some(crate::fleet::grid()));
    a.store(&chain[..2]);
    assert_eq!(fleet.ask(&chain), [(a.id(), 2), (b.id(), 5)]);
}

#[test]
fn a_removal_of_a_worker_forgets_it() {
    let fleet = Fleet::new();
    let mut worker = fleet.worker();
    let chain = prompt(0, 0..5);
    worker.store(&chain);
    fleet.index.remove(worker.id());
    assert_eq!((fleet.index.usage(worker.id()), fleet.index.grids("m")), (None, None));
    assert_eq!(worker.writer.begin().map(drop), Err(IndexError::WorkerGone));
    fleet.index.remove(worker.id());
}

#[test]
fn a_block_gone_from_one_tier_still_counts_on_another() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..4);
    worker.store(&chain);
    let names = worker.names(&chain);
    let mut tx = worker.writer.begin().expect("it is registered");
    assert_eq!(tx.store_known(Tier::Host, GROUP, &[names[1], names[2], EngineHash::from_u64(404)]), 1);
    tx.commit(Stamp::default());
    worker.remove(&chain, 1..2);
    worker.remove(&chain, 3..4);
    let answer = worker.answer(&chain);
    assert_eq!((answer.blocks, answer.device), (3, 1));
    assert_eq!((answer.tiers[Tier::Device.index()], answer.tiers[Tier::Host.index()]), (2, 2));
}

#[test]
fn a_removal_from_a_tier_the_block_is_not_on_is_unknown() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..2);
    worker.store(&chain);
    assert_eq!(worker.remove_from(Tier::Disk, &chain, 0..2).unknown, 2);
    assert_eq!(worker.holds(&chain), 2);
}

#[test]
fn an_unknown_medium_never_counts_as_device() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..2);
    worker.store_on(Tier::Other(2), &chain, 0..2).expect("a root needs no parent");
    let answer = worker.answer(&chain);
    assert_eq!((answer.blocks, answer.device, answer.tiers[Tier::Other(2).index()]), (2, 0, 2));
}

#[test]
fn a_digest_finds_the_block_that_its_integer_form_names() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..2);
    worker.store(&chain);
    let wide: Vec<EngineHash> = worker
        .names(&chain)
        .iter()
        .map(|name| {
            let mut digest = [9; 32];
            digest[24..].copy_from_slice(&name.low().to_be_bytes());
            EngineHash::from_bytes(&digest)
        })
        .collect();
    let mut tx = worker.writer.begin().expect("it is registered");
    assert_eq!(tx.store_known(Tier::Host, GROUP, &wide), 0);
    assert!(tx.find(wide[1]).is_some());
    assert_eq!(tx.remove(Tier::Device, GROUP, &wide).removed, 2);
    tx.commit(Stamp::default());
    let answer = worker.answer(&chain);
    assert_eq!((answer.blocks, answer.device), (2, 0));
}
