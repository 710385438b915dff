//! Frames and messages.
//!
//! ```text
//! flags (1: more, 2: long, 4: command) | length: 1 byte, or 8 bytes big-endian where long | body
//! ```

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{Command, Violation};

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// What one peer may send at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Bytes of a message, all frames together, and so of a frame.
    pub message_bytes: usize,
    /// Frames of a message.
    pub frames: usize,
    /// Bytes of a command.
    pub command_bytes: usize,
}

/// One thing that a peer sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Item {
    /// A command.
    Command(Command),
    /// A whole message, by its frames.
    Message(Vec<Bytes>),
}

/// Cuts what comes after the greeting into commands and messages.
#[derive(Debug)]
pub struct Decoder {
    limits: Limits,
    /// The frames of a message that is not complete yet, and their bytes.
    frames: Vec<Bytes>,
    bytes: usize,
}

/// A frame's head.
struct Head {
    flags: u8,
    body: u64,
    len: usize,
}

// === impl Limits ===

impl Default for Limits {
    /// 32 MiB and 16 frames a message, 4 KiB a command. A batch of 4,096 blocks of 256 tokens is about 5 MiB.
    fn default() -> Self {
        Self { message_bytes: 32 << 20, frames: 16, command_bytes: 4 << 10 }
    }
}

// === impl Decoder ===

impl Decoder {
    /// A decoder that keeps to `limits`.
    pub fn new(limits: Limits) -> Self {
        Self { limits, frames: Vec::new(), bytes: 0 }
    }

    /// Takes the next item off the front of `input`: `None` where more bytes are needed. A frame above a cap is
    /// refused as soon as its length has come.
    ///
    /// # Errors
    /// A [`Violation`]: nothing that this peer sends can be told apart any more.
    pub fn next(&mut self, input: &mut BytesMut) -> Result<Option<Item>, Violation> {
        loop {
            let Some(head) = Head::parse(input) else { return Ok(None) };
            let body = self.admit(&head)?;
            if input.len() < head.len.saturating_add(body) {
                return Ok(None);
            }
            input.advance(head.len);
            let frame = copy_front(input, body);
            if head.flags & COMMAND != 0 {
                return Command::parse(&frame).map(|command| Some(Item::Command(command)));
            }
            self.bytes = self.bytes.saturating_add(body);
            self.frames.push(frame);
            if head.flags & MORE == 0 {
                self.bytes = 0;
                return Ok(Some(Item::Message(std::mem::take(&mut self.frames))));
            }
        }
    }

    /// The length of the body, where the caps admit it.
    fn admit(&self, head: &Head) -> Result<usize, Violation> {
        let Limits { message_bytes, frames, command_bytes } = self.limits;
        let body = usize::try_from(head.body).unwrap_or(usize::MAX);
        if !head.is_known() {
            return Err(Violation::Flags { flags: head.flags });
        }
        if head.flags & COMMAND != 0 {
            if body > command_bytes {
                return Err(Violation::CommandTooLarge { declared: head.body, max: command_bytes });
            }
            return Ok(body);
        }
        if body > message_bytes {
            return Err(Violation::FrameTooLarge { declared: head.body, max: message_bytes });
        }
        if body.saturating_add(self.bytes) > message_bytes {
            return Err(Violation::MessageTooLarge { max: message_bytes });
        }
        if self.frames.len() >= frames {
            return Err(Violation::TooManyFrames { max: frames });
        }
        Ok(body)
    }
}

// === impl Head ===

impl Head {
    fn parse(input: &[u8]) -> Option<Self> {
        let (&flags, rest) = input.split_first()?;
        let head = Self { flags, body: 0, len: 1 };
        if !head.is_known() {
            // It is refused now, not once its length has come.
            return Some(head);
        }
        if flags & LONG == 0 {
            let &body = rest.first()?;
            return Some(Self { flags, body: body.into(), len: 2 });
        }
        let body = u64::from_be_bytes(*rest.first_chunk()?);
        Some(Self { flags, body, len: 9 })
    }

    /// Whether the flags are ones that the specification knows. A command is never continued.
    fn is_known(&self) -> bool {
        self.flags & !(MORE | LONG | COMMAND) == 0 && self.flags & (MORE | COMMAND) != (MORE | COMMAND)
    }
}

/// Takes `len` bytes off the front, copied: see the room's page.
fn copy_front(input: &mut BytesMut, len: usize) -> Bytes {
    let frame = input.get(..len).map(Bytes::copy_from_slice).unwrap_or_default();
    input.advance(len);
    frame
}

/// Writes a message of `frames`.
pub fn message(output: &mut BytesMut, frames: &[&[u8]]) {
    for (index, frame) in frames.iter().enumerate() {
        put(output, if index + 1 < frames.len() { MORE } else { 0 }, &[frame]);
    }
}

/// Writes a command whose body is `parts`, one after the other.
pub(super) fn command(output: &mut BytesMut, parts: &[&[u8]]) {
    put(output, COMMAND, parts);
}

