//! The receiving side of a ring.

use std::time::Instant;

use crate::memory::read_whole;
use crate::ring::{Consumer, Corrupt, Header, Memory, NextRecord, Record, RecordKind, announce, take_sleeper};
use crate::sender::{ASLEEP, AWAKE};
use crate::{Error, Peer, RingMemory, Sleep};

/// Receives the messages of a ring in the order of sending. Dropping the receiver closes the ring; messages not
/// received are lost.
#[derive(Debug)]
pub struct Receiver<S: Sleep> {
    consumer: Consumer<RingMemory>,
    sleep: S,
}

impl<S: Sleep> Receiver<S> {
    /// Creates the receiver of a ring in `memory`, from which nothing was received yet. The receiver sleeps and wakes
    /// by `sleep`.
    pub fn new(memory: RingMemory, sleep: S) -> Self {
        Self { consumer: Consumer::new(memory, u64::MAX), sleep }
    }

    /// Receives the next message: replaces the contents of `message` by its bytes. Waits while the ring is empty.
    ///
    /// # Errors
    /// [`Error::Closed`] after the last message, [`Error::Corrupt`]. `message` is unchanged then.
    #[inline]
    pub fn recv(&mut self, message: &mut Vec<u8>) -> Result<(), Error> {
        match self.try_recv(message) {
            Err(Error::WouldBlock) => self.recv_when_there(message, None),
            received => received,
        }
    }

    /// Receives the next message: replaces the contents of `message` by its bytes. Waits while the ring is empty, at
    /// most until `deadline`.
    ///
    /// # Errors
    /// [`Error::TimedOut`], and the errors of [`Receiver::recv`].
    pub fn recv_by(&mut self, message: &mut Vec<u8>, deadline: Instant) -> Result<(), Error> {
        match self.try_recv(message) {
            Err(Error::WouldBlock) => self.recv_when_there(message, Some(deadline)),
            received => received,
        }
    }

    /// Receives the next message without waiting: replaces the contents of `message` by its bytes.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the ring is empty now, and the errors of [`Receiver::recv`].
    #[inline]
    pub fn try_recv(&mut self, message: &mut Vec<u8>) -> Result<(), Error> {
        let record = match self.consumer.plain() {
            Some(record) => record,
            None => self.next_message()?,
        };
        self.take(record, message);
        Ok(())
    }

    /// Returns the next record if that record is a message.
    fn next_message(&mut self) -> Result<Record, Error> {
        match self.consumer.next_record() {
            Ok(NextRecord::Empty) => Err(Error::WouldBlock),
            Ok(NextRecord::Record(record)) if is_message(record.header) => Ok(record),
            Ok(NextRecord::Record(record)) if record.header.kind() == RecordKind::Closed => Err(Error::Closed),
            Ok(NextRecord::Record(_)) => Err(Error::Corrupt("a record of a kind that no sender writes")),
            Err(Corrupt(what)) => Err(Error::Corrupt(what)),
        }
    }

    #[inline]
    fn take(&mut self, record: Record, message: &mut Vec<u8>) {
        read_whole(&self.consumer, record, message);
        if self.consumer.advance(record) {
            self.give_credit();
        }
    }

    fn give_credit(&mut self) {
        self.consumer.give_credit();
        self.wake();
    }

    fn wake(&self) {
        let waiting = self.consumer.memory().waiting();
        if take_sleeper(waiting) != 0 {
            self.sleep.wake(waiting);
        }
    }

    #[cold]
    fn recv_when_there(&mut self, message: &mut Vec<u8>, deadline: Option<Instant>) -> Result<(), Error> {
        let mut peer = Peer::Alive;
        loop {
            match self.try_recv(message) {
                Err(Error::WouldBlock) if peer == Peer::Gone => return Err(Error::Closed),
                Err(Error::WouldBlock) => {}
                received => return received,
            }
            if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                return Err(Error::TimedOut);
            }
            let sleeping = self.consumer.memory().sleeping();
            announce::<RingMemory>(sleeping, ASLEEP);
            if self.consumer.is_empty() {
                peer = self.sleep.wait(sleeping, ASLEEP, deadline);
            }
            announce::<RingMemory>(sleeping, AWAKE);
        }
    }
}

impl<S: Sleep> Drop for Receiver<S> {
    fn drop(&mut self) {
        // Only the first free header can take the mark. A sender can publish no more than one ring without credit, so
        // the loop ends whatever the sender does.
        while !self.consumer.end(RecordKind::Closed) {
            match self.next_message() {
                Ok(record) => {
                    self.consumer.advance(record);
                }
                Err(_) => break,
            }
        }
        self.wake();
    }
}

/// Returns whether `header` is the header of a message sent by a [`Sender`](crate::Sender).
fn is_message(header: Header) -> bool {
    header == Header::new(RecordKind::Message, header.len(), 0)
}
