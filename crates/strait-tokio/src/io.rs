//! The ends of data pipes as readers and writers of tokio.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use strait::task::{AsyncConsumer, AsyncProducer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

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
