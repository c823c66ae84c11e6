//! Streams of bytes in both directions, for services that are written for sockets.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use strait::meet::Connector;
use strait::pipe::{DataConsumer, DataProducer, PipeOptions};
use strait::{Channel, Deadline, Error, Handle, Outgoing, Peer};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::{AsyncChannel, AsyncConsumer, AsyncProducer, PipeReader, PipeWriter, Reactor, connect_channel};

/// The bytes of the message that opens a stream. Its handles are the reading end of one data pipe and the writing end
/// of another.
const OPENING: &[u8] = b"strait stream 1";

/// A stream of bytes in both directions between two processes, over two data pipes: an [`AsyncRead`] and
/// [`AsyncWrite`] of tokio. A service that is written for a socket of tokio runs over it without other changes.
///
/// One process [connects](Self::connect), the other [accepts](crate::Listener::accept_stream):
///
/// ```
/// use std::time::Duration;
/// use strait_tokio::{Listener, Reactor, Stream};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let name = format!("tokio-stream-{}", std::process::id());
/// let reactor = Reactor::new()?;
/// let listener = Listener::bind(&name)?;
/// let connect = Stream::connect(&name, &reactor, Duration::from_secs(10)); // Usually in another process.
/// let (client, server) = tokio::join!(connect, listener.accept_stream(&reactor));
/// let (mut client, mut server) = (client?, server?);
/// client.write_all(b"hello").await?;
/// client.shutdown().await?;
/// let mut request = String::new();
/// server.read_to_string(&mut request).await?;
/// assert_eq!(request, "hello");
/// # Ok(())
/// # }
/// ```
///
/// Written bytes are in shared memory at once, so there is nothing to flush. [`AsyncWrite::poll_shutdown`] ends the
/// direction to the peer; the peer then reads all bytes, and the end of the stream. If a process drops its stream, the
/// peer reads all bytes and the end of the stream; writing fails with [`io::ErrorKind::BrokenPipe`]. If the peer dies
/// without ending its direction, reading fails with [`io::ErrorKind::BrokenPipe`] once all bytes were read.
///
/// A process that cannot complete a stream [aborts](Self::abort) the stream, so that the peer does not mistake the part
/// for the whole. If a task may be cancelled while writing, set an [abort reason](Self::set_abort_reason) before. The
/// peer of an aborted stream reads all bytes, and then gets [`io::ErrorKind::ConnectionAborted`]. A stream dropped by a
/// panic is aborted too.
///
/// # Errors
/// Reads and writes return the errors of [`PipeReader`] and [`PipeWriter`]. On a stream that was
/// [accepted](Self::accept), the first of them waits until the peer has opened the stream: for ever if the peer never
/// does, so set a timeout. It fails with the errors of [`AsyncChannel::recv`], with [`io::ErrorKind::BrokenPipe`] if
/// the peer closes the connection instead. It fails with [`io::ErrorKind::InvalidData`] if the peer's first message
/// opens no stream, and with the error of [`strait::Message::take_handles`] if the data pipes were lost; all later
/// reads and writes then fail with [`io::ErrorKind::NotConnected`].
///
/// [`AsyncWrite::poll_shutdown`] does not wait for the peer: if the peer has not opened the stream, the direction to
/// the peer ends with the first read.
///
/// # Cost
/// Memory for the buffers of two data pipes ([`PipeOptions::capacity`], 256 KiB each if not set).
#[derive(Debug)]
pub struct Stream {
    state: State,
    peer: Option<Peer>,
    /// The abort reason of the writing end, for a stream that is not open yet.
    aborts_with: Option<u32>,
    /// Whether the stream was shut down before it was open: the direction to the peer ends when the stream opens.
    was_shut_down: bool,
}

#[derive(Debug)]
enum State {
    /// The message from the peer that opens the stream was not received yet. The pipes will be in the reactor of the
    /// channel. The wakers are those of the tasks that wait for the message.
    Opening(AsyncChannel, Vec<Waker>),
    Open(PipeReader, PipeWriter),
    /// The peer's first message opened no stream.
    Failed,
}

impl Stream {
    /// Connects to the listener named `name` in this user's name directories, as [`strait::connect`] does, and opens a
    /// stream. `reactor` watches for the stream's events. The server accepts with
    /// [`Listener::accept_stream`](crate::Listener::accept_stream).
    ///
    /// # Cost
    /// A thread until the listener has accepted, or until the deadline, as [`connect`](crate::connect).
    ///
    /// # Cancel safety
    /// If the future is dropped, the connection is closed as soon as it is made. Neither the drop nor the end of the
    /// runtime waits for the thread.
    ///
    /// # Errors
    /// The errors of [`connect_channel`](crate::connect_channel) and of [`Stream::open`].
    pub async fn connect(name: &str, reactor: &Reactor, deadline: impl Into<Deadline>) -> io::Result<Self> {
        let channel = connect_channel(Connector::new(), name, deadline).await?;
        Self::open(channel, &PipeOptions::new(), reactor).await
    }

