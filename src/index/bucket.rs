//! Sixteen slots of a name table in one cache line, looked at together.

/// Slots of a bucket.
pub(super) const WIDTH: usize = 16;

/// The slots; 0 is a free one.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Bucket(pub(super) [u32; WIDTH]);

// === impl Bucket ===

// All slots at once, without a branch: where in a bucket something is, no processor can foresee. (A loop that leaves
// off at the first one cost a third of a look-up.)
impl Bucket {
    /// Slots that agree with another in these bits, a bit each. Where they agree in all that is 0, free ones do, too.
    #[inline]
    #[allow(unsafe_code)]
    pub(super) fn like(&self, slot: u32, bits: u32) -> u32 {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: SSE2 is a part of the architecture; a bucket is four times sixteen bytes, and is aligned.
        unsafe {
            use std::arch::x86_64::*;
            let (wanted, bits) = (_mm_set1_epi32(slot as i32), _mm_set1_epi32(bits as i32));
            let slots: *const __m128i = self.0.as_ptr().cast();
            let like = |i| _mm_cmpeq_epi32(_mm_and_si128(_mm_load_si128(slots.add(i)), bits), wanted);
            let (low, high) = (_mm_packs_epi32(like(0), like(1)), _mm_packs_epi32(like(2), like(3)));
            _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32
        }
        #[cfg(not(target_arch = "x86_64"))]
        (0..WIDTH).fold(0, |all, i| all | u32::from(self.0[i] & bits == slot) << i)
    }

    /// Where a slot is.
    #[inline]
    pub(super) fn find(&self, slot: u32) -> Option<usize> {
        first(self.like(slot, !0))
    }

    /// A slot that is free.
    #[inline]
    pub(super) fn free(&self) -> Option<usize> {
        first(self.like(0, !0))
    }
}

#[inline]
fn first(bits: u32) -> Option<usize> {
    (bits != 0).then(|| bits.trailing_zeros() as usize % WIDTH)
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

/// What an engine sent is asked for so many items ahead: it may have been decoded a while ago.
pub(super) const ITEMS_AHEAD: usize = 32;

/// Asks for the first items of an event.
#[inline]
pub(super) fn touch_ahead<T>(items: &[T]) {
    for at in (0..ITEMS_AHEAD.min(items.len())).step_by((64 / size_of::<T>()).max(1)) {
        prefetch(&items[at]);
    }
}

/// Asks for the item that comes so many later.
#[inline]
pub(super) fn touch_later<T>(items: &[T], at: usize) {
    if let Some(item) = items.get(at + ITEMS_AHEAD) {
        prefetch(item);
    }
}
