//! Stores.

use kvtap::block::{Grid, Tier};
use kvtap::hash::{EngineHash, Seed};
use kvtap::index::{Block, Copies, IndexError, Limits, Parent, StoreOutcome};
use kvtap::worker::Stamp;

use crate::fleet::{Fleet, GROUP, diverging, grid, prompt};

#[test]
fn a_run_under_a_known_parent_continues_its_chain() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..6);
    worker.store(&chain[..2]);
    let outcome = worker.store_on(Tier::Device, &chain, 2..6).expect("the parent is known");
    assert_eq!(outcome, StoreOutcome { added: 4, ..Default::default() });
    assert_eq!(worker.holds(&chain), 6);
}

#[test]
fn an_unknown_parent_and_a_removed_worker_are_different_answers() {
    let fleet = Fleet::new();
    let mut worker = fleet.worker();
    let chain = prompt(0, 0..4);
    assert_eq!(worker.store_on(Tier::Device, &chain, 2..4), None, "the parent is unknown, and nothing was applied");
    assert_eq!(worker.usage().blocks, 0);
    fleet.index.remove(worker.id());
    assert_eq!(worker.writer.begin().map(drop), Err(IndexError::WorkerGone));
}

#[test]
fn an_empty_store_changes_nothing() {
    let mut worker = Fleet::new().worker();
    assert_eq!(worker.store(&[]), StoreOutcome::default());
    assert_eq!((worker.usage().blocks, worker.holds(&[])), (0, 0));
}

#[test]
fn overlapping_stores_add_what_is_new_and_count_copies_of_the_rest() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..8);
    worker.store(&chain[..5]);
    assert_eq!(worker.store(&chain), StoreOutcome { added: 3, copies: 5, ..Default::default() });
    assert_eq!((worker.holds(&chain), worker.usage().blocks, worker.usage().extra_copies), (8, 8, 5));
}

#[test]
fn stores_after_a_clear_stand_alone() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..4);
    worker.store(&chain);
    worker.clear();
    assert_eq!(worker.store_on(Tier::Device, &chain, 2..4), None, "what was cleared is nobody's parent");
    worker.store(&chain[..3]);
    assert_eq!(worker.holds(&chain), 3);
}

#[test]
fn a_removed_worker_cannot_be_resurrected_by_late_events() {
    let fleet = Fleet::new();
    let mut late = fleet.worker();
    let chain = prompt(0, 0..4);
    late.store(&chain);
    fleet.index.remove(late.id());
    let reborn = fleet.worker();
    assert_eq!(reborn.id().slot, late.id().slot, "the slot is used again");
    assert_eq!(late.writer.begin().map(drop), Err(IndexError::WorkerGone));
    assert_eq!((reborn.holds(&chain), late.holds(&chain)), (0, 0));
    assert!(fleet.ask(&chain).is_empty());
}

#[test]
fn a_worker_holds_several_disjoint_sequences() {
    let mut worker = Fleet::new().worker();
    for n in 0..10 {
        worker.store(&prompt(n, 0..n as usize + 1));
    }
    for n in 0..10 {
        assert_eq!(worker.holds(&prompt(n, 0..20)), n as u32 + 1);
    }
}

#[test]
fn two_hundred_blocks_come_in_twenty_continuations() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..200);
    for start in (0..200).step_by(10) {
        worker.store_on(Tier::Device, &chain, start..start + 10).expect("each continues the one before");
        assert_eq!(worker.holds(&chain), start as u32 + 10);
    }
}

#[test]
fn an_engine_hash_that_comes_again_for_other_content_is_moved() {
    let mut worker = Fleet::new().worker();
    let (old, new) = (prompt(0, 0..1), prompt(1, 0..1));
    let name = EngineHash::from_i64(-5);
    let mut tx = worker.writer.begin().expect("it is registered");
    tx.store(Parent::Root(Seed::PLAIN), Tier::Device, GROUP, &[Block { engine: name, content: old[0] }]);
    tx.store_known(Tier::Host, GROUP, &[name]);
    let moved = tx.store(Parent::Root(Seed::PLAIN), Tier::Device, GROUP, &[Block { engine: name, content: new[0] }]);
    tx.commit(Stamp::default());
    assert_eq!(moved, StoreOutcome { moved: 1, ..Default::default() });
    assert_eq!((worker.holds(&old), worker.holds(&new)), (0, 1));
    assert_eq!(worker.usage().by_tier[Tier::Host.index()], 0, "the old place went with all its copies");
}

#[test]
fn a_name_of_an_unchained_engine_stands_in_several_places_until_it_is_removed() {
    let mut worker = Fleet::new().worker();
    let page = prompt(9, 0..1)[0];
    let (x, y) = ([prompt(0, 0..1)[0], page], [prompt(1, 0..1)[0], page]);
    let name = EngineHash::from_u64(7);
    let mut tx = worker.writer.begin().expect("it is registered");
    for (n, chain) in [x, y].iter().enumerate() {
        let first = Block { engine: EngineHash::from_u64(100 + n as u64), content: chain[0] };
        let run = [first, Block { engine: name, content: page }];
        tx.store(Parent::Root(Seed::PLAIN), Tier::Device, GROUP, &run);
    }
    tx.commit(Stamp::default());
    assert_eq!((worker.holds(&x), worker.holds(&y)), (2, 2));
    let mut tx = worker.writer.begin().expect("it is registered");
    assert_eq!(tx.store_known(Tier::Host, GROUP, &[name]), 1, "which of the places lies on the host is not said");
    assert_eq!(tx.remove(Tier::Device, GROUP, &[name]).removed, 1);
    tx.commit(Stamp::default());
    assert_eq!((worker.holds(&x), worker.holds(&y)), (1, 1));
}