    /// Opens a stream with the process at the other end of `channel`, which calls [`Stream::accept`]. Both data pipes
    /// are created with `options`, whose element must be 1 byte. The channel is used up.
    ///
    /// Bytes can be written at once; the peer reads the bytes after accepting.
    ///
    /// # Cancel safety
    /// If the future is dropped, the channel is closed.
    ///
    /// # Errors
    /// The errors of [`PipeOptions::create`], [`Channel::peer`], [`AsyncChannel::new`] and [`AsyncChannel::send`];
    /// [`io::ErrorKind::InvalidInput`] if `options` has elements of several bytes.
    pub async fn open(channel: Channel, options: &PipeOptions, reactor: &Reactor) -> io::Result<Self> {
        let (ours, to_read) = options.create()?;
        let (to_write, theirs) = options.create()?;
        if ours.element() != 1 {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the element of a stream's data pipes is 1 byte"));
        }
        let state = State::new(theirs, ours, reactor)?;
        let stream = Self { state, peer: channel.peer()?, aborts_with: None, was_shut_down: false };
        let channel = AsyncChannel::new(channel, reactor)?;
        channel.send(Outgoing::new(OPENING).handle(to_read).handle(to_write)).await.map_err(Error::from)?;
        Ok(stream)
    }

    /// Makes a stream from `channel`, at whose other end a process calls [`Stream::open`] or [`Stream::connect`]. Does
    /// not wait: the first read or write waits until the peer has opened the stream. So a server does not wait for a
    /// client that connects and sends nothing.
    ///
    /// # Errors
    /// The errors of [`AsyncChannel::new`] and of [`Channel::peer`].
    pub fn accept(channel: Channel, reactor: &Reactor) -> io::Result<Self> {
        let peer = channel.peer()?;
        let state = State::Opening(AsyncChannel::new(channel, reactor)?, Vec::new());
        Ok(Self { state, peer, aborts_with: None, was_shut_down: false })
    }

    /// Returns the identity of the peer, as reported by the kernel. On a stream [opened](Self::open) by this process:
    /// the process that had the other end of the channel at that time. On an [accepted](Self::accept) stream: the
    /// process that opened the stream; before the first read or write, the process that had the other end of the
    /// channel at the call of [`accept`](Self::accept). `None` if the kernel had reported no process, because the other
    /// end of the channel had not been used. Streams from [`connect`](Self::connect) and from
    /// [`Listener::accept_stream`](crate::Listener::accept_stream) have a peer.
    pub fn peer(&self) -> Option<Peer> {
        self.peer
    }

    /// Drops the stream and aborts both directions with `reason`: the peer reads all bytes that were written, and then
    /// its reads and writes fail with [`strait::Error::Aborted`] ([`io::ErrorKind::ConnectionAborted`]). A direction
    /// that was shut down stays complete. The program defines the meaning of the number.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use strait_tokio::{Listener, Reactor, Stream};
    /// # use tokio::io::{AsyncReadExt, AsyncWriteExt};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let name = format!("tokio-abort-{}", std::process::id());
    /// # let reactor = Reactor::new()?;
    /// # let listener = Listener::bind(&name)?;
    /// # let connect = Stream::connect(&name, &reactor, Duration::from_secs(10));
    /// # let (client, server) = tokio::join!(connect, listener.accept_stream(&reactor));
    /// # let (mut client, mut server) = (client?, server?);
    /// client.write_all(b"half of it").await?;
    /// client.abort(17);
    ///
    /// let mut request = Vec::new();
    /// let failed: strait::Error = server.read_to_end(&mut request).await.unwrap_err().downcast()?;
    /// assert_eq!((&request[..], failed), (&b"half of it"[..], strait::Error::Aborted { reason: 17 }));
    /// # Ok(())
    /// # }
    /// ```
    pub fn abort(self, reason: u32) {
        match self.state {
            State::Open(reader, writer) => {
                writer.abort(reason);
                reader.abort(reason);
            }
            State::Opening(channel, _) => {
                let channel = channel.into_inner();
                // The peer may have opened the stream already.
                if let Ok((reads, writes)) = channel.try_recv().map_err(Into::into).and_then(|mut m| pipes_of(&mut m)) {
                    if self.was_shut_down {
                        let _ = writes.finish(Deadline::NOW);
                    }
                    writes.abort(reason);
                    reads.abort(reason);
                }
                channel.close_with(reason);
            }
            State::Failed => {}
        }
    }

