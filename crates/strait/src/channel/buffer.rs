//! The buffer of a received message, and the spare buffer of each thread.
//!
//! If a program receives each message into a new [`Message`](super::Message) and drops the message, each message would
//! allocate and free memory. So a dropped small buffer becomes the spare of its thread, and the next message received
//! by the thread uses the spare.

use std::cell::Cell;
use std::ops::{Deref, DerefMut};

/// Number of bytes of the largest buffer kept as a spare by a thread. A program that keeps its messages so keeps no
/// more than this for a short one.
const LARGEST_SPARE: usize = 512;

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The bytes of a message in memory of its own. A dropped small buffer becomes the spare of its thread.
#[derive(Debug, Default)]
pub(crate) struct Buffer(Vec<u8>);

impl Buffer {
    pub(crate) const EMPTY: Self = Self(Vec::new());

    /// Returns an empty buffer: the spare of this thread, or a buffer without memory if the thread has no spare.
    #[inline]
    pub(crate) fn spare() -> Self {
        // A thread that ends has no spare any more.
        Self(SPARE.try_with(Cell::take).unwrap_or_default())
    }

    /// Returns the bytes as a vector; the buffer is empty then.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.0)
    }
}

impl From<Vec<u8>> for Buffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }
}

impl Deref for Buffer {
    type Target = Vec<u8>;
    #[inline]
    fn deref(&self) -> &Vec<u8> {
        &self.0
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        if (1..=LARGEST_SPARE).contains(&self.0.capacity()) {
            self.0.clear();
            let bytes = std::mem::take(&mut self.0);
            // In a thread that ends, the buffer is freed.
            let _ = SPARE.try_with(|spare| spare.replace(bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_buffer_that_is_dropped_is_the_next_spare_and_a_large_one_is_not() {
        let small = Buffer::from(Vec::with_capacity(100));
        let memory = small.as_ptr();
        drop(small);
        drop(Buffer::from(Vec::with_capacity(LARGEST_SPARE + 1)));
        drop(Buffer::EMPTY);
        let spare = Buffer::spare();
        assert_eq!((spare.as_ptr(), spare.len()), (memory, 0));
        assert_eq!(Buffer::spare().capacity(), 0);
    }
}
