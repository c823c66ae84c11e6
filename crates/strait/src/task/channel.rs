//! Channels for tasks.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::Reactor;
use super::source::{Source, Waiting};
use crate::blocked_on;
use crate::channel::message::{Message, Outgoing};
use crate::channel::{Channel, SendError};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::wait_set::Interest;

/// An end of a channel for tasks: sending and receiving wait without blocking a thread.
///
/// Any number of tasks may use the end at once.
///
/// Example: [tasks](crate::task).
pub struct AsyncChannel {
    source: Arc<Source<Channel>>,
}

impl AsyncChannel {
    /// Puts the channel end `channel` into `reactor`. The end must not be in a wait set; it is in the reactor's wait
    /// set until [`into_inner`](Self::into_inner).
    ///
    /// # Errors
    /// As [`WaitSet::add`](crate::wait::WaitSet::add); the channel is dropped.
    pub fn new(channel: Channel, reactor: &Reactor) -> Result<Self, Error> {
        Source::new(channel, reactor).map(|source| Self { source })
    }

    /// Returns the channel, for calls that do not wait.
    pub fn get_ref(&self) -> &Channel {
        self.source.object()
    }

    /// Returns the reactor of the channel.
    pub fn reactor(&self) -> &Reactor {
        self.source.reactor()
    }

    /// Takes the channel out of the reactor and returns the channel, for example to send it to another process. Tasks
    /// that wait for the channel are not woken.
    pub fn into_inner(self) -> Channel {
        self.source.into_object()
    }

    /// Waits for the next message, receives it and returns it.
    ///
    /// # Cancel safety
    /// Dropping the future loses no message.
    ///
    /// # Errors
    /// As [`Channel::recv_message`], except the errors of the deadline; [`Error::ReactorEnded`] if the task would have
    /// to wait and the reactor has ended.
    pub async fn recv(&self) -> Result<Message, Error> {
        self.recv_with(Channel::try_recv).await
    }

    /// Receives the next message if there is one, as the future of [`recv`](Self::recv) does; for futures written by
    /// hand. If there is no message, returns `Pending`, and the task of `context` is woken when a message arrives.
    ///
    /// # Errors
    /// As [`AsyncChannel::recv`].
    pub fn poll_recv(&self, context: &mut Context<'_>) -> Poll<Result<Message, Error>> {
        self.poll_receive(None, context, Channel::try_recv)
    }

    /// Waits for the next message and receives it into `message`, whose old contents are dropped. The memory of
    /// `message` is reused, so in steady flow nothing is allocated.
    ///
    /// # Cancel safety
    /// Dropping the future loses no message.
    ///
    /// # Errors
    /// As [`AsyncChannel::recv`].
    pub async fn recv_message(&self, message: &mut Message) -> Result<(), Error> {
        self.recv_with(|channel| channel.recv_message(message, Deadline::NOW)).await
    }

    /// Calls `receive`, which must not wait, again and again until it returns something else than
    /// [`Error::WouldBlock`]. Use this method for ways to receive without a method of their own here:
    ///
    /// ```no_run
    /// # use strait::{Deadline, Error};
    /// # use strait::task::AsyncChannel;
    /// # async fn example(channel: &AsyncChannel) -> Result<(), Error> {
    /// let view = channel.recv_with(|channel| channel.recv_in_place(Deadline::NOW)).await?;
    /// # drop(view);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future loses no message, if `receive` has received nothing whenever it returns
    /// [`Error::WouldBlock`].
    ///
    /// # Errors
    /// The errors of `receive` and of [`AsyncChannel::recv`].
    pub async fn recv_with<'a, T>(
        &'a self,
        mut receive: impl FnMut(&'a Channel) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut waiting = self.source.waiting();
        poll_fn(move |context| self.poll_receive(Some(&mut waiting), context, &mut receive)).await
    }

    /// Calls `receive`, which must not wait, once, as the future of [`recv_with`](Self::recv_with) does; for futures
    /// written by hand. If `receive` returns [`Error::WouldBlock`], returns `Pending`, and the task of `context` is
    /// woken when another attempt may succeed.
    ///
    /// # Errors
    /// As [`AsyncChannel::recv_with`].
    pub fn poll_recv_with<'a, T>(
        &'a self,
        context: &mut Context<'_>,
        receive: impl FnOnce(&'a Channel) -> Result<T, Error>,
    ) -> Poll<Result<T, Error>> {
        self.poll_receive(None, context, receive)
    }

