//! Redaction: nothing of a prompt is left, and everything that matching depends on is.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use bytes::Bytes;
use kvtap::feed::recording::Redactor;
use kvtap::wire::{self, Batch, Dialect, Event, frames};
use serde_json::Value;

use crate::support::{capture, matches};

fn unhex(text: &str) -> Bytes {
    (0..text.len() / 2).map(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).unwrap()).collect::<Vec<_>>().into()
}

/// Every live message among the captured ones, of every engine and release: where it is from, its frames.
fn captured() -> Vec<(String, Vec<Bytes>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/wire");
    let mut messages = Vec::new();
    for file in fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if name.starts_with("nats") || name.starts_with("malformed") {
            continue;
        }
        for (i, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            let entry: Value = serde_json::from_str(line).unwrap();
            let place = format!("{name}:{}", i + 1);
            if let Some(text) = entry["json_text"].as_str() {
                let frames = vec![Bytes::new(), Bytes::from_static(&[0; 8]), Bytes::copy_from_slice(text.as_bytes())];
                messages.push((place, frames));
            } else if let Some(frames) = entry["frames_hex"].as_array() {
                messages.push((place, frames.iter().map(|frame| unhex(frame.as_str().unwrap())).collect()));
            }
        }
    }
    messages
}

fn decoded(payload: &[u8]) -> Option<Batch> {
    let mut batch = Batch::default();
    wire::decode(Dialect::Auto, payload, &mut batch).ok().map(|()| batch)
}

fn tokens(batch: &Batch, event: &Event) -> Vec<u32> {
    let Event::Stored(stored) = event else { return Vec::new() };
    batch.tokens(stored.tokens).as_chunks::<4>().0.iter().map(|token| u32::from_le_bytes(*token)).collect()
}

#[test]
fn every_captured_message_keeps_its_shape_and_its_equalities() {
    let mut redactor = Redactor::new();
    let mut names: HashMap<u32, u32> = HashMap::new();
    let mut hashes = HashMap::new();
    let mut seen = 0;
    for (place, frames) in captured() {
        let Ok(live) = frames::live(&frames) else { continue };
        let Some(before) = decoded(live.payload) else { continue };
        let redacted = redactor.message(&frames);
        assert_eq!(redacted[..2], frames[..2], "{place}");
        let after = decoded(&redacted[2]).unwrap_or_else(|| panic!("{place} is no batch any more"));
        assert_eq!((&after.rejected, after.rank), (&before.rejected, before.rank), "{place}");
        assert_eq!(after.events.len(), before.events.len(), "{place}");
        for (one, other) in before.events.iter().zip(&after.events) {
            let (of_one, of_other) = (tokens(&before, one), tokens(&after, other));
            assert_eq!(of_one.len(), of_other.len(), "{place}");
            for (token, name) in of_one.into_iter().zip(of_other) {
                assert_eq!(*names.entry(token).or_insert(name), name, "{place}");
            }
            let (of_one, of_other) = match (one, other) {
                (Event::Stored(one), Event::Stored(other)) => {
                    let shape = |s: &wire::Stored| (s.block_size, s.lookahead, s.group, s.kind, s.window, s.lora_id);
                    assert_eq!(shape(one), shape(other), "{place}");
                    assert_eq!(one.lora_name.is_some(), other.lora_name.is_some(), "{place}");
                    assert_eq!(one.cache_salt.is_some(), other.cache_salt.is_some(), "{place}");
                    assert_eq!(one.parent.is_some(), other.parent.is_some(), "{place}");
                    (before.hashes(one.hashes), after.hashes(other.hashes))
                }
                (Event::Removed(one), Event::Removed(other)) => {
                    assert_eq!(one.group, other.group, "{place}");
                    (before.hashes(one.hashes), after.hashes(other.hashes))
                }
                (Event::Cleared, Event::Cleared) => continue,
                _ => panic!("{place}: an event became another"),
            };
            assert_eq!(of_one.len(), of_other.len(), "{place}");
            for (hash, name) in of_one.iter().zip(of_other) {
                assert_eq!(*hashes.entry(*hash).or_insert(*name), *name, "{place}");
                assert_ne!(hash, name, "{place}");
            }
        }
        seen += 1;
    }
    assert!(seen > 300, "only {seen} messages");
    assert_eq!(names.values().collect::<HashSet<_>>().len(), names.len(), "two tokens share a name");
    assert_eq!(hashes.values().collect::<HashSet<_>>().len(), hashes.len(), "two hashes share a name");
}

/// Texts of a payload that say something about a prompt: all that are not words of the protocol.
fn texts(payload: &[u8], out: &mut HashSet<Vec<u8>>) {
    use kvtap::wire::msgpack::{Cursor, Head};
    let mut cursor = Cursor::new(payload);
    while let Ok(head) = cursor.head() {
        if let Head::Text(text) | Head::Bytes(text) = head {
            out.insert(text.to_vec());
        }
    }
}

