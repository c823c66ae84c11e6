//! The handle table: the numbers of objects in this process.
//!
//! A handle consists of the number of a *slot*, the slot's generation, and the two low bits that Zircon sets in every
//! valid handle. Slots are never freed, so a look-up is one atomic addition to the slot's word, and takes no lock:
//!
//! ```text
//! bits  0..24  uses: number of threads that use the entry at the moment
//! bit      24  reading: one thread has the reading lock (see below)
//! bit      25  live: the entry is there
//! bit      26  claimed: uses may be claims ([`claim`]), which are not counted
//! bit      27  open: uses that only take the next message out of the ring may be claims too
//! bit      28  away: the entry was taken away, and may be put back
//! bits 32..42  generation, which is incremented when an entry is taken away
//! ```
//!
//! A thread that takes an entry away clears *live*, so that no new use begins, and waits until the other uses have
//! ended. A use must therefore be short: a use never blocks, and waits at most for the *reading* lock of another slot.
//! A thread that takes entries away to send them may put them back. Another thread waits for that
//! ([`Table::get_kept`]) before its use, unless it has a use, a lock or such an entry itself. *Reading* is the
//! lock of a channel's receiving side. The additions that begin and end a use also take and release this lock. A thread
//! with the reading lock waits for nothing.
//!
//! Ending claims costs a system call. So a channel's slot becomes *claimed* only after many uses. A slot becomes
//! *open* only after many reads without another operation on its receiving side in between. Then writing and reading
//! need only a [`Glance`], without a locked instruction. A thread that takes the reading lock of an open slot closes
//! the slot first. After each such close, twice as many reads are needed to open the slot again.

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

/// Bits of a slot's word: number of counted uses.
const USES: u64 = (1 << 24) - 1;
/// Bit of a slot's word: a use has the reading lock.
const READING: u64 = 1 << 24;
/// Bit of a slot's word: the entry is there.
const LIVE: u64 = 1 << 25;
/// Bit of a slot's word: uses that do not touch the receiving side may be claims.
const CLAIMED: u64 = 1 << 26;
/// Bit of a slot's word: uses that take the next message out of the ring may be claims.
const OPEN: u64 = 1 << 27;
/// Bit of a slot's word: the entry was taken away, and may be put back.
const AWAY: u64 = 1 << 28;
/// Position of the generation in a slot's word.
const GENERATION_SHIFT: u32 = 32;
/// Number of generations; the count then starts again.
const GENERATIONS: u64 = 1 << 10;

/// Number of bits of a handle for the number of its slot.
const INDEX_BITS: u32 = 20;
/// Number of slots in a chunk.
const CHUNK: usize = 1024;
/// Maximum number of chunks.
const CHUNKS: usize = (1 << INDEX_BITS) / CHUNK;
/// Number of free slots kept back from reuse, so that the number of a closed handle stays invalid for long.
const RESTING: usize = 128;

/// Number of counted uses after which uses become claims. From then on closing the handle costs some microseconds more,
/// if other threads run.
const OFTEN: u32 = 256;
/// Maximum number of doublings of [`OFTEN`] for reads.
const DOUBLINGS: u32 = 16;

/// The object and the rights for which a handle stands.
pub(crate) struct Entry {
    pub(crate) rights: zx_rights_t,
    pub(crate) object: Object,
}

impl Entry {
    /// Checks that the handle has all given rights.
    ///
    /// # Errors
    /// `ACCESS_DENIED`.
    #[inline]
    pub(crate) fn need(&self, rights: zx_rights_t) -> Result<()> {
        if self.rights & rights == rights { Ok(()) } else { Err(Status::ACCESS_DENIED) }
    }
}

/// A slot of the table. Each slot has its own cache line, so that users of the two ends of a channel do not contend.
#[repr(align(64))]
struct Slot {
    /// The process that made the slot.
    owner: u32,
    /// The bits described in the module comment.
    word: AtomicU64,
    /// The entry; `None` while the slot is free.
    entry: UnsafeCell<Option<Entry>>,
    /// Roughly the number of counted writes to the channel. `reads` counts reads in a row.
    writes: AtomicU32,
    reads: AtomicU32,
    /// Number of times that the slot was closed to claims for reading.
    closed: AtomicU32,
}

// SAFETY: the entry is accessed only during a use, while the slot is live. Only the thread that has made the slot
// live or not live changes the entry, while there is no use. Any thread may use and drop an entry.
unsafe impl Sync for Slot {}

/// The purpose of a [`Glance`].
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum For {
    /// Any use that does not touch the receiving side.
    Writing,
    /// A use that takes the next message out of the ring.
    Reading,
}

