//! Typed channels for tasks, in any runtime: with tokio, the reactor is that of the crate `strait-tokio`.
//!
//! ```
//! use strait_typed::Typed;
//! use strait_typed::task::AsyncTyped;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let reactor = strait_tokio::Reactor::new()?;
//! let (near, far) = Typed::<String, usize>::pair()?; // One of the ends may be in another process.
//! let (near, far) = (AsyncTyped::new(near, &reactor)?, AsyncTyped::new(far, &reactor)?);
//! let serving = tokio::spawn(async move {
//!     let text = far.recv().await.expect("a request");
//!     far.send(&text.len()).await.expect("room");
//! });
//! near.send(&"hello".to_owned()).await?;
//! assert_eq!(near.recv().await?, 5);
//! serving.await?;
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::future::poll_fn;
use std::task::Poll;

use strait::task::{AsyncCallEnd, AsyncChannel, Reactor};
use strait::{Deadline, Outgoing};

use crate::calls::{self, CallsCore};
use crate::codec::{Codec, DecodeOwned, Encode};
use crate::core::Core;
use crate::error::{RecvError, SendError};
use crate::hello::Hello;
use crate::{CallError, Postcard, Typed, TypedCalls, TypedRequest};

/// An end of a typed channel for tasks: sending and receiving wait without blocking a thread. Any number of tasks may
/// use the end at once.
pub struct AsyncTyped<S, R = S, C = Postcard> {
    channel: AsyncChannel,
    core: Core<S, R, C>,
}

impl<S, R, C> fmt::Debug for AsyncTyped<S, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncTyped").field("channel", &self.channel).field("core", &self.core).finish()
    }
}

impl<S, R, C> AsyncTyped<S, R, C> {
    /// Puts a typed end into `reactor`.
    ///
    /// # Errors
    /// The errors of [`AsyncChannel::new`]; the end is dropped.
    pub fn new(typed: Typed<S, R, C>, reactor: &Reactor) -> Result<Self, strait::Error> {
        let (channel, core) = typed.into_parts();
        Ok(Self { channel: AsyncChannel::new(channel, reactor)?, core })
    }

    /// Returns the channel, for calls that do not wait.
    pub fn channel(&self) -> &AsyncChannel {
        &self.channel
    }

    /// Takes the end out of the reactor and returns it. Tasks that wait for the end are not woken.
    pub fn into_typed(self) -> Typed<S, R, C> {
        Typed::from_parts(self.channel.into_inner(), self.core)
    }
}

impl<S, R, C: Encode<S> + Codec<R>> AsyncTyped<S, R, C> {
    /// Sends a value; waits for room. The value is encoded again each time there was no room.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, nothing was sent, and the handles are in the value.
    ///
    /// # Errors
    /// As [`Typed::send`].
    pub async fn send(&self, value: &S) -> Result<(), SendError> {
        let sent = self.channel.send_with(|channel| match self.core.send(channel, value, Deadline::NOW) {
            Err(SendError::Channel(strait::Error::WouldBlock)) => Err(strait::Error::WouldBlock),
            sent => Ok(sent),
        });
        sent.await?
    }
}

impl<S, R: Send + 'static, C: Codec<S> + DecodeOwned<R>> AsyncTyped<S, R, C> {
    /// Receives the next value; waits for the value without a limit.
    ///
    /// # Cancel safety
    /// Dropping the future loses no value.
    ///
    /// # Errors
    /// As [`Typed::recv`].
    pub async fn recv(&self) -> Result<R, RecvError> {
        let received = self.channel.recv_with(|channel| match self.core.recv(channel, Deadline::NOW) {
            Err(RecvError::Channel(strait::Error::WouldBlock)) => Err(strait::Error::WouldBlock),
            received => Ok(received),
        });
        received.await?
    }
}

/// An end for typed calls in tasks: calls and requests wait without blocking a thread. Any number of tasks may use the
/// end at once.
///
/// ```
/// use strait::Channel;
/// use strait_typed::TypedCalls;
/// use strait_typed::task::AsyncTypedCalls;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let reactor = strait_tokio::Reactor::new()?;
/// let (one, other) = Channel::pair()?; // One of them may be in another process.
/// let client = AsyncTypedCalls::new(TypedCalls::<String, usize>::over(one), &reactor)?;
/// let server = AsyncTypedCalls::new(TypedCalls::<String, usize>::over(other), &reactor)?;
/// let serving = tokio::spawn(async move {
///     while let Ok(mut request) = server.next_request().await {
///         let text = request.take();
///         // A caller that has gone gets no reply.
///         let _ = server.reply(request, &text.len()).await;
///     }
/// });
/// assert_eq!(client.call(&"how long is this?".to_owned()).await?, 17);
/// drop(client);
/// serving.await?;
/// # Ok(())
/// # }
/// ```
pub struct AsyncTypedCalls<Q, A, C = Postcard> {
    end: AsyncCallEnd,
    core: CallsCore<Q, A, C>,
}

