//! What is written is read again, and nothing else is.

use fastrand::Rng;

use super::*;
use crate::block::Tier;
use crate::hash::{ContentHash, PrefixHash, Seed};
use crate::index::Block;

fn owner() -> Owner {
    Owner {
        worker: "pod-a".to_owned(),
        model: "m".to_owned(),
        rank: 1,
        endpoint: "tcp://127.0.0.1:5558".to_owned(),
        replay: Some("tcp://127.0.0.1:5568".to_owned()),
        copies: Copies::Count,
    }
}

fn name(rng: &mut Rng) -> EngineHash {
    EngineHash::from_parts(rng.u64(..), if rng.bool() { 0 } else { rng.u64(1..) })
}

fn head(rng: &mut Rng) -> Head {
    let memory = Memory {
        grid: Some(Grid::with_lookahead(16, 1).expect("a grid")),
        groups: vec![
            GroupMemory { group: Group(0), rule: GroupRule::Full, block_size: 16, bare_window: None },
            GroupMemory { group: Group(2), rule: GroupRule::Window { tokens: 9 }, block_size: 8, bare_window: Some(9) },
        ],
        widest: 7,
        prefix_group: Some(Group(0)),
        media: vec!["TAPE".to_owned()],
        naming: NamingMemory::Unchained { nil_is_root: true, doubtful: vec![name(rng), name(rng)], overflowed: false },
        tentative: true,
        announced: Some(name(rng)),
        cleared: true,
    };
    Head { messages: vec![(3, 30), (4, 40), (9, u64::MAX)], memory }
}

fn pieces(rng: &mut Rng, blocks: usize) -> Vec<Exported> {
    let grid = Grid::new(16).ok();
    let mut pieces = vec![
        Exported::Rank { grid, evicted: 5, partial: true, too_many_groups: false },
        Exported::Group { group: Group(0), note: None },
        Exported::Group { group: Group(7), note: Some((GroupRule::Unknown, 3)) },
        Exported::Other { group: Group(7), engine: name(rng), tier: Tier::Other(3), copies: 2 },
    ];
    let mut before = None;
    for _ in 0..blocks {
        let block = Block { engine: name(rng), content: ContentHash(rng.u64(..)) };
        let parent = [None, before, before, Some(PrefixHash(rng.u64(..)))][rng.usize(0..4)];
        let seed = if rng.u8(0..3) == 0 { Seed(rng.u64(..)) } else { Seed::PLAIN };
        let (tier, group, copies) = match rng.u8(0..3) {
            0 => (Tier::all()[rng.usize(0..Tier::COUNT)], Group(rng.u32(0..3)), rng.u32(0..3)),
            _ => (Tier::Device, Group(0), 1),
        };
        if rng.u8(0..4) == 0 {
            pieces.push(Exported::Passed { content: block.content, parent });
            before = Some(PrefixHash::after(parent, block.content));
            continue;
        }
        pieces.push(Exported::Block { block, parent, seed, tier, group, copies });
        before = Some(PrefixHash::after(parent, block.content));
    }
    pieces
}

fn written(epoch: u64, head: Option<&Head>, pieces: &[Exported]) -> Vec<u8> {
    encode(&owner(), epoch, head, |visit| pieces.iter().copied().for_each(visit))
}

type Read = (u64, Option<(Head, Vec<Exported>)>);

fn read(bytes: &[u8]) -> Result<Read, Refusal> {
    let Snapshot { epoch, content } = Snapshot::read(bytes, &owner())?;
    let Some(mut content) = content else { return Ok((epoch, None)) };
    let (mut all, mut some) = (Vec::new(), Vec::new());
    loop {
        content.pieces(3, &mut some)?;
        if some.is_empty() {
            return Ok((epoch, Some((content.head, all))));
        }
        all.extend_from_slice(&some);
    }
}

/// The bytes with a checksum that is right.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    if let Some((head, body)) = bytes.split_at_mut_checked(36) {
        head[12..20].copy_from_slice(&(body.len() as u64).to_le_bytes());
        head[20..36].copy_from_slice(&xxh3_128(body).to_le_bytes());
    }
    bytes
}

#[test]
fn what_was_written_is_read_again() {
    for seed in 0..50 {
        let rng = &mut Rng::with_seed(seed);
        let (head, pieces) = (head(rng), pieces(rng, seed as usize));
        assert_eq!(read(&written(9, Some(&head), &pieces)), Ok((9, Some((head, pieces)))));
    }
    assert_eq!(read(&written(1 << 62, None, &[])), Ok((1 << 62, None)));
}

