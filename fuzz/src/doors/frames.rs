//! The frames around payloads, and the protocol that carries them.

use bytes::BytesMut;
use kvtap::feed::zmtp::{Command, Decoder, GREETING_LEN, Greeting, Item, Limits, Violation, message};
use kvtap::wire::{dynamo, frames as wire};

use super::split;

/// Caps that a small input can reach.
const LIMITS: Limits = Limits { message_bytes: 700, frames: 5, command_bytes: 64 };

/// The frames of one message: as live, as a reply of a replay, as Dynamo's plane.
pub fn frames(bytes: &[u8]) {
    let frames = split(bytes);
    if let Ok(live) = wire::live(&frames) {
        assert_eq!(live.sequence.to_be_bytes(), frames[1], "another number than the frame's");
        assert_eq!((live.topic, live.payload), (&frames[0], &frames[2]));
        assert_ne!(live.sequence, wire::END_OF_REPLAY);
    }
    match wire::replay(&frames) {
        Ok(wire::ReplayFrame::Batch { sequence, payload }) => {
            assert_eq!(Some(payload), frames.last());
            assert_eq!(sequence.to_be_bytes(), frames[frames.len() - 2]);
        }
        Ok(wire::ReplayFrame::End) => assert_eq!(frames.last().map(|frame| frame.len()), Some(0)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    if let Ok(envelope) = dynamo::plane(&frames) {
        assert_eq!(envelope.len() + 5, frames[3].len(), "a length that is not the frame's");
    }
}

/// A peer's half of a connection: a greeting, then what follows it, cut by the first byte's measure.
pub fn zmtp(bytes: &[u8]) {
    let Some((step, bytes)) = bytes.split_first() else { return };
    let (greeting, rest) = bytes.split_at(bytes.len().min(GREETING_LEN));
    greeted(greeting);
    let _ = Command::parse(bytes);

    let (items, end) = read(rest, usize::MAX);
    assert_eq!(read(rest, usize::from(*step) + 1), (items.clone(), end), "the cuts make a difference");
    let mut again = BytesMut::new();
    let mut messages = Vec::new();
    for item in items {
        let Item::Message(frames) = item else { continue };
        assert!(frames.len() <= LIMITS.frames && !frames.is_empty(), "a message of too many frames");
        let size: usize = frames.iter().map(|frame| frame.len()).sum();
        assert!(size <= LIMITS.message_bytes, "a message of too many bytes");
        message(&mut again, &frames.iter().map(|frame| &frame[..]).collect::<Vec<_>>());
        messages.push(Item::Message(frames));
    }
    assert_eq!(read(&again, usize::MAX), (messages, None), "what is written is not read back");
}

/// The verdict on a greeting must not change once it was given.
fn greeted(bytes: &[u8]) {
    let whole = Greeting::parse(bytes);
    for come in 0..bytes.len() {
        match Greeting::parse(&bytes[..come]) {
            Ok(None) => {}
            early => assert_eq!(early.is_err(), whole.is_err(), "a verdict that was taken back"),
        }
    }
}

/// Everything in `bytes`, which come `step` at a time.
fn read(bytes: &[u8], step: usize) -> (Vec<Item>, Option<Violation>) {
    let (mut decoder, mut input, mut items) = (Decoder::new(LIMITS), BytesMut::new(), Vec::new());
    for chunk in bytes.chunks(step) {
        input.extend_from_slice(chunk);
        loop {
            match decoder.next(&mut input) {
                Ok(Some(item)) => items.push(item),
                Ok(None) => break,
                Err(violation) => return (items, Some(violation)),
            }
        }
    }
    (items, None)
}
