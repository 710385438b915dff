//! What a block costs in memory, measured: the figures that `deploy/sizing.yaml` reckons limits with.
//!
//! `cargo test --test sizing -- --nocapture` prints the table. The process's resident memory is looked at, so that what
//! an allocator wastes and what growing tables hold twice for a moment is in the figures.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

use kvtap::block::{Grid, Group, GroupRule, Tier};
use kvtap::hash::{ContentHash, EngineHash, Seed};
use kvtap::index::{Block, Copies, Index, Limits, Parent, RankWriter};
use kvtap::worker::Stamp;

/// Where the bound of a rank lies here. What a table costs depends on where between two doublings it ends, so every
/// count of blocks from a quarter of this on is looked at.
const CAP: u64 = 32 << 10;
/// Blocks of one step of a shape.
const STEP: u64 = 256;
const FIRST: Group = Group(0);
const WINDOWED: Group = Group(1);

/// A way to hold blocks.
struct Shape {
    name: &'static str,
    /// Whether it is what limits are reckoned for, or the dearest that traffic or an engine can make of blocks.
    usual: bool,
    step: fn(&mut RankWriter, u64),
}

const SHAPES: [Shape; 8] = [
    Shape { name: "prompts of 256 blocks", usual: true, step: |rank, step| long(rank, step, u64_name) },
    Shape { name: "the same, named by digests", usual: true, step: |rank, step| long(rank, step, digest_name) },
    Shape { name: "prompts of one block", usual: false, step: one_block_prompts },
    Shape { name: "256 prompts that grow by a block", usual: true, step: growing },
    Shape { name: "tails of 4 blocks under one prefix", usual: true, step: tails },
    Shape { name: "every block on the host too", usual: false, step: offloaded },
    Shape { name: "every block twice", usual: false, step: twice },
    Shape { name: "a sliding window beside", usual: false, step: hybrid },
];

fn mixed(number: u64) -> u64 {
    // SplitMix64: names and contents are as spread as hashes are.
    let z = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) ^ (z >> 31)
}

fn u64_name(number: u64) -> EngineHash {
    EngineHash::from_u64(mixed(number))
}

fn digest_name(number: u64) -> EngineHash {
    EngineHash::from_parts(mixed(number), mixed(!number))
}

fn block(number: u64, name: fn(u64) -> EngineHash) -> Block {
    Block { engine: name(number), content: ContentHash(mixed(number ^ 1 << 63)) }
}

fn blocks(numbers: std::ops::Range<u64>, name: fn(u64) -> EngineHash) -> Vec<Block> {
    numbers.map(|number| block(number, name)).collect()
}

fn names(step: u64) -> Vec<EngineHash> {
    (step * STEP..(step + 1) * STEP).map(u64_name).collect()
}

fn long(rank: &mut RankWriter, step: u64, name: fn(u64) -> EngineHash) {
    let mut tx = rank.begin().unwrap();
    tx.store(Parent::Root(Seed::PLAIN), Tier::Device, FIRST, &blocks(step * STEP..(step + 1) * STEP, name));
    tx.commit(Stamp::default());
}

fn one_block_prompts(rank: &mut RankWriter, step: u64) {
    let mut tx = rank.begin().unwrap();
    for number in step * STEP..(step + 1) * STEP {
        tx.store(Parent::Root(Seed::PLAIN), Tier::Device, FIRST, &[block(number, u64_name)]);
    }
    tx.commit(Stamp::default());
}

/// Each of 256 prompts grows by one block a step, up to 32; then the next 256 begin.
fn growing(rank: &mut RankWriter, step: u64) {
    let mut tx = rank.begin().unwrap();
    for number in step * STEP..(step + 1) * STEP {
        let parent = match step % 32 {
            0 => Parent::Root(Seed::PLAIN),
            // It may have been evicted.
            _ => tx.find(u64_name(number - STEP)).map_or(Parent::Root(Seed::PLAIN), |found| Parent::Under(found.place)),
        };
        tx.store(parent, Tier::Device, FIRST, &[block(number, u64_name)]);
    }
    tx.commit(Stamp::default());
}

