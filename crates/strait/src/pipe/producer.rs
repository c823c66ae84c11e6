//! The writing end of a data pipe.

use std::io::{self, Write};
use std::mem::MaybeUninit;
use std::sync::{Arc, Weak};

use super::end::Waited;
use crate::channel::Interrupter;
use crate::channel::pipe_end::{DataProducer, PipeEndLocked, ProducerShared};
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::Error;
use crate::kept::{self, Borrowed};
use crate::os::fault;
use crate::ring::stream::{Span, Writing};
use crate::wake::lock::Guard;

/// The state of the writing end of a data pipe that one thread at a time uses.
type State = PipeEndLocked<Writing, Error>;

impl DataProducer {
    /// Returns the number of bytes in one element of the pipe. Does not block, whatever other threads do with the end.
    pub fn element(&self) -> usize {
        self.shared.shape.element as usize
    }

    /// Returns the number of bytes in the pipe's buffer. Does not block, whatever other threads do with the end.
    pub fn capacity(&self) -> usize {
        self.shared.shape.capacity as usize
    }

    /// Returns the number of bytes that could be written now without waiting.
    ///
    /// # Errors
    /// [`Error::PeerClosed`] if the consumer is known to be closed; [`Error::WouldBlock`] while another thread waits or
    /// holds [`Room`]; [`Error::BadPeer`]; [`Error::Forked`].
    pub fn room(&self) -> Result<usize, Error> {
        deferred::run_if_failed(self.shared.lock(Deadline::NOW).and_then(|mut state| {
            self.shared.refresh(&mut state)?;
            Ok(state.index.room() as usize)
        }))
    }

    /// Writes as many of `bytes` as there is room for, at least one element; waits for room for an element until
    /// `deadline`. Returns the number of bytes written: 0 only if `bytes` is empty.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], [`Error::TimedOut`]; [`Error::PeerClosed`] if the consumer is closed, or
    /// [`Error::Aborted`] if it was closed with a reason; [`Error::NotElements`] if `bytes` is less than an element;
    /// [`Error::BadPeer`]; [`Error::Forked`].
    pub fn write_some(&self, bytes: &[u8], deadline: impl Into<Deadline>) -> Result<usize, Error> {
        deferred::run_if_failed(self.shared.write(bytes, false, deadline.into()))
    }

    /// Writes all of `bytes`, or nothing; waits for room for all of them until `deadline`. The consumer sees all the
    /// bytes at once.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `bytes` is longer than the [capacity](Self::capacity); [`Error::NotElements`] if
    /// `bytes` is not a whole number of elements; otherwise as [`DataProducer::write_some`].
    pub fn write_whole(&self, bytes: &[u8], deadline: impl Into<Deadline>) -> Result<(), Error> {
        deferred::run_if_failed(self.shared.write(bytes, true, deadline.into()).map(|_| ()))
    }

