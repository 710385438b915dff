//! The binary, with a configuration in a folder of its own.

use std::process::{ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tempfile::TempDir;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::timeout;

use super::{PATIENCE, eventually};

/// A running `kvtap serve`; killed on drop.
pub struct Kvtap {
    child: Child,
    /// Where gRPC is answered, as it said itself.
    pub grpc: String,
    /// Where the admin server is, as it said itself.
    pub admin: String,
    /// Its configuration, and a place for sockets.
    pub folder: TempDir,
    log: Arc<Mutex<Vec<String>>>,
    log_ended: watch::Receiver<bool>,
}

/// A command of the binary, not started yet.
pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvtap"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    command
}

/// Runs a command of the binary to its end.
pub async fn run(arguments: &[&str]) -> Output {
    timeout(PATIENCE, command(arguments).output()).await.expect("the command ends").expect("the command starts")
}

/// Runs a command that prints one JSON object.
pub async fn json(arguments: &[&str]) -> Value {
    let output = run(arguments).await;
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// The configuration that [`Kvtap::start`] makes of `settings`.
pub fn on_free_ports(settings: &str) -> String {
    let listen = "admin: { listen: \"127.0.0.1:0\" }\n";
    let grpc = if settings.contains("grpc:") { "" } else { "grpc: { listen: [\"127.0.0.1:0\"] }\n" };
    format!("{grpc}{listen}{settings}")
}

impl Kvtap {
    /// Serves on free ports, with `settings` (YAML) after the two sections that say so. Returns once it answers.
    pub async fn start(settings: &str) -> Self {
        Self::start_in(tempfile::tempdir().expect("a folder"), settings).await
    }

    /// The same, in a folder that is there already.
    pub async fn start_in(folder: TempDir, settings: &str) -> Self {
        let file = folder.path().join("kvtap.yaml");
        std::fs::write(&file, on_free_ports(settings)).expect("the configuration is written");
        let mut child = command(&["serve", "--config", file.to_str().expect("a path in UTF-8")])
            .stdout(Stdio::null())
            .spawn()
            .expect("kvtap starts");
        let log = Arc::new(Mutex::new(Vec::new()));
        let (ended, log_ended) = watch::channel(false);
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let writer = Arc::clone(&log);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                writer.lock().expect("the lock").push(line);
            }
            ended.send_replace(true);
        });
        let mut kvtap = Self { child, grpc: String::new(), admin: String::new(), folder, log, log_ended };
        kvtap.grpc = kvtap.said("grpc listening on ").await;
        kvtap.admin = kvtap.said("admin listening on ").await;
        kvtap
    }

    /// What follows `words` on the first line of its standard error that begins so.
    pub async fn said(&self, words: &str) -> String {
        let found = || self.log().iter().find_map(|line| line.strip_prefix(words).map(str::to_owned));
        let what = format!("said `{words}`");
        eventually(&what, async || found(), Option::is_some).await.expect("found")
    }

    /// What it has written to standard error.
    pub fn log(&self) -> Vec<String> {
        self.log.lock().expect("the lock").clone()
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id().expect("it runs")
    }

    /// Sends it a signal by name (`TERM`).
    pub async fn signal(&self, name: &str) {
        let script = format!("kill -{name} {}", self.pid());
        let sent = Command::new("sh").args(["-c", &script]).status().await.expect("a shell");
        assert!(sent.success(), "{script}");
    }

    /// Waits for its end; how, and everything it wrote to standard error.
    pub async fn ended(mut self) -> (ExitStatus, Vec<String>) {
        let status = timeout(PATIENCE, self.child.wait()).await.expect("it ends").expect("its status");
        self.log_ended.wait_for(|ended| *ended).await.expect("the reader of its log");
        (status, self.log())
    }

    /// What it says to a GET of its admin server: the body of a 200.
    pub async fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.admin).await.expect("the admin server");
        let request = format!("GET {path} HTTP/1.1\r\nHost: kvtap\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("it listens");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        body.to_owned()
    }

    /// `/status`.
    pub async fn status(&self) -> Value {
        serde_json::from_str(&self.get("/status").await).expect("one JSON object")
    }

    /// One figure of `/metrics`, by its name and labels as they are written there.
    pub async fn metric(&self, series: &str) -> f64 {
        let text = self.get("/metrics").await;
        let value = text.lines().find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("{series} is not in\n{text}"))
    }

    /// `kvtap workers --json`: the list.
    pub async fn workers(&self) -> Vec<Value> {
        let mut listing = json(&["workers", "--server", &self.grpc, "--json"]).await;
        serde_json::from_value(listing["workers"].take()).expect("a list of workers")
    }

    /// The one worker that there is.
    pub async fn worker(&self) -> Value {
        let mut workers = self.workers().await;
        assert_eq!(workers.len(), 1, "{workers:?}");
        workers.remove(0)
    }

    /// `kvtap match --json` for a prompt.
    pub async fn ask(&self, model: &str, tokens: &[u32]) -> Value {
        let tokens: Vec<String> = tokens.iter().map(u32::to_string).collect();
        json(&["match", "--server", &self.grpc, "--model", model, "--tokens", &tokens.join(","), "--json"]).await
    }
}
