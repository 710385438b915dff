//! Whether this process can answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A latch that the gRPC server sets once it answers and clears when it begins to drain. Clones share it.
///
/// It says "can answer", never "has seen an event": an idle pod that waited for its first event before it was ready
/// would never be sent the request that causes one.
#[derive(Clone, Debug, Default)]
pub struct Readiness(Arc<AtomicBool>);

// === impl Readiness ===

impl Readiness {
    /// Whether requests are answered now.
    pub fn is_ready(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Says so.
    pub fn set(&self, ready: bool) {
        self.0.store(ready, Ordering::Release);
    }
}
