//! Errors of sending, with the handles of messages that were not sent.

use std::fmt;

use crate::channel::handle::Handle;
use crate::error::Error;

/// The error of a send. The message was not sent; the error contains its handles. The bytes still belong to the
/// caller.
///
/// ```
/// use strait::{Channel, Error, Outgoing};
/// let (a, b) = Channel::pair()?;
/// let (end, _other) = Channel::pair()?;
/// drop(b);
/// let failed = a.send(Outgoing::new(b"take this").handle(end)).unwrap_err();
/// assert_eq!((failed.error, failed.handles.len()), (Error::PeerClosed, 1));
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug)]
pub struct SendError {
    /// The reason why the message was not sent.
    pub error: Error,
    /// All handles of the message that was not sent. The receiver gets no handle of this message.
    pub handles: Vec<Handle>,
}

impl SendError {
    pub(crate) fn new(error: Error, handles: Vec<Handle>) -> Self {
        Self { error, handles }
    }
}

/// The obstacles that keep a send waiting, for the texts of errors.
const OBSTACLES: &str = "the ring, the socket or a limit on what is in flight (Options::queue_messages, queue_bytes, \
                         queue_handles) was full, or an end was in transit, or another thread used this end";

/// Writes the reason why a message was not sent, in the terms of a sender. For a send that had to wait, the text names
/// the obstacles.
pub(super) fn write_reason(error: Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match error {
        Error::WouldBlock => write!(
            f,
            "would block: the message was not sent, as {OBSTACLES}; give a later deadline, or send again once \
             WaitSet::await_room reports room for this message"
        ),
        Error::TimedOut => write!(
            f,
            "timed out: the message was not sent before the deadline, as {OBSTACLES}; check that the peer receives, \
             or give a later deadline"
        ),
        other => fmt::Display::fmt(&other, f),
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_reason(self.error, f)
    }
}

impl std::error::Error for SendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<SendError> for Error {
    /// Returns the reason why the message was not sent, and closes the handles of the message.
    fn from(failed: SendError) -> Self {
        failed.error
    }
}

impl From<SendError> for std::io::Error {
    fn from(failed: SendError) -> Self {
        failed.error.into()
    }
}

/// The error of [`Channel::send_many`](crate::Channel::send_many): some messages of the batch were not sent.
///
/// Example: [a batch](crate::Channel::send_many).
#[derive(Debug)]
pub struct SendManyError {
    /// Number of messages that were sent before the failure.
    pub sent: usize,
    /// The error of the first unsent message, with its handles. The messages after it were not taken from the caller's
    /// iterator.
    pub failed: SendError,
}

impl fmt::Display for SendManyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} messages were sent, the next one was not: {}", self.sent, self.failed)
    }
}

impl std::error::Error for SendManyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.failed.error)
    }
}

impl From<SendManyError> for Error {
    /// Returns the reason why the first unsent message was not sent, and closes the handles of that message.
    fn from(failed: SendManyError) -> Self {
        failed.failed.error
    }
}

impl From<SendManyError> for std::io::Error {
    fn from(failed: SendManyError) -> Self {
        Error::from(failed).into()
    }
}
