//! How far a data pipe was written and read: two counters, each of which one side writes, and what the other makes of it.
//!
//! Counters count bytes since the pipe was made, in whole elements. Each side keeps its own counter, and what it last
//! accepted of the other's, in private memory; the shared words are an output port for their writer, and to the reader a
//! claim: loaded once, checked against what is private, and used from the copy. Whatever the other side writes there,
//! what comes of it is a number of bytes between 0 and the capacity, or [`Corrupt`].
//!
//! Who finds nothing says in a word of its own that it sleeps, and looks once more. Who publishes does it by an exchange,
//! looks at that word, and takes it by an exchange; then it is the publisher's to wake the other. It is the same as in the
//! [ring](crate::ring), and model-checked in the same way.
//!
//! Whether the stream is at its end is said by [`Words::finished`], after the last bytes were published: who sees it and
//! then finds nothing more written has all there is. If the producer dies, it is 0, and so a crash is told from an end.

#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::fence;

use crate::ring::{Word, take_sleeper};

/// The shared words of a data pipe, all 0 at first.
pub(crate) trait Words {
    type Word32: Word<u32>;
    type Word64: Word<u64>;

    /// Bytes written. The producer's.
    fn written(&self) -> &Self::Word64;
    /// 1 once nothing more will be written. The producer's.
    fn finished(&self) -> &Self::Word32;
    /// Bytes read. The consumer's.
    fn taken(&self) -> &Self::Word64;
    /// 1 once nothing more will be read. The consumer's.
    fn done(&self) -> &Self::Word32;
    /// Whether the consumer sleeps for bytes.
    fn sleeping(&self) -> &Self::Word32;
    /// Whether the producer sleeps for room.
    fn waiting(&self) -> &Self::Word32;

    /// As [`Memory::sleep_barrier`](crate::ring::Memory::sleep_barrier).
    #[inline]
    fn sleep_barrier() {
        fence(SeqCst);
    }

    /// As [`Memory::full_barrier`](crate::ring::Memory::full_barrier): for the model checker alone.
    #[inline]
    fn full_barrier() {}
}

/// What the other side wrote cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt;

/// Bytes side by side: where they begin in the buffer, and how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// What both sides know from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bytes of an element, at least 1.
    pub(crate) element: u32,
    /// Bytes of the buffer, some elements.
    pub(crate) capacity: u64,
}

/// Counters begin below this, so that none comes to its end.
pub(crate) const LATEST: u64 = 1 << 62;

impl Shape {
    /// `None` if it is none.
    pub(crate) fn new(element: u32, capacity: u64) -> Option<Self> {
        let whole = element > 0 && capacity > 0 && capacity.is_multiple_of(u64::from(element));
        (whole && capacity < 1 << 46).then_some(Self { element, capacity })
    }

    /// Whether a counter can stand there.
    fn can_be(&self, position: u64) -> bool {
        position < LATEST && position.is_multiple_of(u64::from(self.element))
    }

    /// How much of `len` bytes from a position on is side by side.
    fn span(&self, position: u64, len: u64) -> Span {
        let at = position % self.capacity;
        Span { at: at as usize, len: len.min(self.capacity - at) as usize }
    }

    /// The largest whole number of elements in so many bytes.
    pub(crate) fn whole(&self, len: usize) -> usize {
        len - len % self.element as usize
    }
}

/// The producer's side.
#[derive(Debug)]
pub(crate) struct Writing {
    shape: Shape,
    written: u64,
    /// Bytes that were read, as far as we accepted it.
    taken: u64,
}

