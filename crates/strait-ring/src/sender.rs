//! The sending side of a ring.

use std::time::Instant;

use crate::ring::{Ended, Header, MAX_MESSAGE, Memory, NoRoom, Producer, RecordKind, announce, take_sleeper};
use crate::{Error, Peer, RingMemory, Sleep};

/// Sends messages into a ring. Dropping the sender closes the ring; the receiver gets all messages that were sent
/// before.
#[derive(Debug)]
pub struct Sender<S: Sleep> {
    producer: Producer<RingMemory>,
    sleep: S,
}

impl<S: Sleep> Sender<S> {
    /// Creates the sender of a ring in `memory`, which must be all zeroes. The sender sleeps and wakes by `sleep`.
    pub fn new(memory: RingMemory, sleep: S) -> Self {
        Self { producer: Producer::new(memory), sleep }
    }

    /// Returns the number of bytes of the longest message for this ring.
    pub fn longest(&self) -> usize {
        self.producer.longest_payload().min(MAX_MESSAGE)
    }

    /// Sends `message`; waits while the ring has no room.
    ///
    /// # Errors
    /// [`Error::Closed`], [`Error::TooLong`], [`Error::Corrupt`].
    #[inline]
    pub fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        match self.try_send(message) {
            Err(Error::WouldBlock) => self.send_when_free(message, None),
            sent => sent,
        }
    }

    /// Sends `message`; waits while the ring has no room, at most until `deadline`.
    ///
    /// # Errors
    /// [`Error::TimedOut`], and the errors of [`Sender::send`].
    pub fn send_by(&mut self, message: &[u8], deadline: Instant) -> Result<(), Error> {
        match self.try_send(message) {
            Err(Error::WouldBlock) => self.send_when_free(message, Some(deadline)),
            sent => sent,
        }
    }

    /// Sends `message` without waiting.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the ring has no room now, and the errors of [`Sender::send`].
    #[inline]
    pub fn try_send(&mut self, message: &[u8]) -> Result<(), Error> {
        if message.len() > self.longest() {
            return Err(Error::TooLong);
        }
        if !self.producer.push(message) {
            self.publish(message)?;
        }
        self.wake();
        Ok(())
    }

    /// Publishes `message` by the longer path, or finds out why the message cannot be published.
    fn publish(&mut self, message: &[u8]) -> Result<(), Error> {
        let staged = self.producer.stage(Header::new(RecordKind::Message, message.len(), 0));
        let slot = staged.map_err(|reason| match reason {
            NoRoom::Full => self.ended().unwrap_or(Error::WouldBlock),
            NoRoom::TooLong => Error::TooLong,
            NoRoom::Corrupt => Error::Corrupt("an impossible credit"),
        })?;
        self.producer.write(slot, 0, message);
        self.producer.commit().map_err(|ended| {
            self.producer.discard();
            reason_of(ended)
        })
    }

    /// Returns the error with which calls fail if the receiver has closed the ring.
    fn ended(&self) -> Option<Error> {
        self.producer.ended().map(reason_of)
    }

    #[inline]
    fn wake(&self) {
        let sleeping = self.producer.memory().sleeping();
        if take_sleeper(sleeping) != 0 {
            self.sleep.wake(sleeping);
        }
    }

    #[cold]
    fn send_when_free(&mut self, message: &[u8], deadline: Option<Instant>) -> Result<(), Error> {
        let mut peer = Peer::Alive;
        loop {
            match self.try_send(message) {
                Err(Error::WouldBlock) if peer == Peer::Gone => return Err(Error::Closed),
                Err(Error::WouldBlock) => {}
                sent => return sent,
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(Error::TimedOut);
            }
            let waiting = self.producer.memory().waiting();
            announce::<RingMemory>(waiting, ASLEEP);
            if !self.producer.has_news() && self.producer.ended().is_none() {
                peer = self.sleep.wait(waiting, ASLEEP, deadline);
            }
            announce::<RingMemory>(waiting, AWAKE);
        }
    }
}

impl<S: Sleep> Drop for Sender<S> {
    fn drop(&mut self) {
        // The call fails only if the receiver has closed the ring already.
        let _ = self.producer.end(RecordKind::Closed, &[]);
        self.wake();
    }
}

/// Values of a sleep word.
pub(crate) const AWAKE: u32 = 0;
pub(crate) const ASLEEP: u32 = 1;

fn reason_of(ended: Ended) -> Error {
    match ended {
        Ended(Some(RecordKind::Closed)) => Error::Closed,
        Ended(_) => Error::Corrupt("a record where the sender writes"),
    }
}
