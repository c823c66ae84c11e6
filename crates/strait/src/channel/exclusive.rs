//! An end that one thread has to itself for a while.

use super::recv::Rx;
use super::send::Tx;
use super::{Channel, End};
use crate::deadline::Deadline;
use crate::error::{Error, SendError, SendManyError};
use crate::fork;
use crate::lock::Guard;
use crate::message::{Message, Outgoing, Received};

/// Both directions of an end, held by one thread: for one that exchanges many small messages and wants the last few
/// nanoseconds. A call on it takes no lock. Other threads that use the end wait until this is dropped.
///
/// ```
/// use strait::{Channel, Deadline, Message};
/// let (a, b) = Channel::pair()?;
/// let mut mine = a.exclusive(Deadline::NEVER)?;
/// let mut theirs = b.exclusive(Deadline::NEVER)?;
/// let mut message = Message::new();
/// for n in 0..1000u64 {
///     mine.send(&n.to_le_bytes())?;
///     theirs.recv_to(&mut message, Deadline::NEVER)?;
///     assert_eq!(message.bytes(), n.to_le_bytes());
/// }
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug)]
pub struct Exclusive<'a> {
    end: &'a End,
    tx: Guard<'a, Tx>,
    rx: Guard<'a, Rx>,
}

impl Channel {
    /// Takes both directions of this end; waits until the deadline for threads that are using it.
    ///
    /// # Errors
    /// [`Error::TimedOut`], or [`Error::WouldBlock`] with [`Deadline::NOW`]; [`Error::Forked`].
    pub fn exclusive(&self, deadline: impl Into<Deadline>) -> Result<Exclusive<'_>, Error> {
        let deadline = deadline.into();
        fork::check()?;
        let (tx, rx) = self.end.lock_both(deadline)?;
        tx.keep();
        rx.keep();
        Ok(Exclusive { end: &self.end, tx, rx })
    }
}

impl End {
    /// Waits for one lock at a time, with nothing in hand: others may hold one while they wait for the other.
    fn lock_both(&self, deadline: Deadline) -> Result<(Guard<'_, Tx>, Guard<'_, Rx>), Error> {
        loop {
            let tx = self.tx.0.lock(deadline)?;
            if let Some(rx) = self.rx.0.try_lock() {
                return Ok((tx, rx));
            }
            drop(tx);
            let rx = self.rx.0.lock(deadline)?;
            if let Some(tx) = self.tx.0.try_lock() {
                return Ok((tx, rx));
            }
        }
    }
}

impl Exclusive<'_> {
    /// As [`Channel::send`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn send<'a>(&mut self, message: impl Into<Outgoing<'a>>) -> Result<(), SendError> {
        self.send_by(message, Deadline::NEVER)
    }

    /// As [`Channel::send_by`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn send_by<'a>(
        &mut self,
        message: impl Into<Outgoing<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<(), SendError> {
        let mut message = message.into();
        fork::check()
            .and_then(|()| self.end.check_open(&self.tx))
            .and_then(|()| self.end.send_locked(&mut self.tx, &message, deadline.into()))
            .map_err(|error| SendError::new(error, std::mem::take(&mut message.handles)))
    }

    /// As [`Channel::send_many`].
    ///
    /// # Errors
    /// As there.
    pub fn send_many<'a, I>(&mut self, messages: I, deadline: impl Into<Deadline>) -> Result<usize, SendManyError>
    where
        I: IntoIterator,
        I::Item: Into<Outgoing<'a>>,
    {
        let failed = |error| SendManyError { sent: 0, failed: SendError::new(error, Vec::new()) };
        fork::check().and_then(|()| self.end.check_open(&self.tx)).map_err(failed)?;
        self.end.send_many_locked(&mut self.tx, messages.into_iter().map(Into::into), deadline.into())
    }

    /// As [`Channel::recv`].
    ///
    /// # Errors
    /// As there.
    pub fn recv(&mut self) -> Result<Message, Error> {
        let mut message = Message::new();
        self.recv_to(&mut message, Deadline::NEVER)?;
        Ok(message)
    }

    /// As [`Channel::recv_to`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn recv_to(&mut self, message: &mut Message, deadline: impl Into<Deadline>) -> Result<(), Error> {
        message.clear();
        fork::check()?;
        self.end.recv_locked(&mut self.rx, message, deadline.into())
    }

    /// As [`Channel::recv_into`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn recv_into(&mut self, buffer: &mut [u8], deadline: impl Into<Deadline>) -> Result<Received, Error> {
        fork::check()?;
        self.end.recv_into_locked(&mut self.rx, buffer, deadline.into())
    }
}
