//! Counting the entries of a message's lists on the wire, without reading them, and what may come only once.

use std::ops::RangeInclusive;

/// What a message may hold: its lists, and how much beside them.
#[derive(Debug)]
pub(super) struct Lists {
    /// Lists by their field number.
    lists: &'static [List],
    /// Of these fields one may come, once: a reader of the wire takes the last one and says nothing of the others.
    one_of: Option<OneOf>,
    /// Messages inside that are counted too, by their field number. They nest as deep as these constants do.
    inside: &'static [(u32, &'static Lists)],
}

/// One list of a message.
#[derive(Debug)]
struct List {
    field: u32,
    name: &'static str,
    most: usize,
}

/// Fields of which a message has one at most.
#[derive(Debug)]
struct OneOf {
    name: &'static str,
    fields: RangeInclusive<u32>,
}

/// What is wrong with a message before it is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// A list has too many entries.
    TooMany {
        /// Which.
        field: &'static str,
        /// How many it may have.
        most: usize,
    },
    /// What may come only once comes again.
    Again {
        /// Which.
        field: &'static str,
    },
}

/// How many blocks of a request may have extra keys: one for each block of a million tokens in blocks of 16, and some.
pub const MAX_EXTRA_KEYS: usize = 1 << 16;
/// How many workers and ranks a request may name.
pub const MAX_NAMES: usize = 4096;
/// How many feed states a request may name.
pub const MAX_STATES: usize = 64;
/// How many requests a batch may have.
pub const MAX_BATCH: usize = 1024;
/// How many entries all lists of a message may have together, those of the requests of a batch included.
const MAX_ENTRIES: usize = 1 << 18;
/// How many fields a message may have besides its lists; known ones come once each.
const MAX_OTHERS: usize = 1024;

/// `MatchRequest`.
pub(super) const MATCH: Lists = Lists {
    lists: &[
        List { field: 11, name: "extra_keys", most: MAX_EXTRA_KEYS },
        List { field: 12, name: "workers", most: MAX_NAMES },
        List { field: 13, name: "ranks", most: MAX_NAMES },
        List { field: 16, name: "states", most: MAX_STATES },
    ],
    one_of: Some(OneOf { name: "prompt", fields: 4..=9 }),
    inside: &[],
};

/// `MatchStreamRequest`.
pub(super) const STREAM: Lists = Lists { lists: &[], one_of: None, inside: &[(2, &MATCH)] };

/// `MatchBatchRequest`.
pub(super) const BATCH: Lists =
    Lists { lists: &[List { field: 1, name: "requests", most: MAX_BATCH }], one_of: None, inside: &[(1, &MATCH)] };

/// `ExplainRequest`.
pub(super) const EXPLAIN: Lists = Lists { lists: &[], one_of: None, inside: &[(1, &MATCH)] };

/// `WatchRequest`.
pub(super) const WATCH: Lists =
    Lists { lists: &[List { field: 2, name: "workers", most: MAX_NAMES }], one_of: None, inside: &[] };

/// `ListWorkersRequest`.
pub(super) const LIST_WORKERS: Lists =
    Lists { lists: &[List { field: 2, name: "workers", most: MAX_NAMES }], one_of: None, inside: &[] };

/// `indexer.v1.GetPodScoresRequest`.
pub(super) const POD_SCORES: Lists =
    Lists { lists: &[List { field: 3, name: "pod_identifiers", most: MAX_NAMES }], one_of: None, inside: &[] };

/// Counts the entries of `lists` in a message. What does not parse is left to the decoder.
///
/// Stops at the first list that is too long, so it costs no more than the bounds allow.
pub(super) fn count(lists: &Lists, message: &[u8]) -> Result<(), Fault> {
    let mut entries = 0;
    count_into(lists, message, &mut entries)
}

/// The same for a message inside another; `entries` are those of the whole. Goes as deep as the constants above.
fn count_into(lists: &Lists, message: &[u8], entries: &mut usize) -> Result<(), Fault> {
    let mut counts = [0usize; 8];
    let mut others = 0usize;
    let mut one = false;
    let mut rest = message;
    while let Some((field, body)) = next(&mut rest) {
        if let Some((list, count)) = lists.lists.iter().zip(&mut counts).find(|(list, _)| list.field == field) {
            *count += 1;
            *entries += 1;
            if *count > list.most {
                return Err(Fault::TooMany { field: list.name, most: list.most });
            }
            if *entries > MAX_ENTRIES {
                return Err(Fault::TooMany { field: "message", most: MAX_ENTRIES });
            }
        } else {
            others += 1;
            if others > MAX_OTHERS {
                return Err(Fault::TooMany { field: "message", most: MAX_OTHERS });
            }
        }
        if let Some(one_of) = lists.one_of.as_ref().filter(|one_of| one_of.fields.contains(&field))
            && std::mem::replace(&mut one, true)
        {
            return Err(Fault::Again { field: one_of.name });
        }
        if let Some((_, inside)) = lists.inside.iter().find(|(number, _)| *number == field) {
            count_into(inside, body, entries)?;
        }
    }
    Ok(())
}

