//! The counters of a data pipe: how many bytes each side has written or read, and what the other side may conclude.
//!
//! A counter counts bytes since the pipe was made, always in whole elements. Each side keeps two values in private
//! memory: its own counter, and the last accepted value of the other side's counter. A side only writes its shared
//! counter. The other side treats that counter as a claim: it loads the word once, checks the value against private
//! state, and uses the copy. Whatever a side writes there, the result is a number of bytes between 0 and the capacity,
//! or [`Corrupt`].
//!
//! If a side finds nothing to do, it records its sleep in its sleep word, and looks once more. A side publishes by an
//! exchange, looks at the other side's sleep word, and takes the sleeper by an exchange; then it must wake the other
//! side. The [ring](crate::ring) has the same protocol, model-checked in the same way.
//!
//! The word [`Words::finished`] is set after the last bytes were published. A consumer that sees it set, and then finds
//! no more bytes, has read the whole stream. If the producer dies, the word stays 0; so a crash differs from an end.

#[cfg(test)]
mod tests;

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::fence;

use crate::ring::{Word, take_sleeper};

/// The shared words of a data pipe, all of them 0 at first.
pub trait Words {
    /// Type of the shared words of 4 bytes.
    type Word32: Word<u32>;
    /// Type of the shared words of 8 bytes.
    type Word64: Word<u64>;

    /// Returns the word *written*: the number of bytes written since the pipe was made. Only the producer writes this
    /// word.
    fn written(&self) -> &Self::Word64;
    /// Returns the word *finished*: 1 once the producer has declared to write nothing more, else 0. Written by the
    /// producer only.
    fn finished(&self) -> &Self::Word32;
    /// Returns the word *taken*: the number of bytes read since the pipe was made. Only the consumer writes this word.
    fn taken(&self) -> &Self::Word64;
    /// Returns the word *done*: 1 once the consumer has declared to read nothing more, else 0. Written by the consumer
    /// only.
    fn done(&self) -> &Self::Word32;
    /// Returns the consumer's sleep word: 1 while the consumer sleeps until there are bytes to read, else 0.
    fn sleeping(&self) -> &Self::Word32;
    /// Returns the producer's sleep word: 1 while the producer sleeps until there is room to write, else 0.
    fn waiting(&self) -> &Self::Word32;

    /// A barrier that keeps this order: a side records its sleep in its sleep word, and then looks at the other side's
    /// counter once more; see [`Memory::sleep_barrier`](crate::ring::Memory::sleep_barrier).
    #[inline]
    fn sleep_barrier() {
        fence(SeqCst);
    }

    /// A barrier that keeps this order: a side publishes its counter, and then loads the other side's sleep word. Has
    /// an effect in the model checker only; see [`Memory::full_barrier`](crate::ring::Memory::full_barrier).
    #[inline]
    fn full_barrier() {}
}

/// An error: the other side's counter has a value that no correct process writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt;

/// A contiguous part of a data pipe's buffer, given by offset and length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Offset in bytes of the first byte from the start of the buffer.
    pub at: usize,
    /// Number of bytes.
    pub len: usize,
}

/// The two sizes of a data pipe, which are fixed when the pipe is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Size in bytes of one element of the data pipe, at least 1.
    pub element: u32,
    /// Size in bytes of the data pipe's buffer, a multiple of the element size.
    pub capacity: u64,
}

/// Upper bound of the counters of a data pipe: the counters stay below `LATEST`, so that none can overflow.
pub const LATEST: u64 = 1 << 62;

impl Shape {
    /// Returns the shape of a data pipe with elements of `element` bytes and a buffer of `capacity` bytes. Returns
    /// `None` if one of the sizes is 0, `capacity` is not a multiple of `element`, or `capacity` is not below 2^46.
    #[inline]
    pub fn new(element: u32, capacity: u64) -> Option<Self> {
        let whole = element > 0 && capacity > 0 && capacity.is_multiple_of(u64::from(element));
        (whole && capacity < 1 << 46).then_some(Self { element, capacity })
    }

    /// Returns whether a counter of this data pipe can have the value `position`: whole elements, and below [`LATEST`].
    #[inline]
    fn can_be(&self, position: u64) -> bool {
        position < LATEST && position.is_multiple_of(u64::from(self.element))
    }

