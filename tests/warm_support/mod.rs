//! An engine of one prompt, and the binary that follows it, over endpoints that outlive both.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use kvtap::proto::v1;
use kvtap::proto::v1::query_service_client::QueryServiceClient;
use rmp::encode::{write_array_len, write_f64, write_nil, write_str, write_u32};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::{Instant, sleep, timeout};
use tonic::transport::Channel;

use super::python;

const PATIENCE: Duration = Duration::from_secs(60);

/// Blocks of the prompt.
const BLOCKS: u32 = 60;

/// Where everything lies.
pub struct Stand {
    folder: tempfile::TempDir,
}

/// One life of the engine, and what it holds.
pub struct Engine {
    child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
    life: f64,
    held: BTreeSet<u32>,
    last: u64,
}

/// One process of the binary.
pub struct Tap {
    child: Child,
    admin: String,
    client: QueryServiceClient<Channel>,
}

// === impl Stand ===

impl Stand {
    pub fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    /// The endpoint that is called `live`, or `replay`.
    pub fn ipc(&self, name: &str) -> String {
        format!("ipc://{}", self.folder.path().join(name).display())
    }

    /// The only snapshot.
    pub fn file(&self) -> PathBuf {
        let files = std::fs::read_dir(self.folder.path().join("snapshots")).unwrap();
        let files: Vec<_> = files.map(|file| file.unwrap().path()).collect();
        let [file] = &files[..] else { panic!("{files:?}") };
        file.clone()
    }

    /// Where snapshots go.
    pub fn snapshots(&self) -> PathBuf {
        self.folder.path().join("snapshots")
    }

    /// Starts an engine that has published nothing yet.
    pub async fn engine(&self) -> Engine {
        let mut child = Command::new(python::interpreter())
            .arg(python::script("zmq_engine.py"))
            .args([self.ipc("live"), self.ipc("replay")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let stdin = child.stdin.take().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(timeout(PATIENCE, stdout.next_line()).await.unwrap().unwrap().as_deref(), Some("ready"));
        Engine { child, stdin, stdout, life: fastrand::f64(), held: BTreeSet::new(), last: 0 }
    }

    /// Starts the binary; it answers on ports of its own.
    pub async fn tap(&self, interval: &str) -> Tap {
        let config = format!(
            "grpc: {{ listen: [\"127.0.0.1:0\"], drain_grace: 5s }}\nadmin: {{ listen: \"127.0.0.1:0\" }}\n\
             snapshot: {{ directory: {}, interval: {interval} }}\ndefaults: {{ reconnect_max: 100ms }}\n\
             feeds:\n  - {{ worker: pod-a, model: m, engine: vllm, endpoint: \"{}\", replay: \"{}\" }}\n",
            self.folder.path().join("snapshots").display(),
            self.ipc("live"),
            self.ipc("replay"),
        );
        let path = self.folder.path().join("kvtap.yaml");
        std::fs::write(&path, config).unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_kvtap"))
            .args(["serve", "--config"])
            .arg(&path)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut found = [None, None];
        while found.contains(&None) {
            let line = timeout(PATIENCE, lines.next_line()).await.unwrap().unwrap().expect("it serves");
            for (found, begin) in found.iter_mut().zip(["admin listening on ", "grpc listening on "]) {
                *found = line.strip_prefix(begin).map(str::to_owned).or(found.take());
            }
        }
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                eprintln!("{line}")
            }
        });
        let [Some(admin), Some(grpc)] = found else { panic!("both were found") };
        let channel = Channel::from_shared(format!("http://{grpc}")).unwrap().connect().await.unwrap();
        Tap { child, admin, client: QueryServiceClient::new(channel) }
    }
}

// === impl Engine ===

impl Engine {
    async fn ask(&mut self, command: &str) -> String {
        self.stdin.write_all(format!("{command}\n").as_bytes()).await.unwrap();
        timeout(PATIENCE, self.stdout.next_line()).await.unwrap().unwrap().expect("the engine lives")
    }

    /// Stores block `n` of the prompt. Blocks from 100 on are of another one.
    pub async fn store(&mut self, n: u32) {
        self.held.insert(n);
        self.publish(|out| {
            write_array_len(out, 6).unwrap();
            write_str(out, "BlockStored").unwrap();
            write_array_len(out, 1).unwrap();
            write_u32(out, 1000 + n).unwrap();
            match n {
                0 | 100 => write_nil(out).unwrap(),
                n => write_u32(out, 999 + n).unwrap(),
            }
            write_array_len(out, 4).unwrap();
            (4 * n..4 * n + 4).for_each(|token| write_u32(out, token).unwrap());
            write_u32(out, 4).unwrap();
            write_nil(out).unwrap();
        })
        .await;
    }

    pub async fn remove(&mut self, n: u32) {
        self.held.remove(&n);
        self.publish(|out| {
            write_array_len(out, 2).unwrap();
            write_str(out, "BlockRemoved").unwrap();
            write_array_len(out, 1).unwrap();
            write_u32(out, 1000 + n).unwrap();
        })
        .await;
    }

