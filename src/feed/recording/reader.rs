//! Reading a recording up to its end, or up to where it was torn.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use bytes::Bytes;

use super::format::{Body, Header, MAGIC, MAX_BODY, Record, VERSION, checksum, read_body};

/// A part of a recording, being read.
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    header: Header,
    /// Bytes up to the end of the last whole record.
    offset: u64,
    torn: Option<Torn>,
}

/// Where a file stops being a recording.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Torn {
    /// Bytes before it, all of which were used.
    pub offset: u64,
    /// What is wrong there.
    pub what: &'static str,
}

/// Why a file cannot be read as a recording at all.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The system cannot read it.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// It does not begin as recordings do.
    #[error("is not a recording")]
    NotARecording,
    /// Another version of the format.
    #[error("is a recording of version {0}, not {VERSION}")]
    Version(u32),
    /// Its header is torn.
    #[error("has no readable header")]
    NoHeader,
    /// The files do not belong together.
    #[error("is not of the same recording as the others")]
    OtherRecording,
    /// A part in the middle is missing, or one is given twice.
    #[error(
        "part {} follows part {}: every part must be given once, or only the newest ones",
        u64::from(*got) + 1,
        u64::from(*after) + 1
    )]
    Parts {
        /// The part before.
        after: u32,
        /// This one.
        got: u32,
    },
}

/// Opens the parts of one recording, in whatever order they are named: they come back in the order they were written.
///
/// # Errors
/// The file, and what is wrong with it.
pub fn open(files: &[PathBuf]) -> Result<Vec<Reader<BufReader<File>>>, (PathBuf, ReadError)> {
    let mut parts = Vec::new();
    for path in files {
        parts.push((path, open_one(path).map_err(|error| (path.clone(), error))?));
    }
    parts.sort_by_key(|(_, reader)| reader.header.part);
    for pair in parts.windows(2) {
        let [(_, first), (path, second)] = pair else { continue };
        let (after, got) = (first.header.part, second.header.part);
        if first.header.recording != second.header.recording {
            return Err(((*path).clone(), ReadError::OtherRecording));
        }
        if after.checked_add(1) != Some(got) {
            return Err(((*path).clone(), ReadError::Parts { after, got }));
        }
    }
    Ok(parts.into_iter().map(|(_, reader)| reader).collect())
}

fn open_one(path: &Path) -> Result<Reader<BufReader<File>>, ReadError> {
    Reader::new(BufReader::new(File::open(path)?))
}

// === impl Reader ===

impl<R: Read> Reader<R> {
    /// Reads a file's beginning.
    ///
    /// # Errors
    /// [`ReadError`], where it is no recording.
    pub fn new(mut input: R) -> Result<Self, ReadError> {
        let mut magic = [0; MAGIC.len()];
        let mut version = [0; 4];
        let whole = |read: io::Result<()>| match read {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(ReadError::NotARecording),
            other => Ok(other?),
        };
        whole(input.read_exact(&mut magic))?;
        if magic != MAGIC {
            return Err(ReadError::NotARecording);
        }
        whole(input.read_exact(&mut version))?;
        match u32::from_le_bytes(version) {
            VERSION => {}
            other => return Err(ReadError::Version(other)),
        }
        let mut offset = (MAGIC.len() + version.len()) as u64;
        match read_one(&mut input, &mut offset)? {
            One::Body(Body::Header(header)) => Ok(Self { input, header, offset, torn: None }),
            _ => Err(ReadError::NoHeader),
        }
    }

    /// What the file says of itself.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// Where reading stopped before the end of the file, once it has.
    pub fn torn(&self) -> Option<Torn> {
        self.torn
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Record;

    /// The next record; `None` at the end, whether that is clean or [torn](Reader::torn).
    fn next(&mut self) -> Option<Record> {
        while self.torn.is_none() {
            let what = match read_one(&mut self.input, &mut self.offset) {
                Ok(One::Body(Body::Record(record))) => return Some(record),
                Ok(One::Body(Body::Header(_) | Body::Unknown)) => continue,
                Ok(One::End) => return None,
                Ok(One::Torn(what)) => what,
                Err(_) => "the system cannot read on",
            };
            self.torn = Some(Torn { offset: self.offset, what });
        }
        None
    }
}

enum One {
    Body(Body),
    End,
    Torn(&'static str),
}

fn read_one(input: &mut impl Read, offset: &mut u64) -> io::Result<One> {
    let preamble = read_up_to(input, super::format::PREAMBLE)?;
    let Some((length, sum)) = preamble.split_first_chunk::<4>() else {
        return Ok(if preamble.is_empty() { One::End } else { One::Torn("a record ends early") });
    };
    let length = u32::from_le_bytes(*length) as usize;
    let Ok(sum) = <[u8; 8]>::try_from(sum) else { return Ok(One::Torn("a record ends early")) };
    if length > MAX_BODY {
        return Ok(One::Torn("a record declares more than a record may hold"));
    }
    let body = read_up_to(input, length)?;
    if body.len() < length {
        return Ok(One::Torn("a record ends early"));
    }
    if checksum(&body) != u64::from_le_bytes(sum) {
        return Ok(One::Torn("a record's checksum is wrong"));
    }
    match read_body(Bytes::from(body)) {
        Some(body) => {
            *offset += (super::format::PREAMBLE + length) as u64;
            Ok(One::Body(body))
        }
        None => Ok(One::Torn("a record does not hold what it should")),
    }
}

/// At most `length` bytes: room is made as they come, not because they were declared.
fn read_up_to(input: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    input.take(length as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}
