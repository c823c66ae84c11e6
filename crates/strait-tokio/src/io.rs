//! The ends of data pipes as readers and writers of tokio.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use strait::task::{AsyncConsumer, AsyncProducer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The reading end of a data pipe as an [`AsyncRead`] of tokio. If the producer died, reading fails with
/// [`io::ErrorKind::BrokenPipe`]; if the producer was [aborted](PipeWriter::abort), or dropped by a panic, with
/// [`io::ErrorKind::ConnectionAborted`].
///
/// Example: [a reader and a writer](PipeWriter).
#[derive(Debug)]
pub struct PipeReader(pub AsyncConsumer);

/// The writing end of a data pipe as an [`AsyncWrite`] of tokio. Shutting the writer down, or dropping it, ends the
/// stream. A panic that drops the writer [aborts](Self::abort) the stream.
///
/// If a task may be cancelled while it writes, the task first sets an [abort
/// reason](strait::pipe::DataProducer::set_abort_reason). Then the stream ends as complete only if the writer was shut
/// down:
///
/// ```
/// use strait::pipe::DataPipe;
/// use strait_tokio::{AsyncConsumer, AsyncProducer, PipeReader, PipeWriter, Reactor};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// const CANCELLED: u32 = 1;
/// let reactor = Reactor::new()?;
/// let (producer, consumer) = DataPipe::pair(4096)?;
/// let mut reader = PipeReader(AsyncConsumer::new(consumer, &reactor)?);
/// let mut writer = PipeWriter(AsyncProducer::new(producer, &reactor)?);
/// let task = tokio::spawn(async move {
///     writer.0.get_ref().set_abort_reason(CANCELLED);
///     writer.write_all(b"half of it").await?;
///     std::future::pending::<()>().await;
///     writer.shutdown().await
/// });
/// assert_eq!(reader.read(&mut [0; 100]).await?, 10);
/// task.abort();
/// let failed = reader.read(&mut [0; 100]).await.unwrap_err();
/// let failed: strait::Error = failed.downcast()?;
/// assert_eq!(failed, strait::Error::Aborted { reason: CANCELLED });
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct PipeWriter(pub AsyncProducer);

impl PipeReader {
    /// Closes the end with `reason`: the producer's writes fail with [`io::ErrorKind::ConnectionAborted`]. See
    /// [`DataConsumer::abort`](strait::pipe::DataConsumer::abort).
    pub fn abort(self, reason: u32) {
        self.0.abort(reason);
    }
}

impl PipeWriter {
    /// Aborts the stream with `reason`: the consumer reads all bytes, and then fails with
    /// [`io::ErrorKind::ConnectionAborted`]. See [`DataProducer::abort`](strait::pipe::DataProducer::abort).
    pub fn abort(self, reason: u32) {
        self.0.abort(reason);
    }
}

impl AsyncRead for PipeReader {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // SAFETY: the call below only writes to the room, and only initialized bytes.
        let room = unsafe { out.unfilled_mut() };
        let read = ready!(self.0.poll_read_uninit(context, room))?.len();
        // SAFETY: the first `read` bytes of the room were written just now.
        unsafe { out.assume_init(read) };
        out.advance(read);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PipeWriter {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Poll::Ready(Ok(ready!(self.0.poll_write(context, bytes))?))
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(ready!(self.0.poll_finish(context))?))
    }
}
