//! Talks to `peer.py`: a subscriber and replay client on libzmq, which real consumers use.

use std::path::PathBuf;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

pub struct Peer {
    _process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Peer {
    pub fn spawn() -> Self {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
        let python = std::env::var_os("KVTAP_PYTHON").map_or_else(|| root.join(".venv/bin/python"), PathBuf::from);
        let mut process = Command::new(&python)
            .arg(root.join("tests/sim/peer.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}; a Python with pyzmq is needed", python.display()));
        let input = process.stdin.take().unwrap();
        let output = BufReader::new(process.stdout.take().unwrap()).lines();
        Self { _process: process, input, output }
    }

    async fn ask(&mut self, command: Value) -> Value {
        self.input.write_all(format!("{command}\n").as_bytes()).await.unwrap();
        let answer = self.output.next_line().await.unwrap().expect("the peer answers (its error is above)");
        serde_json::from_str(&answer).unwrap()
    }

    /// Connects (or binds) a fresh subscriber in place of the one before, and returns where it is bound.
    pub async fn subscribe(&mut self, endpoint: &str, topic: &str, bind: bool) -> String {
        let command = json!({"op": "subscribe", "endpoint": endpoint, "topic": topic, "bind": bind});
        self.ask(command).await.as_str().unwrap().to_owned()
    }

    /// What arrives until nothing has for `quiet_ms`: frames in hexadecimal.
    pub async fn receive(&mut self, quiet_ms: u32) -> Vec<[String; 3]> {
        serde_json::from_value(self.ask(json!({"op": "receive", "quiet_ms": quiet_ms})).await).unwrap()
    }

    /// Sends requests on one socket and returns the replies up to an end marker (the first one for REQ).
    pub async fn request(&mut self, endpoint: &str, socket: &str, requests: &[Vec<String>]) -> Vec<Vec<String>> {
        let command = json!({"op": "request", "endpoint": endpoint, "socket": socket, "requests": requests});
        serde_json::from_value(self.ask(command).await).unwrap()
    }
}