    /// Sets the reason for aborting the direction to the peer when the stream is dropped before that direction was shut
    /// down: see [`DataProducer::set_abort_reason`]. For a task that may be cancelled while writing. The last reason
    /// set counts, also for the writer returned by [`into_split`](Self::into_split). On an [accepted](Self::accept)
    /// stream, the reason counts from the first read or write on.
    pub fn set_abort_reason(&mut self, reason: u32) {
        self.aborts_with = Some(reason);
        if let State::Open(_, writer) = &self.state {
            writer.0.get_ref().set_abort_reason(reason);
        }
    }

    /// Returns the two directions of the stream. Returns `Pending` until the peer has opened the stream; then the task
    /// of `context` is woken.
    fn poll_open(&mut self, context: &mut Context<'_>) -> Poll<io::Result<(&mut PipeReader, &mut PipeWriter)>> {
        if let State::Opening(channel, waiting) = &mut self.state {
            let Poll::Ready(received) = channel.poll_recv(context) else {
                if !waiting.iter().any(|waker| waker.will_wake(context.waker())) {
                    waiting.push(context.waker().clone());
                }
                return Poll::Pending;
            };
            // After an error the next call receives again: a lack of descriptors or memory passes.
            let message = received?;
            let (reactor, waiting) = (channel.reactor().clone(), std::mem::take(waiting));
            let opened = self.open_with(message, &reactor);
            // The channel, which is dropped, wakes no other task that waits for its message.
            waiting.into_iter().for_each(Waker::wake);
            opened?;
        }
        Poll::Ready(match &mut self.state {
            State::Open(reader, writer) => Ok((reader, writer)),
            State::Opening(..) | State::Failed => {
                Err(io::Error::new(io::ErrorKind::NotConnected, "the peer has opened no stream over this connection"))
            }
        })
    }

    /// Opens the stream with `message`, the first message of the peer. If the message opens no stream, the stream has
    /// failed.
    fn open_with(&mut self, mut message: strait::Message, reactor: &strait::task::Reactor) -> io::Result<()> {
        self.peer = message.sender().or(self.peer);
        self.state = State::Failed;
        let (reads, writes) = pipes_of(&mut message)?;
        if let Some(reason) = self.aborts_with {
            writes.set_abort_reason(reason);
        }
        if self.was_shut_down {
            writes.finish(Deadline::NOW)?;
        }
        self.state = State::new(reads, writes, reactor)?;
        Ok(())
    }

    /// Waits until the peer has opened the stream, and returns the two directions, for two tasks. Cheaper than
    /// `tokio::io::split`, which takes a lock for each read and write.
    ///
    /// # Cancel safety
    /// If the future is dropped, the stream is dropped.
    ///
    /// # Errors
    /// The errors of the first read or write; see [`Stream`].
    pub async fn into_split(mut self) -> io::Result<(PipeReader, PipeWriter)> {
        std::future::poll_fn(|context| self.poll_open(context).map_ok(drop)).await?;
        match self.state {
            State::Open(reader, writer) => Ok((reader, writer)),
            State::Opening(..) | State::Failed => Err(io::ErrorKind::NotConnected.into()),
        }
    }
}

impl State {
    fn new(reads: DataConsumer, writes: DataProducer, reactor: &strait::task::Reactor) -> Result<Self, Error> {
        let reader = PipeReader(AsyncConsumer::new(reads, reactor)?);
        Ok(Self::Open(reader, PipeWriter(AsyncProducer::new(writes, reactor)?)))
    }
}

/// Returns the data-pipe ends of the message that opens a stream. Any other message keeps its handles: the drop of a
/// message does not wait until a descriptor of the peer is closed, but the drop of a handle taken out does.
fn pipes_of(message: &mut strait::Message) -> io::Result<(DataConsumer, DataProducer)> {
    let has_pipes = match message.handles() {
        [Handle::Consumer(reads), Handle::Producer(writes)] => (reads.element(), writes.element()) == (1, 1),
        // The handles may have been lost; `take_handles` then fails.
        handles => handles.is_empty(),
    };
    if has_pipes && message.bytes() == OPENING {
        let mut handles = message.take_handles()?.into_iter();
        if let (Some(Handle::Consumer(reads)), Some(Handle::Producer(writes))) = (handles.next(), handles.next()) {
            return Ok((reads, writes));
        }
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "the first message of the peer opens no stream"))
}

impl AsyncRead for Stream {
    fn poll_read(mut self: Pin<&mut Self>, context: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let (reader, _) = ready!(self.poll_open(context))?;
        Pin::new(reader).poll_read(context, out)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let (_, writer) = ready!(self.poll_open(context))?;
        Pin::new(writer).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.poll_open(context) {
            Poll::Ready(opened) => Pin::new(opened?.1).poll_shutdown(context),
            // Nothing was written. A peer that never opens the stream must not hold up the end of the task.
            Poll::Pending => {
                self.was_shut_down = true;
                Poll::Ready(Ok(()))
            }
        }
    }
}
