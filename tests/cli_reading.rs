//! The reading commands, run as the binary that people run.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on fails")]

mod serve_support;

use std::process::{Output, Stdio};

use kvtap::block::Grid;
use kvtap::hash::Seed;
use kvtap::serve::{ListenAddr, Listener, Options};
use serde_json::{Value, json};
use serve_support::{PATIENCE, Server};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;

fn kvtap(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtap"));
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

async fn run(args: &[&str]) -> Output {
    tokio::time::timeout(PATIENCE, kvtap(args).output()).await.unwrap().unwrap()
}

async fn run_with_input(args: &[&str], input: &str) -> Output {
    let mut child = kvtap(args).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).await.unwrap();
    tokio::time::timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    assert!(output.status.success(), "{output:?}");
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn server() -> Server {
    let server = Server::start().await;
    let tokens: Vec<u32> = (0..40).collect();
    server.worker("m", "pod-a", 0).store(Grid::new(16).unwrap(), &tokens, Seed::PLAIN);
    let _idle = server.worker("m", "pod-b", 1);
    server
}

#[tokio::test]
async fn match_prints_the_fixed_fields_as_one_json_object() {
    let server = server().await;
    let address = server.address.to_string();
    let tokens: Vec<String> = (0..50).map(|token: u32| token.to_string()).collect();
    let output = run(&["match", "--server", &address, "--model", "m", "--tokens", &tokens.join(","), "--json"]).await;
    let objects = lines(&output);
    let [answer] = objects.as_slice() else { panic!("{objects:?}") };
    assert_eq!((&answer["model"], &answer["blocks"], &answer["block_size"]), (&json!("m"), &json!(3), &json!(16)));
    let best = &answer["workers"][0];
    for (field, value) in [
        ("worker", json!("pod-a")),
        ("rank", json!(0)),
        ("matched_blocks", json!(2)),
        ("matched_tokens", json!(32)),
        ("device_blocks", json!(2)),
        ("state", json!("live")),
        ("epoch", json!(1)),
        ("last_seq", json!(0)),
    ] {
        assert_eq!(best[field], value, "{field}");
    }
    assert!(best["age_ms"].is_u64());
    assert_eq!(
        (&answer["workers"][1]["worker"], &answer["workers"][1]["matched_blocks"]),
        (&json!("pod-b"), &json!(0))
    );
    server.stop().await;
}

#[tokio::test]
async fn tokens_come_from_a_file_or_from_standard_input() {
    let server = server().await;
    let address = server.address.to_string();
    let text: Vec<String> = (0..40).map(|token: u32| token.to_string()).collect();
    let text = text.join(" \n");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &text).unwrap();
    let path = file.path().to_str().unwrap();
    let arguments = |file| ["match", "--server", &address, "--model", "m", "--tokens-file", file, "--json"];
    let from_file = lines(&run(&arguments(path)).await);
    let from_input = lines(&run_with_input(&arguments("-"), &text).await);
    assert_eq!(from_file[0]["workers"][0]["matched_blocks"], 2);
    assert_eq!(from_input[0]["workers"][0]["matched_blocks"], 2);
    server.stop().await;
}

#[tokio::test]
async fn a_batch_answers_each_line_as_it_comes() {
    let server = server().await;
    let address = server.address.to_string();
    let arguments = ["match", "--server", &address, "--model", "m", "--tokens-file", "-", "--batch", "--json"];
    let mut child = kvtap(&arguments).stdin(Stdio::piped()).spawn().unwrap();
    let mut input = child.stdin.take().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    for tokens in [16u32, 0, 40, 15] {
        let line: Vec<String> = (0..tokens).map(|token| token.to_string()).collect();
        input.write_all(format!("{}\n", line.join(",")).as_bytes()).await.unwrap();
        // The next line is written only after this one was answered.
        let answer = tokio::time::timeout(PATIENCE, output.next_line()).await.unwrap().unwrap().unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!(
            (&answer["blocks"], &answer["workers"][0]["matched_blocks"]),
            (&json!(tokens / 16), &json!(tokens / 16))
        );
    }
    drop(input);
    assert!(tokio::time::timeout(PATIENCE, child.wait()).await.unwrap().unwrap().success());
    server.stop().await;
}

