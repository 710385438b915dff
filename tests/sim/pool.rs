use std::num::NonZeroUsize;

use kvtap::block::extra_keys::Item;
use kvtap::sim::event::{Event, Lora, Name, Stored};
use kvtap::sim::pool::{HashForm, Pool, Prompt, Refused, RequestId, Shape};
use proptest::prelude::*;

use crate::support::Picture;

fn pool(usable: u32, block_size: usize) -> Pool {
    pool_with(usable, block_size, HashForm::Int, 7)
}

fn pool_with(usable: u32, block_size: usize, hash_form: HashForm, root: u128) -> Pool {
    Pool::new(Shape { blocks: usable + 1, block_size: NonZeroUsize::new(block_size).unwrap(), hash_form }, root)
}

fn prompt(tokens: impl IntoIterator<Item = u32>) -> Prompt {
    Prompt { tokens: tokens.into_iter().collect(), ..Prompt::default() }
}

/// Runs a prompt to its end and returns what was cached and what was announced.
fn run(pool: &mut Pool, prompt: Prompt) -> (usize, Vec<Event>) {
    let admitted = pool.admit(prompt).unwrap();
    pool.finish(admitted.request).unwrap();
    (admitted.cached_tokens, pool.step())
}

fn stored(event: &Event) -> &Stored {
    match event {
        Event::Stored(stored) => stored,
        other => panic!("expected a store, got {other:?}"),
    }
}

fn removed(events: &[Event]) -> Vec<Name> {
    let names = events.iter().filter_map(|event| match event {
        Event::Removed(removed) => Some(removed.names.clone()),
        _ => None,
    });
    names.flatten().collect()
}

#[test]
fn a_new_prompt_stores_its_full_blocks_in_one_event_without_a_parent() {
    let mut pool = pool(8, 4);
    let (cached, events) = run(&mut pool, prompt(0..10));
    assert_eq!(cached, 0);
    let [event] = &events[..] else { panic!("{events:?}") };
    let stored = stored(event);
    assert_eq!((stored.names.len(), &stored.parent, stored.block_size), (2, &None, 4));
    assert_eq!(stored.tokens, (0..8).collect::<Vec<_>>());
    assert_eq!(stored.extra_keys, Some(vec![None, None]));
}

#[test]
fn a_longer_prompt_takes_what_is_held_and_stores_the_rest_under_it() {
    let mut pool = pool(8, 4);
    let (_, first) = run(&mut pool, prompt(0..8));
    let (cached, second) = run(&mut pool, prompt(0..13));
    assert_eq!(cached, 8);
    let stored_now = stored(&second[0]);
    assert_eq!(stored_now.parent.as_ref(), stored(&first[0]).names.last());
    assert_eq!(stored_now.tokens, (8..12).collect::<Vec<_>>());
}

#[test]
fn the_last_token_is_always_computed_anew() {
    let mut pool = pool(8, 4);
    run(&mut pool, prompt(0..12));
    assert_eq!(run(&mut pool, prompt(0..5)).0, 4);
    assert_eq!(run(&mut pool, prompt(0..4)).0, 0);
    assert_eq!(run(&mut pool, prompt(0..1)).0, 0);
}

#[test]
fn a_fully_held_prompt_of_exactly_k_blocks_stores_its_last_block_again() {
    let mut pool = pool(8, 4);
    let (_, first) = run(&mut pool, prompt(0..8));
    let (cached, second) = run(&mut pool, prompt(0..8));
    assert_eq!(cached, 4);
    let again = stored(&second[0]);
    assert_eq!(again.names, stored(&first[0]).names[1..]);
    assert_eq!(again.parent.as_ref(), stored(&first[0]).names.first());
    assert_eq!(pool.copies().into_values().collect::<Vec<_>>().iter().sum::<usize>(), 3);
}

