//! Writing a recording: bounded, and rotating where that is asked for.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::format::{Entry, Header, Record, write_header, write_record};

/// How large a recording may become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Bytes of one file.
    pub file_bytes: u64,
    /// How many files are kept, the newest ones; with 1 the recording ends when its file is full.
    pub files: u32,
}

/// Whether a record was kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wrote {
    /// It is in the file.
    Kept,
    /// It alone is larger than a file may be; a loss stands in its place.
    TooLarge,
    /// The file is full, and there is no other.
    Full,
}

/// Why a recording cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// There is a file already, and it is never overwritten.
    #[error("{0} exists already")]
    Exists(PathBuf),
    /// The bound is smaller than a file's header.
    #[error("{0} bytes hold no recording")]
    TooSmall(u64),
    /// The system cannot write it.
    #[error("cannot write {path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A recording, being written. The newest part has the given name, the one before it that name and `.1`, and so on.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    bounds: Bounds,
    header: Header,
    file: BufWriter<File>,
    /// Bytes in this file, and in its header.
    written: u64,
    head: u64,
    scratch: Vec<u8>,
}

// === impl Writer ===

impl Writer {
    /// Creates the first file.
    ///
    /// # Errors
    /// [`WriteError`]; no file that existed is touched.
    pub fn create(path: &Path, bounds: Bounds, header: Header) -> Result<Self, WriteError> {
        for number in 0..bounds.files {
            let path = numbered(path, number);
            if path.symlink_metadata().is_ok() {
                return Err(WriteError::Exists(path));
            }
        }
        let (file, head) = begin(path, &header, bounds)?;
        Ok(Self { path: path.to_owned(), bounds, header, file, written: head, head, scratch: Vec::new() })
    }

    /// Appends a record, in the next file where this one has no room for it.
    ///
    /// # Errors
    /// [`WriteError::Io`].
    pub fn write(&mut self, record: &Record) -> Result<Wrote, WriteError> {
        self.scratch.clear();
        let fits = write_record(record, &mut self.scratch);
        if !fits || self.scratch.len() as u64 > self.bounds.file_bytes - self.head {
            let loss = Record { at: record.at, entry: Entry::Lost(1) };
            self.scratch.clear();
            write_record(&loss, &mut self.scratch);
            return Ok(if self.append()? { Wrote::TooLarge } else { Wrote::Full });
        }
        Ok(if self.append()? { Wrote::Kept } else { Wrote::Full })
    }

    /// Hands everything to the system.
    ///
    /// # Errors
    /// [`WriteError::Io`].
    pub fn flush(&mut self) -> Result<(), WriteError> {
        self.file.flush().map_err(failed(&self.path))
    }

    /// How many files were begun.
    pub fn parts(&self) -> u32 {
        self.header.part + 1
    }

    /// Writes what was encoded. False: there is no room for it.
    fn append(&mut self) -> Result<bool, WriteError> {
        let length = self.scratch.len() as u64;
        if self.written + length > self.bounds.file_bytes {
            if self.bounds.files < 2 || self.head + length > self.bounds.file_bytes {
                return Ok(false);
            }
            self.rotate()?;
        }
        self.file.write_all(&self.scratch).map_err(failed(&self.path))?;
        self.written += length;
        Ok(true)
    }

    fn rotate(&mut self) -> Result<(), WriteError> {
        self.flush()?;
        // The oldest goes by being written over; only files of this recording have these names.
        for number in (1..self.bounds.files).rev() {
            let (from, to) = (numbered(&self.path, number - 1), numbered(&self.path, number));
            match fs::rename(&from, &to) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(&from)(error)),
                _ => {}
            }
        }
        self.header.part = self.header.part.saturating_add(1);
        (self.file, self.head) = begin(&self.path, &self.header, self.bounds)?;
        self.written = self.head;
        Ok(())
    }
}

fn begin(path: &Path, header: &Header, bounds: Bounds) -> Result<(BufWriter<File>, u64), WriteError> {
    let bytes = write_header(header).map_err(|error| failed(path)(error.into()))?;
    let head = bytes.len() as u64;
    if head >= bounds.file_bytes {
        return Err(WriteError::TooSmall(bounds.file_bytes));
    }
    // Recordings hold prompts.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let mut file = BufWriter::new(file.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => WriteError::Exists(path.to_owned()),
        _ => failed(path)(error),
    })?);
    file.write_all(&bytes).and_then(|()| file.flush()).map_err(failed(path))?;
    Ok((file, head))
}

fn numbered(path: &Path, number: u32) -> PathBuf {
    if number == 0 {
        return path.to_owned();
    }
    let mut name = OsString::from(path);
    name.push(format!(".{number}"));
    PathBuf::from(name)
}

fn failed(path: &Path) -> impl Fn(io::Error) -> WriteError {
    move |source| WriteError::Io { path: path.to_owned(), source }
}
