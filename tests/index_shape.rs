//! The shape of the index under what engines do, and under what they should not do: what is appended in place, when
//! a run begins instead, and that all of it goes again.

// Helpers of tests are tests too, which clippy cannot see.
#![allow(clippy::expect_used)]

use std::sync::Arc;

use kvtap::block::{Grid, Group, Tier};
use kvtap::hash::{ContentHash, EngineHash, PrefixHash, Seed};
use kvtap::index::{Block, Chain, Copies, Index, Interest, Limits, Parent, RankWriter, Shape, TapBounds};
use kvtap::worker::Stamp;

const GROUP: Group = Group(0);

fn grid() -> Grid {
    Grid::new(16).expect("16 tokens a block")
}

fn writer(index: &Arc<Index>) -> RankWriter {
    let mut writer = index.register("m", Copies::Count).expect("room");
    writer.begin().expect("registered").set_grid(grid()).expect("no other grid");
    writer
}

/// Blocks whose names and contents are numbers; chains are told apart by the numbers.
fn blocks(numbers: std::ops::Range<u64>) -> Vec<Block> {
    let block = |n| Block { engine: EngineHash::from_u64(n), content: ContentHash(n) };
    numbers.map(block).collect()
}

/// Stores numbers under a number, or at the root.
fn store(writer: &mut RankWriter, parent: Option<u64>, numbers: std::ops::Range<u64>) {
    let mut tx = writer.begin().expect("registered");
    let parent = match parent {
        None => Parent::Root(Seed::PLAIN),
        Some(n) => Parent::Under(tx.find(EngineHash::from_u64(n)).expect("known").place),
    };
    let run = blocks(numbers);
    assert_eq!(tx.store(parent, Tier::Device, GROUP, &run).added, run.len());
    tx.commit(Stamp::default());
}

fn remove(writer: &mut RankWriter, numbers: impl Iterator<Item = u64>) {
    let hashes: Vec<_> = numbers.map(EngineHash::from_u64).collect();
    let mut tx = writer.begin().expect("registered");
    assert_eq!(tx.remove(Tier::Device, GROUP, &hashes).removed, hashes.len());
    tx.commit(Stamp::default());
}

fn shape(index: &Index) -> Shape {
    index.shape("m", grid()).expect("a rank has this grid")
}

fn held(index: &Index, chain: &[ContentHash]) -> Vec<u32> {
    let mut out = Vec::new();
    index.match_chain("m", grid(), Chain::Content(chain), None, &mut out);
    out.iter().map(|found| found.blocks).collect()
}

#[test]
fn a_decode_store_under_the_end_of_its_own_run_is_appended_in_place() {
    let index = Index::new(Limits::default());
    let mut one = writer(&index);
    store(&mut one, None, 0..10);
    let before = shape(&index);
    for n in 10..500 {
        store(&mut one, Some(n - 1), n..n + 1);
    }
    let after = shape(&index);
    assert_eq!(after.appended - before.appended, 490);
    assert_eq!((after.runs, after.runs_begun), (1, 1));
    // The array is moved from time to time.
    assert!(after.appended_beside >= 400, "{} of 490 while others went on", after.appended_beside);
}

/// How many of one more store's blocks were appended to a run in place, and of these beside others.
fn appended(index: &Index, act: impl FnOnce()) -> (u64, u64) {
    let before = shape(index);
    act();
    let after = shape(index);
    (after.appended - before.appended, after.appended_beside - before.appended_beside)
}

#[test]
fn what_is_appended_beside_others_is_a_transaction_of_one_store_of_a_block_or_two() {
    let index = Index::new(Limits::default());
    let mut one = writer(&index);
    store(&mut one, None, 0..17);
    assert_eq!(appended(&index, || store(&mut one, Some(16), 17..18)), (1, 0), "the array was full");
    assert_eq!(appended(&index, || store(&mut one, Some(17), 18..19)), (1, 1));
    assert_eq!(appended(&index, || store(&mut one, Some(18), 19..21)), (2, 2));
    assert_eq!(appended(&index, || store(&mut one, Some(20), 21..24)), (3, 0), "three blocks");
    let two_stores = || {
        let mut tx = one.begin().expect("registered");
        for n in [24, 25] {
            let place = tx.find(EngineHash::from_u64(n - 1)).expect("known").place;
            assert_eq!(tx.store(Parent::Under(place), Tier::Device, GROUP, &blocks(n..n + 1)).added, 1);
        }
        tx.commit(Stamp::default());
    };
    assert_eq!(appended(&index, two_stores), (2, 0), "two stores");
    let store_and_remove = || {
        let mut tx = one.begin().expect("registered");
        let place = tx.find(EngineHash::from_u64(25)).expect("known").place;
        tx.store(Parent::Under(place), Tier::Device, GROUP, &blocks(26..27));
        assert_eq!(tx.remove(Tier::Device, GROUP, &[EngineHash::from_u64(26)]).removed, 1);
        tx.commit(Stamp::default());
    };
    assert_eq!(appended(&index, store_and_remove), (1, 0), "a removal");
    store(&mut one, Some(25), 26..31);
    assert_eq!(
        appended(&index, || store(&mut one, Some(30), 31..33)),
        (2, 2),
        "the prefix hash of block 32 is kept, too"
    );
    let chain: Vec<_> = (0..33).map(ContentHash).collect();
    assert_eq!(held(&index, &chain), [33]);
    let mut scores = Vec::new();
    let prefixes = PrefixHash::chain(&chain);
    index.score_chain("m", grid(), Chain::Prefix(&prefixes), &mut scores);
    assert_eq!(scores.iter().map(|score| score.blocks).collect::<Vec<_>>(), [33]);
}