    /// Returns the part of the buffer with the `len` bytes of the stream from `position` (bytes since the pipe was
    /// made) on. The part is shorter if the end of the buffer comes before.
    #[inline]
    fn span(&self, position: u64, len: u64) -> Span {
        let at = position % self.capacity;
        Span { at: at as usize, len: len.min(self.capacity - at) as usize }
    }

    /// Returns `len`, in bytes, rounded down to whole elements.
    #[inline]
    pub fn whole(&self, len: usize) -> usize {
        len - len % self.element as usize
    }
}

/// The producer's own view of a data pipe: the bytes written, and the known progress of the consumer.
#[derive(Debug)]
pub struct Writing {
    shape: Shape,
    written: u64,
    /// Number of bytes read by the consumer since the pipe was made, as last loaded by the producer.
    taken: u64,
}

impl Writing {
    /// Creates the producer of a data pipe with `written` bytes written so far. Returns `None` if no counter of such a
    /// pipe can have this value.
    #[inline]
    pub fn at(shape: Shape, written: u64) -> Option<Self> {
        shape.can_be(written).then(|| Self { shape, written, taken: written.saturating_sub(shape.capacity) })
    }

    /// Returns the sizes of the data pipe.
    #[inline]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the number of bytes written since the pipe was made.
    #[inline]
    pub fn position(&self) -> u64 {
        self.written
    }

    /// Returns the number of bytes for which the data pipe's buffer has room, according to the consumer's counter when
    /// the producer last loaded it.
    #[inline]
    pub fn room(&self) -> u64 {
        self.shape.capacity - (self.written - self.taken)
    }

    /// Loads and checks the word *taken*, the number of bytes that the consumer has read since the pipe was made.
    /// Returns the number of bytes for which the buffer has room now; fails if the word's value is invalid.
    #[inline]
    pub fn refresh(&mut self, words: &impl Words) -> Result<u64, Corrupt> {
        let claim = words.taken().load(Acquire);
        if claim < self.taken || claim > self.written || !self.shape.can_be(claim) {
            return Err(Corrupt);
        }
        self.taken = claim;
        Ok(self.room())
    }

    /// Returns the free part of the buffer for the next `len` bytes. The part is shorter if there is less room, or if
    /// the end of the buffer comes before.
    #[inline]
    pub fn span(&self, len: u64) -> Span {
        self.shape.span(self.written, len.min(self.room()))
    }

    /// Publishes the next `len` bytes, which the caller has written to the data pipe's buffer. They must be whole
    /// elements, and no more than there is room for. Returns whether the consumer slept; if so, this call has cleared
    /// the consumer's sleep word, and the caller must wake the consumer.
    #[inline]
    #[must_use]
    pub fn publish<W: Words>(&mut self, words: &W, len: u64) -> bool {
        debug_assert!(len <= self.room() && len.is_multiple_of(u64::from(self.shape.element)));
        self.written += len;
        words.written().swap(self.written, SeqCst);
        W::full_barrier();
        take_sleeper(words.sleeping()) != 0
    }

    /// Declares that the producer will write nothing more. Returns whether the consumer slept; if so, this call has
    /// cleared the consumer's sleep word, and the caller must wake the consumer.
    #[must_use]
    pub fn finish<W: Words>(words: &W) -> bool {
        words.finished().swap(1, SeqCst);
        W::full_barrier();
        take_sleeper(words.sleeping()) != 0
    }

    /// Returns whether the consumer has declared to read nothing more.
    #[inline]
    pub fn is_abandoned(words: &impl Words) -> bool {
        words.done().load(Acquire) != 0
    }

    /// Records in the producer's sleep word that the producer sleeps until there is room. The caller must look for room
    /// once more before it sleeps.
    pub fn arm<W: Words>(words: &W) {
        words.waiting().swap(1, SeqCst);
        W::sleep_barrier();
    }

    /// Records in the producer's sleep word that the producer is awake. Returns whether the consumer has cleared the
    /// sleep word since [`Writing::arm`]; if so, the consumer wakes the producer or has already done so.
    pub fn disarm(words: &impl Words) -> bool {
        words.waiting().swap(0, SeqCst) == 0
    }
}

/// The consumer's own view of a data pipe: the bytes read, and the known progress of the producer.
#[derive(Debug)]
pub struct Reading {
    shape: Shape,
    taken: u64,
    /// Number of bytes written by the producer since the pipe was made, as last loaded by the consumer.
    written: u64,
}

