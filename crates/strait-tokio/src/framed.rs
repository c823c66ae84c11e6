//! Messages as a stream and a sink, for code that is written with the traits of the crate `futures`.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_sink::Sink;
use strait::{Deadline, Error, Message};

use crate::AsyncChannel;

/// The messages of a channel as a [`Stream`] and a [`Sink`] of the crate `futures`. The stream ends when the other end
/// is closed and all of its messages were received.
///
/// ```
/// use futures_util::{SinkExt, StreamExt};
/// use strait::{Channel, Message};
/// use strait_tokio::{AsyncChannel, Framed, Reactor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let reactor = Reactor::new()?;
/// let (near, far) = Channel::pair()?; // One of the ends may be in another process.
/// let mut near = Framed::new(AsyncChannel::new(near, &reactor)?);
/// let mut far = Framed::new(AsyncChannel::new(far, &reactor)?);
/// near.send(Message::from_parts(b"hello".to_vec(), Vec::new())).await?;
/// drop(near);
/// assert_eq!(far.next().await.expect("a message")?.bytes(), b"hello");
/// assert!(far.next().await.is_none());
/// # Ok(())
/// # }
/// ```
///
/// If there is room, a message is sent at once. Otherwise the sink keeps one message, and is ready again once the
/// message was sent. `SinkExt::send` and `SinkExt::flush` wait until the message was sent.
///
/// # Errors
/// The errors of [`AsyncChannel::recv`] and of [`AsyncChannel::forward`].
///
/// [Temporary](Error::is_temporary) errors, such as a lack of descriptors or memory, have lost nothing. For the stream,
/// the next item is the message. The sink keeps the message; the next flush tries to send it again.
///
/// After any other error of the stream, the stream ends. A message that could not be sent because of any other error is
/// dropped, and its handles are closed.
#[derive(Debug)]
pub struct Framed {
    channel: AsyncChannel,
    /// A message without room so far.
    unsent: Option<Message>,
    /// Whether the stream has ended: the other end is closed, or the stream has returned an error that does not pass.
    ended: bool,
    /// The number of messages that were sent in a row without a wait.
    consecutive: u32,
}

/// After so many messages in a row without a wait, the sink lets other tasks run.
const MAX_CONSECUTIVE: u32 = 128;

impl Framed {
    /// Makes a stream and sink of `channel`.
    pub fn new(channel: AsyncChannel) -> Self {
        Self { channel, unsent: None, ended: false, consecutive: 0 }
    }

    /// Returns the channel, to ask for its peer, for example.
    pub fn get_ref(&self) -> &AsyncChannel {
        &self.channel
    }

    /// Returns the channel, and the unsent message if there is one.
    pub fn into_parts(self) -> (AsyncChannel, Option<Message>) {
        (self.channel, self.unsent)
    }

    /// Sends the unsent message, if there is one.
    fn poll_unsent(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        let Self { channel, unsent, consecutive, .. } = self;
        if let Some(message) = unsent {
            let sent = channel.poll_send_with(context, |channel| channel.forward(message, Deadline::NOW));
            if sent.is_pending() {
                *consecutive = 0;
            }
            let sent = ready!(sent);
            if !sent.is_err_and(Error::is_temporary) {
                *unsent = None;
            }
            sent?;
        }
        Poll::Ready(Ok(()))
    }

    /// Sends `message` now, or keeps it as the unsent message if it cannot be sent now.
    fn send_or_keep(&mut self, mut message: Message) -> Result<(), Error> {
        match self.channel.get_ref().forward(&mut message, Deadline::NOW) {
            Err(error) if error.is_temporary() => {
                self.unsent = Some(message);
                Ok(())
            }
            sent => sent,
        }
    }
}

impl Stream for Framed {
    type Item = Result<Message, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.ended {
            return Poll::Ready(None);
        }
        let received = ready!(self.channel.poll_recv(context));
        self.ended = received.as_ref().is_err_and(|error| !error.is_temporary());
        Poll::Ready(match received {
            Err(Error::PeerClosed) => None,
            received => Some(received),
        })
    }
}

impl Sink<Message> for Framed {
    type Error = Error;

    /// Returns `Ready` if [`start_send`](Sink::start_send) may be called. After 128 messages in a row without a wait,
    /// returns `Pending` once, so that other tasks run.
    fn poll_ready(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.consecutive >= MAX_CONSECUTIVE {
            self.consecutive = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.poll_unsent(context)
    }

    /// Sends `message`, or keeps it until there is room. If the sink still keeps another message, because the sink is
    /// not ready, drops `message` and fails with [`Error::WouldBlock`].
    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), Error> {
        if let Some(unsent) = self.unsent.take() {
            self.send_or_keep(unsent)?;
        }
        if self.unsent.is_some() {
            return Err(Error::WouldBlock);
        }
        self.consecutive += 1;
        self.send_or_keep(message)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.poll_unsent(context)
    }

    /// Sends what was not sent yet. The channel is closed when the value is dropped.
    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.poll_unsent(context)
    }
}
