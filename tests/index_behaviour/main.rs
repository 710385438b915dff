//! What the index does, behaviour by behaviour: each test's name is the sentence it proves.

// Helpers of tests are tests too, which clippy cannot see.
#![allow(clippy::expect_used, clippy::panic)]

mod carrying;
mod concurrent;
mod fleet;
mod groups;
mod matching;
mod orphans;
mod removing;
mod storing;
