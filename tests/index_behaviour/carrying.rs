//! What a rank holds, told and taken back.

use kvtap::block::{Group, Tier};
use kvtap::hash::{ContentHash, EngineHash, PrefixHash, Seed};
use kvtap::index::{Block, Exported, IndexError, Limits};
use kvtap::worker::Stamp;

use crate::fleet::{Fleet, GROUP, Worker, grid, prompt};

fn exported(worker: &Worker) -> Vec<Exported> {
    let mut pieces = Vec::new();
    worker.index.export(worker.id(), &mut |piece| pieces.push(piece)).expect("it is registered");
    pieces
}

fn restore(worker: &mut Worker, piece: &Exported) -> Result<(), IndexError> {
    worker.writer.begin()?.restore(piece)
}

const PLAIN: Exported = Exported::Group { group: GROUP, note: None };

fn rank() -> Exported {
    Exported::Rank { grid: Some(grid()), evicted: 0, partial: false, too_many_groups: false }
}

fn block(name: u64, parent: Option<PrefixHash>, copies: u32) -> Exported {
    let block = Block { engine: EngineHash::from_u64(name), content: ContentHash(name) };
    Exported::Block { block, parent, seed: Seed::PLAIN, tier: Tier::Device, group: GROUP, copies }
}

#[test]
fn what_stands_behind_a_hole_comes_back_though_others_store_and_evict_the_same_meanwhile() {
    let mut old = Fleet::new().worker();
    let chain = prompt(0, 0..40);
    old.store(&chain);
    old.remove(&chain, 3..36);
    let pieces = exported(&old);
    assert_eq!(pieces.iter().filter(|piece| matches!(piece, Exported::Passed { .. })).count(), 33);

    let fleet = Fleet::new();
    let (mut new, mut other) = (fleet.worker(), fleet.worker());
    for (piece, n) in pieces.iter().zip(0..) {
        restore(&mut new, piece).expect("an export says so");
        other.store(&prompt(n % 2, 0..40));
        other.clear();
    }
    assert_eq!(exported(&new), pieces);
    assert_eq!((new.usage().blocks, new.holds(&chain)), (7, 3));
    new.store_on(Tier::Device, &chain, 3..36).expect("the parent is known");
    assert_eq!(new.holds(&chain), 40);
}

#[test]
fn what_there_is_no_room_for_is_let_go_of_and_the_rank_is_partial() {
    let mut old = Fleet::new().worker();
    let chain = prompt(0, 0..6);
    old.store(&chain);
    old.remove(&chain, 3..5);
    let pieces = exported(&old);
    for (others, left) in [(4, 0), (2, 2), (0, 4)] {
        let fleet = Fleet::with(Limits { blocks_per_rank: 9, blocks_in_all: 4 });
        let (mut new, mut other) = (fleet.worker(), fleet.worker());
        other.store(&prompt(1, 0..others));
        for piece in &pieces {
            restore(&mut new, piece).expect("an export says so");
        }
        let usage = new.usage();
        assert_eq!((usage.blocks, usage.evicted), (left, 4 - left), "{others} blocks of another");
        assert_eq!(new.answer(&chain).partial, left < 4);
    }
}

/// Sequences side by side, a block of each by turns; of two the second begins where the first is half told.
fn side_by_side(worker: &mut Worker, sequences: u64, blocks: usize) {
    for i in 0..blocks {
        for n in 0..sequences {
            let chain = sequence(n, blocks);
            let from = if n % 2 == 1 { blocks / 2 } else { 0 };
            if i >= from {
                worker.store_on(Tier::Device, &chain, i..i + 1).expect("the parent is known");
            }
        }
    }
}

/// The first half of one of two is that of the other, too.
fn sequence(n: u64, blocks: usize) -> Vec<ContentHash> {
    [prompt(100 + n / 2, 0..blocks / 2), prompt(200 + n, blocks / 2..blocks)].concat()
}

#[test]
fn sequences_that_were_decoded_side_by_side_come_back_many_at_a_time_as_they_do_one_by_one() {
    let (sequences, blocks) = (12, 90);
    let mut old = Fleet::new().worker();
    side_by_side(&mut old, sequences, blocks);
    old.remove(&sequence(3, blocks), 70..blocks);
    old.remove(&sequence(4, blocks), 30..31);
    let pieces = exported(&old);
    for at_once in [1, 9, 64, 700, usize::MAX] {
        let fleet = Fleet::new();
        let (mut new, mut other) = (fleet.worker(), fleet.worker());
        for (n, some) in (0..).zip(pieces.chunks(at_once)) {
            new.writer.reserve(pieces.len());
            new.writer.begin().expect("it is registered").restore_all(some).expect("an export says so");
            // Others hold some of the same meanwhile, and let go of it.
            if n % 3 == 1 {
                other.clear();
                other.store(&sequence(n % sequences, blocks));
            }
        }
        assert_eq!(exported(&new), pieces, "{at_once} at a time");
        assert_eq!(new.usage().blocks, old.usage().blocks);
        for n in 0..sequences {
            assert_eq!(new.holds(&sequence(n, blocks)), old.holds(&sequence(n, blocks)));
        }
        // What is stored next evicts and lengthens as it does in the old one.
        for worker in [&mut old, &mut new] {
            worker.store_on(Tier::Device, &sequence(4, blocks), 30..31).expect("the parent is known");
        }
        assert_eq!(new.holds(&sequence(4, blocks)), blocks as u32);
        old.remove(&sequence(4, blocks), 30..31);
    }
}

