//! Settings that live in mounted files and are replaced while the server runs: certificates, keys, tokens.
//!
//! Files are read again every few seconds and compared by content, so it does not matter how they were replaced: in
//! place, by a rename, or by the swap of a symbolic link several folders up, as Kubernetes does it. What cannot be used
//! is counted and said once, and what was in force before stays so.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use xxhash_rust::xxh3::xxh3_64;

/// What files came to.
pub(super) struct Kept<T> {
    files: Vec<PathBuf>,
    read: Reading<T>,
    current: RwLock<Arc<T>>,
    /// What the files held when they were last looked at, hashed.
    seen: Mutex<u64>,
}

type Reading<T> = fn(&[Vec<u8>]) -> Result<T, String>;

/// Why files cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{file}: {why}")]
pub struct FileError {
    /// The file, or the first of those that belong together.
    pub file: String,
    /// Why.
    pub why: String,
}

/// The largest file that is read, in bytes: a bundle of certificate authorities is the largest there is.
const LARGEST: u64 = 4 << 20;

// === impl Kept ===

impl<T> Kept<T> {
    /// Reads the files for the first time.
    pub(super) fn load(files: Vec<PathBuf>, read: Reading<T>) -> Result<Self, FileError> {
        let contents = contents(&files)?;
        let seen = Mutex::new(digest(&contents));
        let current = read(&contents).map_err(|why| error(&files, why))?;
        Ok(Self { files, read, current: RwLock::new(Arc::new(current)), seen })
    }

    /// What is in force.
    pub(super) fn current(&self) -> Arc<T> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Looks at the files again. `None` where they hold what they held when they were last looked at.
    pub(super) fn look(&self) -> Option<Result<(), FileError>> {
        let read = contents(&self.files);
        let digest = match &read {
            Ok(contents) => digest(contents),
            // An error is a content too: it is told once.
            Err(error) => xxh3_64(error.to_string().as_bytes()),
        };
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if *seen == digest {
            return None;
        }
        *seen = digest;
        let fresh = read.and_then(|contents| (self.read)(&contents).map_err(|why| error(&self.files, why)));
        Some(fresh.map(|fresh| {
            *self.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(fresh);
        }))
    }
}

impl<T> std::fmt::Debug for Kept<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kept").field("files", &self.files).finish_non_exhaustive()
    }
}

fn error(files: &[PathBuf], why: String) -> FileError {
    let names: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
    FileError { file: names.join(", "), why }
}

fn contents(files: &[PathBuf]) -> Result<Vec<Vec<u8>>, FileError> {
    let read = |file: &Path| {
        let mut bytes = Vec::new();
        File::open(file)?.take(LARGEST).read_to_end(&mut bytes).map(|_| bytes)
    };
    files
        .iter()
        .map(|file| read(file).map_err(|error| FileError { file: file.display().to_string(), why: error.to_string() }))
        .collect()
}

fn digest(contents: &[Vec<u8>]) -> u64 {
    let each: Vec<u8> = contents.iter().flat_map(|bytes| xxh3_64(bytes).to_le_bytes()).collect();
    xxh3_64(&each)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(files: &[Vec<u8>]) -> Result<String, String> {
        let text = files.first().and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default();
        if text == "bad" { Err("bad".to_owned()) } else { Ok(text.to_owned()) }
    }

    #[test]
    fn a_replaced_file_counts_and_a_bad_one_leaves_the_old_in_force() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        let write = |text: &str| std::fs::write(&file, text).unwrap();
        write("one");
        let kept = Kept::load(vec![file.clone()], text).unwrap();
        assert_eq!((kept.look(), kept.current().as_str()), (None, "one"));
        write("two");
        assert_eq!((kept.look(), kept.current().as_str()), (Some(Ok(())), "two"));
        write("bad");
        assert!(matches!(kept.look(), Some(Err(_))));
        // Told once.
        assert_eq!((kept.look(), kept.current().as_str()), (None, "two"));
        std::fs::remove_file(&file).unwrap();
        assert!(matches!(kept.look(), Some(Err(_))));
        assert_eq!((kept.look(), kept.current().as_str()), (None, "two"));
        write("two");
        assert_eq!((kept.look(), kept.current().as_str()), (Some(Ok(())), "two"));
    }

    #[test]
    fn the_swap_of_a_link_to_a_folder_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        for name in ["first", "second"] {
            std::fs::create_dir(at(name)).unwrap();
            std::fs::write(at(name).join("file"), name).unwrap();
        }
        std::os::unix::fs::symlink(at("first"), at("..data")).unwrap();
        let kept = Kept::load(vec![at("..data").join("file")], text).unwrap();
        std::os::unix::fs::symlink(at("second"), at("..next")).unwrap();
        std::fs::rename(at("..next"), at("..data")).unwrap();
        assert_eq!((kept.look(), kept.current().as_str()), (Some(Ok(())), "second"));
    }
}
