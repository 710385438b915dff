//! Dynamo's event plane: router events, which carry content hashes in place of tokens.
//!
//! ```text
//! NATS core   msgpack {publisher_id, sequence, published_at, topic, payload}   --envelope-->  payload
//! JetStream   JSON router event, without an envelope
//! ZMQ         [topic][publisher_id][sequence][01, length, envelope]            --plane----->  envelope
//! payload     one router event, or an array of them                            --decode---->  Batch
//!                                                                              --owners---->  whose each is
//!
//! router event {worker_id, storage_tier?, event: {event_id, dp_rank, data}}
//!   data  {stored: {parent_hash, start_position?, blocks: [{block_hash, tokens_hash, ..}]}}
//!       | {removed: {block_hashes}} | "cleared"
//! ```
//!
//! One message may carry events of several workers and ranks: [`Batch::runs`] tells whose they are. `tokens_hash`
//! is our content hash: multimodal keys, LoRA name and salt are in it already. The block size is not said.

use crate::hash::ContentHash;

use super::arena::Fault;
use super::error::{EventError, MessageError};
use super::event::{Batch, Event, Medium, Removed, Span, Stored};
use super::msgpack::{Cursor, Head};
use super::{MAX_PAYLOAD, hashes, json};

/// What the event plane puts around router events.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Envelope<'a> {
    /// Who published it: each has sequence numbers of its own.
    pub publisher: u64,
    /// The message's number, from 0.
    pub sequence: u64,
    /// The router events, not yet decoded.
    pub payload: &'a [u8],
}

/// What stands around an event's data.
#[derive(Clone, Copy, Default, Debug)]
struct Header<'a> {
    worker: Option<u64>,
    rank: Option<u32>,
    id: Option<u64>,
    tier: Option<&'a [u8]>,
    data: Option<Cursor<'a>>,
}

/// Opens a message of NATS: `None` where it has no envelope, being a JSON router event itself.
///
/// # Errors
/// [`MessageError`] where it is neither, or lacks the publisher, the sequence or the payload.
pub fn envelope(message: &[u8]) -> Result<Option<Envelope<'_>>, MessageError> {
    if json::looks_like(message) {
        return Ok(None);
    }
    let mut cursor = Cursor::new(message);
    let Head::Map(pairs) = cursor.head()? else {
        return Err(MessageError::NotABatch { what: "an envelope that is not a map" });
    };
    let (mut publisher, mut sequence, mut payload) = (None, None, None);
    for _ in 0..pairs {
        let key = cursor.head()?;
        match (key, cursor.peek()?) {
            (Head::Text(b"publisher_id"), Head::Unsigned(n)) => publisher = Some(n),
            (Head::Text(b"sequence"), Head::Unsigned(n)) => sequence = Some(n),
            (Head::Text(b"payload"), Head::Bytes(bytes)) => payload = Some(bytes),
            _ => {}
        }
        cursor.skip()?;
    }
    if !cursor.is_at_end() {
        return Err(MessageError::NotABatch { what: "bytes after its end" });
    }
    match (publisher, sequence, payload) {
        (Some(publisher), Some(sequence), Some(payload)) => Ok(Some(Envelope { publisher, sequence, payload })),
        _ => Err(MessageError::NotABatch { what: "an envelope without publisher, sequence or payload" }),
    }
}

/// Opens a message of Dynamo's own ZMQ plane: what it holds is an envelope.
///
/// # Errors
/// [`MessageError`] for another number of frames, numbers that are not eight bytes, a version other than 1, and a
/// length that is not the frame's.
pub fn plane<B: AsRef<[u8]>>(frames: &[B]) -> Result<&[u8], MessageError> {
    let [_topic, publisher, sequence, frame] = frames else {
        return Err(MessageError::FrameCount { got: frames.len() });
    };
    for number in [publisher, sequence] {
        let got = number.as_ref().len();
        if got != 8 {
            return Err(MessageError::SequenceLength { got });
        }
    }
    match frame.as_ref() {
        [1, a, b, c, d, envelope @ ..] => {
            let declared = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
            match envelope.len().cmp(&declared) {
                std::cmp::Ordering::Less => Err(MessageError::Truncated),
                std::cmp::Ordering::Equal => Ok(envelope),
                std::cmp::Ordering::Greater => Err(MessageError::NotABatch { what: "bytes after its end" }),
            }
        }
        [1, ..] | [] => Err(MessageError::Truncated),
        _ => Err(MessageError::NotABatch { what: "an event plane frame of another version" }),
    }
}