#[test]
fn each_copy_of_a_block_is_removed_once_and_the_block_is_held_until_the_last() {
    let mut pool = pool(3, 4);
    run(&mut pool, prompt(0..8));
    let (_, again) = run(&mut pool, prompt(0..8));
    let name = stored(&again[0]).names[0].clone();
    assert_eq!(pool.copies()[&name], 2);
    // Three blocks in all: the oldest free one is the first copy of block 1.
    let (_, events) = run(&mut pool, prompt(100..104));
    assert_eq!(removed(&events), std::slice::from_ref(&name));
    assert_eq!(pool.copies()[&name], 1);
    assert_eq!(pool.leading_blocks(&prompt(0..8)), 2);
    let (_, events) = run(&mut pool, prompt(200..204));
    assert_eq!(removed(&events), std::slice::from_ref(&name));
    assert!(!pool.copies().contains_key(&name));
}

#[test]
fn the_tail_of_a_finished_request_is_evicted_before_its_head() {
    let mut pool = pool(3, 4);
    let (_, first) = run(&mut pool, prompt(0..12));
    let names = stored(&first[0]).names.clone();
    let (_, events) = run(&mut pool, prompt(100..108));
    assert_eq!(removed(&events), [names[2].clone(), names[1].clone()]);
    assert_eq!(pool.leading_blocks(&prompt(0..12)), 1);
}

#[test]
fn blocks_that_are_used_again_become_the_most_recently_used() {
    let mut pool = pool(4, 4);
    run(&mut pool, prompt(0..8));
    let (_, second) = run(&mut pool, prompt(100..108));
    // Takes both blocks of the first prompt, and the oldest block of the second for its fifth to ninth token.
    let (cached, events) = run(&mut pool, prompt(0..9));
    assert_eq!(cached, 8);
    assert_eq!(removed(&events), [stored(&second[0]).names[1].clone()]);
}

#[test]
fn of_several_copies_the_oldest_is_used_again() {
    let mut pool = pool(5, 4);
    run(&mut pool, prompt(0..8));
    let (_, other) = run(&mut pool, prompt(100..104));
    let (_, copy) = run(&mut pool, prompt(0..8));
    assert_eq!(stored(&copy[0]).names.len(), 1);
    // Least recently used first: a block never filled, the first copy, the other prompt, the second copy, block 0.
    let (cached, events) = run(&mut pool, prompt(0..9));
    assert_eq!((cached, removed(&events)), (8, vec![]));
    let (_, events) = run(&mut pool, prompt(200..204));
    assert_eq!(removed(&events), stored(&other[0]).names);
}

#[test]
fn blocks_in_use_are_never_evicted_and_a_pool_without_free_blocks_refuses() {
    let mut pool = pool(3, 4);
    let held = pool.admit(prompt(0..8)).unwrap();
    assert_eq!(pool.admit(prompt(100..108)), Err(Refused::Full { needed: 2, free: 1 }));
    assert_eq!(pool.leading_blocks(&prompt(0..8)), 2);
    pool.finish(held.request).unwrap();
    assert!(pool.admit(prompt(100..108)).is_ok());
}

#[test]
fn blocks_that_a_prompt_would_take_do_not_count_as_free_for_it() {
    let mut pool = pool(3, 4);
    run(&mut pool, prompt(0..8));
    // Two are taken, one is free, two are needed.
    assert_eq!(pool.admit(prompt(0..13)), Err(Refused::Full { needed: 2, free: 1 }));
    assert_eq!(pool.step(), []);
}

#[test]
fn two_running_requests_share_blocks_until_both_have_ended() {
    let mut pool = pool(3, 4);
    let a = pool.admit(prompt(0..5)).unwrap().request;
    let b = pool.admit(prompt(0..5)).unwrap();
    assert_eq!(b.cached_tokens, 4);
    pool.finish(a).unwrap();
    assert_eq!(pool.admit(prompt(100..112)), Err(Refused::Full { needed: 3, free: 1 }));
    pool.finish(b.request).unwrap();
    assert!(pool.admit(prompt(100..112)).is_ok());
}

