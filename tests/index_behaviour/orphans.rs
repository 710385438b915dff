//! The reference model at the height of engine events: blocks whose parent is unknown wait.

use kvtap::block::Tier;
use kvtap::hash::{ContentHash, EngineHash, Seed};
use kvtap::index::model::{EventBlock, Model, StoreEvent};
use kvtap::index::{Chain, Copies, Limits, RemoveOutcome};
use kvtap::worker::RankId;

use crate::fleet::{GROUP, MODEL, grid};

const RANK: RankId = RankId { slot: 0, generation: 1 };

fn model(orphan_limit: usize) -> Model {
    let mut model = Model::new(Limits::default(), orphan_limit);
    model.register(RANK, MODEL, Copies::Count);
    model.set_grid(RANK, grid()).expect("it has no blocks");
    model
}

/// Blocks of one prompt, the first of them block `from`; block i is called i.
fn event(from: u64, to: u64, seed: Seed) -> StoreEvent {
    let block = |i: u64| EventBlock { engine: EngineHash::from_u64(i), tokens: vec![i as u8; 64], keys: Vec::new() };
    let parent = from.checked_sub(1).map(EngineHash::from_u64);
    StoreEvent { parent, seed, tier: Tier::Device, group: GROUP, blocks: (from..to).map(block).collect() }
}

fn held(model: &Model, seed: Seed) -> u32 {
    let chain: Vec<_> = (0..20).map(|i| ContentHash::of_tokens(&[i; 64], seed)).collect();
    model.match_chain(MODEL, grid(), Chain::Content(&chain), Some(&[RANK]))[0].blocks
}

fn store(model: &mut Model, event: StoreEvent) {
    model.store_event(RANK, event).expect("it is registered");
}

fn remove(model: &mut Model, block: u64) -> RemoveOutcome {
    model.remove(RANK, Tier::Device, GROUP, &[EngineHash::from_u64(block)]).expect("it is registered")
}

#[test]
fn orphans_never_become_roots_and_take_their_place_when_the_parent_arrives() {
    let mut model = model(100);
    store(&mut model, event(6, 9, Seed::PLAIN));
    store(&mut model, event(3, 6, Seed::PLAIN));
    assert_eq!((held(&model, Seed::PLAIN), model.orphans(RANK)), (0, 6));
    let orphan = [ContentHash::of_tokens(&[6; 64], Seed::PLAIN)];
    assert!(model.match_chain(MODEL, grid(), Chain::Content(&orphan), None).is_empty());
    store(&mut model, event(0, 3, Seed::PLAIN));
    assert_eq!((held(&model, Seed::PLAIN), model.orphans(RANK)), (9, 0));
}

#[test]
fn orphans_inherit_the_seed_that_their_event_did_not_carry() {
    let mut model = model(100);
    let salted = Seed::new(None, Some("tenant"));
    store(&mut model, event(2, 4, Seed::PLAIN));
    store(&mut model, event(0, 2, salted));
    assert_eq!((held(&model, salted), held(&model, Seed::PLAIN)), (4, 0));
}

#[test]
fn a_removal_finds_blocks_where_they_wait() {
    let mut model = model(100);
    store(&mut model, event(2, 6, Seed::PLAIN));
    assert_eq!(remove(&mut model, 3).removed, 1);
    assert_eq!(remove(&mut model, 3).unknown, 1);
    assert_eq!(model.orphans(RANK), 3);
    store(&mut model, event(0, 2, Seed::PLAIN));
    assert_eq!(held(&model, Seed::PLAIN), 3, "the match stops at the block that was removed while it waited");
    store(&mut model, event(3, 4, Seed::PLAIN));
    assert_eq!(held(&model, Seed::PLAIN), 6);
}

#[test]
fn a_clear_drops_what_waits() {
    let mut model = model(100);
    store(&mut model, event(2, 6, Seed::PLAIN));
    model.clear(RANK).expect("it is registered");
    assert_eq!(model.orphans(RANK), 0);
    store(&mut model, event(0, 2, Seed::PLAIN));
    assert_eq!(held(&model, Seed::PLAIN), 2);
}

#[test]
fn what_waits_is_bounded_and_the_longest_waiting_go() {
    let mut model = model(5);
    store(&mut model, event(9, 12, Seed::PLAIN));
    store(&mut model, event(2, 6, Seed::PLAIN));
    assert_eq!((model.orphans(RANK), model.lost_orphans(RANK)), (4, 3));
    store(&mut model, event(0, 2, Seed::PLAIN));
    assert_eq!(held(&model, Seed::PLAIN), 6);
}

#[test]
fn the_order_in_which_runs_arrive_makes_no_difference() {
    for seed in 0..50 {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut runs: Vec<_> = (0..6).map(|n| event(n * 3, n * 3 + 3, Seed::PLAIN)).collect();
        rng.shuffle(&mut runs);
        let mut model = model(100);
        let mut stored = [false; 6];
        for run in runs {
            let n = run.parent.map_or(0, |parent| (parent.low() as usize + 1) / 3);
            stored[n] = true;
            store(&mut model, run);
            let rooted = stored.iter().take_while(|stored| **stored).count();
            assert_eq!(held(&model, Seed::PLAIN), rooted as u32 * 3);
            let waiting = stored.iter().filter(|stored| **stored).count() - rooted;
            assert_eq!(model.orphans(RANK), waiting * 3);
        }
    }
}