impl Reading {
    /// Creates the consumer of a data pipe with `taken` bytes read so far. Returns `None` if no counter of such a pipe
    /// can have this value.
    #[inline]
    pub fn at(shape: Shape, taken: u64) -> Option<Self> {
        shape.can_be(taken).then_some(Self { shape, taken, written: taken })
    }

    /// Returns the sizes of the data pipe.
    #[inline]
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Returns the number of bytes read since the pipe was made.
    #[inline]
    pub fn position(&self) -> u64 {
        self.taken
    }

    /// Returns the number of readable bytes, by the producer's counter as last loaded by the consumer.
    #[inline]
    pub fn available(&self) -> u64 {
        self.written - self.taken
    }

    /// Loads and checks the word *written*, the number of bytes that the producer has written since the pipe was made.
    /// Returns the number of bytes that can be read now; fails if the word's value is invalid.
    #[inline]
    pub fn refresh(&mut self, words: &impl Words) -> Result<u64, Corrupt> {
        let claim = words.written().load(Acquire);
        let unread = claim.checked_sub(self.taken).ok_or(Corrupt)?;
        if claim < self.written || unread > self.shape.capacity || !self.shape.can_be(claim) {
            return Err(Corrupt);
        }
        self.written = claim;
        Ok(unread)
    }

    /// Returns whether the producer has declared to write nothing more. The last bytes may still be unread: the caller
    /// must look for unread bytes after this call.
    #[inline]
    pub fn is_finished(words: &impl Words) -> bool {
        words.finished().load(Acquire) != 0
    }

    /// Returns whether the producer has declared that it will write nothing more, and the consumer has read every byte.
    /// Checks the declaration first, and then whether bytes are left, because the producer may write until it declares.
    /// Fails if the producer's counter is invalid.
    pub fn is_at_end(&mut self, words: &impl Words) -> Result<bool, Corrupt> {
        let finished = Self::is_finished(words);
        Ok(self.refresh(words)? == 0 && finished)
    }

    /// Returns the part of the buffer that holds the `len` unread bytes behind the first `skip` unread bytes. The part
    /// is shorter if fewer bytes are there, or if the end of the buffer comes before.
    #[inline]
    pub fn span(&self, skip: u64, len: u64) -> Span {
        let left = self.available().saturating_sub(skip);
        self.shape.span(self.taken + skip.min(self.available()), len.min(left))
    }

    /// Marks the next `len` bytes as read, and so frees their room. The bytes must be whole elements, and no more than
    /// can be read. Returns whether the producer slept; if so, this call has cleared the producer's sleep word, and the
    /// caller must wake the producer.
    #[inline]
    #[must_use]
    pub fn advance<W: Words>(&mut self, words: &W, len: u64) -> bool {
        debug_assert!(len <= self.available() && len.is_multiple_of(u64::from(self.shape.element)));
        self.taken += len;
        words.taken().swap(self.taken, SeqCst);
        W::full_barrier();
        take_sleeper(words.waiting()) != 0
    }

    /// Declares that the consumer will read nothing more. Returns whether the producer slept; if so, this call has
    /// cleared the producer's sleep word, and the caller must wake the producer.
    #[must_use]
    pub fn abandon<W: Words>(words: &W) -> bool {
        words.done().swap(1, SeqCst);
        W::full_barrier();
        take_sleeper(words.waiting()) != 0
    }

    /// Records in the consumer's sleep word that the consumer sleeps until there are bytes to read. The caller must
    /// look for bytes once more before it sleeps.
    pub fn arm<W: Words>(words: &W) {
        words.sleeping().swap(1, SeqCst);
        W::sleep_barrier();
    }

    /// Records in the consumer's sleep word that the consumer is awake. Returns whether the producer has cleared the
    /// sleep word since [`Reading::arm`]; if so, the producer wakes the consumer or has already done so.
    pub fn disarm(words: &impl Words) -> bool {
        words.sleeping().swap(0, SeqCst) == 0
    }
}

/// Writes the number of the CPU on which the calling side runs, plus 1, to the shared word `word`; does nothing if
/// `published`, the value last written, is the same. The other side uses this word to decide whether to spin.
#[inline]
pub fn publish_cpu(published: &mut u32, word: &impl Word<u32>, cpu: u32) {
    if *published != cpu + 1 {
        *published = cpu + 1;
        word.store(cpu + 1, Relaxed);
    }
}
