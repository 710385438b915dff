//! How a follower comes by what it has not heard: from the stream, from its owner, or from what the owner has put away.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_nats::StatusCode;
use bytes::Bytes;
use futures_util::StreamExt;
use tokio::time::{Instant, timeout};

use super::Follower;
use crate::backoff::{Backoff, jittered};
use crate::feed::status::State;
use crate::relay::message::{Batch, Unpacker};
use crate::relay::subject::Topic;
use crate::relay::{kept, stream};
use crate::replica::{Fault, Message};

/// The longest silence between two pieces of a snapshot.
const PIECE: Duration = Duration::from_secs(5);

/// Pieces of a snapshot: half a billion blocks.
const PIECES: usize = 1 << 16;

/// The pause between two looks for what an owner that is away has put away.
const LOOK_AGAIN: Duration = Duration::from_secs(5);

/// The pauses between two attempts to get a snapshot.
pub(super) const RETRY: Backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(5));

// === impl Follower ===

impl Follower {
    /// Looks in the stream for what is missing; else a snapshot must come.
    pub(super) async fn fill(&mut self, have: Option<Batch>) {
        if self.mirror.at().is_none() {
            return;
        }
        // All who were cut off together come back together.
        let joins = Arc::clone(&self.means.joins);
        let Ok(_turn) = joins.acquire().await else { return };
        self.read_stream(have).await;
    }

    async fn read_stream(&mut self, have: Option<Batch>) {
        {
            let mut status = self.entry.status();
            status.gaps += 1;
            status.state = State::Replaying;
            status.since = SystemTime::now();
            "deltas are missing, and looked for in the stream".clone_into(&mut status.why);
        }
        let name = &self.means.options.stream.name;
        let (subject, from) = (Topic::Events.of(&self.address), stream::after(self.applied));
        let found = stream::read(&self.context, name, subject, from).await.unwrap_or_default();
        let found = found.iter().filter_map(|found| Batch::decode(&found.bytes).ok());
        let batches: BTreeMap<u64, Batch> =
            found.chain(have).filter(|batch| batch.life == self.life).map(|batch| (batch.number, batch)).collect();
        for batch in batches.values() {
            if !self.apply(batch) {
                break;
            }
        }
        let wanted = batches.values().last().and_then(|batch| batch.deltas.last()?.at).map_or(0, |at| at.number);
        let said = self.said.as_ref().map_or(0, |(.., number)| *number);
        let whole = self.mirror.at().is_some_and(|at| at.number >= wanted.max(said));
        *self.entry.status().replays.entry(if whole { "complete" } else { "short" }).or_default() += 1;
        if !whole {
            self.void();
        }
    }

    /// Gets a snapshot of the owner.
    pub(super) async fn join(&mut self) {
        let joins = Arc::clone(&self.means.joins);
        let Ok(_turn) = joins.acquire().await else { return };
        self.show();
        let outcome = match self.fetch().await {
            Ok(()) => {
                self.retry.reset();
                "restored"
            }
            Err(why) => {
                tracing::debug!(feed = %self.entry.identity, why, "No snapshot.");
                self.mirror.forget();
                self.next_try = Instant::now() + self.retry.wait();
                "failed"
            }
        };
        *self.entry.status().snapshots.entry(outcome).or_default() += 1;
    }

    /// Begins with what the owner has put away, and goes on with what the stream has after it.
    pub(super) async fn restore(&mut self) {
        let joins = Arc::clone(&self.means.joins);
        let Ok(_turn) = joins.acquire().await else { return };
        let outcome = match self.put_back().await {
            Ok(()) => {
                self.from_kept = true;
                self.read_stream(None).await;
                "restored"
            }
            Err(why) => {
                tracing::debug!(feed = %self.entry.identity, why, "Nothing was put away.");
                self.mirror.forget();
                "failed"
            }
        };
        self.next_try = Instant::now() + jittered(LOOK_AGAIN);
        *self.entry.status().snapshots.entry(outcome).or_default() += 1;
    }

    async fn put_back(&mut self) -> Result<(), &'static str> {
        let found = kept::read(&self.context, &self.means.options.stream, &self.address).await;
        let (pieces, written) = found.ok().flatten().ok_or("there is none")?;
        self.batch = None;
        self.applied = written;
        let mut unpacker = Unpacker::default();
        for piece in pieces {
            let (life, piece) = unpacker.unpack(&piece, &self.address).map_err(|unusable| {
                self.drop(unusable.dropped());
                unusable.dropped().word()
            })?;
            if life != self.life {
                return Err("it is of another registration");
            }
            let ended = matches!(piece, Message::End(..));
            self.mirror.apply(life, piece).map_err(|_| "a piece that does not fit")?;
            if ended {
                break;
            }
            tokio::task::yield_now().await;
        }
        if self.mirror.at().is_some() { Ok(()) } else { Err("it is not whole") }
    }

    async fn fetch(&mut self) -> Result<(), &'static str> {
        let client = self.means.client.clone();
        let inbox = client.new_inbox();
        let mut answers = client.subscribe(inbox.clone()).await.map_err(|_| "no subscription")?;
        let subject = Topic::Snapshot.of(&self.address);
        client.publish_with_reply(subject, inbox, Bytes::new()).await.map_err(|_| "no request")?;
        self.batch = None;
        self.applied = SystemTime::now();
        let mut unpacker = Unpacker::default();
        for _ in 0..PIECES {
            let answer = match timeout(PIECE, answers.next()).await {
                Ok(Some(answer)) => answer,
                Ok(None) => return Err("the subscription ended"),
                Err(_) => return Err("no answer in time"),
            };
            if answer.status == Some(StatusCode::NO_RESPONDERS) {
                return Err("nobody answers");
            }
            let (life, piece) = unpacker.unpack(&answer.payload, &self.address).map_err(|unusable| {
                self.drop(unusable.dropped());
                unusable.dropped().word()
            })?;
            // Of two owners each answers, and the older one may be the first.
            if life < self.life {
                continue;
            }
            if life != self.life {
                return Err("an answer of another registration");
            }
            let ended = matches!(piece, Message::End(..));
            match self.mirror.apply(life, piece) {
                Ok(_) if ended && self.mirror.at().is_some() => {
                    self.from_kept = false;
                    return Ok(());
                }
                Ok(_) => {}
                Err(Fault::Gone) => {
                    self.over = true;
                    return Err("withdrawn");
                }
                Err(_) => return Err("a piece that does not fit"),
            }
            tokio::task::yield_now().await;
        }
        Err("more pieces than any snapshot has")
    }
}
