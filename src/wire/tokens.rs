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
    let mut rest = cursor.rest();
    for slot in batch.tokens.get_mut(start..).unwrap_or_default().chunks_exact_mut(WIDTH) {
        let token = match rest {
            [a @ 0..=0x7f, tail @ ..] => {
                rest = tail;
                u32::from(*a)
            }
            [0xcd, a, b, tail @ ..] => {
                rest = tail;
                u32::from(u16::from_be_bytes([*a, *b]))
            }
            [0xce, a, b, c, d, tail @ ..] => {
                rest = tail;
                u32::from_be_bytes([*a, *b, *c, *d])
            }
            _ => {
                cursor.resume(rest);
                let token = read_one(cursor)?;
                rest = cursor.rest();
                token
            }
        };
        slot.copy_from_slice(&token.to_le_bytes());
    }
    cursor.resume(rest);
    Ok(())
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
