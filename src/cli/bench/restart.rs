//! A restart of the sidecar: everything that is held into files, and back until the first answer.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::fleet::{self, Fleet, Query, failed};
use crate::block::Grid;
use crate::cli::Failure;
use crate::index::{self, Copies, Index};
use crate::normalize::{self, Normalizer};
use crate::snapshot::{Head, Owner, Snapshot, Store, encode};

/// What a restart takes. Its JSON field names are relied on by other programs.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Restart {
    pub(super) blocks: u64,
    pub(super) file_bytes_per_block: f64,
    /// The longest that one rank's events waited while its snapshot was taken, in milliseconds. They wait in the queue; the
    /// others go on.
    pub(super) longest_stall_ms: f64,
    /// From the first byte read to the first exact answer, all ranks together, in milliseconds. A replay of what was
    /// published meanwhile comes on top.
    pub(super) first_answer_ms: f64,
}

/// Takes every snapshot into a folder of its own, and restores them into a new index.
pub(super) fn measure(fleet: &mut Fleet, grid: Grid) -> Result<Restart, Failure> {
    let folder = std::env::temp_dir().join(format!("kvtap-bench-{}", std::process::id()));
    let measured = Store::open(&folder).map_err(failed).and_then(|store| in_store(fleet, grid, &store));
    let removed = std::fs::remove_dir_all(&folder);
    let restart = measured?;
    removed?;
    Ok(restart)
}

fn in_store(fleet: &mut Fleet, grid: Grid, store: &Store) -> Result<Restart, Failure> {
    let (mut stall, mut bytes) = (Duration::ZERO, 0);
    for (at, engine) in fleet.engines.iter().enumerate() {
        let memory = engine.normalizer.memory().ok_or_else(|| failed("blocks wait for their parents"))?;
        let head = Head { messages: vec![(0, 0)], memory };
        let (owner, rank) = (owner(at), engine.normalizer.rank());
        let start = Instant::now();
        let file = encode(&owner, 1, Some(&head), |visit| {
            fleet.index.export(rank, visit);
            stall = stall.max(start.elapsed());
        });
        bytes += file.len() as u64;
        store.replace(&owner, &file)?;
    }
    let (blocks, newest) = (fleet.held(), fleet.newest());
    let ranks = fleet.engines.len();
    // As at a start, the index before is gone.
    fleet.engines.clear();
    let start = Instant::now();
    restore(store, grid, ranks, &newest)?;
    Ok(Restart {
        blocks,
        file_bytes_per_block: bytes as f64 / blocks.max(1) as f64,
        longest_stall_ms: stall.as_secs_f64() * 1e3,
        first_answer_ms: start.elapsed().as_secs_f64() * 1e3,
    })
}

fn restore(store: &Store, grid: Grid, ranks: usize, newest: &[(crate::worker::RankId, Query)]) -> Result<(), Failure> {
    let index = Index::new(index::Limits { blocks_per_rank: usize::MAX / 2, blocks_in_all: usize::MAX / 2 });
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
    let mut writers = Vec::new();
    for _ in 0..ranks {
        let writer = index.register(fleet::MODEL, Copies::Count).map_err(failed)?;
        writers.push((writer.rank(), Mutex::new(Some(Normalizer::new(writer, normalize::Options::default())))));
    }
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from).min(ranks) {
            scope.spawn(|| {
                while let Some((at, (_, normalizer))) = nth(&writers, &next) {
                    let taken = normalizer.lock().ok().and_then(|mut place| place.take());
                    let restored = taken.map_or(Ok(()), |normalizer| restore_one(store, at, normalizer));
                    if let (Err(error), Ok(mut failure)) = (restored, failure.lock()) {
                        *failure = Some(error);
                    }
                }
            });
        }
    });
    if let Some(failure) = failure.into_inner().ok().flatten() {
        return Err(failure);
    }
    let first = newest.iter().zip(&writers).next();
    first.map_or(Ok(()), |((_, query), (rank, _))| fleet::check(&index, grid, *rank, query))
}

/// The next one of a list that several threads share.
fn nth<'a, T>(list: &'a [T], next: &AtomicUsize) -> Option<(usize, &'a T)> {
    let at = next.fetch_add(1, Ordering::Relaxed);
    list.get(at).map(|item| (at, item))
}

fn restore_one(store: &Store, at: usize, mut normalizer: Normalizer) -> Result<(), Failure> {
    let owner = owner(at);
    let bytes = store.load(&owner).map_err(failed)?.ok_or_else(|| failed("a snapshot is gone"))?;
    let snapshot = Snapshot::read(&bytes, &owner).map_err(failed)?;
    let content = snapshot.content.ok_or_else(|| failed("a snapshot is bare"))?;
    content.restore(snapshot.epoch, &mut normalizer).map(drop).map_err(failed)
}

fn owner(at: usize) -> Owner {
    Owner {
        worker: format!("bench-{at}"),
        model: fleet::MODEL.to_owned(),
        rank: 0,
        endpoint: "tcp://127.0.0.1:5557".to_owned(),
        replay: Some("tcp://127.0.0.1:5558".to_owned()),
        copies: Copies::Count,
    }
}
