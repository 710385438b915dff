//! Subscriptions that can be gone on with: a stream that breaks leaves its own here for a while.
//!
//! A number says whose it is: each subscription counts from a beginning of its own. Whoever asks for what follows a number
//! gets that subscription, also where the stream that had it does not know yet that its connection is dead.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::subscription::Subscription;
use crate::proto::smg::KvEventBatch;
use crate::serve::watch::Seat;

/// Every subscription that has not ended. Clones share it.
#[derive(Clone, Debug, Default)]
pub(super) struct Sessions(Arc<Mutex<Vec<Arc<Session>>>>);

/// One subscription, over any number of streams, one at a time.
#[derive(Debug)]
struct Session {
    worker: String,
    /// Its numbers are those after this one.
    base: u64,
    state: Mutex<State>,
    /// The subscription is there again.
    returned: Notify,
}

#[derive(Debug)]
struct State {
    /// `None` while a stream waits for its next batch, and after the end.
    subscription: Option<Subscription>,
    /// Cancelled when another stream goes on with it.
    taken_over: CancellationToken,
    /// How many streams have left it.
    left: u64,
    is_left: bool,
}

/// A stream's hold of its subscription.
#[derive(Debug)]
pub(super) struct Lease {
    sessions: Sessions,
    session: Arc<Session>,
    taken_over: CancellationToken,
}

/// A subscription that is out of its session; back on drop.
struct Out<'a> {
    session: &'a Session,
    subscription: Option<Subscription>,
}

/// How long a subscription waits to be gone on with.
const WAITS: Duration = Duration::from_secs(60);
/// How long the stream that has a subscription may take to give it up.
const HANDOVER: Duration = Duration::from_secs(1);
/// Each subscription has so many numbers, in bits: at a million batches a second, for twelve days.
const NUMBERS: u32 = 40;

// === impl Sessions ===

impl Sessions {
    /// Begins a subscription to `worker`; `make` makes it, given the number before its first. Of those that were left and
    /// wait, no more than `most` are kept.
    pub(super) fn begin(&self, worker: &str, most: usize, make: impl FnOnce(u64) -> Subscription) -> Lease {
        let mut all = self.all();
        let base = loop {
            let base = fastrand::u64(1..1 << (u64::BITS - 1 - NUMBERS)) << NUMBERS;
            if all.iter().all(|session| session.base != base) {
                break base;
            }
        };
        let left = all.iter().filter(|session| session.state().is_left).count();
        if left > most
            && let Some(oldest) = all.iter().position(|session| session.state().is_left)
        {
            all.remove(oldest);
        }
        let taken_over = CancellationToken::new();
        let state = State { subscription: Some(make(base)), taken_over: taken_over.clone(), left: 0, is_left: false };
        let state = Mutex::new(state);
        let session = Arc::new(Session { worker: worker.to_owned(), base, state, returned: Notify::new() });
        all.push(Arc::clone(&session));
        drop(all);
        Lease { sessions: self.clone(), session, taken_over }
    }

    /// Goes on with what follows the batch `after`. `None`: nobody knows that number of that worker, or what follows it is
    /// kept no more.
    pub(super) async fn go_on(&self, worker: &str, after: u64, seat: Seat) -> Option<Lease> {
        let base = after >> NUMBERS << NUMBERS;
        let found = self.all().iter().find(|session| session.base == base && session.worker == worker).cloned();
        let session = found?;
        let taken_over = CancellationToken::new();
        session.state().taken_over_by(&taken_over);
        let lease = Lease { sessions: self.clone(), session: Arc::clone(&session), taken_over };
        let returned = timeout(HANDOVER, async {
            loop {
                let returned = session.returned.notified();
                if let Some(out) = Out::of(&session) {
                    return out;
                }
                returned.await;
            }
        });
        let goes_on = match returned.await {
            Ok(mut out) => out.subscription.as_mut().is_some_and(|subscription| subscription.go_on(after, seat)),
            Err(_) => false,
        };
        if goes_on {
            return Some(lease);
        }
        // Nobody can go on with it any more.
        session.state().subscription = None;
        self.end(&session);
        None
    }

    fn all(&self) -> MutexGuard<'_, Vec<Arc<Session>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, session: &Arc<Session>) {
        self.all().retain(|other| !Arc::ptr_eq(other, session));
    }
}

// === impl Session, State ===

impl Session {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Another stream goes on: the one before it hears of that.
    fn taken_over_by(&mut self, taken_over: &CancellationToken) {
        self.is_left = false;
        std::mem::replace(&mut self.taken_over, taken_over.clone()).cancel();
    }
}

// === impl Lease ===

impl Lease {
    /// The next batch; waits for it. After an error there is none.
    pub(super) async fn next(&mut self) -> Result<KvEventBatch, Status> {
        let elsewhere = || Status::aborted("another stream goes on with this subscription");
        if self.taken_over.is_cancelled() {
            return Err(elsewhere());
        }
        let Some(mut out) = Out::of(&self.session) else { return Err(elsewhere()) };
        let Some(subscription) = &mut out.subscription else { return Err(elsewhere()) };
        let next = tokio::select! {
            biased;
            () = self.taken_over.cancelled() => return Err(elsewhere()),
            next = subscription.next() => next,
        };
        if next.is_err() {
            // It begins anew, if at all.
            out.subscription = None;
            self.sessions.end(&self.session);
        }
        next
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.taken_over.is_cancelled() {
            return;
        }
        let mut state = self.session.state();
        // It has ended.
        let Some(subscription) = &mut state.subscription else { return };
        subscription.rest();
        state.is_left = true;
        state.left += 1;
        let left = state.left;
        drop(state);
        let (sessions, session) = (self.sessions.clone(), Arc::clone(&self.session));
        // Without a runtime the server is over, and all of this with it.
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            sleep(WAITS).await;
            let state = session.state();
            let is_over = state.is_left && state.left == left;
            drop(state);
            if is_over {
                sessions.end(&session);
            }
        });
    }
}

// === impl Out ===

impl<'a> Out<'a> {
    /// Takes the subscription, if it is there.
    fn of(session: &'a Session) -> Option<Self> {
        let subscription = session.state().subscription.take()?;
        Some(Self { session, subscription: Some(subscription) })
    }
}

impl Drop for Out<'_> {
    fn drop(&mut self) {
        self.session.state().subscription = self.subscription.take();
        self.session.returned.notify_waiters();
    }
}
