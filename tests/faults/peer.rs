//! The process that holds the engines' sockets: `tests/peers/fault_engine.py`.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::python;

/// How long a command may take. Less than a whole schedule's, so that it says whose fault it is.
const PATIENCE: Duration = Duration::from_secs(200);

/// A libzmq process. Killed on drop.
pub struct Peer {
    _child: Child,
    commands: mpsc::UnboundedSender<String>,
    waiting: Arc<Mutex<HashMap<u64, oneshot::Sender<String>>>>,
    next: AtomicU64,
}

impl Peer {
    pub fn start() -> Self {
        let mut child = Command::new(python::interpreter())
            .arg(python::script("fault_engine.py"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the interpreter starts");
        let mut stdin = child.stdin.take().expect("a pipe");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let (commands, mut lines) = mpsc::unbounded_channel::<String>();
        let waiting: Arc<Mutex<HashMap<u64, oneshot::Sender<String>>>> = Arc::default();
        tokio::spawn(async move {
            while let Some(line) = lines.recv().await {
                stdin.write_all(line.as_bytes()).await.expect("the peer listens");
            }
        });
        let answers = Arc::clone(&waiting);
        tokio::spawn(async move {
            while let Ok(Some(line)) = stdout.next_line().await {
                let (serial, answer) = line.split_once(' ').expect("a serial number and an answer");
                let serial = serial.parse().expect("a number");
                if let Some(asked) = answers.lock().expect("no panic").remove(&serial) {
                    // Whoever asked may have ended.
                    drop(asked.send(answer.to_owned()));
                }
            }
        });
        Self { _child: child, commands, waiting, next: AtomicU64::new(1) }
    }

    /// Gives a command of one engine, and does not wait for it.
    pub fn tell(&self, command: &str) {
        self.commands.send(format!("0 {command}\n")).expect("the peer listens");
    }

    /// Gives a command, and waits until it was obeyed, and so was every one before it.
    pub async fn ask(&self, command: &str) -> String {
        let serial = self.next.fetch_add(1, Ordering::Relaxed);
        let (sender, answer) = oneshot::channel();
        self.waiting.lock().expect("no panic").insert(serial, sender);
        self.commands.send(format!("{serial} {command}\n")).expect("the peer listens");
        match timeout(PATIENCE, answer).await {
            Ok(Ok(answer)) => answer,
            _ => panic!("the peer does not answer; its error is above"),
        }
    }
}
