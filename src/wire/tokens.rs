//! Token lists into the token arena: the hot loop of every decoder.

use super::arena::Fault;
use super::error::EventError;
use super::event::{Batch, Span};
use super::msgpack::{Cursor, Head};

/// Bytes a token in the arena.
pub(super) const WIDTH: usize = 4;

/// A list of tokens in the arena, and how many of them lie past the last block.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Tokens {
    pub span: Span,
    pub lookahead: u32,
}

/// Reads `token_ids`: unsigned 32-bit integers, or EAGLE's pairs `[t(i), t(i+1)]`.
///
/// `n` pairs are `n + 1` tokens of which the last is lookahead. Pairs that do not overlap spell no text and are
/// refused.
pub(super) fn read(cursor: &mut Cursor<'_>, batch: &mut Batch) -> Result<Tokens, Fault> {
    let Head::Array(n) = cursor.head()? else { return Err(EventError::BadToken.into()) };
    let start = batch.tokens.len();
    let pairs = n > 0 && matches!(cursor.peek()?, Head::Array(_));
    if pairs {
        read_pairs(cursor, n, batch)?;
    } else {
        read_flat(cursor, n, batch)?;
    }
    Ok(Tokens { span: Span::new(start, batch.tokens.len()), lookahead: u32::from(pairs) })
}

/// Reads `n` tokens, which the cursor has found to be no more than the bytes left.
pub(super) fn read_flat(cursor: &mut Cursor<'_>, n: usize, batch: &mut Batch) -> Result<(), Fault> {
    let start = batch.tokens.len();
    batch.tokens.resize(start + n * WIDTH, 0);
    let (slots, _) = batch.tokens.get_mut(start..).unwrap_or_default().as_chunks_mut::<WIDTH>();
    let (twos, last) = slots.as_chunks_mut::<2>();
    let mut rest = cursor.rest();
    for [first, second] in twos {
        if let Some((tokens, tail)) = two(rest) {
            (*first, *second) = (tokens[0].to_le_bytes(), tokens[1].to_le_bytes());
            rest = tail;
        } else {
            for slot in [first, second] {
                *slot = one(&mut rest, cursor)?.to_le_bytes();
            }
        }
    }
    for slot in last {
        *slot = one(&mut rest, cursor)?.to_le_bytes();
    }
    cursor.resume(rest);
    Ok(())
}

/// Two unsigned integers of one, two or four bytes, and what follows them. `None`: other values, or too near the end.
///
/// Without a branch on the width: tokens of two and of four bytes alternate as a text has them, and a `match` on the
/// head, one arm a width, mispredicts on every other token. What is left is the wait of each token for where the one
/// before it ends; the second's head is in the word that was read for the first, so two tokens wait for one read.
#[inline]
fn two(bytes: &[u8]) -> Option<([u32; 2], &[u8])> {
    let window: &[u8; 16] = bytes.first_chunk()?;
    let word = u64::from_be_bytes(*window.first_chunk()?);
    let first = width(word >> 56)?;
    let second = width((word << (8 + 8 * first)) >> 56)?;
    let next = u64::from_be_bytes(*window.get(1 + first..)?.first_chunk()?);
    Some(([value(word, first), value(next, second)], bytes.get(2 + first + second..)?))
}

/// The next token, where `rest` has come to; the cursor follows where it is read the long way.
#[inline]
fn one<'a>(rest: &mut &'a [u8], cursor: &mut Cursor<'a>) -> Result<u32, Fault> {
    if let Some(chunk) = rest.first_chunk() {
        let word = u64::from_be_bytes(*chunk);
        let head = word >> 56;
        // Punctuation is often of one byte.
        if head < 0x80 {
            *rest = rest.get(1..).unwrap_or_default();
            return Ok(head as u32);
        }
        if let Some(width) = width(head) {
            *rest = rest.get(1 + width..).unwrap_or_default();
            return Ok(value(word, width));
        }
    }
    cursor.resume(rest);
    let token = read_one(cursor)?;
    *rest = cursor.rest();
    Ok(token)
}

/// How many bytes follow the head of an unsigned integer of one, two or four.
#[inline]
fn width(head: u64) -> Option<usize> {
    const U8: u64 = 0xcc;
    const U32: u64 = 0xce;
    (U8..=U32).contains(&head).then(|| 1 << (head - U8))
}

/// What stands in the `width` bytes after the first of a word, big-endian.
#[inline]
fn value(word: u64, width: usize) -> u32 {
    ((word << 8) >> (64 - 8 * width)) as u32
}

fn read_pairs(cursor: &mut Cursor<'_>, n: usize, batch: &mut Batch) -> Result<(), Fault> {
    let mut last = None;
    for _ in 0..n {
        if cursor.head()? != Head::Array(2) {
            return Err(EventError::BadToken.into());
        }
        let (first, second) = (read_one(cursor)?, read_one(cursor)?);
        match last {
            None => batch.tokens.extend_from_slice(&first.to_le_bytes()),
            Some(last) if last == first => {}
            Some(_) => return Err(EventError::BadToken.into()),
        }
        batch.tokens.extend_from_slice(&second.to_le_bytes());
        last = Some(second);
    }
    Ok(())
}

