//! The ends of data pipes as readers and writers of tokio.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use strait::task::{AsyncConsumer, AsyncProducer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The room in bytes that a read offers at least, if the caller's buffer has it.
const LEAST: usize = 4096;

/// The reading end of a data pipe as an [`AsyncRead`] of tokio. If the producer died, reading fails with
/// [`io::ErrorKind::BrokenPipe`].
#[derive(Debug)]
pub struct PipeReader(pub AsyncConsumer);

/// The writing end of a data pipe as an [`AsyncWrite`] of tokio. Shutting the writer down, or dropping it, ends the
/// stream.
#[derive(Debug)]
pub struct PipeWriter(pub AsyncProducer);

impl AsyncRead for PipeReader {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        // Room that is not used is not initialized: callers pass buffers that are much larger than what has arrived.
        let consumer = self.0.get_ref();
        let expected = consumer.available().unwrap_or(0).max(consumer.element()).max(LEAST);
        let room = out.remaining().min(expected);
        let read = ready!(self.0.poll_read(context, out.initialize_unfilled_to(room)))?;
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
