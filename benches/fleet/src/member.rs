//! Members of a fleet in this process: one that taps engines, one that follows.

use std::sync::Arc;
use std::time::{Duration, Instant};

use kvtap::block::Grid;
use kvtap::feed::nats::ConnectionOptions;
use kvtap::feed::status::{Board, Entry, State};
use kvtap::hash::Seed;
use kvtap::index::{Chain, Copies, Index, Limits};
use kvtap::normalize::{Normalizer, Options};
use kvtap::relay::{Follow, Relay, RelayOptions};
use kvtap::wire::{Batch, Dialect, decode, frames};
use kvtap::worker::{Identity, Stamp};

use crate::engines::{BLOCK, Message};

pub const MODEL: &str = "model";

/// Taps ranks: their engines' messages are handed to it as a feed would.
pub struct Owner {
    pub index: Arc<Index>,
    board: Arc<Board>,
    relay: Option<Relay>,
    pub entries: Vec<Arc<Entry>>,
    normalizers: Vec<Normalizer>,
    batch: Batch,
}

/// Follows everybody.
pub struct Follower {
    pub index: Arc<Index>,
    pub board: Arc<Board>,
    relay: Relay,
}

/// Room for what is measured.
fn limits() -> Limits {
    Limits { blocks_in_all: 1 << 24, ..Limits::default() }
}

fn options(url: &str) -> RelayOptions {
    RelayOptions::new(ConnectionOptions::new(url.parse().unwrap()))
}

// === impl Owner ===

impl Owner {
    /// With a `url` it publishes there; else it only taps.
    pub fn new(ranks: usize, url: Option<&str>) -> Self {
        let (index, board) = (Index::new(limits()), Arc::new(Board::default()));
        let mut entries = Vec::new();
        let mut normalizers = Vec::new();
        for rank in 0..ranks {
            let writer = index.register(MODEL, Copies::Count).unwrap();
            let identity = Identity {
                worker: format!("pod-{rank}").into(),
                address: format!("10.0.0.{rank}:8000").into(),
                aliases: Arc::from([]),
                model: MODEL.into(),
                rank: 0,
            };
            let entry = Arc::new(Entry::new(writer.rank(), identity, "tcp://127.0.0.1:5557".into(), None, "vllm"));
            entry.status().state = State::Live;
            board.insert(Arc::clone(&entry));
            entries.push(entry);
            normalizers.push(Normalizer::new(writer, Options::default()));
        }
        let mut owner = Self { index, board, relay: None, entries, normalizers, batch: Batch::default() };
        if let Some(url) = url {
            owner.publish(url);
        }
        owner
    }

    /// Publishes from here on.
    pub fn publish(&mut self, url: &str) {
        let options = RelayOptions { follow: Follow::Nobody, ..options(url) };
        self.relay = Some(Relay::spawn(options, &self.index, &self.board));
    }

    /// From frames to what a match sees.
    pub fn ingest(&mut self, message: &Message) {
        let live = frames::live(&message.frames).unwrap();
        decode(Dialect::Vllm, live.payload, &mut self.batch).unwrap();
        let stamp = Stamp { epoch: 1, sequence: Some(live.sequence) };
        self.normalizers[message.rank].apply(&self.batch, stamp).unwrap();
    }

    pub async fn stop(self) {
        if let Some(relay) = self.relay {
            relay.stop().await;
        }
    }
}

// === impl Follower ===

impl Follower {
    pub fn join(url: &str) -> Self {
        let (index, board) = (Index::new(limits()), Arc::new(Board::default()));
        // The random pause before the first question is chosen, not needed: it is left out of what is measured.
        let relay =
            Relay::spawn(RelayOptions { publish: false, jitter: Duration::ZERO, ..options(url) }, &index, &board);
        Self { index, board, relay }
    }

    /// Whether every rank of an owner is live here and has come as far as there.
    pub fn equals(&self, owner: &Owner) -> bool {
        let board = self.board.all();
        board.len() == owner.entries.len()
            && owner.entries.iter().all(|theirs| {
                let own = board.iter().find(|entry| entry.identity == theirs.identity);
                own.is_some_and(|own| {
                    let (Some(here), Some(there)) = (self.index.usage(own.rank), owner.index.usage(theirs.rank)) else {
                        return false;
                    };
                    own.status().state == State::Live && (here.stamp, here.blocks) == (there.stamp, there.blocks)
                })
            })
    }

    pub async fn until_equal(&self, owner: &Owner) {
        let begun = Instant::now();
        while !self.equals(owner) {
            assert!(begun.elapsed() < Duration::from_secs(120), "the follower never gets there");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub fn rank(&self, worker: &str) -> Option<Arc<Entry>> {
        self.board.all().into_iter().find(|entry| &*entry.identity.worker == worker)
    }

    pub async fn stop(self) {
        self.relay.stop().await;
    }
}

/// How many leading blocks of a prompt a rank holds.
pub fn matched(index: &Index, entry: &Entry, contents: &[kvtap::hash::ContentHash]) -> u32 {
    let mut out = Vec::new();
    let grid = Grid::new(BLOCK as u64).unwrap();
    index.match_chain(MODEL, grid, Chain::Content(contents), Some(&[entry.rank]), &mut out);
    out.first().map_or(0, |found| found.blocks)
}

/// The content hashes of a prompt.
pub fn contents(tokens: &[u32]) -> Vec<kvtap::hash::ContentHash> {
    let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
    Grid::new(BLOCK as u64).unwrap().plain_contents(&bytes, Seed::PLAIN)
}
