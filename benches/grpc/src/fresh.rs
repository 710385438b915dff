//! From a published event to a match that sees it, at 10,000 events a second; and the floor of the same socket.

use std::path::Path;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval};
use tonic::transport::Channel;
use zeromq::{Socket, SocketRecv, SubSocket};

use crate::engine::{Publisher, le, stored};
use crate::process::{Server, command};
use crate::v1::match_request::Prompt;
use crate::v1::query_service_client::QueryServiceClient;
use crate::{ROUNDS, fleet, load, stats, v1};

/// An engine that publishes a turn whenever it is told to.
struct Engine {
    turns: mpsc::UnboundedSender<mpsc::UnboundedSender<(u64, u64)>>,
    endpoint: String,
}

/// Events that go out together, every millisecond.
const TOGETHER: u64 = 10;
/// One of so many events is looked for: the last of those that go out together. The engine's thread and whoever asks
/// share a core, and of an earlier one the asker would not hear before the engine has published the others.
const SAMPLE: u64 = 100;
const TURN: Duration = Duration::from_secs(2);

/// The tokens of a block that nobody else stores.
fn tokens(number: u64) -> Vec<u32> {
    let mut tokens = vec![number as u32, 4_000_000];
    tokens.resize(16, 7);
    tokens
}

fn is_sampled(number: u64) -> bool {
    number % SAMPLE == SAMPLE - 1
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// A subscriber that only receives: says when each message came that is looked for, in nanoseconds.
pub async fn receive(endpoint: &str) {
    let mut socket = SubSocket::new();
    socket.connect(endpoint).await.unwrap();
    socket.subscribe("").await.unwrap();
    loop {
        let message = socket.recv().await.unwrap();
        let came = now();
        let sequence = message.get(1).and_then(|frame| frame.first_chunk().copied()).map(u64::from_be_bytes);
        if let Some(sequence) = sequence.filter(|sequence| is_sampled(*sequence)) {
            println!("{sequence} {came}");
        }
    }
}

/// Publishes for one turn at the rate; tells the number of each event that is looked for, and when it was sent.
async fn publish(publisher: &mut Publisher, sampled: &mpsc::UnboundedSender<(u64, u64)>) {
    let mut ticks = interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let begun = Instant::now();
    while begun.elapsed() < TURN {
        ticks.tick().await;
        for _ in 0..TOGETHER {
            let number = publisher.next_sequence();
            let message = stored(&tokens(number), 0);
            let sent = now();
            publisher.publish(message).await;
            if is_sampled(number) {
                let _ = sampled.send((number, sent));
            }
        }
        // Ticks that are late come at once, and the socket's own tasks must have their turn between them.
        tokio::task::yield_now().await;
    }
}

impl Engine {
    /// An engine on a thread of its own: whoever asks for what it has published does not hold it up, nor it them.
    async fn start() -> Self {
        let (turns, wanted) = mpsc::unbounded_channel::<mpsc::UnboundedSender<(u64, u64)>>();
        let (said, endpoint) = oneshot::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(publish_turns(said, wanted));
        });
        Self { turns, endpoint: endpoint.await.unwrap() }
    }

    /// Begins a turn: the numbers of the events that are looked for, and when each was sent.
    fn turn(&self) -> mpsc::UnboundedReceiver<(u64, u64)> {
        let (sender, sampled) = mpsc::unbounded_channel();
        self.turns.send(sender).expect("the engine's thread goes on");
        sampled
    }

    /// A turn that nobody looks at.
    async fn idle_turn(&self) {
        let mut sampled = self.turn();
        while sampled.recv().await.is_some() {}
    }
}

async fn publish_turns(
    said: oneshot::Sender<String>,
    mut wanted: mpsc::UnboundedReceiver<mpsc::UnboundedSender<(u64, u64)>>,
) {
    let mut publisher = Publisher::new().await;
    said.send(publisher.endpoint().to_owned()).expect("somebody waits for it");
    while let Some(sampled) = wanted.recv().await {
        publish(&mut publisher, &sampled).await;
    }
}

/// One turn of the receiver.
async fn received(engine: &Engine, came: &mut mpsc::UnboundedReceiver<(u64, u64)>) -> Vec<Duration> {
    let (mut sampled, mut times) = (engine.turn(), Vec::new());
    while let Some((number, sent)) = sampled.recv().await {
        let came = loop {
            let (which, came) = came.recv().await.expect("the receiver goes on");
            if which == number {
                break came;
            }
        };
        times.push(Duration::from_nanos(came.saturating_sub(sent)));
    }
    times
}

/// One turn of kvtap: asks for each sampled event until it is there.
async fn seen(engine: &Engine, client: &mut QueryServiceClient<Channel>) -> Vec<Duration> {
    let (mut sampled, mut times) = (engine.turn(), Vec::new());
    while let Some((number, sent)) = sampled.recv().await {
        let prompt = Some(Prompt::TokensLe(le(&tokens(number))));
        let request = v1::MatchRequest { model: "m".to_owned(), prompt, ..v1::MatchRequest::default() };
        loop {
            let answer = client.r#match(request.clone()).await.unwrap().into_inner();
            if answer.matches.first().is_some_and(|held| held.matched_blocks == 1) {
                break;
            }
        }
        times.push(Duration::from_nanos(now().saturating_sub(sent)));
    }
    times
}

pub async fn run(kvtap: &Path) {
    let (ours, theirs) = (Engine::start().await, Engine::start().await);
    let (_folder, file) = fleet::configured(&[&ours.endpoint]);
    let (_kvtap, at) = Server::start(kvtap, &["serve", "--config", &file], "grpc listening on ");
    let mut client = QueryServiceClient::new(load::channel(&at).await);
    let mut floor = command(&std::env::current_exe().unwrap(), &["receive", &theirs.endpoint]);
    floor.stdout(Stdio::piped());
    let mut floor = Server::spawn(floor);
    let lines = floor.lines();
    let (sender, mut came) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in lines {
            let (sequence, at) = line.split_once(' ').unwrap();
            if sender.send((sequence.parse().unwrap(), at.parse().unwrap())).is_err() {
                return;
            }
        }
    });
    // Both have to be there before anything counts, and what is there of the first turns is dropped.
    tokio::time::sleep(Duration::from_secs(2)).await;
    theirs.idle_turn().await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    while came.try_recv().is_ok() {}
    ours.idle_turn().await;
    let (mut rows, mut over) = ([stats::Row::new("seen by a match"), stats::Row::new("received only")], Vec::new());
    for _ in 0..ROUNDS {
        let mut seen = seen(&ours, &mut client).await;
        let mut received = received(&theirs, &mut came).await;
        over.push((stats::quantile(&mut seen, 0.99) - stats::quantile(&mut received, 0.99)) / 1e3);
        rows[0].round(seen);
        rows[1].round(received);
    }
    stats::table("an event at 10,000 events a second", &rows);
    println!("  p99 over the floor: {:.2} ms", stats::median(&over));
}
