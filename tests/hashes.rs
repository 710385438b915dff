//! The public contract of hashes: vectors that routers can check themselves against. Those of the extra keys stand in
//! the README too.

// Helpers of tests are tests too, which clippy cannot see.
#![allow(clippy::expect_used)]

use kvtap::block::extra_keys::{Item, encode};
use kvtap::block::{Grid, MAX_BLOCK_SIZE};
use kvtap::hash::{ContentHash, EngineHash, PrefixHash, Seed};

fn le(tokens: impl IntoIterator<Item = u32>) -> Vec<u8> {
    tokens.into_iter().flat_map(u32::to_le_bytes).collect()
}

fn hashes(tokens: impl IntoIterator<Item = u32>, block_size: u64, seed: Seed) -> (Vec<u64>, Vec<u64>) {
    let contents = Grid::new(block_size).expect("a valid size").plain_contents(&le(tokens), seed);
    let prefixes = PrefixHash::chain(&contents);
    (contents.iter().map(|hash| hash.0).collect(), prefixes.iter().map(|hash| hash.0).collect())
}

fn canonical(items: &[Item]) -> Vec<u8> {
    let mut out = Vec::new();
    encode(items, &mut out);
    out
}

#[test]
fn twelve_tokens_in_blocks_of_four_hash_as_the_reference_library_hashes_them() {
    let (contents, prefixes) = hashes(1..=12, 4, Seed::PLAIN);
    assert_eq!(contents, [14_643_705_804_678_351_452, 16_777_012_769_546_811_212, 483_935_686_894_639_516]);
    assert_eq!(prefixes, [14_643_705_804_678_351_452, 4_945_711_292_740_353_085, 12_583_592_247_330_656_132]);
}

#[test]
fn thirty_two_tokens_in_blocks_of_sixteen_hash_as_the_reference_library_hashes_them() {
    let (contents, prefixes) = hashes(0..32, 16, Seed::PLAIN);
    assert_eq!(contents, [15_310_707_395_893_867_146, 15_292_316_782_987_903_195]);
    assert_eq!(prefixes, [15_310_707_395_893_867_146, 13_769_157_705_258_532_664]);
}

#[test]
fn a_trailing_partial_block_is_never_hashed() {
    assert_eq!(hashes(1..=9, 4, Seed::PLAIN), hashes(1..=8, 4, Seed::PLAIN));
}

#[test]
fn a_prompt_shorter_than_a_block_has_no_hash() {
    assert!(hashes(1..=3, 4, Seed::PLAIN).0.is_empty());
    assert!(hashes([], 4, Seed::PLAIN).0.is_empty());
}

#[test]
fn an_exact_multiple_hashes_its_last_block() {
    assert_eq!(hashes(0..64, 16, Seed::PLAIN).0.len(), 4);
}

#[test]
fn block_size_one_hashes_every_token() {
    assert_eq!(hashes(0..5, 1, Seed::PLAIN).0.len(), 5);
}

#[test]
fn block_sizes_out_of_range_are_refused() {
    for size in [0, u64::from(MAX_BLOCK_SIZE) + 1, u64::MAX] {
        assert!(Grid::new(size).is_err(), "{size}");
    }
    assert!(Grid::new(u64::from(MAX_BLOCK_SIZE)).is_ok());
}

#[test]
fn bytes_past_the_last_whole_token_are_ignored() {
    let grid = Grid::new(4).expect("a valid size");
    let mut bytes = le(1..=4);
    bytes.push(7);
    assert_eq!(grid.plain_contents(&bytes, Seed::PLAIN).len(), 1);
}

#[test]
fn a_lookahead_covers_the_tokens_after_the_block_and_needs_them() {
    let grid = Grid::with_lookahead(4, 1).expect("a valid grid");
    let contents = grid.plain_contents(&le(0..8), Seed::PLAIN);
    assert_eq!(contents, [ContentHash::of_tokens(&le(0..5), Seed::PLAIN)]);
    assert_eq!(grid.plain_contents(&le(0..9), Seed::PLAIN).len(), 2);
}

#[test]
fn an_absent_or_empty_name_adds_nothing_to_the_seed() {
    assert_eq!(Seed::new(None, None), Seed(1337));
    assert_eq!(Seed::new(Some(""), Some("")), Seed(1337));
}