#[test]
fn decoding_stores_one_block_at_a_time_under_the_tail() {
    let mut pool = pool(8, 4);
    let request = pool.admit(prompt(0..6)).unwrap().request;
    let first = pool.step();
    for token in 6..16 {
        pool.decode(request, token).unwrap();
    }
    let events = pool.step();
    let blocks: Vec<_> = events.iter().map(stored).collect();
    assert_eq!(blocks.len(), 3);
    assert_eq!(blocks[0].parent.as_ref(), stored(&first[0]).names.last());
    assert_eq!(blocks[1].parent.as_ref(), blocks[0].names.last());
    assert_eq!(blocks[2].tokens, [12, 13, 14, 15]);
    pool.finish(request).unwrap();
    assert_eq!(pool.admit(prompt(0..17)).unwrap().cached_tokens, 16);
}

#[test]
fn decoding_without_a_free_block_is_refused_and_changes_nothing() {
    let mut pool = pool(1, 2);
    let request = pool.admit(prompt(0..2)).unwrap().request;
    assert_eq!(pool.decode(request, 9), Err(Refused::Full { needed: 1, free: 0 }));
    pool.finish(request).unwrap();
    assert_eq!(pool.decode(request, 9), Err(Refused::NoRequest));
    assert_eq!(pool.finish(request), Err(Refused::NoRequest));
    assert_eq!(pool.leading_blocks(&prompt(0..2)), 1);
}

#[test]
fn an_empty_prompt_is_refused() {
    assert_eq!(pool(4, 4).admit(Prompt::default()), Err(Refused::Empty));
}

#[test]
fn a_reset_clears_everything_and_is_announced_with_the_next_step() {
    let mut pool = pool(4, 4);
    run(&mut pool, prompt(0..8));
    assert!(pool.reset_prefix_cache());
    assert!(pool.copies().is_empty());
    let (cached, events) = run(&mut pool, prompt(0..8));
    assert_eq!(cached, 0);
    assert_eq!(events[0], Event::Cleared);
    assert_eq!(stored(&events[1]).names.len(), 2);
}

#[test]
fn a_reset_does_nothing_while_a_request_runs() {
    let mut pool = pool(4, 4);
    pool.admit(prompt(0..8)).unwrap();
    pool.step();
    assert!(!pool.reset_prefix_cache());
    assert_eq!(pool.step(), []);
    assert_eq!(pool.leading_blocks(&prompt(0..8)), 2);
}

#[test]
fn a_salt_travels_in_the_first_block_only_and_parts_every_block() {
    let mut pool = pool(8, 4);
    let salted = Prompt { salt: Some("tenant".into()), ..prompt(0..8) };
    let (_, events) = run(&mut pool, salted.clone());
    assert_eq!(stored(&events[0]).extra_keys, Some(vec![Some(vec![Item::Text("tenant".into())]), None]));
    assert_eq!(pool.leading_blocks(&salted), 2);
    assert_eq!(pool.leading_blocks(&prompt(0..8)), 0);
    assert_eq!(run(&mut pool, prompt(0..9)).0, 0);
}

#[test]
fn an_adapter_travels_by_number_and_name_and_before_the_salt_in_the_keys() {
    let mut pool = pool(8, 4);
    let lora = Some(Lora { id: 3, name: "sql".into() });
    let adapted = Prompt { lora: lora.clone(), salt: Some("tenant".into()), ..prompt(0..8) };
    let (_, events) = run(&mut pool, adapted.clone());
    let text = |text: &str| Item::Text(text.into());
    assert_eq!(stored(&events[0]).lora, lora);
    assert_eq!(
        stored(&events[0]).extra_keys,
        Some(vec![Some(vec![text("sql"), text("tenant")]), Some(vec![text("sql")])])
    );
    assert_eq!(pool.leading_blocks(&Prompt { salt: None, ..adapted }), 0);
}