#[test]
fn no_text_and_no_digest_of_a_captured_message_is_left() {
    // What the protocol itself says: names of fields, tags, media, kinds.
    let protocol = include_str!("protocol_words.txt");
    let protocol: Vec<&[u8]> = protocol.split_whitespace().map(str::as_bytes).collect();
    let mut redactor = Redactor::new();
    let mut secrets = 0;
    for (place, frames) in captured() {
        let Ok(live) = frames::live(&frames) else { continue };
        if live.payload.starts_with(b"{") || live.payload.starts_with(b"[") {
            continue;
        }
        let mut secret = HashSet::new();
        texts(live.payload, &mut secret);
        // A salt that is a part of a protocol's word cannot be looked for.
        let is_of_protocol =
            |text: &[u8]| protocol.iter().any(|word| word.windows(text.len()).any(|part| part == text));
        secret.retain(|text| text.len() >= 4 && !is_of_protocol(text));
        let redacted = redactor.message(&frames);
        for text in &secret {
            let left = redacted[2].windows(text.len()).any(|window| window == text);
            assert!(!left, "{place}: {:?} is left", String::from_utf8_lossy(text));
        }
        secrets += secret.len();
    }
    assert!(secrets > 100, "only {secrets} secrets");
}

#[test]
fn json_events_lose_tokens_salts_and_keys_too() {
    let event = r#"{"event_id": 3, "window_size": 4096, "surprise": "my prompt", "data": {"type": "stored",
        "parent_hash": 716741748081991, "blocks": [{"type": "stored_block", "block_hash": 716741748081992,
        "tokens": [{"type": "unique_token", "token_id": 56751, "token_extra_id": 0}], "cache_level": 0, "priority": 35,
        "mm_keys": [{"type": "mm_key", "hash": "abcdefabcdef", "start_offset": 123456}], "cache_salt": "tenant-7"}]}}"#;
    let frames = vec![Bytes::new(), Bytes::from_static(&[0; 8]), Bytes::copy_from_slice(event.as_bytes())];
    let redacted = String::from_utf8(Redactor::new().message(&frames)[2].to_vec()).unwrap();
    for secret in ["56751", "716741748081991", "716741748081992", "abcdef", "tenant", "prompt", "surprise", "123456"] {
        assert!(!redacted.contains(secret), "{secret} is left in {redacted}");
    }
    for kept in ["\"event_id\":3", "\"window_size\":4096", "\"stored\"", "\"token_extra_id\":0", "\"cache_level\":0"] {
        assert!(redacted.contains(kept), "{kept} is missing in {redacted}");
    }
    assert_eq!(decoded(redacted.as_bytes()).unwrap().events.len(), 1);
}

#[test]
fn what_cannot_be_decoded_is_a_stub_that_is_still_not_decoded() {
    let secret = Bytes::from_static(b"\x93 the prompt itself, in the clear");
    let sequence = Bytes::from_static(&[0, 0, 0, 0, 0, 0, 0, 9]);
    let mut redactor = Redactor::new();
    let cases: [Vec<Bytes>; 4] = [
        vec![secret.clone(), sequence.clone(), secret.clone()],
        vec![secret.clone()],
        vec![secret.clone(), secret.clone()],
        vec![Bytes::new(), secret.clone(), Bytes::new(), secret.clone(), secret.clone()],
    ];
    for frames in cases {
        let redacted = redactor.message(&frames);
        assert_eq!(redacted.len(), frames.len());
        assert!(!redacted.concat().windows(6).any(|window| window == b"prompt"));
        let reason = |frames: &[Bytes]| frames::live(frames).err().map(|error| error.reason());
        assert_eq!(reason(&redacted), reason(&frames));
        let last = String::from_utf8(redacted.last().unwrap().to_vec()).unwrap();
        assert!(last.starts_with(&format!("kvtap redacted {} bytes, digest ", secret.len())), "{last}");
        assert!(decoded(last.as_bytes()).is_none());
    }
    let kept = redactor.message(&[Bytes::new(), sequence.clone(), secret]);
    assert_eq!(kept[1], sequence);
}

#[test]
fn prompts_match_under_their_pseudonyms_as_they_did_under_their_tokens() {
    let (prompts, messages) = capture();
    let expected = matches(&messages, &prompts);
    assert!(expected.iter().any(|blocks| *blocks > 2), "{expected:?}");

    let mut redactor = Redactor::new();
    let mut names: HashMap<u32, u32> = HashMap::new();
    let mut pseudonymous = Vec::new();
    for (sequence, payload) in &messages {
        let frames = [Bytes::new(), Bytes::copy_from_slice(&sequence.to_be_bytes()), payload.clone()];
        let redacted = redactor.message(&frames)[2].clone();
        let (before, after) = (decoded(payload).unwrap(), decoded(&redacted).unwrap());
        for (one, other) in before.events.iter().zip(&after.events) {
            names.extend(tokens(&before, one).into_iter().zip(tokens(&after, other)));
        }
        pseudonymous.push((*sequence, redacted));
    }
    let renamed: Vec<Vec<u32>> = prompts
        .iter()
        .map(|prompt| prompt.iter().map(|token| names.get(token).copied().unwrap_or(0)).collect())
        .collect();
    assert_eq!(matches(&pseudonymous, &renamed), expected);
    assert!(matches(&pseudonymous, &prompts).iter().all(|blocks| *blocks == 0), "a prompt matches as it was");
}
