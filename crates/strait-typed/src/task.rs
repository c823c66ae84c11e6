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

use strait::Deadline;
use strait::task::{AsyncChannel, Reactor};

use crate::codec::{Codec, DecodeOwned, Encode};
use crate::core::Core;
use crate::error::{RecvError, SendError};
use crate::{Postcard, Typed};

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
