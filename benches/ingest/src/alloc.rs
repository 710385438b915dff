//! The system's allocator, which counts allocations while it is asked to.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

pub struct Counting;

static ON: AtomicBool = AtomicBool::new(false);
static EVERYWHERE: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static HERE: Cell<u64> = const { Cell::new(0) };
}

/// How many allocations there were, growing ones among them.
#[derive(Clone, Copy)]
pub struct Allocations {
    /// On this thread.
    pub here: u64,
    /// On all threads.
    pub everywhere: u64,
}

/// The allocations while `work` runs.
pub fn count(work: impl FnOnce()) -> Allocations {
    HERE.set(0);
    EVERYWHERE.store(0, Relaxed);
    ON.store(true, Relaxed);
    work();
    ON.store(false, Relaxed);
    Allocations { here: HERE.get(), everywhere: EVERYWHERE.load(Relaxed) }
}

fn note() {
    if ON.load(Relaxed) {
        HERE.set(HERE.get() + 1);
        EVERYWHERE.fetch_add(1, Relaxed);
    }
}

// SAFETY: every call goes on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note();
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        note();
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note();
        unsafe { System.realloc(place, layout, size) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        unsafe { System.dealloc(place, layout) }
    }
}