impl<Q, A, C> fmt::Debug for AsyncTypedCalls<Q, A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncTypedCalls").field(&self.end).finish()
    }
}

impl<Q, A, C> AsyncTypedCalls<Q, A, C> {
    /// Puts an end for typed calls into `reactor`.
    ///
    /// # Errors
    /// The errors of [`AsyncCallEnd::new`]; the end is dropped.
    pub fn new(calls: TypedCalls<Q, A, C>, reactor: &Reactor) -> Result<Self, strait::Error> {
        let (end, core) = calls.into_parts();
        Ok(Self { end: AsyncCallEnd::new(end, reactor)?, core })
    }

    /// Returns the call end, for counters and for calls that do not wait.
    pub fn end(&self) -> &AsyncCallEnd {
        &self.end
    }

    /// Takes the end out of the reactor and returns it. Tasks that wait for the end are not woken.
    pub fn into_calls(self) -> TypedCalls<Q, A, C> {
        TypedCalls::from_parts(self.end.into_inner(), self.core)
    }
}

impl<Q, A: Send + 'static, C: Encode<Q> + Codec<Q> + DecodeOwned<A> + Codec<A>> AsyncTypedCalls<Q, A, C> {
    /// Sends a request and waits for the reply. For a deadline, use the timeout of the runtime.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the call. Whether the request was carried out is then unknown, as after a deadline.
    /// The handles of a request that was not sent are closed.
    ///
    /// # Errors
    /// As [`TypedCalls::call`], except the errors of the deadline.
    pub async fn call(&self, request: &Q) -> Result<A, CallError> {
        self.greet().await?;
        let (bytes, mut outbound) = calls::encoded::<Q, C>(request)?;
        let message = Outgoing::new(&bytes).handles(outbound.take_handles());
        match self.end.call(message).await {
            Ok(reply) => calls::value_of::<A, C>(reply),
            Err(failed) => Err(calls::taken_back(failed, &mut outbound)),
        }
    }

    /// Compares the types of the two ends by a call, before the first call of this end. Several tasks may do so at
    /// once.
    async fn greet(&self) -> Result<(), CallError> {
        if self.core.has_greeted()? {
            return Ok(());
        }
        let ours = Hello::of::<Q, A, C>();
        let reply = self.end.call(&ours.to_bytes()).await.map_err(CallError::Call)?;
        self.core.greeted_by(self.end.get_ref().channel(), &ours, &reply)
    }
}

impl<Q: Send + 'static, A, C: DecodeOwned<Q> + Codec<Q> + Codec<A>> AsyncTypedCalls<Q, A, C> {
    /// Waits for the next request of the other end, and returns it.
    ///
    /// # Cancel safety
    /// Dropping the future loses no request.
    ///
    /// # Errors
    /// As [`TypedCalls::next_request`], except the errors of the deadline. If a request for the types finds no room for
    /// its reply, the error is [`strait::Error::WouldBlock`]; the caller is told that there is no answer, and may ask
    /// again.
    pub async fn next_request(&self) -> Result<TypedRequest<Q, A, C>, RecvError> {
        loop {
            let request = self.end.next_request().await?;
            let channel = self.end.get_ref().channel();
            if let Some(request) = self.core.request_of(channel, request, Deadline::NOW)? {
                return Ok(request);
            }
            // A peer may ask for the types without end.
            yield_now().await;
        }
    }
}

impl<Q, A, C: Encode<A>> AsyncTypedCalls<Q, A, C> {
    /// Sends the reply to `request`, a request of this end; waits for room. For a deadline, use the timeout of the
    /// runtime. After an error the caller learns that there is no reply.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, nothing was sent, the caller learns that there is no reply, and the
    /// handles of the reply are closed.
    ///
    /// # Panics
    /// If the request came to another end.
    ///
    /// # Errors
    /// As [`TypedRequest::reply`], except the errors of the deadline.
    pub async fn reply(&self, request: TypedRequest<Q, A, C>, reply: &A) -> Result<(), SendError> {
        let (bytes, mut outbound) = calls::encoded_reply::<A, C>(reply)?;
        let message = Outgoing::new(&bytes).handles(outbound.take_handles());
        let mut replier = request.into_replier();
        self.end.reply(&mut replier, message).await.map_err(|failed| {
            outbound.give_back(failed.handles);
            SendError::Channel(failed.error)
        })
    }
}

/// Lets other tasks run before this task goes on.
async fn yield_now() {
    let mut has_yielded = false;
    poll_fn(|context| {
        if has_yielded {
            return Poll::Ready(());
        }
        has_yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}