/// Decodes a whole message of NATS: router events with or without an envelope.
///
/// # Errors
/// Those of [`envelope`] and [`decode`]; the batch is empty then.
pub fn decode_message(message: &[u8], batch: &mut Batch) -> Result<(), MessageError> {
    batch.clear();
    match envelope(message)? {
        Some(envelope) => decode(envelope.payload, batch),
        None => decode(message, batch),
    }
}

/// Tells whose each router event of a payload is, in order: its worker and rank (0 where it names none), and its own
/// msgpack. `None` in place of the two: the event does not say in a way that can be read. `scratch` is for JSON.
///
/// # Errors
/// [`MessageError`] where the payload as a whole cannot be walked; events before that may have been told.
pub fn owners(
    payload: &[u8],
    scratch: &mut Vec<u8>,
    mut tell: impl FnMut(Option<(u64, u32)>, &[u8]),
) -> Result<(), MessageError> {
    if payload.len() > MAX_PAYLOAD {
        return Err(MessageError::TooLarge { got: payload.len(), max: MAX_PAYLOAD });
    }
    let document = if json::looks_like(payload) {
        scratch.clear();
        json::to_msgpack(payload, scratch)?;
        &scratch[..]
    } else {
        payload
    };
    let mut cursor = Cursor::new(document);
    for _ in 0..routed(&mut cursor)? {
        let mut inside = cursor;
        cursor.skip()?;
        let length = inside.rest().len() - cursor.rest().len();
        let event = inside.rest().get(..length).unwrap_or_default();
        let mut header = Header::default();
        let owner = match header.read(&mut inside) {
            Ok(()) | Err(Fault::Event(EventError::UnknownTag)) => {
                header.worker.map(|worker| (worker, header.rank.unwrap_or(0)))
            }
            Err(Fault::Message(error)) => return Err(error),
            Err(Fault::Event(_)) => None,
        };
        tell(owner, event);
    }
    if cursor.is_at_end() { Ok(()) } else { Err(MessageError::NotABatch { what: "bytes after its end" }) }
}

/// A message as [`envelope`] opens it, of these router events, each in its own msgpack.
pub fn enclose<'a>(publisher: u64, sequence: u64, events: impl ExactSizeIterator<Item = &'a [u8]> + Clone) -> Vec<u8> {
    let payload = 5 + events.clone().map(<[u8]>::len).sum::<usize>();
    let mut message = Vec::with_capacity(payload + 64);
    message.push(0x83);
    for (name, number) in [(&b"publisher_id"[..], publisher), (b"sequence", sequence)] {
        message.push(0xa0 | name.len() as u8);
        message.extend_from_slice(name);
        message.push(0xcf);
        message.extend_from_slice(&number.to_be_bytes());
    }
    message.extend_from_slice(b"\xa7payload\xc6");
    message.extend_from_slice(&(payload as u32).to_be_bytes());
    message.push(0xdd);
    message.extend_from_slice(&(events.len() as u32).to_be_bytes());
    events.for_each(|event| message.extend_from_slice(event));
    message
}

/// Decodes router events, msgpack or JSON, into `batch`, which is emptied first.
///
/// # Errors
/// [`MessageError`] where the payload as a whole cannot be walked; the batch is empty then.
pub fn decode(payload: &[u8], batch: &mut Batch) -> Result<(), MessageError> {
    batch.clear();
    if payload.len() > MAX_PAYLOAD {
        return Err(MessageError::TooLarge { got: payload.len(), max: MAX_PAYLOAD });
    }
    let decoded = if json::looks_like(payload) {
        let mut scratch = std::mem::take(&mut batch.scratch);
        let decoded = json::to_msgpack(payload, &mut scratch).and_then(|()| events(&scratch, batch));
        batch.scratch = scratch;
        decoded
    } else {
        events(payload, batch)
    };
    if decoded.is_err() {
        batch.clear();
    }
    decoded
}

