//! Token ids as people write them: numbers, with whitespace or commas between them.

use super::Failure;

/// Appends the ids in `text` to `out` as little-endian u32 bytes.
///
/// # Errors
/// The first word that is not an id, named by its position, not by what it says: it is a prompt.
pub(super) fn parse(text: &str, out: &mut Vec<u8>) -> Result<(), String> {
    let words = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|word| !word.is_empty());
    for (i, word) in words.enumerate() {
        let id: u32 = word.parse().map_err(|_| format!("token {} is not a number from 0 to {}", i + 1, u32::MAX))?;
        out.extend_from_slice(&id.to_le_bytes());
    }
    Ok(())
}

/// The ids of `--tokens`.
///
/// # Errors
/// [`Failure::Usage`].
pub(super) fn of_argument(text: &str) -> Result<Vec<u8>, Failure> {
    let mut tokens = Vec::new();
    parse(text, &mut tokens).map_err(|error| Failure::Usage(format!("--tokens: {error}")))?;
    Ok(tokens)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_separated_by_commas_or_whitespace_or_both() {
        let mut out = Vec::new();
        parse(" 1, 2,3\t4\n\n5,,", &mut out).unwrap();
        let ids: Vec<_> = out.as_chunks::<4>().0.iter().map(|id| u32::from_le_bytes(*id)).collect();
        assert_eq!(ids, [1, 2, 3, 4, 5]);
    }

    #[test]
    fn a_word_that_is_no_id_is_named_by_its_position() {
        for text in ["1 x", "1 -2", "1 4294967296", "1 2.0"] {
            let error = parse(text, &mut Vec::new()).unwrap_err();
            assert!(error.starts_with("token 2 "), "{text}: {error}");
        }
    }
}
