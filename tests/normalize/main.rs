//! The normalizer through its own door: engine batches in, matches of the index out.

// Helpers of tests are tests too, which clippy cannot see.
#![allow(clippy::expect_used, clippy::panic)]

mod groups;
mod namespaces;
mod orphans;
mod random;
mod support;
mod tiers;
mod unchained;
