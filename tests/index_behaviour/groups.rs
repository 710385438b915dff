//! Hybrid models: the full-attention prefix is cut to where every other group still holds what it needs.

use kvtap::block::{Group, GroupRule, Tier};
use kvtap::hash::{ContentHash, EngineHash};
use kvtap::worker::Stamp;

use crate::fleet::{Fleet, GROUP, Worker, prompt};

const WINDOW: Group = Group(1);

/// A worker that holds ten blocks of 16 tokens in its full-attention group, and in another group what `held` names.
fn hybrid(rule: GroupRule, block_size: u32, held: &[usize]) -> (Worker, Vec<ContentHash>) {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..10);
    worker.store(&chain);
    let names = worker.names(&chain);
    let held: Vec<EngineHash> = held.iter().map(|i| names[*i]).collect();
    let mut tx = worker.writer.begin().expect("it is registered");
    tx.note_group(WINDOW, rule, block_size);
    tx.hold(Tier::Device, WINDOW, &held);
    tx.commit(Stamp::default());
    (worker, chain)
}

fn reusable(rule: GroupRule, block_size: u32, held: &[usize]) -> u32 {
    let (worker, chain) = hybrid(rule, block_size, held);
    let answer = worker.answer(&chain);
    assert_eq!(answer.blocks, answer.device);
    assert_eq!(answer.blocks, answer.tiers[Tier::Device.index()]);
    answer.blocks
}

#[test]
fn a_prefix_is_cut_to_the_longest_that_ends_in_a_whole_window() {
    // 33 tokens: the 32 before the next one, so two blocks.
    let window = GroupRule::Window { tokens: 33 };
    assert_eq!(reusable(window, 16, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]), 10);
    assert_eq!(reusable(window, 16, &[5, 6, 8]), 7);
    assert_eq!(reusable(window, 16, &[3, 5, 7, 9]), 0);
    assert_eq!(reusable(GroupRule::Window { tokens: 34 }, 16, &[5, 6, 8]), 0, "one token more: three blocks");
    assert_eq!(reusable(GroupRule::Window { tokens: 34 }, 16, &[4, 5, 6, 8]), 7);
}

#[test]
fn a_run_that_reaches_block_0_needs_no_whole_window() {
    let window = GroupRule::Window { tokens: 1000 };
    assert_eq!(reusable(window, 16, &[0, 1, 2, 4, 5]), 3);
    assert_eq!(reusable(window, 16, &[1, 2, 3]), 0);
}

#[test]
fn a_window_of_one_token_needs_nothing() {
    assert_eq!(reusable(GroupRule::Window { tokens: 1 }, 16, &[]), 10);
    assert_eq!(reusable(GroupRule::Window { tokens: 0 }, 16, &[]), 10);
}

#[test]
fn a_larger_group_block_has_the_name_of_the_prefix_block_it_ends_with() {
    let window = GroupRule::Window { tokens: 33 };
    // Blocks of 32 tokens end with prefix blocks 1, 3, 5, 7 and 9.
    assert_eq!(reusable(window, 32, &[3]), 4);
    assert_eq!(reusable(window, 32, &[4, 8]), 0, "no block of the group ends there");
    assert_eq!(reusable(GroupRule::Full, 32, &[1, 3, 5, 9]), 6);
}

#[test]
fn a_prefix_may_only_end_where_a_larger_group_block_ends() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..5);
    worker.store(&chain);
    let mut tx = worker.writer.begin().expect("it is registered");
    tx.note_group(WINDOW, GroupRule::Window { tokens: 1 }, 32);
    tx.commit(Stamp::default());
    assert_eq!(worker.holds(&chain), 4);
}

#[test]
fn a_group_of_unknown_rule_cuts_to_what_is_certain_and_says_so() {
    let (worker, chain) = hybrid(GroupRule::Unknown, 16, &[0, 1, 2, 9]);
    let answer = worker.answer(&chain);
    assert_eq!((answer.blocks, answer.cut_by_unknown_group), (3, true));
    let (worker, chain) = hybrid(GroupRule::Unknown, 16, &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let answer = worker.answer(&chain);
    assert_eq!((answer.blocks, answer.cut_by_unknown_group), (10, false));
    let (worker, chain) = hybrid(GroupRule::Window { tokens: 17 }, 16, &[2]);
    assert!(!worker.answer(&chain).cut_by_unknown_group, "a known rule is no lack of knowledge");
}

#[test]
fn blocks_of_other_groups_are_counted_apart_and_never_a_prefix() {
    let (mut worker, chain) = hybrid(GroupRule::Window { tokens: 17 }, 16, &[4, 4, 9]);
    assert_eq!((worker.usage().blocks, worker.usage().window_blocks, worker.usage().extra_copies), (10, 2, 1));
    let names = worker.names(&chain);
    let mut tx = worker.writer.begin().expect("it is registered");
    assert_eq!(tx.remove(Tier::Device, WINDOW, &[names[9], names[4], names[5]]).unknown, 1);
    tx.commit(Stamp::default());
    assert_eq!(worker.holds(&chain), 5, "the full-attention blocks stay, and one copy of block 4 is left");
}

#[test]
fn the_rule_holds_for_the_device_and_for_any_tier_apart() {
    let (mut worker, chain) = hybrid(GroupRule::Window { tokens: 17 }, 16, &[3]);
    let names = worker.names(&chain);
    let mut tx = worker.writer.begin().expect("it is registered");
    tx.hold(Tier::Host, WINDOW, &names[7..8]);
    tx.commit(Stamp::default());
    let answer = worker.answer(&chain);
    assert_eq!((answer.blocks, answer.device), (8, 4));
}

#[test]
fn several_full_attention_groups_bind_once_they_are_noted() {
    let mut worker = Fleet::new().worker();
    let chain = prompt(0, 0..4);
    worker.store(&chain);
    let names = worker.names(&chain);
    let mut tx = worker.writer.begin().expect("it is registered");
    tx.store_known(Tier::Device, Group(2), &names[..3]);
    tx.commit(Stamp::default());
    assert_eq!(worker.holds(&chain), 4, "without a note a block that either holds is held");
    let mut tx = worker.writer.begin().expect("it is registered");
    tx.note_group(GROUP, GroupRule::Full, 16);
    tx.note_group(Group(2), GroupRule::Full, 16);
    tx.commit(Stamp::default());
    assert_eq!(worker.holds(&chain), 3);
}

#[test]
fn more_groups_than_any_engine_has_leave_nothing_certain() {
    let (mut worker, chain) = hybrid(GroupRule::Window { tokens: 1 }, 16, &[]);
    assert_eq!(worker.holds(&chain), 10);
    let mut tx = worker.writer.begin().expect("it is registered");
    for n in 0..200 {
        tx.note_group(Group(n), GroupRule::Window { tokens: 1 }, 16);
    }
    tx.commit(Stamp::default());
    let answer = worker.answer(&chain);
    assert_eq!((answer.blocks, answer.cut_by_unknown_group), (0, true));
    assert!(worker.usage().groups.len() < 200, "and the memory they take is bounded");
}

#[test]
fn groups_stay_known_over_a_clear() {
    let (mut worker, chain) = hybrid(GroupRule::Window { tokens: 17 }, 16, &[3]);
    worker.clear();
    worker.store(&chain);
    assert_eq!(worker.holds(&chain), 0);
    let names = worker.names(&chain);
    let mut tx = worker.writer.begin().expect("it is registered");
    tx.hold(Tier::Device, WINDOW, &names[5..6]);
    tx.commit(Stamp::default());
    assert_eq!(worker.holds(&chain), 6);
}
