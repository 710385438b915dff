//! The chain that a match walks down: by content hashes or by prefix hashes.

use crate::hash::{ContentHash, PrefixHash};

use super::forest::Forest;
use super::run::Run;

/// A chain by the hashes of one kind.
pub(super) trait Links: Copy {
    fn length(self) -> usize;

    /// The run that begins behind a block with that of this depth.
    fn next(self, forest: &Forest, parent: u32, block: u32, depth: usize) -> Option<u32>;

    /// Asks ahead for what tells it.
    fn touch(self, forest: &Forest, parent: u32, block: u32, depth: usize);

    /// Asks ahead for the run itself.
    fn meet(self, forest: &Forest, parent: u32, block: u32, depth: usize);

    /// How many blocks of a run are the same from this depth on.
    fn same(self, run: &Run, depth: usize) -> usize;
}

impl Links for &[ContentHash] {
    #[inline]
    fn length(self) -> usize {
        self.len()
    }

    #[inline]
    fn next(self, forest: &Forest, parent: u32, block: u32, depth: usize) -> Option<u32> {
        forest.kid(parent, block, self[depth])
    }

    #[inline]
    fn touch(self, forest: &Forest, parent: u32, block: u32, depth: usize) {
        forest.touch_kid(parent, block, self[depth]);
    }

    #[inline]
    fn meet(self, forest: &Forest, parent: u32, block: u32, depth: usize) {
        forest.meet_kid(parent, block, self[depth]);
    }

    #[inline]
    fn same(self, run: &Run, depth: usize) -> usize {
        same(run.contents.as_slice(), &self[depth..])
    }
}

impl Links for &[PrefixHash] {
    #[inline]
    fn length(self) -> usize {
        self.len()
    }

    #[inline]
    fn next(self, forest: &Forest, parent: u32, block: u32, depth: usize) -> Option<u32> {
        forest.head(parent, block, self[depth])
    }

    #[inline]
    fn touch(self, forest: &Forest, _: u32, _: u32, depth: usize) {
        forest.touch_head(self[depth]);
    }

    #[inline]
    fn meet(self, forest: &Forest, _: u32, _: u32, depth: usize) {
        forest.meet_head(self[depth]);
    }

    #[inline]
    fn same(self, run: &Run, depth: usize) -> usize {
        run.same_prefixes(&self[depth..])
    }
}

/// How many leading contents are the same.
#[inline]
fn same(a: &[ContentHash], b: &[ContentHash]) -> usize {
    /// Compared at once, by the C library's widest vectors: the compiler's own loop over 16 blocks took twice as long.
    const LANE: usize = 64;
    let both = a.len().min(b.len());
    let (a, b) = (words(&a[..both]), words(&b[..both]));
    let equal = a.chunks(LANE).zip(b.chunks(LANE)).take_while(|(a, b)| a == b).count();
    let at = (equal * LANE).min(both);
    at + a[at..].iter().zip(&b[at..]).take_while(|(a, b)| a == b).count()
}

/// Content hashes as plain numbers: slices of those are compared by the C library, slices of ours one by one.
#[inline]
#[allow(unsafe_code)]
fn words(hashes: &[ContentHash]) -> &[u64] {
    // SAFETY: `ContentHash` is a transparent `u64`: the same size, alignment and values.
    unsafe { std::slice::from_raw_parts(hashes.as_ptr().cast(), hashes.len()) }
}
