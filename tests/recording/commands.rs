//! `kvtap record` and `kvtap replay`, run as people run them, against a real libzmq publisher.

use std::collections::HashMap;
use std::path::Path;
use std::process::{Output, Stdio};
use std::sync::Arc;

use bytes::Bytes;
use kvtap::feed::recording::{Entry, open};
use kvtap::feed::status::{Board, State};
use kvtap::feed::zmq::{Mode, ReplayOptions, SubOptions};
use kvtap::feed::{Feed, Following, Options};
use kvtap::index::{self, Index};
use kvtap::wire::{self, Batch, Dialect, Event};
use kvtap::worker::Identity;
use serde_json::{Value, json};
use tempfile::tempdir;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};

use crate::python;
use crate::support::{PATIENCE, capture, capture_file, matches, matches_in};

/// A libzmq publisher of the capture, with its replay socket; killed on drop.
struct Peer {
    _child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
    hello: Value,
}

impl Peer {
    async fn start() -> Self {
        let mut child = Command::new(python::interpreter())
            .arg(python::script("capture_pub.py"))
            .arg(capture_file())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        let hello = serde_json::from_str(&line(&mut stdout).await).unwrap();
        Self { _child: child, stdin, stdout, hello }
    }

    fn endpoint(&self, socket: &str) -> String {
        format!("tcp://127.0.0.1:{}", self.hello[socket])
    }

    async fn ask(&mut self, command: &str) -> Value {
        self.stdin.write_all(format!("{command}\n").as_bytes()).await.unwrap();
        serde_json::from_str(&line(&mut self.stdout).await).unwrap()
    }
}

async fn line<R: tokio::io::AsyncRead + Unpin>(lines: &mut Lines<BufReader<R>>) -> String {
    timeout(PATIENCE, lines.next_line()).await.expect("a line in time").unwrap().expect("it lives; its error is above")
}

