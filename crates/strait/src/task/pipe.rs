//! Ends of data pipes for tasks.

use std::fmt;
use std::future::poll_fn;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::Reactor;
use super::source::{Object, Source, Waiting};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::pipe::{DataConsumer, DataProducer, Room, Unread};
use crate::wait_set::Interest;

/// The writing end of a data pipe for tasks: writing waits without blocking a thread.
///
/// Example: [tasks](crate::task).
pub struct AsyncProducer {
    source: Arc<Source<DataProducer>>,
}

/// The reading end of a data pipe for tasks: reading waits without blocking a thread.
///
/// Example: [tasks](crate::task).
pub struct AsyncConsumer {
    source: Arc<Source<DataConsumer>>,
}

/// Calls `attempt` and returns its result. If `attempt` fails with [`Error::WouldBlock`], returns `Pending` instead,
/// and registers the task: it is woken when the data-pipe end may be ready to read or to write, as `interest` says.
/// `future` is the future that the task polls, if it is one of the library.
fn or_wait<T, O: Object>(
    attempt: impl FnOnce() -> Result<T, Error>,
    source: &Source<O>,
    future: Option<&mut Waiting<'_, O>>,
    interest: Interest,
    context: &mut Context<'_>,
) -> Poll<Result<T, Error>> {
    ready!(source.poll_turn(context));
    match attempt() {
        Err(Error::WouldBlock) => match source.wait(future, context.waker(), interest) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        },
        done => Poll::Ready(done),
    }
}

/// Calls `attempt`, which must not wait, again and again until the result is not [`Error::WouldBlock`].
async fn wait_for<T, O: Object>(
    mut attempt: impl FnMut() -> Result<T, Error>,
    source: &Source<O>,
    interest: Interest,
) -> Result<T, Error> {
    let mut waiting = source.waiting();
    poll_fn(move |context| or_wait(&mut attempt, source, Some(&mut waiting), interest, context)).await
}

impl AsyncProducer {
    /// Puts the writing end `producer` into `reactor`.
    ///
    /// # Errors
    /// As [`WaitSet::add`](crate::wait::WaitSet::add); the end is dropped.
    pub fn new(producer: DataProducer, reactor: &Reactor) -> Result<Self, Error> {
        Source::new(producer, reactor).map(|source| Self { source })
    }

    /// Returns the writing end, for calls that do not wait.
    pub fn get_ref(&self) -> &DataProducer {
        self.source.object()
    }

    /// Takes the writing end out of the reactor, and returns it. Tasks that wait for the end are not woken.
    pub fn into_inner(self) -> DataProducer {
        self.source.into_object()
    }

    /// Writes as many of `bytes` as there is room for, at least one element; waits for room for an element. Returns the
    /// number of bytes written: 0 only if `bytes` is empty.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, nothing was written.
    ///
    /// # Errors
    /// As [`DataProducer::write_some`], except the errors of the deadline; [`Error::ReactorEnded`] if the task would
    /// have to wait and the reactor has ended.
    pub async fn write(&self, bytes: &[u8]) -> Result<usize, Error> {
        wait_for(|| self.get_ref().write_some(bytes, Deadline::NOW), &self.source, Interest::Writable).await
    }

    /// Writes as much of `bytes` as there is room for, as the future of [`write`](Self::write) does; for futures
    /// written by hand. If there is no room, returns `Pending`, and the task of `context` is woken when there is room.
    ///
    /// # Errors
    /// As [`AsyncProducer::write`].
    pub fn poll_write(&self, context: &mut Context<'_>, bytes: &[u8]) -> Poll<Result<usize, Error>> {
        // A producer has only one event: being writable.
        or_wait(|| self.get_ref().write_some(bytes, Deadline::NOW), &self.source, None, Interest::Writable, context)
    }