    /// Returns free room, at least one element, to be filled in place; waits for room until the deadline. The room is
    /// contiguous in memory: if free room continues at the start of the buffer, the next call returns the rest.
    ///
    /// Other threads cannot write while the returned value exists.
    ///
    /// ```
    /// let (producer, consumer) = strait::pipe::DataPipe::pair(4096)?;
    /// let mut room = producer.begin_write(strait::Deadline::NEVER)?;
    /// assert_eq!(room.len(), 4096);
    /// room.write_at(b"in place", 0);
    /// room.commit(8);
    /// let mut out = [0; 8];
    /// consumer.read_whole(&mut out, strait::Deadline::NOW)?;
    /// assert_eq!(&out, b"in place");
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`DataProducer::write_some`].
    pub fn begin_write(&self, deadline: impl Into<Deadline>) -> Result<Room<'_>, Error> {
        deferred::run_if_failed(self.shared.begin(deadline.into(), || ()))
    }

    /// Returns free room as [`begin_write`](Self::begin_write) does, in an [owned](crate::owned) form without a
    /// lifetime.
    ///
    /// # Errors
    /// As [`DataProducer::write_some`].
    pub fn begin_write_owned(
        self: Arc<Self>,
        deadline: impl Into<Deadline>,
    ) -> Result<Room<'static, Arc<Self>>, Error> {
        // SAFETY: the view drops its borrows before the `Arc`; a call that fails returns before the `Arc` is dropped.
        let producer = unsafe { kept::borrow(&self) };
        let mut kept = Some(self);
        deferred::run_if_failed(producer.shared.begin(deadline.into(), || kept.take().expect("there is one view")))
    }

    /// Ends the stream without dropping the end; nothing can be written any more. Waits until `deadline` for other
    /// threads that write. The consumer reads all written bytes, and then the end of the stream. A second call does
    /// nothing.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] and [`Error::TimedOut`] while another thread waits or holds [`Room`];
    /// [`Error::PeerClosed`] if an earlier call has found that the consumer is closed; [`Error::BadPeer`];
    /// [`Error::Forked`].
    pub fn finish(&self, deadline: impl Into<Deadline>) -> Result<(), Error> {
        deferred::run_if_failed(self.shared.finish(deadline.into()))
    }

    /// Drops the end and aborts the stream: tells the consumer that the stream is incomplete, and the reason. The
    /// consumer reads all written bytes, and then gets [`Error::Aborted`] with `reason`. The program defines the
    /// meaning of the number. If the stream was [finished](Self::finish), only drops the end. Never blocks.
    ///
    /// ```
    /// use strait::{Deadline, Error, pipe::DataPipe};
    /// let (producer, consumer) = DataPipe::pair(4096)?;
    /// producer.write_whole(b"half of it", Deadline::NEVER)?;
    /// producer.abort(17);
    ///
    /// let mut out = [0; 100];
    /// assert_eq!(consumer.read_some(&mut out, Deadline::NEVER), Ok(10));
    /// assert_eq!(consumer.read_some(&mut out, Deadline::NEVER), Err(Error::Aborted { reason: 17 }));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn abort(self, reason: u32) {
        self.set_abort_reason(reason);
        drop(self);
    }

    /// Sets the reason with which dropping the end aborts the stream from now on, as [`abort`](Self::abort) does. Only
    /// [`finish`](Self::finish) then ends the stream as complete. For code that may be cancelled: a task, or a function
    /// with early returns. The last reason that was set counts. An end that is sent to another process leaves its
    /// reason behind.
    ///
    /// ```
    /// use strait::{Deadline, Error, pipe::{DataConsumer, DataPipe, DataProducer}};
    /// const INCOMPLETE: u32 = 1;
    ///
    /// fn produce(producer: DataProducer, records: &[&[u8]]) -> Result<(), Error> {
    ///     producer.set_abort_reason(INCOMPLETE);
    ///     for record in records {
    ///         producer.write_whole(record, Deadline::NOW)?; // An error here aborts the stream.
    ///     }
    ///     producer.finish(Deadline::NOW)
    /// }
    ///
    /// fn consume(consumer: &DataConsumer) -> Result<usize, Error> {
    ///     let (mut out, mut all) = ([0; 4], 0);
    ///     loop {
    ///         match consumer.read_some(&mut out, Deadline::NEVER)? {
    ///             0 => return Ok(all),
    ///             len => all += len,
    ///         }
    ///     }
    /// }
    ///
    /// let (producer, consumer) = DataPipe::pair(8)?;
    /// produce(producer, &[b"records"])?;
    /// assert_eq!(consume(&consumer), Ok(7));
    ///
    /// let (producer, consumer) = DataPipe::pair(8)?;
    /// assert!(produce(producer, &[b"records", b"for which there is no room"]).is_err());
    /// assert_eq!(consume(&consumer), Err(Error::Aborted { reason: INCOMPLETE }));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn set_abort_reason(&self, reason: u32) {
        self.shared.set_abort_reason(reason);
    }

    /// Returns an interrupter. With the interrupter another thread can make the calls that wait on the end fail, as
    /// with [the interrupter of a channel](crate::Channel::interrupter). A thread that holds [`Room`] is not
    /// interrupted; nor is a `splice_from` that waits for its descriptor.
    pub fn interrupter(&self) -> Interrupter {
        let pipe: Weak<ProducerShared> = Arc::downgrade(&self.shared);
        self.channel().interrupter().of_pipe(pipe)
    }
}

