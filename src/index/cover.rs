//! Who holds how much of one run.
//!
//! Engines evict the tail of a prompt first, so nearly every rank that holds anything of a run holds its first
//! blocks, on its device: one number. Only where that is not so does a rank have a mask, one byte of tiers a block.

// A pointer where there is nearly always nothing: an empty array would take three words in every run and hold.
#![allow(clippy::box_collection)]

mod spread;

use std::sync::atomic::{AtomicU32, Ordering};

use super::bucket::prefetch;
use super::copies::Tiers;
use super::directory::MAX_RANKS;
use super::forest::MAX_RUN;

pub(super) use spread::spread;

/// A rank that holds at least one block of a run.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Holder {
    /// The rank's seat in the forest, above [`LEAD_BITS`] bits of its lead: leading blocks held, all on the device and
    /// nothing else; or [`MASKED`].
    place: AtomicU32,
    /// The rank's own number for this run.
    pub(super) hold: u32,
}

/// Bits of a lead.
const LEAD_BITS: u32 = 12;

/// In place of a lead: see the mask.
pub(super) const MASKED: u32 = (1 << LEAD_BITS) - 1;

const _: () = assert!(MAX_RUN < MASKED as usize && MAX_RANKS <= 1 << (32 - LEAD_BITS));

/// The holders of a run, ascending by seat. Most runs have one, which needs no heap.
#[derive(Debug, Default)]
pub(super) struct Cover {
    holders: Holders,
    masks: Option<Box<Vec<(u32, Mask)>>>,
}

#[derive(Debug, Default)]
enum Holders {
    #[default]
    None,
    One(Holder),
    Many(Vec<Holder>),
}

/// On which tiers a rank holds each block of a run.
#[derive(Debug, Default)]
pub(super) struct Mask {
    /// By block; the last is not empty.
    tiers: Vec<Tiers>,
    /// Blocks held.
    held: u32,
    /// Of these, blocks that lie elsewhere than on the device alone.
    elsewhere: u32,
}

// === impl Holder ===

impl Holder {
    fn new(seat: u32, lead: u32, hold: u32) -> Self {
        Self { place: AtomicU32::new(seat << LEAD_BITS | lead), hold }
    }

    #[inline]
    pub(super) fn seat(&self) -> u32 {
        // It never changes.
        self.place.load(Ordering::Relaxed) >> LEAD_BITS
    }

    /// Leading blocks held, all on the device and nothing else; or [`MASKED`].
    #[inline]
    pub(super) fn lead(&self) -> u32 {
        self.place.load(Ordering::Acquire) & MASKED
    }

    /// Others may read meanwhile, and nobody else may do the same.
    #[inline]
    fn set_lead(&self, lead: u32) {
        self.place.store(self.seat() << LEAD_BITS | lead, Ordering::Release);
    }
}

impl Clone for Holder {
    fn clone(&self) -> Self {
        Self::new(self.seat(), self.lead(), self.hold)
    }
}

// === impl Cover ===

impl Cover {
    #[inline]
    pub(super) fn holders(&self) -> &[Holder] {
        match &self.holders {
            Holders::None => &[],
            Holders::One(holder) => std::slice::from_ref(holder),
            Holders::Many(holders) => holders,
        }
    }

    /// Asks for the holders ahead.
    #[inline]
    pub(super) fn touch(&self) {
        prefetch(self.holders().as_ptr());
    }

    #[inline]
    pub(super) fn get(&self, seat: u32) -> Option<&Holder> {
        self.position(seat).ok().map(|i| &self.holders()[i])
    }

    /// The one holder, who may lengthen what it holds while others read.
    #[inline]
    pub(super) fn only(&self) -> Option<&Holder> {
        match &self.holders {
            Holders::One(holder) => Some(holder),
            _ => None,
        }
    }

    #[inline]
    fn position(&self, seat: u32) -> Result<usize, usize> {
        match &self.holders {
            Holders::None => Err(0),
            Holders::One(holder) => match holder.seat().cmp(&seat) {
                std::cmp::Ordering::Equal => Ok(0),
                std::cmp::Ordering::Less => Err(1),
                std::cmp::Ordering::Greater => Err(0),
            },
            Holders::Many(holders) => holders.binary_search_by_key(&seat, |holder| holder.seat()),
        }
    }

    fn holder_mut(&mut self, i: usize) -> Option<&mut Holder> {
        match &mut self.holders {
            Holders::None => None,
            Holders::One(holder) => (i == 0).then_some(holder),
            Holders::Many(holders) => holders.get_mut(i),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self.holders, Holders::None)
    }

