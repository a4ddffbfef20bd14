//! How long a client may take: a stream that fails when its client is too slow.
//!
//! Owns the clocks of one connection. Knows nothing of HTTP beyond three states, which the
//! connection's service tells it: nothing asked, a head arriving, a request being answered.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::config::Timeouts;

/// What a client is doing, and since when.
enum Doing {
    /// It has asked for nothing since.
    Nothing(Instant),
    /// It has begun to ask.
    Asking(Instant),
    /// It is answered: whatever it sends is watched by who reads it, which is to look again once
    /// the answer is over.
    Waiting(Option<Waker>),
}

/// The clock of one connection.
pub struct Pace {
    timeouts: Timeouts,
    doing: Mutex<Doing>,
}

impl Pace {
    /// A connection that was just opened.
    pub fn new(timeouts: Timeouts) -> Arc<Self> {
        Arc::new(Self {
            timeouts,
            doing: Mutex::new(Doing::Nothing(Instant::now())),
        })
    }

    /// A request arrived; the answer is over when this is dropped.
    pub fn answer(self: Arc<Self>) -> Answering {
        *self.doing() = Doing::Waiting(None);
        Answering(self)
    }

    fn doing(&self) -> MutexGuard<'_, Doing> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes came.
    fn came(&self) {
        let mut doing = self.doing();
        if let Doing::Nothing(_) = *doing {
            *doing = Doing::Asking(Instant::now());
        }
    }

    /// When more must have come; `None` while that does not matter, and then the reader is woken
    /// once it does.
    fn deadline(&self, reader: &Waker) -> Option<Instant> {
        match &mut *self.doing() {
            Doing::Nothing(since) => Some(after(*since, self.timeouts.idle)),
            Doing::Asking(since) => Some(after(*since, self.timeouts.head)),
            Doing::Waiting(waiting) => {
                *waiting = Some(reader.clone());
                None
            }
        }
    }
}

/// When a time is over; one that no clock reaches is a century.
fn after(since: Instant, time: Duration) -> Instant {
    since
        .checked_add(time)
        .unwrap_or_else(|| since + Duration::from_secs(100 * 365 * 24 * 3600))
}

/// A request that is being answered.
pub struct Answering(Arc<Pace>);

impl Drop for Answering {
    fn drop(&mut self) {
        let mut doing = self.0.doing();
        let before = std::mem::replace(&mut *doing, Doing::Nothing(Instant::now()));
        drop(doing);
        if let Doing::Waiting(Some(reader)) = before {
            reader.wake();
        }
    }
}

/// A stream whose reads and writes fail when the client takes too long.
pub struct Paced<S> {
    stream: S,
    pace: Arc<Pace>,
    /// Rings when a read has waited too long.
    reading: Pin<Box<Sleep>>,
    /// Rings when a write has waited too long; there only while one waits.
    writing: Option<Pin<Box<Sleep>>>,
}

impl<S> Paced<S> {
    /// Watches a stream.
    pub fn new(stream: S, pace: Arc<Pace>) -> Self {
        Self {
            stream,
            pace,
            reading: Box::pin(sleep_until(Instant::now())),
            writing: None,
        }
    }

    /// Lets a write that would wait do so for a time only.
    fn watched<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.writing = None;
            return written;
        }
        let limit = self.pace.timeouts.stall;
        let timer = self
            .writing
            .get_or_insert_with(|| Box::pin(sleep_until(after(Instant::now(), limit))));
        ready!(timer.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        if let Poll::Ready(read) = Pin::new(&mut this.stream).poll_read(context, buffer) {
            if buffer.filled().len() > before {
                this.pace.came();
            }
            return Poll::Ready(read);
        }
        let Some(deadline) = this.pace.deadline(context.waker()) else {
            return Poll::Pending;
        };
        if this.reading.deadline() != deadline {
            this.reading.as_mut().reset(deadline);
        }
        ready!(this.reading.as_mut().poll(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watched(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, bytes);
        self.watched(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.watched(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watched(context, shut)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
    use tokio::time::timeout;

    use super::*;

    const TIMEOUTS: Timeouts = Timeouts {
        head: Duration::from_secs(10),
        body: Duration::from_secs(1),
        idle: Duration::from_secs(100),
        stall: Duration::from_secs(30),
    };

    /// How long the future took, which failed because its time was over.
    async fn too_long<T>(future: impl Future<Output = io::Result<T>>) -> u64 {
        let start = Instant::now();
        let error = future.await.err().map(|error| error.kind());
        assert_eq!(error, Some(io::ErrorKind::TimedOut));
        start.elapsed().as_secs()
    }

    #[tokio::test(start_paused = true)]
    async fn silence_is_long_between_requests_and_short_within_one() {
        let (mut client, server) = duplex(64);
        let pace = Pace::new(TIMEOUTS);
        let mut server = Paced::new(server, pace.clone());
        assert_eq!(too_long(server.read_u8()).await, 100);
        client.write_u8(1).await.unwrap();
        server.read_u8().await.unwrap();
        // Byte by byte does not help: the whole head has its time.
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(3)).await;
                if client.write_u8(1).await.is_err() {
                    return;
                }
            }
        });
        let drip = async {
            loop {
                server.read_u8().await?;
            }
        };
        assert_eq!(too_long::<()>(drip).await, 10);
    }

    #[tokio::test(start_paused = true)]
    async fn who_is_answered_may_be_silent_and_is_idle_afterwards() {
        let (_client, server) = duplex(64);
        let pace = Pace::new(TIMEOUTS);
        let mut server = Paced::new(server, pace.clone());
        let answering = pace.answer();
        let day = Duration::from_secs(86_400);
        assert!(timeout(day, server.read_u8()).await.is_err());
        // A read that waits already hears of the end.
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(50)).await;
            drop(answering);
        });
        assert_eq!(too_long(server.read_u8()).await, 150);
    }

    #[tokio::test(start_paused = true)]
    async fn a_time_that_no_clock_reaches_is_long() {
        let (_client, server) = duplex(4);
        let pace = Pace::new(Timeouts {
            idle: Duration::MAX,
            head: Duration::MAX,
            stall: Duration::MAX,
            ..TIMEOUTS
        });
        let mut server = Paced::new(server, pace);
        let year = Duration::from_secs(365 * 86_400);
        assert!(timeout(year, server.read_u8()).await.is_err());
        assert!(timeout(year, server.write_all(&[0; 12])).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn who_takes_nothing_is_given_up_and_who_takes_little_is_not() {
        let (mut client, server) = duplex(4);
        let pace = Pace::new(TIMEOUTS);
        let mut server = Paced::new(server, pace.clone());
        let _answering = pace.answer();
        tokio::spawn(async move {
            for _ in 0..8 {
                tokio::time::sleep(Duration::from_secs(20)).await;
                client.read_u8().await.unwrap();
            }
            // It holds the connection and takes no more.
            tokio::time::sleep(Duration::from_secs(86_400)).await;
        });
        server.write_all(&[0; 12]).await.unwrap();
        assert_eq!(too_long(server.write_all(&[0; 12])).await, 30);
    }
}
