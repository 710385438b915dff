//! Rewriting messages so that nothing of a prompt is left, and everything that matching depends on is.

use bytes::Bytes;
use rmp::encode as write;
use serde_json::{Number, Value};

use super::pseudonym::Pseudonyms;
use super::rule::{REMOVED, Rule, STORED};
use crate::wire::frames::{self, ReplayFrame};
use crate::wire::msgpack::{Cursor, Head};
use crate::wire::{self, Batch, Dialect, MAX_PAYLOAD};

/// How deep values may nest; engines nest them eight times.
const MAX_DEPTH: usize = 24;

/// The longest JSON payload that is rewritten: as values it takes many times its length.
const MAX_JSON: usize = 8 << 20;

/// What the kinds of groups that have a window begin with.
const SLIDING: &[u8] = b"sliding_window";

/// Rewrites the messages of one recording.
///
/// Tokens, engine hashes, LoRA names, salts, extra keys and everything whose meaning is not known become pseudonyms:
/// the same thing has the same one throughout the recording, under a random key that is not kept. Block sizes, groups,
/// ranks, times, media, sequence numbers, topics and the shape of the encoding stay. A payload that cannot be decoded
/// may hold anything: a stub with its length and a keyed digest stands in for it.
///
/// Engine hashes do not stay: some engines hash a single token under its parent's hash, without a secret, so a
/// prompt could be read off them token by token.
#[derive(Debug, Default)]
pub struct Redactor {
    names: Pseudonyms,
    batch: Batch,
}

/// A value that cannot be rewritten.
struct Unreadable;

type Rewritten = Result<(), Unreadable>;

// === impl Redactor ===

impl Redactor {
    /// A redactor with a key of its own.
    pub fn new() -> Self {
        Self::default()
    }

    /// Rewrites a live message.
    pub fn message(&mut self, frames: &[Bytes]) -> Vec<Bytes> {
        let readable = frames::live(frames).is_ok();
        self.frames(frames, readable)
    }

    /// Rewrites a reply of a replay.
    pub fn reply(&mut self, frames: &[Bytes]) -> Vec<Bytes> {
        match frames::replay(frames) {
            Ok(ReplayFrame::End) => frames.to_vec(),
            readable => self.frames(frames, readable.is_ok()),
        }
    }

    fn frames(&mut self, frames: &[Bytes], readable: bool) -> Vec<Bytes> {
        let payload = frames.last().filter(|_| readable).and_then(|payload| self.payload(payload));
        let sequence = frames.len().saturating_sub(2);
        let frame = |(i, frame): (usize, &Bytes)| match &payload {
            Some(payload) if i == sequence + 1 => payload.clone(),
            // Topics name pods and models, not prompts.
            Some(_) => frame.clone(),
            None if i == sequence && readable => frame.clone(),
            None if frame.is_empty() => Bytes::new(),
            None => Bytes::from(self.names.stub(frame)),
        };
        frames.iter().enumerate().map(frame).collect()
    }

    /// `None`: it cannot be decoded.
    fn payload(&mut self, payload: &[u8]) -> Option<Bytes> {
        wire::decode(Dialect::Auto, payload, &mut self.batch).ok()?;
        let out = if matches!(payload.trim_ascii_start().first(), Some(b'{' | b'[')) {
            if payload.len() > MAX_JSON {
                return None;
            }
            let mut value: Value = serde_json::from_slice(payload).ok()?;
            self.names.json(Rule::Named, &mut value);
            serde_json::to_vec(&value).ok()?
        } else {
            let mut out = Vec::with_capacity(payload.len());
            self.names.batch(&mut Cursor::new(payload), &mut out).ok()?;
            out
        };
        (out.len() <= MAX_PAYLOAD).then(|| Bytes::from(out))
    }
}

// === impl Pseudonyms: msgpack ===