#[test]
fn a_count_that_could_not_be_counted_on_is_refused() {
    let head = head(&mut Rng::with_seed(3));
    for (evicted, read_as) in
        [(u64::MAX / 2 - 1, Ok(())), (u64::MAX / 2, Err(Refusal::Malformed)), (u64::MAX, Err(Refusal::Malformed))]
    {
        let rank = Exported::Rank { grid: None, evicted, partial: true, too_many_groups: false };
        assert_eq!(read(&written(9, Some(&head), &[rank])).map(drop), read_as, "{evicted}");
    }
}

#[test]
fn an_ordinary_block_takes_17_bytes() {
    let rng = &mut Rng::with_seed(1);
    let head = head(rng);
    let mut before = None;
    let mut chain = |blocks: u64| {
        let blocks = (0..blocks).map(|n| {
            let block = Block { engine: EngineHash::from_u64(n), content: ContentHash(n) };
            let parent = before.replace(PrefixHash::after(before, block.content));
            Exported::Block { block, parent, seed: Seed::PLAIN, tier: Tier::Device, group: Group(0), copies: 1 }
        });
        written(1, Some(&head), &blocks.collect::<Vec<_>>()).len()
    };
    let none = chain(0);
    assert_eq!(chain(1000) - none, 17 * 1000);
}

#[test]
fn every_truncation_and_every_changed_byte_is_refused() {
    let rng = &mut Rng::with_seed(2);
    let (head, pieces) = (head(rng), pieces(rng, 12));
    let bytes = written(9, Some(&head), &pieces);
    for length in 0..bytes.len() {
        assert!(read(&bytes[..length]).is_err(), "cut at {length}");
    }
    for at in 0..bytes.len() {
        for change in [1, 0x80, 0xff] {
            let mut changed = bytes.clone();
            changed[at] ^= change;
            assert!(read(&changed).is_err(), "byte {at}");
        }
    }
    let mut longer = bytes;
    longer.push(0);
    assert_eq!(read(&longer), Err(Refusal::Torn));
}

#[test]
fn bytes_whose_checksum_is_right_may_be_anything() {
    let rng = &mut Rng::with_seed(3);
    let (head, pieces) = (head(rng), pieces(rng, 12));
    let bytes = written(9, Some(&head), &pieces);
    let mut refused = 0;
    for length in 36..bytes.len() {
        assert!(read(&sealed(bytes[..length].to_vec())).is_err(), "cut at {length}");
    }
    for _ in 0..20_000 {
        let mut changed = bytes.clone();
        for _ in 0..rng.usize(1..4) {
            let at = rng.usize(36..changed.len());
            changed[at] = rng.u8(..);
        }
        // It is read, as something else, or it is refused; nothing else happens, and little is allocated.
        refused += u32::from(read(&sealed(changed)).is_err());
    }
    assert!(refused > 5_000, "{refused}");
}

#[test]
fn each_refusal_has_its_reason() {
    let bytes = written(9, None, &[]);
    let mut version = bytes.clone();
    version[8] = 2;
    let mut sum = bytes.clone();
    sum[30] ^= 1;
    let refusal = |bytes: &[u8]| read(bytes).err();
    assert_eq!(refusal(b"#!/bin/sh"), Some(Refusal::Foreign));
    assert_eq!(refusal(b""), Some(Refusal::Foreign));
    assert!(matches!(refusal(&version), Some(Refusal::Version { .. })));
    assert_eq!(refusal(&bytes[..50]), Some(Refusal::Torn));
    assert_eq!(refusal(&sum), Some(Refusal::Checksum));
    assert_eq!(refusal(&sealed([&bytes[..], &[1]].concat())), Some(Refusal::Malformed));
    let others = [
        Owner { worker: "pod-b".to_owned(), ..owner() },
        Owner { model: "n".to_owned(), ..owner() },
        Owner { rank: 0, ..owner() },
        Owner { endpoint: "tcp://127.0.0.1:5559".to_owned(), ..owner() },
        Owner { replay: None, ..owner() },
        Owner { copies: Copies::Set, ..owner() },
    ];
    for other in others {
        assert_eq!(Snapshot::read(&bytes, &other).err(), Some(Refusal::Owner), "{other:?}");
    }
    let mut words: Vec<_> = Refusal::ALL.map(Refusal::reason).to_vec();
    words.dedup();
    assert_eq!(words.len(), Refusal::ALL.len());
}
