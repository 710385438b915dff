//! Noticing that the configuration file holds something else than it did.
//!
//! The file is looked at once a second, by what its path leads to. inotify would need a watch on every folder that a
//! symbolic link of the path passes through, made anew at each swap (`..data` of a mounted ConfigMap is one), says
//! nothing on some network and overlay file systems, and would still need the looks below to tell a finished file
//! from a half-written one. One `stat` a second costs less than one heartbeat of a feed, and the kubelet takes up to a
//! minute to bring a changed ConfigMap into the pod anyway.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::sleep;
use xxhash_rust::xxh3::Xxh3Default;

use super::MAX_FILE;

/// How often the file is looked at.
const EVERY: Duration = Duration::from_secs(1);

/// How long it must stay as it is before it counts as written: editors and copies truncate it first, and an empty
/// configuration is a legal one that withdraws every feed.
const SETTLED: Duration = Duration::from_millis(200);

/// Looks at a file that never settles. Then it is taken as it is.
const MOST_LOOKS: u32 = 25;

/// A file whose changes are noticed.
#[derive(Debug)]
pub struct Watch {
    path: PathBuf,
    seen: Look,
}

/// What is found where the path leads.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Look {
    identity: Option<Identity>,
    content: Content,
}

/// As long as this is the same, the content is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Identity {
    device: u64,
    inode: u64,
    bytes: u64,
    /// Seconds and nanoseconds, of the content's and of the file's last change.
    changed: [i64; 4],
}

/// What the file holds, as far as it matters here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Content {
    Digest(u64),
    Unreadable(io::ErrorKind),
}

// === impl Watch ===

impl Watch {
    /// Notices changes from now on: make it before the file is read.
    pub fn new(path: &Path) -> Self {
        Self { path: path.to_owned(), seen: Look::at(path) }
    }

    /// Returns once the file holds something else than at the last time. Can be abandoned at any point.
    pub async fn changed(&mut self) {
        loop {
            sleep(EVERY).await;
            let known = self.seen.identity;
            if known.is_some() && Identity::of(&self.path) == known {
                continue;
            }
            let settled = self.settled().await;
            let is_other = settled.content != self.seen.content;
            self.seen = settled;
            if is_other {
                return;
            }
        }
    }

    /// The file, once two looks in a row find the same.
    async fn settled(&self) -> Look {
        let mut before = self.look().await;
        for _ in 0..MOST_LOOKS {
            sleep(SETTLED).await;
            let look = self.look().await;
            if look == before {
                break;
            }
            before = look;
        }
        before
    }

    async fn look(&self) -> Look {
        let path = self.path.clone();
        let unreadable = Look { identity: None, content: Content::Unreadable(io::ErrorKind::Other) };
        spawn_blocking(move || Look::at(&path)).await.unwrap_or(unreadable)
    }
}

// === impl Look ===

impl Look {
    fn at(path: &Path) -> Self {
        // The identity first: what changes between the two is noticed the next time.
        let identity = Identity::of(path);
        let content = digest(path).map_or_else(|error| Content::Unreadable(error.kind()), Content::Digest);
        Self { identity, content }
    }
}

// === impl Identity ===

impl Identity {
    /// Of what the path leads to, through every symbolic link; `None` where that is nothing.
    fn of(path: &Path) -> Option<Self> {
        let about = std::fs::metadata(path).ok()?;
        let changed = [about.mtime(), about.mtime_nsec(), about.ctime(), about.ctime_nsec()];
        Some(Self { device: about.dev(), inode: about.ino(), bytes: about.len(), changed })
    }
}

fn digest(path: &Path) -> io::Result<u64> {
    // What can be read once only is not to be read here.
    if !std::fs::metadata(path)?.is_file() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let mut bytes = Vec::new();
    // A larger file is refused whole, whatever comes after.
    File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut bytes)?;
    let mut digest = Xxh3Default::new();
    digest.update(&bytes);
    Ok(digest.digest())
}
