//! `MatchStream`: one answer for each request, in order, for as long as the caller asks and the server serves.
//!
//! Requests are taken one at a time, so flow control reaches back to whoever sends them. When the server drains, what
//! has come is answered: the stream goes on until no request has come for a moment, and then ends with OK. Where they
//! go on coming it ends with `UNAVAILABLE` in time for what has been answered to arrive, since OK would say that
//! nothing was left out. What a client still sends then is taken and dropped until it has read that: a connection that
//! is closed with something unread in it takes with it what the client has not read yet.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::unfold;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::{Status, Streaming};

use super::answer::StreamAnswered;
use super::query::{Queries, failure};
use super::refusal::Refusal;
use crate::admin::Rpc;
use crate::proto::v1;

/// What streams are granted when the server drains.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Grace {
    /// Without a request, until a stream ends.
    quiet: Duration,
    /// Until a stream ends however many requests still come.
    most: Duration,
}

/// A stream that is being answered.
struct Answering {
    queries: Queries,
    requests: Streaming<v1::MatchStreamRequest>,
    deadline: Option<Instant>,
    drain: Drain,
}

/// Where the server is.
enum Drain {
    /// It serves.
    No(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// It drains; when this stream ends at the latest.
    Since(Instant),
}

/// What comes next.
enum Next {
    Request(Box<v1::MatchStreamRequest>),
    /// The stream ends well.
    End,
    /// It breaks off.
    Broken(Status),
    Drained,
    Refused(Refusal),
}

/// How long a caller may take to hear that its stream is over.
const LINGER: Duration = Duration::from_secs(1);

// === impl Grace ===

impl Grace {
    /// What streams have of a server's whole grace.
    pub(super) fn of(grace: Duration) -> Self {
        Self { quiet: (grace / 4).min(Duration::from_millis(200)), most: grace * 3 / 4 }
    }
}

// === impl Answering ===

/// The answers to a stream of requests.
pub(super) fn answers(
    queries: Queries,
    requests: Streaming<v1::MatchStreamRequest>,
    deadline: Option<Instant>,
) -> impl Stream<Item = Result<StreamAnswered, Status>> + Send {
    let drain = Drain::No(Box::pin(queries.drain.clone().cancelled_owned()));
    let answering = Answering { queries, requests, deadline, drain };
    unfold(Some(answering), async |answering| {
        let mut answering = answering?;
        match answering.next().await {
            Next::Request(request) => {
                let answer = answering.answer(*request).await;
                Some((Ok(answer), Some(answering)))
            }
            Next::End => None,
            Next::Drained => {
                answering.linger();
                None
            }
            Next::Broken(status) => Some((Err(answering.queries.broken(status)), None)),
            Next::Refused(refusal) => {
                let status = answering.queries.ended(refusal);
                answering.linger();
                Some((Err(status), None))
            }
        }
    })
}

impl Answering {
    async fn next(&mut self) -> Next {
        loop {
            let now = Instant::now();
            let (quiet, last) = match &self.drain {
                Drain::Since(last) => (Some(now + self.queries.grace.quiet), Some(*last)),
                Drain::No(_) => (None, None),
            };
            if last.is_some_and(|last| now >= last) {
                return Next::Refused(Refusal::Draining);
            }
            tokio::select! {
                biased;
                request = self.requests.message() => return match request {
                    Ok(Some(request)) => Next::Request(Box::new(request)),
                    Ok(None) => Next::End,
                    Err(status) => Next::Broken(status),
                },
                () = begins(&mut self.drain) => {}
                // Who asked a moment ago has not ended, even if nothing of it is here right now.
                () = until(last) => return Next::Refused(Refusal::Draining),
                () = until(quiet) => return Next::Drained,
                () = until(self.deadline) => return Next::Refused(Refusal::Deadline),
            }
            // The server has begun to drain.
            self.drain = Drain::Since(Instant::now() + self.queries.grace.most);
        }
    }

    /// Takes what the caller still sends, until it has heard that the stream is over.
    fn linger(self) {
        let Self { mut requests, .. } = self;
        tokio::spawn(timeout(LINGER, async move { while let Ok(Some(_)) = requests.message().await {} }));
    }

    async fn answer(&mut self, request: v1::MatchStreamRequest) -> StreamAnswered {
        let answer = self.queries.charged(Rpc::MatchStream, request.request.as_ref(), None).await;
        StreamAnswered { id: request.id, result: answer.map_err(|error| failure(&error)) }
    }
}

/// Until the server begins to drain; for ever where it does already.
async fn begins(drain: &mut Drain) {
    match drain {
        Drain::No(begins) => begins.await,
        Drain::Since(_) => std::future::pending().await,
    }
}

async fn until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}
