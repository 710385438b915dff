//! How decoders fill a [`Batch`], and how they take back what a rejected event left in it.

use crate::block::extra_keys::Item;

use super::MAX_PAYLOAD;
use super::error::{EventError, MessageError};
use super::event::{Batch, Event, Medium, Run, Span, Stored, Text};
use super::keys::MAX_ITEMS;

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
    items: usize,
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
            items: self.items,
        }
    }

    /// Counts the event that began at `mark` as rejected, and takes back what it left.
    #[cold]
    pub(super) fn reject(&mut self, mark: Mark, error: EventError) {
        self.take_back(mark);
        if let Some(count) = self.rejected.get_mut(error.index()) {
            *count = count.saturating_add(1);
        }
    }

    /// Takes back what was put since `mark`.
    pub(super) fn take_back(&mut self, mark: Mark) {
        self.events.truncate(mark.events);
        self.tokens.truncate(mark.tokens);
        self.hashes.truncate(mark.hashes);
        self.contents.truncate(mark.contents);
        self.text.truncate(mark.text);
        self.keys.truncate(mark.keys);
        self.items = mark.items;
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

    /// Puts the events from `start` on into a run: the last one, where it has the same source and `id` follows.
    pub(super) fn attribute(&mut self, worker: Option<u64>, rank: Option<u32>, id: Option<u64>, start: usize) {
        let end = self.events.len();
        if let Some(last) = self.runs.last_mut().filter(|last| last.worker == worker && last.rank == rank) {
            match (&mut last.ids, id) {
                (Some((_, last_id)), Some(id)) if id == *last_id || Some(id) == last_id.checked_add(1) => {
                    *last_id = id;
                    last.events.end = end;
                    return;
                }
                (None, None) => {
                    last.events.end = end;
                    return;
                }
                _ => {}
            }
        }
        self.runs.push(Run { worker, rank, ids: id.map(|id| (id, id)), events: start..end });
    }

    /// Where all runs are of one rank, so is the batch.
    pub(super) fn settle_rank(&mut self) {
        if let Some((first, others)) = self.runs.split_first()
            && others.iter().all(|run| run.rank == first.rank)
        {
            self.rank = first.rank;
        }
    }

    /// Notes that the message's keys are going to have `n` more items, before there is memory for them.
    ///
    /// # Errors
    /// [`EventError::BadField`] where they would be more than [`MAX_ITEMS`].
    pub(super) fn take_room(&mut self, n: usize) -> Result<(), EventError> {
        let items = self.items.saturating_add(n);
        if items > MAX_ITEMS {
            return Err(EventError::BadField);
        }
        self.items = items;
        Ok(())
    }

    /// Puts `items` after the extra keys that block `index` of the event has already, which names `named` blocks as
    /// far as is known. The event's keys start at `start` and nothing else was put after them.
    pub(super) fn add_keys(&mut self, start: usize, index: usize, named: usize, items: Vec<Item>) {
        if items.is_empty() {
            return;
        }
        let at = start + index;
        if self.keys.len() <= at {
            // Room for all of the event's at once: grown step by step it could come to twice that.
            self.keys.reserve((start + named.max(index + 1)).saturating_sub(self.keys.len()));
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

// === impl Stored ===

impl Stored {
    /// A store of `hashes` in `medium` that says nothing else.
    pub(super) const fn bare(hashes: Span, medium: Medium) -> Self {
        const NONE: Span = Span::new(0, 0);
        Self {
            hashes,
            parent: None,
            tokens: NONE,
            contents: NONE,
            block_size: 0,
            lookahead: 0,
            medium,
            lora_name: None,
            lora_id: None,
            cache_salt: None,
            extra_keys: NONE,
            group: None,
            kind: None,
            window: None,
        }
    }
}

// === impl Medium ===

impl Medium {
    /// The medium that an engine's `word` means; one we do not know is kept by name.
    ///
    /// # Errors
    /// [`EventError::BadField`] where the word is no name: each becomes a tier of its own.
    pub(super) fn of(word: &[u8], batch: &mut Batch) -> Result<Self, EventError> {
        /// In bytes.
        const LONGEST: usize = 256;
        match Self::known(word) {
            Some(medium) => Ok(medium),
            None if word.len() > LONGEST => Err(EventError::BadField),
            None => Ok(Self::Other(batch.push_text(word)?)),
        }
    }
}
