//! The reading end of a data pipe.

use std::io::{self, Read};
use std::mem::MaybeUninit;
use std::sync::{Arc, Weak};

use super::end::Waited;
use crate::channel::Interrupter;
use crate::channel::pipe_end::{ConsumerShared, DataConsumer, Ended, PipeEndLocked};
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::Error;
use crate::kept::{self, Borrowed};
use crate::os::fault;
use crate::ring::stream::{Reading, Span};
use crate::wake::lock::Guard;

/// The state of the reading end of a data pipe that one thread at a time uses.
type State = PipeEndLocked<Reading, Ended>;

impl DataConsumer {
    /// Returns the number of bytes in one element of the pipe. Does not block, whatever other threads do with the end.
    pub fn element(&self) -> usize {
        self.shared.shape.element as usize
    }

    /// Returns the number of bytes in the pipe's buffer. Does not block, whatever other threads do with the end.
    pub fn capacity(&self) -> usize {
        self.shared.shape.capacity as usize
    }

    /// Returns the number of bytes that could be read now without waiting: 0 if there are none, and at the end of the
    /// stream.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] while another thread waits or holds [`Unread`]; [`Error::BadPeer`]; [`Error::Forked`].
    pub fn available(&self) -> Result<usize, Error> {
        deferred::run_if_failed(self.shared.lock(Deadline::NOW).and_then(|mut state| {
            self.shared.refresh(&mut state)?;
            Ok(state.index.available() as usize)
        }))
    }

    /// Reads the bytes that are there into `out`, at least one element; waits for an element until `deadline`. Returns
    /// the number of bytes read: 0 at the end of the stream, or if `out` is empty.
    ///
    /// # Errors
    /// [`Error::WouldBlock`], [`Error::TimedOut`]. If everything that the producer wrote was read: [`Error::Aborted`]
    /// if the producer has [aborted](crate::pipe::DataProducer::abort) the stream, and [`Error::PeerClosed`] if its
    /// process died. [`Error::NotElements`] if `out` is shorter than an element; [`Error::BadPeer`]; [`Error::Forked`].
    pub fn read_some(&self, out: &mut [u8], deadline: impl Into<Deadline>) -> Result<usize, Error> {
        deferred::run_if_failed(self.shared.read(as_uninit(out), What::Some, deadline.into()))
    }

