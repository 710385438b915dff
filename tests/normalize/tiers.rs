//! Media, offload stores, and removals that do not say from where.

use kvtap::block::Tier;
use serde_json::json;

use crate::support::{SIZE, Tap, cleared, prompt, removed, stored};

#[test]
fn an_offload_store_joins_the_block_of_its_name() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 2);
    let offload = json!({"medium": "CPU", "block_size": 0});
    tap.send(json!([stored(&[1, 2], None, &tokens, json!({}))]));
    tap.send(json!([stored(&[2], None, &[], offload.clone()), stored(&[77], None, &[], offload)]));
    assert_eq!(tap.dropped("unknown_block"), 1);
    tap.send(json!([removed(&[2], json!({}))]));
    let answer = tap.ask(&tokens);
    assert_eq!((answer.blocks, answer.device), (2, 1));
    assert_eq!((answer.tiers[Tier::Device.index()], answer.tiers[Tier::Host.index()]), (1, 1));
    tap.send(json!([removed(&[2], json!({"medium": "cpu"}))]));
    assert_eq!(tap.ask(&tokens).blocks, 1);
}

#[test]
fn a_medium_nobody_knows_is_a_tier_of_its_own() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 1);
    tap.send(json!([stored(&[1], None, &tokens, json!({"medium": "HOLOGRAM"}))]));
    assert_eq!((tap.ask(&tokens).blocks, tap.ask(&tokens).device), (1, 0));
    tap.send(json!([removed(&[1], json!({"medium": "PUNCHCARD"}))]));
    assert_eq!(tap.ask(&tokens).blocks, 1, "another medium's removal does not touch it");
    tap.send(json!([removed(&[1], json!({"medium": "hologram"}))]));
    assert_eq!(tap.ask(&tokens).blocks, 0);
}

#[test]
fn more_media_than_there_is_room_for_are_counted() {
    let mut tap = Tap::new();
    for i in 0..10u64 {
        let medium = format!("medium-{i}");
        tap.send(json!([stored(&[i], None, &prompt(i as u32, 1), json!({"medium": medium}))]));
    }
    assert_eq!(tap.dropped("too_many_media"), 10 - Tier::OTHERS as u64);
}

#[test]
fn stores_of_another_size_on_another_medium_leave_the_device_alone() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 4);
    tap.send(json!([stored(&[1, 2, 3, 4], None, &tokens, json!({}))]));
    tap.send(json!([stored(&[500], None, &tokens, json!({"block_size": 4 * SIZE, "medium": "cpu"}))]));
    assert_eq!(tap.ask(&tokens).device, 4);
    assert_eq!(tap.normalizer.conflict(), None, "a cache beside the engine's own is no conflict of the engine");
    assert_eq!(tap.dropped("block_size_conflict"), 1);
}

#[test]
fn the_devices_grid_takes_the_place_of_one_that_was_seen_elsewhere() {
    for blocks in [1, 4] {
        let mut tap = Tap::new();
        let tokens = prompt(1, 4);
        let chunk = json!({"block_size": 4 * SIZE, "medium": "cpu"});
        tap.send(json!([
            stored(&[500], None, &tokens, chunk.clone()),
            stored(&[501], Some(7), &tokens, chunk.clone())
        ]));
        assert_eq!((tap.held(), tap.normalizer.orphans()), (1, 1));
        let names: Vec<u64> = (1..=4).collect();
        for (i, names) in names.chunks(blocks).enumerate() {
            let tokens = &tokens[i * blocks * SIZE..][..blocks * SIZE];
            let parent = (i > 0).then(|| names[0] - 1);
            tap.send(json!([stored(names, parent, tokens, json!({}))]));
        }
        assert_eq!((tap.ask(&tokens).device, tap.held()), (4, 4), "{blocks} a message");
        assert_eq!((tap.dropped("partial_block"), tap.dropped("block_size_conflict")), (0, 2));
        assert_eq!((tap.normalizer.conflict(), tap.normalizer.orphans()), (None, 0));
        // From here on it is the device's, whatever else comes.
        tap.send(json!([stored(&[502], None, &tokens, chunk)]));
        assert_eq!((tap.ask(&tokens).device, tap.dropped("block_size_conflict")), (4, 3));
    }
}

#[test]
fn a_clear_does_not_hand_the_grid_to_another_medium() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 4);
    tap.send(json!([stored(&[1, 2, 3, 4], None, &tokens, json!({}))]));
    tap.send(json!([cleared(), stored(&[500], None, &tokens, json!({"block_size": 4 * SIZE, "medium": "cpu"}))]));
    assert_eq!((tap.held(), tap.dropped("block_size_conflict")), (0, 1));
    tap.send(json!([stored(&[1], None, &tokens[..SIZE], json!({}))]));
    assert_eq!((tap.ask(&tokens).device, tap.dropped("partial_block")), (1, 0));
}

#[test]
fn a_block_is_called_partial_by_the_devices_grid_only() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 4);
    tap.send(json!([stored(&[500], None, &tokens, json!({"block_size": 4 * SIZE, "medium": "cpu"}))]));
    tap.send(json!([stored(&[501], None, &tokens[..SIZE], json!({"medium": "disk"}))]));
    assert_eq!((tap.dropped("partial_block"), tap.dropped("block_size_conflict")), (0, 1));
    tap.send(json!([stored(&[1], None, &tokens[..SIZE], json!({}))]));
    tap.send(json!([stored(&[9], None, &tokens[..1], json!({"block_size": 1}))]));
    assert_eq!((tap.dropped("partial_block"), tap.ask(&tokens).device), (1, 1));
}

#[test]
fn removals_that_follow_one_another_are_each_made_and_counted() {
    let mut tap = Tap::new();
    let tokens = prompt(1, 5);
    tap.send(json!([stored(&[1, 2, 3, 4, 5], None, &tokens, json!({}))]));
    let applied = tap.send(json!([
        removed(&[5], json!({})),
        removed(&[99], json!({})),
        removed(&[4, 3], json!({})),
        removed(&[2], json!({"medium": "CPU"})),
        stored(&[3], Some(2), &tokens[2 * SIZE..3 * SIZE], json!({})),
        removed(&[3], json!({})),
    ]));
    assert_eq!(applied.events, 6);
    assert_eq!((tap.held(), tap.ask(&tokens).blocks), (2, 2));
    assert_eq!(tap.dropped("unknown_block"), 2, "99, and 2 where it never was");
}