#[tokio::test]
async fn a_batch_answers_a_line_that_is_no_query_by_its_error_and_goes_on() {
    let server = server().await;
    let address = server.address.to_string();
    let arguments = ["match", "--server", &address, "--model", "m", "--tokens-file", "-", "--batch"];
    let whole: Vec<String> = (0..32).map(|token: u32| token.to_string()).collect();
    let input = format!("1,2\nsecret\n{}\n\n4294967296\n", whole.join(" "));

    let output = run_with_input(&[&arguments[..], &["--json"]].concat(), &input).await;
    assert_eq!(output.status.code(), Some(1));
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(error, "kvtap: 2 of 5 lines have no answer\n");
    let text = String::from_utf8(output.stdout).unwrap();
    let objects: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(objects.len(), 5, "{text}");
    for (at, blocks) in [(0, 0), (2, 2), (3, 0)] {
        assert_eq!(objects[at]["workers"][0]["matched_blocks"], blocks, "{text}");
    }
    let bad = "token 1 is not a number from 0 to 4294967295";
    for at in [1, 4] {
        let expected = json!({"line": at + 1, "error": {"code": "InvalidArgument", "message": bad}});
        assert_eq!(objects[at], expected);
    }

    let output = run_with_input(&arguments, &input).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    let expected = [
        "1: 0 blocks of 16 tokens: nobody holds any",
        &format!("2: no answer: {bad}"),
        "3: 2 blocks of 16 tokens: pod-a rank 0 holds 2 (live)",
        "4: 0 blocks of 16 tokens: nobody holds any",
        &format!("5: no answer: {bad}"),
    ];
    assert_eq!(text.lines().collect::<Vec<_>>(), expected);
    server.stop().await;
}

#[tokio::test]
async fn a_batch_of_nothing_but_errors_ends_too() {
    let server = server().await;
    let address = server.address.to_string();
    let arguments = ["match", "--server", &address, "--model", "m", "--tokens-file", "-", "--batch"];
    let output = run_with_input(&arguments, &"x\n".repeat(1000)).await;
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 1000);
    server.stop().await;
}

#[tokio::test]
async fn workers_that_nobody_knows_are_a_failure_which_names_those_that_are() {
    let server = server().await;
    let address = server.address.to_string();
    let listing = ["workers", "--server", &address];
    for (more, message) in [
        (&["--model", "nobody"][..], "kvtap: no worker serves model \"nobody\"; known: m\n"),
        (&["--worker", "pod-z"], "kvtap: no worker is called pod-z; known: pod-a, pod-b\n"),
        (
            &["--model", "m", "--worker", "pod-z"],
            "kvtap: no worker of model \"m\" is called pod-z; known: pod-a, pod-b\n",
        ),
    ] {
        let output = run(&[&listing[..], more].concat()).await;
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]), "{more:?}");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), message);
        let output = run(&[&listing[..], more, &["--json"]].concat()).await;
        assert_eq!(output.status.code(), Some(1));
        let object: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(object["workers"], json!([]));
    }
    server.stop().await;
}

#[tokio::test]
async fn a_port_of_something_else_is_named_in_the_error() {
    // It speaks HTTP/1 and no gRPC, as an admin port does.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let answer = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
            // The client may be gone by then.
            let _ = stream.write_all(answer).await;
        }
    });
    for command in [&["workers"][..], &["match", "--model", "m", "--tokens", "1"]] {
        let output = run(&[command, &["--server", &address]].concat()).await;
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), error.lines().count()), (Some(1), 1), "{error}");
        assert!(error.contains(&address), "{error}");
    }
    server.abort();
}