    /// Reads as [`read_some`](Self::read_some) does, into memory that need not be initialized. Returns the read bytes:
    /// the first bytes of `out`, which are initialized now.
    ///
    /// ```
    /// use std::mem::MaybeUninit;
    /// use strait::{Deadline, pipe::DataPipe};
    ///
    /// let (producer, consumer) = DataPipe::pair(4096)?;
    /// producer.write_some(b"bytes", Deadline::NOW)?;
    /// let mut out = [MaybeUninit::uninit(); 100];
    /// assert_eq!(consumer.read_some_uninit(&mut out, Deadline::NOW)?, b"bytes");
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`DataConsumer::read_some`].
    pub fn read_some_uninit<'o>(
        &self,
        out: &'o mut [MaybeUninit<u8>],
        deadline: impl Into<Deadline>,
    ) -> Result<&'o mut [u8], Error> {
        let read = deferred::run_if_failed(self.shared.read(out, What::Some, deadline.into()))?;
        // SAFETY: the call has written the first `read` bytes of `out`, and `MaybeUninit<u8>` has the layout of `u8`.
        Ok(unsafe { &mut *(std::ptr::from_mut(&mut out[..read]) as *mut [u8]) })
    }

    /// Fills all of `out`, or reads nothing; waits until enough bytes are there, or until `deadline`.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `out` is longer than the [capacity](Self::capacity), or if the stream has ended with
    /// fewer unread bytes, which can still be read; [`Error::Aborted`] or [`Error::PeerClosed`] if the producer has
    /// aborted the stream, or its process died, and has left fewer bytes; [`Error::NotElements`] if `out` is not a
    /// whole number of elements; otherwise as [`DataConsumer::read_some`].
    pub fn read_whole(&self, out: &mut [u8], deadline: impl Into<Deadline>) -> Result<(), Error> {
        deferred::run_if_failed(self.shared.read(as_uninit(out), What::Whole, deadline.into()).map(|_| ()))
    }

    /// Copies the unread bytes of the pipe into `out`, at least one element, and leaves the bytes in the pipe for the
    /// next read. Returns the number of bytes copied: 0 at the end of the stream, or if `out` is empty.
    ///
    /// # Errors
    /// As [`DataConsumer::read_some`].
    pub fn peek(&self, out: &mut [u8]) -> Result<usize, Error> {
        deferred::run_if_failed(self.shared.read(as_uninit(out), What::Peek, Deadline::NOW))
    }

    /// Removes up to `most` unread bytes from the pipe, without a copy; `most` is rounded down to whole elements.
    /// Returns the number of removed bytes. Does not block.
    ///
    /// # Errors
    /// As [`DataConsumer::available`].
    pub fn discard(&self, most: usize) -> Result<usize, Error> {
        deferred::run_if_failed(self.shared.lock(Deadline::NOW).and_then(|mut state| {
            self.shared.refresh(&mut state)?;
            let len = state.index.shape().whole(most.min(state.index.available() as usize));
            self.shared.advance(&mut state, len as u64);
            Ok(len)
        }))
    }

    /// Returns the unread bytes, at least one element, to be read in place; waits for an element until `deadline`. The
    /// bytes are contiguous in memory: if unread bytes continue at the start of the buffer, the next call returns the
    /// rest. If no bytes are returned, the stream has ended.
    ///
    /// Other threads cannot read while the returned value exists.
    ///
    /// # Errors
    /// As [`DataConsumer::read_some`].
    pub fn begin_read(&self, deadline: impl Into<Deadline>) -> Result<Unread<'_>, Error> {
        deferred::run_if_failed(self.shared.begin(deadline.into(), || ()))
    }

    /// Returns the next unread bytes as [`begin_read`](Self::begin_read) does, in an [owned](crate::owned) form without
    /// a lifetime.
    ///
    /// # Errors
    /// As [`DataConsumer::begin_read`].
    pub fn begin_read_owned(
        self: Arc<Self>,
        deadline: impl Into<Deadline>,
    ) -> Result<Unread<'static, Arc<Self>>, Error> {
        // SAFETY: the view drops its borrows before the `Arc`; a call that fails returns before the `Arc` is dropped.
        let consumer = unsafe { kept::borrow(&self) };
        let mut kept = Some(self);
        deferred::run_if_failed(consumer.shared.begin(deadline.into(), || kept.take().expect("there is one view")))
    }

    /// Drops the end and tells the producer the reason: the producer gets [`Error::Aborted`] with `reason`, where it
    /// would get [`Error::PeerClosed`] if the end were only dropped. The program defines the meaning of the number.
    /// Never blocks.
    ///
    /// ```
    /// use strait::{Deadline, Error, pipe::DataPipe};
    /// let (producer, consumer) = DataPipe::pair(4096)?;
    /// consumer.abort(17);
    /// // The producer learns of it once it finds no room.
    /// let written = (0..2).try_for_each(|_| producer.write_whole(&[7; 4096], Deadline::NEVER));
    /// assert_eq!(written, Err(Error::Aborted { reason: 17 }));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn abort(self, reason: u32) {
        self.shared.set_abort_reason(reason);
        drop(self);
    }

    /// Returns an interrupter. With the interrupter another thread can make the calls that wait on the end fail, as
    /// with [the interrupter of a channel](crate::Channel::interrupter). A thread that holds [`Unread`] is not
    /// interrupted; nor is a `splice_to` that waits for its descriptor.
    pub fn interrupter(&self) -> Interrupter {
        let pipe: Weak<ConsumerShared> = Arc::downgrade(&self.shared);
        self.channel().interrupter().of_pipe(pipe)
    }
}

/// Returns initialized bytes as memory to be written, for functions that fill uninitialized memory.
fn as_uninit(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: the memory and the layout are the same. Functions of this module write only initialized bytes through the
    // slice.
    unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
}

/// The way in which a read of a data pipe fills the caller's buffer: with the bytes that are there, completely or not
/// at all, or with a copy of bytes that stay in the pipe.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Some,
    Whole,
    Peek,
}

