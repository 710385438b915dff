//! Panics of kvtap's own threads and tasks. A task that dies takes nobody with it, so nobody would notice.

use std::panic;
use std::sync::{Mutex, Once, PoisonError};

static SEEN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// From now on panics outside of the tests' own code are remembered, whichever thread they are on.
pub fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |panicked| {
            if panicked.location().is_none_or(|at| !at.file().starts_with("tests/")) {
                SEEN.lock().unwrap_or_else(PoisonError::into_inner).push(panicked.to_string());
            }
            before(panicked);
        }));
    });
}

/// Those that there were.
pub fn seen() -> Vec<String> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner).clone()
}