#[tokio::test]
async fn a_reader_that_has_gone_ends_a_command_quietly() {
    let server = server().await;
    let address = server.address.to_string();
    for command in [&["workers"][..], &["workers", "--json"], &["match", "--model", "m", "--tokens", "1"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = kvtap(&[command, &["--server", &address]].concat());
        let child = command.stdout(writer).spawn().unwrap();
        drop(command);
        let output = tokio::time::timeout(PATIENCE, child.wait_with_output()).await.unwrap().unwrap();
        assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(0), &b""[..]), "{output:?}");
    }
    server.stop().await;
}

#[tokio::test]
async fn workers_prints_the_fixed_fields_as_one_json_object() {
    let server = server().await;
    let output = run(&["workers", "--server", &format!("http://{}", server.address), "--json"]).await;
    let objects = lines(&output);
    let [listing] = objects.as_slice() else { panic!("{objects:?}") };
    let first = &listing["workers"][0];
    for (field, value) in [
        ("worker", json!("pod-a")),
        ("model", json!("m")),
        ("rank", json!(0)),
        ("state", json!("live")),
        ("epoch", json!(1)),
        ("last_seq", json!(0)),
        ("blocks", json!(2)),
        ("block_size", json!(16)),
        ("gaps", json!(0)),
        ("replays", json!(0)),
        ("dropped", json!({})),
        ("orphans", json!(0)),
    ] {
        assert_eq!(first[field], value, "{field}");
    }
    // What the admin port's status page shows of a worker has the same shape.
    let page = serde_json::to_value(&server.fleet.reports()[0]).unwrap();
    let fields = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(fields(first), fields(&page));
    server.stop().await;
}

#[tokio::test]
async fn people_read_tables_and_unix_sockets_are_addresses_too() {
    let folder = tempfile::tempdir().unwrap();
    let unix = ListenAddr::Unix(folder.path().join("kvtap.sock"));
    let server = Server::start_with(Options::default(), vec![Listener::bind(&unix).unwrap()]).await;
    let tokens: Vec<u32> = (0..40).collect();
    server.worker("m", "pod-a", 0).store(Grid::new(4).unwrap(), &tokens, Seed::PLAIN);
    let address = unix.to_string();
    let output = run(&["match", "--server", &address, "--model", "m", "--tokens", "0,1,2,3,9,9,9,9,9"]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(text.lines().next(), Some("m: 2 blocks of 4 tokens"));
    assert_eq!(rows[1][..5], ["WORKER", "RANK", "MATCHED", "TOKENS", "DEVICE"]);
    assert_eq!(rows[2][..5], ["pod-a", "0", "1/2", "4", "1"]);
    let output = run(&["workers", "--server", &address]).await;
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.lines().nth(1).unwrap().starts_with("pod-a "), "{text}");
    server.stop().await;
}

#[tokio::test]
async fn top_prints_a_frame_or_an_object_for_scripts() {
    let server = server().await;
    let address = server.address.to_string();
    let frame = run(&["top", "--server", &address, "--once"]).await;
    let frame = std::str::from_utf8(&frame.stdout).unwrap();
    let rows: Vec<_> = frame.lines().collect();
    assert!(rows[0].starts_with(&format!("kvtap {} at {address}", env!("CARGO_PKG_VERSION"))), "{frame}");
    assert!(rows[0].contains("2 of 2 live") && rows[0].contains("2 blocks"), "{frame}");
    assert!(rows[2].starts_with("WORKER") && rows[3].starts_with("pod-a") && rows[4].starts_with("pod-b"), "{frame}");

    let objects = lines(&run(&["top", "--server", &address, "--worker", "pod-a", "--once", "--json"]).await);
    let [look] = objects.as_slice() else { panic!("{objects:?}") };
    assert_eq!((&look["live"], look["workers"].as_array().unwrap().len()), (&json!(1), 1));
    assert_eq!((&look["workers"][0]["worker"], &look["workers"][0]["blocks"]), (&json!("pod-a"), &json!(2)));

    // Frames follow each other on a terminal only.
    let refused = run(&["top", "--server", &address]).await;
    assert_eq!(refused.status.code(), Some(64), "{refused:?}");
    server.stop().await;
}

