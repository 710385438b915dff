//! The lock round a forest: readers never write where another reader writes.
//!
//! A lock whose readers share a counter costs each of them a cache line that travels between cores. Here a reader
//! counts itself in a line of its own (by thread), and a writer looks at all of them. Sections are short: a writer
//! does what it can before it locks, and its engine's names are no part of what is locked.
//!
//! A reader that comes while a writer is in steps back until it has left. Writers do most of their work between two
//! sections, so there is room for readers, and a writer that waits keeps new readers out.

#![allow(unsafe_code)]

use std::cell::{Cell, UnsafeCell};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Lines for readers. Threads beyond share them, which costs time and nothing else.
const LINES: usize = 16;

#[repr(align(128))]
#[derive(Default)]
struct Line(AtomicU32);

/// A value that many read and one at a time writes.
pub(super) struct Gate<T> {
    readers: [Line; LINES],
    /// Odd while a writer is in, or waits for readers to leave.
    writers: Line,
    value: UnsafeCell<T>,
}

/// Leave to read.
pub(super) struct Reading<'g, T> {
    gate: &'g Gate<T>,
    line: &'g AtomicU32,
}

/// Leave to write.
pub(super) struct Writing<'g, T> {
    gate: &'g Gate<T>,
}

// SAFETY: a shared gate hands out `&T` to several threads at once (`T: Sync`) and `&mut T` to one at a time, which
// may be another thread than the one that made the value (`T: Send`).
unsafe impl<T: Send + Sync> Sync for Gate<T> {}

// === impl Gate ===

impl<T> Gate<T> {
    pub(super) fn new(value: T) -> Self {
        Self { readers: Default::default(), writers: Line::default(), value: UnsafeCell::new(value) }
    }

    pub(super) fn read(&self) -> Reading<'_, T> {
        let line = &self.readers[line()].0;
        loop {
            // Sequentially consistent, like the writer's two steps: of "I am counted" and "a writer is in" at least
            // one side sees the other's.
            line.fetch_add(1, Ordering::SeqCst);
            if self.writers.0.load(Ordering::SeqCst).is_multiple_of(2) {
                break;
            }
            // The one that is in may be waiting for us to leave.
            line.fetch_sub(1, Ordering::Release);
            wait_until(|| self.writers.0.load(Ordering::Relaxed).is_multiple_of(2));
        }
        Reading { gate: self, line }
    }

    pub(super) fn write(&self) -> Writing<'_, T> {
        let free = || self.writers.0.load(Ordering::Relaxed) & !1;
        let enter = |n: u32| self.writers.0.compare_exchange(n, n | 1, Ordering::SeqCst, Ordering::Relaxed);
        wait_until(|| enter(free()).is_ok());
        for line in &self.readers {
            wait_until(|| line.0.load(Ordering::SeqCst) == 0);
        }
        Writing { gate: self }
    }

    /// The same for a guard that lies beside what keeps the gate: counting the gate's owners instead is two writes to
    /// a line that all writers share, in every transaction.
    ///
    /// # Safety
    /// The gate must outlive the guard.
    pub(super) unsafe fn write_unbound(&self) -> Writing<'static, T> {
        // SAFETY: the caller's word.
        let gate: &'static Self = unsafe { &*std::ptr::from_ref(self) };
        gate.write()
    }
}

/// Waits for something that takes less than a microsecond, unless a thread that has to do it was put to sleep.
fn wait_until(done: impl Fn() -> bool) {
    let mut tries = 0u32;
    while !done() {
        tries += 1;
        if tries.is_multiple_of(256) {
            std::thread::yield_now();
        } else {
            std::hint::spin_loop();
        }
    }
}

/// This thread's line.
fn line() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static LINE: Cell<usize> = const { Cell::new(usize::MAX) });
    // A thread that is being torn down has no line of its own any more; any will do.
    let mine = LINE.try_with(|line| {
        if line.get() == usize::MAX {
            line.set(NEXT.fetch_add(1, Ordering::Relaxed) % LINES);
        }
        line.get()
    });
    mine.unwrap_or(0)
}

impl<T> fmt::Debug for Gate<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate").finish_non_exhaustive()
    }
}

// === impl Reading ===

impl<T> Deref for Reading<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: while this reader is counted no writer is in: after we were counted there was none (see `read`), and
        // one that came later waits until we are no longer counted.
        unsafe { &*self.gate.value.get() }
    }
}

impl<T> Drop for Reading<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.line.fetch_sub(1, Ordering::Release);
    }
}

// === impl Writing ===

impl<T> Deref for Writing<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: as in `deref_mut`.
        unsafe { &*self.gate.value.get() }
    }
}

impl<T> DerefMut for Writing<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: `writers` went from even to odd by our hand, so no other writer is in, and every reader's line was
        // 0 after that; readers that come now wait until it is even again.
        unsafe { &mut *self.gate.value.get() }
    }
}

impl<T> Drop for Writing<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.gate.writers.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn many_readers_and_writers_never_see_half_a_change() {
        const WRITES: u64 = 20_000;
        let gate = Arc::new(Gate::new((0u64, 0u64)));
        std::thread::scope(|threads| {
            for _ in 0..3 {
                threads.spawn(|| {
                    for _ in 0..WRITES {
                        let mut pair = gate.write();
                        pair.0 += 1;
                        std::hint::black_box(&mut pair.0);
                        pair.1 += 1;
                    }
                });
            }
            for _ in 0..3 {
                threads.spawn(|| {
                    let mut last = 0;
                    while last < 3 * WRITES {
                        let pair = gate.read();
                        assert_eq!(pair.0, pair.1);
                        assert!(pair.0 >= last, "time goes forward");
                        last = pair.0;
                    }
                });
            }
        });
        assert_eq!(*gate.read(), (3 * WRITES, 3 * WRITES));
    }

    #[test]
    fn readers_are_in_together() {
        let gate = Arc::new(Gate::new(1));
        let first = gate.read();
        let second = std::thread::scope(|threads| threads.spawn(|| *gate.read()).join().unwrap());
        assert_eq!(*first, second);
    }
}