    /// Whether this rank is the only holder.
    pub(super) fn is_only(&self, seat: u32) -> bool {
        self.only().is_some_and(|holder| holder.seat() == seat)
    }

    /// Blocks up to the last that anybody holds.
    pub(super) fn end(&self) -> usize {
        let leads = self.holders().iter().map(Holder::lead).filter(|lead| *lead != MASKED).map(|lead| lead as usize);
        let masks = self.masks.iter().flat_map(|masks| masks.iter()).map(|(_, mask)| mask.tiers.len());
        leads.chain(masks).max().unwrap_or(0)
    }

    pub(super) fn heap(&self) -> usize {
        let holders = match &self.holders {
            Holders::Many(holders) => holders.capacity() * size_of::<Holder>(),
            _ => 0,
        };
        let masks = self.masks.iter().flat_map(|masks| masks.iter());
        holders + masks.map(|(_, mask)| mask.tiers.capacity() + size_of::<(u32, Mask)>()).sum::<usize>()
    }

    /// Covers blocks `[from, to)` on the device, the common case: the rank holds exactly `[0, from)` and no more.
    /// Says whether it was that case; if not, nothing has changed.
    #[inline]
    pub(super) fn extend(&mut self, seat: u32, from: u32, to: u32, hold: u32) -> bool {
        match self.position(seat) {
            Ok(i) => match self.holder_mut(i) {
                Some(holder) if holder.lead() == from => {
                    holder.set_lead(to);
                    true
                }
                _ => false,
            },
            Err(i) if from == 0 => {
                self.insert(i, Holder::new(seat, to, hold));
                true
            }
            Err(_) => false,
        }
    }

    /// The one holder holds so many leading blocks from now on; others may read meanwhile.
    #[inline]
    pub(super) fn lengthen_only(&self, lead: u32) {
        if let Some(holder) = self.only() {
            holder.set_lead(lead);
        }
    }

    /// Whether any holder has a mask.
    #[inline]
    pub(super) fn has_masks(&self) -> bool {
        self.masks.is_some()
    }

    /// Adds tiers to a block. `hold`: the rank's number for the run, in case it is new here.
    pub(super) fn gain(&mut self, seat: u32, block: u32, tiers: Tiers, hold: u32) {
        if tiers == Tiers::DEVICE && self.extend(seat, block, block + 1, hold) {
            return;
        }
        if let Err(i) = self.position(seat) {
            self.insert(i, Holder::new(seat, 0, hold));
        }
        self.change(seat, block, |held| held.and(tiers));
    }

    /// Takes tiers away from blocks `[from, to)`. Says whether the rank holds nothing here any more.
    #[inline]
    pub(super) fn lose(&mut self, seat: u32, from: u32, to: u32, tiers: Tiers) -> bool {
        let Ok(i) = self.position(seat) else { return true };
        if tiers == Tiers::DEVICE
            && let Some(holder) = self.holder_mut(i)
            && holder.lead() == to
        {
            holder.set_lead(from);
            if from == 0 {
                self.remove(i);
                return true;
            }
            return false;
        }
        for block in from..to {
            self.change(seat, block, |held| held.minus(tiers));
        }
        self.position(seat).is_err()
    }

    /// On which tiers a rank holds a block.
    pub(super) fn tiers(&self, seat: u32, block: u32) -> Tiers {
        match self.get(seat) {
            None => Tiers::default(),
            Some(holder) if holder.lead() == MASKED => self.mask(seat).get(block as usize).copied().unwrap_or_default(),
            Some(holder) if block < holder.lead() => Tiers::DEVICE,
            Some(_) => Tiers::default(),
        }
    }

    /// The mask of a holder that has one.
    pub(super) fn mask(&self, seat: u32) -> &[Tiers] {
        let mask = self.masks.as_ref().and_then(|masks| masks.iter().find(|(of, _)| *of == seat));
        mask.map_or(&[], |(_, mask)| &mask.tiers)
    }

    /// Drops a rank.
    pub(super) fn forget(&mut self, seat: u32) {
        if let Ok(i) = self.position(seat) {
            self.remove(i);
        }
        self.drop_mask(seat);
    }