#[tokio::test]
async fn top_goes_on_printing_objects_until_it_is_told_to_stop() {
    let server = server().await;
    let address = server.address.to_string();
    let mut child = kvtap(&["top", "--server", &address, "--json", "--interval", "100ms"]).spawn().unwrap();
    let mut objects = BufReader::new(child.stdout.take().unwrap()).lines();
    for _ in 0..3 {
        let line = tokio::time::timeout(PATIENCE, objects.next_line()).await.unwrap().unwrap().unwrap();
        assert_eq!(serde_json::from_str::<Value>(&line).unwrap()["live"], json!(2));
    }
    let pid = child.id().unwrap().to_string();
    assert!(Command::new("kill").arg(pid).status().await.unwrap().success());
    assert_eq!(tokio::time::timeout(PATIENCE, child.wait()).await.unwrap().unwrap().code(), Some(0));
    server.stop().await;
}

#[tokio::test]
async fn the_schema_that_is_checked_in_is_the_one_that_is_printed() {
    let printed = run(&["schema"]).await;
    let printed = std::str::from_utf8(&printed.stdout).unwrap();
    assert_eq!(printed, include_str!("../deploy/kvtap.schema.json"), "`make chart` brings it up to date");
}

#[tokio::test]
async fn bad_usage_is_64_and_a_failure_is_1_with_one_line() {
    let server = server().await;
    let address = server.address.to_string();
    let cases: [(&[&str], i32, &str); 10] = [
        (&["match", "--model", "m", "--tokens", "1", "--block-size", "0"], 64, "--block-size: a block of 0 tokens"),
        (&["match", "--model", "m", "--tokens", "1", "--batch"], 64, "--batch: the queries are the lines of"),
        (&["match", "--model", "m"], 64, "--tokens"),
        (&["match", "--tokens", "1"], 64, "--model"),
        (&["match", "--model", "m", "--tokens", "1", "--tokens-file", "x"], 64, "cannot be used with"),
        (&["match", "--model", "m", "--tokens", "1,x"], 64, "--tokens: token 2 is not a number"),
        (&["workers", "--server", "ftp://x"], 64, "--server"),
        (&["nonsense"], 64, "nonsense"),
        (
            &["match", "--server", &address, "--model", "other", "--tokens", "1"],
            1,
            "model: no worker serves \"other\"; known: m",
        ),
        (
            &["match", "--server", &address, "--model", "m", "--tokens-file", "/nonexistent"],
            1,
            "--tokens-file: /nonexistent",
        ),
    ];
    for (arguments, code, message) in cases {
        let output = run(arguments).await;
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {error}");
        assert!(error.contains(message), "{arguments:?}: {error}");
        if code == 1 {
            assert_eq!(error.lines().count(), 1, "{error}");
        }
    }
    server.stop().await;

    let output = run(&["workers", "--server", &address]).await;
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.starts_with(&format!("kvtap: cannot reach {address}: ")) && error.lines().count() == 1, "{error}");
}

#[tokio::test]
async fn a_prompt_over_the_limit_is_one_line_with_the_limit() {
    let server = server().await;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "7 ".repeat(5 << 20)).unwrap();
    let path = file.path().to_str().unwrap();
    let output = run(&["match", "--server", &server.address.to_string(), "--model", "m", "--tokens-file", path]).await;
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(error.starts_with("kvtap: prompt: the message is larger than the limit of 16777216 bytes"), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    server.stop().await;
}

#[tokio::test]
async fn help_is_printed_on_standard_output_and_is_no_failure() {
    for arguments in [&["--help"][..], &["match", "--help"], &["workers", "--help"], &["--version"]] {
        let output = run(arguments).await;
        assert!(output.status.success() && !output.stdout.is_empty(), "{arguments:?}");
    }
}
