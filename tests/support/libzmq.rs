//! A real libzmq peer: `tests/peers/zmq_pub.py`, and what a link under test is asked and told.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::process::Stdio;
use std::time::Duration;

use bytes::Bytes;
use kvtap::feed::zmq::{Endpoint, Fault, LinkEvent, Mode, QueueReceiver, SubOptions, subscribe};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::python;

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// One libzmq process; killed on drop.
pub struct Libzmq {
    child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
    /// Where it is bound, or what it connects to.
    pub endpoint: Endpoint,
}

/// A link under test.
pub struct Tap {
    pub events: QueueReceiver,
    pub cancel: CancellationToken,
    pub task: tokio::task::JoinHandle<()>,
    /// Rejections so far.
    pub rejected: Vec<(&'static str, u64)>,
}

/// Waits for `what`, and fails the test by that name when it does not come.
pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    match timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {PATIENCE:?}"),
    }
}

/// A TCP endpoint that nobody listens on. Its address is one of sixteen million, so that no other test takes the
/// port before it is used.
pub fn free_port() -> Endpoint {
    let address = std::net::Ipv4Addr::new(127, fastrand::u8(..), fastrand::u8(..), fastrand::u8(1..255));
    let listener = std::net::TcpListener::bind((address, 0)).expect("a free port");
    endpoint(&format!("tcp://{}", listener.local_addr().expect("its address")))
}

pub fn endpoint(text: &str) -> Endpoint {
    text.parse().expect(text)
}

// === impl Libzmq ===

impl Libzmq {
    /// Starts a peer: see the script for `arguments`.
    pub async fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(python::interpreter())
            .arg(python::script("zmq_pub.py"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("the interpreter starts");
        let stdin = child.stdin.take().expect("a pipe");
        let mut stdout = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let endpoint = within("the peer's endpoint", line(&mut stdout)).await.parse().expect("an endpoint");
        Self { child, stdin, stdout, endpoint }
    }

    /// Starts a publisher that sees who subscribes.
    pub async fn publisher(side: &str, at: &Endpoint) -> Self {
        Self::start(&["xpub", side, &at.to_string()]).await
    }

    /// Gives a command and waits for the answer.
    pub async fn ask(&mut self, command: &str) -> String {
        self.stdin.write_all(format!("{command}\n").as_bytes()).await.expect("the peer listens");
        within(command, line(&mut self.stdout)).await
    }

    /// Sends one message.
    pub async fn send(&mut self, frames: &[&[u8]]) {
        let hex = |frame: &&[u8]| match frame {
            [] => "-".to_owned(),
            bytes => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
        };
        let words: Vec<String> = frames.iter().map(hex).collect();
        assert_eq!(self.ask(&format!("send {}", words.join(" "))).await, "sent");
    }

    /// Waits until a subscription has come: what is sent from now on arrives.
    pub async fn subscribed(&mut self) {
        self.ask("subscribed").await;
    }

    /// Ends it without a goodbye.
    pub async fn kill(mut self) {
        self.child.kill().await.expect("the peer can be killed");
    }
}

async fn line(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    lines.next_line().await.expect("the peer's output").expect("the peer lives; its error is above")
}

// === impl Tap ===

impl Tap {
    /// Starts a link.
    pub fn new(options: SubOptions) -> Self {
        let cancel = CancellationToken::new();
        let (events, task) = subscribe(options, &cancel).expect("an endpoint that can be used");
        Self { events, cancel, task, rejected: Vec::new() }
    }

    /// Binds a link: it, and where it listens.
    pub async fn bound(mut options: SubOptions) -> (Self, Endpoint) {
        options.mode = Mode::Bind;
        let mut tap = Self::new(options);
        let endpoint = tap.until("listening", |event| match event {
            LinkEvent::Listening(endpoint) => Some(endpoint),
            _ => None,
        });
        let endpoint = endpoint.await;
        (tap, endpoint)
    }

    /// The next event that is not a rejection.
    pub async fn next(&mut self) -> LinkEvent {
        loop {
            match within("an event", self.events.recv()).await.expect("the link lives") {
                LinkEvent::Rejected { reason, count } => self.rejected.push((reason.word(), count)),
                event => return event,
            }
        }
    }

    /// What the first event that `wanted` accepts comes to; those before it are passed over.
    pub async fn until<T>(&mut self, what: &str, wanted: impl Fn(LinkEvent) -> Option<T>) -> T {
        within(what, async {
            loop {
                if let Some(found) = wanted(self.next().await) {
                    return found;
                }
            }
        })
        .await
    }

    pub async fn connected(&mut self) {
        self.until("connected", |event| matches!(event, LinkEvent::Connected).then_some(())).await;
    }

    pub async fn disconnected(&mut self) -> Fault {
        self.until("disconnected", |event| match event {
            LinkEvent::Disconnected(fault) => Some(fault),
            _ => None,
        })
        .await
    }

    pub async fn unreachable(&mut self) -> Fault {
        self.until("unreachable", |event| match event {
            LinkEvent::Unreachable(fault) => Some(fault),
            _ => None,
        })
        .await
    }

    /// The next message; connections and failed attempts before it are passed over.
    pub async fn message(&mut self) -> Vec<Bytes> {
        self.until("a message", |event| match event {
            LinkEvent::Message(frames) => Some(frames),
            _ => None,
        })
        .await
    }

    /// Waits until peers were rejected for `reason` at least `times`.
    pub async fn rejected(&mut self, reason: &str, times: u64) {
        within(&format!("rejected for {reason}"), async {
            while self.rejected.iter().filter(|(known, _)| *known == reason).map(|(_, count)| count).sum::<u64>()
                < times
            {
                if let LinkEvent::Rejected { reason, count } = self.events.recv().await.expect("the link lives") {
                    self.rejected.push((reason.word(), count));
                }
            }
        })
        .await;
    }
}
