//! The memory that a ring needs, as a trait: so the ring that ships and the ring in the model checker are the same
//! code.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// An atomic word of type `T`: of the standard library, or of the model checker.
pub trait Word<T> {
    /// Loads the value.
    fn load(&self, order: Ordering) -> T;
    /// Stores `value`.
    fn store(&self, value: T, order: Ordering);
    /// Stores `value` and returns the previous value, in one step.
    fn swap(&self, value: T, order: Ordering) -> T;
    /// Sets the bits `bits` and returns the previous value, in one step.
    fn fetch_or(&self, bits: T, order: Ordering) -> T;
    /// Stores `new` if the value is `current`, in one step. Returns the previous value: as `Ok` if it was `current`,
    /// else as `Err`.
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

#[cfg(any(test, strait_model))]
word!(loom::sync::atomic::AtomicU32, u32);
#[cfg(any(test, strait_model))]
word!(loom::sync::atomic::AtomicU64, u64);

/// The shared words and cells of one ring.
pub trait Memory {
    /// Type of the shared words of 4 bytes.
    type Word32: Word<u32>;
    /// Type of the shared words of 8 bytes.
    type Word64: Word<u64>;

    /// Returns the number of cells of this ring, a power of two.
    fn cells(&self) -> usize;
    /// Returns the header word in cell `cell`, taken modulo the ring's number of cells ([`Memory::cells`]).
    fn header(&self, cell: usize) -> &Self::Word64;
    /// Returns the producer's sleep word: 0 while the producer is awake; another value says how the producer sleeps
    /// until there is room.
    fn waiting(&self) -> &Self::Word32;
    /// Returns the consumer's sleep word: 0 while the consumer is awake; another value says how the consumer sleeps
    /// until a message comes.
    fn sleeping(&self) -> &Self::Word32;
    /// Returns the word for the CPU on which the producing end last ran: its number plus 1, or 0 if unknown.
    fn cpu(&self) -> &Self::Word32;
    /// Returns the credit: the number of cells that the consumer has freed since the lane was made.
    fn credit(&self) -> &Self::Word64;
    /// Returns the word *taken*: the number of messages that the consumer has received since the lane was made.
    fn taken(&self) -> &Self::Word64;
    /// Copies `bytes` into the payload of the record that begins in `cell`, from byte `offset` of the payload on.
    fn write(&self, cell: usize, offset: usize, bytes: &[u8]);
    /// Copies `parts`, with `len` bytes in all, one behind the other into the payload of the record that begins in
    /// `cell`.
    fn gather(&self, cell: usize, parts: &[IoSlice<'_>], len: usize) {
        let mut at = 0;
        for part in parts {
            self.write(cell, at, part);
            at += part.len();
        }
        assert!(at == len, "as many bytes as there is room for");
    }
    /// Fills `out` from the payload of the record that begins in `cell`, from byte `offset` of the payload on, and
    /// returns `out` as initialised bytes.
    fn read<'a>(&self, cell: usize, offset: usize, out: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8];
    /// Copies `bytes`, which fit one cell, into the payload of the record in the cell `cell`, and then publishes the
    /// record: stores `header` in the cell's header, if the header is 0. Otherwise returns the header that is there.
    #[inline]
    fn publish_one(&self, cell: usize, bytes: &[u8], header: u64) -> Result<(), u64> {
        self.write(cell, 0, bytes);
        Self::step("before a record is committed");
        self.header(cell).compare_exchange(0, header, Ordering::SeqCst, Ordering::Acquire).map(|_| ())
    }
    /// Loads the header of the cell `cell` and calls `place` with the header. If `place` returns memory (at most one
    /// cell), fills the memory from the payload of the record in the cell. Returns the header.
    #[inline]
    fn read_one<'a>(&self, cell: usize, place: impl FnOnce(u64) -> Option<&'a mut [MaybeUninit<u8>]>) -> u64 {
        let header = self.header(cell).load(Ordering::Acquire);
        if let Some(out) = place(header) {
            self.read(cell, 0, out);
        }
        header
    }
    /// Returns a pointer to byte `offset` of the payload of the record that begins in `cell`. The `len` bytes from
    /// there on are valid memory.
    fn in_place(&self, cell: usize, offset: usize, len: usize) -> *const u8;
    /// Returns the first `len` bytes of the payload of the record that begins in `cell`, for writing.
    ///
    /// # Safety
    /// No other code in this process reads or writes these bytes while the slice lives.
    #[allow(clippy::mut_from_ref, reason = "the memory is not Rust's; who may write to it is the caller's promise")]
    unsafe fn uninit_mut(&self, cell: usize, len: usize) -> &mut [MaybeUninit<u8>];
    /// Prefetches the cache line with the header of the given cell, which the caller will write soon. A hint only,
    /// which may do nothing.
    fn prefetch_for_writing(&self, _cell: usize) {}
    /// Prefetches the cache line with the header of the given cell, which the caller will read soon. A hint only, which
    /// may do nothing.
    fn prefetch_for_reading(&self, _cell: usize) {}

    /// A barrier that keeps this order: the caller first records its sleep in the sleep word, and then looks at the
    /// ring once more.
    #[inline]
    fn sleep_barrier() {
        fence(Ordering::SeqCst);
    }

    /// A barrier that keeps this order: the atomic exchange of a publication comes before the load of the other side's
    /// sleep word.
    ///
    /// In the shipped code this barrier does nothing: both accesses are sequentially consistent, and so ordered. The
    /// model checker treats sequentially consistent *accesses* as acquire and release, so in models this barrier is a
    /// fence. A model can also omit the fence, to show that it then finds the lost wake-up.
    #[inline]
    fn full_barrier() {}

    /// Gives a name to the step right after this call, which the other side can see. Tests stop a process at such a
    /// step; otherwise the call does nothing.
    #[inline(always)]
    fn step(_name: &'static str) {}
}