#[test]
fn pools_with_different_roots_name_the_same_tokens_differently_and_one_root_alike() {
    let names = |root| pool_names(&mut pool_with(4, 4, HashForm::Int, root));
    assert_eq!(names(1), names(1));
    assert_ne!(names(1), names(2));
}

#[test]
fn an_integer_name_is_the_low_half_of_the_bytes_of_the_same_block() {
    let ints = pool_names(&mut pool_with(4, 4, HashForm::Int, 1));
    let bytes = pool_names(&mut pool_with(4, 4, HashForm::Bytes, 1));
    for (int, bytes) in ints.iter().zip(&bytes) {
        let (Name::Int(int), Name::Bytes(bytes)) = (int, bytes) else { panic!("{int:?} {bytes:?}") };
        assert_eq!(bytes.len(), 16);
        assert_eq!(int.to_be_bytes(), bytes[8..]);
    }
}

fn pool_names(pool: &mut Pool) -> Vec<Name> {
    let (_, events) = run(pool, prompt(0..8));
    stored(&events[0]).names.clone()
}

#[derive(Clone, Debug)]
enum Op {
    Admit(Prompt),
    Decode(prop::sample::Index, u32),
    Finish(prop::sample::Index),
    Reset,
    Step,
}

fn op() -> impl Strategy<Value = Op> {
    let tokens = prop::collection::vec(0..2u32, 0..20);
    let lora = prop::option::weighted(0.2, Just(Lora { id: 1, name: "a".into() }));
    let salt = prop::option::weighted(0.2, Just("s".to_owned()));
    prop_oneof![
        6 => (tokens, lora, salt).prop_map(|(tokens, lora, salt)| Op::Admit(Prompt { tokens, lora, salt })),
        10 => (any::<prop::sample::Index>(), 0..2u32).prop_map(|(index, token)| Op::Decode(index, token)),
        4 => any::<prop::sample::Index>().prop_map(Op::Finish),
        1 => Just(Op::Reset),
        3 => Just(Op::Step),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_subscriber_that_counts_what_is_announced_knows_exactly_what_the_pool_holds(
        usable in 1..16u32,
        block_size in 1..4usize,
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let mut pool = pool(usable, block_size);
        let mut picture = Picture::default();
        let mut running: Vec<RequestId> = Vec::new();
        for op in ops {
            match op {
                Op::Admit(prompt) => {
                    picture.apply(&pool.step());
                    let leading = picture.leading(&prompt, block_size);
                    prop_assert_eq!(pool.leading_blocks(&prompt), leading);
                    let expected = leading.min(prompt.tokens.len().saturating_sub(1) / block_size) * block_size;
                    prop_assert_eq!(pool.cached_tokens(&prompt), expected);
                    if let Ok(admitted) = pool.admit(prompt) {
                        prop_assert_eq!(admitted.cached_tokens, expected);
                        running.push(admitted.request);
                    } else {
                        prop_assert_eq!(pool.step(), []);
                    }
                }
                Op::Decode(index, token) if !running.is_empty() => {
                    // A full pool refuses; that is part of the history.
                    let _ = pool.decode(*index.get(&running), token);
                }
                Op::Finish(index) if !running.is_empty() => {
                    prop_assert_eq!(pool.finish(running.swap_remove(index.index(running.len()))), Ok(()));
                }
                Op::Reset => prop_assert_eq!(pool.reset_prefix_cache(), running.is_empty()),
                Op::Step | Op::Decode(..) | Op::Finish(_) => picture.apply(&pool.step()),
            }
        }
        picture.apply(&pool.step());
        prop_assert!(picture.copies() <= usable as usize);
        let counted: std::collections::BTreeMap<_, _> =
            picture.held.into_iter().map(|(name, (_, count))| (name, count)).collect();
        prop_assert_eq!(counted, pool.copies());
    }
}
