//! Captured bytes, damaged, through every door: the fuzz targets' own functions, the same damage each time.
//!
//! This is what keeps `fuzz/` from rotting, and a net of its own: `make fuzz` looks further. So does
//! `KVTAP_DOOR_ROUNDS=100000 cargo test --test doors`, blindly, where there is no time to build that.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "../fuzz/src/doors/mod.rs"]
mod doors;

use doors::door;

/// Damaged inputs for each door. A query takes a round trip, a configuration a parser that is slow unoptimised.
const ROUNDS: usize = 4000;
const SLOW_ROUNDS: usize = 400;

/// Knocks with every seed, then with damaged ones.
#[track_caller]
fn knock(name: &str, rounds: usize) {
    let door = door(name);
    let seeds = (door.seeds)();
    assert!(seeds.len() > 4, "{} seeds", seeds.len());
    seeds.iter().for_each(|seed| (door.knock)(seed));
    (door.knock)(&[]);
    let mut rng = fastrand::Rng::with_seed(0x646f_6f72);
    let asked = std::env::var("KVTAP_DOOR_ROUNDS").ok();
    let rounds = asked.map_or(rounds, |asked| asked.parse().expect("KVTAP_DOOR_ROUNDS is a number"));
    for _ in 0..rounds {
        let mut bytes = seeds[rng.usize(..seeds.len())].clone();
        for _ in 0..rng.usize(1..5) {
            damage(&mut bytes, &seeds, &mut rng);
        }
        (door.knock)(&bytes);
    }
}

/// One of the things that go wrong with bytes.
fn damage(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], rng: &mut fastrand::Rng) {
    if bytes.is_empty() {
        bytes.push(rng.u8(..));
    }
    let at = rng.usize(..bytes.len());
    match rng.u8(..7) {
        0 => bytes[at] = rng.u8(..),
        1 => bytes[at] ^= 1 << rng.u8(..8),
        // The heads of msgpack's containers and of its long things.
        2 => bytes[at] = rng.u8(0xc0..=0xdf),
        3 => bytes.truncate(at),
        4 => bytes.insert(at, rng.u8(..)),
        // A piece of it once more, elsewhere.
        5 => {
            let piece = bytes[at..bytes.len().min(at + rng.usize(1..64))].to_vec();
            let to = rng.usize(..=bytes.len());
            bytes.splice(to..to, piece);
        }
        // The end of another.
        _ => {
            let other = &seeds[rng.usize(..seeds.len())];
            bytes.truncate(at);
            bytes.extend_from_slice(&other[rng.usize(..=other.len())..]);
        }
    }
}

#[test]
fn damaged_batches_break_nothing() {
    knock("wire", ROUNDS);
}

#[test]
fn damaged_trtllm_events_break_nothing() {
    knock("trtllm", ROUNDS);
}

#[test]
fn damaged_router_events_break_nothing() {
    knock("dynamo", ROUNDS);
}

#[test]
fn damaged_frames_break_nothing() {
    knock("frames", ROUNDS);
}

#[test]
fn a_damaged_connection_breaks_nothing() {
    knock("zmtp", SLOW_ROUNDS);
}

#[test]
fn a_damaged_configuration_breaks_nothing() {
    knock("config", SLOW_ROUNDS);
}

#[test]
fn damaged_requests_break_nothing() {
    knock("query", SLOW_ROUNDS);
}

#[test]
fn a_life_of_damaged_messages_breaks_nothing() {
    knock("pipeline", SLOW_ROUNDS);
}

#[test]
fn a_follower_that_is_told_damaged_messages_breaks_nothing() {
    knock("relay", SLOW_ROUNDS);
}

#[test]
fn a_damaged_snapshot_breaks_nothing() {
    knock("snapshot", SLOW_ROUNDS);
}

#[test]
fn every_door_has_a_target_of_its_name() {
    for door in doors::DOORS {
        let target = format!("{}/fuzz/fuzz_targets/{}.rs", env!("CARGO_MANIFEST_DIR"), door.name);
        let text = std::fs::read_to_string(&target).unwrap_or_else(|error| panic!("{target}: {error}"));
        assert!(text.contains(&format!("sow(\"{}\")", door.name)), "{target} starts from another door's corpus");
    }
}

#[test]
fn pieces_that_were_joined_come_apart_again() {
    let pieces: [&[u8]; 4] = [b"", b"a", b"", b"bcd"];
    assert_eq!(doors::split(&doors::join(&pieces)), pieces);
    assert_eq!(doors::split(b"\x05\0ab"), [b"ab"]);
}
