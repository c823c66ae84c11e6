//! The handle table: which numbers stand for what in this process.
//!
//! A handle is the number of a *slot*, its generation, and the two low bits that Zircon has in every valid handle. Slots
//! are never freed, so a look-up is one atomic addition to the slot's word, and no lock:
//!
//! ```text
//! bits  0..24  uses: threads that look at the entry just now
//! bit      24  reading: one of them has it to itself (see below)
//! bit      25  live: the entry is there
//! bit      26  claimed: uses may be claims ([`claim`]), which are not counted
//! bit      27  open: so may uses that take the front message out of the ring and do nothing else to the receiving side
//! bits 32..42  generation, which goes on when an entry is taken away
//! ```
//!
//! Who takes an entry away clears *live*, so that no new use begins, and waits until the others have ended. A use must
//! therefore be short: it never blocks, and waits for another slot's *reading* at most. *Reading* is the lock of a channel's receiving
//! side, taken and given back by the very additions that begin and end the use; who has it waits for nothing.
//!
//! To end claims costs a system call, so a channel's slot is *claimed* only once it was used often, and *open* once it was read
//! often and nothing else was done to its receiving side between. Then a [`Glance`] is all that writing and reading need: no
//! locked instruction. Who takes the reading lock of an open slot closes it first; each time that happens it takes twice as
//! many reads to open it again.

use std::cell::UnsafeCell;
use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::Mutex;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use strait::bindings::PerProcess;

use crate::abi::{ZX_HANDLE_FIXED_BITS_MASK, zx_handle_t, zx_rights_t};
use crate::claim::{self, Claim};
use crate::object::Object;
use crate::status::{Result, Status};
use crate::unpoisoned;

const USES: u64 = (1 << 24) - 1;
const READING: u64 = 1 << 24;
const LIVE: u64 = 1 << 25;
const CLAIMED: u64 = 1 << 26;
const OPEN: u64 = 1 << 27;
const GENERATION_SHIFT: u32 = 32;
const GENERATIONS: u64 = 1 << 10;

/// Bits of a handle that are the number of its slot.
const INDEX_BITS: u32 = 20;
/// Slots in a chunk.
const CHUNK: usize = 1024;
/// Chunks at most.
const CHUNKS: usize = (1 << INDEX_BITS) / CHUNK;
/// Slots that wait before one is used again, so that the number of a closed handle stays bad for long.
const RESTING: usize = 128;

/// Counted uses after which uses are claimed: closing a handle costs some microseconds more then, if other threads run.
const OFTEN: u32 = 256;
/// How often that doubles at most.
const DOUBLINGS: u32 = 16;

/// What a handle stands for.
pub(crate) struct Entry {
    pub(crate) rights: zx_rights_t,
    pub(crate) object: Object,
}

impl Entry {
    /// Checks that the handle has these rights.
    #[inline]
    pub(crate) fn need(&self, rights: zx_rights_t) -> Result<()> {
        if self.rights & rights == rights { Ok(()) } else { Err(Status::ACCESS_DENIED) }
    }
}

/// One cache line, so that threads that use the two ends of a channel do not take it from each other.
#[repr(align(64))]
struct Slot {
    /// The process that has made it.
    owner: u32,
    word: AtomicU64,
    entry: UnsafeCell<Option<Entry>>,
    /// Roughly how often it was written to, and read in a row, while that was counted.
    writes: AtomicU32,
    reads: AtomicU32,
    /// How often it was closed to claims that read.
    closed: AtomicU32,
}

// SAFETY: the entry is looked at between the beginning and the end of a use while the slot is live, and changed only by
// who has made it live or not live, when there is no use. An entry may be used and dropped by any thread.
unsafe impl Sync for Slot {}

/// What a [`Glance`] is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    /// Anything but the receiving side.
    Writing,
    /// To take the front message out of the ring.
    Reading,
}

impl For {
    #[inline(always)]
    fn bit(self) -> u64 {
        match self {
            Self::Writing => CLAIMED,
            Self::Reading => OPEN,
        }
    }
}

impl Slot {
    /// Whether this process's parent has made it.
    fn is_elsewheres(&self) -> bool {
        self.owner != std::process::id()
    }

    /// What claims name it by: an address, of which those that read have the lowest bit set.
    #[inline(always)]
    fn name(&self, purpose: For) -> usize {
        std::ptr::from_ref(self).addr() | usize::from(purpose == For::Reading)
    }

