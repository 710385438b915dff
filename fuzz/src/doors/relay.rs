//! What a follower is told of a rank: batches of deltas, announcements, pieces of snapshots, into a mirror; and the same feed
//! as a `Watch` tells it, into a replica.

use std::sync::Arc;

use kvtap::hash::ContentHash;
use kvtap::index::{Chain, Copies, Index, Limits, TapBounds};
use kvtap::proto::v1;
use kvtap::relay::{Address, message};
use kvtap::replica::{Message, Mirror, Replica, encode};
use prost::Message as _;

use super::beside::{Beside, MODEL, fair};
use super::split;

/// Blocks that a rank may hold: few enough for an input to reach.
const CAP: usize = 96;
/// The rank that the subject names.
const WORKER: &str = "pod";
/// The registration that is followed.
pub const LIFE: u64 = 7;

/// A batch of deltas.
pub const BATCH: u8 = 0;
/// A piece of a snapshot, which is compressed on its way in.
pub const PIECE: u8 = 1;
/// A piece as it comes from outside.
pub const COMPRESSED: u8 = 2;
/// An announcement.
pub const ANNOUNCEMENT: u8 = 3;
/// A response of a `Watch`.
pub const WATCHED: u8 = 4;
const KINDS: u8 = 5;

/// The follower under test.
struct Follower {
    address: Address,
    index: Arc<Index>,
    mirror: Mirror,
    replica: Replica,
    /// Blocks that were told as stored since nothing was held: what the rank may hold at most.
    told: u64,
}

/// The key of the rank under test.
pub fn key() -> v1::RankKey {
    v1::RankKey { worker: WORKER.to_owned(), model: MODEL.to_owned(), rank: 0, life: LIFE }
}

/// Messages, each with its length; the first byte of each says which kind it is.
pub fn relay(bytes: &[u8]) {
    let index = Index::new(Limits { blocks_per_rank: CAP, blocks_in_all: 4 * CAP });
    let beside = Beside::new(&index);
    let listener = index.listen(TapBounds::default());
    let writer = index.register(MODEL, Copies::Set).expect("a rank");
    let (rank, mirror) = (writer.rank(), Mirror::new(writer));
    let replica = Replica::new(Index::new(Limits { blocks_per_rank: CAP, blocks_in_all: 4 * CAP }));
    let address = Address::new(MODEL, WORKER, 0);
    let mut follower = Follower { address, index: Arc::clone(&index), mirror, replica, told: 0 };
    for message in split(bytes) {
        if let Some((kind, message)) = message.split_first() {
            follower.hear(*kind, message);
        }
    }
    beside.unchanged();
    if follower.mirror.at().is_some() {
        let snapshot = listener.follow(rank).expect("the rank is there");
        follower.told_on(snapshot);
    }
    follower.heals();
    index.remove(rank);
    assert!(follower.mirror.apply(LIFE, begin()).is_err(), "a removed rank came back");
    assert!(index.usage(rank).is_none() && follower.mirror.at().is_none(), "a removed rank still holds something");
    beside.unchanged();
}

// === impl Follower ===

impl Follower {
    fn hear(&mut self, kind: u8, bytes: &[u8]) {
        match kind % KINDS {
            BATCH => {
                let Ok(batch) = message::Batch::decode(bytes) else { return };
                for delta in &batch.deltas {
                    match Message::bare_delta(delta) {
                        Ok(told) => self.apply(batch.life, told),
                        // What a follower does with a delta that it cannot read.
                        Err(error) => {
                            assert!(!error.to_string().is_empty());
                            self.mirror.forget();
                        }
                    }
                }
            }
            PIECE => {
                let Ok(event) = v1::Event::decode(bytes) else { return };
                let Some(event) = event.event else { return };
                self.piece(&message::encode_piece(event).expect("it is compressed"));
            }
            COMPRESSED => self.piece(bytes),
            ANNOUNCEMENT => {
                if let Ok(said) = message::announcement(bytes, &self.address) {
                    let named = said.worker_rank.expect("it names a rank");
                    assert_eq!((&*named.worker, &*named.model, named.rank), (WORKER, MODEL, 0), "of another rank");
                }
            }
            _ => self.watched(bytes),
        }
    }

    fn piece(&mut self, bytes: &[u8]) {
        if let Ok((life, told)) = message::decode_piece(bytes, &self.address) {
            self.apply(life, told);
        }
    }

