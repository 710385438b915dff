//! Numbers, flags and texts, little-endian, into and out of bytes.

use super::format::Refusal;

/// A slice that is read from its front; running out is a [`Refusal::Malformed`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

// === impl Cursor ===

impl<'a> Cursor<'a> {
    pub(super) fn take(&mut self, bytes: usize) -> Result<&'a [u8], Refusal> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Refusal::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Refusal> {
        let (taken, rest) = self.0.split_first_chunk::<N>().ok_or(Refusal::Malformed)?;
        self.0 = rest;
        Ok(*taken)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Refusal> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn bool(&mut self) -> Result<bool, Refusal> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Refusal::Malformed),
        }
    }

    pub(super) fn u32(&mut self) -> Result<u32, Refusal> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, Refusal> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn u128(&mut self) -> Result<u128, Refusal> {
        self.array().map(u128::from_le_bytes)
    }

    pub(super) fn text(&mut self) -> Result<&'a str, Refusal> {
        let length = self.u32()? as usize;
        std::str::from_utf8(self.take(length)?).map_err(|_| Refusal::Malformed)
    }

    pub(super) fn option<T>(&mut self, read: impl Fn(&mut Self) -> Result<T, Refusal>) -> Result<Option<T>, Refusal> {
        self.bool()?.then(|| read(self)).transpose()
    }

    /// A list of items of at least `size` bytes each, so that no more is allocated than there are bytes for.
    pub(super) fn list<T>(
        &mut self,
        size: usize,
        read: impl Fn(&mut Self) -> Result<T, Refusal>,
    ) -> Result<Vec<T>, Refusal> {
        let length = self.u32()? as usize;
        if length > self.0.len() / size {
            return Err(Refusal::Malformed);
        }
        (0..length).map(|_| read(self)).collect()
    }
}

/// The other direction.
pub(super) trait Put {
    fn byte(&mut self, value: u8);
    fn bytes(&mut self, value: &[u8]);

    fn u32(&mut self, value: u32) {
        self.bytes(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.bytes(&value.to_le_bytes());
    }

    /// Lists and texts are bounded far below 32 bits where they come from.
    fn length(&mut self, value: usize) {
        self.u32(u32::try_from(value).unwrap_or(u32::MAX));
    }

    fn text(&mut self, value: &str) {
        self.length(value.len());
        self.bytes(value.as_bytes());
    }

    fn option<T: Copy>(&mut self, value: Option<T>, put: impl Fn(&mut Self, T)) {
        self.byte(u8::from(value.is_some()));
        if let Some(value) = value {
            put(self, value);
        }
    }
}

impl Put for Vec<u8> {
    fn byte(&mut self, value: u8) {
        self.push(value);
    }

    fn bytes(&mut self, value: &[u8]) {
        self.extend_from_slice(value);
    }
}
