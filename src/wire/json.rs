//! JSON, rewritten as msgpack, so that one walker reads both.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use super::error::MessageError;

/// How deep JSON may nest. Engines nest it eight times.
const MAX_DEPTH: usize = 32;

/// Writes one JSON value as msgpack.
struct Rewrite<'a> {
    out: &'a mut Vec<u8>,
    depth: usize,
    too_deep: &'a mut bool,
}

/// Whether a payload is JSON: an object or an array. Neither a msgpack array nor a map starts with such a byte.
pub(super) fn looks_like(payload: &[u8]) -> bool {
    matches!(payload.trim_ascii_start().first(), Some(b'{' | b'['))
}

/// Rewrites a JSON document as msgpack into `out`, which is emptied first. It grows to at most five bytes for
/// each of the document's.
pub(super) fn to_msgpack(json: &[u8], out: &mut Vec<u8>) -> Result<(), MessageError> {
    out.clear();
    let mut too_deep = false;
    let mut reader = serde_json::Deserializer::from_slice(json);
    let written = Rewrite { out, depth: MAX_DEPTH, too_deep: &mut too_deep }.deserialize(&mut reader);
    match written.and_then(|()| reader.end()) {
        Ok(()) => Ok(()),
        Err(_) if too_deep => Err(MessageError::TooDeep { max: MAX_DEPTH }),
        Err(error) if error.is_eof() => Err(MessageError::Truncated),
        Err(_) => Err(MessageError::NotABatch { what: "no JSON" }),
    }
}

// === impl Rewrite ===

impl Rewrite<'_> {
    /// The head of a container, with room for how many values it will hold.
    fn open<E: Error>(&mut self, marker: u8) -> Result<usize, E> {
        if self.depth == 0 {
            *self.too_deep = true;
            return Err(E::custom("too deep"));
        }
        self.out.push(marker);
        let at = self.out.len();
        self.out.extend([0; 4]);
        Ok(at)
    }

    fn close(&mut self, at: usize, count: u32) {
        if let Some(slot) = self.out.get_mut(at..at + 4) {
            slot.copy_from_slice(&count.to_be_bytes());
        }
    }

    fn inner(&mut self) -> Rewrite<'_> {
        Rewrite { out: self.out, depth: self.depth - 1, too_deep: self.too_deep }
    }

    fn tagged(self, marker: u8, body: &[u8]) {
        self.out.push(marker);
        self.out.extend_from_slice(body);
    }
}

impl<'de> DeserializeSeed<'de> for Rewrite<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Rewrite<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<(), E> {
        self.out.push(0xc0);
        Ok(())
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<(), E> {
        self.out.push(0xc2 | u8::from(value));
        Ok(())
    }

    fn visit_u64<E: Error>(self, n: u64) -> Result<(), E> {
        match u32::try_from(n) {
            Ok(small @ 0..=0x7f) => self.out.push(small as u8),
            Ok(medium) => self.tagged(0xce, &medium.to_be_bytes()),
            Err(_) => self.tagged(0xcf, &n.to_be_bytes()),
        }
        Ok(())
    }

    fn visit_i64<E: Error>(self, n: i64) -> Result<(), E> {
        self.tagged(0xd3, &n.to_be_bytes());
        Ok(())
    }

    fn visit_f64<E: Error>(self, x: f64) -> Result<(), E> {
        self.tagged(0xcb, &x.to_be_bytes());
        Ok(())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<(), E> {
        let length = u32::try_from(text.len()).map_err(|_| E::custom("too long"))?;
        self.out.push(0xdb);
        self.out.extend_from_slice(&length.to_be_bytes());
        self.out.extend_from_slice(text.as_bytes());
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut values: A) -> Result<(), A::Error> {
        let at = self.open(0xdd)?;
        let mut count = 0;
        while values.next_element_seed(self.inner())?.is_some() {
            count += 1;
        }
        self.close(at, count);
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut pairs: A) -> Result<(), A::Error> {
        let at = self.open(0xdf)?;
        let mut count = 0;
        while pairs.next_key_seed(self.inner())?.is_some() {
            pairs.next_value_seed(self.inner())?;
            count += 1;
        }
        self.close(at, count);
        Ok(())
    }
}
