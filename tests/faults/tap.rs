//! kvtap, on the other side: a feed of this process, or a whole server.

use std::net::SocketAddr;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use kvtap::feed::machine::Limits;
use kvtap::feed::runner::Timing;
use kvtap::feed::status::Board;
use kvtap::feed::zmq::{Endpoint, Heartbeat, Mode, ReplayOptions, SubOptions};
use kvtap::feed::{Feed, Following, Options};
use kvtap::index::{self, Index};
use kvtap::proto::v1::query_service_client::QueryServiceClient;
use kvtap::wire::Dialect;
use kvtap::worker::Identity;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;

use crate::schedule::World;
use crate::witness::Eye;

/// How long a process may take to come up.
const PATIENCE: Duration = Duration::from_secs(60);

pub enum Tap {
    Inside {
        feed: Feed,
        index: Arc<Index>,
        _board: Arc<Board>,
    },
    Server {
        process: Box<Child>,
        client: QueryServiceClient<Channel>,
        worker: String,
        bound: SocketAddr,
        /// Ends when the process does: with the first line that tells of a panic.
        reading: JoinHandle<Option<String>>,
        _folder: TempDir,
    },
}

impl Tap {
    /// A feed in this process.
    pub fn inside(name: &str, world: &World, live: SocketAddr, replay: SocketAddr) -> Self {
        let (index, board) = (Index::new(index::Limits::default()), Arc::new(Board::default()));
        let feed = Feed::spawn(options(name, world, live, replay), &index, &board).expect("a feed");
        Self::Inside { feed, index, _board: board }
    }

    /// `kvtap serve`, with one feed.
    pub async fn server(name: &str, world: &World, live: SocketAddr, replay: SocketAddr) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let bound = free_address();
        let endpoint = format!("tcp://{}", if world.bind { bound } else { live });
        let replay = if world.replay { format!("tcp://{replay}") } else { String::new() };
        let grace = world.grace.map_or(86_400_000, |grace| grace.as_millis());
        let config = format!(
            "grpc: {{ listen: [\"127.0.0.1:0\"] }}\n\
             admin: {{ listen: \"127.0.0.1:0\" }}\n\
             defaults: {{ heartbeat_interval: 150ms, heartbeat_timeout: 500ms, replay_timeout: 250ms, disconnect_grace: {grace}ms }}\n\
             feeds:\n  - worker: {name}\n    model: m\n    engine: vllm\n    endpoint: {endpoint}\n    replay: {replay}\n    \
             bind: {bind}\n    queue_messages: {queue}\n",
            bind = world.bind,
            queue = world.queue,
        );
        let file = folder.path().join("kvtap.yaml");
        std::fs::write(&file, config).expect("the file");
        let mut process = Command::new(env!("CARGO_BIN_EXE_kvtap"))
            .args(["serve", "--config"])
            .arg(file)
            // Settings of the tests are none of its own.
            .env_clear()
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("kvtap starts");
        let mut lines = BufReader::new(process.stderr.take().expect("a pipe")).lines();
        let mut told = String::new();
        let address = loop {
            let line = timeout(PATIENCE, lines.next_line()).await.expect("in time").expect("its output");
            let line = line.unwrap_or_else(|| panic!("kvtap ended: {told}"));
            if let Some(address) = line.strip_prefix("grpc listening on ") {
                break address.to_owned();
            }
            told += &line;
        };
        // Nothing may wait for the rest to be read.
        let reading = tokio::spawn(async move {
            let mut panicked = None;
            while let Ok(Some(line)) = lines.next_line().await {
                if line.contains("panicked at") || line.contains("A task panicked") {
                    panicked.get_or_insert(line);
                }
            }
            panicked
        });
        let channel = Channel::from_shared(format!("http://{address}")).expect("an address").connect().await;
        let client = QueryServiceClient::new(channel.expect("it answers"));
        let process = Box::new(process);
        Self::Server { process, client, worker: name.to_owned(), bound, reading, _folder: folder }
    }

    pub async fn eye(&self) -> Eye {
        match self {
            Self::Inside { feed, index, .. } => {
                Eye::Inside { index: Arc::clone(index), entry: Arc::clone(feed.entry()) }
            }
            Self::Server { client, worker, .. } => Eye::Server { client: client.clone(), worker: worker.clone() },
        }
    }

    /// Where a bound link listens.
    pub async fn listening(&self) -> SocketAddr {
        let entry = match self {
            Self::Inside { feed, .. } => feed.entry(),
            Self::Server { bound, .. } => return *bound,
        };
        let begun = Instant::now();
        loop {
            if let Some(listening) = &entry.status().listening {
                return listening.trim_start_matches("tcp://").parse().expect("an address");
            }
            assert!(begun.elapsed() < PATIENCE, "the link does not listen");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Ends it.
    ///
    /// # Errors
    /// A thread or a task of the server panicked.
    pub async fn stop(self) -> Result<(), String> {
        match self {
            Self::Inside { feed, .. } => feed.stop().await,
            Self::Server { mut process, reading, .. } => {
                process.kill().await.map_err(|error| format!("the server cannot be killed: {error}"))?;
                if let Some(panicked) = reading.await.map_err(|error| error.to_string())? {
                    return Err(format!("the server went on after a panic: {panicked}"));
                }
            }
        }
        Ok(())
    }
}

/// A feed that waits for nothing long, with a link to `live` and replays from `replay`.
pub fn options(name: &str, world: &World, live: SocketAddr, replay: SocketAddr) -> Options {
    let ms = Duration::from_millis;
    let identity =
        Identity { worker: name.into(), address: "".into(), aliases: Arc::new([]), model: "m".into(), rank: 0 };
    let (endpoint, mode) = match world.bind {
        true => ("tcp://127.0.0.1:0".parse().expect("an endpoint"), Mode::Bind),
        false => (endpoint(live), Mode::Connect),
    };
    let mut link = SubOptions::new(endpoint, mode);
    link.queue.messages = world.queue;
    link.timing.first_retry = ms(5);
    link.timing.longest_retry = ms(50);
    link.timing.heartbeat = Heartbeat { interval: ms(200), timeout: ms(1500) };
    let replay = world.replay.then(|| ReplayOptions { idle: ms(600), ..ReplayOptions::new(self::endpoint(replay)) });
    Options {
        identity,
        link,
        replay,
        following: Following {
            timing: Timing {
                grace: world.grace,
                recovery: Duration::from_secs(20),
                first_retry: ms(10),
                longest_retry: ms(100),
                first_rebuild: ms(100),
                longest_rebuild: ms(500),
            },
            limits: Limits { messages: world.waiting, ..Limits::default() },
            ..Following::new("vllm", Dialect::Vllm)
        },
        snapshots: None,
    }
}

fn endpoint(address: SocketAddr) -> Endpoint {
    format!("tcp://{address}").parse().expect("an endpoint")
}

/// An address that nobody listens on. It is one of sixteen million, so that no other test takes it before it is used.
fn free_address() -> SocketAddr {
    let ip = std::net::Ipv4Addr::new(127, fastrand::u8(..), fastrand::u8(..), fastrand::u8(1..255));
    std::net::TcpListener::bind((ip, 0)).and_then(|listener| listener.local_addr()).expect("a free port")
}
