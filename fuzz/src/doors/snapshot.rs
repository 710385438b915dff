//! A snapshot's file, back into an index: as it lies there, and with a checksum that is right.

use std::collections::HashSet;

use kvtap::index::{Copies, Exported, Index, Limits};
use kvtap::normalize::{Memory, Normalizer, Options};
use kvtap::snapshot::{Head, Owner, Snapshot, encode};
use kvtap::worker::Stamp;
use xxhash_rust::xxh3::xxh3_128;

use super::beside::{Beside, MODEL, fair};

/// Blocks that a rank may hold: few enough for an input to reach.
const CAP: usize = 96;
/// Pieces that are restored in one transaction.
const AT_ONCE: usize = 7;
/// Before the body: magic, version, length, checksum.
const VERSION_END: usize = 12;
const BODY: usize = VERSION_END + 8 + 16;
/// The end of a bare file: the epoch, and that there is no more.
const BARE: usize = 8 + 1;

/// Whose file it is.
pub fn owner() -> Owner {
    Owner {
        worker: "pod".to_owned(),
        model: MODEL.to_owned(),
        rank: 0,
        endpoint: "tcp://h:1".to_owned(),
        replay: Some("tcp://h:2".to_owned()),
        copies: Copies::Count,
    }
}

/// What follows the owner in a file.
pub fn rest(file: &[u8]) -> Vec<u8> {
    file.get(before().len()..).unwrap_or_default().to_vec()
}

/// A file up to its owner's end; length and checksum are those of a bare one.
fn before() -> Vec<u8> {
    let bare = encode(&owner(), 1, None, |_| {});
    bare[..bare.len() - BARE].to_vec()
}

/// What follows the owner in a file; the same bytes are a whole file, too.
pub fn snapshot(bytes: &[u8]) {
    // Whoever passes the checksum by chance has earned it.
    if let Ok(read) = Snapshot::read(bytes, &owner()) {
        restored(read);
    }
    let mut file = before();
    file.extend(bytes);
    let (length, sum) = ((file.len() - BODY) as u64, xxh3_128(&file[BODY..]));
    file[VERSION_END..VERSION_END + 8].copy_from_slice(&length.to_le_bytes());
    file[VERSION_END + 8..BODY].copy_from_slice(&sum.to_le_bytes());
    match Snapshot::read(&file, &owner()) {
        Ok(read) => restored(read),
        Err(refusal) => assert!(!refusal.to_string().is_empty()),
    }
    // One flipped bit is noticed.
    if let Some(last) = file.last_mut() {
        *last ^= 1;
        assert!(Snapshot::read(&file, &owner()).is_err(), "bytes that have changed are believed");
    }
}

fn restored(read: Snapshot<'_>) {
    let index = Index::new(Limits { blocks_per_rank: CAP, blocks_in_all: 4 * CAP });
    let beside = Beside::new(&index);
    let mut normalizer = Normalizer::new(index.register(MODEL, Copies::Count).expect("a rank"), Options::default());
    let rank = normalizer.rank();
    let Some(mut content) = read.content else { return };
    let (mut pieces, mut told, mut asked) = (Vec::new(), 0, Vec::new());
    let (mut blocks, mut names) = (0, HashSet::new());
    let is_whole = loop {
        match content.pieces(AT_ONCE, &mut pieces) {
            Ok(()) if pieces.is_empty() => break true,
            Ok(()) => {}
            Err(_) => break false,
        }
        for piece in &pieces {
            match piece {
                Exported::Block { block, .. } => {
                    told += 1;
                    blocks += 1;
                    names.insert(block.engine);
                    asked.push(block.content);
                }
                Exported::Other { .. } => told += 1,
                Exported::Passed { content, .. } => asked.push(*content),
                Exported::Rank { .. } | Exported::Group { .. } => {}
            }
        }
        if normalizer.restore(&pieces).is_err() {
            break false;
        }
    };
    let stamp = Stamp { epoch: read.epoch, sequence: content.head.messages.last().map(|(sequence, _)| *sequence) };
    let is_whole = is_whole && normalizer.restored(&content.head.memory, stamp).is_ok();
    let usage = index.usage(rank).expect("the rank is there");
    assert!(usage.blocks + usage.window_blocks <= told.min(CAP as u64), "more is held than was told");
    if is_whole {
        assert_eq!(usage.stamp, stamp, "the stamp of another file");
        asked.truncate(4 * CAP);
        fair(&index, &usage, rank, &asked, blocks - names.len() as u64);
        again(&index, &normalizer, read.epoch, &content.head);
    } else {
        // What a keeper does with a file that it refuses.
        normalizer.reset(Stamp::default()).expect("the rank is there");
        let usage = index.usage(rank).expect("the rank is there");
        assert_eq!(usage.blocks + usage.window_blocks, 0, "a refused file left something");
    }
    beside.unchanged();
}

/// What was restored is told again as it is, and restored from that to the same.
fn again(index: &Index, normalizer: &Normalizer, epoch: u64, head: &Head) {
    let Some(memory) = normalizer.memory() else { panic!("blocks wait that no file holds") };
    let file = file(index, normalizer, epoch, head.messages.clone(), memory);
    let read = Snapshot::read(&file, &owner()).expect("our own file");
    let next = Index::new(Limits { blocks_per_rank: CAP, blocks_in_all: 4 * CAP });
    let writer = next.register(MODEL, Copies::Count).expect("a rank");
    let mut other = Normalizer::new(writer, Options::default());
    let mut content = read.content.expect("it holds something");
    let mut pieces = Vec::new();
    loop {
        content.pieces(AT_ONCE, &mut pieces).expect("our own file");
        if pieces.is_empty() {
            break;
        }
        other.restore(&pieces).expect("our own file fits");
    }
    let stamp = index.usage(normalizer.rank()).expect("the rank is there").stamp;
    other.restored(&content.head.memory, stamp).expect("our own file fits");
    let once_more = self::file(&next, &other, epoch, head.messages.clone(), content.head.memory);
    assert_eq!(once_more, file, "a restored snapshot is not what it was");
}

/// The file of what a rank holds.
pub fn file(index: &Index, normalizer: &Normalizer, epoch: u64, messages: Vec<(u64, u64)>, memory: Memory) -> Vec<u8> {
    let head = Head { messages, memory };
    encode(&owner(), epoch, Some(&head), |visit| {
        index.export(normalizer.rank(), visit).expect("the rank is there");
    })
}