    /// Counts a use that could have been a claim; after many of them, the next may be.
    #[inline]
    fn warm(&self, purpose: For) {
        let (count, doublings) = match purpose {
            For::Writing => (&self.writes, 0),
            For::Reading => (&self.reads, self.closed.load(Ordering::Relaxed).min(DOUBLINGS)),
        };
        // Of two threads at once one may go uncounted.
        let uses = count.load(Ordering::Relaxed).saturating_add(1);
        count.store(uses, Ordering::Relaxed);
        if uses >= OFTEN << doublings {
            self.allow(purpose);
        }
    }

    /// Lets uses be claims. The caller has a use; with the reading lock, if that is what for.
    #[cold]
    fn allow(&self, purpose: For) {
        let word = self.word.load(Ordering::Relaxed);
        if claim::is_possible() && word & LIVE != 0 {
            // Should it fail, somebody came or went just now: another time.
            let _ = self.word.compare_exchange(word, word | purpose.bit(), Ordering::Release, Ordering::Relaxed);
        }
    }

    /// It is a new entry's.
    fn cool(&self) {
        for count in [&self.writes, &self.reads, &self.closed] {
            count.store(0, Ordering::Relaxed);
        }
    }
}

type Chunk = [Slot; CHUNK];

/// All handles of this process.
pub(crate) struct Table {
    chunks: [AtomicPtr<Chunk>; CHUNKS],
    /// What numbers are mixed with, so that those of one process mean nothing in another.
    secret: AtomicU32,
}

struct Free {
    /// Slots made so far.
    made: usize,
    queue: VecDeque<u32>,
    /// Entries that are there, or on their way in a message that may come back.
    used: usize,
}

/// Chunks that this process and its ancestors have made.
static CHUNKS_MADE: AtomicUsize = AtomicUsize::new(0);

/// A child of a fork makes chunks of its own: threads of its parent may have been about to do something with any slot of those
/// that were there.
static FREE: PerProcess<Mutex<Free>> = PerProcess::new(|| {
    let made = CHUNKS_MADE.load(Ordering::SeqCst) * CHUNK;
    Mutex::new(Free { made, queue: VecDeque::new(), used: 0 })
});

static TABLE: Table =
    Table { chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS], secret: AtomicU32::new(0) };

/// The table of this process.
#[inline]
pub(crate) fn table() -> &'static Table {
    &TABLE
}

/// A use of an entry. Short: see [the module](self).
pub(crate) struct Use {
    slot: &'static Slot,
    /// What ending it takes back.
    held: u64,
}

impl Deref for Use {
    type Target = Entry;
    #[inline]
    fn deref(&self) -> &Entry {
        // SAFETY: the use began while the slot was live, so the entry is there, and stays until the use has ended.
        unsafe { (*self.slot.entry.get()).as_ref().unwrap_unchecked() }
    }
}

impl Drop for Use {
    #[inline]
    fn drop(&mut self) {
        self.slot.word.fetch_sub(self.held, Ordering::Release);
    }
}

/// A use of a channel's entry that is not counted. Shorter still: it waits for nothing.
pub(crate) struct Glance {
    slot: &'static Slot,
    _claim: Claim,
}

impl Deref for Glance {
    type Target = Entry;
    #[inline(always)]
    fn deref(&self) -> &Entry {
        // SAFETY: the slot was live once it was claimed, so the entry is there, and stays until the claim has ended.
        unsafe { (*self.slot.entry.get()).as_ref().unwrap_unchecked() }
    }
}

impl Use {
    /// Says that this use could have been a [`Glance`].
    #[inline]
    pub(crate) fn warm(&self, purpose: For) {
        self.slot.warm(purpose);
    }
}

/// An entry that was taken away, whose number is not given out again before this is dropped: it can be put back.
pub(crate) struct Taken {
    index: u32,
    handle: zx_handle_t,
    entry: Option<Entry>,
}

impl Taken {
    pub(crate) fn handle(&self) -> zx_handle_t {
        self.handle
    }

    pub(crate) fn entry(&mut self) -> &mut Entry {
        self.entry.as_mut().expect("it is there until this ends")
    }

    pub(crate) fn into_entry(mut self) -> Entry {
        self.entry.take().expect("it is there until this ends")
    }

    /// Puts the entry back: the handle is as it was.
    pub(crate) fn put_back(mut self) {
        let slot = TABLE.slot(self.index).expect("it was there");
        let entry = self.entry.take();
        // SAFETY: the slot is not live and not in the queue, so nobody else looks at the entry.
        unsafe { *slot.entry.get() = entry };
        slot.cool();
        // Back to the generation that its number has.
        let before = slot.word.load(Ordering::Relaxed) >> GENERATION_SHIFT;
        let generation = before.wrapping_sub(1) & (GENERATIONS - 1);
        let lift = ((generation << GENERATION_SHIFT) | LIVE).wrapping_sub(before << GENERATION_SHIFT);
        slot.word.fetch_add(lift, Ordering::Release);
        // It stays in use.
        std::mem::forget(self);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        drop(self.entry.take());
        if TABLE.slot(self.index).is_some_and(Slot::is_elsewheres) {
            return;
        }
        let mut free = unpoisoned(FREE.get());
        free.queue.push_back(self.index);
        free.used -= 1;
    }
}

