//! What a snapshot holds, back into the index: by pieces, so that nobody waits for long.

use super::format::{Content, Head, Refusal};
use crate::index::IndexError;
use crate::normalize::Normalizer;
use crate::worker::Stamp;

/// Pieces that are taken back in one transaction.
const AT_ONCE: usize = 1 << 14;

/// Why what a snapshot holds was not taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unrestored {
    /// The file is not believed.
    #[error(transparent)]
    Refused(Refusal),
    /// The rank was removed meanwhile.
    #[error("the rank was removed meanwhile")]
    Gone,
}

// === impl Unrestored ===

impl From<Refusal> for Unrestored {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<IndexError> for Unrestored {
    fn from(error: IndexError) -> Self {
        match error {
            IndexError::WorkerGone => Self::Gone,
            _ => Self::Refused(Refusal::Malformed),
        }
    }
}

// === impl Content ===

impl Content<'_> {
    /// The stamp of what is held: the last message of `epoch`.
    pub fn stamp(&self, epoch: u64) -> Stamp {
        Stamp { epoch, sequence: self.head.messages.last().map(|(sequence, _)| *sequence) }
    }

    /// Takes everything back, as of the last message of `epoch`, through the normalizer of a rank that holds nothing.
    ///
    /// # Errors
    /// [`Unrestored`]; the rank holds a part then, and is to be reset.
    pub fn restore(mut self, epoch: u64, normalizer: &mut Normalizer) -> Result<Head, Unrestored> {
        let mut pieces = Vec::new();
        normalizer.reserve(self.blocks());
        loop {
            self.pieces(AT_ONCE, &mut pieces)?;
            if pieces.is_empty() {
                break;
            }
            normalizer.restore(&pieces)?;
        }
        normalizer.restored(&self.head.memory, self.stamp(epoch))?;
        Ok(self.head)
    }
}
