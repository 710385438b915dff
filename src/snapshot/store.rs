//! The folder that snapshots lie in: one file a rank, replaced whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Semaphore;
use xxhash_rust::xxh3::xxh3_64;

use super::format::{Owner, Refusal};

/// The largest file that is read, in bytes: about 100 million blocks.
pub const MAX_BYTES: u64 = 2 << 30;

/// A folder of snapshots. It is one process's alone.
#[derive(Clone, Debug)]
pub struct Store {
    folder: Arc<Path>,
    /// One snapshot at a time is taken: each is in memory whole while it is written.
    turn: Arc<Semaphore>,
}

// === impl Store ===

impl Store {
    /// The snapshots in `folder`, which is made if it is not there.
    ///
    /// # Errors
    /// The folder cannot be made, or nothing can be written in it.
    pub fn open(folder: &Path) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        probe(folder)?;
        Ok(Self { folder: folder.into(), turn: Arc::new(Semaphore::new(1)) })
    }

    /// Whether [`Store::open`] would succeed, as far as can be told without making anything that stays.
    ///
    /// # Errors
    /// Why it would not.
    pub fn check(folder: &Path) -> io::Result<()> {
        let mut there = folder;
        loop {
            match fs::metadata(there) {
                Ok(about) if about.is_dir() => return probe(there),
                Ok(_) => return Err(io::ErrorKind::NotADirectory.into()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => match there.parent() {
                    Some(parent) if !parent.as_os_str().is_empty() => there = parent,
                    _ => return probe(Path::new(".")),
                },
                Err(error) => return Err(error),
            }
        }
    }

    /// Whose turn it is to take a snapshot.
    pub fn turn(&self) -> &Arc<Semaphore> {
        &self.turn
    }

    /// The file of a rank. Its name is the same in every process, safe in every file system, and its own: what of
    /// the worker's name is safe, the hash of the whole name, the rank.
    pub fn file(&self, owner: &Owner) -> PathBuf {
        let safe = |c: char| if c.is_ascii_alphanumeric() || c == '-' { c } else { '_' };
        let readable: String = owner.worker.chars().take(64).map(safe).collect();
        let hash = xxh3_64(owner.worker.as_bytes());
        self.folder.join(format!("{readable}-{hash:016x}-{}.kvtap", owner.rank))
    }

    /// The bytes of a rank's file; `None`: there is none. Blocks.
    ///
    /// # Errors
    /// [`Refusal::Unreadable`]; [`Refusal::Foreign`] where it is not a file, or larger than [`MAX_BYTES`].
    pub fn load(&self, owner: &Owner) -> Result<Option<Vec<u8>>, Refusal> {
        let path = self.file(owner);
        let about = match fs::symlink_metadata(&path) {
            Ok(about) => about,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(_) => return Err(Refusal::Unreadable),
        };
        if !about.is_file() || about.len() > MAX_BYTES {
            return Err(Refusal::Foreign);
        }
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(about.len() as usize).map_err(|_| Refusal::Unreadable)?;
        let file = File::open(&path).map_err(|_| Refusal::Unreadable)?;
        // A byte more tells a file that grows.
        file.take(about.len() + 1).read_to_end(&mut bytes).map_err(|_| Refusal::Unreadable)?;
        Ok(Some(bytes))
    }

    /// Replaces a rank's file. Whatever happens, there is the old one or the new one, whole. Blocks.
    ///
    /// # Errors
    /// What the file system says.
    pub fn replace(&self, owner: &Owner, bytes: &[u8]) -> io::Result<()> {
        let path = self.file(owner);
        let draft = path.with_extension("kvtap.new");
        // A draft that a killed process left behind may be anything.
        match fs::remove_file(&draft) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&draft, &path)?;
        File::open(&self.folder)?.sync_all()
    }
}

/// Writes something into a folder, and takes it away again.
fn probe(folder: &Path) -> io::Result<()> {
    let file = folder.join(format!(".kvtap-{}-{:016x}", std::process::id(), fastrand::u64(..)));
    OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file)?;
    fs::remove_file(&file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::index::Copies;

    fn owner(worker: &str) -> Owner {
        Owner {
            worker: worker.to_owned(),
            model: "m".to_owned(),
            rank: 3,
            endpoint: "tcp://h:1".to_owned(),
            replay: None,
            copies: Copies::Count,
        }
    }

    #[test]
    fn names_are_safe_and_nobody_else_s() {
        let store = Store::open(&std::env::temp_dir()).expect("a folder");
        let name = |worker: &str| store.file(&owner(worker)).file_name().expect("a name").to_owned();
        let names = ["pod-a", "pod_a", "pod/a", "../../etc/passwd", "Pod-A", "ä", "", &"x".repeat(500)].map(name);
        for (i, one) in names.iter().enumerate() {
            let text = one.to_str().expect("text");
            assert!(text.len() < 100 && text.ends_with("-3.kvtap"), "{text}");
            assert!(text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)), "{text}");
            assert!(!names[..i].contains(one), "{text}");
        }
        assert_eq!(names[0], "pod-a-8646c1aac08e7b41-3.kvtap", "files of former processes are found again");
    }

    #[test]
    fn a_file_is_replaced_whole_and_a_draft_left_behind_is_in_nobodys_way() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(&folder.path().join("deep/er")).expect("it is made");
        let owner = owner("w");
        assert_eq!(store.load(&owner), Ok(None));
        store.replace(&owner, b"one").expect("written");
        fs::write(store.file(&owner).with_extension("kvtap.new"), b"torn").expect("a draft");
        assert_eq!(store.load(&owner), Ok(Some(b"one".to_vec())));
        store.replace(&owner, b"two").expect("written");
        assert_eq!(store.load(&owner), Ok(Some(b"two".to_vec())));
        assert_eq!(fs::read_dir(folder.path().join("deep/er")).expect("a folder").count(), 1);
    }

    #[test]
    fn a_folder_that_cannot_be_used_is_told_before_anything_is_made() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file");
        fs::write(&file, "").expect("a file");
        for bad in [file.clone(), file.join("deeper")] {
            assert!(Store::check(&bad).is_err() && Store::open(&bad).is_err(), "{}", bad.display());
        }
        Store::check(&folder.path().join("deep/er")).expect("it could be made");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1, "nothing was left behind");
    }

    #[test]
    fn what_is_no_file_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let store = Store::open(folder.path()).expect("a folder");
        fs::create_dir(store.file(&owner("w"))).expect("a folder in its place");
        assert_eq!(store.load(&owner("w")), Err(Refusal::Foreign));
    }
}
