//! A fixed number of connections, and which of them is idle longest.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::counts::{ConnectionCounts, Ending};

/// The connections of a port. Clones share them.
#[derive(Clone, Debug)]
pub struct Slots {
    taken: Arc<Mutex<Taken>>,
    most: usize,
    counts: ConnectionCounts,
    port: &'static str,
}

/// One connection's place; it is free again on drop.
#[derive(Debug)]
pub struct Slot {
    number: u64,
    activity: Arc<Activity>,
    slots: Slots,
    peer: Option<SocketAddr>,
}

/// A request under way on a connection; over on drop.
#[derive(Debug)]
pub struct Busy(Arc<Activity>);

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    by_number: HashMap<u64, Arc<Activity>>,
}

/// What a connection is doing.
#[derive(Debug)]
struct Activity {
    now: Mutex<Doing>,
    evicted: Notify,
}

#[derive(Clone, Copy, Debug)]
struct Doing {
    requests: u32,
    /// Since when there is none.
    idle: Instant,
    evicted: bool,
}

// === impl Slots ===

impl Slots {
    /// `most` slots, all free.
    pub fn new(most: usize, counts: ConnectionCounts, port: &'static str) -> Self {
        Self { taken: Arc::default(), most, counts, port }
    }

    /// A slot, at the cost of the connection that has been idle longest where all are taken; `None` where all are
    /// busy.
    pub(super) fn take(&self, peer: Option<SocketAddr>) -> Option<Slot> {
        let mut taken = lock(&self.taken);
        if taken.by_number.len() >= self.most {
            let idle = taken.by_number.iter().filter_map(|(number, activity)| Some((activity.idle()?, *number)));
            let (_, number) = idle.min()?;
            // It is out at once, and its task follows: nobody waits for it.
            let activity = taken.by_number.remove(&number)?;
            activity.evict();
            self.counts.closed(self.port, Ending::Evicted);
        }
        let number = taken.next;
        taken.next += 1;
        let activity = Arc::new(Activity::new());
        taken.by_number.insert(number, Arc::clone(&activity));
        drop(taken);
        self.counts.opened(self.port);
        Some(Slot { number, activity, slots: self.clone(), peer })
    }
}

// === impl Slot ===

impl Slot {
    /// Who is at the other end, where that has an address.
    pub const fn peer(&self) -> Option<SocketAddr> {
        self.peer
    }

    /// A request has come.
    pub fn busy(&self) -> Busy {
        self.activity.doing().requests += 1;
        Busy(Arc::clone(&self.activity))
    }

    /// How long there has been no request; `None` while there is one.
    pub fn idle_for(&self) -> Option<Duration> {
        self.activity.idle().map(|since| since.elapsed())
    }

    /// Until this connection has to make room.
    pub async fn evicted(&self) {
        self.activity.evicted.notified().await;
    }

    /// This side closes the connection for this reason.
    pub fn closed(&self, ending: Ending) {
        self.slots.counts.closed(self.slots.port, ending);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        lock(&self.slots.taken).by_number.remove(&self.number);
        self.slots.counts.ended(self.slots.port);
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let mut doing = self.0.doing();
        doing.requests = doing.requests.saturating_sub(1);
        if doing.requests == 0 {
            doing.idle = Instant::now();
        }
    }
}

// === impl Activity ===

impl Activity {
    fn new() -> Self {
        Self { now: Mutex::new(Doing { requests: 0, idle: Instant::now(), evicted: false }), evicted: Notify::new() }
    }

    /// Since when it is idle. What has been evicted is idle no more.
    fn idle(&self) -> Option<Instant> {
        let doing = self.doing();
        (doing.requests == 0 && !doing.evicted).then_some(doing.idle)
    }

    fn evict(&self) {
        self.doing().evicted = true;
        self.evicted.notify_one();
    }

    fn doing(&self) -> MutexGuard<'_, Doing> {
        lock(&self.now)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(most: usize) -> Slots {
        Slots::new(most, ConnectionCounts::new(), "grpc")
    }

    #[tokio::test]
    async fn where_all_slots_are_taken_the_connection_that_is_idle_longest_goes() {
        let slots = slots(2);
        let (first, second) = (slots.take(None).unwrap(), slots.take(None).unwrap());
        let busy = first.busy();
        let third = slots.take(None).unwrap();
        second.evicted().await;
        assert!(first.idle_for().is_none() && third.idle_for().is_some());
        drop(busy);
        let _fourth = slots.take(None).unwrap();
        // The first has only just become idle; the third was so before.
        third.evicted().await;
    }

    #[test]
    fn where_every_connection_is_busy_there_is_no_room_until_one_ends() {
        let slots = slots(2);
        let (first, second) = (slots.take(None).unwrap(), slots.take(None).unwrap());
        let _requests = (first.busy(), second.busy());
        assert!(slots.take(None).is_none());
        drop(first);
        assert!(slots.take(None).is_some());
    }
}