#[test]
fn lora_and_salt_change_every_content_hash_and_are_not_interchangeable() {
    let seeds = [Seed::PLAIN, Seed::new(Some("x"), None), Seed::new(None, Some("x")), Seed::new(Some("x"), Some("x"))];
    let contents = seeds.map(|seed| hashes(0..16, 16, seed).0);
    for (i, one) in contents.iter().enumerate() {
        for other in &contents[..i] {
            assert_ne!(one, other);
        }
    }
}

#[test]
fn the_seed_of_a_lora_and_a_salt_is_their_sum() {
    // XXH3-64 of "sql" with seed 0 and of "tenant" with seed 1, from the reference library.
    let sum = 1337u64.wrapping_add(10_423_510_420_207_653_997).wrapping_add(5_412_409_220_464_432_148);
    let seed = Seed::new(Some("sql"), Some("tenant"));
    assert_eq!(seed, Seed(sum));
    assert_eq!(hashes(0..16, 16, seed).0, [2_769_119_561_787_466_364]);
}

#[test]
fn signed_and_unsigned_engine_hashes_are_the_same_bits() {
    assert_eq!(EngineHash::from_i64(-1), EngineHash::from_u64(u64::MAX));
    assert_eq!(EngineHash::from_i64(i64::MIN), EngineHash::from_u64(1 << 63));
}

#[test]
fn a_digest_joins_its_integer_form_by_its_last_eight_bytes() {
    let digest: Vec<u8> = (0..32).collect();
    let hash = EngineHash::from_bytes(&digest);
    assert_eq!(hash.narrow(), EngineHash::from_u64(0x1819_1a1b_1c1d_1e1f));
    assert!(hash.is_wide());
    assert_ne!(hash, hash.narrow());
}

#[test]
fn digests_that_share_their_last_eight_bytes_are_two_names() {
    let (mut a, mut b) = ([0u8; 32], [0u8; 32]);
    (a[0], b[0]) = (1, 2);
    assert_ne!(EngineHash::from_bytes(&a), EngineHash::from_bytes(&b));
}

#[test]
fn short_digests_are_the_integers_they_spell() {
    assert_eq!(EngineHash::from_bytes(&[]), EngineHash::from_u64(0));
    assert_eq!(EngineHash::from_bytes(&[1, 2]), EngineHash::from_u64(0x0102));
    assert_eq!(EngineHash::from_bytes(&[0xff; 8]), EngineHash::from_i64(-1));
}

#[test]
fn plain_numbers_are_appended_sorted_and_little_endian() {
    let bytes = canonical(&[Item::Unsigned(258), Item::Unsigned(1)]);
    assert_eq!(bytes, [1, 0, 0, 0, 0, 0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
}

#[test]
fn an_image_and_its_offset_are_a_tagged_list() {
    let image = Item::List(vec![Item::Text("a3".to_owned()), Item::Signed(-12)]);
    let bytes = canonical(&[image]);
    assert_eq!(bytes, *b"[\x02\x00\x00\x00s\x02\x00\x00\x00a3i\xf4\xff\xff\xff\xff\xff\xff\xff");
}

#[test]
fn a_positive_offset_has_the_same_form_whichever_integer_type_carried_it() {
    let of = |offset| canonical(&[Item::List(vec![Item::Text("a3".to_owned()), offset])]);
    assert_eq!(of(Item::Unsigned(4)), of(Item::Signed(4)));
    assert_eq!(of(Item::Unsigned(4)), *b"[\x02\x00\x00\x00s\x02\x00\x00\x00a3i\x04\x00\x00\x00\x00\x00\x00\x00");
}

#[test]
fn a_digest_among_the_keys_is_tagged_bytes() {
    assert_eq!(canonical(&[Item::Bytes(vec![0x21, 0xb9])]), *b"b\x02\x00\x00\x00\x21\xb9");
}

#[test]
fn a_block_with_an_image_hashes_its_tokens_and_then_its_keys() {
    let keys = canonical(&[Item::List(vec![Item::Text("a3".to_owned()), Item::Unsigned(4)])]);
    let hash = ContentHash::of_tokens_and_keys(&le(0..16), &keys, Seed::PLAIN);
    let mut bytes = le(0..16);
    bytes.extend_from_slice(&keys);
    assert_eq!(hash, ContentHash::of_tokens(&bytes, Seed::PLAIN));
    assert_eq!(hash.0, README_VECTOR);
}

/// The README's vector for a block of tokens 0 to 15 with one image `["a3", 4]`.
const README_VECTOR: u64 = 4_019_136_635_397_305_213;
