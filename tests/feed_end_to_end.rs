//! A whole feed over real sockets: a publisher with a replay socket, [`Feed::spawn`], the index and the board.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use kvtap::block::Grid;
use kvtap::feed::status::{Board, Entry, State, Status};
use kvtap::feed::zmq::{Endpoint, Mode, ReplayOptions, SubOptions};
use kvtap::feed::{Feed, Following, Options};
use kvtap::hash::Seed;
use kvtap::index::{self, Chain, Index};
use kvtap::wire::Dialect;
use kvtap::worker::Identity;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

const PATIENCE: Duration = Duration::from_secs(30);

/// One life of an engine: what it publishes stays in its replay buffer.
struct Engine {
    live: PubSocket,
    kept: Arc<Mutex<Vec<Bytes>>>,
    replay: JoinHandle<()>,
    life: f64,
}

impl Engine {
    /// Binds both sockets under `folder`.
    async fn start(folder: &std::path::Path, life: u32) -> Self {
        let mut live = PubSocket::new();
        let mut router = RouterSocket::new();
        for name in ["live", "replay"] {
            // What a dead engine leaves behind.
            drop(std::fs::remove_file(folder.join(name)));
        }
        live.bind(&ipc(folder, "live")).await.expect("bind the publisher");
        router.bind(&ipc(folder, "replay")).await.expect("bind the replay socket");
        let kept = Arc::new(Mutex::new(Vec::<Bytes>::new()));
        let buffer = Arc::clone(&kept);
        let replay = tokio::spawn(async move {
            while let Ok(request) = router.recv().await {
                let frames = request.into_vec();
                let [client, empty, start] = frames.as_slice() else { continue };
                let start = u64::from_be_bytes(start.as_ref().try_into().expect("eight bytes"));
                let kept = buffer.lock().expect("lock").clone();
                let batches = kept.into_iter().zip(0u64..).skip(start as usize);
                let replies = batches.map(|(payload, n)| (n, payload)).chain([(u64::MAX, Bytes::new())]);
                for (n, payload) in replies {
                    let sequence = Bytes::copy_from_slice(&n.to_be_bytes());
                    let reply = vec![client.clone(), empty.clone(), Bytes::new(), sequence, payload];
                    if router.send(ZmqMessage::try_from(reply).expect("frames")).await.is_err() {
                        break;
                    }
                }
            }
        });
        Self { live, kept, replay, life: f64::from(life) }
    }

    /// Stores the next block of the prompt 0, 1, 2, …; `heard`: on the live socket too.
    async fn store(&mut self, heard: bool) {
        let (n, payload) = {
            let mut kept = self.kept.lock().expect("lock");
            let n = kept.len();
            let payload = stored(self.life, n as u32);
            kept.push(payload.clone());
            (n as u64, payload)
        };
        if heard {
            let frames = vec![Bytes::new(), Bytes::copy_from_slice(&n.to_be_bytes()), payload];
            self.live.send(ZmqMessage::try_from(frames).expect("frames")).await.expect("publish");
        }
    }

    async fn stop(self) {
        self.replay.abort();
        drop(self.replay.await);
        self.live.close().await;
    }
}

fn ipc(folder: &std::path::Path, name: &str) -> String {
    format!("ipc://{}", folder.join(name).display())
}

fn stored(time: f64, n: u32) -> Bytes {
    use rmp::encode::{write_array_len, write_f64, write_nil, write_str, write_u32};
    let mut out = Vec::new();
    let mut encode = || -> Result<(), rmp::encode::ValueWriteError> {
        write_array_len(&mut out, 3)?;
        write_f64(&mut out, time)?;
        write_array_len(&mut out, 1)?;
        write_array_len(&mut out, 6)?;
        write_str(&mut out, "BlockStored")?;
        write_array_len(&mut out, 1)?;
        write_u32(&mut out, 100 + n)?;
        match n {
            0 => write_nil(&mut out).map_err(rmp::encode::ValueWriteError::InvalidMarkerWrite)?,
            n => drop(write_u32(&mut out, 99 + n)?),
        }
        write_array_len(&mut out, 4)?;
        for token in 4 * n..4 * n + 4 {
            write_u32(&mut out, token)?;
        }
        write_u32(&mut out, 4)?;
        write_nil(&mut out).map_err(rmp::encode::ValueWriteError::InvalidMarkerWrite)?;
        write_u32(&mut out, 0)?;
        Ok(())
    };
    encode().expect("memory");
    Bytes::from(out)
}

