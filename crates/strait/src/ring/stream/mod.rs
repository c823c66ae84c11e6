//! The counters of a data pipe: how many bytes each side has written or read, and what the other side may conclude.
//!
//! A counter counts bytes since the pipe was made, always in whole elements. Each side keeps its own counter in private
//! memory, and the last value that it accepted of the other side's counter. A side only writes its shared counter. The
//! other side treats that counter as a claim: it loads the word once, checks it against private state, and uses the
//! copy. Whatever the other side writes there, the result is a number of bytes between 0 and the capacity, or
//! [`Corrupt`].
//!
//! A side that finds nothing to do says in its sleep word that it sleeps, and looks once more. A side that publishes
//! does so by an exchange, looks at the other's sleep word, and takes it by an exchange; then it must wake the other
//! side. This is the protocol of the [ring](crate::ring), and it is model-checked in the same way.
//!
//! The word [`Words::finished`] is set after the last bytes were published. A consumer that sees it set, and then finds
//! no more bytes, has read the whole stream. If the producer dies, the word stays 0; so a crash differs from an end.

#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::fence;

use crate::ring::{Word, take_sleeper};

/// The shared words of a data pipe, all of them 0 at first.
pub(crate) trait Words {
    type Word32: Word<u32>;
    type Word64: Word<u64>;

    /// Returns the number of bytes written since the pipe was made. Only the producer writes this word.
    fn written(&self) -> &Self::Word64;
    /// Returns the word that is 1 once the producer will write nothing more. Only the producer writes this word.
    fn finished(&self) -> &Self::Word32;
    /// Returns the number of bytes read since the pipe was made. Only the consumer writes this word.
    fn taken(&self) -> &Self::Word64;
    /// Returns the word that is 1 once the consumer will read nothing more. Only the consumer writes this word.
    fn done(&self) -> &Self::Word32;
    /// Returns the consumer's sleep word: 1 while the consumer sleeps until bytes come, else 0.
    fn sleeping(&self) -> &Self::Word32;
    /// Returns the producer's sleep word: 1 while the producer sleeps until there is room, else 0.
    fn waiting(&self) -> &Self::Word32;

    /// Orders the announcement of a sleep before the look at the counters that follows; see
    /// [`Memory::sleep_barrier`](crate::ring::Memory::sleep_barrier).
    #[inline]
    fn sleep_barrier() {
        fence(SeqCst);
    }

    /// Orders the publication before the load of the other's sleep word. Needed in the model checker only; see
    /// [`Memory::full_barrier`](crate::ring::Memory::full_barrier).
    #[inline]
    fn full_barrier() {}
}

/// An error: the other side's counter has a value that it cannot have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt;

/// Adjacent bytes of the buffer: the offset of the first, and their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) at: usize,
    pub(crate) len: usize,
}

/// The sizes of a data pipe, which both sides know from the start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Size of an element in bytes, at least 1.
    pub(crate) element: u32,
    /// Size of the buffer in bytes, a multiple of the element size.
    pub(crate) capacity: u64,
}

/// Counters stay below this value, so that none can overflow.
pub(crate) const LATEST: u64 = 1 << 62;

impl Shape {
    /// Returns the shape with these sizes, in bytes. Returns `None` if a size is 0, `capacity` is no multiple of
    /// `element`, or `capacity` is not below 2^46.
    pub(crate) fn new(element: u32, capacity: u64) -> Option<Self> {
        let whole = element > 0 && capacity > 0 && capacity.is_multiple_of(u64::from(element));
        (whole && capacity < 1 << 46).then_some(Self { element, capacity })
    }

    /// Returns whether a counter can have the value `position`.
    fn can_be(&self, position: u64) -> bool {
        position < LATEST && position.is_multiple_of(u64::from(self.element))
    }

    /// Returns the part of the buffer for the `len` bytes of the stream that begin at `position`: fewer if they wrap at
    /// the end of the buffer.
    fn span(&self, position: u64, len: u64) -> Span {
        let at = position % self.capacity;
        Span { at: at as usize, len: len.min(self.capacity - at) as usize }
    }

    /// Returns `len`, rounded down to whole elements.
    pub(crate) fn whole(&self, len: usize) -> usize {
        len - len % self.element as usize
    }
}

/// The producer's view of a data pipe.
#[derive(Debug)]
pub(crate) struct Writing {
    shape: Shape,
    written: u64,
    /// Number of bytes that the consumer has read, as last accepted.
    taken: u64,
}