    fn poll_receive<'a, T>(
        &'a self,
        future: Option<&mut Waiting<'_, Channel>>,
        context: &mut Context<'_>,
        receive: impl FnOnce(&'a Channel) -> Result<T, Error>,
    ) -> Poll<Result<T, Error>> {
        ready!(self.source.poll_turn(context));
        let channel = self.get_ref();
        // A receive that finds nothing would make the wait set look at the channel once more, at the cost of two system
        // calls.
        let received = if channel.is_readable() { receive(channel) } else { Err(Error::WouldBlock) };
        match received {
            Err(Error::WouldBlock) => match self.source.wait(future, context.waker(), Interest::Readable) {
                Ok(()) => Poll::Pending,
                Err(error) => Poll::Ready(Err(error)),
            },
            received => Poll::Ready(received),
        }
    }

    /// Sends `message`; waits for room.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, nothing was sent, and the handles of the message are closed.
    ///
    /// # Errors
    /// As [`Channel::send_by`], except the errors of the deadline; [`Error::ReactorEnded`] if the task would have to
    /// wait and the reactor has ended.
    pub async fn send<'a>(&self, message: impl Into<Outgoing<'a>>) -> Result<(), SendError> {
        let Outgoing { parts, mut handles } = message.into();
        let mut waiting = self.source.waiting();
        poll_fn(|context| {
            ready!(self.source.poll_turn(context));
            blocked_on::forget();
            let message = Outgoing { parts, handles: std::mem::take(&mut handles) };
            match self.get_ref().try_send(message) {
                Err(SendError { error: Error::WouldBlock, handles: back }) => {
                    match self.poll_room::<()>(Some(&mut waiting), context) {
                        Poll::Pending => {
                            handles = back;
                            Poll::Pending
                        }
                        Poll::Ready(waited) => Poll::Ready(waited.map_err(|error| SendError::new(error, back))),
                    }
                }
                sent => Poll::Ready(sent),
            }
        })
        .await
    }
}

impl AsyncChannel {
    /// Sends the received message `message` on, as [`Channel::forward`] does; waits for room.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, nothing was sent, and `message` is unchanged.
    ///
    /// # Errors
    /// As [`Channel::forward`], except the errors of the deadline; [`Error::ReactorEnded`] if the task would have to
    /// wait and the reactor has ended.
    pub async fn forward(&self, message: &mut Message) -> Result<(), Error> {
        self.send_with(|channel| channel.forward(message, Deadline::NOW)).await
    }

    /// Calls `send`, which must not wait, again and again until the result is not [`Error::WouldBlock`]. Use this
    /// method for ways to send that have no method of their own here:
    ///
    /// ```no_run
    /// # use strait::{Deadline, Error};
    /// # use strait::task::AsyncChannel;
    /// # async fn example(channel: &AsyncChannel) -> Result<(), Error> {
    /// let mut place = channel.send_with(|channel| channel.reserve(1 << 20, Deadline::NOW)).await?;
    /// # drop(place);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// Dropping the future has sent nothing, if `send` has sent nothing whenever it returns [`Error::WouldBlock`].
    ///
    /// # Errors
    /// The errors of `send` and of [`AsyncChannel::send`].
    pub async fn send_with<'a, T>(&'a self, mut send: impl FnMut(&'a Channel) -> Result<T, Error>) -> Result<T, Error> {
        let mut waiting = self.source.waiting();
        poll_fn(move |context| self.poll_to_send(Some(&mut waiting), context, &mut send)).await
    }

    /// Calls `send`, which must not wait, once, as the future of [`send_with`](Self::send_with) does; for futures
    /// written by hand. If `send` returns [`Error::WouldBlock`], returns `Pending`, and the task of `context` is woken
    /// when another attempt may succeed.
    ///
    /// # Errors
    /// As [`AsyncChannel::send_with`].
    pub fn poll_send_with<'a, T>(
        &'a self,
        context: &mut Context<'_>,
        send: impl FnOnce(&'a Channel) -> Result<T, Error>,
    ) -> Poll<Result<T, Error>> {
        self.poll_to_send(None, context, send)
    }

