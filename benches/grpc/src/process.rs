//! Servers as processes of their own, on one core.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// The core that servers have for themselves, as far as the machine is quiet. The clients' is another one.
const CORE: &str = "0";

/// A process that ends when it is dropped.
pub struct Server(Child);

/// A program on the servers' core.
pub fn command(program: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new("taskset");
    command.args(["-c", CORE]).arg(program).args(arguments);
    command
}

impl Server {
    /// Starts a program; `line` is how the line begins that says where it listens, and what follows is returned.
    pub fn start(program: &Path, arguments: &[&str], line: &'static str) -> (Self, String) {
        let mut command = command(program, arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("taskset is there");
        let (sender, said) = mpsc::channel();
        follow(child.stdout.take().unwrap(), line, sender.clone());
        follow(child.stderr.take().unwrap(), line, sender);
        let server = Self(child);
        let at = said.recv_timeout(Duration::from_secs(30)).expect("the server says where it listens");
        (server, at)
    }

    /// Starts a program that says nothing.
    pub fn spawn(mut command: Command) -> Self {
        Self(command.spawn().expect("taskset is there"))
    }

    /// Its lines.
    pub fn lines(&mut self) -> impl Iterator<Item = String> + use<> {
        BufReader::new(self.0.stdout.take().unwrap()).lines().map_while(Result::ok)
    }

    /// Processor time of it and all its threads so far, in nanoseconds.
    pub fn cpu(&self) -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.0.id())).unwrap();
        let of = |task: std::fs::DirEntry| {
            let text = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
            text.split_whitespace().next().and_then(|time| time.parse::<u64>().ok()).unwrap_or(0)
        };
        tasks.filter_map(Result::ok).map(of).sum()
    }

    /// Its resident memory, in KiB.
    pub fn resident(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse().unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Sends what follows `line`, once; the rest of what the process says is read and dropped.
fn follow(from: impl Read + Send + 'static, line: &'static str, sender: mpsc::Sender<String>) {
    thread::spawn(move || {
        for said in BufReader::new(from).lines().map_while(Result::ok) {
            if let Some(at) = said.strip_prefix(line) {
                drop(sender.send(at.to_owned()));
            }
        }
    });
}
