//! `kvtap doctor` against libzmq engines that are wrong in every way that it has a word for.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]

#[path = "support/python.rs"]
mod python;

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Output, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{interval, timeout};

const PATIENCE: Duration = Duration::from_secs(60);

/// How long each feed is watched: engines here say something every few milliseconds.
const WATCH: &str = "1200ms";

/// A libzmq engine that does as it is told: `tests/peers/fault_engine.py`.
struct Engine {
    _child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    live: String,
    replay: String,
    next: u64,
}

/// Bytes that msgpack keeps as such.
struct Raw(&'static [u8]);

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

impl Engine {
    async fn start() -> Self {
        let mut child = Command::new(python::interpreter())
            .arg(python::script("fault_engine.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut engine = Self { _child: child, input, output, live: String::new(), replay: String::new(), next: 0 };
        let ports = engine.ask("open e * 1 1000").await;
        let (live, replay) = ports.split_once(' ').unwrap();
        engine.live = format!("tcp://127.0.0.1:{live}");
        engine.replay = format!("tcp://127.0.0.1:{replay}");
        engine
    }

    async fn ask(&mut self, command: &str) -> String {
        self.input.write_all(format!("0 {command}\n").as_bytes()).await.unwrap();
        let line = timeout(PATIENCE, self.output.next_line()).await.unwrap().unwrap();
        line.expect("the engine lives; its error is above").split_once(' ').unwrap().1.to_owned()
    }

    /// Publishes a payload under the next number.
    async fn say(&mut self, payload: &[u8]) {
        let number = self.next;
        self.next += 1;
        self.say_as(number, 1, true, payload).await;
    }

    async fn say_as(&mut self, number: u64, copies: u32, keep: bool, payload: &[u8]) {
        let hex: String = payload.iter().map(|byte| format!("{byte:02x}")).collect();
        self.ask(&format!("say e {copies} {} {number} {hex}", u8::from(keep))).await;
    }

    /// Runs the doctor on it, with `more` arguments, while `talk` is done every few milliseconds.
    async fn examined(&mut self, more: &[&str], talk: impl AsyncFn(&mut Self, u64)) -> Found {
        let live = self.live.clone();
        let mut arguments = vec!["doctor", live.as_str(), "--duration", WATCH, "--json"];
        arguments.extend(more);
        let doctor = run(&arguments);
        tokio::pin!(doctor);
        let mut due = interval(Duration::from_millis(10));
        for round in 0.. {
            tokio::select! {
                output = &mut doctor => return Found::of(&output),
                _ = due.tick() => talk(self, round).await,
            }
        }
        unreachable!("it ends before numbers do")
    }

    /// The same, with its replay.
    async fn examined_whole(&mut self, talk: impl AsyncFn(&mut Self, u64)) -> Found {
        let replay = self.replay.clone();
        self.examined(&["--replay", &replay], talk).await
    }
}

/// What the doctor said of one feed.
#[derive(Debug)]
struct Found {
    code: i32,
    feed: Value,
    text: String,
}

impl Found {
    fn of(output: &Output) -> Self {
        let text = String::from_utf8(output.stdout.clone()).unwrap();
        let page: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{output:?}"));
        let code = output.status.code().unwrap();
        assert_eq!(page["exit_code"], code);
        let feed = page["feeds"][0].clone();
        for finding in feed["findings"].as_array().unwrap() {
            assert!(!finding["what"].as_str().unwrap().is_empty(), "{finding}");
            assert_eq!(finding["fix"] == "", finding["level"] == "note", "every fault has its fix: {finding}");
        }
        Self { code, feed, text }
    }

    fn codes(&self) -> BTreeSet<&str> {
        self.feed["findings"].as_array().unwrap().iter().map(|finding| finding["code"].as_str().unwrap()).collect()
    }

    #[track_caller]
    fn assert(&self, code: i32, words: &[&str]) {
        assert_eq!(self.codes(), words.iter().copied().collect(), "{:#}", self.feed);
        assert_eq!(self.code, code, "{:#}", self.feed);
    }
}

async fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtap"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    timeout(PATIENCE, command.output()).await.unwrap().unwrap()
}

async fn examined(arguments: &[&str]) -> Found {
    Found::of(&run(&[&["doctor", "--json", "--duration"][..], arguments].concat()).await)
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

fn batch(events: &[Value], rank: u32) -> Vec<u8> {
    rmp_serde::to_vec(&json!([now(), events, rank])).unwrap()
}

/// A root block of its own.
fn stored(name: u64) -> Value {
    json!(["BlockStored", [name + 1], null, [424_242, 424_243, 424_244, 424_245], 4, null])
}

/// What a healthy engine says.
async fn well(engine: &mut Engine, round: u64) {
    engine.say(&batch(&[stored(round)], 0)).await;
}

/// An address that nobody listens on, one of sixteen million.
fn free() -> SocketAddr {
    let ip = Ipv4Addr::new(127, fastrand::u8(..), fastrand::u8(..), fastrand::u8(1..255));
    std::net::TcpListener::bind((ip, 0)).unwrap().local_addr().unwrap()
}

#[tokio::test]
async fn a_feed_that_is_well_is_told_with_what_was_seen_and_0() {
    let mut engine = Engine::start().await;
    for round in 0..3 {
        well(&mut engine, round).await;
    }
    let found = engine.examined_whole(well).await;
    found.assert(0, &[]);
    let (live, replay) = (&found.feed, &found.feed["replay"]);
    assert!(live["messages"].as_u64() > Some(10) && live["blocks_per_second"].as_f64() > Some(1.0), "{live:#}");
    assert_eq!(live["seen"]["block_sizes"], json!([4]));
    assert_eq!(live["seen"]["ranks"], json!([0]));
    assert_eq!(live["seen"]["tiers"], json!(["device"]));
    assert_eq!((&live["sequence"]["gaps"], &replay["sequence"]["first"]), (&json!(0), &json!(0)));
    assert_eq!((&replay["layout"], &replay["ended"]), (&json!("with topic"), &json!(true)));
    assert_eq!(replay["same_as_live"], live["messages"], "{live:#}");
    assert!(live["seen"]["clock_behind_seconds"].as_f64().unwrap().abs() < 2.0);
    assert!(!found.text.contains("42424"), "no token is printed");

    // The same from a configuration, in words.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kvtap.yaml");
    let config = format!(
        "feeds: [{{ worker: pod-a, model: m, engine: vllm, endpoint: \"{}\", replay: \"{}\" }}]\n",
        engine.live, engine.replay
    );
    std::fs::write(&file, config).unwrap();
    let output = run(&["doctor", "--config", file.to_str().unwrap(), "--duration", "300ms"]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.starts_with("pod-a rank 0 at tcp://127.0.0.1:") && text.contains("  NOTE     idle: "), "{text}");
    assert!(text.ends_with("  OK       kvtap can follow this feed exactly\n"), "{text}");
}

#[tokio::test]
async fn whoever_cannot_be_reached_is_told_apart() {
    let refused = format!("tcp://{}", free());
    let found = examined(&["300ms", &refused, "--replay", &refused]).await;
    found.assert(1, &["refused", "replay_refused"]);
    let found = examined(&["300ms", "ipc:///nowhere/at/all"]).await;
    found.assert(1, &["refused", "no_replay"]);
    let found = examined(&["2s", "tcp://no-such-host.invalid:5557"]).await;
    found.assert(1, &["name", "no_replay"]);
    let found = examined(&["300ms", "tcp://127.0.0.1:0", "--bind"]).await;
    found.assert(1, &["nobody_came", "no_replay"]);
    let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("tcp://{}", taken.local_addr().unwrap());
    let found = examined(&["300ms", &endpoint, "--bind"]).await;
    found.assert(1, &["bind", "no_replay"]);
}

#[tokio::test]
async fn a_port_whose_packets_are_swallowed_times_out() {
    // A full queue of connections that nobody accepts lets no other in.
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    let any: SocketAddr = ([127, 0, 0, 1], 0).into();
    socket.bind(&any.into()).unwrap();
    socket.listen(0).unwrap();
    let address = socket.local_addr().unwrap().as_socket().unwrap();
    let mut held = Vec::new();
    while let Ok(Ok(stream)) = timeout(Duration::from_millis(300), tokio::net::TcpStream::connect(address)).await {
        held.push(stream);
    }
    let found = examined(&["2500ms", &format!("tcp://{address}")]).await;
    found.assert(1, &["timeout", "no_replay"]);
}

#[tokio::test]
async fn what_does_not_speak_zmq_is_told() {
    for greeting in [&b"HTTP/1.1 400 Bad Request\r\n\r\n"[..], b""] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("tcp://{}", listener.local_addr().unwrap());
        let server = tokio::spawn(async move {
            let mut silent = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                // Whoever is gone already has heard enough.
                let _ = stream.write_all(greeting).await;
                silent.push(stream);
            }
        });
        let found = examined(&["2500ms", &endpoint, "--replay", &endpoint]).await;
        found.assert(1, &["not_zmq", "replay_not_zmq"]);
        server.abort();
    }
}

#[tokio::test]
async fn swapped_sockets_are_told() {
    let engine = Engine::start().await;
    let found = examined(&["300ms", &engine.replay, "--replay", &engine.live]).await;
    found.assert(1, &["socket_type", "replay_socket_type"]);
}

#[tokio::test]
async fn a_topic_that_nothing_has_is_told_with_those_that_there_are() {
    let mut engine = Engine::start().await;
    let topic = async |engine: &mut Engine, _| {
        engine.ask("junk e 6b76406d 0000000000000001 9080").await;
    };
    let found = engine.examined(&["--topic", "other"], topic).await;
    found.assert(1, &["topic", "no_replay"]);
    let fix = found.feed["findings"][0]["fix"].as_str().unwrap();
    assert!(fix.ends_with("\"kv@m\""), "{fix}");
}

#[tokio::test]
async fn an_engine_that_says_nothing_is_a_warning() {
    let mut engine = Engine::start().await;
    let found = engine.examined(&[], async |_, _| {}).await;
    found.assert(2, &["no_events", "no_replay"]);
    let found = engine.examined_whole(async |_, _| {}).await;
    found.assert(2, &["no_events"]);
}

#[tokio::test]
async fn a_port_of_another_rank_and_a_rank_that_is_not_there_are_told() {
    let mut engine = Engine::start().await;
    let found = engine.examined_whole(async |engine, round| engine.say(&batch(&[stored(round)], 3)).await).await;
    found.assert(1, &["rank"]);

    let output = run(&["doctor", &engine.live, "--ranks", "2", "--duration", "300ms", "--json"]).await;
    let page: Value = serde_json::from_slice(&output.stdout).unwrap();
    let second = &page["feeds"][1];
    assert_eq!(second["rank"], 1);
    let fix = second["findings"][0]["fix"].as_str().unwrap();
    assert!(fix.contains("rank 1 is looked for at the port of rank 0 plus 1"), "{fix}");
}

#[tokio::test]
async fn numbers_that_do_not_follow_one_another_are_warnings() {
    let mut engine = Engine::start().await;
    let found = engine.examined_whole(async |engine, round| {
        // Every fourth number is burned, every fifth message comes twice.
        if round % 4 == 3 {
            engine.next += 1;
        }
        let (number, copies) = (engine.next, 1 + u32::from(round % 5 == 4));
        engine.next += 1;
        engine.say_as(number, copies, true, &batch(&[stored(round)], 0)).await;
    });
    found.await.assert(2, &["gaps", "repeated", "replay_holes"]);

    let mut engine = Engine::start().await;
    let found = engine.examined(&[], async |engine, round| {
        engine.say_as(round % 20, 1, false, &batch(&[stored(round)], 0)).await;
    });
    found.await.assert(2, &["restarts", "no_replay"]);
}

#[tokio::test]
async fn a_connection_that_ends_is_a_warning() {
    let mut engine = Engine::start().await;
    let found = engine.examined(&[], async |engine, round| match round {
        0..40 => well(engine, round).await,
        40 => drop(engine.ask("close e").await),
        _ => {}
    });
    let found = found.await;
    assert!(found.codes().contains("unstable"), "{:#}", found.feed);
}

#[tokio::test]
async fn a_replay_that_is_not_one_is_told_by_what_is_wrong_with_it() {
    for (mode, code, words) in [
        ("mute 0", 1, &["replay_mute"][..]),
        ("noend 0", 2, &["replay_unfinished"]),
        ("junk 0", 1, &["replay_layout"]),
        ("holes 3", 2, &["replay_holes"]),
    ] {
        let mut engine = Engine::start().await;
        for round in 0..9 {
            well(&mut engine, round).await;
        }
        engine.ask(&format!("replays e 9 {mode}")).await;
        engine.examined_whole(well).await.assert(code, words);
    }
    let mut engine = Engine::start().await;
    engine.ask("limit e 5").await;
    engine.examined_whole(well).await.assert(2, &["replay_short"]);

    // Another engine's.
    let (mut engine, mut other) = (Engine::start().await, Engine::start().await);
    // Fewer than a ROUTER keeps for a reader that is slow: it drops the rest, and the end with it.
    for round in 0..500 {
        other.say(&batch(&[stored(round)], 0)).await;
    }
    let replay = other.replay.clone();
    engine.examined(&["--replay", &replay], well).await.assert(1, &["replay_other"]);
    let empty = Engine::start().await;
    engine.examined(&["--replay", &empty.replay], well).await.assert(1, &["replay_empty"]);
}

#[tokio::test]
async fn what_cannot_be_read_is_told_by_its_reasons() {
    let mut engine = Engine::start().await;
    engine.examined_whole(async |engine, _| engine.say(b"\xa5hello").await).await.assert(1, &["unreadable"]);
    let mut engine = Engine::start().await;
    let found = engine.examined(&[], async |engine, _| drop(engine.ask("junk e 6b76").await)).await;
    found.assert(1, &["unreadable", "no_replay"]);
    let mut engine = Engine::start().await;
    let broken = async |engine: &mut Engine, _| engine.say(&batch(&[json!(["BlockStored", 7])], 0)).await;
    engine.examined_whole(broken).await.assert(2, &["unreadable_events"]);
}

#[tokio::test]
async fn block_sizes_that_disagree_are_told_with_the_numbers() {
    let mut engine = Engine::start().await;
    let replay = engine.replay.clone();
    let found = engine.examined(&["--replay", &replay, "--block-size", "16"], well).await;
    found.assert(1, &["block_size"]);
    assert_eq!(found.feed["findings"][0]["what"], "blocks have 4 tokens, not 16");
    let mut engine = Engine::start().await;
    let two = async |engine: &mut Engine, round| {
        let other = json!(["BlockStored", [1u64 << 40], null, [1, 2], 2, null]);
        engine.say(&batch(&[stored(round), other], 0)).await;
    };
    engine.examined_whole(two).await.assert(2, &["block_sizes"]);
}

#[tokio::test]
async fn digests_salts_adapters_groups_and_clocks_are_told_and_never_what_they_are() {
    let mut engine = Engine::start().await;
    let odd = async |engine: &mut Engine, _| {
        let tokens = [424_242, 424_243, 424_244, 424_245];
        let bytes = ("BlockStored", [Raw(b"0123456789abcdef")], (), tokens, 4, 7, "GPU", ());
        let salted = json!({
            "type": "BlockStored", "block_hashes": [9], "parent_block_hash": null, "token_ids": tokens, "block_size": 4,
            "lora_id": null, "medium": "GPU", "lora_name": null, "extra_keys": [["tenant-secret"]], "group_idx": 1,
        });
        let plain = json!({
            "type": "BlockStored", "block_hashes": [10], "parent_block_hash": null, "token_ids": tokens, "block_size": 4,
            "lora_id": null, "medium": "GPU", "lora_name": null, "extra_keys": null, "group_idx": 0,
        });
        let payload = rmp_serde::to_vec(&(now() - 3600.0, (bytes, salted, plain), 0)).unwrap();
        engine.say(&payload).await;
    };
    let found = engine.examined_whole(odd).await;
    found.assert(2, &["byte_hashes", "salts_unnamed", "lora_unnamed", "groups", "clock"]);
    assert!(!found.text.contains("secret") && !found.text.contains("42424"), "{}", found.text);
    let clock = found.feed["findings"].as_array().unwrap().iter().find(|finding| finding["code"] == "clock").unwrap();
    assert!(clock["what"].as_str().unwrap().starts_with("the engine's clock is 3600."), "{clock}");
}

#[tokio::test]
async fn what_cannot_be_examined_is_bad_usage() {
    for arguments in [
        &["doctor"][..],
        &["doctor", "tcp://*:5557"],
        &["doctor", "http://127.0.0.1:5557"],
        &["doctor", "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558", "--replay", "tcp://127.0.0.1:5559"],
        &["doctor", "--config", "/nowhere/at/all"],
    ] {
        let output = run(arguments).await;
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {output:?}");
    }
}

#[tokio::test]
async fn a_configured_feed_without_a_socket_is_told_as_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kvtap.yaml");
    let feeds = "feeds:
  - { worker: plane, model: m, engine: dynamo, endpoint: nats://127.0.0.1:4222, subject: s, block_size: 16 }
  - { worker: polled, model: m, engine: trtllm, endpoint: http://127.0.0.1:8000/kv_cache_events }
";
    std::fs::write(&file, feeds).unwrap();
    let output = run(&["doctor", "--config", file.to_str().unwrap()]).await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(64), "{said}");
    assert!(said.contains("plane: comes over NATS, which is not examined"), "{said}");
    assert!(said.contains("polled: is polled over HTTP, which is not examined"), "{said}");
}