    fn poll_to_send<'a, T>(
        &'a self,
        future: Option<&mut Waiting<'_, Channel>>,
        context: &mut Context<'_>,
        send: impl FnOnce(&'a Channel) -> Result<T, Error>,
    ) -> Poll<Result<T, Error>> {
        ready!(self.source.poll_turn(context));
        blocked_on::forget();
        match send(self.get_ref()) {
            Err(Error::WouldBlock) => self.poll_room(future, context),
            sent => Poll::Ready(sent),
        }
    }

    /// Registers the task of `context`, whose last attempt to send has failed for lack of something, such as room. The
    /// task is woken when another attempt may succeed. Returns an error if the channel cannot be armed, otherwise
    /// `Pending`.
    fn poll_room<T>(
        &self,
        future: Option<&mut Waiting<'_, Channel>>,
        context: &mut Context<'_>,
    ) -> Poll<Result<T, Error>> {
        match self.source.wait_for(future, context.waker(), blocked_on::take()) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

/// The sending half of an [`AsyncChannel`], for one task.
///
/// Example: [two halves](AsyncChannel::split).
#[derive(Debug)]
pub struct AsyncSender(Arc<AsyncChannel>);

/// The receiving half of an [`AsyncChannel`], for one task.
///
/// Example: [two halves](AsyncChannel::split).
#[derive(Debug)]
pub struct AsyncReceiver(Arc<AsyncChannel>);

impl AsyncChannel {
    /// Splits the end into halves for two tasks: one task only sends and the other only receives. [`AsyncSender::join`]
    /// makes the end again. The end is closed when both halves are dropped.
    ///
    /// ```no_run
    /// use strait::Error;
    /// use strait::task::{AsyncChannel, AsyncReceiver, AsyncSender};
    ///
    /// /// Passes on in one direction; another task does so in the other.
    /// async fn pass(mut from: AsyncReceiver, mut to: AsyncSender) -> Result<(), Error> {
    ///     loop {
    ///         to.send(from.recv().await?.bytes()).await?;
    ///     }
    /// }
    ///
    /// # async fn example(a: AsyncChannel, b: AsyncChannel) {
    /// let ((to_a, from_a), (to_b, from_b)) = (a.split(), b.split());
    /// let both = (pass(from_a, to_b), pass(from_b, to_a)); // For two tasks of a runtime.
    /// # drop(both);
    /// # }
    /// ```
    ///
    /// The halves of a [`Channel`] have to be joined before the channel becomes an `AsyncChannel`: a reactor looks at
    /// the end from its own thread, so each call takes the locks of a channel.
    pub fn split(self) -> (AsyncSender, AsyncReceiver) {
        let whole = Arc::new(self);
        (AsyncSender(whole.clone()), AsyncReceiver(whole))
    }
}

impl AsyncSender {
    /// Sends `message`; waits for room.
    ///
    /// # Cancel safety
    /// As [`AsyncChannel::send`].
    ///
    /// # Errors
    /// As [`AsyncChannel::send`].
    pub async fn send<'a>(&mut self, message: impl Into<Outgoing<'a>>) -> Result<(), SendError> {
        self.0.send(message).await
    }

    /// Joins the two halves of an end to the [`AsyncChannel`] that was split.
    ///
    /// # Errors
    /// Returns the halves as the error if they belong to different ends.
    pub fn join(self, receiver: AsyncReceiver) -> Result<AsyncChannel, (Self, AsyncReceiver)> {
        if !Arc::ptr_eq(&self.0, &receiver.0) {
            return Err((self, receiver));
        }
        drop(receiver);
        Ok(Arc::into_inner(self.0).expect("only the two halves hold it"))
    }
}

impl AsyncReceiver {
    /// Waits for the next message, receives it and returns it.
    ///
    /// # Cancel safety
    /// Dropping the future loses no message.
    ///
    /// # Errors
    /// As [`AsyncChannel::recv`].
    pub async fn recv(&mut self) -> Result<Message, Error> {
        self.0.recv().await
    }

    /// Waits for the next message and receives it into `message`, as [`AsyncChannel::recv_message`] does.
    ///
    /// # Cancel safety
    /// Dropping the future loses no message.
    ///
    /// # Errors
    /// As [`AsyncChannel::recv_message`].
    pub async fn recv_message(&mut self, message: &mut Message) -> Result<(), Error> {
        self.0.recv_message(message).await
    }
}

impl fmt::Debug for AsyncChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncChannel").field(self.get_ref()).finish()
    }
}
