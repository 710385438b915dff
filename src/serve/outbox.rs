//! What a connection says, put together until its task has nothing to add.
//!
//! HTTP/2 writes each answer in two pieces, since its trailers come after its data, and every piece would be a system
//! call, a packet and a wake-up at the other end. So pieces are kept until the connection's task has been polled; then
//! all goes at once. Nothing waits for other requests that are under way: with 32 on one connection, whose caller then
//! had nothing to do while they were answered, and the other way round, that took a third of the requests a second.
//!
//! ```text
//! HTTP/2 --Writing--> pieces --Outbox::poll--> stream
//!        <--Writing-------------------------- stream
//! ```

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The end that speaks: its writes are kept.
#[derive(Debug)]
pub(super) struct Writing<S>(Arc<Mutex<Shared<S>>>);

/// The end that sends.
#[derive(Debug)]
pub(super) struct Outbox<S> {
    shared: Arc<Mutex<Shared<S>>>,
}

#[derive(Debug)]
struct Shared<S> {
    stream: S,
    pieces: BytesMut,
    /// The stream has taken bytes that it may be keeping: TLS takes them while what it made of others is unsent. It has to
    /// be flushed until it says that nothing is left, also where nothing more is said.
    must_flush: bool,
}

/// What is kept at most, in bytes.
const MOST: usize = 64 << 10;

/// Both ends of a stream.
pub(super) fn outbox<S>(stream: S) -> (Writing<S>, Outbox<S>) {
    let shared = Arc::new(Mutex::new(Shared { stream, pieces: BytesMut::new(), must_flush: false }));
    (Writing(Arc::clone(&shared)), Outbox { shared })
}

// === impl Outbox ===

impl<S: AsyncWrite + Unpin> Outbox<S> {
    /// Lets `talk` go on, and sends what it has said. Ready when the talk is over, or when nothing can be sent any more.
    pub(super) fn poll<F: Future>(&mut self, cx: &mut Context<'_>, talk: Pin<&mut F>) -> Poll<()> {
        if talk.poll(cx).is_ready() {
            return Poll::Ready(());
        }
        let mut shared = lock(&self.shared);
        match shared.send(cx) {
            Poll::Ready(Err(_)) => Poll::Ready(()),
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Pending,
        }
    }
}

// === impl Shared ===

