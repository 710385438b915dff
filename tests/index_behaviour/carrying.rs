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
