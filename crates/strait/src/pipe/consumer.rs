//! The reading end.

use std::io::{self, Read};
use std::sync::{Arc, Weak};

use super::end::{End, Sleeper, Waited};
use crate::channel::{Channel, Interrupter, Rouse, close};
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::Error;
use crate::os::fault;
use crate::ring::stream::{Reading, Shape, Span};
use crate::wake::lock::{Guard, Lock};

/// The reading end of a [data pipe](crate::DataPipe).
///
/// It may be used from many threads through `&self`; they take turns.
#[derive(Debug)]
pub struct DataConsumer {
    pub(super) shared: Arc<Shared>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) end: End,
    shape: Shape,
    pub(super) state: Lock<State>,
}

#[derive(Debug)]
pub(super) struct State {
    pub(super) index: Reading,
    pub(super) sleeper: Sleeper,
    /// Why nothing more comes once what is there was read.
    pub(super) ended: Option<Ended>,
}

/// How the stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The producer has said so.
    Finished,
    Failed(Error),
}

impl DataConsumer {
    pub(super) fn new(end: End, index: Reading) -> Self {
        let shape = index.shape();
        let state = Lock::new(State { index, sleeper: Sleeper::default(), ended: None });
        Self { shared: Arc::new(Shared { end, shape, state }) }
    }

    /// Bytes of an element. Does not block, whoever uses the end meanwhile.
    pub fn element(&self) -> usize {
        self.shared.shape.element as usize
    }

    /// Bytes of the buffer. Does not block either.
    pub fn capacity(&self) -> usize {
        self.shared.shape.capacity as usize
    }

    /// Bytes that could be read now.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] while another thread waits or holds [`Unread`]; [`Error::BadPeer`]; [`Error::Forked`].
    pub fn available(&self) -> Result<usize, Error> {
        deferred::run_if_failed(self.shared.lock(Deadline::NOW).and_then(|mut state| {
            self.shared.refresh(&mut state)?;
            Ok(state.index.available() as usize)
        }))
    }

    /// Reads what is there now, at least one element; 0 bytes at the end of the stream.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is nothing; otherwise as [`DataConsumer::read_by`].
    pub fn try_read(&self, out: &mut [u8]) -> Result<usize, Error> {
        self.read_by(out, Deadline::NOW)
    }

    /// Reads what is there, at least one element; waits for it until the deadline. Returns how many bytes: 0 at the end of the
    /// stream, or if `out` has none.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::PeerClosed`] if the producer's process died and all that it wrote was read;
    /// [`Error::NotElements`] if `out` is shorter than an element; [`Error::BadPeer`]; [`Error::Forked`].
    pub fn read_by(&self, out: &mut [u8], deadline: impl Into<Deadline>) -> Result<usize, Error> {
        deferred::run_if_failed(self.shared.read(out, What::Some, deadline.into()))
    }

    /// Fills all of `out`, or reads nothing; waits for so many bytes until the deadline.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if that is more than the [capacity](Self::capacity), or if the stream has ended and has fewer
    /// left, which can still be read; [`Error::PeerClosed`] if the producer's process died and has left fewer;
    /// [`Error::NotElements`] if it is not whole elements; otherwise as [`DataConsumer::read_by`].
    pub fn read_whole(&self, out: &mut [u8], deadline: impl Into<Deadline>) -> Result<(), Error> {
        deferred::run_if_failed(self.shared.read(out, What::Whole, deadline.into()).map(|_| ()))
    }

    /// Copies what is there now, at least one element, without reading it: the next read gets it again. 0 bytes at the end of
    /// the stream.
    ///
    /// # Errors
    /// As [`DataConsumer::try_read`].
    pub fn peek(&self, out: &mut [u8]) -> Result<usize, Error> {
        deferred::run_if_failed(self.shared.read(out, What::Peek, Deadline::NOW))
    }

    /// Drops up to `most` bytes that are there now, whole elements. Returns how many.
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

    /// What is there, to be read in place, at least one element; waits for it until the deadline. As much as is there and side
    /// by side: what is behind the end of the buffer comes with the next call. Without any bytes, the stream has ended.
    ///
    /// Other threads do not read while it is held.
    ///
    /// # Errors
    /// As [`DataConsumer::read_by`].
    pub fn begin_read(&self, deadline: impl Into<Deadline>) -> Result<Unread<'_>, Error> {
        deferred::run_if_failed(self.shared.begin(deadline.into()))
    }

    /// Something by which another thread can end the waits of this end, as [that of a channel](Channel::interrupter). A thread that
    /// holds [`Unread`] goes on; so does a `splice` that waits for its file.
    pub fn interrupter(&self) -> Interrupter {
        let pipe: Weak<Shared> = Arc::downgrade(&self.shared);
        self.channel().interrupter().of_pipe(pipe)
    }

    pub(crate) fn channel(&self) -> &Channel {
        &self.shared.end.channel
    }

    /// Nothing more is read, and its channel is closed by somebody else.
    pub(crate) fn end_words(&self) {
        fault::point("before a pipe is abandoned");
        if Reading::abandon(&self.shared.end.memory) {
            self.shared.end.notify();
        }
    }
}

/// How to read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    Some,
    Whole,
    Peek,
}

