//! Live messages that wait for a replay: bounded in number and in bytes, the oldest go first.

use std::collections::VecDeque;

use super::nouns::{Digest, Message};

/// How much may wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Messages.
    pub messages: usize,
    /// Bytes of payload. One message alone may exceed it: the link has a bound of its own for that.
    pub bytes: usize,
}

/// Live messages in the order they came: their sequence numbers rise.
#[derive(Debug)]
pub(super) struct Buffer<P> {
    limits: Limits,
    messages: VecDeque<Message<P>>,
    bytes: usize,
}

// === impl Limits ===

impl Default for Limits {
    /// 16,384 messages, 64 MiB.
    fn default() -> Self {
        Self { messages: 16_384, bytes: 64 << 20 }
    }
}

// === impl Buffer ===

impl<P> Buffer<P> {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, messages: VecDeque::new(), bytes: 0 }
    }

    /// Adds the newest message and says how many old ones had to go for it.
    pub(super) fn push(&mut self, message: Message<P>) -> u64 {
        self.bytes += message.size;
        self.messages.push_back(message);
        let mut gone = 0;
        while self.messages.len() > 1 && (self.messages.len() > self.limits.messages || self.bytes > self.limits.bytes)
        {
            self.pop();
            gone += 1;
        }
        gone
    }

    pub(super) fn front(&self) -> Option<&Message<P>> {
        self.messages.front()
    }

    pub(super) fn pop(&mut self) -> Option<Message<P>> {
        let message = self.messages.pop_front()?;
        self.bytes -= message.size;
        Some(message)
    }

    /// The digest under which a sequence number waits.
    pub(super) fn digest(&self, sequence: u64) -> Option<Digest> {
        let at = self.messages.binary_search_by_key(&sequence, |message| message.sequence).ok()?;
        self.messages.get(at).map(|message| message.digest)
    }

    /// Drops everything and gives the memory back: most of the time nothing waits.
    pub(super) fn clear(&mut self) {
        self.messages = VecDeque::new();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(sequence: u64, size: usize) -> Message<()> {
        Message { sequence, digest: Digest(sequence), size, payload: () }
    }

    #[test]
    fn the_oldest_go_when_too_many_or_too_large_messages_wait() {
        let mut buffer = Buffer::new(Limits { messages: 3, bytes: 100 });
        for sequence in 0..3 {
            assert_eq!(buffer.push(message(sequence, 10)), 0);
        }
        assert_eq!(buffer.push(message(3, 10)), 1);
        assert_eq!(buffer.front().map(|m| m.sequence), Some(1));
        assert_eq!(buffer.push(message(4, 80)), 1, "three messages, the limit, of exactly 100 bytes");
        assert_eq!(buffer.push(message(5, 500)), 3, "one alone may be larger than the bound");
        assert_eq!(buffer.front().map(|m| m.sequence), Some(5));
        assert_eq!(buffer.digest(5), Some(Digest(5)));
        assert_eq!(buffer.digest(4), None);
        buffer.pop();
        assert!(buffer.front().is_none());
        assert_eq!(buffer.bytes, 0);
    }
}