    /// Writes all of `bytes`, piece by piece, and waits for room whenever there is none.
    ///
    /// # Cancel safety
    /// A future that is dropped may have written some of the bytes.
    ///
    /// # Errors
    /// As [`AsyncProducer::write`]; [`Error::NotElements`] if `bytes` is not a whole number of elements.
    pub async fn write_all(&self, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            bytes = &bytes[self.write(bytes).await?..];
        }
        Ok(())
    }

    /// Ends the stream without dropping the end, as [`DataProducer::finish`] does; waits for other threads that write.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, the stream has not ended.
    ///
    /// # Errors
    /// As [`DataProducer::finish`], except the errors of the deadline.
    pub async fn finish(&self) -> Result<(), Error> {
        wait_for(|| self.get_ref().finish(Deadline::NOW), &self.source, Interest::Writable).await
    }

    /// Ends the stream, as the future of [`finish`](Self::finish) does; for futures written by hand. Returns `Pending`
    /// while another thread uses the end; then the task of `context` is woken.
    ///
    /// # Errors
    /// As [`AsyncProducer::finish`].
    pub fn poll_finish(&self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        or_wait(|| self.get_ref().finish(Deadline::NOW), &self.source, None, Interest::Writable, context)
    }

    /// Takes the end out of the reactor, and aborts the stream with `reason`, as [`DataProducer::abort`] does. For a
    /// task that may be dropped, [set the reason](DataProducer::set_abort_reason) at its start.
    pub fn abort(self, reason: u32) {
        self.into_inner().abort(reason);
    }

    /// Waits for room and returns the room, to be filled in place, as [`DataProducer::begin_write`] does.
    ///
    /// # Errors
    /// As [`AsyncProducer::write`].
    pub async fn begin_write(&self) -> Result<Room<'_>, Error> {
        let begin = || self.get_ref().begin_write(Deadline::NOW);
        wait_for(begin, &self.source, Interest::Writable).await
    }
}

impl AsyncConsumer {
    /// Puts the reading end `consumer` into `reactor`.
    ///
    /// # Errors
    /// As [`WaitSet::add`](crate::wait::WaitSet::add); the end is dropped.
    pub fn new(consumer: DataConsumer, reactor: &Reactor) -> Result<Self, Error> {
        Source::new(consumer, reactor).map(|source| Self { source })
    }

    /// Returns the reading end, for calls that do not wait.
    pub fn get_ref(&self) -> &DataConsumer {
        self.source.object()
    }

    /// Takes the reading end out of the reactor, and returns it. Tasks that wait for the end are not woken.
    pub fn into_inner(self) -> DataConsumer {
        self.source.into_object()
    }

    /// Reads the bytes that are there into `out`, at least one element; waits for an element. Returns the number of
    /// bytes read: 0 at the end of the stream, or if `out` is empty.
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, nothing was read.
    ///
    /// # Errors
    /// As [`DataConsumer::read_some`], except the errors of the deadline; [`Error::ReactorEnded`] if the task would
    /// have to wait and the reactor has ended.
    pub async fn read(&self, out: &mut [u8]) -> Result<usize, Error> {
        wait_for(|| self.get_ref().read_some(out, Deadline::NOW), &self.source, Interest::Readable).await
    }

    /// Reads the bytes that are there into `out`, as the future of [`read`](Self::read) does; for futures written by
    /// hand. If there are none, returns `Pending`, and the task of `context` is woken when there are some.
    ///
    /// # Errors
    /// As [`AsyncConsumer::read`].
    pub fn poll_read(&self, context: &mut Context<'_>, out: &mut [u8]) -> Poll<Result<usize, Error>> {
        or_wait(|| self.get_ref().read_some(out, Deadline::NOW), &self.source, None, Interest::Readable, context)
    }

    /// Reads as [`poll_read`](Self::poll_read) does, into memory that need not be initialized. Returns the read bytes:
    /// the first bytes of `out`, which are initialized now.
    ///
    /// # Errors
    /// As [`AsyncConsumer::read`].
    pub fn poll_read_uninit<'o>(
        &self,
        context: &mut Context<'_>,
        out: &'o mut [MaybeUninit<u8>],
    ) -> Poll<Result<&'o mut [u8], Error>> {
        let source = &self.source;
        or_wait(|| source.object().read_some_uninit(out, Deadline::NOW), source, None, Interest::Readable, context)
    }

    /// Takes the end out of the reactor, and closes it with `reason`, as [`DataConsumer::abort`] does.
    pub fn abort(self, reason: u32) {
        self.into_inner().abort(reason);
    }

    /// Waits for bytes and returns the bytes, to be read in place, as [`DataConsumer::begin_read`] does.
    ///
    /// # Errors
    /// As [`AsyncConsumer::read`].
    pub async fn begin_read(&self) -> Result<Unread<'_>, Error> {
        let begin = || self.get_ref().begin_read(Deadline::NOW);
        wait_for(begin, &self.source, Interest::Readable).await
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