    async fn publish(&mut self, event: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        write_array_len(&mut out, 3).unwrap();
        write_f64(&mut out, self.life).unwrap();
        write_array_len(&mut out, 1).unwrap();
        event(&mut out);
        write_u32(&mut out, 0).unwrap();
        let hex: String = out.iter().map(|byte| format!("{byte:02x}")).collect();
        self.last = self.ask(&format!("publish {hex}")).await.parse().unwrap();
    }

    /// Stores or removes a block whose parent is held, so that no block waits.
    pub async fn random(&mut self, rng: &mut fastrand::Rng) {
        let n = rng.u32(0..BLOCKS);
        let next = (0..BLOCKS).filter(|n| !self.held.contains(n) && (*n == 0 || self.held.contains(&(n - 1))));
        match (rng.choice(next.collect::<Vec<_>>()), self.held.contains(&n) && rng.u8(0..3) == 0) {
            (_, true) => self.remove(n).await,
            (Some(next), false) => self.store(next).await,
            (None, false) => self.remove(0).await,
        }
    }

    /// The last sequence number.
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Blocks held of the prompt without a hole.
    pub fn leading(&self) -> u32 {
        (0..).take_while(|n| self.held.contains(n)).count() as u32
    }

    /// Blocks held.
    pub fn held(&self) -> u64 {
        self.held.len() as u64
    }

    /// Where the replays asked for so far began.
    pub async fn asked(&mut self) -> Vec<u64> {
        self.ask("asked").await.split_whitespace().filter_map(|number| number.parse().ok()).collect()
    }

    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

// === impl Tap ===

impl Tap {
    /// What `/status` says of the feed.
    pub async fn report(&mut self) -> Value {
        let mut stream = TcpStream::connect(&self.admin).await.unwrap();
        let request = format!("GET /status HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.admin);
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(" 200 "), "{answer}");
        let status: Value = serde_json::from_str(body).unwrap();
        status["workers"][0].clone()
    }

    pub async fn until(&mut self, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let report = self.report().await;
            if condition(&report) {
                return report;
            }
            assert!(Instant::now() < deadline, "never {what}: {report}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until it is live and has applied this message.
    pub async fn live_at(&mut self, sequence: u64) -> Value {
        self.until("live", |report| report["state"] == "live" && report["last_seq"] == sequence).await
    }

    /// Leading blocks that it says are held of the prompt.
    pub async fn blocks(&mut self) -> u32 {
        let tokens: Vec<u8> = (0..4 * BLOCKS).flat_map(u32::to_le_bytes).collect();
        let request = v1::MatchRequest {
            model: "m".to_owned(),
            prompt: Some(v1::match_request::Prompt::TokensLe(tokens.into())),
            ..v1::MatchRequest::default()
        };
        let response = self.client.r#match(request).await.unwrap().into_inner();
        response.matches.first().map_or(0, |found| found.matched_blocks)
    }

    /// SIGTERM: it drains, takes its snapshot and ends well.
    pub async fn terminate(mut self) {
        drop(self.client);
        let id = self.child.id().unwrap().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().await.unwrap().success());
        assert!(timeout(PATIENCE, self.child.wait()).await.unwrap().unwrap().success());
    }

    /// SIGKILL.
    pub async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}

/// The disk that snapshots lie on: a small one of its own, or, without the right to mount one, something in the way of the next
/// snapshot, which is said aloud.
pub enum Disk {
    Small(PathBuf),
    Blocked,
}

// === impl Disk ===

impl Disk {
    /// Puts a small disk under a folder.
    pub fn new(folder: PathBuf) -> Self {
        std::fs::create_dir_all(&folder).unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=64k", "kvtap"];
        let mounted = std::process::Command::new("mount").args(mount).arg(&folder).stderr(Stdio::null()).status();
        if mounted.is_ok_and(|status| status.success()) {
            return Self::Small(folder);
        }
        println!("NO DISK can be mounted here: a folder in the draft's place stands for a full one.");
        Self::Blocked
    }

    /// From now on nothing more can be written; `file` is the snapshot that is there.
    pub fn fill(&self, file: &std::path::Path) {
        match self {
            Self::Small(folder) => {
                let mut junk = std::fs::File::create(folder.join("junk")).unwrap();
                while std::io::Write::write_all(&mut junk, &[1; 512]).is_ok() {}
            }
            Self::Blocked => std::fs::create_dir_all(file.with_extension("kvtap.new").join("in the way")).unwrap(),
        }
    }

    /// There is room again.
    pub fn free(&self, file: &std::path::Path) {
        match self {
            Self::Small(folder) => std::fs::remove_file(folder.join("junk")).unwrap(),
            Self::Blocked => std::fs::remove_dir_all(file.with_extension("kvtap.new")).unwrap(),
        }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Self::Small(folder) = self {
            let unmounted = std::process::Command::new("umount").arg("-l").arg(&*folder).status();
            assert!(unmounted.is_ok_and(|status| status.success()) || std::thread::panicking(), "it stays mounted");
        }
    }
}
