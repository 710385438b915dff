//! What the service grants to all callers together, and to each.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::refusal::Refusal;
use crate::net::Bounds;
use crate::proto::codec::{LIGHT, aside};

/// Bounds of the query service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Connections, and how long each may dawdle.
    pub connections: Bounds,
    /// Requests and streams that one connection may have under way.
    pub streams: u32,
    /// Requests and streams that all connections together may have under way; half of them streams.
    pub in_flight: usize,
    /// Bytes of requests that may be in memory.
    pub request_bytes: usize,
    /// How long a request's message may take to arrive once it has begun.
    pub request_time: Duration,
    /// Requests a second of all callers together; 0: as many as there are.
    pub requests_per_second: u64,
}

/// The limits at work. Clones share what is used of them.
#[derive(Clone, Debug)]
pub(super) struct Limiter {
    pub(super) limits: Limits,
    in_flight: Arc<Semaphore>,
    /// Streams take half of the places at most: they may stay, and who asks once must find one.
    streams: Arc<Semaphore>,
    pub(super) memory: Arc<Memory>,
    rate: Arc<Rate>,
    /// Large messages being decoded, and large prompts being answered. Two of them, because whoever waits for the
    /// second may still have the first.
    decoding: Arc<Semaphore>,
    answering: Arc<Semaphore>,
}

/// A place among what is under way. It is only ever dropped.
#[derive(Debug)]
pub(super) struct Place {
    _place: OwnedSemaphorePermit,
    _stream: Option<OwnedSemaphorePermit>,
}

/// Bytes of requests in memory.
#[derive(Debug)]
pub(super) struct Memory {
    used: AtomicUsize,
    most: usize,
}

/// What one request has of it; given back on drop.
#[derive(Debug)]
pub(super) struct Spent {
    memory: Arc<Memory>,
    bytes: AtomicUsize,
}

/// A bucket of requests that fills steadily and holds one second's worth.
#[derive(Debug)]
struct Rate {
    per_second: u64,
    bucket: Mutex<Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    requests: f64,
    at: Instant,
}

// === impl Limits ===

impl Default for Limits {
    /// 256 requests a connection, 4,096 in all, 256 MiB of them; 10 s for each to arrive; any number a second.
    fn default() -> Self {
        Self {
            connections: Bounds::default(),
            streams: 256,
            in_flight: 4096,
            request_bytes: 256 << 20,
            request_time: Duration::from_secs(10),
            requests_per_second: 0,
        }
    }
}

// === impl Limiter ===

impl Limiter {
    pub(super) fn new(limits: Limits) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            limits,
            in_flight: Arc::new(Semaphore::new(limits.in_flight.min(Semaphore::MAX_PERMITS))),
            streams: Arc::new(Semaphore::new(streams(limits.in_flight).min(Semaphore::MAX_PERMITS))),
            memory: Arc::new(Memory { used: AtomicUsize::new(0), most: limits.request_bytes }),
            rate: Arc::new(Rate::new(limits.requests_per_second)),
            decoding: Arc::new(Semaphore::new(cores)),
            answering: Arc::new(Semaphore::new(cores)),
        }
    }

    /// A place for one more request, or for one more stream of them.
    pub(super) fn enter(&self, is_stream: bool) -> Result<Place, Refusal> {
        let most = self.limits.in_flight;
        let stream = is_stream.then(|| Arc::clone(&self.streams).try_acquire_owned()).transpose();
        let _stream = stream.map_err(|_| Refusal::Streams { most: streams(most) })?;
        let place = Arc::clone(&self.in_flight).try_acquire_owned();
        Ok(Place { _place: place.map_err(|_| Refusal::InFlight { most })?, _stream })
    }

    /// Counts `requests` against the rate.
    pub(super) fn charge(&self, requests: usize) -> Result<(), Refusal> {
        self.rate.take(requests as f64)
    }

    /// Does work whose size is `bytes` of a request: at once where that is little; else aside, and in turn with the
    /// work of other large requests, so that however many there are, they leave the small ones their share.
    pub(super) async fn work<T>(&self, bytes: usize, work: impl FnOnce() -> T) -> T {
        if bytes <= LIGHT {
            return work();
        }
        // The semaphore is never closed; without a permit the work is done all the same.
        let _turn = self.answering.acquire().await;
        aside(work)
    }

    /// The turns in which large messages are decoded.
    pub(super) fn turns(&self) -> Arc<Semaphore> {
        Arc::clone(&self.decoding)
    }
}

