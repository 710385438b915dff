//! TensorRT-LLM's event endpoint over real HTTP: [`Feed::spawn_polled`] against a server in another process.

#[path = "support/python.rs"]
mod python;

use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use kvtap::block::Grid;
use kvtap::feed::http::PollOptions;
use kvtap::feed::status::{Board, Entry, State, Status};
use kvtap::feed::{Feed, Following, PolledOptions};
use kvtap::hash::Seed;
use kvtap::index::{self, Chain, Index};
use kvtap::wire::Dialect;
use kvtap::worker::Identity;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

const PATIENCE: Duration = Duration::from_secs(30);

/// The server's process; killed on drop.
struct Engine {
    child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
    port: u16,
}

struct Tap {
    index: Arc<Index>,
    feeds: Vec<Feed>,
}

impl Engine {
    async fn start() -> Self {
        Self::start_at(0).await
    }

    async fn start_at(port: u16) -> Self {
        let mut child = Command::new(python::interpreter())
            .arg(python::script("trtllm_http.py"))
            .arg(port.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the interpreter starts");
        let stdin = child.stdin.take().expect("a pipe");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let port = line(&mut stdout).await.parse().expect("a port");
        Self { child, stdin, stdout, port }
    }

    async fn tell(&mut self, command: &str) -> String {
        self.stdin.write_all(format!("{command}\n").as_bytes()).await.expect("the server listens");
        line(&mut self.stdout).await
    }

    /// Questions and connections so far.
    async fn polls(&mut self) -> (u64, u64) {
        let polls = self.tell("polls").await;
        let (polls, connections) = polls.split_once(' ').expect("two numbers");
        (polls.parse().expect("a number"), connections.parse().expect("a number"))
    }

    async fn kill(mut self) {
        self.child.kill().await.expect("the server can be killed");
    }

    fn tap(&self, ranks: u32) -> Tap {
        self.tap_with(ranks, |options| options)
    }

    fn tap_with(&self, ranks: u32, change: impl FnOnce(PollOptions) -> PollOptions) -> Tap {
        let endpoint = format!("http://127.0.0.1:{}/kv_cache_events", self.port).parse().expect("an endpoint");
        let mut poll = PollOptions::new(endpoint);
        poll.interval = Duration::from_millis(10);
        poll.first_retry = Duration::from_millis(10);
        poll.longest_retry = Duration::from_millis(50);
        let (index, board) = (Index::new(index::Limits::default()), Arc::new(Board::default()));
        let identity = |rank| Identity {
            worker: "trt-0".into(),
            address: "".into(),
            aliases: Arc::new([]),
            model: "m".into(),
            rank,
        };
        let options = PolledOptions {
            identities: (0..ranks).map(identity).collect(),
            poll: change(poll),
            following: Following::new("trtllm", Dialect::Trtllm),
        };
        let feeds = Feed::spawn_polled(options, &index, &board).expect("feeds");
        assert_eq!(board.all().len(), ranks as usize);
        Tap { index, feeds }
    }
}

impl Tap {
    fn entry(&self, rank: usize) -> &Entry {
        self.feeds[rank].entry()
    }

    async fn until(&self, rank: usize, what: &str, condition: impl Fn(&Status) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition(&self.entry(rank).status()) {
            assert!(Instant::now() < deadline, "never {what}: {:?}", self.entry(rank).status());
            sleep(Duration::from_millis(5)).await;
        }
    }

    async fn applied(&self, rank: usize, sequence: u64) {
        self.until(rank, &format!("at {sequence}"), |status| status.last_sequence == Some(sequence)).await;
    }

    fn state(&self, rank: usize) -> (State, u64, String) {
        let status = self.entry(rank).status();
        (status.state, status.epoch, status.why.clone())
    }