impl ProducerShared {
    pub(super) fn lock(&self, deadline: Deadline) -> Result<Guard<'_, State>, Error> {
        self.end.channel.end.born.check()?;
        let state = self.state.lock_unless(deadline, || self.end.channel.end.interruption())?;
        let _ = self.end.make_up();
        Ok(state)
    }

    /// Updates the number of free bytes, from the number of bytes read that the consumer has published. Fails if the
    /// stream has ended, if the consumer was closed, or, with [`Error::BadPeer`], if the published number is
    /// impossible.
    pub(super) fn refresh(&self, state: &mut State) -> Result<(), Error> {
        if let Some(error) = state.ended {
            return Err(error);
        }
        if state.index.refresh(&self.end.memory).is_err() {
            let error = self.end.break_off();
            return Err(*state.ended.insert(error));
        }
        if Writing::is_abandoned(&self.end.memory) {
            return Err(*state.ended.insert(self.gone()));
        }
        Ok(())
    }

    /// Returns the error for a consumer that reads nothing more.
    fn gone(&self) -> Error {
        match self.end.memory.consumer_reason() {
            Some(reason) => Error::Aborted { reason },
            None => Error::PeerClosed,
        }
    }

    /// Waits until there is room for `needed` bytes. Fails if `deadline` passes first, if the stream has ended, or if
    /// the consumer is closed.
    fn wait_for(&self, state: &mut Guard<'_, State>, needed: u64, deadline: Deadline) -> Result<(), Error> {
        if let Some(error) = state.ended {
            return Err(error);
        }
        if state.index.room() >= needed {
            return Ok(());
        }
        self.refresh(state)?;
        if state.index.room() >= needed {
            return Ok(());
        }
        state.mark_blocking_until(deadline);
        let waited = {
            let State { index, sleeper, .. } = &mut **state;
            let mut corrupt = false;
            let waited = self.end.wait::<Writing>(sleeper, deadline, || {
                corrupt = index.refresh(&self.end.memory).is_err();
                Ok(corrupt || index.room() >= needed || Writing::is_abandoned(&self.end.memory))
            });
            if corrupt { Err(self.end.break_off()) } else { waited }
        };
        state.unmark_blocking_until(deadline);
        let outcome = match waited {
            Ok(Waited::Ready) => self.refresh(state),
            Ok(Waited::Gone) => Err(*state.ended.insert(self.gone())),
            Err(error @ Error::BadPeer(_)) => Err(*state.ended.insert(error)),
            Err(error) => Err(error),
        };
        self.end.channel.end.after_blocking();
        outcome
    }

    fn write(&self, bytes: &[u8], whole: bool, deadline: Deadline) -> Result<usize, Error> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let mut state = self.lock(deadline)?;
        let shape = state.index.shape();
        let usable = shape.whole(bytes.len());
        if usable == 0 || (whole && usable < bytes.len()) {
            return Err(Error::NotElements { element: shape.element as usize });
        }
        if whole && bytes.len() as u64 > shape.capacity {
            return Err(Error::OutOfRange { len: shape.capacity as usize });
        }
        let needed = if whole { bytes.len() as u64 } else { u64::from(shape.element) };
        self.wait_for(&mut state, needed, deadline)?;
        if state.index.room() < usable as u64 {
            self.refresh(&mut state)?;
        }
        let len = usable.min(state.index.room() as usize);
        let first = state.index.span(len as u64);
        let (here, there) = bytes[..len].split_at(first.len);
        self.end.memory.write(first, here);
        if !there.is_empty() {
            self.end.memory.write(Span { at: 0, len: there.len() }, there);
        }
        self.publish(&mut state, len as u64);
        Ok(len)
    }

    pub(super) fn publish(&self, state: &mut State, len: u64) {
        self.end.publish_cpu::<Writing>(&mut state.sleeper);
        fault::point("before bytes of a pipe are published");
        if state.index.publish(&self.end.memory, len) {
            self.end.notify();
        }
    }

    fn finish(&self, deadline: Deadline) -> Result<(), Error> {
        let mut state = self.lock(deadline)?;
        match state.ended {
            None => {}
            Some(Error::Finished) => return Ok(()),
            Some(error) => return Err(error),
        }
        state.ended = Some(Error::Finished);
        if Writing::finish(&self.end.memory) {
            self.end.notify();
        }
        Ok(())
    }

    pub(super) fn begin<K>(&self, deadline: Deadline, keep: impl FnOnce() -> K) -> Result<Room<'_, K>, Error> {
        let mut state = self.lock(deadline)?;
        let shape = state.index.shape();
        self.wait_for(&mut state, shape.element.into(), deadline)?;
        if state.index.span(shape.capacity).len as u64 == state.index.room() {
            // The consumer may have freed more room by now.
            self.refresh(&mut state)?;
        }
        let span = state.index.span(shape.capacity);
        state.mark_blocking();
        Ok(Room { pipe: self.into(), state, span, kept: keep() })
    }
}

