//! Two numbers in place of a block's tokens.
//!
//! XXH3-64 of eight bytes maps them one to one: each of its steps can be undone. So there is, for every content hash,
//! exactly one pair of 32-bit numbers that has it, and whoever takes the pair for the tokens of a block without LoRA name
//! and salt takes the right hash, whatever the block's tokens, keys, LoRA name and salt were.

use std::sync::LazyLock;

use crate::hash::{ContentHash, Seed};

/// What eight bytes are mixed with, under the seed of plain prompts, before anything else.
static FLIP: LazyLock<u64> = LazyLock::new(|| unmixed(ContentHash::of_tokens(&[0; 8], Seed::PLAIN).0));

/// The multiplier of the hash, and its inverse: their product is 1.
const FACTOR: u64 = 0x9FB2_1C65_1E98_DF25;
const INVERSE: u64 = inverse(FACTOR);

/// The only two numbers whose hash this is.
pub(super) fn tokens(content: ContentHash) -> [u32; 2] {
    let both = unmixed(content.0) ^ *FLIP;
    [(both >> 32) as u32, both as u32]
}

/// What the hash has made this of.
fn unmixed(mut hash: u64) -> u64 {
    // h ^= h >> 28
    hash ^= (hash >> 28) ^ (hash >> 56);
    hash = hash.wrapping_mul(INVERSE);
    // h ^= (h >> 35) + 8: no sum reaches the bits that it is made of.
    hash ^= (hash >> 35) + 8;
    hash = hash.wrapping_mul(INVERSE);
    // h ^= rotl(h, 49) ^ rotl(h, 24): done 64 times this is nothing, so 63 times is its inverse.
    for n in 0..6 {
        hash ^= hash.rotate_left(49 << n & 63) ^ hash.rotate_left(24 << n & 63);
    }
    hash
}

/// The number whose product with an odd one is 1: each step doubles the bits that are right.
const fn inverse(odd: u64) -> u64 {
    let mut inverse = odd;
    let mut n = 0;
    while n < 6 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        n += 1;
    }
    inverse
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hash(tokens: [u32; 2]) -> u64 {
        let bytes: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
        ContentHash::of_tokens(&bytes, Seed::PLAIN).0
    }

    proptest! {
        #[test]
        fn the_hash_of_the_stand_in_is_the_content_hash(content: u64) {
            prop_assert_eq!(hash(tokens(ContentHash(content))), content);
        }

        #[test]
        fn two_tokens_stand_for_themselves(a: u32, b: u32) {
            prop_assert_eq!(tokens(ContentHash(hash([a, b]))), [a, b]);
        }
    }
}
