//! Stores whose parent is unknown.

use kvtap::hash::Seed;
use kvtap::normalize::{Options, OrphanLimits};
use serde_json::json;

use crate::support::{SIZE, Tap, cleared, prompt, removed, stored};

#[test]
fn an_orphan_waits_and_takes_its_place_when_the_parent_comes() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 3);
    tap.send(json!([stored(&[3], Some(2), &tokens[2 * SIZE..], json!({}))]));
    assert_eq!((tap.normalizer.orphans(), tap.held()), (1, 0));
    assert_eq!(tap.ask(&tokens[2 * SIZE..]).blocks, 0, "an orphan is no root");
    tap.send(json!([stored(&[2], Some(1), &tokens[SIZE..2 * SIZE], json!({}))]));
    assert_eq!(tap.normalizer.orphans(), 2);
    tap.send(json!([stored(&[1], None, &tokens[..SIZE], json!({}))]));
    assert_eq!(tap.normalizer.orphans(), 0);
    assert_eq!(tap.ask(&tokens).blocks, 3);
}

#[test]
fn an_orphan_inherits_the_salt_of_the_parent_it_waited_for() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 2);
    tap.send(json!([stored(&[2], Some(1), &tokens[SIZE..], json!({}))]));
    tap.send(json!([stored(&[1], None, &tokens[..SIZE], json!({"extra_keys": [["tenant"]]}))]));
    assert_eq!(tap.ask_as(&tokens, Seed::new(None, Some("tenant"))).blocks, 2);
    assert_eq!(tap.ask(&tokens).blocks, 0);
}

#[test]
fn a_removal_reaches_an_orphan_that_waits() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 4);
    tap.send(json!([stored(&[2, 3, 4], Some(1), &tokens[SIZE..], json!({}))]));
    tap.send(json!([removed(&[3], json!({}))]));
    assert_eq!(tap.normalizer.orphans(), 2);
    tap.send(json!([stored(&[1], None, &tokens[..SIZE], json!({}))]));
    assert_eq!(tap.ask(&tokens).blocks, 2, "the block that was removed meanwhile is a hole");
    tap.send(json!([stored(&[3], Some(2), &tokens[2 * SIZE..3 * SIZE], json!({}))]));
    assert_eq!(tap.ask(&tokens).blocks, 4, "and storing it again heals the rest");
}

#[test]
fn an_orphan_all_of_whose_blocks_were_removed_waits_no_longer() {
    let mut tap = Tap::new();
    tap.send(json!([stored(&[2, 3], Some(1), &prompt(1, 2), json!({}))]));
    tap.send(json!([removed(&[3, 2], json!({}))]));
    assert_eq!(tap.normalizer.orphans(), 0);
    assert_eq!(tap.dropped("orphan_removed"), 2);
}

#[test]
fn a_clear_ends_the_waiting() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 2);
    tap.send(json!([stored(&[2], Some(1), &tokens[SIZE..], json!({}))]));
    assert!(tap.send(json!([cleared()])).cleared);
    assert_eq!(tap.normalizer.orphans(), 0);
    tap.send(json!([stored(&[1], None, &tokens[..SIZE], json!({}))]));
    assert_eq!(tap.ask(&tokens).blocks, 1);
}

#[test]
fn the_waiting_room_is_bounded_and_the_longest_waiting_go() {
    let limits = OrphanLimits { blocks: 10, bytes: 1 << 20 };
    let mut tap = Tap::with(Options { orphans: limits, ..Options::default() });
    for i in 0..25u64 {
        tap.send(json!([stored(&[100 + i], Some(1_000 + i), &prompt(i as u32, 1), json!({}))]));
    }
    assert_eq!(tap.normalizer.orphans(), 10);
    assert_eq!(tap.dropped("orphan_evicted"), 15);
}

#[test]
fn a_long_chain_of_orphans_heals_without_depth() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 20_000);
    for i in (1..20_000u64).rev() {
        let block = &tokens[i as usize * SIZE..(i as usize + 1) * SIZE];
        tap.send(json!([stored(&[i + 1], Some(i), block, json!({}))]));
    }
    tap.send(json!([stored(&[1], None, &tokens[..SIZE], json!({}))]));
    assert_eq!(tap.ask(&tokens).blocks, 20_000);
}

#[test]
fn a_block_that_names_itself_as_parent_is_counted() {
    let mut tap = Tap::new();
    tap.send(json!([stored(&[5, 6], Some(6), &prompt(1, 2), json!({}))]));
    assert_eq!(tap.dropped("own_parent"), 2);
    assert_eq!((tap.held(), tap.normalizer.orphans()), (0, 0));
}