#[test]
fn a_bound_evicts_what_came_back_many_at_a_time_in_the_order_in_which_it_was_stored() {
    let mut old = Fleet::new().worker();
    side_by_side(&mut old, 6, 40);
    let pieces = exported(&old);
    let blocks = old.usage().blocks as usize;
    let left = |rows: bool| {
        let fleet = Fleet::with(Limits { blocks_per_rank: blocks, blocks_in_all: usize::MAX });
        let mut new = fleet.worker();
        if rows {
            new.writer.begin().expect("it is registered").restore_all(&pieces).expect("an export says so");
        } else {
            pieces.iter().for_each(|piece| restore(&mut new, piece).expect("an export says so"));
        }
        new.store(&prompt(7, 0..50));
        assert_eq!((new.usage().blocks as usize, new.usage().evicted), (blocks, 50));
        exported(&new)
    };
    assert_eq!(left(true), left(false));
}

#[test]
fn in_a_row_of_blocks_what_no_export_says_is_refused_as_it_is_alone() {
    let root = |n: u64| PrefixHash::after(None, ContentHash(n));
    let good: Vec<Exported> = (1..40).map(|n| block(n, None, 1)).collect();
    let elsewhere = Block { engine: EngineHash::from_u64(3), content: ContentHash(99) };
    let (seed, tier) = (Seed::PLAIN, Tier::Device);
    let wrong = [
        block(50, Some(PrefixHash(999)), 1),
        block(50, None, 0),
        Exported::Block { block: elsewhere, parent: None, seed, tier, group: GROUP, copies: 1 },
        Exported::Block { block: elsewhere, parent: Some(root(2)), seed, tier, group: GROUP, copies: 1 },
    ];
    for at in [0, 5, 20, 39] {
        for piece in wrong {
            let fleet = Fleet::new();
            let mut worker = fleet.worker();
            for piece in [rank(), PLAIN, block(3, None, 1), block(1000, Some(root(3)), 1)] {
                assert_eq!(restore(&mut worker, &piece), Ok(()));
            }
            let mut row: Vec<Exported> = good.iter().copied().filter(|piece| *piece != block(3, None, 1)).collect();
            row.insert(at.min(row.len()), piece);
            let refused = worker.writer.begin().expect("it is registered").restore_all(&row);
            assert_eq!(refused, Err(IndexError::NotAnExport), "{piece:?} at {at}");
        }
    }
}

#[test]
fn what_no_export_says_is_refused_and_changes_nothing() {
    let fleet = Fleet::new();
    let mut worker = fleet.worker();
    for piece in [rank(), PLAIN, block(1, None, 2)] {
        assert_eq!(restore(&mut worker, &piece), Ok(()));
    }
    let before = (exported(&worker), worker.usage());
    let root = PrefixHash::after(None, ContentHash(1));
    let elsewhere = Block { engine: EngineHash::from_u64(1), content: ContentHash(2) };
    let (seed, tier, engine) = (Seed::PLAIN, Tier::Device, EngineHash::from_u64(7));
    let nonsense = [
        rank(),
        block(2, None, 0),
        block(2, Some(PrefixHash(9)), 1),
        Exported::Block { block: elsewhere, parent: None, seed, tier, group: GROUP, copies: 1 },
        Exported::Passed { content: ContentHash(1), parent: None },
        Exported::Passed { content: ContentHash(3), parent: Some(PrefixHash(9)) },
        Exported::Other { group: Group(1), engine, tier, copies: 0 },
    ];
    for piece in nonsense {
        assert_eq!(restore(&mut worker, &piece), Err(IndexError::NotAnExport), "{piece:?}");
        assert_eq!((exported(&worker), worker.usage()), before, "{piece:?}");
    }
    assert_eq!(restore(&mut worker, &block(2, Some(root), 1)), Ok(()));
    worker.writer.begin().expect("it is registered").commit(Stamp::default());
    assert_eq!(restore(&mut worker, &block(3, Some(root), 1)), Err(IndexError::NotAnExport), "it was over");
    assert_eq!(worker.usage().blocks, 2);
}

#[test]
fn blocks_need_a_grid_and_a_removed_rank_tells_nothing() {
    let fleet = Fleet::new();
    let mut writer = fleet.index.register("m", Default::default()).expect("there is room");
    let mut tx = writer.begin().expect("it is registered");
    for piece in [block(1, None, 1), Exported::Passed { content: ContentHash(1), parent: None }] {
        assert_eq!(tx.restore(&piece), Err(IndexError::NotAnExport));
    }
    drop(tx);
    fleet.index.remove(writer.rank());
    assert_eq!(fleet.index.export(writer.rank(), &mut |piece| panic!("{piece:?}")), None);
}
