//! One subscriber: everything that is held, then what changes, in numbered batches.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use tonic::Status;

use super::stand_in;
use super::told::{Piece, Told, portions};
use crate::feed::status::State;
use crate::hash::ContentHash;
use crate::proto::smg::kv_cache_event::Data;
use crate::proto::smg::{
    KvBlock, KvBlocksRemoved, KvBlocksStored, KvCacheCleared, KvCacheEvent, KvEventBatch, KvSnapshotChunk,
};
use crate::proto::v1::watch_response::What;
use crate::serve::watch::Watcher;

/// A subscription under way.
#[derive(Debug)]
pub(super) struct Subscription {
    watcher: Watcher,
    told: Told,
    /// Batches that are to be sent.
    outbox: VecDeque<Vec<Piece>>,
    /// While everything that is held is told: what the next batch says of that.
    beginning: Option<KvSnapshotChunk>,
    has_begun: bool,
    /// The numbers of the last batch and of the last event.
    sequence: u64,
    events: u64,
}

/// The most blocks that one batch tells: about 150 KiB.
const MOST: usize = 4096;

// === impl Subscription ===

impl Subscription {
    pub(super) fn new(watcher: Watcher) -> Self {
        Self {
            watcher,
            told: Told::default(),
            outbox: VecDeque::new(),
            beginning: None,
            has_begun: false,
            sequence: 0,
            events: 0,
        }
    }

    /// The next batch; waits for it. After an error there is none.
    pub(super) async fn next(&mut self) -> Result<KvEventBatch, Status> {
        loop {
            if let Some(pieces) = self.outbox.pop_front() {
                return Ok(self.batch(pieces));
            }
            match self.watcher.next().await?.what {
                Some(What::Event(event)) => {
                    let is_whole = event.event.is_some_and(|event| self.told.hear(event));
                    if is_whole && self.has_begun {
                        self.outbox = portions(self.told.take(), MOST).into();
                    }
                }
                Some(What::Synced(_)) => self.begin(),
                Some(What::Started(_)) | None => {}
            }
        }
    }

    /// Everything that is held has been heard.
    fn begin(&mut self) {
        let mut pieces = vec![Piece::Cleared];
        pieces.append(&mut self.told.take());
        let blocks = pieces.iter().filter(|piece| matches!(piece, Piece::Stored { .. })).map(Piece::len);
        let blocks = blocks.sum::<usize>() as u64;
        self.outbox = portions(pieces, MOST).into();
        let count = u32::try_from(self.outbox.len()).unwrap_or(u32::MAX);
        self.beginning = Some(KvSnapshotChunk { index: 0, count, blocks, unknown_before: self.unknown() });
        self.has_begun = true;
    }

    /// How many messages are missing in what was told; 1 where there are some and nobody knows how many.
    fn unknown(&self) -> u64 {
        let missing = self.watcher.entries().into_iter().map(|entry| {
            let status = entry.status();
            if status.state == State::Live { 0 } else { status.missed.max(1) }
        });
        missing.sum::<u64>().max(u64::from(self.told.is_partial()))
    }

    fn batch(&mut self, pieces: Vec<Piece>) -> KvEventBatch {
        self.sequence += 1;
        let snapshot = self.beginning;
        self.beginning = self.beginning.filter(|_| !self.outbox.is_empty());
        if let Some(next) = &mut self.beginning {
            next.index += 1;
        }
        let events = pieces.into_iter().map(|piece| {
            self.events += u64::from(snapshot.is_none());
            KvCacheEvent { event_id: if snapshot.is_none() { self.events } else { 0 }, data: Some(data(piece)) }
        });
        let events = events.collect();
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        KvEventBatch { sequence_number: self.sequence, timestamp, events, snapshot }
    }
}

/// A piece in the words of the gateway.
fn data(piece: Piece) -> Data {
    // A block without a level lies on the device.
    let cache_level = |level: u8| (level != 0).then_some(i32::from(level));
    match piece {
        Piece::Cleared => Data::Cleared(KvCacheCleared {}),
        Piece::Removed { level, blocks } => {
            let block_hashes = blocks.into_iter().map(u64::cast_signed).collect();
            Data::Removed(KvBlocksRemoved { block_hashes, cache_level: cache_level(level) })
        }
        Piece::Stored { parent, level, block_size, blocks } => {
            let block = |(block, content): (u64, u64)| KvBlock {
                block_hash: block.cast_signed(),
                token_ids: stand_in::tokens(ContentHash(content)).to_vec(),
                block_size: i32::try_from(block_size).unwrap_or(i32::MAX),
                cache_level: cache_level(level),
            };
            let blocks = blocks.into_iter().map(block).collect();
            Data::Stored(KvBlocksStored { blocks, parent_block_hash: parent.map(u64::cast_signed) })
        }
    }
}
