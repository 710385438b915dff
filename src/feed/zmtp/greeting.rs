//! The greeting: 64 bytes that each side sends first.
//!
//! ```text
//! FF 00*8 7F | major minor | mechanism, 20 bytes, zero-padded | as-server | 00*31
//! ```

use super::Violation;

/// How long a greeting is, in bytes.
pub const GREETING_LEN: usize = 64;

const MECHANISM: &[u8; 20] = b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

/// What a peer's greeting says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// The minor version of its ZMTP 3: from 1 on it knows PING and SUBSCRIBE as commands. A peer of a later
    /// major version speaks ours as a later minor one would.
    pub minor: u8,
}

// === impl Greeting ===

impl Greeting {
    /// Our own greeting: ZMTP 3.1, NULL.
    pub fn ours() -> [u8; GREETING_LEN] {
        let mut bytes = [0; GREETING_LEN];
        bytes[0] = 0xFF;
        bytes[9] = 0x7F;
        bytes[10] = 3;
        bytes[11] = 1;
        bytes[12..32].copy_from_slice(MECHANISM);
        bytes
    }

    /// Reads a greeting from as many of its first bytes as have come: `None` while it may still become one.
    /// Noise is refused at its first wrong byte.
    ///
    /// # Errors
    /// [`Violation::Signature`], [`Violation::Version`], [`Violation::Mechanism`].
    pub fn parse(bytes: &[u8]) -> Result<Option<Self>, Violation> {
        let at = |index: usize| bytes.get(index).copied();
        // Bytes 1 to 8 are padding that may hold anything: libzmq counts its own identity there for ZMTP 1 peers.
        if at(0).is_some_and(|byte| byte != 0xFF) || at(9).is_some_and(|byte| byte & 1 != 1) {
            return Err(Violation::Signature);
        }
        let Some(major) = at(10) else { return Ok(None) };
        if major < 3 {
            return Err(Violation::Version { major });
        }
        let seen = bytes.get(12..).unwrap_or_default();
        if seen.iter().zip(MECHANISM).any(|(seen, due)| seen != due) {
            return Err(Violation::Mechanism);
        }
        if bytes.len() < GREETING_LEN {
            return Ok(None);
        }
        Ok(at(11).map(|minor| Self { minor: if major > 3 { u8::MAX } else { minor } }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As libzmq 4.3.5 sends it.
    const LIBZMQ: [u8; 64] =
        *b"\xff\0\0\0\0\0\0\0\x01\x7f\x03\x01NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0";

    fn with(index: usize, byte: u8) -> [u8; 64] {
        let mut bytes = LIBZMQ;
        bytes[index] = byte;
        bytes
    }

    #[test]
    fn a_greeting_is_understood_once_all_of_it_has_come() {
        for come in 0..64 {
            assert_eq!(Greeting::parse(&LIBZMQ[..come]), Ok(None));
        }
        assert_eq!(Greeting::parse(&LIBZMQ), Ok(Some(Greeting { minor: 1 })));
        assert_eq!(Greeting::parse(&Greeting::ours()), Ok(Some(Greeting { minor: 1 })));
        assert_eq!(Greeting::parse(&with(11, 0)), Ok(Some(Greeting { minor: 0 })));
        assert_eq!(Greeting::parse(&with(10, 4)), Ok(Some(Greeting { minor: u8::MAX })));
    }

    #[test]
    fn a_wrong_byte_is_refused_as_soon_as_it_comes() {
        for (index, byte, fault) in [
            (0, b'G', Violation::Signature),
            (9, 0x7E, Violation::Signature),
            (10, 1, Violation::Version { major: 1 }),
            (12, b'C', Violation::Mechanism),
            (16, b'X', Violation::Mechanism),
        ] {
            let bytes = with(index, byte);
            assert_eq!(Greeting::parse(&bytes[..index]), Ok(None));
            assert_eq!(Greeting::parse(&bytes[..=index]), Err(fault));
            assert_eq!(Greeting::parse(&bytes), Err(fault));
        }
    }
}
