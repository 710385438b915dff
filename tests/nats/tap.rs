//! What kvtap makes of a server's messages: a plane, its board, its index.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvtap::block::Grid;
use kvtap::feed::Following;
use kvtap::feed::nats::{ConnectionOptions, Plane, PlaneOptions};
use kvtap::feed::status::{Board, Entry, State, Status};
use kvtap::hash::Seed;
use kvtap::index::{self, Chain, Index};
use kvtap::normalize;
use kvtap::wire::{Dialect, dynamo};
use kvtap::worker::Identity;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::server::{PATIENCE, Server};

/// Tokens a block, everywhere here.
pub const BLOCK: u32 = 4;

pub struct Tap {
    pub index: Arc<Index>,
    pub board: Arc<Board>,
    pub plane: Plane,
}

/// What a test may want otherwise.
pub fn options(server: &Server, dialect: Dialect, subject: &str) -> PlaneOptions {
    let mut connection = ConnectionOptions::new(server.url().parse().unwrap());
    connection.ping_interval = Duration::from_millis(200);
    connection.first_retry = Duration::from_millis(10);
    connection.longest_retry = Duration::from_millis(100);
    PlaneOptions {
        identity: Identity {
            worker: "plane".into(),
            address: "".into(),
            aliases: Arc::new([]),
            model: "m".into(),
            rank: 0,
        },
        connection,
        pattern: subject.parse().unwrap(),
        stream: None,
        ranks: 0..1,
        max_ranks: 64,
        silence: None,
        following: Following {
            normalize: normalize::Options { block_size: Some(BLOCK), ..Default::default() },
            ..Following::new("dynamo", dialect)
        },
        queue: Default::default(),
    }
}

impl Tap {
    pub fn start(options: PlaneOptions) -> Self {
        let (index, board) = (Index::new(index::Limits::default()), Arc::new(Board::default()));
        let plane = Plane::spawn(options, &index, &board).unwrap();
        Self { index, board, plane }
    }

    /// A tap of Dynamo's event plane that is subscribed.
    pub async fn dynamo(server: &Server, subject: &str) -> Self {
        let tap = Self::start(options(server, Dialect::Dynamo, subject));
        tap.until("plane", 0, "subscribed", |status| status.connected).await;
        tap
    }

    pub fn entry(&self, worker: &str, rank: u32) -> Option<Arc<Entry>> {
        self.board.all().into_iter().find(|e| &*e.identity.worker == worker && e.identity.rank == rank)
    }

    pub fn status(&self, worker: &str, rank: u32) -> Status {
        self.entry(worker, rank).expect("the rank").status().clone()
    }

    pub async fn until(&self, worker: &str, rank: u32, what: &str, condition: impl Fn(&Status) -> bool) -> Status {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.entry(worker, rank).map(|entry| entry.status().clone());
            if let Some(status) = status.clone().filter(|status| condition(status)) {
                return status;
            }
            assert!(Instant::now() < deadline, "{worker}/{rank} was never {what}: {status:?}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn live(&self, worker: &str, rank: u32, events: u64) -> Status {
        let is = |status: &Status| status.state == State::Live && status.events >= events;
        self.until(worker, rank, &format!("live with {events} events"), is).await
    }

    pub async fn incomplete(&self, worker: &str, rank: u32, events: u64) -> Status {
        let is = |status: &Status| status.state == State::Incomplete && status.events >= events;
        self.until(worker, rank, &format!("incomplete with {events} events"), is).await
    }

    /// How many leading blocks of the prompt 0, 1, 2, .. a rank holds.
    pub fn matched(&self, worker: &str, rank: u32) -> u32 {
        let entry = self.entry(worker, rank).expect("the rank");
        let grid = Grid::new(u64::from(BLOCK)).unwrap();
        let contents = contents(0..100);
        let mut found = Vec::new();
        let contents: Vec<_> = contents.into_iter().map(kvtap::hash::ContentHash).collect();
        self.index.match_chain("m", grid, Chain::Content(&contents), Some(&[entry.rank]), &mut found);
        found.first().map_or(0, |found| found.blocks)
    }
}

/// The content hashes of these blocks of the prompt 0, 1, 2, ..
pub fn contents(blocks: std::ops::Range<u32>) -> Vec<u64> {
    let grid = Grid::new(u64::from(BLOCK)).unwrap();
    let tokens: Vec<u8> = (blocks.start * BLOCK..blocks.end * BLOCK).flat_map(u32::to_le_bytes).collect();
    grid.plain_contents(&tokens, Seed::PLAIN).iter().map(|hash| hash.0).collect()
}

/// The engine's name of a block of the prompt.
pub fn name(block: u32) -> u64 {
    0x9000_0000_0000_0000 | u64::from(block)
}

/// A router event that stores these blocks of the prompt.
pub fn stored(worker: u64, rank: u32, blocks: std::ops::Range<u32>) -> Value {
    let parent = blocks.start.checked_sub(1).map(name);
    let hashes = contents(blocks.clone());
    let blocks: Vec<_> =
        blocks.zip(hashes).map(|(block, hash)| json!({"block_hash": name(block), "tokens_hash": hash})).collect();
    router(worker, rank, json!({"stored": {"parent_hash": parent, "blocks": blocks}}))
}

pub fn removed(worker: u64, rank: u32, block: u32) -> Value {
    router(worker, rank, json!({"removed": {"block_hashes": [name(block)]}}))
}

pub fn cleared(worker: u64, rank: u32) -> Value {
    router(worker, rank, json!("cleared"))
}

fn router(worker: u64, rank: u32, data: Value) -> Value {
    json!({"worker_id": worker, "storage_tier": "device", "event": {"event_id": 1, "dp_rank": rank, "data": data}})
}

/// One message of the event plane.
pub fn envelope(publisher: u64, sequence: u64, events: &[Value]) -> Bytes {
    let events: Vec<Vec<u8>> = events.iter().map(|event| rmp_serde::to_vec_named(event).unwrap()).collect();
    dynamo::enclose(publisher, sequence, events.iter().map(Vec::as_slice)).into()
}
