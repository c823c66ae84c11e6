//! Ends of data pipes as tokio's readers and writers.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use strait::{AsyncConsumer, AsyncProducer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The reading end of a data pipe as tokio's [`AsyncRead`]. A producer that died is [`io::ErrorKind::BrokenPipe`].
#[derive(Debug)]
pub struct PipeReader(pub AsyncConsumer);

/// The writing end of a data pipe as tokio's [`AsyncWrite`]. Shut down, it ends the stream, as it does when it is dropped.
#[derive(Debug)]
pub struct PipeWriter(pub AsyncProducer);

impl AsyncRead for PipeReader {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = ready!(self.0.poll_read(context, out.initialize_unfilled()))?;
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
