//! Engines whose names are not chained (SGLang 0.4.9 to 0.5.5): never overstated, and said to be degraded.

use serde_json::{Value, json};

use crate::support::{SIZE, Tap, cleared, prompt, removed};

/// CPython's hash of a tuple of small integers.
fn name(tokens: &[u32]) -> i64 {
    let mut acc: u64 = 2_870_177_450_012_600_261;
    for token in tokens {
        acc = acc.wrapping_add(u64::from(*token).wrapping_mul(14_029_467_366_897_019_727));
        acc = acc.rotate_left(31).wrapping_mul(11_400_714_785_074_694_791);
    }
    acc.wrapping_add(tokens.len() as u64 ^ (2_870_177_450_012_600_261 ^ 3_527_539)) as i64
}

/// One event a page, as these releases send them.
fn page(parent: Option<&[u32]>, tokens: &[u32]) -> Value {
    json!(["BlockStored", [name(tokens)], parent.map(name), tokens, SIZE, null])
}

#[test]
fn the_feed_is_degraded_from_the_first_block_on() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 1);
    let applied = tap.send(json!([cleared(), page(None, &tokens)]));
    assert!(applied.degraded.is_some());
    assert_eq!(tap.ask(&tokens).blocks, 1, "the first store into an empty cache is a root");
}

#[test]
fn a_nil_parent_is_not_believed_before_the_engine_has_shown_that_it_means_it() {
    let mut tap = Tap::new();
    let (a, b) = (prompt(1, 2), prompt(2, 2));
    tap.send(json!([cleared(), page(None, &a[..SIZE]), page(Some(&a[..SIZE]), &a[SIZE..])]));
    // The first page of a node deep in the tree, sent with a nil parent, and the page after it.
    tap.send(json!([page(None, &b[..SIZE]), page(Some(&b[..SIZE]), &b[SIZE..])]));
    assert_eq!(tap.ask(&b).blocks, 0);
    assert_eq!(tap.dropped("unrooted"), 2);
    assert_eq!(tap.ask(&a).blocks, 2);
    // A page that hangs from an earlier one shows that parents are sent where there are any.
    let c = prompt(3, 1);
    tap.send(json!([page(Some(&a[..SIZE]), &c)]));
    let d = prompt(4, 1);
    tap.send(json!([page(None, &d)]));
    assert_eq!(tap.ask(&d).blocks, 1);
    assert_eq!(tap.ask(&[&a[..SIZE], &c].concat()).blocks, 2);
}

#[test]
fn a_page_under_a_name_that_stands_twice_is_not_guessed() {
    let mut tap = Tap::new();
    let (a, b, x, y) = (prompt(1, 1), prompt(2, 1), prompt(3, 1), prompt(4, 1));
    tap.send(json!([cleared(), page(None, &a), page(Some(&a), &x)]));
    tap.send(json!([page(Some(&a), &b), page(None, &b), page(Some(&b), &x), page(Some(&x), &y)]));
    assert_eq!(tap.ask(&[&a[..], &x, &y].concat()).blocks, 2);
    assert!(tap.ask(&[&b[..], &x, &y].concat()).blocks <= 2);
    assert!(tap.dropped("unrooted") >= 1);
}

#[test]
fn one_removal_withdraws_every_place_of_a_name() {
    let mut tap = Tap::new();
    let (a, b, x) = (prompt(1, 1), prompt(2, 1), prompt(3, 1));
    tap.send(json!([cleared(), page(None, &a), page(Some(&a), &b), page(Some(&a), &x), page(None, &x)]));
    assert_eq!(tap.ask(&x).blocks, 1);
    assert_eq!(tap.ask(&[&a[..], &x].concat()).blocks, 2);
    tap.send(json!([removed(&[name(&x) as u64], json!({}))]));
    assert_eq!(tap.ask(&x).blocks, 0);
    assert_eq!(tap.ask(&[&a[..], &x].concat()).blocks, 1);
}

#[test]
fn a_chained_engine_is_not_suspected() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 1);
    let applied = tap.send(json!([["BlockStored", [-5], null, tokens, SIZE, null]]));
    assert_eq!(applied.degraded, None);
}