fn read_one(cursor: &mut Cursor<'_>) -> Result<u32, Fault> {
    match cursor.head()? {
        Head::Unsigned(n) => Ok(u32::try_from(n).map_err(|_| EventError::BadToken)?),
        _ => Err(EventError::BadToken.into()),
    }
}

/// Reads `lookahead_token_ids` (vLLM from 0.33): for each block the tokens past its end that its hash covers.
///
/// Only the last block's are news; they are put after `tokens`, which must end the arena. Those of an earlier
/// block must be what follows it, otherwise the two lists speak of different text and the event is refused.
/// Where the tokens are not `blocks * block_size` (some blocks are null) nothing could be compared: the list is
/// passed over, and the event stays one whose counts do not add up.
pub(super) fn read_lookahead(
    cursor: &mut Cursor<'_>,
    tokens: Tokens,
    blocks: usize,
    block_size: u64,
    batch: &mut Batch,
) -> Result<Tokens, Fault> {
    let stride = usize::try_from(block_size).ok().and_then(|size| size.checked_mul(WIDTH));
    let Some(stride) = stride.filter(|stride| stride.checked_mul(blocks) == Some(tokens.span.len())) else {
        cursor.skip()?;
        return Ok(tokens);
    };
    let lists = match cursor.head()? {
        Head::Nil | Head::Array(0) => return Ok(tokens),
        Head::Array(lists) if lists == blocks => lists,
        _ => return Err(EventError::BadField.into()),
    };
    let Head::Array(width) = cursor.peek()? else { return Err(EventError::BadField.into()) };
    let span = tokens.span.range();
    for _ in 0..lists {
        if cursor.head()? != Head::Array(width) {
            return Err(EventError::BadField.into());
        }
        read_flat(cursor, width, batch)?;
    }

    // What was read stands after the tokens, list by list.
    let text = batch.tokens.get(span.clone()).unwrap_or_default();
    let ahead = batch.tokens.get(span.end..).unwrap_or_default();
    let (earlier, last) = ahead.split_at((lists - 1) * width * WIDTH);
    if width > 0 {
        for (block, list) in earlier.chunks_exact(width * WIDTH).enumerate() {
            let following = text.get((block + 1) * stride..).unwrap_or_default();
            if !following.iter().chain(last).zip(list).all(|(a, b)| a == b) {
                return Err(EventError::BadField.into());
            }
        }
    }
    batch.tokens.drain(span.end..span.end + earlier.len());
    Ok(Tokens { span: Span::new(span.start, batch.tokens.len()), lookahead: width as u32 })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token in one of the forms that hold it, with each about as often.
    fn write(token: u32, form: u8, out: &mut Vec<u8>) {
        match form {
            0 if token < 0x80 => out.push(token as u8),
            1 if token < 0x100 => out.extend([0xcc, token as u8]),
            2 if token < 0x1_0000 => out.extend([&[0xcd], &token.to_be_bytes()[2..]].concat()),
            3 if token < 0x8000 => out.extend([&[0xd1], &token.to_be_bytes()[2..]].concat()),
            4 => out.extend([&[0xcf][..], &u64::from(token).to_be_bytes()].concat()),
            5 => out.extend([&[0xd3][..], &u64::from(token).to_be_bytes()].concat()),
            _ => out.extend([&[0xce][..], &token.to_be_bytes()].concat()),
        }
    }

    #[test]
    fn tokens_mean_the_same_in_every_width_and_however_near_the_end_they_stand() {
        let mut rng = fastrand::Rng::with_seed(1);
        for round in 0..20_000 {
            let tokens: Vec<u32> = (0..rng.usize(..20)).map(|_| rng.u32(..) >> rng.u32(..32)).collect();
            let mut bytes = vec![0xdc, 0, tokens.len() as u8];
            // Some lists of the usual forms only, some of any.
            let forms = if round % 2 == 0 { 2..4 } else { 0..8 };
            tokens.iter().for_each(|token| write(*token, rng.u8(forms.clone()), &mut bytes));
            let tail = vec![0xc0; rng.usize(..12)];
            bytes.extend(&tail);
            let mut batch = Batch::default();
            let mut cursor = Cursor::new(&bytes);
            let read = read(&mut cursor, &mut batch).unwrap();
            let expected: Vec<u8> = tokens.iter().flat_map(|token| token.to_le_bytes()).collect();
            assert_eq!(batch.tokens(read.span), expected, "{tokens:?}");
            assert_eq!(cursor.rest(), tail);
        }
    }

    #[test]
    fn a_token_list_that_ends_early_is_truncated_wherever_it_ends() {
        let mut bytes = vec![0xdc, 0, 6];
        for (token, form) in [(70_000, 6), (300, 2), (5, 0), (200, 1), (300, 2), (70_000, 6)] {
            write(token, form, &mut bytes);
        }
        for end in 3..bytes.len() {
            let read = read(&mut Cursor::new(&bytes[..end]), &mut Batch::default());
            assert!(matches!(read, Err(Fault::Message(_))), "{end}: {read:?}");
        }
    }
}
