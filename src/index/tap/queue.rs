//! What lies between the writers of an index and one listener: a bounded queue that cuts instead of waiting.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::index::Index;
use crate::worker::RankId;

use super::record::RankTap;
use super::{Delta, Heard, whole};

/// How far a listener may fall behind.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TapBounds {
    /// Events that may wait.
    pub events: usize,
    /// Bytes that may wait.
    pub bytes: usize,
}

/// The listener has fallen further behind than its bounds allow: what waited was dropped, and it hears no more. A new
/// one begins with new snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("this listener has fallen behind and was cut")]
pub struct Cut;

/// What a listener wants to hear of the ranks it follows: every change, or only what ends, which costs a transaction
/// that only stores nothing.
#[derive(Debug)]
pub struct Interest {
    everything: AtomicBool,
}

/// Hears what changes in an index. Dropping it ends that.
pub struct Listener {
    index: Arc<Index>,
    queue: Arc<Queue>,
    /// What an exchange leaves in place of what waited.
    empty: VecDeque<Heard>,
    /// Bytes that the last exchange brought.
    taken: usize,
}

/// Deltas that are given back are used again if all of them together took no more than so many bytes.
const SPARE_BYTES: usize = 1 << 20;

/// An emptied queue keeps room for so many events.
const KEPT: usize = 1 << 13;

/// The queue of one listener.
#[derive(Debug)]
pub(in crate::index) struct Queue {
    bounds: TapBounds,
    interest: Arc<Interest>,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    heard: VecDeque<Heard>,
    bytes: usize,
    /// What the listener has given back.
    spent: VecDeque<Heard>,
    is_cut: bool,
    /// Nobody listens any more.
    is_over: bool,
    waker: Option<Waker>,
}

// === impl TapBounds ===

impl Default for TapBounds {
    /// 65,536 events and 64 MiB.
    fn default() -> Self {
        Self { events: 1 << 16, bytes: 64 << 20 }
    }
}

// === impl Interest ===

impl Interest {
    /// In what ends: deltas that say that blocks are gone, or all of them, or the rank, or anything besides its blocks
    /// and its stamp. They need not tell what is stored in the same transaction.
    pub fn in_removals() -> Arc<Self> {
        Arc::new(Self { everything: false.into() })
    }

    /// In everything, from now on.
    pub fn widen(&self) {
        self.everything.store(true, Ordering::SeqCst);
    }

    fn is_wide(&self) -> bool {
        self.everything.load(Ordering::SeqCst)
    }
}

// === impl Index ===

impl Index {
    /// Begins to listen. The listener hears of ranks that are registered from here on, and of changes of those it
    /// [follows](Listener::follow).
    pub fn listen(self: &Arc<Self>, bounds: TapBounds) -> Listener {
        self.listen_for(bounds, Arc::new(Interest { everything: true.into() }))
    }

    /// [`Index::listen`] for what `interest` says at the time: a transaction that begins later than a change of it does
    /// as it says.
    pub fn listen_for(self: &Arc<Self>, bounds: TapBounds, interest: Arc<Interest>) -> Listener {
        let queue = Arc::new(Queue { bounds, interest, waiting: Mutex::default() });
        let mut listeners = self.listeners.lock().unwrap_or_else(PoisonError::into_inner);
        listeners.retain(|other| other.is_open());
        listeners.push(queue.clone());
        Listener { index: self.clone(), queue, empty: VecDeque::new(), taken: 0 }
    }
}

// === impl Listener ===

impl Listener {
    /// Begins to follow a rank: what it holds, at one exact point, as a delta that begins with
    /// [`Change::Reset`](super::Change::Reset). Every later delta of it is heard. `None` once the rank was removed.
    ///
    /// A rank that is followed already goes on being followed; what waits may then be in the snapshot already, which
    /// its number tells. The rank's writer is kept out while its hashes are copied, eight bytes a block.
    pub fn follow(&self, rank: RankId) -> Option<Delta> {
        self.index.with_rank(rank, |cell, rank| {
            RankTap::join(cell, rank, &self.queue);
            whole::snapshot(cell, rank)
        })
    }

    /// [`Listener::follow`] without the snapshot: the number of the rank's last delta before those that are heard.
    pub fn attend(&self, rank: RankId) -> Option<u64> {
        self.index.with_rank(rank, |cell, rank| {
            RankTap::join(cell, rank, &self.queue);
            rank.told
        })
    }

    /// Stops following a rank. What waits is still heard.
    pub fn unfollow(&self, rank: RankId) {
        self.index.with_rank(rank, |_, rank| RankTap::leave(rank, &self.queue));
    }

