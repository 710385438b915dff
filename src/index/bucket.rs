//! Eight slots of a name table in one cache line, looked at together.

/// Slots of a bucket.
pub(super) const WIDTH: usize = 8;

/// The slots; 0 is a free one.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Bucket(pub(super) [u64; WIDTH]);

// === impl Bucket ===

// All eight slots at once, without a branch: where in a bucket something is, no processor can foresee. (A loop that
// leaves off at the first one cost a third of a look-up.)
impl Bucket {
    /// The slot that is the one. It is asked of those only whose tags are nearly the same.
    #[inline]
    pub(super) fn holds(&self, tag: u64, mask: u64, is: impl Fn(u64) -> bool) -> Option<usize> {
        let mut near = self.near(tag, mask);
        while near != 0 {
            let slot = near.trailing_zeros() as usize % WIDTH;
            if self.0[slot] != 0 && is(self.0[slot]) {
                return Some(slot);
            }
            near &= near - 1;
        }
        None
    }

    /// A slot that is free.
    #[inline]
    pub(super) fn free(&self) -> Option<usize> {
        let free = self.all_free();
        (free != 0).then(|| free.trailing_zeros() as usize)
    }

    /// Slots whose tags agree in the bits of the upper half of a slot, a bit each. Free slots may be among them.
    #[inline]
    #[allow(unsafe_code)]
    fn near(&self, tag: u64, mask: u64) -> u32 {
        let (tag, mask) = ((tag >> 32) as u32, (mask >> 32) as u32);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE2 is a part of the architecture; the reads are of the bucket, which is aligned.
        unsafe {
            use std::arch::x86_64::*;
            let ([low, high], _) = self.halves();
            let (tag, mask) = (_mm_set1_epi32(tag as i32), _mm_set1_epi32(mask as i32));
            let low = _mm_cmpeq_epi32(_mm_and_si128(low, mask), tag);
            let high = _mm_cmpeq_epi32(_mm_and_si128(high, mask), tag);
            _mm_movemask_epi8(_mm_packs_epi16(_mm_packs_epi32(low, high), _mm_setzero_si128())) as u32
        }
        #[cfg(not(target_arch = "x86_64"))]
        (0..WIDTH).fold(0, |all, i| all | u32::from((self.0[i] >> 32) as u32 & mask == tag) << i)
    }

    /// Slots that are free, a bit each.
    #[inline]
    #[allow(unsafe_code)]
    fn all_free(&self) -> u32 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as in `near`.
        unsafe {
            use std::arch::x86_64::*;
            let (upper, lower) = self.halves();
            let zero = _mm_setzero_si128();
            let low = _mm_cmpeq_epi32(_mm_or_si128(upper[0], lower[0]), zero);
            let high = _mm_cmpeq_epi32(_mm_or_si128(upper[1], lower[1]), zero);
            _mm_movemask_epi8(_mm_packs_epi16(_mm_packs_epi32(low, high), zero)) as u32
        }
        #[cfg(not(target_arch = "x86_64"))]
        (0..WIDTH).fold(0, |all, i| all | u32::from(self.0[i] == 0) << i)
    }

    /// The upper and the lower halves of the slots.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    #[allow(unsafe_code)]
    fn halves(&self) -> ([std::arch::x86_64::__m128i; 2], [std::arch::x86_64::__m128i; 2]) {
        use std::arch::x86_64::*;
        // SAFETY: SSE2 is a part of the architecture; the bucket has four times sixteen bytes, and is aligned.
        unsafe {
            let slots: *const f32 = self.0.as_ptr().cast();
            let (a, b) = (_mm_load_ps(slots), _mm_load_ps(slots.add(4)));
            let (c, d) = (_mm_load_ps(slots.add(8)), _mm_load_ps(slots.add(12)));
            let upper_ab = _mm_castps_si128(_mm_shuffle_ps::<0b11_01_11_01>(a, b));
            let upper_cd = _mm_castps_si128(_mm_shuffle_ps::<0b11_01_11_01>(c, d));
            let lower_ab = _mm_castps_si128(_mm_shuffle_ps::<0b10_00_10_00>(a, b));
            let lower_cd = _mm_castps_si128(_mm_shuffle_ps::<0b10_00_10_00>(c, d));
            ([upper_ab, upper_cd], [lower_ab, lower_cd])
        }
    }
}

/// Asks for a cache line.
#[inline]
#[allow(unsafe_code)]
pub(super) fn prefetch<T>(line: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it reads nothing, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = line;
}
