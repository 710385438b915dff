//! Matches.

use kvtap::hash::ContentHash;
use kvtap::index::{Chain, RankMatch};
use kvtap::worker::{RankId, Stamp};

use crate::fleet::{Fleet, diverging, grid, prompt};

#[test]
fn stored_a_b_c_and_asked_a_x_c_it_is_1_and_never_3() {
    let fleet = Fleet::new();
    let mut worker = fleet.worker();
    let stored = prompt(0, 0..3);
    worker.store(&stored);
    let asked = [stored[0], prompt(1, 1..2)[0], stored[2]];
    assert_eq!(fleet.ask(&asked), [(worker.id(), 1)]);
}

#[test]
fn a_match_ends_where_the_prompts_diverge() {
    let fleet = Fleet::new();
    let mut worker = fleet.worker();
    worker.store(&prompt(0, 0..128));
    for at in [0, 1, 31, 32, 33, 63, 64, 65, 127, 128] {
        assert_eq!(worker.holds(&diverging(at, 128)), at as u32);
    }
}

#[test]
fn lengths_around_multiples_of_32_are_all_exact() {
    for length in 31..=97 {
        let mut worker = Fleet::new().worker();
        worker.store(&prompt(0, 0..length));
        for asked in [length - 1, length, length + 1, 200] {
            assert_eq!(worker.holds(&prompt(0, 0..asked)), asked.min(length) as u32);
        }
    }
}

#[test]
fn staggered_workers_each_match_what_they_hold() {
    for depths in [vec![10, 20, 35, 64, 100], vec![25, 100, 50, 75]] {
        let fleet = Fleet::new();
        let chain = prompt(0, 0..100);
        let mut expected = Vec::new();
        let mut workers = Vec::new();
        for depth in depths {
            let mut worker = fleet.worker();
            worker.store(&chain[..depth]);
            expected.push((worker.id(), depth as u32));
            workers.push(worker);
        }
        assert_eq!(fleet.ask(&chain), expected);
    }
}

#[test]
fn workers_that_grow_in_turns_each_match_what_they_hold() {
    let fleet = Fleet::new();
    let chain = prompt(0, 0..100);
    let mut workers: [_; 4] = fleet.workers();
    let depths = [25, 50, 75, 100];
    for start in (0..100).step_by(5) {
        for (worker, depth) in workers.iter_mut().zip(depths) {
            if start < depth {
                worker.store_on(kvtap::block::Tier::Device, &chain, start..start + 5).expect("each continues");
            }
        }
    }
    let expected: Vec<_> = workers.iter().zip(depths).map(|(worker, depth)| (worker.id(), depth as u32)).collect();
    assert_eq!(fleet.ask(&chain), expected);
}

#[test]
fn three_workers_share_40_blocks_and_then_go_their_ways() {
    let fleet = Fleet::new();
    let mut workers: [_; 3] = fleet.workers();
    let chain = |n: u64| [prompt(0, 0..40), prompt(10 + n, 40..60)].concat();
    for (n, worker) in (0..).zip(&mut workers) {
        worker.store(&chain(n));
    }
    let ids = workers.each_ref().map(|worker| worker.id());
    assert_eq!(fleet.ask(&prompt(0, 0..60)), ids.map(|id| (id, 40)));
    for n in 0..3 {
        let expected: Vec<_> = (0..3).map(|m| (ids[m], if m == n { 60 } else { 40 })).collect();
        assert_eq!(fleet.ask(&chain(n as u64)), expected);
    }
}

#[test]
fn a_thousand_blocks_match_in_full_as_a_prefix_and_up_to_their_middle() {
    let fleet = Fleet::new();
    let mut worker = fleet.worker();
    worker.store(&prompt(0, 0..1000));
    assert_eq!(fleet.ask(&prompt(0, 0..1000)), [(worker.id(), 1000)]);
    assert_eq!(fleet.ask(&prompt(0, 0..300)), [(worker.id(), 300)]);
    assert_eq!(fleet.ask(&diverging(500, 1000)), [(worker.id(), 500)]);
}

