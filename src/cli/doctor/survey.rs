//! What the messages of a feed say, put together: sizes, groups, forms of names, clocks. Nothing of it is a prompt.

use std::collections::{BTreeMap, BTreeSet};

use crate::block::extra_keys::Item;
use crate::wire::{self, Batch, Dialect, Event, EventError, Medium, Stored};

/// Different values that are remembered of what a hostile feed may vary without end.
const MANY: usize = 32;

/// What was seen in payloads.
#[derive(Debug, Default)]
pub(super) struct Survey {
    batch: Batch,
    pub(super) batches: u64,
    pub(super) events: u64,
    pub(super) stored_blocks: u64,
    pub(super) removed_blocks: u64,
    pub(super) clears: u64,
    /// Ranks that batches name.
    pub(super) ranks: BTreeSet<u32>,
    pub(super) block_sizes: BTreeSet<u64>,
    pub(super) groups: BTreeSet<u32>,
    /// Blocks named by integers, and by digests in bytes.
    pub(super) integer_names: u64,
    pub(super) byte_names: u64,
    pub(super) tiers: BTreeSet<&'static str>,
    /// Stores of an adapter that has a name, and of one that only has a number.
    pub(super) named_adapters: u64,
    pub(super) numbered_adapters: u64,
    /// Stores with a salt in a field of that name, and prompts that seem to have one among unlabelled extra keys.
    pub(super) named_salts: u64,
    pub(super) unnamed_salts: u64,
    /// Messages and events that could not be read, by reason.
    pub(super) unreadable: BTreeMap<&'static str, u64>,
    pub(super) rejected: BTreeMap<&'static str, u64>,
    /// By how many seconds this clock is ahead of the engine's: the least that was seen, for a message takes its time.
    pub(super) behind: Option<f64>,
}

// === impl Survey ===

impl Survey {
    /// Looks at one payload; `now`: when it came live, in seconds since the Unix epoch.
    pub(super) fn look(&mut self, dialect: Dialect, payload: &[u8], now: Option<f64>) {
        let mut batch = std::mem::take(&mut self.batch);
        match wire::decode(dialect, payload, &mut batch) {
            Ok(()) => self.take(&batch, now),
            Err(error) => *self.unreadable.entry(error.reason()).or_default() += 1,
        }
        self.batch = batch;
    }

    fn take(&mut self, batch: &Batch, now: Option<f64>) {
        self.batches += 1;
        for (error, count) in EventError::ALL.iter().zip(batch.rejected).filter(|(_, count)| *count > 0) {
            *self.rejected.entry(error.reason()).or_default() += u64::from(count);
        }
        // A clock that is no Unix clock (a monotonic one, or none) says nothing about ours.
        if let Some(now) = now.filter(|_| batch.timestamp.is_finite() && batch.timestamp > 1e9) {
            let behind = now - batch.timestamp;
            self.behind = Some(self.behind.map_or(behind, |least| least.min(behind)));
        }
        remember(&mut self.ranks, batch.rank);
        for event in &batch.events {
            self.events += 1;
            match event {
                Event::Stored(stored) => self.stored(batch, stored),
                Event::Removed(removed) => {
                    self.removed_blocks += removed.hashes.len() as u64;
                    remember(&mut self.groups, removed.group);
                }
                Event::Cleared => self.clears += 1,
            }
        }
    }

    fn stored(&mut self, batch: &Batch, stored: &Stored) {
        let names = batch.hashes(stored.hashes);
        let wide = names.iter().filter(|name| name.is_wide()).count() as u64;
        self.stored_blocks += names.len() as u64;
        self.byte_names += wide;
        self.integer_names += names.len() as u64 - wide;
        remember(&mut self.block_sizes, Some(stored.block_size).filter(|size| *size > 0));
        remember(&mut self.groups, stored.group);
        remember(&mut self.tiers, Some(tier(stored.medium)));
        self.named_adapters += u64::from(stored.lora_name.is_some());
        self.numbered_adapters += u64::from(stored.lora_name.is_none() && stored.lora_id.is_some_and(|id| id > 0));
        self.named_salts += u64::from(stored.cache_salt.is_some());
        let first = batch.extra_keys(stored.extra_keys).first().filter(|_| stored.parent.is_none());
        let adapter = stored.lora_name.map(|name| batch.text(name));
        let looks_like_salt = |(at, item): (usize, &Item)| match item {
            Item::Text(text) => at > 0 || Some(text.as_str()) != adapter,
            _ => false,
        };
        self.unnamed_salts += u64::from(first.is_some_and(|keys| keys.iter().enumerate().any(looks_like_salt)));
    }
}

fn remember<T: Ord>(set: &mut BTreeSet<T>, value: Option<T>) {
    if let Some(value) = value.filter(|_| set.len() < MANY) {
        set.insert(value);
    }
}

fn tier(medium: Medium) -> &'static str {
    match medium {
        Medium::Device => "device",
        Medium::Host => "host",
        Medium::Disk => "disk",
        Medium::External => "external",
        Medium::Other(_) => "other",
    }
}