impl Shared {
    pub(super) fn lock(&self, deadline: Deadline) -> Result<Guard<'_, State>, Error> {
        self.end.channel.end.born.check()?;
        let state = self.state.lock_unless(deadline, || self.end.channel.end.interruption())?;
        let _ = self.end.make_up();
        Ok(state)
    }

    /// Whether there is something to read, or the end, or something wrong.
    pub(super) fn has_news(&self, state: &mut State) -> bool {
        let element = u64::from(state.index.shape().element);
        self.look(state).is_err() || state.ended.is_some() || state.index.available() >= element
    }

    /// Looks how far the producer has come.
    pub(super) fn refresh(&self, state: &mut State) -> Result<(), Error> {
        if state.ended.is_none() && state.index.refresh(&self.end.memory).is_err() {
            let error = self.end.break_off();
            state.ended = Some(Ended::Failed(error));
            return Err(error);
        }
        Ok(())
    }

    /// The same, and whether it has come to the end.
    fn look(&self, state: &mut State) -> Result<(), Error> {
        if state.ended.is_none() {
            match state.index.is_at_end(&self.end.memory) {
                Ok(false) => {}
                Ok(true) => state.ended = Some(Ended::Finished),
                Err(_) => {
                    let error = self.end.break_off();
                    state.ended = Some(Ended::Failed(error));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Waits for so many bytes, or the end, after which there may be fewer.
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
                // Whether it has finished is said after the last bytes; so it is looked at before them.
                let finished = Reading::is_finished(memory);
                // What is wrong is looked at below.
                Ok(index.refresh(memory).is_err() || index.available() >= needed || finished)
            })
        };
        state.unmark_blocking_until(deadline);
        let outcome = match waited {
            Ok(Waited::Ready) => self.look(state),
            Ok(Waited::Gone) => self.look(state).map(|()| {
                // What it wrote before it died is there, and whether it had finished.
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

    /// How the stream ended whose producer is gone.
    pub(super) fn how_it_went(&self) -> Ended {
        if Reading::is_finished(&self.end.memory) { Ended::Finished } else { Ended::Failed(Error::PeerClosed) }
    }

    fn read(&self, out: &mut [u8], what: What, deadline: Deadline) -> Result<usize, Error> {
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

    pub(super) fn begin(&self, deadline: Deadline) -> Result<Unread<'_>, Error> {
        let mut state = self.lock(deadline)?;
        let shape = state.index.shape();
        self.wait_for(&mut state, shape.element.into(), deadline)?;
        if state.index.span(0, shape.capacity).len as u64 == state.index.available() {
            // There may be more by now.
            self.refresh(&mut state)?;
        }
        let span = state.index.span(0, shape.capacity);
        if span.len == 0
            && let Some(Ended::Failed(error)) = state.ended
        {
            return Err(error);
        }
        state.mark_blocking();
        Ok(Unread { pipe: self, state, span })
    }
}

/// Bytes of a data pipe, where the producer wrote them. Dropped without [`consume`](Self::consume) nothing was read.
///
/// **The bytes are untrusted** in a way that ordinary bytes are not: the producer can change them while they are looked at. So they
/// are not given out as `&[u8]`, but with [`trusted`](Self::trusted); copy what you decide on, once, and decide on the copy.
#[derive(Debug)]
pub struct Unread<'a> {
    pipe: &'a Shared,
    state: Guard<'a, State>,
    span: Span,
}

impl Unread<'_> {
    /// Bytes of it, whole elements; 0 at the end of the stream. This number does not change.
    pub fn len(&self) -> usize {
        self.span.len
    }

    /// Whether the stream has ended.
    pub fn is_empty(&self) -> bool {
        self.span.len == 0
    }

    /// Copies the bytes from `offset` on into all of `out`.
    ///
    /// # Panics
    /// If there are fewer; in the child of a `fork`, which does not have the memory.
    pub fn copy_to(&self, offset: usize, out: &mut [u8]) {
        assert!(!self.pipe.end.channel.end.born.is_elsewhere(), "{}", Error::Forked);
        assert!(
            self.span.len.checked_sub(offset).is_some_and(|room| out.len() <= room),
            "a copy inside what is unread"
        );
        let span = Span { at: self.span.at + offset, len: out.len() };
        self.pipe.end.memory.read(span, out);
    }

    /// Where the bytes are, [`len`](Self::len) of them, readable as long as this lives; for system calls and other code that
    /// copes with bytes that change.
    pub fn as_ptr(&self) -> *const u8 {
        self.pipe.end.memory.at(self.span)
    }

    /// The bytes, without a copy.
    ///
    /// # Safety
    /// The producer, and whoever else had this pipe's memory, is trusted: it does not change what it has written. One that does
    /// makes the behaviour of this process undefined.
    ///
    /// # Panics
    /// In the child of a `fork`, which does not have the memory.
    pub unsafe fn trusted(&self) -> &[u8] {
        assert!(!self.pipe.end.channel.end.born.is_elsewhere(), "{}", Error::Forked);
        // SAFETY: inside the mapping, which `self` keeps; the bytes do not change by the caller's promise, and are not given
        // back to the producer as long as `self` is borrowed.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.span.len) }
    }

    /// Says that the first `len` bytes were read; the rest stays unread.
    ///
    /// # Panics
    /// If there are fewer, or they are not whole elements; in the child of a `fork`.
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

impl Rouse for Shared {
    fn rouse(&self) {
        self.state.rouse();
    }
}

impl Drop for Unread<'_> {
    fn drop(&mut self) {
        self.state.unmark_blocking();
        self.pipe.end.channel.end.after_blocking();
    }
}

impl Drop for DataConsumer {
    fn drop(&mut self) {
        if self.channel().end.born.is_elsewhere() {
            // As with channels.
            return std::mem::forget(self.shared.clone());
        }
        if !self.channel().end.was_sent() {
            self.end_words();
            // Here, and not where a set lets go of it.
            close(&self.channel().end);
        }
    }
}

impl Read for &DataConsumer {
    /// As [`DataConsumer::read_by`], for as long as it takes. A producer that died is [`io::ErrorKind::BrokenPipe`].
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        Ok(self.read_by(out, Deadline::NEVER)?)
    }
}

impl Read for DataConsumer {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        (&*self).read(out)
    }
}