impl Table {
    /// How many handles there are.
    pub(crate) fn len(&self) -> usize {
        unpoisoned(FREE.get()).used
    }

    #[inline]
    fn secret(&self) -> u32 {
        match self.secret.load(Ordering::Relaxed) {
            0 => self.make_secret(),
            secret => secret,
        }
    }

    #[cold]
    fn make_secret(&self) -> u32 {
        let mut bytes = [0; 4];
        // Without randomness the numbers are merely easier to read.
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
        // The low bits are fixed, and zero means that there is none yet.
        let secret = u32::from_ne_bytes(bytes) & !ZX_HANDLE_FIXED_BITS_MASK | 4;
        // Of two threads at once one has its way.
        self.secret
            .compare_exchange(0, secret, Ordering::Relaxed, Ordering::Relaxed)
            .map_or_else(|made| made, |_| secret)
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&'static Slot> {
        let chunk = self.chunks[index as usize / CHUNK].load(Ordering::Acquire);
        // SAFETY: a chunk that was published is never freed.
        let chunk = unsafe { chunk.as_ref() }?;
        Some(&chunk[index as usize % CHUNK])
    }

    /// The slot that a handle names, and the generation that it has if the handle is good.
    #[inline]
    fn find(&self, handle: zx_handle_t) -> Option<(&'static Slot, u32, u64)> {
        if handle & ZX_HANDLE_FIXED_BITS_MASK != ZX_HANDLE_FIXED_BITS_MASK {
            return None;
        }
        let bits = (handle ^ self.secret()) >> 2;
        let index = bits & ((1 << INDEX_BITS) - 1);
        Some((self.slot(index)?, index, u64::from(bits >> INDEX_BITS)))
    }

    #[inline]
    fn is_good(word: u64, generation: u64) -> bool {
        Self::is_good_for(word, generation, 0)
    }

    #[inline]
    fn is_good_for(word: u64, generation: u64, bit: u64) -> bool {
        // All at once.
        (word ^ (generation << GENERATION_SHIFT | LIVE | bit)) & (u64::MAX << GENERATION_SHIFT | LIVE | bit) == 0
    }

    /// Begins a use that is not counted; `None` if it has to be.
    #[inline(always)]
    pub(crate) fn glance(&self, handle: zx_handle_t, purpose: For) -> Option<Glance> {
        let (slot, _, generation) = self.find(handle)?;
        let may_be_used = || Self::is_good_for(slot.word.load(Ordering::Acquire), generation, purpose.bit());
        Some(Glance { slot, _claim: Claim::begin(slot.name(purpose), may_be_used)? })
    }

    /// Begins a use.
    ///
    /// # Errors
    /// `BAD_HANDLE`.
    #[inline]
    pub(crate) fn get(&self, handle: zx_handle_t) -> Result<Use> {
        let (slot, _, generation) = self.find(handle).ok_or(Status::BAD_HANDLE)?;
        let word = slot.word.fetch_add(1, Ordering::Acquire);
        if !Self::is_good(word, generation) {
            slot.word.fetch_sub(1, Ordering::Relaxed);
            return Err(Status::BAD_HANDLE);
        }
        Ok(Use { slot, held: 1 })
    }