fn events(document: &[u8], batch: &mut Batch) -> Result<(), MessageError> {
    let mut cursor = Cursor::new(document);
    for _ in 0..routed(&mut cursor)? {
        let (mut inside, mark, start) = (cursor, batch.mark(), batch.events.len());
        cursor.skip()?;
        let mut header = Header::default();
        let decoded = header.read(&mut inside).and_then(|()| header.read_data(batch));
        match decoded {
            Ok(()) => {}
            Err(Fault::Message(error)) => return Err(error),
            Err(Fault::Event(error)) => batch.reject(mark, error),
        }
        batch.attribute(header.worker, header.rank, header.id, start);
    }
    batch.settle_rank();
    if cursor.is_at_end() { Ok(()) } else { Err(MessageError::NotABatch { what: "bytes after its end" }) }
}

/// How many router events follow: a list's, or one.
fn routed(cursor: &mut Cursor<'_>) -> Result<usize, MessageError> {
    match cursor.peek()? {
        Head::Array(n) => {
            cursor.head()?;
            Ok(n)
        }
        Head::Map(_) => Ok(1),
        _ => Err(MessageError::NotABatch { what: "neither an array nor a map" }),
    }
}

// === impl Header ===

impl<'a> Header<'a> {
    fn read(&mut self, cursor: &mut Cursor<'a>) -> Result<(), Fault> {
        let Head::Map(pairs) = cursor.head()? else { return Err(EventError::NotAnEvent.into()) };
        let (mut shared, mut event) = (false, None);
        for _ in 0..pairs {
            match cursor.head()? {
                Head::Text(b"worker_id") => self.worker = Some(unsigned(cursor.head()?)?),
                Head::Text(b"storage_tier") => self.tier = text(cursor.head()?)?,
                // Blocks that no worker owns mean something else.
                Head::Text(b"residency_domain") => {
                    shared = text(cursor.head()?)?.is_some_and(|domain| domain != b"worker");
                }
                Head::Text(b"event") => {
                    event = Some(*cursor);
                    cursor.skip()?;
                }
                _ => cursor.skip()?,
            }
        }
        let mut event = event.ok_or(EventError::NotAnEvent)?;
        let Head::Map(pairs) = event.head()? else { return Err(EventError::NotAnEvent.into()) };
        for _ in 0..pairs {
            match event.head()? {
                Head::Text(b"event_id") => self.id = Some(unsigned(event.head()?)?),
                Head::Text(b"dp_rank") => {
                    let rank = u32::try_from(unsigned(event.head()?)?);
                    self.rank = Some(rank.map_err(|_| EventError::BadField)?);
                }
                Head::Text(b"data") => {
                    self.data = Some(event);
                    event.skip()?;
                }
                _ => event.skip()?,
            }
        }
        match self.worker {
            None => Err(EventError::MissingField.into()),
            // It says nothing of what the worker holds itself.
            Some(_) if shared => Err(EventError::UnknownTag.into()),
            Some(_) => Ok(()),
        }
    }

    fn read_data(&self, batch: &mut Batch) -> Result<(), Fault> {
        let mut cursor = self.data.ok_or(EventError::MissingField)?;
        match cursor.head()? {
            Head::Text(b"cleared") => {
                batch.push_event(Event::Cleared);
                Ok(())
            }
            Head::Map(1) => match cursor.head()? {
                Head::Text(b"stored") => self.stored(&mut cursor, batch),
                Head::Text(b"removed") => self.removed(&mut cursor, batch),
                _ => Err(EventError::UnknownTag.into()),
            },
            Head::Text(_) => Err(EventError::UnknownTag.into()),
            _ => Err(EventError::NotAnEvent.into()),
        }
    }

