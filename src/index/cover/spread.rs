//! The lengths of a run that many ranks hold, several at once: nearly all the time of a match of few blocks that all
//! ranks hold went there, one by one.

use crate::worker::RankId;

use super::super::door::RankScore;
use super::Holder;

/// Holders that are worth it.
#[cfg(target_arch = "x86_64")]
const MANY: usize = 16;

/// Appends what each holder holds of a run, `most` blocks at most. `ranks`: by seat.
#[inline]
#[allow(unsafe_code)]
pub(in super::super) fn spread(holders: &[Holder], ranks: &[RankId], most: u32, out: &mut Vec<RankScore>) {
    #[cfg(target_arch = "x86_64")]
    if holders.len() >= MANY
        && std::arch::is_x86_feature_detected!("avx2")
        && holders.last().is_some_and(|last| (last.seat() as usize) < ranks.len())
    {
        // SAFETY: the processor has been asked. Holders ascend by seat, so no seat is beyond the last one's.
        unsafe { wide::spread(holders, ranks, most, out) };
        return;
    }
    one_by_one(holders, ranks, most, out);
}

#[inline]
fn one_by_one(holders: &[Holder], ranks: &[RankId], most: u32, out: &mut Vec<RankScore>) {
    out.extend(holders.iter().map(|holder| {
        let blocks = holder.lead().min(most);
        RankScore { rank: ranks[holder.seat() as usize], blocks, device: blocks }
    }));
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod wide {
    use std::arch::x86_64::*;
    use std::mem::offset_of;

    use super::super::{LEAD_BITS, MASKED};
    use super::{Holder, RankId, RankScore, one_by_one};

    /// Holders of a step.
    const STEP: usize = 4;

    // How all of them lie in memory.
    const _: () = assert!(size_of::<Holder>() == 8 && offset_of!(Holder, place) == 0 && size_of::<RankId>() == 8);
    const _: () = assert!(size_of::<RankScore>() == 16 && offset_of!(RankScore, rank) == 0);
    const _: () = assert!(offset_of!(RankScore, blocks) == 8 && offset_of!(RankScore, device) == 12);

    /// The same as [`one_by_one`].
    ///
    /// # Safety
    /// The processor knows AVX2, and every holder's seat is one of `ranks`.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn spread(holders: &[Holder], ranks: &[RankId], most: u32, out: &mut Vec<RankScore>) {
        let (steps, rest) = holders.as_chunks::<STEP>();
        out.reserve(holders.len());
        let (low, lead) = (_mm256_set1_epi64x(0xFFFF_FFFF), _mm256_set1_epi64x(i64::from(MASKED)));
        let most_of_each = _mm256_set1_epi64x(i64::from(most));
        let mut to: *mut __m256i = out.spare_capacity_mut().as_mut_ptr().cast();
        for step in steps {
            // SAFETY: four holders are 32 bytes, which nobody writes: the one holder of a run may lengthen it beside
            // readers, but where there are several all changes take the gate. Each seat is one of `ranks`, by the caller's
            // word, and a rank is 8 bytes. Room for four answers of 16 bytes each was reserved for each step.
            unsafe {
                let places = _mm256_and_si256(_mm256_loadu_si256(step.as_ptr().cast()), low);
                let blocks = _mm256_min_epu32(_mm256_and_si256(places, lead), most_of_each);
                let seats = _mm256_srli_epi64::<{ LEAD_BITS as i32 }>(places);
                let ranks = _mm256_i64gather_epi64::<8>(ranks.as_ptr().cast(), seats);
                let twice = _mm256_or_si256(blocks, _mm256_slli_epi64::<32>(blocks));
                let (even, odd) = (_mm256_unpacklo_epi64(ranks, twice), _mm256_unpackhi_epi64(ranks, twice));
                _mm256_storeu_si256(to, _mm256_permute2x128_si256::<0x20>(even, odd));
                _mm256_storeu_si256(to.add(1), _mm256_permute2x128_si256::<0x31>(even, odd));
                to = to.add(2);
            }
        }
        // SAFETY: so many were reserved, and have been written.
        unsafe { out.set_len(out.len() + steps.len() * STEP) };
        one_by_one(rest, ranks, most, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_at_once_are_the_same_as_one_by_one() {
        let ranks: Vec<RankId> = (0..5000).map(|slot| RankId { slot, generation: slot * 7 }).collect();
        for count in (0..70).chain([700, 1023]) {
            let holders: Vec<Holder> = (0..count).map(|i| Holder::new(i * 4 + i % 3, 1 + i * 37 % 2048, i)).collect();
            for most in [1, 5, 900, 2048] {
                let (mut all, mut each) = (Vec::with_capacity(3), Vec::new());
                all.push(RankScore { rank: ranks[9], blocks: 9, device: 9 });
                each.extend_from_slice(&all);
                spread(&holders, &ranks, most, &mut all);
                one_by_one(&holders, &ranks, most, &mut each);
                assert_eq!(all, each);
            }
        }
    }
}
