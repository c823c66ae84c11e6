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
/// The errors of [`AsyncChannel::recv`] and of [`AsyncChannel::forward`]. A message that could not be sent is dropped,
/// and its handles are closed. Of the errors of the stream, those that pass (a lack of descriptors or memory) have lost
/// nothing: the next item is the message.
#[derive(Debug)]
pub struct Framed {
    channel: AsyncChannel,
    /// A message without room so far.
    unsent: Option<Message>,
}

impl Framed {
    /// Makes a stream and sink of `channel`.
    pub fn new(channel: AsyncChannel) -> Self {
        Self { channel, unsent: None }
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
        let Self { channel, unsent } = self;
        if let Some(message) = unsent {
            let sent = ready!(channel.poll_send_with(context, |channel| channel.forward(message, Deadline::NOW)));
            *unsent = None;
            sent?;
        }
        Poll::Ready(Ok(()))
    }
}

impl Stream for Framed {
    type Item = Result<Message, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        Poll::Ready(match ready!(self.channel.poll_recv(context)) {
            Err(Error::PeerClosed) => None,
            received => Some(received),
        })
    }
}

impl Sink<Message> for Framed {
    type Error = Error;

    fn poll_ready(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.poll_unsent(context)
    }

    fn start_send(mut self: Pin<&mut Self>, mut message: Message) -> Result<(), Error> {
        match self.channel.get_ref().forward(&mut message, Deadline::NOW) {
            Err(Error::WouldBlock) => {
                self.unsent = Some(message);
                Ok(())
            }
            sent => sent,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.poll_unsent(context)
    }

    /// Sends what was not sent yet. The channel is closed when the value is dropped.
    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        self.poll_unsent(context)
    }
}
