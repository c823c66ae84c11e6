//! What a ring needs of its memory, so that the shipped ring and the model-checked one are the same code.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// An atomic word.
pub(crate) trait Word<T> {
    fn load(&self, order: Ordering) -> T;
    fn store(&self, value: T, order: Ordering);
    fn swap(&self, value: T, order: Ordering) -> T;
    fn fetch_or(&self, bits: T, order: Ordering) -> T;
    fn compare_exchange(&self, current: T, new: T, success: Ordering, failure: Ordering) -> Result<T, T>;
}

macro_rules! word {
    ($atomic:ty, $value:ty) => {
        impl Word<$value> for $atomic {
            #[inline]
            fn load(&self, order: Ordering) -> $value {
                self.load(order)
            }
            #[inline]
            fn store(&self, value: $value, order: Ordering) {
                self.store(value, order);
            }
            #[inline]
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.swap(value, order)
            }
            #[inline]
            fn fetch_or(&self, bits: $value, order: Ordering) -> $value {
                self.fetch_or(bits, order)
            }
            #[inline]
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                self.compare_exchange(current, new, success, failure)
            }
        }
    };
}
word!(AtomicU32, u32);
word!(AtomicU64, u64);

#[cfg(test)]
word!(loom::sync::atomic::AtomicU32, u32);
#[cfg(test)]
word!(loom::sync::atomic::AtomicU64, u64);

/// The words and cells of one ring.
pub(crate) trait Memory {
    type Word32: Word<u32>;
    type Word64: Word<u64>;

    /// How many cells; a power of two.
    fn cells(&self) -> usize;
    /// The first word of a cell; any number, taken modulo [`Memory::cells`].
    fn header(&self, cell: usize) -> &Self::Word64;
    /// Whether the producer sleeps for room, and how.
    fn waiting(&self) -> &Self::Word32;
    /// Whether the consumer sleeps for messages, and how.
    fn sleeping(&self) -> &Self::Word32;
    /// The CPU the producing end last ran on, plus 1.
    fn cpu(&self) -> &Self::Word32;
    /// Cells the consumer has taken, since the channel was made.
    fn credit(&self) -> &Self::Word64;
    /// Messages the consumer has taken, since the channel was made.
    fn taken(&self) -> &Self::Word64;
    /// Copies into the payload of the record that begins in `cell`.
    fn write(&self, cell: usize, offset: usize, bytes: &[u8]);
    /// Copies parts, which have `len` bytes in all, into the payload of the record that begins in `cell`.
    fn gather(&self, cell: usize, parts: &[IoSlice<'_>], len: usize) {
        let mut at = 0;
        for part in parts {
            self.write(cell, at, part);
            at += part.len();
        }
        assert!(at == len, "as many bytes as there is room for");
    }
    /// Copies out of the payload of the record that begins in `cell`.
    fn read<'a>(&self, cell: usize, offset: usize, out: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8];
    /// Where byte `offset` of the payload of the record that begins in `cell` is, and `len` bytes from there.
    fn in_place(&self, cell: usize, offset: usize, len: usize) -> *const u8;
    /// The payload of the record that begins in `cell`, all `len` bytes of it, to be written to.
    ///
    /// # Safety
    /// Nobody else in this process uses those bytes as long as the slice lives.
    #[allow(clippy::mut_from_ref, reason = "the memory is not Rust's; who may write to it is the caller's promise")]
    unsafe fn places(&self, cell: usize, len: usize) -> &mut [MaybeUninit<u8>];
    /// Fetches a cell ahead of its use.
    fn prefetch_for_writing(&self, _cell: usize) {}
    /// The same, to read it.
    fn prefetch_for_reading(&self, _cell: usize) {}

    /// Orders our word, which says that we sleep, before the look at the ring that follows.
    #[inline]
    fn sleep_barrier() {
        fence(Ordering::SeqCst);
    }

    /// Orders an atomic exchange that publishes before the load of the sleeper's word.
    ///
    /// Nothing in the code that ships: both are sequentially consistent, which orders them. The model checker
    /// treats sequentially consistent *accesses* as acquire and release, so there it is a fence; and there it can
    /// be left out, to see that the model then finds the lost wake-up.
    #[inline]
    fn full_barrier() {}
}
