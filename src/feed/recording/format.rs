//! One record, to bytes and back.

use std::time::Duration;

use bytes::{Buf, Bytes};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::wire::MAX_PAYLOAD;

/// What a file begins with.
pub(super) const MAGIC: [u8; 8] = *b"KVTAPREC";

/// The version of the format that is written, and the only one that is read.
pub const VERSION: u32 = 1;

/// The longest body of a record, in bytes.
pub const MAX_BODY: usize = MAX_PAYLOAD + (64 << 10);

/// Frames of one message.
const MAX_FRAMES: usize = 4096;

/// Length and checksum.
pub(super) const PREAMBLE: usize = 4 + 8;

/// What a file says of itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Header {
    /// A random number that the parts of one recording share.
    pub recording: u64,
    /// Which part this is, from 0.
    pub part: u32,
    /// When the recording began, in nanoseconds since the Unix epoch; records count from there.
    pub started_unix_ns: u64,
    /// The version of the program that wrote it.
    pub program: String,
    /// Whether tokens, names and hashes are pseudonyms.
    pub redacted: bool,
    /// Whether there was a replay endpoint, so that what it answered is in here.
    pub replayable: bool,
}

/// Something that happened, and when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Since the recording began.
    pub at: Duration,
    /// What.
    pub entry: Entry,
}

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A publisher is there.
    Connected,
    /// It is gone.
    Disconnected,
    /// So many messages came and were not recorded.
    Lost(u64),
    /// A live message, by its frames.
    Message(Vec<Bytes>),
    /// A reply of the replay endpoint, by its frames as a DEALER sees them.
    Reply(Vec<Bytes>),
    /// The replay is over: with its end marker, or broken off.
    ReplayEnded {
        /// The end marker came.
        complete: bool,
    },
}

/// What a body holds.
pub(super) enum Body {
    Header(Header),
    Record(Record),
    /// A kind that this version does not know.
    Unknown,
}

const HEADER: u8 = 0;
const CONNECTED: u8 = 1;
const DISCONNECTED: u8 = 2;
const LOST: u8 = 3;
const MESSAGE: u8 = 4;
const REPLY: u8 = 5;
const REPLAY_ENDED: u8 = 6;

/// The checksum of a body.
pub(super) fn checksum(body: &[u8]) -> u64 {
    xxh3_64_with_seed(body, body.len() as u64)
}

/// Appends a whole record to `out`: preamble and body. Returns whether it is within [`MAX_BODY`]; `out` is as before
/// where it is not.
pub(super) fn write_record(record: &Record, out: &mut Vec<u8>) -> bool {
    let kind = match &record.entry {
        Entry::Connected => CONNECTED,
        Entry::Disconnected => DISCONNECTED,
        Entry::Lost(_) => LOST,
        Entry::Message(_) => MESSAGE,
        Entry::Reply(_) => REPLY,
        Entry::ReplayEnded { .. } => REPLAY_ENDED,
    };
    if let Entry::Message(frames) | Entry::Reply(frames) = &record.entry {
        let size = frames.iter().fold(16usize, |sum, frame| sum.saturating_add(frame.len()).saturating_add(4));
        if size > MAX_BODY || frames.len() > MAX_FRAMES {
            return false;
        }
    }
    write_body(kind, record.at, out, |out| match &record.entry {
        Entry::Connected | Entry::Disconnected => {}
        Entry::Lost(messages) => out.extend_from_slice(&messages.to_le_bytes()),
        Entry::ReplayEnded { complete } => out.push(u8::from(*complete)),
        Entry::Message(frames) | Entry::Reply(frames) => {
            // Both are below MAX_BODY.
            out.extend_from_slice(&(frames.len() as u32).to_le_bytes());
            for frame in frames {
                out.extend_from_slice(&(frame.len() as u32).to_le_bytes());
                out.extend_from_slice(frame);
            }
        }
    });
    true
}

/// What a file begins with: magic, version, header.
pub(super) fn write_header(header: &Header) -> Result<Vec<u8>, serde_json::Error> {
    let json = serde_json::to_vec(header)?;
    let mut out = Vec::from(MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    write_body(HEADER, Duration::ZERO, &mut out, |out| out.extend_from_slice(&json));
    Ok(out)
}

fn write_body(kind: u8, at: Duration, out: &mut Vec<u8>, content: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; PREAMBLE]);
    out.push(kind);
    out.extend_from_slice(&u64::try_from(at.as_nanos()).unwrap_or(u64::MAX).to_le_bytes());
    content(out);
    let Some((preamble, body)) = out.get_mut(start..).and_then(|record| record.split_at_mut_checked(PREAMBLE)) else {
        return;
    };
    let (length, sum) = preamble.split_at_mut(4);
    length.copy_from_slice(&(body.len() as u32).to_le_bytes());
    sum.copy_from_slice(&checksum(body).to_le_bytes());
}

/// Reads a body whose checksum is right. `None`: its content is not what its kind says.
pub(super) fn read_body(mut body: Bytes) -> Option<Body> {
    let kind = body.try_get_u8().ok()?;
    let at = Duration::from_nanos(body.try_get_u64_le().ok()?);
    let entry = match kind {
        HEADER => return serde_json::from_slice(&body).ok().map(Body::Header),
        CONNECTED => Entry::Connected,
        DISCONNECTED => Entry::Disconnected,
        LOST => Entry::Lost(body.try_get_u64_le().ok()?),
        MESSAGE => Entry::Message(read_frames(&mut body)?),
        REPLY => Entry::Reply(read_frames(&mut body)?),
        REPLAY_ENDED => Entry::ReplayEnded { complete: body.try_get_u8().ok()? == 1 },
        _ => return Some(Body::Unknown),
    };
    body.is_empty().then_some(Body::Record(Record { at, entry }))
}

fn read_frames(body: &mut Bytes) -> Option<Vec<Bytes>> {
    let count = body.try_get_u32_le().ok()? as usize;
    if count == 0 || count > MAX_FRAMES {
        return None;
    }
    let mut frames = Vec::new();
    for _ in 0..count {
        let length = body.try_get_u32_le().ok()? as usize;
        if length > body.len() {
            return None;
        }
        frames.push(body.split_to(length));
    }
    Some(frames)
}
