//! A bounds-checked cursor over msgpack bytes.
//!
//! [`Cursor::head`] reads one value's head: a scalar whole, a container as the number of values in it. A count
//! that the bytes left could not hold is [`MessageError::Truncated`] at once (every value takes at least one
//! byte), so a count that was read may be looped over, and sizes nothing beyond a small multiple of the payload.

use rmp::Marker;

use super::error::MessageError;

/// How deep lists of extra keys may nest. Engines nest them twice.
pub const MAX_DEPTH: usize = 8;

/// A place in a msgpack document. A copy of it is a bookmark.
#[derive(Clone, Copy, Debug)]
pub struct Cursor<'a> {
    rest: &'a [u8],
}

/// What a value starts with; the whole of it, unless it is a container.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Head<'a> {
    /// Nil.
    Nil,
    /// A truth value.
    Bool(bool),
    /// An integer from 0 on, however it was written.
    Unsigned(u64),
    /// An integer below 0.
    Signed(i64),
    /// A float of either width.
    Float(f64),
    /// Text, which may not be UTF-8.
    Text(&'a [u8]),
    /// Bytes.
    Bytes(&'a [u8]),
    /// An array: so many values follow.
    Array(usize),
    /// A map: so many pairs of values follow.
    Map(usize),
    /// An extension: no engine sends one.
    Extension,
}

// === impl Cursor ===

impl<'a> Cursor<'a> {
    /// A cursor at the start of `bytes`.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The bytes that were not read yet.
    pub const fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether nothing is left.
    pub const fn is_at_end(&self) -> bool {
        self.rest.is_empty()
    }

    /// Goes on at `rest`, which must be a tail of [`Cursor::rest`].
    pub(super) const fn resume(&mut self, rest: &'a [u8]) {
        self.rest = rest;
    }

    /// Reads a scalar, or the head of a container.
    ///
    /// # Errors
    /// [`MessageError::Truncated`] where the bytes end early or could not hold what the head declares,
    /// [`MessageError::NotABatch`] at the one byte that msgpack never uses.
    // The heads that events are made of are read where they are asked for, the others by a call. Measured on one-block
    // messages: a third less time than with one function for all, whose result goes through memory. `inline` alone is
    // not taken up, and `longer_head` by bytes in place of markers gains nothing.
    #[inline(always)]
    pub fn head(&mut self) -> Result<Head<'a>, MessageError> {
        match self.rest {
            [n @ 0..=0x7f, tail @ ..] => {
                self.rest = tail;
                Ok(Head::Unsigned(u64::from(*n)))
            }
            [n @ 0x90..=0x9f, tail @ ..] => {
                self.rest = tail;
                Ok(Head::Array(self.count(usize::from(n & 0x0f), 1)?))
            }
            [n @ 0xa0..=0xbf, tail @ ..] => {
                self.rest = tail;
                Ok(Head::Text(self.bytes(usize::from(n & 0x1f))?))
            }
            [0xc0, tail @ ..] => {
                self.rest = tail;
                Ok(Head::Nil)
            }
            [0xcf, a, b, c, d, e, f, g, h, tail @ ..] => {
                self.rest = tail;
                Ok(Head::Unsigned(u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h])))
            }
            _ => self.longer_head(),
        }
    }

    /// Any head.
    fn longer_head(&mut self) -> Result<Head<'a>, MessageError> {
        let [first, tail @ ..] = self.rest else { return Err(MessageError::Truncated) };
        self.rest = tail;
        Ok(match Marker::from_u8(*first) {
            Marker::FixPos(n) => Head::Unsigned(u64::from(n)),
            Marker::FixNeg(n) => Head::Signed(i64::from(n)),
            Marker::Null => Head::Nil,
            Marker::True => Head::Bool(true),
            Marker::False => Head::Bool(false),
            Marker::U8 => Head::Unsigned(u64::from(u8::from_be_bytes(self.fixed()?))),
            Marker::U16 => Head::Unsigned(u64::from(u16::from_be_bytes(self.fixed()?))),
            Marker::U32 => Head::Unsigned(u64::from(u32::from_be_bytes(self.fixed()?))),
            Marker::U64 => Head::Unsigned(u64::from_be_bytes(self.fixed()?)),
            Marker::I8 => Head::integer(i64::from(i8::from_be_bytes(self.fixed()?))),
            Marker::I16 => Head::integer(i64::from(i16::from_be_bytes(self.fixed()?))),
            Marker::I32 => Head::integer(i64::from(i32::from_be_bytes(self.fixed()?))),
            Marker::I64 => Head::integer(i64::from_be_bytes(self.fixed()?)),
            Marker::F32 => Head::Float(f64::from(f32::from_be_bytes(self.fixed()?))),
            Marker::F64 => Head::Float(f64::from_be_bytes(self.fixed()?)),
            Marker::FixStr(n) => Head::Text(self.bytes(usize::from(n))?),
            Marker::Str8 => Head::Text(self.sized::<1>()?),
            Marker::Str16 => Head::Text(self.sized::<2>()?),
            Marker::Str32 => Head::Text(self.sized::<4>()?),
            Marker::Bin8 => Head::Bytes(self.sized::<1>()?),
            Marker::Bin16 => Head::Bytes(self.sized::<2>()?),
            Marker::Bin32 => Head::Bytes(self.sized::<4>()?),
            Marker::FixArray(n) => Head::Array(self.count(usize::from(n), 1)?),
            Marker::Array16 => Head::Array(self.length::<2>().and_then(|n| self.count(n, 1))?),
            Marker::Array32 => Head::Array(self.length::<4>().and_then(|n| self.count(n, 1))?),
            Marker::FixMap(n) => Head::Map(self.count(usize::from(n), 2)?),
            Marker::Map16 => Head::Map(self.length::<2>().and_then(|n| self.count(n, 2))?),
            Marker::Map32 => Head::Map(self.length::<4>().and_then(|n| self.count(n, 2))?),
            Marker::FixExt1 => self.extension(1)?,
            Marker::FixExt2 => self.extension(2)?,
            Marker::FixExt4 => self.extension(4)?,
            Marker::FixExt8 => self.extension(8)?,
            Marker::FixExt16 => self.extension(16)?,
            Marker::Ext8 => self.length::<1>().and_then(|n| self.extension(n))?,
            Marker::Ext16 => self.length::<2>().and_then(|n| self.extension(n))?,
            Marker::Ext32 => self.length::<4>().and_then(|n| self.extension(n))?,
            Marker::Reserved => return Err(MessageError::NotABatch { what: "a byte that msgpack never uses" }),
        })
    }

    /// Reads a nil, if one comes next.
    #[inline]
    pub(super) fn nil(&mut self) -> bool {
        let [0xc0, tail @ ..] = self.rest else { return false };
        self.rest = tail;
        true
    }

    /// Reads the bits of an integer of eight bytes, of either sign, if one comes next: nearly every hash is one.
    #[inline]
    pub(super) fn long_integer(&mut self) -> Option<u64> {
        let [0xcf | 0xd3, tail @ ..] = self.rest else { return None };
        let (bits, tail) = tail.split_first_chunk()?;
        self.rest = tail;
        Some(u64::from_be_bytes(*bits))
    }

    /// Whether a map comes next.
    #[inline]
    pub const fn is_at_map(&self) -> bool {
        matches!(self.rest, [0x80..=0x8f | 0xde | 0xdf, ..])
    }

    /// What comes next, without reading it.
    ///
    /// # Errors
    /// As [`Cursor::head`].
    pub fn peek(&self) -> Result<Head<'a>, MessageError> {
        let mut ahead = *self;
        ahead.head()
    }

    /// Looks for the value under `key` in a map whose head was read and which holds `pairs` pairs, without
    /// moving.
    ///
    /// # Errors
    /// As [`Cursor::head`].
    pub fn find(&self, pairs: usize, key: &[u8]) -> Result<Option<Head<'a>>, MessageError> {
        let mut ahead = *self;
        for _ in 0..pairs {
            let start = ahead;
            match ahead.head()? {
                Head::Text(found) if found == key => return ahead.head().map(Some),
                Head::Text(_) => {}
                _ => {
                    ahead = start;
                    ahead.skip()?;
                }
            }
            ahead.skip()?;
        }
        Ok(None)
    }

    /// Reads over one value, whatever is in it.
    ///
    /// Depth costs nothing here: what is counted is values still to come, not levels.
    ///
    /// # Errors
    /// As [`Cursor::head`].
    pub fn skip(&mut self) -> Result<(), MessageError> {
        let mut pending: u64 = 1;
        while pending > 0 {
            // Every value takes a byte, so this bounds the sum of what nested heads declare.
            if pending > self.rest.len() as u64 {
                return Err(MessageError::Truncated);
            }
            pending -= 1;
            pending += match self.head()? {
                Head::Array(n) => n as u64,
                Head::Map(n) => 2 * n as u64,
                _ => 0,
            };
        }
        Ok(())
    }

    /// Reads over `n` values.
    ///
    /// # Errors
    /// As [`Cursor::head`].
    pub fn skip_many(&mut self, n: usize) -> Result<(), MessageError> {
        (0..n).try_for_each(|_| self.skip())
    }

    #[inline]
    fn fixed<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (head, tail) = self.rest.split_first_chunk::<N>().ok_or(MessageError::Truncated)?;
        self.rest = tail;
        Ok(*head)
    }

    #[inline]
    fn bytes(&mut self, n: usize) -> Result<&'a [u8], MessageError> {
        let (head, tail) = self.rest.split_at_checked(n).ok_or(MessageError::Truncated)?;
        self.rest = tail;
        Ok(head)
    }

    /// A big-endian length of `N` bytes.
    #[inline]
    fn length<const N: usize>(&mut self) -> Result<usize, MessageError> {
        Ok(self.fixed::<N>()?.iter().fold(0, |n, b| (n << 8) | usize::from(*b)))
    }

    #[inline]
    fn sized<const N: usize>(&mut self) -> Result<&'a [u8], MessageError> {
        let n = self.length::<N>()?;
        self.bytes(n)
    }

    /// `n`, if the bytes left could hold so many items of `width` values.
    #[inline]
    fn count(&self, n: usize, width: usize) -> Result<usize, MessageError> {
        if n > self.rest.len() / width { Err(MessageError::Truncated) } else { Ok(n) }
    }

    fn extension(&mut self, n: usize) -> Result<Head<'a>, MessageError> {
        self.fixed::<1>()?;
        self.bytes(n)?;
        Ok(Head::Extension)
    }
}