    /// What comes next; waits for it.
    ///
    /// # Errors
    /// [`Cut`].
    pub async fn next(&mut self) -> Result<Heard, Cut> {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// What comes next, if it is there.
    ///
    /// # Errors
    /// [`Cut`].
    pub fn try_next(&mut self) -> Result<Option<Heard>, Cut> {
        self.queue.lock().take()
    }

    /// What comes next, or this task is woken when it is there.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Result<Heard, Cut>> {
        let mut waiting = self.queue.lock();
        match waiting.take() {
            Ok(Some(heard)) => Poll::Ready(Ok(heard)),
            Err(cut) => Poll::Ready(Err(cut)),
            Ok(None) => {
                waiting.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Listener {
    /// Waits until something is there, or this listener is cut.
    pub async fn ready(&mut self) {
        poll_fn(|context| {
            let mut waiting = self.queue.lock();
            if waiting.is_cut || !waiting.heard.is_empty() {
                return Poll::Ready(());
            }
            waiting.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Drops what the last exchange brought, if that is too much to be kept until the next one.
    pub fn lighten(&self, heard: &mut VecDeque<Heard>) {
        if self.taken > SPARE_BYTES {
            heard.clear();
        }
    }

    /// Everything that is there, in place of what `heard` has: that was read, and is given back for what comes next to be
    /// written in its memory.
    ///
    /// # Errors
    /// [`Cut`]; `heard` is empty then.
    pub fn exchange(&mut self, heard: &mut VecDeque<Heard>) -> Result<(), Cut> {
        self.lighten(heard);
        let mut waiting = self.queue.lock();
        let unused = std::mem::replace(&mut waiting.spent, std::mem::take(heard));
        if waiting.is_cut {
            return Err(Cut);
        }
        *heard = std::mem::replace(&mut waiting.heard, std::mem::take(&mut self.empty));
        self.taken = std::mem::take(&mut waiting.bytes);
        drop(waiting);
        // Memory is given back while nobody waits.
        self.empty = unused;
        self.empty.clear();
        self.empty.shrink_to(KEPT);
        Ok(())
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut waiting = self.queue.lock();
        *waiting = Waiting { is_over: true, ..Waiting::default() };
    }
}

impl fmt::Debug for Listener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Listener").field("bounds", &self.queue.bounds).finish_non_exhaustive()
    }
}

// === impl Queue ===

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(in crate::index) fn is_open(&self) -> bool {
        let waiting = self.lock();
        !(waiting.is_over || waiting.is_cut)
    }

    /// Whether the listener wants every delta.
    pub(in crate::index) fn wants_all(&self) -> bool {
        self.interest.is_wide()
    }

    /// Tells the listener something; `false` where it hears nothing any more.
    pub(in crate::index) fn tell(&self, heard: Heard) -> bool {
        self.put(heard, &mut None)
    }

    /// The same for a delta; one that was given back comes into `spare`, if there is one.
    pub(in crate::index) fn tell_delta(&self, delta: &Arc<Delta>, spare: &mut Option<Arc<Delta>>) -> bool {
        self.put(Heard::Delta(Arc::clone(delta)), spare)
    }

    fn put(&self, heard: Heard, spare: &mut Option<Arc<Delta>>) -> bool {
        let bytes = heard.bytes();
        let mut waiting = self.lock();
        if waiting.is_over || waiting.is_cut {
            return false;
        }
        if waiting.heard.len() >= self.bounds.events || waiting.bytes.saturating_add(bytes) > self.bounds.bytes {
            waiting.heard = VecDeque::new();
            waiting.bytes = 0;
            waiting.is_cut = true;
        } else {
            waiting.heard.push_back(heard);
            waiting.bytes += bytes;
        }
        if spare.is_none()
            && let Some(Heard::Delta(spent)) = waiting.spent.pop_front()
        {
            *spare = Some(spent);
        }
        let (waker, is_cut) = (waiting.waker.take(), waiting.is_cut);
        drop(waiting);
        if let Some(waker) = waker {
            waker.wake();
        }
        !is_cut
    }
}

// === impl Waiting ===

impl Waiting {
    fn take(&mut self) -> Result<Option<Heard>, Cut> {
        if self.is_cut {
            return Err(Cut);
        }
        let Some(heard) = self.heard.pop_front() else { return Ok(None) };
        self.bytes -= heard.bytes();
        Ok(Some(heard))
    }
}

// === impl Heard ===

impl Heard {
    fn bytes(&self) -> usize {
        match self {
            Self::Registered { .. } => size_of::<Self>(),
            Self::Delta(delta) => Delta::bytes(delta),
        }
    }
}
