//! A channel for tasks.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::Reactor;
use super::source::Source;
use crate::channel::message::{Message, Outgoing};
use crate::channel::{Channel, SendError};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::wait_set::Interest;
use crate::want;

/// An end of a channel for tasks: sending and receiving wait without a thread.
///
/// Any number of tasks may use it at once.
pub struct AsyncChannel {
    source: Arc<Source<Channel>>,
}

impl AsyncChannel {
    /// Puts an end into a reactor. It must be in no wait set, and is in the reactor's until [`into_inner`](Self::into_inner).
    ///
    /// # Errors
    /// As [`WaitSet::add`](crate::WaitSet::add); the channel is dropped.
    pub fn new(channel: Channel, reactor: &Reactor) -> Result<Self, Error> {
        Source::new(channel, reactor).map(|source| Self { source })
    }

    /// The channel, for what does not wait.
    pub fn get_ref(&self) -> &Channel {
        self.source.object()
    }

    /// The reactor.
    pub fn reactor(&self) -> &Reactor {
        self.source.reactor()
    }

    /// Takes the channel out of the reactor, to be sent on for instance. Tasks that wait for it are not woken.
    pub fn into_inner(self) -> Channel {
        self.source.into_object()
    }

    /// Receives the next message.
    ///
    /// # Cancel safety
    /// A future that is dropped has received nothing.
    ///
    /// # Errors
    /// As [`Channel::recv_to`], but for the deadline.
    pub async fn recv(&self) -> Result<Message, Error> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// The same for a future of one's own.
    ///
    /// # Errors
    /// As [`AsyncChannel::recv`].
    pub fn poll_recv(&self, context: &mut Context<'_>) -> Poll<Result<Message, Error>> {
        self.poll_receive(context, Channel::try_recv)
    }

    /// Receives the next message in place of what is in `message`, whose memory is used again: in steady flow nothing is
    /// allocated.
    ///
    /// # Cancel safety
    /// A future that is dropped has received nothing.
    ///
    /// # Errors
    /// As [`Channel::recv_to`], but for the deadline.
    pub async fn recv_to(&self, message: &mut Message) -> Result<(), Error> {
        poll_fn(|context| self.poll_receive(context, |channel| channel.recv_to(message, Deadline::NOW))).await
    }

    /// Receives as `receive` does, which does not wait: again and again, until that says something else than
    /// [`Error::WouldBlock`]. For what has no name of its own here:
    ///
    /// ```no_run
    /// # use strait::{AsyncChannel, Deadline, Error};
    /// # async fn example(channel: &AsyncChannel) -> Result<(), Error> {
    /// let view = channel.recv_with(|channel| channel.recv_in_place(Deadline::NOW)).await?;
    /// # drop(view);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// A future that is dropped has received nothing, if `receive` has not when it says [`Error::WouldBlock`].
    ///
    /// # Errors
    /// Those of `receive`, and as [`AsyncChannel::recv`].
    pub async fn recv_with<'a, T>(
        &'a self,
        mut receive: impl FnMut(&'a Channel) -> Result<T, Error>,
    ) -> Result<T, Error> {
        poll_fn(move |context| self.poll_receive(context, &mut receive)).await
    }

    fn poll_receive<'a, T>(
        &'a self,
        context: &mut Context<'_>,
        receive: impl FnOnce(&'a Channel) -> Result<T, Error>,
    ) -> Poll<Result<T, Error>> {
        ready!(self.source.poll_turn(context));
        let channel = self.get_ref();
        // A try that finds nothing would have the set look at the channel once more, which costs two system calls.
        let received = if channel.is_readable() { receive(channel) } else { Err(Error::WouldBlock) };
        match received {
            Err(Error::WouldBlock) => match self.source.wait(context.waker(), Interest::Readable) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
            received => Poll::Ready(received),
        }
    }

    /// Sends a message; waits for room.
    ///
    /// # Cancel safety
    /// A future that is dropped before it is done has sent nothing; the handles of the message are closed.
    ///
    /// # Errors
    /// As [`Channel::send_by`], but for the deadline.
    pub async fn send<'a>(&self, message: impl Into<Outgoing<'a>>) -> Result<(), SendError> {
        let Outgoing { parts, mut handles } = message.into();
        poll_fn(|context| {
            ready!(self.source.poll_turn(context));
            want::forget();
            let message = Outgoing { parts, handles: std::mem::take(&mut handles) };
            match self.get_ref().try_send(message) {
                Err(SendError { error: Error::WouldBlock, handles: back }) => match self.poll_room::<()>(context) {
                    Poll::Pending => {
                        handles = back;
                        Poll::Pending
                    }
                    Poll::Ready(waited) => Poll::Ready(waited.map_err(|error| SendError::new(error, back))),
                },
                sent => Poll::Ready(sent),
            }
        })
        .await
    }
}

impl AsyncChannel {
    /// Sends a received message on, as [`Channel::forward`]; waits for room.
    ///
    /// # Cancel safety
    /// A future that is dropped before it is done has sent nothing, and `message` is as it was.
    ///
    /// # Errors
    /// As [`Channel::forward`], but for the deadline.
    pub async fn forward(&self, message: &mut Message) -> Result<(), Error> {
        self.send_with(|channel| channel.forward(message, Deadline::NOW)).await
    }

    /// Sends as `send` does, which does not wait: again and again, until that says something else than [`Error::WouldBlock`]. For
    /// what has no name of its own here:
    ///
    /// ```no_run
    /// # use strait::{AsyncChannel, Deadline, Error};
    /// # async fn example(channel: &AsyncChannel) -> Result<(), Error> {
    /// let mut place = channel.send_with(|channel| channel.reserve(1 << 20, Deadline::NOW)).await?;
    /// # drop(place);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// A future that is dropped has sent nothing, if `send` has not when it says [`Error::WouldBlock`].
    ///
    /// # Errors
    /// Those of `send`, and as [`AsyncChannel::send`].
    pub async fn send_with<'a, T>(&'a self, mut send: impl FnMut(&'a Channel) -> Result<T, Error>) -> Result<T, Error> {
        poll_fn(move |context| {
            ready!(self.source.poll_turn(context));
            want::forget();
            match send(self.get_ref()) {
                Err(Error::WouldBlock) => self.poll_room(context),
                sent => Poll::Ready(sent),
            }
        })
        .await
    }

    /// Waits for what the last try lacked. An error, if that cannot be waited for.
    fn poll_room<T>(&self, context: &mut Context<'_>) -> Poll<Result<T, Error>> {
        match self.source.wait_for(context.waker(), want::take()) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl fmt::Debug for AsyncChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncChannel").field(self.get_ref()).finish()
    }
}