    fn change(&mut self, seat: u32, block: u32, how: impl Fn(Tiers) -> Tiers) {
        let Ok(i) = self.position(seat) else { return };
        let Some(holder) = self.holder_mut(i) else { return };
        let lead = holder.lead();
        holder.set_lead(MASKED);
        let masks = self.masks.get_or_insert_default();
        let at = match masks.iter().position(|(of, _)| *of == seat) {
            Some(at) => at,
            None => {
                let lead = if lead == MASKED { 0 } else { lead };
                let tiers = vec![Tiers::DEVICE; lead as usize];
                masks.push((seat, Mask { tiers, held: lead, elsewhere: 0 }));
                masks.len() - 1
            }
        };
        let mask = &mut masks[at].1;
        mask.change(block as usize, how);
        // Back to one number as soon as one number says it all.
        if mask.elsewhere == 0 && mask.held as usize == mask.tiers.len() {
            let held = mask.held;
            self.drop_mask(seat);
            if held == 0 {
                self.remove(i);
            } else if let Some(holder) = self.holder_mut(i) {
                holder.set_lead(held);
            }
        }
    }

    fn drop_mask(&mut self, seat: u32) {
        if let Some(masks) = &mut self.masks {
            masks.retain(|(of, _)| *of != seat);
            if masks.is_empty() {
                self.masks = None;
            }
        }
    }

    fn insert(&mut self, i: usize, holder: Holder) {
        match &mut self.holders {
            Holders::None => self.holders = Holders::One(holder),
            Holders::One(other) => {
                let both = if i == 0 { [holder, other.clone()] } else { [other.clone(), holder] };
                self.holders = Holders::Many(both.into());
            }
            Holders::Many(holders) => {
                if holders.len() == holders.capacity() {
                    holders.reserve_exact(holders.len() / 4 + 1);
                }
                holders.insert(i, holder);
            }
        }
    }

    fn remove(&mut self, i: usize) {
        match &mut self.holders {
            Holders::None => {}
            Holders::One(_) => self.holders = Holders::None,
            Holders::Many(holders) => {
                holders.remove(i);
                if let [last] = &holders[..] {
                    self.holders = Holders::One(last.clone());
                } else if holders.len() * 2 < holders.capacity() {
                    holders.shrink_to(holders.len() + holders.len() / 4);
                }
            }
        }
    }
}

// === impl Mask ===

impl Mask {
    fn change(&mut self, block: usize, how: impl Fn(Tiers) -> Tiers) {
        let before = self.tiers.get(block).copied().unwrap_or_default();
        let after = how(before);
        if after == before {
            return;
        }
        if block >= self.tiers.len() {
            self.tiers.resize(block + 1, Tiers::default());
        }
        self.tiers[block] = after;
        self.held = self.held + u32::from(!after.is_empty()) - u32::from(!before.is_empty());
        let is_elsewhere = |tiers: Tiers| u32::from(!tiers.is_empty() && tiers != Tiers::DEVICE);
        self.elsewhere = self.elsewhere + is_elsewhere(after) - is_elsewhere(before);
        while self.tiers.last().is_some_and(|tiers| tiers.is_empty()) {
            self.tiers.pop();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::Tier;

    const HOST: Tiers = Tiers::of(Tier::Host);

    #[test]
    fn a_prefix_on_the_device_is_one_number_and_becomes_one_again() {
        let mut cover = Cover::default();
        assert!(cover.extend(7, 0, 5, 1));
        assert!(!cover.extend(7, 6, 7, 1), "a hole is not the common case");
        cover.gain(7, 6, Tiers::DEVICE, 1);
        assert_eq!(cover.get(7).unwrap().lead(), MASKED);
        cover.gain(7, 2, HOST, 1);
        assert_eq!(cover.tiers(7, 2), Tiers::DEVICE.and(HOST));
        assert!(cover.tiers(7, 5).is_empty());
        cover.lose(7, 2, 3, HOST);
        assert_eq!(cover.get(7).unwrap().lead(), MASKED, "the hole is still there");
        cover.gain(7, 5, Tiers::DEVICE, 1);
        assert_eq!(cover.get(7).unwrap().lead(), 7);
        assert!(cover.masks.is_none());
        assert!(!cover.lose(7, 3, 4, Tiers::DEVICE));
        assert!(!cover.lose(7, 4, 7, Tiers::DEVICE));
        assert_eq!((cover.get(7).unwrap().lead(), cover.end()), (3, 3));
        assert!(cover.lose(7, 0, 3, Tiers::DEVICE));
        assert!(cover.is_empty());
    }

    #[test]
    fn holders_stay_ascending_whatever_the_order_they_come_in() {
        let mut cover = Cover::default();
        for seat in [5, 1, 9, 3, 7] {
            assert!(cover.extend(seat, 0, seat, seat));
        }
        assert_eq!(cover.holders().iter().map(|holder| holder.seat()).collect::<Vec<_>>(), [1, 3, 5, 7, 9]);
        for seat in [9, 1, 5, 7] {
            cover.forget(seat);
        }
        assert!(cover.is_only(3));
    }
}
