//! What a publisher's replay buffer would hold, rebuilt from a recording.

use std::collections::BTreeMap;

use bytes::Bytes;

/// Messages and bytes that are kept, the newest ones.
const MAX_MESSAGES: usize = 10_000;
const MAX_BYTES: usize = 256 << 20;

/// Messages of one life of the engine, by sequence number.
#[derive(Debug, Default)]
pub struct Ring {
    messages: BTreeMap<u64, Bytes>,
    bytes: usize,
}

// === impl Ring ===

impl Ring {
    /// A live message. One that does not rise, and is not one that is known, begins another life.
    pub fn live(&mut self, sequence: u64, payload: Bytes) {
        let falls = self.messages.last_key_value().is_some_and(|(last, _)| sequence <= *last);
        if falls && self.messages.get(&sequence) != Some(&payload) {
            self.clear();
        }
        self.insert(sequence, payload);
    }

    /// A reply of a replay, which may fill a hole. Other bytes under a number that is known begin another life.
    pub fn replied(&mut self, sequence: u64, payload: Bytes) {
        if self.messages.get(&sequence).is_some_and(|known| *known != payload) {
            self.clear();
        }
        self.insert(sequence, payload);
    }

    /// What a replay from `start` on would bring.
    pub fn from(&self, start: u64) -> impl Iterator<Item = (u64, &Bytes)> {
        self.messages.range(start..).map(|(sequence, payload)| (*sequence, payload))
    }

    /// Another life begins.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.bytes = 0;
    }

    fn insert(&mut self, sequence: u64, payload: Bytes) {
        self.bytes += payload.len();
        if let Some(before) = self.messages.insert(sequence, payload) {
            self.bytes -= before.len();
        }
        while self.messages.len() > MAX_MESSAGES || (self.bytes > MAX_BYTES && self.messages.len() > 1) {
            let Some((_, oldest)) = self.messages.pop_first() else { return };
            self.bytes -= oldest.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(ring: &Ring) -> Vec<u64> {
        ring.from(0).map(|(sequence, _)| sequence).collect()
    }

    #[test]
    fn replies_fill_holes_and_a_message_that_falls_begins_another_life() {
        let mut ring = Ring::default();
        for sequence in [0, 1, 4] {
            ring.live(sequence, Bytes::from(vec![sequence as u8]));
        }
        ring.replied(2, Bytes::from_static(&[2]));
        ring.live(4, Bytes::from_static(&[4]));
        assert_eq!(numbers(&ring), [0, 1, 2, 4]);
        ring.live(1, Bytes::from_static(b"another life"));
        assert_eq!(numbers(&ring), [1]);
        ring.replied(0, Bytes::from_static(b"of it"));
        assert_eq!(numbers(&ring), [0, 1]);
    }

    #[test]
    fn the_oldest_messages_go_over_the_bound() {
        let mut ring = Ring::default();
        (0..MAX_MESSAGES as u64 + 3).for_each(|sequence| ring.live(sequence, Bytes::new()));
        assert_eq!((numbers(&ring).first(), numbers(&ring).len()), (Some(&3), MAX_MESSAGES));
    }
}
