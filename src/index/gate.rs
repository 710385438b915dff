//! The lock round a forest: readers never write where another reader writes.
//!
//! A lock whose readers share a counter costs each of them a cache line that travels between cores. Here a reader
//! counts itself in a line of its own (by thread), and a writer looks at all of them.
//!
//! A writer comes in two steps. It *plans*: no other writer may come, readers are not disturbed, and it reads whatever
//! its change needs. Then it *enters*: it waits for the readers to leave, and changes the value. A reader that comes
//! meanwhile steps back until it has left, so what a writer does inside is as little as can be.
//!
//! Proven by threads that press on it, not by loom: that takes sequentially consistent steps for weaker ones, and would
//! find what cannot be.

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

#[repr(align(128))]
#[derive(Default)]
struct Writers {
    /// 1 while a writer plans or is in.
    planner: AtomicU32,
    /// Odd while a writer is in, or waits for readers to leave.
    entered: AtomicU32,
}

/// A value that many read and one at a time writes.
pub(super) struct Gate<T> {
    readers: [Line; LINES],
    writers: Writers,
    value: UnsafeCell<T>,
}

/// Leave to read.
pub(super) struct Reading<'g, T> {
    gate: &'g Gate<T>,
    line: &'g AtomicU32,
}

/// Leave to read, while nobody else may write.
pub(super) struct Planning<'g, T> {
    gate: &'g Gate<T>,
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
        Self { readers: Default::default(), writers: Writers::default(), value: UnsafeCell::new(value) }
    }

    pub(super) fn read(&self) -> Reading<'_, T> {
        let line = &self.readers[line()].0;
        loop {
            // Sequentially consistent, like the writer's two steps: of "I am counted" and "a writer is in" at least
            // one side sees the other's.
            line.fetch_add(1, Ordering::SeqCst);
            if self.writers.entered.load(Ordering::SeqCst).is_multiple_of(2) {
                break;
            }
            // The one that is in may be waiting for us to leave.
            line.fetch_sub(1, Ordering::Release);
            wait_until(|| self.writers.entered.load(Ordering::Relaxed).is_multiple_of(2));
        }
        Reading { gate: self, line }
    }

    pub(super) fn write(&self) -> Writing<'_, T> {
        self.plan().enter()
    }

    pub(super) fn plan(&self) -> Planning<'_, T> {
        let planner = &self.writers.planner;
        wait_until(|| {
            planner.load(Ordering::Relaxed) == 0
                && planner.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
        });
        Planning { gate: self }
    }

    /// The same for a guard that lies beside what keeps the gate: counting the gate's owners instead is two writes to
    /// a line that all writers share, in every transaction.
    ///
    /// # Safety
    /// The gate must outlive the guard, and the one that it becomes.
    pub(super) unsafe fn plan_unbound(&self) -> Planning<'static, T> {
        // SAFETY: the caller's word.
        let gate: &'static Self = unsafe { &*std::ptr::from_ref(self) };
        gate.plan()
    }
}

/// Waits for something that takes less than a microsecond, unless a thread that has to do it was put to sleep.
pub(super) fn wait_until(mut done: impl FnMut() -> bool) {
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

// === impl Planning ===

impl<'g, T> Planning<'g, T> {
    pub(super) fn enter(self) -> Writing<'g, T> {
        let gate = self.gate;
        // The planner's right goes over.
        std::mem::forget(self);
        gate.writers.entered.fetch_add(1, Ordering::SeqCst);
        for line in &gate.readers {
            wait_until(|| line.0.load(Ordering::SeqCst) == 0);
        }
        Writing { gate }
    }
}

impl<T> Deref for Planning<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: only the planner may become a writer, and that takes this guard away.
        unsafe { &*self.gate.value.get() }
    }
}

impl<T> Drop for Planning<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.gate.writers.planner.store(0, Ordering::Release);
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
        // SAFETY: we were the only planner and still are, so no other writer is in; `entered` went from even to odd by
        // our hand, and every reader's line was 0 after that; readers that come now wait until it is even again.
        unsafe { &mut *self.gate.value.get() }
    }
}

impl<T> Drop for Writing<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // Nobody else changes it.
        let entered = &self.gate.writers.entered;
        entered.store(entered.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
        self.gate.writers.planner.store(0, Ordering::Release);
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
    fn who_plans_lets_readers_in_and_no_other_writer() {
        let gate = Gate::new(1);
        let planning = gate.plan();
        assert_eq!((*gate.read(), *planning), (1, 1));
        std::thread::scope(|threads| {
            let other = threads.spawn(|| {
                let mut value = gate.write();
                *value *= 10;
            });
            let mut value = planning.enter();
            assert_eq!(*value, 1, "the other one waits, whether it came yet or not");
            *value += 1;
            drop(value);
            other.join().unwrap();
        });
        assert_eq!(*gate.read(), 20);
    }

    #[test]
    fn readers_are_in_together() {
        let gate = Arc::new(Gate::new(1));
        let first = gate.read();
        let second = std::thread::scope(|threads| threads.spawn(|| *gate.read()).join().unwrap());
        assert_eq!(*first, second);
    }
}
