//! Pseudonyms: the same thing has the same one throughout a recording, and nothing leads back.
//!
//! The key is the process's random one ([`RandomState`]: SipHash under 128 random bits). It is never written, so what
//! one recording calls a token says nothing about another recording, nor about the token.

use std::hash::{BuildHasher, RandomState};

/// How often halves are mixed; four rounds make a permutation of random-looking functions, the rest is margin.
const ROUNDS: u8 = 8;

/// What a pseudonym stands for: equal bytes of two kinds have pseudonyms of their own.
#[derive(Clone, Copy, Hash)]
enum Kind {
    Token(u8),
    Hash,
    Digest(usize),
    Number,
    Text,
    Bytes(u8),
    Frame,
}

/// The pseudonyms of one recording.
#[derive(Clone, Debug, Default)]
pub(super) struct Pseudonyms {
    key: RandomState,
}

// === impl Pseudonyms ===

impl Pseudonyms {
    /// A token's: a permutation of all 32-bit numbers, so that no two tokens ever share one.
    pub(super) fn token(&self, token: u32) -> u32 {
        let (mut left, mut right) = ((token >> 16) as u16, token as u16);
        for round in 0..ROUNDS {
            let mixed = left ^ self.of(Kind::Token(round), &right.to_le_bytes()) as u16;
            (left, right) = (right, mixed);
        }
        u32::from(left) << 16 | u32::from(right)
    }

    /// An engine hash's, with the same highest bit, so that a signed one keeps its sign.
    pub(super) fn hash(&self, bits: u64) -> u64 {
        const HIGH: u64 = 1 << 63;
        (self.of(Kind::Hash, &bits.to_le_bytes()) & !HIGH) | (bits & HIGH)
    }

    /// A digest's, of the same length, eight bytes at least. Its last eight are the pseudonym of the digest's last
    /// eight, which some engines send alone.
    pub(super) fn digest(&self, digest: &[u8]) -> Vec<u8> {
        let Some((head, tail)) = digest.split_last_chunk::<8>() else {
            // Shorter than any engine's: an integer, spelled in bytes.
            let bits = digest.iter().fold(0, |n, byte| n << 8 | u64::from(*byte));
            return self.hash(bits).to_be_bytes().to_vec();
        };
        let mut out = Vec::with_capacity(digest.len());
        for at in (0..head.len()).step_by(8) {
            out.extend_from_slice(&self.of(Kind::Digest(at), digest).to_le_bytes());
        }
        out.truncate(head.len());
        out.extend_from_slice(&self.hash(u64::from_be_bytes(*tail)).to_be_bytes());
        out
    }

    /// A number's that is neither token nor hash, of the same sign.
    pub(super) fn number(&self, bits: u64) -> u64 {
        self.of(Kind::Number, &bits.to_le_bytes())
    }

    /// A text's, of fixed length; nothing stays nothing.
    pub(super) fn text(&self, text: &[u8]) -> String {
        if text.is_empty() { String::new() } else { format!("p-{:016x}", self.of(Kind::Text, text)) }
    }

    /// Some bytes', of fixed length; nothing stays nothing.
    pub(super) fn bytes(&self, bytes: &[u8]) -> Vec<u8> {
        if bytes.is_empty() {
            return Vec::new();
        }
        [0, 1].into_iter().flat_map(|half| self.of(Kind::Bytes(half), bytes).to_le_bytes()).collect()
    }

    /// What stands in for a frame that cannot be read: its length, and a keyed digest that tells equal ones.
    pub(super) fn stub(&self, frame: &[u8]) -> String {
        format!("kvtap redacted {} bytes, digest {:016x}", frame.len(), self.of(Kind::Frame, frame))
    }

    fn of(&self, kind: Kind, bytes: &[u8]) -> u64 {
        self.key.hash_one((kind, bytes))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn tokens_are_permuted_and_each_recording_permutes_them_its_own_way() {
        let (one, other) = (Pseudonyms::default(), Pseudonyms::default());
        let of_one: Vec<u32> = (0..20_000).map(|token| one.token(token)).collect();
        assert_eq!(of_one.iter().collect::<HashSet<_>>().len(), 20_000);
        assert!((0..20_000).all(|token| one.token(token) == of_one[token as usize]));
        let same = (0..20_000).filter(|token| other.token(*token) == of_one[*token as usize]).count();
        assert!(same < 5, "{same} tokens have the same pseudonym in two recordings");
    }

    #[test]
    fn a_digest_and_its_last_eight_bytes_keep_belonging_together() {
        let names = Pseudonyms::default();
        let digest: Vec<u8> = (100..132).collect();
        let tail = u64::from_be_bytes(*digest.last_chunk().unwrap());
        let pseudonym = names.digest(&digest);
        assert_eq!(pseudonym.len(), 32);
        assert_eq!(pseudonym[24..], names.hash(tail).to_be_bytes());
        assert!(!pseudonym.windows(4).any(|part| digest.windows(4).any(|other| part == other)));
    }

    #[test]
    fn the_sign_of_a_hash_stays() {
        let names = Pseudonyms::default();
        for hash in [-1i64, i64::MIN, 0, 5, i64::MAX] {
            assert_eq!((names.hash(hash as u64) as i64) < 0, hash < 0);
        }
    }
}