fn kvtap(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtap"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

async fn run(args: &[&str]) -> Output {
    timeout(PATIENCE, kvtap(args).output()).await.unwrap().unwrap()
}

async fn json_of(args: &[&str]) -> Value {
    let output = run(args).await;
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// When the engine goes on publishing: as soon as a replay was asked for, or when it is over.
#[derive(PartialEq)]
enum Then {
    Meanwhile,
    Afterwards,
}

/// Records the whole capture: its first messages from the replay socket, the others live.
async fn record(file: &Path, then: Then, more: &[&str]) {
    let mut peer = Peer::start().await;
    let (total, early) = (peer.hello["messages"].as_u64().unwrap(), 5);
    // They were published before anybody came.
    peer.ask(&format!("next {early}")).await;
    let (endpoint, replay, live) = (peer.endpoint("pub"), peer.endpoint("replay"), (total - early).to_string());
    let out = file.to_str().unwrap();
    let mut args = vec!["record", "--endpoint", &endpoint, "--replay", &replay, "--out", out, "--messages", &live];
    args.extend(more);
    let mut recorder = kvtap(&args).spawn().unwrap();
    let mut said = BufReader::new(recorder.stderr.take().unwrap()).lines();
    peer.ask("subscribers 1").await;
    let deadline = Instant::now() + PATIENCE;
    while peer.ask("replays").await["replays"] == json!(0) {
        assert!(Instant::now() < deadline, "never asked for a replay");
        sleep(std::time::Duration::from_millis(5)).await;
    }
    while then == Then::Afterwards && line(&mut said).await != "replay complete" {}
    peer.ask("all").await;
    let status = timeout(PATIENCE, recorder.wait()).await.unwrap().unwrap();
    assert!(status.success(), "{status}");
}

fn tokens(prompt: &[u32]) -> String {
    prompt.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recording_gives_the_same_matches_in_an_index_and_on_sockets() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("engine.kvtap");
    record(&file, Then::Meanwhile, &[]).await;
    let (prompts, messages) = capture();
    let expected = matches(&messages, &prompts);
    let (last, _) = messages.last().unwrap();

    // Straight into an index.
    let path = file.to_str().unwrap();
    for (prompt, blocks) in prompts.iter().zip(&expected) {
        let report =
            json_of(&["replay", path, "--into-index", "--model", "m", "--tokens", &tokens(prompt), "--json"]).await;
        let worker = &report["workers"][0];
        assert_eq!((&worker["state"], &worker["last_seq"]), (&json!("live"), &json!(last)), "{report}");
        assert_eq!((&worker["model"], &worker["dropped"]), (&json!("m"), &json!({})), "{report}");
        assert_eq!(report["match"]["matched_blocks"], json!(blocks), "{report}");
    }

    // On sockets, to a feed that comes when everything has been said.
    let args = ["replay", path, "--endpoint", "tcp://127.0.0.1:0", "--replay-endpoint", "tcp://127.0.0.1:0"];
    let mut engine =
        kvtap(&[&args[..], &["--speed", "max", "--delay", "0", "--linger", "600"]].concat()).spawn().unwrap();
    let mut said: Lines<BufReader<ChildStderr>> = BufReader::new(engine.stderr.take().unwrap()).lines();
    let hello = line(&mut said).await;
    let words: Vec<&str> = hello.split(' ').collect();
    let [_, _, endpoint, _, _, replay] = words.as_slice() else { panic!("{hello}") };
    assert!(line(&mut said).await.starts_with("published "));
    let (index, board) =
        (Index::new(index::Limits { blocks_per_rank: 1 << 20, blocks_in_all: 1 << 20 }), Arc::new(Board::default()));
    let options = Options {
        identity: Identity {
            worker: "w".into(),
            address: "".into(),
            aliases: Arc::new([]),
            model: "m".into(),
            rank: 0,
        },
        link: SubOptions::new(endpoint.parse().unwrap(), Mode::Connect),
        replay: Some(ReplayOptions::new(replay.parse().unwrap())),
        following: Following::new("vllm", Dialect::Vllm),
        snapshots: None,
    };
    let feed = Feed::spawn(options, &index, &board).unwrap();
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = feed.entry().status().clone();
        if status.state == State::Live && status.last_sequence == Some(*last) {
            break;
        }
        assert!(Instant::now() < deadline, "never live: {status:?}");
        sleep(std::time::Duration::from_millis(5)).await;
    }
    assert_eq!(matches_in(&index, "m", &prompts), expected);
    feed.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redacted_recording_gives_the_same_matches_and_none_of_its_tokens() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("engine.kvtap");
    record(&file, Then::Meanwhile, &["--redact"]).await;
    let (prompts, messages) = capture();
    let expected = matches(&messages, &prompts);

    // What each token is called, read off the recording's own blocks.
    let originals: HashMap<u64, Bytes> = messages.iter().cloned().collect();
    let mut names = HashMap::new();
    let (mut before, mut after) = (Batch::default(), Batch::default());
    for record in open(std::slice::from_ref(&file)).unwrap().into_iter().flatten() {
        let (Entry::Message(frames) | Entry::Reply(frames)) = record.entry else { continue };
        let [.., sequence, payload] = frames.as_slice() else { panic!("two frames at least") };
        let Some(original) = originals.get(&u64::from_be_bytes(sequence.as_ref().try_into().unwrap())) else {
            continue;
        };
        wire::decode(Dialect::Vllm, original, &mut before).unwrap();
        wire::decode(Dialect::Vllm, payload, &mut after).unwrap();
        for (one, other) in before.events.iter().zip(&after.events) {
            if let (Event::Stored(one), Event::Stored(other)) = (one, other) {
                let of = |batch: &Batch, span| batch.tokens(span).as_chunks::<4>().0.to_vec();
                names.extend(of(&before, one.tokens).into_iter().zip(of(&after, other.tokens)));
            }
        }
    }
    let path = file.to_str().unwrap();
    for (prompt, blocks) in prompts.iter().zip(&expected) {
        let name = |token: &u32| names.get(&token.to_le_bytes()).map_or(0, |name| u32::from_le_bytes(*name));
        let renamed: Vec<u32> = prompt.iter().map(name).collect();
        for (asked, found) in [(&renamed, *blocks), (prompt, 0)] {
            let report = json_of(&["replay", path, "--into-index", "--tokens", &tokens(asked), "--json"]).await;
            assert_eq!(report["recording"]["redacted"], json!(true));
            assert_eq!(
                (&report["workers"][0]["state"], &report["match"]["matched_blocks"]),
                (&json!("live"), &json!(found))
            );
        }
    }

    // No three tokens of a prompt stand in the file as the engine wrote them, nor any hash.
    let bytes = std::fs::read(&file).unwrap();
    let mut written: Vec<Vec<u8>> = Vec::new();
    for (_, payload) in &messages {
        wire::decode(Dialect::Vllm, payload, &mut before).unwrap();
        for event in &before.events {
            if let Event::Stored(stored) = event {
                let tokens =
                    before.tokens(stored.tokens).as_chunks::<4>().0.iter().map(|token| u32::from_le_bytes(*token));
                let encoded: Vec<Vec<u8>> = tokens.map(encoded).collect();
                written.extend(encoded.chunks_exact(3).map(|three| three.concat()));
                written.extend(before.hashes(stored.hashes).iter().map(|hash| hash.low().to_be_bytes().to_vec()));
            }
        }
    }
    let engine: Vec<u8> = messages.iter().flat_map(|(_, payload)| payload.to_vec()).collect();
    let windows = |bytes: &[u8]| -> std::collections::HashSet<Vec<u8>> {
        [6, 7, 8, 9].into_iter().flat_map(|n| bytes.windows(n).map(<[u8]>::to_vec).collect::<Vec<_>>()).collect()
    };
    let (of_engine, of_file) = (windows(&engine), windows(&bytes));
    let written: Vec<_> = written.into_iter().filter(|bytes| bytes.len() >= 6).collect();
    assert!(
        written.len() > 1000 && written.iter().all(|bytes| of_engine.contains(bytes)),
        "the test looks for what is sent"
    );
    assert!(!written.iter().any(|bytes| of_file.contains(bytes)), "tokens or hashes are left");
}

/// A token as msgpack writes it.
fn encoded(token: u32) -> Vec<u8> {
    let mut out = Vec::new();
    rmp::encode::write_uint(&mut out, token.into()).unwrap();
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_torn_recording_is_played_up_to_its_tear() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("engine.kvtap");
    record(&file, Then::Afterwards, &[]).await;
    let bytes = std::fs::read(&file).unwrap();
    std::fs::write(&file, &bytes[..bytes.len() - 3]).unwrap();
    let (_, messages) = capture();
    let path = file.to_str().unwrap();
    let output = run(&["replay", path, "--into-index", "--json"]).await;
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.starts_with("kvtap: part 1 is torn after ") && said.lines().count() == 1, "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["workers"][0]["last_seq"], json!(messages[messages.len() - 2].0), "{report}");
    let torn = report["recording"]["parts"][0]["torn"].as_str().unwrap();
    assert!(torn.ends_with("bytes: a record ends early"), "{torn}");

    let args = ["replay", path, "--endpoint", "tcp://127.0.0.1:0", "--speed", "max", "--delay", "0", "--linger", "0"];
    let output = run(&args).await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let last: Vec<&str> = said.lines().rev().take(2).collect();
    assert!(last[0].starts_with("kvtap: part 1 is torn after ") && last[1].starts_with("published "), "{said}");
}

#[tokio::test]
async fn an_engine_that_is_never_reached_is_a_failure_and_leaves_no_file() {
    let folder = tempdir().unwrap();
    let file = folder.path().join("engine.kvtap");
    let out = file.to_str().unwrap();
    let endpoint = format!("ipc://{}", folder.path().join("nobody").display());
    let output = run(&["record", "--endpoint", &endpoint, "--out", out, "--duration", "300ms"]).await;
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with(&format!("kvtap: {endpoint}: cannot connect: ")), "{said}");
    assert!(!file.exists());
}

#[tokio::test]
async fn what_cannot_be_recorded_or_replayed_is_said_in_one_line() {
    let folder = tempdir().unwrap();
    let there = folder.path().join("there");
    std::fs::write(&there, "precious").unwrap();
    let there = there.to_str().unwrap();
    for (args, code, line) in [
        (vec!["record", "--endpoint", "tcp://*:5557", "--out", "x"], 64, "5557"),
        (vec!["record", "--endpoint", "tcp://127.0.0.1:1", "--out", there], 1, "exists already"),
        (vec!["replay", there, "--into-index"], 1, "is not a recording"),
        (vec!["replay", "/nowhere/at/all", "--into-index"], 1, "cannot be read"),
    ] {
        let output = run(&args).await;
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), said.lines().count()), (Some(code), 1), "{args:?}: {said}");
        assert!(said.contains(line), "{said}");
    }
    for args in [&["replay", there][..], &["replay", there, "--into-index", "--endpoint", "tcp://127.0.0.1:0"]] {
        assert_eq!(run(args).await.status.code(), Some(64), "{args:?}");
    }
    assert_eq!(std::fs::read_to_string(there).unwrap(), "precious");
}
