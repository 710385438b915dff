//! How long to wait before the next attempt.

use std::time::Duration;

/// Doubling waits with jitter, between a first and a longest.
#[derive(Clone, Debug)]
pub struct Backoff {
    first: Duration,
    longest: Duration,
    next: Duration,
}

// === impl Backoff ===

impl Backoff {
    /// Waits from `first` (at least a millisecond) to `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        let first = first.max(Duration::from_millis(1));
        Self { first, longest: longest.max(first), next: first }
    }

    /// The next wait: between half and all of what the doubling came to, so that many feeds of one engine that
    /// went away do not come back in step.
    pub fn wait(&mut self) -> Duration {
        let full = self.next;
        self.next = full.saturating_mul(2).min(self.longest);
        full.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    /// Begins anew from the first wait.
    pub fn reset(&mut self) {
        self.next = self.first;
    }

    /// The longest wait.
    pub fn longest(&self) -> Duration {
        self.longest
    }
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
        backoff.reset();
        assert!(backoff.wait() <= Duration::from_millis(50));
    }

    #[test]
    fn a_wait_is_never_zero() {
        assert!(Backoff::new(Duration::ZERO, Duration::ZERO).wait() > Duration::ZERO);
    }
}