impl For {
    /// Returns the bit of a slot's word that permits claims for the purpose.
    #[inline(always)]
    fn bit(self) -> u64 {
        match self {
            Self::Writing => CLAIMED,
            Self::Reading => OPEN,
        }
    }
}

impl Slot {
    /// Returns whether the slot was made by the parent, before a fork.
    fn is_elsewheres(&self) -> bool {
        self.owner != std::process::id()
    }

    /// Returns the slot's number in claims: the address, with the lowest bit set for reading.
    #[inline(always)]
    fn name(&self, purpose: For) -> usize {
        std::ptr::from_ref(self).addr() | usize::from(purpose == For::Reading)
    }

    /// Counts a use without a claim. After many such uses, later uses may be claims.
    #[inline]
    fn warm(&self, purpose: For) {
        let (count, doublings) = match purpose {
            For::Writing => (&self.writes, 0),
            For::Reading => (&self.reads, self.closed.load(Ordering::Relaxed).min(DOUBLINGS)),
        };
        // If two threads count at once, one of the uses may be lost.
        let uses = count.load(Ordering::Relaxed).saturating_add(1);
        count.store(uses, Ordering::Relaxed);
        if uses >= OFTEN << doublings {
            self.allow(purpose);
        }
    }

    /// Permits claims (uses that are not counted) for this purpose. The caller has a use, and for reading also the
    /// reading lock.
    #[cold]
    fn allow(&self, purpose: For) {
        let word = self.word.load(Ordering::Relaxed);
        if claim::is_possible() && word & LIVE != 0 {
            // If this fails, another thread has begun or ended a use meanwhile, and a later use tries again.
            let _ = self.word.compare_exchange(word, word | purpose.bit(), Ordering::Release, Ordering::Relaxed);
        }
    }

    /// Resets the counts of uses to 0, for a new entry.
    fn cool(&self) {
        for count in [&self.writes, &self.reads, &self.closed] {
            count.store(0, Ordering::Relaxed);
        }
    }
}

type Chunk = [Slot; CHUNK];

/// The handle table of a process.
pub(crate) struct Table {
    /// Chunks of slots; null while a chunk was not made yet.
    chunks: [AtomicPtr<Chunk>; CHUNKS],
    /// A random number combined with the numbers of handles, so that handles of one process mean nothing in another
    /// process. 0 before the draw.
    secret: AtomicU32,
}

/// The free slots of the table.
struct Free {
    /// Number of slots made by the process and its ancestors.
    made: usize,
    /// Numbers of free slots, the longest free first.
    queue: VecDeque<u32>,
    /// Number of entries present, or in a message being sent, from which an entry may come back.
    used: usize,
}

/// Number of chunks made by the process and its ancestors.
static CHUNKS_MADE: AtomicUsize = AtomicUsize::new(0);

/// The free slots of the process. The child of a fork makes chunks of its own: a thread of the parent may have been
/// using any of the slots that existed at the fork.
static FREE: PerProcess<Mutex<Free>> = PerProcess::new(|| {
    let made = CHUNKS_MADE.load(Ordering::SeqCst) * CHUNK;
    Mutex::new(Free { made, queue: VecDeque::new(), used: 0 })
});

static TABLE: Table =
    Table { chunks: [const { AtomicPtr::new(std::ptr::null_mut()) }; CHUNKS], secret: AtomicU32::new(0) };

/// Returns the table of this process.
#[inline]
pub(crate) fn table() -> &'static Table {
    &TABLE
}

/// A counted use of an entry. It must be short: see [the module](self).
pub(crate) struct Use {
    slot: &'static Slot,
    /// The number to subtract from the slot's word when the use ends.
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

/// A use of a channel's entry by a claim, which is not counted. A glance must be even shorter than a [`Use`], and
/// wait for nothing.
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
    /// Counts a use that could have been a [`Glance`].
    #[inline]
    pub(crate) fn warm(&self, purpose: For) {
        self.slot.warm(purpose);
    }
}

/// A removed entry that can be put back. While the value exists, the entry's number is not reused.
pub(crate) struct Taken {
    index: u32,
    handle: zx_handle_t,
    entry: Option<Entry>,
}

impl Taken {
    /// Returns the handle by which the entry was reached.
    pub(crate) fn handle(&self) -> zx_handle_t {
        self.handle
    }

    /// Returns the entry.
    pub(crate) fn entry(&mut self) -> &mut Entry {
        self.entry.as_mut().expect("it is there until this ends")
    }