// === impl Head ===

impl Head<'_> {
    const fn integer(n: i64) -> Self {
        if n < 0 { Self::Signed(n) } else { Self::Unsigned(n as u64) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(bytes: &[u8]) -> Result<Head<'_>, MessageError> {
        Cursor::new(bytes).head()
    }

    #[test]
    fn integers_mean_the_same_in_every_width() {
        for bytes in
            [&[5][..], &[0xcc, 5], &[0xcd, 0, 5], &[0xd0, 5], &[0xd2, 0, 0, 0, 5], &[0xcf, 0, 0, 0, 0, 0, 0, 0, 5]]
        {
            assert_eq!(head(bytes), Ok(Head::Unsigned(5)));
        }
        assert_eq!(head(&[0xff]), Ok(Head::Signed(-1)));
        assert_eq!(head(&[0xd1, 0xff, 0xfe]), Ok(Head::Signed(-2)));
    }

    #[test]
    fn a_count_that_the_bytes_cannot_hold_is_truncation() {
        assert_eq!(head(&[0xdd, 0xff, 0xff, 0xff, 0xff]), Err(MessageError::Truncated));
        assert_eq!(head(&[0xdf, 0xff, 0xff, 0xff, 0xff, 1, 2]), Err(MessageError::Truncated));
        assert_eq!(head(&[0x82, 1, 2, 3]), Err(MessageError::Truncated));
        assert_eq!(head(&[0xc6, 0xff, 0xff, 0xff, 0xff, 0]), Err(MessageError::Truncated));
        assert_eq!(head(&[0xc9, 0xff, 0xff, 0xff, 0xff, 5]), Err(MessageError::Truncated));
        assert_eq!(head(&[]), Err(MessageError::Truncated));
    }

    #[test]
    fn skipping_crosses_any_depth_and_stops_after_one_value() {
        let mut deep = vec![0x91; 1_000_000];
        deep.extend([0xc0, 0x07]);
        let mut cursor = Cursor::new(&deep);
        cursor.skip().unwrap();
        assert_eq!(cursor.rest(), [0x07]);
    }

    #[test]
    fn skipping_counts_what_nested_heads_declare_together() {
        // Each head alone could be held by what follows it; both together cannot.
        let mut cursor = Cursor::new(&[0x93, 0x93, 1, 2, 3, 4]);
        assert_eq!(cursor.skip(), Err(MessageError::Truncated));
    }

    #[test]
    fn every_marker_is_walked_or_refused() {
        for marker in 0..=u8::MAX {
            let mut bytes = vec![0; 1 << 17];
            bytes[0] = marker;
            let walked = Cursor::new(&bytes).skip();
            assert_eq!(walked.is_err(), marker == 0xc1, "{marker:#x}");
        }
    }
}
