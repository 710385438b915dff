//! The hybrid rule: how far down a full-attention prefix must be cut so that every other group still holds what
//! it needs.
//!
//! A hybrid model's engine re-uses the longest prefix that its full-attention groups hold *and* behind which every
//! sliding-window group holds its window: `ceil((window - 1) / block size)` blocks of that group ending where the
//! prefix ends, or a run of them that reaches block 0 (vLLM's rule; a recorded trace of a real engine proves it).
//! Group blocks are known by name only: a group's block has the engine hash of the prefix block that ends at the
//! same token. So a group's block that ends between two blocks of the rank's grid cannot be known to be held.

use crate::block::{Grid, GroupRule};

/// What is known of one group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Note {
    pub(super) rule: GroupRule,
    /// Tokens a block of this group; not 0.
    pub(super) block_size: u32,
}

// === impl Note ===

impl Note {
    /// Rules lengths out: `usable[n]` becomes false where this group forbids to re-use n blocks of `grid`.
    /// `held(i)`: whether the group holds the block that ends with block i of the chain.
    pub(super) fn rule_out(&self, grid: Grid, usable: &mut [bool], held: impl Fn(usize) -> bool) {
        let (size, own) = (u64::from(grid.size()), u64::from(self.block_size));
        let need = match self.rule {
            GroupRule::Window { tokens } => u64::from(tokens.saturating_sub(1)).div_ceil(own),
            GroupRule::Full | GroupRule::Unknown => u64::MAX,
        };
        // Of two neighbouring blocks of such a group at most one ends on the grid.
        let on_grid = own.is_multiple_of(size);
        let mut run = 0;
        for (n, usable) in (0u64..).zip(usable.iter_mut()).skip(1) {
            let tokens = n * size;
            if !tokens.is_multiple_of(own) {
                *usable = false;
                continue;
            }
            let blocks = tokens / own;
            run = if !held(n as usize - 1) {
                0
            } else if on_grid {
                run + 1
            } else {
                1
            };
            *usable &= run >= need.min(blocks);
        }
    }
}