    /// Takes the entry out; the number becomes free.
    pub(crate) fn into_entry(mut self) -> Entry {
        self.entry.take().expect("it is there until this ends")
    }

    /// Puts the entry back, so that the handle is valid again.
    pub(crate) fn put_back(mut self) {
        let slot = TABLE.slot(self.index).expect("it was there");
        let entry = self.entry.take();
        // SAFETY: the slot is not live and not in the queue, so no other thread accesses the entry.
        unsafe { *slot.entry.get() = entry };
        slot.cool();
        // Restores the generation that is part of the handle.
        let before = slot.word.load(Ordering::Relaxed) >> GENERATION_SHIFT;
        let generation = before.wrapping_sub(1) & (GENERATIONS - 1);
        let lift = ((generation << GENERATION_SHIFT) | LIVE).wrapping_sub((before << GENERATION_SHIFT) | AWAY);
        slot.word.fetch_add(lift, Ordering::Release);
        // The slot stays in use.
        std::mem::forget(self);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        drop(self.entry.take());
        let slot = TABLE.slot(self.index).expect("it was there");
        if slot.is_elsewheres() {
            return;
        }
        slot.word.fetch_and(!AWAY, Ordering::Release);
        let mut free = unpoisoned(FREE.get());
        free.queue.push_back(self.index);
        free.used -= 1;
    }
}

/// A free slot taken for a new entry. Dropping this value frees the slot again.
pub(crate) struct Reserved(u32);

impl Reserved {
    /// Puts the entry into the slot, and returns the handle.
    pub(crate) fn fill(self, entry: Entry) -> zx_handle_t {
        let slot = TABLE.slot(self.0).expect("it was made");
        // SAFETY: the slot is not live, and this value has taken it out of the queue, so no other thread accesses the
        // entry.
        unsafe { *slot.entry.get() = Some(entry) };
        slot.cool();
        let word = slot.word.fetch_add(LIVE, Ordering::Release);
        let generation = (word >> GENERATION_SHIFT) as u32;
        let bits = (generation << INDEX_BITS) | self.0;
        // The slot stays in use.
        std::mem::forget(self);
        ((bits << 2) | ZX_HANDLE_FIXED_BITS_MASK) ^ TABLE.secret()
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let mut free = unpoisoned(FREE.get());
        free.queue.push_back(self.0);
        free.used -= 1;
    }
}

impl Table {
    /// Returns the number of handles.
    pub(crate) fn len(&self) -> usize {
        unpoisoned(FREE.get()).used
    }