    /// How many leading blocks of the prompt 0, 1, 2, .. a rank holds.
    fn matched(&self, rank: usize) -> u32 {
        let grid = Grid::new(4).expect("a grid");
        let tokens: Vec<u8> = (0..400u32).flat_map(u32::to_le_bytes).collect();
        let contents = grid.plain_contents(&tokens, Seed::PLAIN);
        let mut found = Vec::new();
        let ranks = [self.feeds[rank].rank()];
        self.index.match_chain("m", grid, Chain::Content(&contents), Some(&ranks), &mut found);
        found[0].blocks
    }
}

async fn line(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    let line = timeout(PATIENCE, lines.next_line()).await.expect("an answer in time");
    line.expect("the server's output").expect("the server lives; its error is above")
}

#[tokio::test]
async fn events_are_polled_over_one_kept_connection_and_applied_by_their_ids() {
    let mut engine = Engine::start().await;
    engine.tell("store - 3").await;
    let tap = engine.tap(1);
    tap.applied(0, 2).await;
    assert_eq!((tap.state(0).0, tap.matched(0)), (State::Live, 3));
    engine.tell("store - 2").await;
    tap.applied(0, 4).await;
    assert_eq!((tap.state(0).0, tap.matched(0)), (State::Live, 5));
    let (polls, connections) = engine.polls().await;
    assert!(polls >= 2 && connections == 1, "{polls} polls on {connections} connections");
}

#[tokio::test]
async fn an_idle_connection_that_the_server_closes_is_made_anew() {
    let mut engine = Engine::start().await;
    engine.tell("store - 1").await;
    // Long pauses, so that the connection is closed between two questions.
    let tap = engine.tap_with(1, |poll| PollOptions { interval: Duration::from_millis(300), ..poll });
    tap.applied(0, 0).await;
    engine.tell("hang up").await;
    engine.tell("store - 1").await;
    tap.applied(0, 1).await;
    assert_eq!(tap.matched(0), 2);
    assert!(engine.polls().await.1 >= 2);
}

#[tokio::test]
async fn events_that_fell_out_of_the_engines_buffer_leave_the_feed_incomplete_until_it_restarts() {
    let mut engine = Engine::start().await;
    engine.tell("store - 2").await;
    let tap = engine.tap(1);
    tap.applied(0, 1).await;
    engine.tell("buffer 3").await;
    engine.tell("store - 10").await;
    tap.applied(0, 11).await;
    let (state, epoch, why) = tap.state(0);
    assert_eq!((state, epoch, tap.matched(0)), (State::Incomplete, 1, 2), "{why}");
    assert_eq!(tap.entry(0).status().gaps, 1);

    engine.tell("restart").await;
    engine.tell("store - 1").await;
    tap.until(0, "in another epoch", |status| status.epoch == 2 && status.last_sequence == Some(0)).await;
    assert_eq!((tap.state(0).0, tap.matched(0)), (State::Live, 1));
}

#[tokio::test]
async fn a_first_event_above_0_says_that_others_were_missed() {
    let mut engine = Engine::start().await;
    engine.tell("buffer 2").await;
    engine.tell("store - 5").await;
    let tap = engine.tap(1);
    tap.applied(0, 4).await;
    assert_eq!((tap.state(0).0, tap.matched(0)), (State::Incomplete, 0));
}

#[tokio::test]
async fn an_answer_that_breaks_off_ends_live() {
    let mut engine = Engine::start().await;
    engine.tell("store - 2").await;
    let tap = engine.tap(1);
    tap.applied(0, 1).await;
    engine.tell("cut").await;
    tap.until(0, "incomplete", |status| status.state == State::Incomplete).await;
    engine.tell("store - 1").await;
    tap.applied(0, 2).await;
    // Whether the answer held anything nobody can say.
    assert_eq!((tap.state(0).0, tap.matched(0)), (State::Incomplete, 3));
}

#[tokio::test]
async fn a_server_that_fails_is_asked_again_and_its_fault_is_shown() {
    let mut engine = Engine::start().await;
    engine.tell("status 503").await;
    let tap = engine.tap_with(1, |poll| PollOptions { first_retry: Duration::from_millis(300), ..poll });
    tap.until(0, "refused", |status| status.fault.is_some()).await;
    assert_eq!(tap.entry(0).status().fault.as_deref(), Some("the server answers 503 Service Unavailable"));
    engine.tell("store - 1").await;
    tap.applied(0, 0).await;
    assert_eq!(tap.state(0).0, State::Live);

    engine.tell("junk").await;
    tap.until(0, "disconnected", |status| !status.connected).await;
    let fault = tap.entry(0).status().fault.clone();
    assert_eq!(fault.as_deref(), Some("the answer is not a JSON array"));
}

#[tokio::test]
async fn an_answer_larger_than_the_bound_is_refused() {
    let mut engine = Engine::start().await;
    engine.tell("store - 100").await;
    let tap = engine.tap_with(1, |poll| PollOptions { max_bytes: 1000, ..poll });
    tap.until(0, "refused", |status| status.fault.is_some()).await;
    assert_eq!(tap.entry(0).status().fault.as_deref(), Some("the answer is larger than 1000 bytes"));
    assert_eq!(tap.matched(0), 0);
}

#[tokio::test]
async fn a_process_that_is_replaced_begins_another_epoch() {
    let mut engine = Engine::start().await;
    engine.tell("store - 4").await;
    let tap = engine.tap(1);
    tap.applied(0, 3).await;
    let port = engine.port;
    engine.kill().await;
    tap.until(0, "disconnected", |status| status.state == State::Connecting).await;
    let mut engine = Engine::start_at(port).await;
    engine.tell("store - 2").await;
    tap.until(0, "in another epoch", |status| status.epoch == 2 && status.last_sequence == Some(1)).await;
    assert_eq!((tap.state(0).0, tap.matched(0)), (State::Live, 2));
}

#[tokio::test]
async fn each_rank_has_its_own_ids_and_a_rank_that_is_not_listed_is_turned_away() {
    let mut engine = Engine::start().await;
    for command in ["store 0 3", "store 1 5", "store 2 1", "store 0 1"] {
        engine.tell(command).await;
    }
    let tap = engine.tap(2);
    tap.applied(0, 3).await;
    tap.applied(1, 4).await;
    assert_eq!((tap.matched(0), tap.matched(1)), (4, 5));
    assert_eq!((tap.state(0).0, tap.state(1).0), (State::Live, State::Live));
    tap.until(0, "told of the third rank", |status| status.dropped.get("other_rank") == Some(&1)).await;

    // Ranks come and go by themselves; the endpoint is polled until the last has gone.
    let Tap { index, mut feeds } = tap;
    feeds.remove(0).stop().await;
    let rest = Tap { index, feeds };
    engine.tell("store 1 1").await;
    rest.applied(0, 5).await;
    drop(rest);
    let deadline = Instant::now() + PATIENCE;
    loop {
        let before = engine.polls().await.0;
        sleep(Duration::from_millis(100)).await;
        if engine.polls().await.0 == before {
            break;
        }
        assert!(Instant::now() < deadline, "still polled");
    }
}
