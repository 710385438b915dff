//! A stream that notices what its peer does not do, and that does not throw away what it has said to it.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// A stream whose writes fail once the peer has taken nothing for too long.
#[derive(Debug)]
pub struct Watched<S> {
    stream: S,
    sight: Arc<Sight>,
    stall: Duration,
    /// Runs while a write waits.
    waiting: Option<Pin<Box<Sleep>>>,
    /// Runs once this side has said its last, until the other has.
    lingering: Option<Pin<Box<Sleep>>>,
}

/// How long a peer that still sends may take to see that this side has ended. A socket that is closed with something
/// unread resets the connection, and with it what the peer has not read yet: its last answers.
const LINGER: Duration = Duration::from_secs(1);
/// Pieces of what is thrown away meanwhile that are read without a pause.
const PIECES: usize = 64;

/// What can be seen of a stream from outside.
#[derive(Debug, Default)]
pub struct Sight {
    received: AtomicU64,
    stalled: AtomicBool,
}

// === impl Sight ===

impl Sight {
    /// Bytes that have come so far.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// Whether a write has failed because the peer took nothing.
    pub fn has_stalled(&self) -> bool {
        self.stalled.load(Ordering::Relaxed)
    }
}

// === impl Watched ===

impl<S> Watched<S> {
    /// Watches `stream`: what is to be written may wait for `stall`.
    pub fn new(stream: S, stall: Duration) -> (Self, Arc<Sight>) {
        let sight = Arc::new(Sight::default());
        (Self { stream, sight: Arc::clone(&sight), stall, waiting: None, lingering: None }, sight)
    }

    /// Turns a write that has waited for too long into an error.
    fn watch<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.waiting = None;
            return written;
        }
        let stall = self.stall;
        ready!(self.waiting.get_or_insert_with(|| Box::pin(sleep(stall))).as_mut().poll(cx));
        self.sight.stalled.store(true, Ordering::Relaxed);
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        let got = buf.filled().len().saturating_sub(before);
        self.sight.received.fetch_add(got as u64, Ordering::Relaxed);
        read
    }
}

impl<S: AsyncRead + Unpin> Watched<S> {
    /// Reads on after the end of this side, until the other has ended or time is up.
    fn linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let over = self.lingering.get_or_insert_with(|| Box::pin(sleep(LINGER)));
        if over.as_mut().poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let mut thrown = [0; 4096];
        for _ in 0..PIECES {
            let mut piece = ReadBuf::new(&mut thrown);
            match ready!(Pin::new(&mut self.stream).poll_read(cx, &mut piece)) {
                Ok(()) if !piece.filled().is_empty() => {}
                // It has ended, one way or the other.
                Ok(()) | Err(_) => return Poll::Ready(()),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.watch(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.lingering.is_none() {
            let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
            ready!(self.watch(cx, shut))?;
        }
        self.linger(cx).map(Ok)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_fails_once_its_peer_has_taken_nothing_for_too_long() {
        let (near, _far) = tokio::io::duplex(4);
        let (mut watched, sight) = Watched::new(near, Duration::from_secs(20));
        watched.write_all(b"four").await.unwrap();
        assert!(!sight.has_stalled());
        assert_eq!(watched.write_all(b"more").await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(sight.has_stalled());
    }
}
