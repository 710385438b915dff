//! The index against its reference model, on random histories that contain every operation. A failing history is
//! shrunk and printed.

// Helpers of tests are tests too, which clippy cannot see. Each test of the index uses some of its support.
#![allow(clippy::expect_used, clippy::panic, dead_code)]

mod index_support;

use std::cell::RefCell;

use index_support::{Profile, Tally, World, run_together};
use kvtap::index::Limits;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

const PLAIN: Profile = Profile { ranks: 5, notes: 0, odd_names: 0, carries: 0, steps: (1, 60) };
const HYBRID: Profile = Profile { ranks: 3, notes: 6, odd_names: 0, carries: 0, steps: (1, 60) };
const ODD: Profile = Profile { ranks: 3, notes: 1, odd_names: 8, carries: 0, steps: (1, 60) };
const WIDE_OPEN: Limits = Limits { blocks_per_rank: usize::MAX, blocks_in_all: usize::MAX };
const TIGHT: Limits = Limits { blocks_per_rank: 9, blocks_in_all: 20 };

/// Runs `cases` histories; each compares after every `every` steps. What they came to, case by case.
fn check(profile: Profile, limits: Limits, cases: u32, every: u64, seed: Option<u8>) -> Vec<Tally> {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 3_000, ..Config::default() };
    let mut runner = match seed {
        None => TestRunner::new(config),
        Some(seed) => TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32])),
    };
    let tallies = RefCell::new(Vec::new());
    let outcome = runner.run(&profile.history(), |history| {
        let tally = World::run(limits, profile.ranks, every, &history).map_err(TestCaseError::fail)?;
        tallies.borrow_mut().push(tally);
        Ok(())
    });
    match outcome {
        Ok(()) => tallies.into_inner(),
        Err(TestError::Fail(why, history)) => panic!("{why}\nafter the minimal history\n{history:#?}"),
        Err(TestError::Abort(why)) => panic!("{why}"),
    }
}

#[test]
fn plain_ranks_match_as_the_model_says() {
    check(PLAIN, WIDE_OPEN, 150, 3, None);
}

#[test]
fn hybrid_ranks_match_as_the_model_says() {
    check(HYBRID, WIDE_OPEN, 200, 3, None);
}

#[test]
fn moved_and_unchained_names_match_as_the_model_says() {
    check(ODD, WIDE_OPEN, 200, 3, None);
}

#[test]
fn bounded_ranks_evict_as_the_model_says() {
    check(PLAIN, TIGHT, 100, 3, None);
    check(HYBRID, TIGHT, 100, 3, None);
    check(ODD, TIGHT, 100, 3, None);
}

#[test]
fn an_index_that_may_hold_nothing_holds_nothing_and_says_so() {
    check(ODD, Limits { blocks_per_rank: 0, blocks_in_all: 0 }, 20, 2, None);
}

#[test]
fn long_seeded_histories_match_as_the_model_says() {
    for (seed, profile) in [(4, PLAIN), (5, HYBRID), (6, ODD)] {
        let long = Profile { steps: (600, 600), ..profile };
        // Seeded, so what these histories contain is known, and can be asserted.
        let open = check(long, WIDE_OPEN, 1, 20, Some(seed));
        let tight = check(long, Limits { blocks_per_rank: 40, blocks_in_all: 90 }, 1, 20, Some(seed + 10));
        for tally in open.iter().chain(&tight) {
            assert!(tally.matches > 200 && tally.copies > 40, "{tally:?}");
            assert!(tally.removed.iter().all(|removals| *removals > 20), "{tally:?}");
        }
        assert!(tight.iter().all(|tally| tally.evicted > 50 && tally.partial > 20), "{tight:?}");
        match seed {
            5 => assert!(open[0].hybrid > 50 && open[0].cut > 0, "{open:?}"),
            6 => assert!(open[0].moved > 50, "{open:?}"),
            _ => {}
        }
    }
}

#[test]
fn a_rank_that_was_exported_and_restored_matches_and_evicts_as_if_nothing_had_been() {
    let mut carried = 0;
    for profile in [PLAIN, HYBRID, ODD] {
        let profile = Profile { carries: 20, ..profile };
        for (limits, cases) in [(WIDE_OPEN, 150), (TIGHT, 100)] {
            carried += check(profile, limits, cases, 3, None).iter().map(|tally| tally.carried).sum::<usize>();
        }
    }
    assert!(carried > 10_000, "{carried}");
}

#[test]
fn ranks_on_threads_of_their_own_each_match_as_their_model_says() {
    let config = Config { cases: 6, failure_persistence: None, max_shrink_iters: 500, ..Config::default() };
    let alone = |profile| Profile { ranks: 1, steps: (60, 120), ..profile }.history();
    let histories = [PLAIN, PLAIN, HYBRID, HYBRID, ODD, ODD, PLAIN, HYBRID].map(alone);
    let outcome =
        TestRunner::new(config).run(&histories, |histories| run_together(&histories).map_err(TestCaseError::fail));
    if let Err(error) = outcome {
        panic!("{error}");
    }
}