impl ConsumerShared {
    pub(super) fn lock(&self, deadline: Deadline) -> Result<Guard<'_, State>, Error> {
        self.end.channel.end.born.check()?;
        let state = self.state.lock_unless(deadline, || self.end.channel.end.interruption())?;
        let _ = self.end.make_up();
        Ok(state)
    }

    /// Returns whether a read would return at once: at least one element can be read, the stream has ended, or the
    /// producer's counter is impossible. The read then reports an impossible counter as an error.
    pub(super) fn has_news(&self, state: &mut State) -> bool {
        let element = u64::from(state.index.shape().element);
        self.look(state).is_err() || state.ended.is_some() || state.index.available() >= element
    }

    /// Updates the number of unread bytes, from the number of bytes written that the producer has published. If the
    /// published number is impossible, fails with [`Error::BadPeer`] and ends the stream. Does nothing if the stream
    /// has ended.
    pub(super) fn refresh(&self, state: &mut State) -> Result<(), Error> {
        if state.ended.is_none() && state.index.refresh(&self.end.memory).is_err() {
            let error = self.end.break_off();
            state.ended = Some(Ended::Failed(error));
            return Err(error);
        }
        Ok(())
    }

    /// Updates the number of unread bytes from the words that the producer has published. Also records the end of the
    /// stream, if all bytes were read and the producer has finished. Fails with [`Error::BadPeer`] if the published
    /// number of bytes written is impossible.
    fn look(&self, state: &mut State) -> Result<(), Error> {
        if state.ended.is_none() {
            match state.index.is_at_end(&self.end.memory) {
                Ok(false) => {}
                Ok(true) => state.ended = Some(self.how_it_went()),
                Err(_) => {
                    let error = self.end.break_off();
                    state.ended = Some(Ended::Failed(error));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Waits until `needed` bytes can be read or the stream has ended; then fewer bytes may be unread. Fails if
    /// `deadline` passes first.
    fn wait_for(&self, state: &mut Guard<'_, State>, needed: u64, deadline: Deadline) -> Result<(), Error> {
        if state.index.available() >= needed || state.ended.is_some() {
            return Ok(());
        }
        self.look(state)?;
        if state.index.available() >= needed || state.ended.is_some() {
            return Ok(());
        }
        state.mark_blocking_until(deadline);
        let waited = {
            let State { index, sleeper, .. } = &mut **state;
            let memory = &self.end.memory;
            self.end.wait::<Reading>(sleeper, deadline, || {
                // The producer publishes the end after the last bytes. So the end is read here before the number of
                // bytes.
                let finished = Reading::is_finished(memory);
                // An impossible counter ends the wait; `look` below reports the counter.
                Ok(index.refresh(memory).is_err() || index.available() >= needed || finished)
            })
        };
        state.unmark_blocking_until(deadline);
        let outcome = match waited {
            Ok(Waited::Ready) => self.look(state),
            Ok(Waited::Gone) => self.look(state).map(|()| {
                // The memory still has the bytes that the producer wrote before it closed or died, and whether the
                // producer had finished.
                if state.ended.is_none() {
                    state.ended = Some(self.how_it_went());
                }
            }),
            Err(error @ Error::BadPeer(_)) => {
                state.ended = Some(Ended::Failed(error));
                Err(error)
            }
            Err(error) => Err(error),
        };
        self.end.channel.end.after_blocking();
        outcome
    }

    /// Returns how the stream ended, for a producer that has finished or whose end is closed: aborted, finished, or
    /// failed because the producer's process died before it finished the stream.
    pub(super) fn how_it_went(&self) -> Ended {
        match self.end.memory.producer_reason() {
            Some(reason) => Ended::Failed(Error::Aborted { reason }),
            None if Reading::is_finished(&self.end.memory) => Ended::Finished,
            None => Ended::Failed(Error::PeerClosed),
        }
    }

    /// Reads into `out`. Returns the number of bytes read: the first bytes of `out`, all of which were written.
    fn read(&self, out: &mut [MaybeUninit<u8>], what: What, deadline: Deadline) -> Result<usize, Error> {
        if out.is_empty() {
            return Ok(0);
        }
        let mut state = self.lock(deadline)?;
        let shape = state.index.shape();
        let usable = shape.whole(out.len());
        if usable == 0 || (what == What::Whole && usable < out.len()) {
            return Err(Error::NotElements { element: shape.element as usize });
        }
        if what == What::Whole && out.len() as u64 > shape.capacity {
            return Err(Error::OutOfRange { len: shape.capacity as usize });
        }
        let needed = if what == What::Whole { out.len() as u64 } else { u64::from(shape.element) };
        self.wait_for(&mut state, needed, deadline)?;
        if state.index.available() < usable as u64 {
            self.refresh(&mut state)?;
        }
        let available = state.index.available();
        if available < needed {
            return match state.ended {
                Some(Ended::Failed(error)) => Err(error),
                _ if what == What::Whole => Err(Error::OutOfRange { len: available as usize }),
                _ => Ok(0),
            };
        }
        let len = usable.min(available as usize);
        let first = state.index.span(0, len as u64);
        let (here, there) = out[..len].split_at_mut(first.len);
        self.end.memory.read(first, here);
        if !there.is_empty() {
            self.end.memory.read(Span { at: 0, len: there.len() }, there);
        }
        if what != What::Peek {
            self.advance(&mut state, len as u64);
        }
        Ok(len)
    }

    pub(super) fn advance(&self, state: &mut State, len: u64) {
        if len == 0 {
            return;
        }
        self.end.publish_cpu::<Reading>(&mut state.sleeper);
        fault::point("before room in a pipe is given back");
        if state.index.advance(&self.end.memory, len) {
            self.end.notify();
        }
    }

    pub(super) fn begin<K>(&self, deadline: Deadline, keep: impl FnOnce() -> K) -> Result<Unread<'_, K>, Error> {
        let mut state = self.lock(deadline)?;
        let shape = state.index.shape();
        self.wait_for(&mut state, shape.element.into(), deadline)?;
        if state.index.span(0, shape.capacity).len as u64 == state.index.available() {
            // The producer may have written more by now.
            self.refresh(&mut state)?;
        }
        let span = state.index.span(0, shape.capacity);
        if span.len == 0
            && let Some(Ended::Failed(error)) = state.ended
        {
            return Err(error);
        }
        state.mark_blocking();
        Ok(Unread { pipe: self.into(), state, span, kept: keep() })
    }
}

/// The next unread bytes of a data pipe, in the shared memory where the producer wrote them. If the value is dropped
/// without [`consume`](Self::consume), all the bytes stay unread.
///
/// **The bytes are untrusted**: unlike ordinary bytes, they may change during the read, because the producer can still
/// write to the memory. So `Unread` gives no `&[u8]`, except by [`trusted`](Self::trusted). If a decision depends on
/// some of the bytes, copy these bytes once, and decide by the copy.
///
/// Example: [a pipe](crate::pipe).
#[derive(Debug)]
pub struct Unread<'a, K = ()> {
    pipe: Borrowed<'a, ConsumerShared>,
    state: Guard<'a, State>,
    span: Span,
    /// The reference that keeps the consumer alive, for owned bytes. Dropped last.
    kept: K,
}

impl<K> Unread<'_, K> {
    /// Returns the reference that keeps the consumer alive: for [owned](crate::owned) bytes an `Arc`.
    pub fn kept(&self) -> &K {
        &self.kept
    }

    /// Returns the number of the unread bytes, a whole number of elements; 0 at the end of the stream. The number does
    /// not change while the `Unread` exists.
    pub fn len(&self) -> usize {
        self.span.len
    }

    /// Returns whether there are no bytes: then the stream has ended.
    pub fn is_empty(&self) -> bool {
        self.span.len == 0
    }

    /// Fills all of `out` with the unread bytes from byte `offset` on. The bytes stay unread.
    ///
    /// # Panics
    /// If there are fewer bytes; in the child of a `fork`, which does not have the memory.
    pub fn read_at(&self, out: &mut [u8], offset: usize) {
        assert!(!self.pipe.end.channel.end.born.is_elsewhere(), "{}", Error::Forked);
        assert!(
            self.span.len.checked_sub(offset).is_some_and(|room| out.len() <= room),
            "a copy inside what is unread"
        );
        let span = Span { at: self.span.at + offset, len: out.len() };
        self.pipe.end.memory.read(span, as_uninit(out));
    }

    /// Returns a pointer to the first byte: [`len`](Self::len) bytes are readable there as long as the `Unread` exists.
    /// Use the pointer for system calls and other code that tolerates changing bytes.
    pub fn as_ptr(&self) -> *const u8 {
        self.pipe.end.memory.at(self.span)
    }

    /// Returns the bytes as a slice of the shared memory, without a copy.
    ///
    /// # Safety
    /// The producer, and any other process that had the pipe's memory, must not change the bytes already written. If a
    /// process changes such bytes, the behaviour of this process is undefined.
    ///
    /// # Panics
    /// In the child of a `fork`, which does not have the memory.
    pub unsafe fn trusted(&self) -> &[u8] {
        assert!(!self.pipe.end.channel.end.born.is_elsewhere(), "{}", Error::Forked);
        // SAFETY: the bytes are inside the mapping, which `self` keeps. No process changes the bytes, as the caller
        // promises, and they are not given back to the producer as long as `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.span.len) }
    }

    /// Removes the first `len` bytes from the pipe, so that the producer can use their room; the rest stays unread.
    ///
    /// # Panics
    /// If `len` is more than [`len`](Self::len) or not a whole number of elements; in the child of a `fork`.
    pub fn consume(mut self, len: usize) {
        assert!(!self.pipe.end.channel.end.born.is_elsewhere(), "{}", Error::Forked);
        assert!(len <= self.span.len, "no more than there was");
        assert!(self.state.index.shape().whole(len) == len, "whole elements");
        self.pipe.advance(&mut self.state, len as u64);
    }

    pub(super) fn write_out(&self, span_len: usize, to: std::os::fd::BorrowedFd<'_>) -> Result<usize, Error> {
        let span = Span { at: self.span.at, len: span_len.min(self.span.len) };
        self.pipe.end.memory.write_out(span, to)
    }
}

impl<K> Drop for Unread<'_, K> {
    fn drop(&mut self) {
        self.state.unmark_blocking();
        self.pipe.end.channel.end.after_blocking();
    }
}

impl Read for &DataConsumer {
    /// Reads as [`DataConsumer::read_some`] does, without a time limit. If the producer's process died, the error kind
    /// is [`io::ErrorKind::BrokenPipe`].
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        Ok(self.read_some(out, Deadline::NEVER)?)
    }
}

impl Read for DataConsumer {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        (&*self).read(out)
    }
}
