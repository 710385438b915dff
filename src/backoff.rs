//! How long to wait before the next attempt, whatever is attempted.

use std::time::Duration;

/// Doublings after which no wait grows any more, whatever its bounds.
const MOST_DOUBLINGS: u32 = 16;

/// Doubling waits with jitter, between a first and a longest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    attempts: u32,
}

// === impl Backoff ===

impl Backoff {
    /// Waits from `first` (at least a millisecond) to `longest`.
    pub const fn new(first: Duration, longest: Duration) -> Self {
        const SHORTEST: Duration = Duration::from_millis(1);
        let first = if first.as_nanos() < SHORTEST.as_nanos() { SHORTEST } else { first };
        let longest = if longest.as_nanos() < first.as_nanos() { first } else { longest };
        Self { first, longest, attempts: 0 }
    }

    /// The next wait.
    pub fn wait(&mut self) -> Duration {
        let wait = self.after(self.attempts);
        self.attempts = self.attempts.saturating_add(1);
        wait
    }

    /// The wait after so many earlier ones, for a caller that counts them itself: between half and all of what the
    /// doubling came to, so that many that wait for the same do not come back in step.
    pub fn after(&self, attempts: u32) -> Duration {
        jittered(self.first.saturating_mul(1 << attempts.min(MOST_DOUBLINGS)).min(self.longest))
    }

    /// The waits since the last beginning.
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// Begins anew from the first wait.
    pub const fn reset(&mut self) {
        self.attempts = 0;
    }

    /// The longest wait.
    pub const fn longest(&self) -> Duration {
        self.longest
    }
}

/// Between half and all of `full`.
pub fn jittered(full: Duration) -> Duration {
    full.mul_f64(0.5 + fastrand::f64() / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_from_the_first_to_the_longest_and_keep_at_least_half() {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
        for full in [50, 100, 200, 400, 800, 1000, 1000] {
            let full = Duration::from_millis(full);
            let wait = backoff.wait();
            assert!(full / 2 <= wait && wait <= full, "{wait:?} of {full:?}");
        }
        assert_eq!(backoff.attempts(), 7);
        backoff.reset();
        assert!(backoff.wait() <= Duration::from_millis(50));
    }

    #[test]
    fn a_wait_is_never_zero_and_never_above_the_longest_however_often_it_is_tried() {
        assert!(Backoff::new(Duration::ZERO, Duration::ZERO).wait() > Duration::ZERO);
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(1 << 40));
        assert!(backoff.after(u32::MAX) <= Duration::from_secs(1 << MOST_DOUBLINGS));
    }
}