fn options(folder: &std::path::Path) -> Options {
    let endpoint = |name: &str| -> Endpoint { ipc(folder, name).parse().expect("an endpoint") };
    let identity =
        Identity { worker: "pod-a".into(), address: "".into(), aliases: Arc::new([]), model: "m".into(), rank: 0 };
    Options {
        identity,
        link: SubOptions::new(endpoint("live"), Mode::Connect),
        replay: Some(ReplayOptions::new(endpoint("replay"))),
        following: Following::new("vllm", Dialect::Vllm),
        snapshots: None,
    }
}

async fn until(entry: &Entry, what: &str, condition: impl Fn(&Status) -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition(&entry.status()) {
        assert!(Instant::now() < deadline, "never {what}: {:?}", entry.status());
        sleep(Duration::from_millis(5)).await;
    }
}

fn blocks(index: &Index) -> u32 {
    let grid = Grid::new(4).expect("a grid");
    let tokens: Vec<u8> = (0..400u32).flat_map(u32::to_le_bytes).collect();
    let contents = grid.plain_contents(&tokens, Seed::PLAIN);
    let mut matches = Vec::new();
    index.match_chain("m", grid, Chain::Content(&contents), None, &mut matches);
    matches.first().map_or(0, |found| found.blocks)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_subscriber_a_gap_and_a_restart_end_live_with_what_the_engine_holds() {
    let folder = tempfile::tempdir().expect("a folder");
    let (index, board) = (Index::new(index::Limits::default()), Arc::new(Board::default()));

    // A late subscriber: the first blocks come from the replay.
    let mut engine = Engine::start(folder.path(), 1).await;
    for _ in 0..5 {
        engine.store(true).await;
    }
    let feed = Feed::spawn(options(folder.path()), &index, &board).expect("a feed");
    let entry = Arc::clone(feed.entry());
    until(&entry, "live", |status| status.state == State::Live && status.last_sequence == Some(4)).await;
    assert_eq!(blocks(&index), 5);

    // Messages that the live socket loses are a gap, and come from the replay.
    for _ in 0..3 {
        engine.store(false).await;
    }
    engine.store(true).await;
    until(&entry, "whole", |status| status.state == State::Live && status.last_sequence == Some(8)).await;
    let status = entry.status().clone();
    assert_eq!((blocks(&index), status.gaps, status.epoch), (9, 1, 1));

    // A restart drops the dead engine's blocks.
    engine.stop().await;
    until(&entry, "disconnected", |status| status.state == State::Connecting).await;
    let mut engine = Engine::start(folder.path(), 2).await;
    engine.store(true).await;
    engine.store(true).await;
    until(&entry, "the new life", |status| status.epoch == 2 && status.last_sequence == Some(1)).await;
    until(&entry, "live", |status| status.state == State::Live).await;
    assert_eq!(blocks(&index), 2);

    // A feed that is stopped leaves nothing behind.
    assert_eq!(board.all().len(), 1);
    feed.stop().await;
    assert_eq!((board.all().len(), blocks(&index)), (0, 0));
    engine.stop().await;
}

#[tokio::test]
async fn an_engine_that_is_not_there_yet_is_waited_for_and_a_dropped_feed_is_withdrawn() {
    let folder = tempfile::tempdir().expect("a folder");
    let (index, board) = (Index::new(index::Limits::default()), Arc::new(Board::default()));
    let feed = Feed::spawn(options(folder.path()), &index, &board).expect("a feed");
    let entry = Arc::clone(feed.entry());
    until(&entry, "unreachable", |status| status.fault.is_some()).await;
    assert_eq!(entry.status().state, State::Connecting);
    let engine = Engine::start(folder.path(), 1).await;
    until(&entry, "live", |status| status.state == State::Live).await;
    assert_eq!(entry.status().why, "the engine has published nothing yet");
    drop(feed);
    assert!(board.all().is_empty());
    engine.stop().await;
}

#[tokio::test]
async fn an_endpoint_that_cannot_be_used_registers_nothing() {
    let (index, board) = (Index::new(index::Limits::default()), Arc::new(Board::default()));
    let folder = tempfile::tempdir().expect("a folder");
    let mut wrong = options(folder.path());
    wrong.link.endpoint = "tcp://*:5557".parse().expect("an endpoint");
    Feed::spawn(wrong, &index, &board).expect_err("a wildcard cannot be connected to");
    assert!(board.all().is_empty() && index.grids("m").is_none());
}