impl<S: AsyncWrite + Unpin> Shared<S> {
    /// Writes what is kept, here and in the stream.
    fn send(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if !self.pieces.is_empty() {
            while !self.pieces.is_empty() {
                let written = ready!(Pin::new(&mut self.stream).poll_write(cx, &self.pieces))?;
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.must_flush = true;
                self.pieces.advance(written);
            }
            // An idle connection keeps nothing.
            self.pieces = BytesMut::new();
        }
        if self.must_flush {
            ready!(Pin::new(&mut self.stream).poll_flush(cx))?;
            self.must_flush = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Makes room for `more` bytes.
    fn room(&mut self, cx: &mut Context<'_>, more: usize) -> Poll<io::Result<()>> {
        if self.pieces.len().saturating_add(more) > MOST { self.send(cx) } else { Poll::Ready(Ok(())) }
    }
}

fn lock<S>(shared: &Mutex<Shared<S>>) -> MutexGuard<'_, Shared<S>> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Writing ===

impl<S: AsyncRead + Unpin> AsyncRead for Writing<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut lock(&self.0).stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Writing<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut shared = lock(&self.0);
        ready!(shared.room(cx, bytes.len()))?;
        if bytes.len() > MOST {
            shared.must_flush = true;
            return Pin::new(&mut shared.stream).poll_write(cx, bytes);
        }
        shared.pieces.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let all: usize = slices.iter().map(|slice| slice.len()).sum();
        let mut shared = lock(&self.0);
        ready!(shared.room(cx, all))?;
        if all > MOST {
            shared.must_flush = true;
            return Pin::new(&mut shared.stream).poll_write_vectored(cx, slices);
        }
        for slice in slices {
            shared.pieces.extend_from_slice(slice);
        }
        Poll::Ready(Ok(all))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Everything goes when the talk has been polled.
    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut shared = lock(&self.0);
        ready!(shared.send(cx))?;
        Pin::new(&mut shared.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::future::{pending, poll_fn};
    use std::pin::pin;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Counts writes.
    struct Counting(Vec<usize>, tokio::io::DuplexStream);

    impl AsyncWrite for Counting {
        fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let written = ready!(Pin::new(&mut self.1).poll_write(cx, bytes))?;
            self.0.push(written);
            Poll::Ready(Ok(written))
        }

        fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.1).poll_flush(cx)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
            Pin::new(&mut self.1).poll_shutdown(cx)
        }
    }

    #[tokio::test]
    async fn pieces_go_together_and_in_order_once_the_talk_waits() {
        let (near, mut far) = tokio::io::duplex(1 << 20);
        let (mut writing, mut outbox) = outbox(Counting(Vec::new(), near));
        let mut talk = pin!(async {
            for piece in ["head", "data", "trailers"] {
                writing.write_all(piece.as_bytes()).await.unwrap();
                writing.flush().await.unwrap();
            }
            pending::<()>().await;
        });
        assert!(poll_fn(|cx| Poll::Ready(outbox.poll(cx, talk.as_mut()))).await.is_pending());
        assert_eq!(lock(&outbox.shared).stream.0, [16]);
        let mut heard = [0; 16];
        far.read_exact(&mut heard).await.unwrap();
        assert_eq!(&heard, b"headdatatrailers");
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded_and_all_of_it_is_sent_before_the_end() {
        let (near, mut far) = tokio::io::duplex(100);
        let (mut writing, mut outbox) = outbox(Counting(Vec::new(), near));
        let said: Vec<u8> = (0..3 * MOST).map(|n| n as u8).collect();
        let (small, large) = said.split_at(MOST - 5);
        let talk = async {
            for piece in small.chunks(1000) {
                writing.write_all(piece).await.unwrap();
            }
            writing.write_all(large).await.unwrap();
            writing.write_all(b"end").await.unwrap();
            writing.shutdown().await.unwrap();
        };
        let mut talk = pin!(talk);
        let mut heard = Vec::new();
        let speaking = poll_fn(|cx| {
            let over = outbox.poll(cx, talk.as_mut());
            assert!(lock(&outbox.shared).pieces.len() <= MOST);
            over
        });
        let ((), read) = tokio::join!(speaking, far.read_to_end(&mut heard));
        assert_eq!(read.unwrap(), said.len() + 3);
        assert!(heard == [&said[..], b"end"].concat());
    }

    #[tokio::test(start_paused = true)]
    async fn what_the_stream_keeps_is_sent_without_another_word() {
        let (near, mut far) = tokio::io::duplex(8);
        let (mut writing, mut outbox) = outbox(tokio::io::BufWriter::new(near));
        let said: Vec<u8> = (0..2 * MOST).map(|n| n as u8).collect();
        let mut talk = pin!(async {
            for piece in said.chunks(100) {
                writing.write_all(piece).await.unwrap();
            }
            writing.write_all(&said).await.unwrap();
            pending::<()>().await;
        });
        let mut heard = vec![0; 2 * said.len()];
        tokio::select! {
            () = poll_fn(|cx| outbox.poll(cx, talk.as_mut())) => panic!("the talk goes on"),
            read = tokio::time::timeout(std::time::Duration::from_secs(1), far.read_exact(&mut heard)) => {
                read.unwrap().unwrap();
            }
        }
        assert!(heard == said.repeat(2));
    }

    #[tokio::test]
    async fn a_talk_whose_words_cannot_be_sent_is_over() {
        let (near, far) = tokio::io::duplex(100);
        drop(far);
        let (mut writing, mut outbox) = outbox(Counting(Vec::new(), near));
        let mut talk = pin!(async {
            writing.write_all(b"anybody?").await.unwrap();
            pending::<()>().await;
        });
        poll_fn(|cx| outbox.poll(cx, talk.as_mut())).await;
    }
}