#[test]
fn a_middle_block_stored_again_heals_the_rest_at_once() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..10);
    worker.store(&chain);
    worker.remove(&chain, 4..5);
    assert_eq!(worker.holds(&chain), 4);
    worker.store_on(Tier::Device, &chain, 4..5).expect("the parent is known");
    assert_eq!(worker.holds(&chain), 10);
}

#[test]
fn children_inherit_the_seed_of_their_parents_chain() {
    let mut worker = Fleet::new().worker();
    let seed = Seed::new(Some("adapter"), Some("tenant"));
    let run = [Block { engine: EngineHash::from_u64(1), content: prompt(0, 0..1)[0] }];
    let mut tx = worker.writer.begin().expect("it is registered");
    tx.store(Parent::Root(seed), Tier::Device, GROUP, &run);
    let found = tx.find(run[0].engine).expect("it was stored");
    assert_eq!(found.seed, seed);
    let child = [Block { engine: EngineHash::from_u64(2), content: prompt(0, 1..2)[0] }];
    tx.store(Parent::Under(found.place), Tier::Device, GROUP, &child);
    assert_eq!(tx.find(child[0].engine).map(|found| found.seed), Some(seed));
    tx.commit(Stamp::default());
}

#[test]
fn a_worker_with_blocks_cannot_change_its_grid_and_one_without_can() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..1);
    worker.store(&chain);
    let other = Grid::new(32).expect("32 tokens a block");
    let set = |worker: &mut crate::fleet::Worker| worker.writer.begin().and_then(|mut tx| tx.set_grid(other));
    assert_eq!(set(&mut worker), Err(IndexError::GridConflict { have: grid(), got: other }));
    worker.clear();
    assert_eq!(set(&mut worker), Ok(()));
    assert_eq!(worker.index.grids("m"), Some(vec![other]));
    assert_eq!(worker.index.grids("unheard of"), None);
}

#[test]
fn nothing_is_stored_before_the_grid_is_known() {
    let fleet = Fleet::new();
    let mut writer = fleet.index.register("m", Copies::Count).expect("there is room");
    let block = Block { engine: EngineHash::from_u64(1), content: prompt(0, 0..1)[0] };
    let mut tx = writer.begin().expect("it is registered");
    let outcome = tx.store(Parent::Root(Seed::PLAIN), Tier::Device, GROUP, &[block]);
    assert_eq!((outcome, tx.find(block.engine)), (StoreOutcome::default(), None));
}

#[test]
fn over_its_bound_a_worker_forgets_what_it_stored_longest_ago_and_says_it_is_partial() {
    let fleet = Fleet::with(Limits { blocks_per_rank: 10, blocks_in_all: 100 });
    let mut worker = fleet.worker();
    let (old, new) = (prompt(0, 0..6), prompt(1, 0..6));
    worker.store(&old);
    assert_eq!(worker.store(&new), StoreOutcome { added: 6, evicted: 2, ..Default::default() });
    assert_eq!((worker.holds(&old), worker.holds(&new)), (0, 6));
    assert!(worker.answer(&new).partial);
    assert_eq!((worker.usage().blocks, worker.usage().evicted), (10, 2));
    worker.clear();
    worker.store(&new);
    assert!(!worker.answer(&new).partial, "after a clear nothing that the engine holds is forgotten");
}

#[test]
fn over_the_bound_of_all_the_rank_that_stores_gives_way() {
    let fleet = Fleet::with(Limits { blocks_per_rank: 100, blocks_in_all: 10 });
    let [mut quiet, mut busy] = fleet.workers();
    let chain = prompt(0, 0..6);
    quiet.store(&chain);
    busy.store(&prompt(1, 0..8));
    assert_eq!((quiet.holds(&chain), quiet.usage().evicted), (6, 0));
    assert_eq!((busy.usage().blocks, busy.usage().evicted), (4, 4));
    fleet.index.remove(quiet.id());
    busy.clear();
    busy.store(&prompt(1, 0..8));
    assert_eq!(busy.usage().blocks, 8, "what a removed worker held counts no more");
}

#[test]
fn blocks_that_come_and_go_leave_no_memory_behind() {
    let mut worker = Fleet::new().worker();
    let idle = worker.usage().bytes;
    for n in 0..40 {
        let chain = prompt(n, 0..2000);
        worker.store(&chain);
        assert!(worker.usage().bytes > 30_000);
        worker.remove(&chain, 0..2000);
    }
    assert_eq!(worker.usage().blocks, 0);
    assert!(worker.usage().bytes < idle + 40_000, "{} bytes are left", worker.usage().bytes);
}

#[test]
fn a_block_size_per_worker_is_matched_on_its_own_grid() {
    let fleet = Fleet::new();
    let mut worker = fleet.worker();
    worker.store(&diverging(2, 4));
    let mut out = Vec::new();
    let chain = diverging(2, 4);
    let other = Grid::new(32).expect("32 tokens a block");
    fleet.index.match_chain("m", other, kvtap::index::Chain::Content(&chain), None, &mut out);
    assert!(out.is_empty());
    assert_eq!(worker.holds(&chain), 4);
}