    fn apply(&mut self, life: u64, told: Message) {
        let (changes, begins) = match &told {
            Message::Begin(_, changes, _) => (&changes[..], true),
            Message::Part(changes) | Message::Delta { changes, .. } => (&changes[..], false),
            Message::End(..) => (&[][..], false),
        };
        if begins {
            self.told = 0;
        }
        let mut asked = Vec::new();
        for run in changes.iter().filter_map(|change| match change {
            kvtap::index::Change::Run(run) => Some(run),
            _ => None,
        }) {
            if matches!(run.what, kvtap::index::What::Stored(_)) {
                self.told += run.contents.len() as u64;
            }
            if run.parent.is_none() {
                asked = run.contents.to_vec();
            }
        }
        let applied = self.mirror.apply(life, told);
        let usage = self.index.usage(self.mirror.rank()).expect("the rank is there");
        let held = usage.blocks + usage.window_blocks;
        if let Err(fault) = applied {
            assert!(!fault.to_string().is_empty());
            assert_eq!((held, self.mirror.at()), (0, None), "something is held after {fault}");
            self.told = 0;
        }
        assert!(held <= self.told, "{held} held of {} that were told", self.told);
        assert!(held <= CAP as u64, "over a bound");
        if let Some(at) = self.mirror.at() {
            assert_eq!(usage.stamp, at.stamp, "the stamp of another message");
        }
        asked.truncate(4 * CAP);
        fair(&self.index, &usage, self.mirror.rank(), &asked, 0);
    }

    fn watched(&mut self, bytes: &[u8]) {
        let Ok(response) = v1::WatchResponse::decode(bytes) else { return };
        let heard = self.replica.hear(response);
        if let Err(error) = &heard {
            assert!(!error.to_string().is_empty());
            assert!(self.replica.resume_after().is_empty(), "a cursor that goes on after a fault");
        }
        for (rank, _) in self.replica.index().ranks() {
            let usage = self.replica.index().usage(rank).expect("the rank is there");
            assert!(usage.blocks + usage.window_blocks <= CAP as u64, "over a bound");
        }
    }

    /// Who follows this follower holds the same.
    fn told_on(&self, snapshot: kvtap::index::Delta) {
        let index = Index::new(Limits::default());
        let mut next = Mirror::new(index.register(MODEL, Copies::Set).expect("a rank"));
        for event in encode::Snapshot::new(key(), Arc::new(snapshot)) {
            let piece = message::encode_piece(event).expect("it is compressed");
            let (life, told) = message::decode_piece(&piece, &self.address).expect("our own piece");
            next.apply(life, told).expect("our own piece fits");
        }
        assert!(next.at().is_some(), "our own snapshot is not whole");
        let here = self.index.usage(self.mirror.rank()).expect("the rank is there");
        let there = index.usage(next.rank()).expect("the rank is there");
        let seen = |usage: &kvtap::index::RankUsage| (usage.blocks, usage.by_tier, usage.grid, usage.stamp);
        assert_eq!(seen(&there), seen(&here), "a mirror of the mirror holds something else");
    }

    /// A good snapshot heals whatever came before.
    fn heals(&mut self) {
        let mut run = v1::BlockRun {
            kind: v1::RunKind::Stored.into(),
            tier: v1::Tier::Device.into(),
            content_hashes: vec![5, 6, 7],
            ..v1::BlockRun::default()
        };
        let contents: Vec<ContentHash> = run.content_hashes.iter().copied().map(ContentHash).collect();
        let mut last = None;
        run.prefix_hashes.extend(contents.iter().map(|content| {
            let next = kvtap::hash::PrefixHash::after(last, *content);
            last = Some(next);
            next.0
        }));
        let part = v1::SnapshotPart { key: Some(key()), runs: vec![run] };
        for told in [begin(), Message::part(&part).expect("a good message"), end(1)] {
            self.mirror.apply(LIFE, told).expect("a good snapshot is taken");
        }
        let mut found = Vec::new();
        let grid = kvtap::block::Grid::new(4).expect("a grid");
        let ranks = [self.mirror.rank()];
        self.index.match_chain(MODEL, grid, Chain::Content(&contents), Some(&ranks), &mut found);
        assert_eq!(found.first().map(|found| found.blocks), Some(3), "a good snapshot is lost");
    }
}

/// Where a good snapshot is.
const AT: v1::Point = v1::Point { number: 1, epoch: 1, sequence: Some(1) };

fn begin() -> Message {
    let grid = Some(v1::Grid { block_size: 4, lookahead: 0 });
    let begin = v1::SnapshotBegin { key: Some(key()), at: Some(AT), grid, groups: None, partial: false, blocks: 0 };
    Message::begin(&begin).expect("a good message")
}

fn end(parts: u64) -> Message {
    Message::end(&v1::SnapshotEnd { key: Some(key()), at: Some(AT), parts }).expect("a good message")
}
