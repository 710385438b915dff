//! One subscriber: everything that is held, then what changes, in numbered batches, the last of which are kept.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use prost::Message;
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
use crate::serve::watch::{Seat, Watcher};

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
    /// The last batches that were sent, and their bytes: they may be under way when a connection breaks.
    sent: VecDeque<KvEventBatch>,
    sent_bytes: usize,
    /// What is sent again before anything else.
    again: VecDeque<KvEventBatch>,
}

/// The most blocks that one batch tells: about 150 KiB.
const MOST: usize = 4096;
/// Bytes of batches that are kept after they were sent; the last one is kept whatever its size.
const KEPT: usize = 1 << 20;

// === impl Subscription ===

impl Subscription {
    /// A subscription whose first batch has the number after `base`.
    pub(super) fn new(watcher: Watcher, base: u64) -> Self {
        Self {
            watcher,
            told: Told::default(),
            outbox: VecDeque::new(),
            beginning: None,
            has_begun: false,
            sequence: base,
            events: 0,
            sent: VecDeque::new(),
            sent_bytes: 0,
            again: VecDeque::new(),
        }
    }

    /// Leaves its place to others, and waits to be gone on with.
    pub(super) fn rest(&mut self) {
        self.watcher.rest();
    }

    /// Goes on after the batch with the number `after`, in a place of its own. `false`: what follows it is kept no more,
    /// or it was never sent.
    pub(super) fn go_on(&mut self, after: u64, seat: Seat) -> bool {
        let oldest = self.sequence - self.sent.len() as u64;
        if !(oldest..=self.sequence).contains(&after) {
            return false;
        }
        self.watcher.go_on(seat);
        self.again = self.sent.iter().filter(|batch| batch.sequence_number > after).cloned().collect();
        true
    }

    /// The next batch; waits for it. After an error there is none. Whoever stops waiting has lost nothing.
    pub(super) async fn next(&mut self) -> Result<KvEventBatch, Status> {
        if let Some(batch) = self.again.pop_front() {
            return Ok(batch);
        }
        loop {
            if let Some(pieces) = self.outbox.pop_front() {
                let batch = self.batch(pieces);
                self.keep(&batch);
                return Ok(batch);
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

    fn keep(&mut self, batch: &KvEventBatch) {
        self.sent_bytes += batch.encoded_len();
        self.sent.push_back(batch.clone());
        while self.sent_bytes > KEPT && self.sent.len() > 1 {
            let Some(oldest) = self.sent.pop_front() else { break };
            self.sent_bytes -= oldest.encoded_len();
        }
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
