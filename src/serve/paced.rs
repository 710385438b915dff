//! A request's body, which has to arrive, fit, and wait its turn.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, sleep};
use tokio_util::sync::PollSemaphore;
use tonic::Status;

use super::limits::{Limiter, Spent};
use super::refusal::Refusal;
use crate::proto::codec::LIGHT;

/// The length of what stands before each message: a flag, and the message's length.
const HEAD: usize = 5;

/// Passes on what comes, and ends with a refusal where a message is too large, comes too slowly, or finds the memory
/// taken. The last piece of a large message waits until it is its turn to be decoded.
pub(super) struct Paced {
    body: Incoming,
    at: At,
    /// Bytes of the message that has begun, head included; 0 between messages.
    begun: usize,
    /// Whether the body may hold many messages, as long as the caller likes. Otherwise it is due from the beginning.
    stream: bool,
    most: usize,
    within: Duration,
    spent: Arc<Spent>,
    /// Runs while a message is due.
    due: Option<Pin<Box<Sleep>>>,
    turns: PollSemaphore,
    /// The last piece of a large message, which waits for its turn.
    held: Option<Bytes>,
    turn: Option<OwnedSemaphorePermit>,
    /// Why the body ends once what came before has been passed on.
    refused: Option<Refusal>,
}

/// Where in the stream of messages the body is.
#[derive(Clone, Copy, Debug)]
enum At {
    /// In a head: what has come of it.
    Head { length: u32, have: usize },
    /// In a message: what is missing.
    Message { missing: usize },
}

// === impl Paced ===

impl Paced {
    pub(super) fn new(body: Incoming, stream: bool, most: usize, limiter: &Limiter, spent: Arc<Spent>) -> Self {
        let within = limiter.limits.request_time;
        let turns: Arc<Semaphore> = limiter.turns();
        Self {
            body,
            at: At::Head { length: 0, have: 0 },
            begun: 0,
            stream,
            most,
            within,
            spent,
            due: None,
            turns: PollSemaphore::new(turns),
            held: None,
            turn: None,
            refused: None,
        }
    }

    /// Follows the messages through a piece. Says whether a large one ends in it; or which one is refused, and how much
    /// of the piece comes before that.
    fn follow(&mut self, piece: &[u8]) -> Result<bool, (Refusal, usize)> {
        let mut large = false;
        let mut rest = piece;
        // Where the message that is being followed begins in this piece.
        let mut start = 0;
        while !rest.is_empty() {
            match self.at {
                At::Head { length, have } => {
                    let Some((byte, after)) = rest.split_first() else { break };
                    rest = after;
                    self.begun += 1;
                    // The first byte is the flag.
                    let length = if have == 0 { 0 } else { length << 8 | u32::from(*byte) };
                    self.at = At::Head { length, have: have + 1 };
                    if have + 1 == HEAD {
                        let missing = length as usize;
                        if missing > self.most {
                            return Err((Refusal::MessageTooLarge { most: self.most }, start));
                        }
                        self.at = At::Message { missing };
                    }
                }
                At::Message { missing } => {
                    let here = missing.min(rest.len());
                    rest = rest.split_at_checked(here).map_or(&[][..], |(_, after)| after);
                    self.begun += here;
                    self.at = At::Message { missing: missing - here };
                }
            }
            if matches!(self.at, At::Message { missing: 0 }) {
                large |= self.begun > LIGHT + HEAD;
                self.begun = 0;
                self.at = At::Head { length: 0, have: 0 };
                start = piece.len() - rest.len();
                // The only message of a body is not all: the body has to end, too.
                if self.stream {
                    self.due = None;
                }
            }
        }
        Ok(large)
    }

    fn poll_turn(&mut self, cx: &mut Context<'_>, piece: Bytes) -> Poll<Bytes> {
        match self.turns.poll_acquire(cx) {
            Poll::Pending => {
                self.held = Some(piece);
                Poll::Pending
            }
            Poll::Ready(turn) => {
                self.turn = turn;
                Poll::Ready(piece)
            }
        }
    }
}

impl Body for Paced {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        // Whoever asks for more has decoded what it had.
        this.turn = None;
        if let Some(piece) = mem::take(&mut this.held) {
            let piece = ready!(this.poll_turn(cx, piece));
            return Poll::Ready(Some(Ok(Frame::data(piece))));
        }
        if let Some(refusal) = this.refused {
            return Poll::Ready(Some(Err(refusal.into())));
        }
        let frame = match Pin::new(&mut this.body).poll_frame(cx) {
            Poll::Ready(frame) => frame,
            Poll::Pending => {
                if !this.stream || this.begun > 0 {
                    let within = this.within;
                    ready!(this.due.get_or_insert_with(|| Box::pin(sleep(within))).as_mut().poll(cx));
                    return Poll::Ready(Some(Err(Refusal::TooSlow { within }.into())));
                }
                return Poll::Pending;
            }
        };
        let frame = match frame {
            None => return Poll::Ready(None),
            Some(Err(error)) => return Poll::Ready(Some(Err(Status::cancelled(error.to_string())))),
            Some(Ok(frame)) => frame,
        };
        let piece = match frame.into_data() {
            Ok(piece) => piece,
            Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
        };
        // What came before of a stream has been answered, but for the message that has begun.
        if this.stream {
            this.spent.keep(this.begun);
        }
        let spent = this.spent.spend(piece.len()).map_err(|refusal| (refusal, 0));
        match spent.and_then(|()| this.follow(&piece)) {
            Err((refusal, 0)) => Poll::Ready(Some(Err(refusal.into()))),
            // One bad message costs that message and what comes after it, not what came before.
            Err((refusal, before)) => {
                this.refused = Some(refusal);
                Poll::Ready(Some(Ok(Frame::data(piece.slice(..before.min(piece.len()))))))
            }
            Ok(false) => Poll::Ready(Some(Ok(Frame::data(piece)))),
            Ok(true) => {
                let piece = ready!(this.poll_turn(cx, piece));
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.held.is_none() && self.refused.is_none() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::default()
    }
}
