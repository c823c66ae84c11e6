//! Ends of data pipes for tasks.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::Reactor;
use super::source::{Object, Source};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::pipe::{DataConsumer, DataProducer, Room, Unread};
use crate::wait_set::Interest;

/// The writing end of a data pipe for tasks.
pub struct AsyncProducer {
    source: Arc<Source<DataProducer>>,
}

/// The reading end of a data pipe for tasks.
pub struct AsyncConsumer {
    source: Arc<Source<DataConsumer>>,
}

/// What a try comes to, or waiting.
fn or_wait<T, O: Object>(
    attempt: impl FnOnce() -> Result<T, Error>,
    source: &Source<O>,
    interest: Interest,
    context: &mut Context<'_>,
) -> Poll<Result<T, Error>> {
    ready!(source.poll_turn(context));
    match attempt() {
        Err(Error::WouldBlock) => match source.wait(context.waker(), interest) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        },
        done => Poll::Ready(done),
    }
}

impl AsyncProducer {
    /// Puts an end into a reactor.
    ///
    /// # Errors
    /// As [`WaitSet::add`](crate::WaitSet::add); the end is dropped.
    pub fn new(producer: DataProducer, reactor: &Reactor) -> Result<Self, Error> {
        Source::new(producer, reactor).map(|source| Self { source })
    }

    /// The end, for what does not wait.
    pub fn get_ref(&self) -> &DataProducer {
        self.source.object()
    }

    /// Takes the end out of the reactor.
    pub fn into_inner(self) -> DataProducer {
        self.source.into_object()
    }

    /// Writes what there is room for, at least one element; waits for it.
    ///
    /// # Cancel safety
    /// A future that is dropped has written nothing.
    ///
    /// # Errors
    /// As [`DataProducer::write_by`], but for the deadline.
    pub async fn write(&self, bytes: &[u8]) -> Result<usize, Error> {
        poll_fn(|context| self.poll_write(context, bytes)).await
    }

    /// The same for a future of one's own.
    ///
    /// # Errors
    /// As [`AsyncProducer::write`].
    pub fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, Error>> {
        // Its event is that it is writable, for which it listens as for the only thing there is.
        or_wait(|| self.get_ref().try_write(bytes), &self.source, Interest::Writable, context)
    }

    /// Writes all of it, piece by piece.
    ///
    /// # Cancel safety
    /// A future that is dropped may have written some of it.
    ///
    /// # Errors
    /// As [`AsyncProducer::write`]; [`Error::NotElements`] if it is not whole elements.
    pub async fn write_all(&self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            bytes = &bytes[self.write(bytes).await?..];
        }
        Ok(())
    }

    /// Says that nothing more comes, as [`DataProducer::finish_by`].
    ///
    /// # Cancel safety
    /// A future that is dropped has said nothing.
    ///
    /// # Errors
    /// As there, but for the deadline.
    pub async fn finish(&self) -> Result<(), Error> {
        poll_fn(|context| self.poll_finish(context)).await
    }

    /// The same for a future of one's own.
    ///
    /// # Errors
    /// As [`AsyncProducer::finish`].
    pub fn poll_finish(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        or_wait(|| self.get_ref().finish_by(Deadline::NOW), &self.source, Interest::Writable, context)
    }

    /// As [`DataProducer::begin_write`].
    ///
    /// # Errors
    /// As there, but for the deadline.
    pub async fn begin_write(&self) -> Result<Room<'_>, Error> {
        let begin = || self.get_ref().begin_write(Deadline::NOW);
        poll_fn(move |context| or_wait(begin, &self.source, Interest::Writable, context)).await
    }
}

impl AsyncConsumer {
    /// Puts an end into a reactor.
    ///
    /// # Errors
    /// As [`WaitSet::add`](crate::WaitSet::add); the end is dropped.
    pub fn new(consumer: DataConsumer, reactor: &Reactor) -> Result<Self, Error> {
        Source::new(consumer, reactor).map(|source| Self { source })
    }

    /// The end, for what does not wait.
    pub fn get_ref(&self) -> &DataConsumer {
        self.source.object()
    }

    /// Takes the end out of the reactor.
    pub fn into_inner(self) -> DataConsumer {
        self.source.into_object()
    }

    /// Reads what is there, at least one element; waits for it. 0 bytes at the end of the stream.
    ///
    /// # Cancel safety
    /// A future that is dropped has read nothing.
    ///
    /// # Errors
    /// As [`DataConsumer::read_by`], but for the deadline.
    pub async fn read(&self, out: &mut [u8]) -> Result<usize, Error> {
        poll_fn(|context| self.poll_read(context, out)).await
    }

    /// The same for a future of one's own.
    ///
    /// # Errors
    /// As [`AsyncConsumer::read`].
    pub fn poll_read(&self, context: &mut Context<'_>, out: &mut [u8]) -> Poll<Result<usize, Error>> {
        or_wait(|| self.get_ref().try_read(out), &self.source, Interest::Readable, context)
    }

    /// As [`DataConsumer::begin_read`].
    ///
    /// # Errors
    /// As there, but for the deadline.
    pub async fn begin_read(&self) -> Result<Unread<'_>, Error> {
        let begin = || self.get_ref().begin_read(Deadline::NOW);
        poll_fn(move |context| or_wait(begin, &self.source, Interest::Readable, context)).await
    }
}

impl fmt::Debug for AsyncProducer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncProducer").field(self.get_ref()).finish()
    }
}

impl fmt::Debug for AsyncConsumer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncConsumer").field(self.get_ref()).finish()
    }
}