    /// Begins a use with the entry's reading lock.
    ///
    /// # Errors
    /// `BAD_HANDLE`.
    #[inline]
    pub(crate) fn get_to_read(&self, handle: zx_handle_t) -> Result<Use> {
        let (slot, _, generation) = self.find(handle).ok_or(Status::BAD_HANDLE)?;
        let mut word = slot.word.load(Ordering::Relaxed);
        let mut tries = 0;
        loop {
            if !Self::is_good(word, generation) {
                return Err(Status::BAD_HANDLE);
            }
            if word & READING != 0 {
                if !back_off(slot, &mut tries) {
                    return Err(Status::BAD_STATE);
                }
                word = slot.word.load(Ordering::Relaxed);
                continue;
            }
            let next = (word & !OPEN) + READING + 1;
            match slot.word.compare_exchange_weak(word, next, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        if word & OPEN != 0 {
            slot.closed.store(slot.closed.load(Ordering::Relaxed).saturating_add(1), Ordering::Relaxed);
            slot.reads.store(0, Ordering::Relaxed);
            let (it, mut tries) = (slot.name(For::Reading), 0);
            claim::wait_for(|claim| claim == it, || back_off(slot, &mut tries));
        }
        Ok(Use { slot, held: READING + 1 })
    }

    /// The same for more than reading a message that is there: many reads have to come before the slot is open.
    #[inline]
    pub(crate) fn get_reading(&self, handle: zx_handle_t) -> Result<Use> {
        let entry = self.get_to_read(handle)?;
        entry.slot.reads.store(0, Ordering::Relaxed);
        Ok(entry)
    }

    /// Takes an entry away: the handle is bad from here on. Waits until its uses have ended; the caller has none.
    ///
    /// # Errors
    /// `BAD_HANDLE`.
    pub(crate) fn take(&self, handle: zx_handle_t) -> Result<Taken> {
        let (slot, index, generation) = self.find(handle).ok_or(Status::BAD_HANDLE)?;
        let next = (generation + 1) % GENERATIONS;
        let mut word = slot.word.load(Ordering::Relaxed);
        loop {
            if !Self::is_good(word, generation) {
                return Err(Status::BAD_HANDLE);
            }
            let without = (word & (USES | READING)) | (next << GENERATION_SHIFT);
            match slot.word.compare_exchange_weak(word, without, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => word = now,
            }
        }
        let mut tries = 0;
        if word & (CLAIMED | OPEN) != 0 {
            let it = [slot.name(For::Writing), slot.name(For::Reading)];
            claim::wait_for(|claim| it.contains(&claim), || back_off(slot, &mut tries));
        }
        while slot.word.load(Ordering::Acquire) & (USES | READING) != 0 && back_off(slot, &mut tries) {}
        // SAFETY: the slot is not live and has no use; a look-up that comes now ends without looking at the entry.
        let entry = unsafe { (*slot.entry.get()).take() };
        Ok(Taken { index, handle, entry })
    }

    /// Gives an entry a number.
    ///
    /// # Errors
    /// `NO_MEMORY` if there are too many: 1,048,576.
    pub(crate) fn add(&self, entry: Entry) -> Result<zx_handle_t> {
        let index = {
            let mut free = unpoisoned(FREE.get());
            let full = free.made == CHUNKS * CHUNK;
            if (free.queue.len() <= RESTING && !full) || free.queue.is_empty() {
                if full {
                    return Err(Status::NO_MEMORY);
                }
                if free.made.is_multiple_of(CHUNK) {
                    CHUNKS_MADE.store(free.made / CHUNK + 1, Ordering::SeqCst);
                    self.make_chunk(free.made / CHUNK);
                }
                free.made += 1;
                free.used += 1;
                free.made as u32 - 1
            } else {
                free.used += 1;
                free.queue.pop_front().expect("looked at just now")
            }
        };
        let slot = self.slot(index).expect("it was made");
        // SAFETY: the slot is not live, and out of the queue by our hand: nobody else looks at the entry.
        unsafe { *slot.entry.get() = Some(entry) };
        slot.cool();
        let word = slot.word.fetch_add(LIVE, Ordering::Release);
        let generation = (word >> GENERATION_SHIFT) as u32;
        let bits = (generation << INDEX_BITS) | index;
        Ok(((bits << 2) | ZX_HANDLE_FIXED_BITS_MASK) ^ self.secret())
    }

    fn make_chunk(&self, number: usize) {
        let owner = std::process::id();
        let slot = || Slot {
            owner,
            word: AtomicU64::new(0),
            entry: UnsafeCell::new(None),
            writes: AtomicU32::new(0),
            reads: AtomicU32::new(0),
            closed: AtomicU32::new(0),
        };
        let slots: Box<[Slot]> = (0..CHUNK).map(|_| slot()).collect();
        let chunk: Box<Chunk> = slots.try_into().unwrap_or_else(|_| unreachable!("it has the length of a chunk"));
        self.chunks[number].store(Box::into_raw(chunk), Ordering::Release);
    }
}

/// Waits for what another thread has for a few hundred nanoseconds, unless it is held up. False for a slot of this process's parent:
/// the child of a `fork` has none of its threads, and what they were about to do they never will.
fn back_off(slot: &Slot, tries: &mut u32) -> bool {
    *tries += 1;
    if *tries < 100 {
        std::hint::spin_loop();
    } else if *tries < 200 {
        std::thread::yield_now();
    } else {
        std::thread::sleep(std::time::Duration::from_micros(50));
        return !slot.is_elsewheres();
    }
    true
}