/// Free room in a data pipe, in the shared memory where the consumer will read it, to be filled in place. If the value
/// is dropped without [`commit`](Self::commit), the consumer gets no bytes.
///
/// Example: [room that is filled in place](crate::pipe::DataProducer::begin_write).
#[derive(Debug)]
pub struct Room<'a, K = ()> {
    pipe: Borrowed<'a, ProducerShared>,
    state: Guard<'a, State>,
    span: Span,
    /// The reference that keeps the producer alive, for owned room. Dropped last.
    kept: K,
}

impl<K> Room<'_, K> {
    /// Returns the reference that keeps the producer alive: for [owned](crate::owned) room an `Arc`.
    pub fn kept(&self) -> &K {
        &self.kept
    }

    /// Returns the number of free bytes in the room, a whole number of elements.
    pub fn len(&self) -> usize {
        self.span.len
    }

    /// Returns `false` always: the room is for at least one element.
    pub fn is_empty(&self) -> bool {
        self.span.len == 0
    }

    /// Returns the bytes of the room, to be written to. If you commit bytes that you have not written, the consumer
    /// reads the old content of the buffer: zeroes, or bytes that went through the pipe before.
    ///
    /// # Panics
    /// In the child of a `fork`, which does not have the memory.
    pub fn as_uninit_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        assert!(!self.pipe.end.channel.end.born.is_elsewhere(), "{}", Error::Forked);
        // SAFETY: the span is free, and only the holder of the lock, `self`, writes to free bytes. Each end has a
        // mapping of its own. The slice borrows `self`.
        unsafe { self.pipe.end.memory.uninit_mut(self.span) }
    }

    /// Copies `bytes` into the room, from byte `offset` on.
    ///
    /// # Panics
    /// If `bytes` do not fit; in the child of a `fork`.
    pub fn write_at(&mut self, bytes: &[u8], offset: usize) {
        assert!(!self.pipe.end.channel.end.born.is_elsewhere(), "{}", Error::Forked);
        assert!(self.span.len.checked_sub(offset).is_some_and(|room| bytes.len() <= room), "a copy inside the room");
        let span = Span { at: self.span.at + offset, len: bytes.len() };
        self.pipe.end.memory.write(span, bytes);
    }

    /// Publishes the first `len` bytes of the room to the consumer; the rest stays free.
    ///
    /// # Panics
    /// If `len` is more than [`len`](Self::len) or not a whole number of elements; in the child of a `fork`.
    pub fn commit(mut self, len: usize) {
        assert!(!self.pipe.end.channel.end.born.is_elsewhere(), "{}", Error::Forked);
        assert!(len <= self.span.len, "no more than there was room for");
        assert!(self.state.index.shape().whole(len) == len, "whole elements");
        self.pipe.publish(&mut self.state, len as u64);
    }

    pub(super) fn uninit_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        self.as_uninit_mut()
    }
}

impl<K> Drop for Room<'_, K> {
    fn drop(&mut self) {
        self.state.unmark_blocking();
        self.pipe.end.channel.end.after_blocking();
    }
}

impl Write for &DataProducer {
    /// Writes as [`DataProducer::write_some`] does, without a time limit.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(self.write_some(bytes, Deadline::NEVER)?)
    }

    /// Does nothing: the consumer can read bytes as soon as a write returns.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Write for DataProducer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::DataPipe;
    use super::*;
    use crate::ring::stream::Reading;

    fn says_that_it_is_whole(producer: &DataProducer) -> bool {
        producer.end_words();
        Reading::is_finished(&producer.shared.end.memory)
    }

    #[test]
    fn a_stream_is_whole_unless_its_producer_was_told_that_nobody_reads() {
        let (producer, _consumer) = DataPipe::pair(4096).unwrap();
        producer.write_some(b"all of it", Deadline::NOW).unwrap();
        assert!(says_that_it_is_whole(&producer));

        let (producer, consumer) = DataPipe::pair(4096).unwrap();
        drop(consumer);
        // The producer notices a closed consumer when looking for room.
        let written =
            producer.write_whole(&[0; 4096], Deadline::NOW).and_then(|()| producer.write_whole(b"x", Deadline::NOW));
        assert_eq!(written, Err(Error::PeerClosed));
        assert!(!says_that_it_is_whole(&producer));
    }
}
