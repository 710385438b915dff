//! How this process's part in a fleet fares, for whoever looks.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// The record: written by the relay, read by the admin port. It stays at nothing where there is no relay.
#[derive(Debug, Default)]
pub struct Figures {
    pub(super) connected: AtomicBool,
    pub(super) owned: AtomicU64,
    pub(super) followed: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) kept: AtomicU64,
    pub(super) unkept: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) cuts: AtomicU64,
    pub(super) sent: AtomicU64,
    pub(super) stored: AtomicU64,
    pub(super) slow: AtomicU64,
}

/// What a record says at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FiguresReport {
    /// Whether there is a connection to a server.
    pub connected: bool,
    /// Ranks that are published.
    pub owned: u64,
    /// Ranks of others that are followed.
    pub followed: u64,
    /// Announcements of ranks that there was no room for.
    pub refused: u64,
    /// Batches that the stream has taken.
    pub kept: u64,
    /// Batches that it has not, as far as is known: followers that listened have them.
    pub unkept: u64,
    /// Bytes of batches that were published.
    pub bytes: u64,
    /// How often publishing fell so far behind that changes were left out.
    pub cuts: u64,
    /// Snapshots that were sent to whoever had asked.
    pub sent: u64,
    /// Snapshots that were put away for the time after this process.
    pub stored: u64,
    /// Notices that a client was too slow and has missed messages.
    pub slow: u64,
}

// === impl Figures ===

impl Figures {
    /// What it says now.
    pub fn report(&self) -> FiguresReport {
        FiguresReport {
            connected: self.connected.load(Relaxed),
            owned: self.owned.load(Relaxed),
            followed: self.followed.load(Relaxed),
            refused: self.refused.load(Relaxed),
            kept: self.kept.load(Relaxed),
            unkept: self.unkept.load(Relaxed),
            bytes: self.bytes.load(Relaxed),
            cuts: self.cuts.load(Relaxed),
            sent: self.sent.load(Relaxed),
            stored: self.stored.load(Relaxed),
            slow: self.slow.load(Relaxed),
        }
    }
}

/// Counts one more.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}