fn put(output: &mut BytesMut, flags: u8, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    match u8::try_from(len) {
        Ok(len) => output.put_slice(&[flags, len]),
        Err(_) => {
            output.put_u8(flags | LONG);
            output.put_u64(len as u64);
        }
    }
    for part in parts {
        output.put_slice(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { message_bytes: 300, frames: 3, command_bytes: 32 };

    /// Everything that `bytes` hold, fed `step` bytes at a time.
    fn decode(bytes: &[u8], step: usize) -> Result<Vec<Item>, Violation> {
        let (mut decoder, mut input, mut items) = (Decoder::new(LIMITS), BytesMut::new(), Vec::new());
        for chunk in bytes.chunks(step) {
            input.extend_from_slice(chunk);
            while let Some(item) = decoder.next(&mut input)? {
                items.push(item);
            }
        }
        Ok(items)
    }

    fn frames(frames: &[&'static [u8]]) -> Item {
        Item::Message(frames.iter().map(|frame| Bytes::from_static(frame)).collect())
    }

    #[test]
    fn messages_come_out_whole_however_the_bytes_arrive() {
        let long = [&b"\x02\0\0\0\0\0\0\x01\x00"[..], &[7; 256]].concat();
        let cases: [(&[u8], Vec<Item>); 6] = [
            (b"", vec![]),
            (b"\x00\x00", vec![frames(&[b""])]),
            (b"\x01\x00\x01\x02ab\x00\x01c", vec![frames(&[b"", b"ab", b"c"])]),
            (b"\x00\x01a\x00\x01b", vec![frames(&[b"a"]), frames(&[b"b"])]),
            // A command between the frames of a message leaves the message alone.
            (
                b"\x01\x01a\x04\x07\x04PINGxx\x00\x01b",
                vec![Item::Command(Command::Ping { context: Bytes::new() }), frames(&[b"a", b"b"])],
            ),
            (&long, vec![frames(&[&[7; 256]])]),
        ];
        for (bytes, items) in cases {
            for step in [1, 2, 3, 1000] {
                assert_eq!(decode(bytes, step), Ok(items.clone()), "{bytes:?} by {step}");
            }
        }
    }

    #[test]
    fn what_exceeds_a_cap_is_refused_at_its_head() {
        let cases: [(&[u8], Violation); 10] = [
            (b"\x02\0\0\x01\0\0\0\0\0", Violation::FrameTooLarge { declared: 1 << 40, max: 300 }),
            (b"\x02\xff\xff\xff\xff\xff\xff\xff\xff", Violation::FrameTooLarge { declared: u64::MAX, max: 300 }),
            (b"\x02\0\0\0\0\0\0\x01\x2d", Violation::FrameTooLarge { declared: 301, max: 300 }),
            (&[&b"\x01\xff"[..], &[0; 255], b"\x00\x2e"].concat(), Violation::MessageTooLarge { max: 300 }),
            (b"\x01\x00\x01\x00\x01\x00\x00\x00", Violation::TooManyFrames { max: 3 }),
            (b"\x04\x21", Violation::CommandTooLarge { declared: 33, max: 32 }),
            (b"\x06\0\0\x01\0\0\0\0\0", Violation::CommandTooLarge { declared: 1 << 40, max: 32 }),
            (b"\x05\x01", Violation::Flags { flags: 5 }),
            (b"\x0c", Violation::Flags { flags: 12 }),
            (b"G", Violation::Flags { flags: b'G' }),
        ];
        for (bytes, violation) in cases {
            for step in [1, 1000] {
                assert_eq!(decode(bytes, step), Err(violation), "{bytes:?} by {step}");
            }
        }
    }

    #[test]
    fn a_message_of_exactly_the_caps_passes() {
        let full = [&b"\x01\xff"[..], &[0; 255], b"\x01\x00\x00\x2d", &[1; 45]].concat();
        let items = decode(&full, 1000).expect("within the caps");
        assert_eq!(
            items,
            [Item::Message(vec![Bytes::from_static(&[0; 255]), Bytes::new(), Bytes::from_static(&[1; 45])])]
        );
    }

    #[test]
    fn what_is_written_is_read_back() {
        let long = [5; 290];
        let mut bytes = BytesMut::new();
        message(&mut bytes, &[b"", b"start"]);
        message(&mut bytes, &[&long]);
        assert_eq!(bytes[..9], *b"\x01\x00\x00\x05start");
        let items = vec![frames(&[b"", b"start"]), Item::Message(vec![Bytes::copy_from_slice(&long)])];
        assert_eq!(decode(&bytes, 7), Ok(items));
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_panic_and_what_is_held_is_within_the_caps(bytes: Vec<u8>, step in 1usize..40) {
            for item in decode(&bytes, step).unwrap_or_default() {
                if let Item::Message(frames) = item {
                    proptest::prop_assert!(frames.len() <= LIMITS.frames);
                    proptest::prop_assert!(frames.iter().map(Bytes::len).sum::<usize>() <= LIMITS.message_bytes);
                }
            }
        }
    }
}