fn tails(rank: &mut RankWriter, step: u64) {
    let mut tx = rank.begin().unwrap();
    let first = step * STEP;
    tx.store(Parent::Root(Seed::PLAIN), Tier::Device, FIRST, &blocks(first..first + 16, u64_name));
    for tail in (first + 16..first + STEP).step_by(4) {
        let under = tx.find(u64_name(first + 15)).unwrap().place;
        tx.store(Parent::Under(under), Tier::Device, FIRST, &blocks(tail..tail + 4, u64_name));
    }
    tx.commit(Stamp::default());
}

fn offloaded(rank: &mut RankWriter, step: u64) {
    long(rank, step, u64_name);
    let mut tx = rank.begin().unwrap();
    assert_eq!(tx.store_known(Tier::Host, FIRST, &names(step)), 0);
    tx.commit(Stamp::default());
}

fn twice(rank: &mut RankWriter, step: u64) {
    long(rank, step, u64_name);
    long(rank, step, u64_name);
}

fn hybrid(rank: &mut RankWriter, step: u64) {
    let mut tx = rank.begin().unwrap();
    tx.note_group(WINDOWED, GroupRule::Window { tokens: 1024 }, 16);
    tx.commit(Stamp::default());
    long(rank, step, u64_name);
    let mut tx = rank.begin().unwrap();
    tx.hold(Tier::Device, WINDOWED, &names(step));
    tx.commit(Stamp::default());
}

/// Resident memory of this process in bytes: now, or at its highest.
fn resident(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(key)).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// The most that a bound of so many blocks needed, by the bytes for each, over all bounds from a quarter of `CAP` on;
/// and what it needed at `CAP` after as many blocks again came and went.
fn measure(shape: &Shape, kept: &mut Vec<RankWriter>) -> (f64, f64) {
    let limits = Limits { blocks_per_rank: CAP as usize, blocks_in_all: CAP as usize };
    let index = Index::new(limits);
    let mut rank = index.register("m", Copies::Count).unwrap();
    let mut tx = rank.begin().unwrap();
    tx.set_grid(Grid::new(16).unwrap()).unwrap();
    tx.commit(Stamp::default());
    // 5: the highest mark begins anew.
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = resident("VmRSS:");
    let mut filling = 0f64;
    let mut step = 0;
    let weight = |rank: &RankWriter| {
        let usage = index.usage(rank.rank()).unwrap();
        (usage.blocks + usage.window_blocks, usage.evicted)
    };
    while weight(&rank).1 == 0 {
        (shape.step)(&mut rank, step);
        step += 1;
        let held = weight(&rank).0;
        if held >= CAP / 4 {
            filling = filling.max((resident("VmHWM:") - before) as f64 / held as f64);
        }
    }
    while weight(&rank).1 < CAP {
        (shape.step)(&mut rank, step);
        step += 1;
    }
    assert!(weight(&rank).0 <= CAP, "{} holds more than its bound", shape.name);
    let full = (resident("VmHWM:") - before) as f64 / CAP as f64;
    // Freed memory would be taken again by the next shape and not be seen there.
    kept.push(rank);
    (filling, full)
}

fn figure(key: &str) -> f64 {
    let file = std::fs::read_to_string(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("deploy/sizing.yaml"));
    let file = file.unwrap();
    let line = file.lines().find_map(|line| line.strip_prefix(&format!("{key}: ")));
    line.unwrap_or_else(|| panic!("deploy/sizing.yaml has no {key}")).parse().unwrap()
}

#[test]
fn a_block_costs_no_more_than_limits_are_reckoned_with_and_not_much_less() {
    let mut kept = Vec::new();
    let mut most = [0f64; 2];
    println!("{:36} {:>8} {:>8}   bytes a block", "", "filling", "full");
    for shape in &SHAPES {
        let (filling, full) = measure(shape, &mut kept);
        println!("{:36} {filling:8.1} {full:8.1}", shape.name);
        let most = &mut most[usize::from(!shape.usual)];
        *most = most.max(filling).max(full);
    }
    for (key, most) in [("bytes_per_block", most[0]), ("worst_bytes_per_block", most[1])] {
        let reckoned = figure(key);
        assert!(most <= reckoned, "{key}: {most:.0} were needed, {reckoned} are reckoned with");
        assert!(reckoned <= 2.0 * most, "{key}: {reckoned} are reckoned with, {most:.0} were needed");
    }
}
