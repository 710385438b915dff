//! A private nats-server: its own port, its own JetStream store, killed with the test.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

#[path = "../support/python.rs"]
#[allow(dead_code, reason = "each test binary uses its part")]
mod python;

/// How long a test waits for what must happen.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A server that runs, or could be started again.
pub struct Server {
    /// Before its folder: a server that still runs would write into what is cleared away.
    child: Option<Child>,
    folder: TempDir,
    settings: String,
    port: u16,
    /// Where it listens now.
    speaks_at: u16,
}

impl Server {
    /// A server with JetStream that lets everybody do everything.
    pub async fn start() -> Self {
        Self::with("").await
    }

    /// A server with these settings besides.
    pub async fn with(settings: &str) -> Self {
        Self::at(0, settings).await
    }

    async fn at(port: u16, settings: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let mut server = Self { child: None, folder, settings: settings.to_owned(), port, speaks_at: port };
        server.start_again().await;
        server
    }

    /// Starts a server that was killed: on its port, with its store.
    pub async fn start_again(&mut self) {
        // -1: any port.
        let port = if self.port == 0 { -1 } else { i32::from(self.port) };
        self.port = self.listen(port).await;
        self.speaks_at = self.port;
    }

    /// The same on another port, until it is killed.
    pub async fn start_elsewhere(&mut self) {
        self.speaks_at = self.listen(-1).await;
    }

    async fn listen(&mut self, port: i32) -> u16 {
        assert!(self.child.is_none(), "it runs");
        let at = self.folder.path();
        let config = at.join("server.conf");
        let text = format!(
            "listen: \"127.0.0.1:{port}\"\njetstream {{ store_dir: \"{}\" }}\n{}\n",
            at.join("store").display(),
            self.settings
        );
        std::fs::write(&config, text).unwrap();
        let ports = at.join("ports");
        let _ = std::fs::remove_dir_all(&ports);
        std::fs::create_dir(&ports).unwrap();
        let log = std::fs::File::options().append(true).create(true).open(at.join("log")).unwrap();
        let child = Command::new(binary())
            .args(["-c", config.to_str().unwrap(), "--ports_file_dir", ports.to_str().unwrap()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .kill_on_drop(true)
            .spawn()
            .expect("nats-server starts: tests/peers/setup.sh installs it");
        self.child = Some(child);
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(port) = read_port(&ports) {
                return port;
            }
            let log = std::fs::read_to_string(at.join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "the server does not listen:\n{log}");
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Where the server keeps files; tests may put theirs there.
    pub fn folder(&self) -> &std::path::Path {
        self.folder.path()
    }

    pub fn url(&self) -> String {
        format!("nats://127.0.0.1:{}", self.speaks_at)
    }

    /// Ends it at once, as a crash would.
    pub async fn kill(&mut self) {
        self.child.take().expect("it runs").kill().await.unwrap();
    }

    pub async fn restart(&mut self) {
        self.kill().await;
        self.start_again().await;
    }

    /// Other settings from the next start on.
    pub fn configure(&mut self, settings: &str) {
        settings.clone_into(&mut self.settings);
    }

    /// Stops it in its tracks: connections stay, nothing is answered.
    pub async fn pause(&self) {
        self.signal("-STOP").await;
    }

    pub async fn go_on(&self) {
        self.signal("-CONT").await;
    }

    async fn signal(&self, signal: &str) {
        let id = self.child.as_ref().and_then(Child::id).expect("it runs").to_string();
        assert!(Command::new("kill").args([signal, &id]).status().await.unwrap().success());
    }

    /// A client of anybody's.
    pub async fn client(&self) -> async_nats::Client {
        async_nats::connect(self.url()).await.unwrap()
    }
}

fn binary() -> PathBuf {
    python::interpreter().parent().unwrap().join("nats-server")
}

fn read_port(folder: &std::path::Path) -> Option<u16> {
    let file = std::fs::read_dir(folder).ok()?.next()?.ok()?.path();
    let ports: Value = serde_json::from_str(&std::fs::read_to_string(file).ok()?).ok()?;
    ports["nats"][0].as_str()?.rsplit_once(':')?.1.parse().ok()
}