impl Writing {
    /// Creates the producer of a pipe into which `written` bytes were written. Returns `None` if a counter cannot have
    /// that value.
    pub(crate) fn at(shape: Shape, written: u64) -> Option<Self> {
        shape.can_be(written).then(|| Self { shape, written, taken: written.saturating_sub(shape.capacity) })
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn position(&self) -> u64 {
        self.written
    }

    /// Returns the number of bytes for which there is room, by the consumer's counter as last accepted.
    #[inline]
    pub(crate) fn room(&self) -> u64 {
        self.shape.capacity - (self.written - self.taken)
    }

    /// Loads and checks the consumer's counter. Returns the number of bytes for which there is room now.
    #[inline]
    pub(crate) fn refresh(&mut self, words: &impl Words) -> Result<u64, Corrupt> {
        let claim = words.taken().load(Acquire);
        if claim < self.taken || claim > self.written || !self.shape.can_be(claim) {
            return Err(Corrupt);
        }
        self.taken = claim;
        Ok(self.room())
    }

    /// Returns the part of the buffer for the next `len` bytes: fewer if there is less room, or if they wrap at the end
    /// of the buffer.
    #[inline]
    pub(crate) fn span(&self, len: u64) -> Span {
        self.shape.span(self.written, len.min(self.room()))
    }

    /// Publishes the next `len` bytes. They must be whole elements for which there is room. Returns whether the
    /// consumer sleeps; if so, the caller must wake it.
    #[inline]
    #[must_use]
    pub(crate) fn publish<W: Words>(&mut self, words: &W, len: u64) -> bool {
        debug_assert!(len <= self.room() && len.is_multiple_of(u64::from(self.shape.element)));
        self.written += len;
        words.written().swap(self.written, SeqCst);
        W::full_barrier();
        take_sleeper(words.sleeping()) != 0
    }

    /// Says that the stream is finished. Returns whether the consumer sleeps; if so, the caller must wake it.
    #[must_use]
    pub(crate) fn finish<W: Words>(words: &W) -> bool {
        words.finished().swap(1, SeqCst);
        W::full_barrier();
        take_sleeper(words.sleeping()) != 0
    }

    /// Returns whether the consumer has said that it reads nothing more.
    #[inline]
    pub(crate) fn is_abandoned(words: &impl Words) -> bool {
        words.done().load(Acquire) != 0
    }

    /// Says that the producer sleeps until there is room. The caller must look for room once more before it sleeps.
    pub(crate) fn arm<W: Words>(words: &W) {
        words.waiting().swap(1, SeqCst);
        W::sleep_barrier();
    }

    /// Says that the producer no longer sleeps. Returns whether the consumer has taken the sleep word since `listen`;
    /// if so, it wakes the producer or has done so.
    pub(crate) fn disarm(words: &impl Words) -> bool {
        words.waiting().swap(0, SeqCst) == 0
    }
}

/// The consumer's view of a data pipe.
#[derive(Debug)]
pub(crate) struct Reading {
    shape: Shape,
    taken: u64,
    /// Number of bytes that the producer has written, as last accepted.
    written: u64,
}

impl Reading {
    /// Creates the consumer of a pipe from which `taken` bytes were read. Returns `None` if a counter cannot have that
    /// value.
    pub(crate) fn at(shape: Shape, taken: u64) -> Option<Self> {
        shape.can_be(taken).then_some(Self { shape, taken, written: taken })
    }

    pub(crate) fn shape(&self) -> Shape {
        self.shape
    }

    pub(crate) fn position(&self) -> u64 {
        self.taken
    }

    /// Returns the number of bytes to read, by the producer's counter as last accepted.
    #[inline]
    pub(crate) fn available(&self) -> u64 {
        self.written - self.taken
    }

    /// Loads and checks the producer's counter. Returns the number of bytes to read now.
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

    /// Returns whether the producer has finished the stream. The caller must look for the last bytes after this call.
    #[inline]
    pub(crate) fn is_finished(words: &impl Words) -> bool {
        words.finished().load(Acquire) != 0
    }

    /// Returns whether the stream is finished and all of it was read. Looks whether it is finished before it looks for
    /// bytes.
    pub(crate) fn is_at_end(&mut self, words: &impl Words) -> Result<bool, Corrupt> {
        let finished = Self::is_finished(words);
        Ok(self.refresh(words)? == 0 && finished)
    }

    /// Returns the part of the buffer that holds `len` unread bytes, behind the first `skip` of them: fewer if there
    /// are fewer, or if they wrap at the end of the buffer.
    #[inline]
    pub(crate) fn span(&self, skip: u64, len: u64) -> Span {
        let left = self.available().saturating_sub(skip);
        self.shape.span(self.taken + skip.min(self.available()), len.min(left))
    }

    /// Frees the room of the next `len` bytes. They must be whole elements that are there. Returns whether the producer
    /// sleeps; if so, the caller must wake it.
    #[inline]
    #[must_use]
    pub(crate) fn advance<W: Words>(&mut self, words: &W, len: u64) -> bool {
        debug_assert!(len <= self.available() && len.is_multiple_of(u64::from(self.shape.element)));
        self.taken += len;
        words.taken().swap(self.taken, SeqCst);
        W::full_barrier();
        take_sleeper(words.waiting()) != 0
    }

    /// Says that the consumer reads nothing more. Returns whether the producer sleeps; if so, the caller must wake it.
    #[must_use]
    pub(crate) fn abandon<W: Words>(words: &W) -> bool {
        words.done().swap(1, SeqCst);
        W::full_barrier();
        take_sleeper(words.waiting()) != 0
    }

    /// Says that the consumer sleeps until bytes come. The caller must look for bytes once more before it sleeps.
    pub(crate) fn arm<W: Words>(words: &W) {
        words.sleeping().swap(1, SeqCst);
        W::sleep_barrier();
    }

    /// Says that the consumer no longer sleeps. Returns whether the producer has taken the sleep word since `listen`;
    /// if so, it wakes the consumer or has done so.
    pub(crate) fn disarm(words: &impl Words) -> bool {
        words.sleeping().swap(0, SeqCst) == 0
    }
}

/// Writes the CPU that this side runs on, plus 1, to `word`, if it differs from `told`, the value last written. The
/// other side uses it to decide whether to spin.
#[inline]
pub(crate) fn publish_cpu(published: &mut u32, word: &impl Word<u32>, cpu: u32) {
    if *published != cpu + 1 {
        *published = cpu + 1;
        word.store(cpu + 1, Relaxed);
    }
}