/// The next field of a message: its number, and its bytes where it has any. `None` at the end, or where the message
/// does not parse.
fn next<'m>(rest: &mut &'m [u8]) -> Option<(u32, &'m [u8])> {
    let tag = varint(rest)?;
    let field = u32::try_from(tag >> 3).ok()?;
    let bytes = match tag & 7 {
        0 => {
            varint(rest)?;
            0
        }
        1 => 8,
        2 => usize::try_from(varint(rest)?).ok()?,
        5 => 4,
        // Groups are deprecated; nothing here has any.
        _ => return None,
    };
    let (body, after) = rest.split_at_checked(bytes)?;
    *rest = after;
    Some((field, body))
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::proto::v1;

    fn with_keys(keys: usize) -> v1::MatchRequest {
        v1::MatchRequest {
            model: "m".to_owned(),
            extra_keys: vec![bytes::Bytes::new(); keys],
            top_k: 3,
            ..Default::default()
        }
    }

    #[test]
    fn a_list_is_counted_up_to_its_bound_wherever_it_stands() {
        let (fits, too_many) = (with_keys(MAX_EXTRA_KEYS), with_keys(MAX_EXTRA_KEYS + 1));
        let refusal = Err(Fault::TooMany { field: "extra_keys", most: MAX_EXTRA_KEYS });
        assert_eq!(count(&MATCH, &fits.encode_to_vec()), Ok(()));
        assert_eq!(count(&MATCH, &too_many.encode_to_vec()), refusal);
        let stream = |request| v1::MatchStreamRequest { id: 7, request: Some(request) }.encode_to_vec();
        assert_eq!(count(&STREAM, &stream(fits.clone())), Ok(()));
        assert_eq!(count(&STREAM, &stream(too_many.clone())), refusal);
        let batch = |requests| v1::MatchBatchRequest { requests }.encode_to_vec();
        assert_eq!(count(&BATCH, &batch(vec![fits, too_many])), refusal);
        let full = vec![with_keys(MAX_EXTRA_KEYS); MAX_ENTRIES / MAX_EXTRA_KEYS];
        assert_eq!(count(&BATCH, &batch(full)), Err(Fault::TooMany { field: "message", most: MAX_ENTRIES }));
        let empty = vec![v1::MatchRequest::default(); MAX_BATCH + 1];
        assert_eq!(count(&BATCH, &batch(empty)), Err(Fault::TooMany { field: "requests", most: MAX_BATCH }));
    }

    #[test]
    fn fields_that_nobody_knows_are_bounded_too() {
        let unknown = [0x98, 0x06, 0x01].repeat(MAX_OTHERS + 1);
        assert_eq!(count(&MATCH, &unknown), Err(Fault::TooMany { field: "message", most: MAX_OTHERS }));
    }

    #[test]
    fn a_prompt_comes_once_in_one_form() {
        let with = |prompts: &[&[u8]]| [b"\x0a\x01m", &*prompts.concat()].concat();
        let (tokens, hashes) = (b"\x22\x04\0\0\0\0", b"\x32\x08\0\0\0\0\0\0\0\0");
        assert_eq!(count(&MATCH, &with(&[tokens])), Ok(()));
        for twice in [with(&[tokens, hashes]), with(&[hashes, tokens]), with(&[tokens, tokens])] {
            assert_eq!(count(&MATCH, &twice), Err(Fault::Again { field: "prompt" }));
        }
        // Once in each of a batch.
        let request = with(&[tokens]);
        let entry = [&[0x0a, request.len() as u8][..], &request].concat();
        assert_eq!(count(&BATCH, &entry.repeat(2)), Ok(()));
    }

    #[test]
    fn what_does_not_parse_is_left_to_the_decoder() {
        for bytes in [&b"\xff"[..], b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", b"\x0b", b"\x09\x01"] {
            assert_eq!(count(&MATCH, bytes), Ok(()));
        }
    }
}