#[test]
fn nothing_is_appended_beside_others_where_a_chain_goes_on_in_another_run() {
    let index = Index::new(Limits::default());
    let (mut one, mut two) = (writer(&index), writer(&index));
    store(&mut one, None, 0..10);
    store(&mut two, None, 0..10);
    store(&mut one, Some(9), 10..11);
    remove(&mut two, (0..10).rev());
    assert_eq!(appended(&index, || store(&mut one, Some(9), 20..21)), (1, 0));
    store(&mut two, None, 0..10);
    store(&mut two, Some(9), 10..11);
    let chain: Vec<_> = (0..11).map(ContentHash).collect();
    assert_eq!((held(&index, &chain), shape(&index).runs), (vec![11, 11], 2));
}

#[test]
fn nothing_is_appended_beside_others_while_somebody_wants_to_hear_of_it() {
    let index = Index::new(Limits::default());
    let mut one = writer(&index);
    store(&mut one, None, 0..17);
    store(&mut one, Some(16), 17..18);
    let interest = Interest::in_removals();
    let listener = index.listen_for(TapBounds::default(), interest.clone());
    listener.follow(one.rank()).expect("it is there");
    assert_eq!(appended(&index, || store(&mut one, Some(17), 18..19)), (1, 1));
    interest.widen();
    assert_eq!(appended(&index, || store(&mut one, Some(18), 19..20)), (1, 0));
    drop(listener);
    store(&mut one, Some(19), 20..21);
    assert_eq!(appended(&index, || store(&mut one, Some(20), 21..22)), (1, 1), "one store has found nobody");
}

#[test]
fn a_run_whose_end_others_hold_is_not_appended_to() {
    let index = Index::new(Limits::default());
    let (mut one, mut two) = (writer(&index), writer(&index));
    store(&mut one, None, 0..10);
    store(&mut two, None, 0..10);
    store(&mut one, Some(9), 10..11);
    let shape = shape(&index);
    assert_eq!((shape.runs, shape.runs_shared, shape.appended), (2, 1, 0));
}

#[test]
fn a_store_under_the_middle_of_a_run_begins_another_and_splits_nothing() {
    let index = Index::new(Limits::default());
    let mut one = writer(&index);
    store(&mut one, None, 0..10);
    store(&mut one, Some(4), 100..105);
    let shape = shape(&index);
    assert_eq!((shape.runs, shape.blocks, shape.appended), (2, 15, 0));
    let chain: Vec<_> = (0..5).chain(100..105).map(ContentHash).collect();
    assert_eq!(held(&index, &chain), [10]);
}

#[test]
fn a_chain_of_a_million_blocks_is_full_runs_and_goes_again() {
    const RUN: u64 = 2048;
    const BLOCKS: u64 = 1_000_000;
    let index = Index::new(Limits::default());
    let mut one = writer(&index);
    for from in (0..BLOCKS).step_by(100_000) {
        store(&mut one, from.checked_sub(1), from..from + 100_000);
    }
    let full = shape(&index);
    assert_eq!((full.blocks, full.runs, full.runs_full), (BLOCKS, BLOCKS.div_ceil(RUN), BLOCKS / RUN));
    let chain: Vec<_> = (0..BLOCKS).map(ContentHash).collect();
    assert_eq!(held(&index, &chain), [BLOCKS as u32]);
    remove(&mut one, (0..BLOCKS).rev());
    let empty = shape(&index);
    assert_eq!((empty.runs, empty.blocks), (0, 0));
    assert!(empty.bytes * 100 < full.bytes, "{} of {} bytes are left", empty.bytes, full.bytes);
}