    fn stored(&self, cursor: &mut Cursor<'a>, batch: &mut Batch) -> Result<(), Fault> {
        let Head::Map(pairs) = cursor.head()? else { return Err(EventError::BadField.into()) };
        let (mut parent, mut position, mut spans) = (None, 0, None);
        for _ in 0..pairs {
            match cursor.head()? {
                Head::Text(b"parent_hash") => parent = Some(hashes::of_parent(cursor.head()?)?),
                Head::Text(b"start_position") => match cursor.head()? {
                    Head::Nil => {}
                    head => position = unsigned(head)?,
                },
                Head::Text(b"blocks") => spans = Some(blocks(cursor, batch)?),
                _ => cursor.skip()?,
            }
        }
        let parent = parent.ok_or(EventError::MissingField)?;
        let (hashes, contents) = spans.ok_or(EventError::MissingField)?;
        if parent.is_none() && position > 0 {
            // A store whose parent is unknown is no root.
            return Err(EventError::BadField.into());
        }
        let medium = self.medium(batch)?;
        batch.push_event(Event::Stored(Stored { parent, contents, ..Stored::bare(hashes, medium) }));
        Ok(())
    }

    fn removed(&self, cursor: &mut Cursor<'a>, batch: &mut Batch) -> Result<(), Fault> {
        let Head::Map(pairs) = cursor.head()? else { return Err(EventError::BadField.into()) };
        let mut hashes = None;
        for _ in 0..pairs {
            match cursor.head()? {
                Head::Text(b"block_hashes") => hashes = Some(hashes::read(cursor, batch)?),
                _ => cursor.skip()?,
            }
        }
        let hashes = hashes.ok_or(EventError::MissingField)?;
        let medium = self.medium(batch)?;
        batch.push_event(Event::Removed(Removed { hashes, medium, group: None }));
        Ok(())
    }

    fn medium(&self, batch: &mut Batch) -> Result<Medium, EventError> {
        match self.tier {
            None | Some(b"device") => Ok(Medium::Device),
            Some(b"host_pinned") => Ok(Medium::Host),
            Some(b"disk") => Ok(Medium::Disk),
            Some(b"external") => Ok(Medium::External),
            Some(other) => Medium::of(other, batch),
        }
    }
}

fn blocks(cursor: &mut Cursor<'_>, batch: &mut Batch) -> Result<(Span, Span), Fault> {
    let Head::Array(n) = cursor.head()? else { return Err(EventError::BadField.into()) };
    let (hashes, contents) = (batch.hashes.len(), batch.contents.len());
    for _ in 0..n {
        let Head::Map(pairs) = cursor.head()? else { return Err(EventError::BadField.into()) };
        let (mut hash, mut content) = (None, None);
        for _ in 0..pairs {
            match cursor.head()? {
                Head::Text(b"block_hash") => hash = Some(hashes::of(cursor.head()?)?),
                Head::Text(b"tokens_hash") => {
                    content = match cursor.head()? {
                        Head::Unsigned(bits) => Some(ContentHash(bits)),
                        Head::Signed(value) => Some(ContentHash(value as u64)),
                        _ => return Err(EventError::BadHash.into()),
                    }
                }
                _ => cursor.skip()?,
            }
        }
        batch.hashes.push(hash.ok_or(EventError::MissingField)?);
        batch.contents.push(content.ok_or(EventError::MissingField)?);
    }
    Ok((Span::new(hashes, batch.hashes.len()), Span::new(contents, batch.contents.len())))
}

fn unsigned(head: Head<'_>) -> Result<u64, EventError> {
    match head {
        Head::Unsigned(n) => Ok(n),
        _ => Err(EventError::BadField),
    }
}

fn text(head: Head<'_>) -> Result<Option<&[u8]>, EventError> {
    match head {
        Head::Nil => Ok(None),
        Head::Text(bytes) => Ok(Some(bytes)),
        _ => Err(EventError::BadField),
    }
}
