//! What a send that fails gives back.

use std::fmt;

use crate::channel::handle::Handle;
use crate::error::Error;

/// A message that was not sent. Its handles come back; its bytes were only borrowed.
#[derive(Debug)]
pub struct SendError {
    /// Why.
    pub error: Error,
    /// The handles of the message, none of which the peer got for good.
    pub handles: Vec<Handle>,
}

impl SendError {
    pub(crate) fn new(error: Error, handles: Vec<Handle>) -> Self {
        Self { error, handles }
    }
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for SendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<SendError> for Error {
    /// Keeps the reason; the handles are closed.
    fn from(failed: SendError) -> Self {
        failed.error
    }
}

impl From<SendError> for std::io::Error {
    fn from(failed: SendError) -> Self {
        failed.error.into()
    }
}

/// A batch of messages of which some were not sent.
#[derive(Debug)]
pub struct SendManyError {
    /// How many were sent before.
    pub sent: usize,
    /// The first that was not, and why. The rest were not taken from the caller's iterator.
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
    /// Keeps the reason; the handles are closed.
    fn from(failed: SendManyError) -> Self {
        failed.failed.error
    }
}