impl Pseudonyms {
    fn batch(&self, cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Rewritten {
        let Head::Array(n) = cursor.peek()? else { return self.value(Rule::Named, cursor, out, MAX_DEPTH) };
        cursor.head()?;
        write::write_array_len(out, n as u32)?;
        for i in 0..n {
            match (i, cursor.peek()?) {
                (1, Head::Array(events)) => {
                    cursor.head()?;
                    write::write_array_len(out, events as u32)?;
                    (0..events).try_for_each(|_| self.event(cursor, out))?;
                }
                (0 | 2, _) => self.value(Rule::Number, cursor, out, MAX_DEPTH)?,
                _ => self.value(Rule::Secret, cursor, out, MAX_DEPTH)?,
            }
        }
        Ok(())
    }

    fn event(&self, cursor: &mut Cursor<'_>, out: &mut Vec<u8>) -> Rewritten {
        let Head::Array(n) = cursor.peek()? else { return self.value(Rule::Named, cursor, out, MAX_DEPTH) };
        cursor.head()?;
        write::write_array_len(out, n as u32)?;
        if n == 0 {
            return Ok(());
        }
        let order = match cursor.peek()? {
            Head::Text(b"BlockStored") => &STORED[..],
            Head::Text(b"BlockRemoved") => &REMOVED[..],
            _ => &[][..],
        };
        self.value(Rule::Word, cursor, out, MAX_DEPTH)?;
        for i in 0..n - 1 {
            self.value(order.get(i).copied().unwrap_or(Rule::Secret), cursor, out, MAX_DEPTH)?;
        }
        Ok(())
    }

    fn value(&self, rule: Rule, cursor: &mut Cursor<'_>, out: &mut Vec<u8>, depth: usize) -> Rewritten {
        let depth = depth.checked_sub(1).ok_or(Unreadable)?;
        match cursor.head()? {
            Head::Nil => write::write_nil(out).map_err(|_| Unreadable)?,
            Head::Bool(value) => write::write_bool(out, value).map_err(|_| Unreadable)?,
            Head::Unsigned(n) => drop(write::write_uint(out, self.unsigned(rule, n))?),
            Head::Signed(n) => drop(write::write_sint(out, self.signed(rule, n))?),
            Head::Float(x) => write::write_f64(out, self.float(rule, x))?,
            Head::Text(text) => {
                let text = self.word(rule, text);
                write::write_str_len(out, text.len() as u32)?;
                out.extend_from_slice(&text);
            }
            Head::Bytes(bytes) => {
                let bytes = if rule == Rule::Hash { self.digest(bytes) } else { self.bytes(bytes) };
                write::write_bin(out, &bytes)?;
            }
            Head::Array(n) => {
                write::write_array_len(out, n as u32)?;
                let events = rule == Rule::Named;
                for _ in 0..n {
                    match cursor.peek()? {
                        Head::Array(_) if events => self.event(cursor, out)?,
                        _ => self.value(rule, cursor, out, depth)?,
                    }
                }
            }
            Head::Map(pairs) => {
                write::write_map_len(out, pairs as u32)?;
                for _ in 0..pairs {
                    let inner = match cursor.peek()? {
                        Head::Text(name) if Rule::of(name).is_some() => {
                            cursor.head()?;
                            write::write_str_len(out, name.len() as u32)?;
                            out.extend_from_slice(name);
                            Rule::of(name).filter(|_| rule == Rule::Named)
                        }
                        _ => {
                            self.value(Rule::Secret, cursor, out, depth)?;
                            None
                        }
                    };
                    self.value(inner.unwrap_or(Rule::Secret), cursor, out, depth)?;
                }
            }
            Head::Extension => return Err(Unreadable),
        }
        Ok(())
    }

    fn unsigned(&self, rule: Rule, n: u64) -> u64 {
        match (rule, u32::try_from(n)) {
            (Rule::Number | Rule::Named, _) | (Rule::Extra, Ok(0)) => n,
            (Rule::Hash, _) => self.hash(n),
            (Rule::Token, Ok(token)) => u64::from(self.token(token)),
            // What was no token stays none.
            (Rule::Token, Err(_)) => self.number(n) | 1 << 32,
            (Rule::Word | Rule::Secret | Rule::Extra, _) => self.number(n) >> 1,
        }
    }

    fn signed(&self, rule: Rule, n: i64) -> i64 {
        match rule {
            Rule::Number | Rule::Named => n,
            Rule::Hash => self.hash(n as u64) as i64,
            _ => (self.number(n as u64) | 1 << 63) as i64,
        }
    }

    fn float(&self, rule: Rule, x: f64) -> f64 {
        if matches!(rule, Rule::Number | Rule::Named) { x } else { (self.number(x.to_bits()) >> 12) as f64 }
    }

    fn word(&self, rule: Rule, text: &[u8]) -> Vec<u8> {
        match rule {
            Rule::Word if Rule::is_word(text) => text.to_vec(),
            // A kind of group goes by its beginning.
            Rule::Word if text.starts_with(SLIDING) => SLIDING.to_vec(),
            Rule::Hash => match unhex(text) {
                Some(digest) => {
                    self.digest(&digest).iter().map(|byte| format!("{byte:02x}")).collect::<String>().into()
                }
                None => self.text(text).into(),
            },
            _ => self.text(text).into(),
        }
    }
}

// === impl Pseudonyms: JSON ===

impl Pseudonyms {
    /// Depth is bounded by the parser that made the value.
    fn json(&self, rule: Rule, value: &mut Value) {
        match value {
            Value::Null | Value::Bool(_) => {}
            Value::Number(number) => {
                *number = match (number.as_u64(), number.as_i64(), number.as_f64()) {
                    (Some(n), ..) => self.unsigned(rule, n).into(),
                    (_, Some(n), _) => self.signed(rule, n).into(),
                    (_, _, x) => Number::from_f64(self.float(rule, x.unwrap_or(0.0))).unwrap_or_else(|| 0.into()),
                }
            }
            Value::String(text) => {
                *text = String::from_utf8_lossy(&self.word(rule, text.as_bytes())).into_owned();
            }
            Value::Array(values) => values.iter_mut().for_each(|value| self.json(rule, value)),
            Value::Object(fields) => {
                let named = std::mem::take(fields).into_iter().map(|(name, mut value)| {
                    let known = Rule::of(name.as_bytes());
                    let inner = known.filter(|_| rule == Rule::Named).unwrap_or(Rule::Secret);
                    self.json(inner, &mut value);
                    (if known.is_some() { name } else { self.text(name.as_bytes()) }, value)
                });
                *fields = named.collect();
            }
        }
    }
}

fn unhex(text: &[u8]) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let (pairs, rest) = text.as_chunks::<2>();
    if pairs.len() < 8 || !rest.is_empty() {
        return None;
    }
    pairs.iter().map(|[high, low]| Some((digit(*high)? << 4 | digit(*low)?) as u8)).collect()
}

// === impl Unreadable ===

impl From<wire::MessageError> for Unreadable {
    fn from(_: wire::MessageError) -> Self {
        Self
    }
}

impl<E: rmp::encode::RmpWriteErr> From<rmp::encode::ValueWriteError<E>> for Unreadable {
    fn from(_: rmp::encode::ValueWriteError<E>) -> Self {
        Self
    }
}
