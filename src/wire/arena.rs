//! How decoders fill a [`Batch`], and how they take back what a rejected event left in it.

use crate::block::extra_keys::Item;

use super::MAX_PAYLOAD;
use super::error::{EventError, MessageError};
use super::event::{Batch, Event, Span, Text};

// A payload's byte makes at most four bytes of any arena (a one-byte token), so no span outgrows u32.
const _: () = assert!(MAX_PAYLOAD <= (u32::MAX / 8) as usize);

/// Why decoding stopped: the event's fault, or the whole message's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    Event(EventError),
    Message(MessageError),
}

/// How full a batch's arenas are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mark {
    events: usize,
    tokens: usize,
    hashes: usize,
    contents: usize,
    text: usize,
    keys: usize,
}

// === impl Fault ===

impl From<EventError> for Fault {
    fn from(error: EventError) -> Self {
        Self::Event(error)
    }
}

impl From<MessageError> for Fault {
    fn from(error: MessageError) -> Self {
        Self::Message(error)
    }
}

// === impl Batch ===

impl Batch {
    pub(super) fn mark(&self) -> Mark {
        Mark {
            events: self.events.len(),
            tokens: self.tokens.len(),
            hashes: self.hashes.len(),
            contents: self.contents.len(),
            text: self.text.len(),
            keys: self.keys.len(),
        }
    }

    /// Counts the event that began at `mark` as rejected, and takes back what it left.
    #[cold]
    pub(super) fn reject(&mut self, mark: Mark, error: EventError) {
        self.events.truncate(mark.events);
        self.tokens.truncate(mark.tokens);
        self.hashes.truncate(mark.hashes);
        self.contents.truncate(mark.contents);
        self.text.truncate(mark.text);
        self.keys.truncate(mark.keys);
        if let Some(count) = self.rejected.get_mut(error.index()) {
            *count = count.saturating_add(1);
        }
    }

    pub(super) fn push_event(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Keeps a piece of text.
    ///
    /// # Errors
    /// [`EventError::BadField`] where it is not UTF-8.
    pub(super) fn push_text(&mut self, bytes: &[u8]) -> Result<Text, EventError> {
        let text = str::from_utf8(bytes).map_err(|_| EventError::BadField)?;
        let start = self.text.len();
        self.text.push_str(text);
        Ok(Text(Span::new(start, self.text.len())))
    }

    /// Puts `items` after the extra keys that block `index` of the event has already. The event's keys start at
    /// `start` and nothing else was put after them.
    pub(super) fn add_keys(&mut self, start: usize, index: usize, items: Vec<Item>) {
        if items.is_empty() {
            return;
        }
        let at = start + index;
        if self.keys.len() <= at {
            self.keys.resize_with(at + 1, Vec::new);
        }
        if let Some(keys) = self.keys.get_mut(at) {
            if keys.is_empty() {
                *keys = items;
            } else {
                keys.extend(items);
            }
        }
    }
}