    /// Returns the random number of the process; draws the number at the first call.
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
        // Without randomness the handles are merely easier to guess.
        let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
        // The low two bits are fixed in handles, and 0 means that the number was not drawn yet.
        let secret = u32::from_ne_bytes(bytes) & !ZX_HANDLE_FIXED_BITS_MASK | 4;
        // If two threads draw at once, both use the number that was stored first.
        self.secret
            .compare_exchange(0, secret, Ordering::Relaxed, Ordering::Relaxed)
            .map_or_else(|made| made, |_| secret)
    }

    /// Returns the slot with the given number; `None` if the chunk was not made yet.
    #[inline]
    fn slot(&self, index: u32) -> Option<&'static Slot> {
        let chunk = self.chunks[index as usize / CHUNK].load(Ordering::Acquire);
        // SAFETY: a chunk that was published is never freed.
        let chunk = unsafe { chunk.as_ref() }?;
        Some(&chunk[index as usize % CHUNK])
    }

    /// Returns the slot named by a handle, the number of the slot, and the generation of the slot if the handle is
    /// valid.
    #[inline]
    fn find(&self, handle: zx_handle_t) -> Option<(&'static Slot, u32, u64)> {
        if handle & ZX_HANDLE_FIXED_BITS_MASK != ZX_HANDLE_FIXED_BITS_MASK {
            return None;
        }
        let bits = (handle ^ self.secret()) >> 2;
        let index = bits & ((1 << INDEX_BITS) - 1);
        Some((self.slot(index)?, index, u64::from(bits >> INDEX_BITS)))
    }

    /// Returns whether a slot with the given word is live and has the generation.
    #[inline]
    fn is_good(word: u64, generation: u64) -> bool {
        Self::is_good_for(word, generation, 0)
    }

    /// Returns whether a slot with the given word is live, has the generation, and has `bit` set.
    #[inline]
    fn is_good_for(word: u64, generation: u64, bit: u64) -> bool {
        // A single comparison checks all three.
        (word ^ (generation << GENERATION_SHIFT | LIVE | bit)) & (u64::MAX << GENERATION_SHIFT | LIVE | bit) == 0
    }

    /// Begins a use by a claim; `None` if the use has to be counted, or the handle is not valid.
    #[inline(always)]
    pub(crate) fn glance(&self, handle: zx_handle_t, purpose: For) -> Option<Glance> {
        let (slot, _, generation) = self.find(handle)?;
        let may_be_used = || Self::is_good_for(slot.word.load(Ordering::Acquire), generation, purpose.bit());
        Some(Glance { slot, _claim: Claim::begin(slot.name(purpose), may_be_used)? })
    }

    /// Begins a counted use.
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

    /// Begins a counted use that holds the entry's reading lock. Waits until the lock is free.
    ///
    /// # Errors
    /// `BAD_HANDLE`; `BAD_STATE` in the child of a fork if a thread of the parent holds the lock.
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

    /// Begins a counted use that holds the reading lock, to do more than take the next message. Many reads are needed
    /// then before the slot is opened to claims.
    ///
    /// # Errors
    /// `BAD_HANDLE`; `BAD_STATE` in the child of a fork if a thread of the parent holds the lock.
    #[inline]
    pub(crate) fn get_reading(&self, handle: zx_handle_t) -> Result<Use> {
        let entry = self.get_to_read(handle)?;
        entry.slot.reads.store(0, Ordering::Relaxed);
        Ok(entry)
    }

    /// Begins a use with `get`, a function of the table that begins a use. If another thread has taken the entry away
    /// and may put it back, first waits until that thread has put the entry back or dropped it. The caller has no entry
    /// that was taken away, no use and no lock.
    ///
    /// # Errors
    /// As `get`.
    #[inline]
    pub(crate) fn get_kept(&self, handle: zx_handle_t, get: impl Fn(&Self, zx_handle_t) -> Result<Use>) -> Result<Use> {
        match get(self, handle) {
            Err(Status::BAD_HANDLE) => self.get_returned(handle, get),
            got => got,
        }
    }

    #[cold]
    fn get_returned(&self, handle: zx_handle_t, get: impl Fn(&Self, zx_handle_t) -> Result<Use>) -> Result<Use> {
        let (slot, _, generation) = self.find(handle).ok_or(Status::BAD_HANDLE)?;
        let away = ((generation + 1) % GENERATIONS) << GENERATION_SHIFT | AWAY;
        let mut tries = 0;
        loop {
            let word = slot.word.load(Ordering::Acquire);
            if Self::is_good(word, generation) {
                match get(self, handle) {
                    // The entry was taken away again.
                    Err(Status::BAD_HANDLE) => {}
                    got => return got,
                }
            } else if word & (u64::MAX << GENERATION_SHIFT | AWAY) != away || !back_off(slot, &mut tries) {
                return Err(Status::BAD_HANDLE);
            }
        }
    }

    /// Takes an entry away: the handle is invalid from now on. Waits until all uses have ended; the caller has none.
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
            let without = (word & (USES | READING)) | AWAY | (next << GENERATION_SHIFT);
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
        // SAFETY: the slot is not live and has no use. A look-up that comes now ends without accessing the entry.
        let entry = unsafe { (*slot.entry.get()).take() };
        Ok(Taken { index, handle, entry })
    }

    /// Adds an entry, and returns the handle.
    ///
    /// # Errors
    /// `NO_MEMORY` if there are 1,048,576 entries already.
    pub(crate) fn add(&self, entry: Entry) -> Result<zx_handle_t> {
        Ok(self.reserve()?.fill(entry))
    }

    /// Takes a free slot for an entry that the caller is about to make.
    ///
    /// # Errors
    /// `NO_MEMORY` if there are 1,048,576 entries already.
    pub(crate) fn reserve(&self) -> Result<Reserved> {
        let mut free = unpoisoned(FREE.get());
        let full = free.made == CHUNKS * CHUNK;
        if (free.queue.len() > RESTING || full)
            && let Some(index) = free.queue.pop_front()
        {
            free.used += 1;
            return Ok(Reserved(index));
        }
        if full {
            return Err(Status::NO_MEMORY);
        }
        if free.made.is_multiple_of(CHUNK) {
            CHUNKS_MADE.store(free.made / CHUNK + 1, Ordering::SeqCst);
            self.make_chunk(free.made / CHUNK);
        }
        free.made += 1;
        free.used += 1;
        Ok(Reserved(free.made as u32 - 1))
    }

    /// Makes a chunk of free slots.
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

/// Waits a moment for another thread, which usually ends its use within a few hundred nanoseconds. Returns `false` if
/// no wait can help: for a slot made by the parent before a fork, whose threads do not exist in this process.
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
