//! The memory of a ring as a table of atomic words, for tests. The words are those of the standard library under Miri
//! and in property tests, and those of the model checker in a model.

use std::cell::Cell;
use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::Relaxed;

use crate::ring::{CELL, Memory, Word};

const WORDS: usize = CELL / 8;

/// The barrier of a model between publishing and loading the other side's sleep word: either present, or left out as a
/// deliberate error.
pub trait Barrier {
    fn barrier();
}

/// The choice of barriers for models and tests in which the barriers of the ring do nothing: the memory orders of the
/// atomic operations alone must be enough, as they are on the processors that the library runs on.
#[derive(Debug)]
pub struct InOperations;

impl Barrier for InOperations {
    fn barrier() {}
}

/// A sequentially consistent fence as the barrier, which the model checker needs.
#[derive(Debug)]
pub struct Fence;

impl Barrier for Fence {
    fn barrier() {
        loom::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
}

thread_local! {
    /// Whether the last access of the running thread of a model to a word was a sequentially consistent store or
    /// exchange; `None` before the first access. The threads of a model take turns on one thread, and only at an
    /// access.
    static LAST_IS_ORDERED_WRITE: Cell<Option<bool>> = const { Cell::new(None) };
}

/// Notes the last access to a word of a model: `is_ordered_write` says whether it was a sequentially consistent store
/// or exchange.
pub fn note_access(is_ordered_write: bool) {
    LAST_IS_ORDERED_WRITE.set(Some(is_ordered_write));
}

#[derive(Debug)]
pub struct Table<W32, W64, B> {
    words: Vec<W64>,
    waiting: W32,
    sleeping: W32,
    cpu: W32,
    credit: W64,
    taken: W64,
    barrier: PhantomData<B>,
}

impl<W32, W64, B> Table<W32, W64, B> {
    pub fn new(cells: usize, word32: impl Fn() -> W32, word64: impl Fn() -> W64) -> Self {
        Self {
            words: (0..cells * WORDS).map(|_| word64()).collect(),
            waiting: word32(),
            sleeping: word32(),
            cpu: word32(),
            credit: word64(),
            taken: word64(),
            barrier: PhantomData,
        }
    }
}

/// Lets both sides of a ring and the test share one table of words and cells, as processes share a mapping.
impl<W32: Word<u32>, W64: Word<u64>, B: Barrier> Memory for std::sync::Arc<Table<W32, W64, B>> {
    type Word32 = W32;
    type Word64 = W64;

    fn cells(&self) -> usize {
        self.words.len() / WORDS
    }

    fn header(&self, cell: usize) -> &W64 {
        &self.words[cell % self.cells() * WORDS]
    }

    fn waiting(&self) -> &W32 {
        &self.waiting
    }

    fn sleeping(&self) -> &W32 {
        &self.sleeping
    }

    fn cpu(&self) -> &W32 {
        &self.cpu
    }

    fn credit(&self) -> &W64 {
        &self.credit
    }

    fn taken(&self) -> &W64 {
        &self.taken
    }

    fn write(&self, cell: usize, offset: usize, bytes: &[u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            let word = &self.words[cell * WORDS + 1 + at / 8];
            let mut value = word.load(Relaxed).to_le_bytes();
            value[at % 8] = *byte;
            word.store(u64::from_le_bytes(value), Relaxed);
        }
    }

    fn read<'a>(&self, cell: usize, offset: usize, out: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
        for (at, place) in (offset..).zip(out.iter_mut()) {
            let word = &self.words[cell * WORDS + 1 + at / 8];
            place.write(word.load(Relaxed).to_le_bytes()[at % 8]);
        }
        // SAFETY: every byte was written just now.
        unsafe { &mut *(std::ptr::from_mut(out) as *mut [u8]) }
    }

    fn in_place(&self, _cell: usize, _offset: usize, _len: usize) -> *const u8 {
        unreachable!("a table of words has no bytes in place")
    }

    unsafe fn uninit_mut(&self, _cell: usize, _len: usize) -> &mut [MaybeUninit<u8>] {
        unreachable!("a table of words has no bytes in place")
    }

    fn sleep_barrier() {
        B::barrier();
    }

    fn full_barrier() {
        // Outside of models the write before this call keeps the order alone.
        assert_ne!(LAST_IS_ORDERED_WRITE.get(), Some(false), "the write before a barrier is sequentially consistent");
        B::barrier();
    }
}