#[test]
fn a_scorer_says_what_the_index_says_until_the_last_rank_has_left() {
    let index = Index::new(Limits::default());
    let mut one = writer(&index);
    let scorer = index.scorer("m", grid()).expect("a rank is there");
    store(&mut one, None, 0..10);
    let chain: Vec<_> = (0..7).chain(100..105).map(ContentHash).collect();
    let ask = || {
        let (mut by_scorer, mut by_index) = (Vec::new(), Vec::new());
        let is_valid = scorer.score_chain(Chain::Content(&chain), &mut by_scorer);
        index.score_chain("m", grid(), Chain::Content(&chain), &mut by_index);
        (is_valid, by_scorer, by_index)
    };
    let (is_valid, by_scorer, by_index) = ask();
    assert!(is_valid);
    assert_eq!(by_scorer.iter().map(|score| score.blocks).collect::<Vec<_>>(), [7]);
    assert_eq!(by_scorer, by_index);
    index.remove(one.rank());
    let mut two = writer(&index);
    store(&mut two, None, 0..10);
    let (is_valid, by_scorer, by_index) = ask();
    assert!(!is_valid && by_scorer.is_empty(), "its forest was left before another rank came");
    assert_eq!(by_index.len(), 1);
}

#[test]
fn a_hundred_thousand_children_under_one_block_are_each_found_and_go_again() {
    let index = Index::new(Limits::default());
    let mut one = writer(&index);
    store(&mut one, None, 0..1);
    for n in 1..100_000 {
        store(&mut one, Some(0), n..n + 1);
    }
    for n in [1, 50_000, 99_999] {
        assert_eq!(held(&index, &[ContentHash(0), ContentHash(n)]), [2]);
    }
    remove(&mut one, 0..100_000);
    assert_eq!((shape(&index).runs, shape(&index).blocks), (0, 0));
}

#[test]
fn what_many_ranks_store_and_evict_for_long_leaves_a_bounded_shape() {
    let index = Index::new(Limits::default());
    let mut ranks: Vec<_> = (0..8).map(|_| (writer(&index), Vec::<std::ops::Range<u64>>::new())).collect();
    let mut rng = fastrand::Rng::with_seed(7);
    let mut next = 1_000;
    let mut most = 0;
    for round in 0..4_000 {
        let (writer, chains) = &mut ranks[round % 8];
        if chains.is_empty() {
            store(writer, None, 0..64);
        }
        // A prompt under the shared one, its output block by block, and the oldest prompt out, its tail first.
        let (from, prompt, output) = (next, rng.u64(8..40), rng.u64(1..20));
        store(writer, Some(63), from..from + prompt);
        for n in from + prompt..from + prompt + output {
            store(writer, Some(n - 1), n..n + 1);
        }
        next = from + prompt + output;
        chains.push(from..next);
        if chains.len() > 20 {
            let oldest = chains.remove(0);
            let cut = rng.u64(oldest.clone());
            // Sometimes the middle goes before the tail.
            remove(writer, (oldest.start..cut).rev());
            remove(writer, (cut..oldest.end).rev());
        }
        most = most.max(shape(&index).runs);
    }
    assert!(most <= 8 * 21 + 1, "{most} runs for 160 chains");
    for (writer, _) in &ranks {
        index.remove(writer.rank());
    }
    assert_eq!(index.grids("m"), None, "the last rank takes its model with it");
}

#[test]
fn an_index_that_is_dropped_takes_its_ranks_along() {
    const INDEXES: u64 = 20_000;
    // An empty forest with one rank takes more than 4 KiB.
    const LEFT_BEHIND: u64 = INDEXES * 4096;
    let before = resident();
    for _ in 0..INDEXES {
        let index = Index::new(Limits { blocks_per_rank: 64, blocks_in_all: 64 });
        let mut writer = writer(&index);
        store(&mut writer, None, 0..2);
    }
    let more = resident().saturating_sub(before);
    assert!(more < LEFT_BEHIND / 2, "{more} bytes more");
}

/// Resident memory of this process, in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line of its own");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

#[test]
fn the_first_batch_of_a_rank_is_seen_whole_or_not_at_all() {
    let stamp = Stamp { epoch: 1, sequence: Some(7) };
    for _ in 0..3000 {
        let index = Index::new(Limits { blocks_per_rank: 64, blocks_in_all: 64 });
        let mut writer = index.register("m", Copies::Count).expect("room");
        let (rank, contents) = (writer.rank(), [ContentHash(0), ContentHash(1)]);
        std::thread::scope(|threads| {
            threads.spawn(|| {
                let mut found = Vec::new();
                loop {
                    index.match_chain("m", grid(), Chain::Content(&contents), Some(&[rank]), &mut found);
                    if found[0].stamp == stamp {
                        assert_eq!((found[0].blocks, found[0].held), (2, 2));
                        break;
                    }
                }
            });
            let mut tx = writer.begin().expect("registered");
            tx.set_grid(grid()).expect("no other grid");
            tx.store(Parent::Root(Seed::PLAIN), Tier::Device, GROUP, &blocks(0..2));
            tx.commit(stamp);
        });
    }
}
