//! A private nats-server for one run: its own port and its own store, killed with the run.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A server that runs.
pub struct Server {
    folder: TempDir,
    child: Child,
    url: String,
}

// === impl Server ===

impl Server {
    /// Starts `$NATS_SERVER`, else the one that `tests/peers/setup.sh` installs beside its Python.
    pub fn start() -> Self {
        let folder = TempDir::new().unwrap();
        let (config, ports) = (folder.path().join("server.conf"), folder.path().join("ports"));
        std::fs::create_dir(&ports).unwrap();
        let store = folder.path().join("store");
        let text = format!("listen: \"127.0.0.1:-1\"\njetstream {{ store_dir: \"{}\" }}\n", store.display());
        std::fs::write(&config, text).unwrap();
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let child = Command::new(binary())
            .args(["-c", config.to_str().unwrap(), "--ports_file_dir", ports.to_str().unwrap()])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .expect("nats-server starts: name one in NATS_SERVER");
        let mut server = Self { folder, child, url: String::new() };
        let begun = Instant::now();
        server.url = loop {
            if let Some(url) = read(&ports) {
                break url;
            }
            let log = || std::fs::read_to_string(server.folder.path().join("log")).unwrap_or_default();
            assert!(begun.elapsed() < Duration::from_secs(30), "the server does not listen:\n{}", log());
            std::thread::sleep(Duration::from_millis(5));
        };
        server
    }

    pub fn url(&self) -> &str {
        &self.url
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn binary() -> PathBuf {
    let beside = |python: PathBuf| python.parent().unwrap().join("nats-server");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    std::env::var_os("NATS_SERVER")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("KVTAP_PYTHON").map(|python| beside(python.into())))
        .unwrap_or_else(|| beside(root.join(".venv/bin/python")))
}

fn read(folder: &Path) -> Option<String> {
    let file = std::fs::read_dir(folder).ok()?.next()?.ok()?.path();
    let text = std::fs::read_to_string(file).ok()?;
    let from = text.find("nats://")?;
    let url = text.get(from..)?;
    Some(url.get(..url.find('"')?)?.to_owned())
}