/// How many places streams may take.
const fn streams(in_flight: usize) -> usize {
    in_flight.div_ceil(2)
}

// === impl Memory, Spent ===

impl Memory {
    /// An account for one request.
    pub(super) fn account(self: &Arc<Self>) -> Arc<Spent> {
        Arc::new(Spent { memory: Arc::clone(self), bytes: AtomicUsize::new(0) })
    }
}

impl Spent {
    /// `bytes` more.
    pub(super) fn spend(&self, bytes: usize) -> Result<(), Refusal> {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let used = self.memory.used.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes);
        if used > self.memory.most { Err(Refusal::Memory { most: self.memory.most }) } else { Ok(()) }
    }

    /// Gives back all but `keep` bytes.
    pub(super) fn keep(&self, keep: usize) {
        let had = self.bytes.load(Ordering::Relaxed);
        if had > keep {
            self.bytes.fetch_sub(had - keep, Ordering::Relaxed);
            self.memory.used.fetch_sub(had - keep, Ordering::Relaxed);
        }
    }
}

impl Drop for Spent {
    fn drop(&mut self) {
        self.keep(0);
    }
}

// === impl Rate ===

impl Rate {
    fn new(per_second: u64) -> Self {
        Self { per_second, bucket: Mutex::new(Bucket { requests: per_second as f64, at: Instant::now() }) }
    }

    fn take(&self, requests: f64) -> Result<(), Refusal> {
        if self.per_second == 0 {
            return Ok(());
        }
        let full = self.per_second as f64;
        let now = Instant::now();
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let since = now.saturating_duration_since(bucket.at).as_secs_f64();
        bucket.requests = (bucket.requests + since * full).min(full);
        bucket.at = now;
        // More than a second's worth at once is let through by a full bucket, and paid back afterwards.
        if bucket.requests < requests.min(full) {
            return Err(Refusal::Rate { most: self.per_second });
        }
        bucket.requests -= requests;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_is_worth_its_requests_and_no_more() {
        let limiter = Limiter::new(Limits { requests_per_second: 2, ..Limits::default() });
        assert_eq!((limiter.charge(1), limiter.charge(1)), (Ok(()), Ok(())));
        assert_eq!(limiter.charge(1), Err(Refusal::Rate { most: 2 }));
    }

    #[test]
    fn streams_leave_places_to_who_asks_once() {
        let limiter = Limiter::new(Limits { in_flight: 3, ..Limits::default() });
        let streams = [limiter.enter(true).unwrap(), limiter.enter(true).unwrap()];
        assert_eq!(limiter.enter(true).map(drop), Err(Refusal::Streams { most: 2 }));
        let _once = limiter.enter(false).unwrap();
        assert_eq!(limiter.enter(false).map(drop), Err(Refusal::InFlight { most: 3 }));
        drop(streams);
        assert_eq!(limiter.enter(true).map(drop), Ok(()));
    }

    #[test]
    fn memory_comes_back_with_the_requests_that_took_it() {
        let limiter = Limiter::new(Limits { request_bytes: 100, ..Limits::default() });
        let (one, two) = (limiter.memory.account(), limiter.memory.account());
        assert_eq!((one.spend(60), two.spend(60)), (Ok(()), Err(Refusal::Memory { most: 100 })));
        drop(two);
        assert_eq!(one.spend(40), Ok(()));
        one.keep(10);
        assert_eq!(limiter.memory.used.load(Ordering::Relaxed), 10);
        drop(one);
        assert_eq!(limiter.memory.used.load(Ordering::Relaxed), 0);
    }
}