impl Writing {
    /// The producer of a pipe in which so many bytes were written. `None` if that cannot be.
    pub(crate) fn at(shape: Shape, written: u64) -> Option<Self> {
        shape.can_be(written).then(|| Self { shape, written, taken: written.saturating_sub(shape.capacity) })
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn position(&self) -> u64 {
        self.written
    }

    /// Bytes there is room for, as far as is known.
    #[inline]
    pub(crate) fn room(&self) -> u64 {
        self.shape.capacity - (self.written - self.taken)
    }

    /// Looks how far the consumer has come.
    #[inline]
    pub(crate) fn refresh(&mut self, words: &impl Words) -> Result<u64, Corrupt> {
        let claim = words.taken().load(Acquire);
        if claim < self.taken || claim > self.written || !self.shape.can_be(claim) {
            return Err(Corrupt);
        }
        self.taken = claim;
        Ok(self.room())
    }

    /// Where the next `len` bytes go, or as many of them as are side by side; there must be room for them.
    #[inline]
    pub(crate) fn span(&self, len: u64) -> Span {
        self.shape.span(self.written, len.min(self.room()))
    }

    /// Publishes `len` bytes, whole elements for which there is room. Returns whether the consumer sleeps: it is the
    /// caller's to wake then.
    #[inline]
    #[must_use]
    pub(crate) fn publish<W: Words>(&mut self, words: &W, len: u64) -> bool {
        debug_assert!(len <= self.room() && len.is_multiple_of(u64::from(self.shape.element)));
        self.written += len;
        words.written().swap(self.written, SeqCst);
        W::full_barrier();
        take_sleeper(words.sleeping()) != 0
    }

    /// Says that nothing more comes. Returns whether the consumer sleeps.
    #[must_use]
    pub(crate) fn finish<W: Words>(words: &W) -> bool {
        words.finished().swap(1, SeqCst);
        W::full_barrier();
        take_sleeper(words.sleeping()) != 0
    }

    /// Whether the consumer has said that it reads no more.
    #[inline]
    pub(crate) fn is_abandoned(words: &impl Words) -> bool {
        words.done().load(Acquire) != 0
    }

    /// Says that we sleep for room. The caller looks once more after this.
    pub(crate) fn listen<W: Words>(words: &W) {
        words.waiting().swap(1, SeqCst);
        W::sleep_barrier();
    }

    /// We sleep no more. Returns whether the consumer took notice before, and so wakes us, or has.
    pub(crate) fn listen_no_more(words: &impl Words) -> bool {
        words.waiting().swap(0, SeqCst) == 0
    }
}

/// The consumer's side.
#[derive(Debug)]
pub(crate) struct Reading {
    shape: Shape,
    taken: u64,
    /// Bytes that were written, as far as we accepted it.
    written: u64,
}

impl Reading {
    /// The consumer of a pipe from which so many bytes were read. `None` if that cannot be.
    pub(crate) fn at(shape: Shape, taken: u64) -> Option<Self> {
        shape.can_be(taken).then_some(Self { shape, taken, written: taken })
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn position(&self) -> u64 {
        self.taken
    }

    /// Bytes to be read, as far as is known.
    #[inline]
    pub(crate) fn available(&self) -> u64 {
        self.written - self.taken
    }

    /// Looks how far the producer has come.
    #[inline]
    pub(crate) fn refresh(&mut self, words: &impl Words) -> Result<u64, Corrupt> {
        let claim = words.written().load(Acquire);
        let unread = claim.checked_sub(self.taken).ok_or(Corrupt)?;
        if claim < self.written || unread > self.shape.capacity || !self.shape.can_be(claim) {
            return Err(Corrupt);
        }
        self.written = claim;
        Ok(unread)
    }

    /// Whether nothing more will be written. Bytes that were are looked for after this.
    #[inline]
    pub(crate) fn is_finished(words: &impl Words) -> bool {
        words.finished().load(Acquire) != 0
    }

    /// Whether all has been written and nothing is left: looks at the end before it looks for bytes.
    pub(crate) fn is_at_end(&mut self, words: &impl Words) -> Result<bool, Corrupt> {
        let finished = Self::is_finished(words);
        Ok(self.refresh(words)? == 0 && finished)
    }

    /// Where the bytes from `skip` on are, `len` of them or as many as are there and side by side.
    #[inline]
    pub(crate) fn span(&self, skip: u64, len: u64) -> Span {
        let left = self.available().saturating_sub(skip);
        self.shape.span(self.taken + skip.min(self.available()), len.min(left))
    }

    /// Gives back the room of `len` bytes, whole elements that are there. Returns whether the producer sleeps: it is the
    /// caller's to wake then.
    #[inline]
    #[must_use]
    pub(crate) fn advance<W: Words>(&mut self, words: &W, len: u64) -> bool {
        debug_assert!(len <= self.available() && len.is_multiple_of(u64::from(self.shape.element)));
        self.taken += len;
        words.taken().swap(self.taken, SeqCst);
        W::full_barrier();
        take_sleeper(words.waiting()) != 0
    }

    /// Says that nothing more is read. Returns whether the producer sleeps.
    #[must_use]
    pub(crate) fn abandon<W: Words>(words: &W) -> bool {
        words.done().swap(1, SeqCst);
        W::full_barrier();
        take_sleeper(words.waiting()) != 0
    }

    /// Says that we sleep for bytes. The caller looks once more after this.
    pub(crate) fn listen<W: Words>(words: &W) {
        words.sleeping().swap(1, SeqCst);
        W::sleep_barrier();
    }

    /// We sleep no more. Returns whether the producer took notice before, and so wakes us, or has.
    pub(crate) fn listen_no_more(words: &impl Words) -> bool {
        words.sleeping().swap(0, SeqCst) == 0
    }
}

/// The CPU that a side runs on, plus 1, for the other to decide whether to spin: told if it changed.
#[inline]
pub(crate) fn tell_cpu(told: &mut u32, word: &impl Word<u32>, cpu: u32) {
    if *told != cpu + 1 {
        *told = cpu + 1;
        word.store(cpu + 1, Relaxed);
    }
}