#[test]
fn the_same_content_later_and_after_another_prefix_is_another_block() {
    let fleet = Fleet::new();
    let mut worker = fleet.worker();
    let [a, b, c] = [0, 1, 2].map(|n| prompt(n, 0..1)[0]);
    worker.store(&[a, b, a, c]);
    assert_eq!(fleet.ask(&[a, c]), [(worker.id(), 1)]);
    assert_eq!(fleet.ask(&[b, a]), []);
    assert_eq!(fleet.ask(&[a, b, a, c]), [(worker.id(), 4)]);
    assert_eq!(fleet.ask(&[a, b, a, b]), [(worker.id(), 3)]);
}

#[test]
fn equal_counts_are_not_taken_for_equal_holders() {
    let fleet = Fleet::new();
    let [mut a, mut b] = fleet.workers();
    let chain = prompt(0, 0..3);
    a.store(&chain);
    b.store(&chain);
    // Block 1 is held by one of them, block 2 by the other: one holder each, not the same.
    a.remove(&chain, 1..2);
    b.remove(&chain, 2..3);
    assert_eq!(fleet.ask(&chain), [(a.id(), 1), (b.id(), 2)]);
}

#[test]
fn two_engines_with_different_hashes_for_the_same_content_both_match() {
    let fleet = Fleet::new();
    let [mut a, mut b] = fleet.workers();
    let chain = prompt(0, 0..4);
    assert_ne!(a.names(&chain), b.names(&chain));
    a.store(&chain);
    b.store(&chain);
    assert_eq!(fleet.ask(&chain), [(a.id(), 4), (b.id(), 4)]);
}

#[test]
fn many_workers_stand_on_one_prefix() {
    let fleet = Fleet::new();
    let chain = prompt(0, 0..20);
    let workers: Vec<_> = (0..300)
        .map(|n| {
            let mut worker = fleet.worker();
            worker.store(&chain[..=n % 20]);
            worker
        })
        .collect();
    let expected: Vec<_> = workers.iter().zip(0..).map(|(worker, n)| (worker.id(), n % 20 + 1)).collect();
    assert_eq!(fleet.ask(&chain), expected);
}

#[test]
fn listed_ranks_always_come_back_and_others_never() {
    let fleet = Fleet::new();
    let [mut a, mut b, c] = fleet.workers();
    let chain = prompt(0, 0..4);
    a.store(&chain);
    b.store(&chain);
    let gone = RankId { slot: 99, generation: 1 };
    let mut out = Vec::new();
    let ask = |model: &str, out: &mut Vec<RankMatch>| {
        let listed = [c.id(), gone, a.id(), a.id()];
        fleet.index.match_chain(model, grid(), Chain::Content(&chain), Some(&listed), out);
        out.sort_by_key(|found| found.rank);
    };
    ask("m", &mut out);
    let found: Vec<_> = out.iter().map(|found| (found.rank, found.blocks, found.held)).collect();
    assert_eq!(found, [(a.id(), 4, 4), (c.id(), 0, 0), (gone, 0, 0)]);
    ask("another model", &mut out);
    let found: Vec<_> = out.iter().map(|found| (found.rank, found.blocks, found.held)).collect();
    assert_eq!(found, [(a.id(), 0, 0), (c.id(), 0, 0), (gone, 0, 0)]);
}

#[test]
fn an_answer_carries_the_stamp_of_the_last_committed_batch() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..2);
    worker.store(&chain);
    let stamp = Stamp { epoch: 3, sequence: Some(41) };
    worker.writer.begin().expect("it is registered").commit(stamp);
    drop(worker.writer.begin().expect("it is registered"));
    assert_eq!(worker.answer(&chain).stamp, stamp, "a transaction without a commit leaves the stamp alone");
}

#[test]
fn an_empty_or_unknown_chain_matches_nobody() {
    let fleet = Fleet::new();
    let mut worker = fleet.worker();
    worker.store(&prompt(0, 0..4));
    assert_eq!(fleet.ask(&[]), []);
    assert_eq!(fleet.ask(&[ContentHash(1), ContentHash(2)]), []);
}
