//! The limit on the memory that a process keeps for large messages, over all channels.
//!
//! Each pool decides which of its blocks it lends; this module decides how much memory of all blocks stays **warm**. A
//! block above the limit is used once. An idle block can be **cooled**: the kernel takes back the pages of the block's
//! payload. A cooled block stays mapped on both sides and reads as zeroes at its next use, so the receiver need not be
//! told.
//!
//! A process that has the memory of a block can make the kernel wait, for any time, before the kernel takes pages back:
//! by a write to the memory that does not end. So a thread of the [reaper](crate::os::reaper) cools the blocks that
//! other processes have, and no call waits for the thread, except [`trim`] and [`set_pool_limit`] for a limited time.
//!
//! No thread wakes up to look for blocks. A process looks for long idle blocks when it sends large messages, at some of
//! the messages that it publishes, and before it sleeps.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

use crate::os;
use crate::os::fork::PerProcess;
use crate::sync::unpoisoned;

/// The limit that applies until a program sets another limit.
const DEFAULT_CAP: usize = 256 << 20;

/// The time without a use after which a block is cooled.
const QUIET: Duration = Duration::from_secs(10);

/// The time without a use after which a block of one pool makes way for a block of another pool.
const MAKES_WAY: Duration = Duration::from_millis(100);

/// The longest time for which [`trim`] and [`set_pool_limit`] wait for threads that cool blocks, without the time for
/// each MiB.
const PATIENCE: Duration = Duration::from_secs(1);

/// The further time for which [`trim`] and [`set_pool_limit`] wait, for each MiB of the idle blocks. The kernel takes
/// about a fifth of this time.
const PATIENCE_FOR_EACH_MIB: Duration = Duration::from_millis(1);

/// The time in milliseconds between two looks for blocks that were not used for [`QUIET`].
const LOOK_EVERY: u64 = 1000;

static CAP: AtomicUsize = AtomicUsize::new(DEFAULT_CAP);

/// A block of warm memory, which is counted until the block is dropped or cooled.
pub(crate) trait Block: Send + Sync {
    /// Returns the time of the last use of the block, by the clock of [`now`]. The time can change at any moment. Does
    /// not wait.
    fn used_at(&self) -> Duration;

    /// Returns the number of warm bytes of the block; 0 if the block was cooled.
    fn counted(&self) -> usize;

    /// Cools the block, if no message uses the block and the block was not used for the time `unused`. If another
    /// process has the memory, does not wait, and makes a thread cool the block. Returns the number of bytes that were
    /// cooled, or that a thread is to cool. Bytes count until they are cooled.
    fn cool(self: Arc<Self>, unused: Duration) -> usize;

    /// Returns whether a thread is cooling the block, or is to cool it.
    fn is_with_thread(&self) -> bool;
}

/// Whether this process, or one of its ancestors, has counted any memory.
static COUNTED: AtomicBool = AtomicBool::new(false);

/// The warm memory of this process.
struct Warm {
    /// Number of bytes of all warm blocks.
    bytes: AtomicUsize,
    blocks: Mutex<Vec<Weak<dyn Block>>>,
    /// The time of the next look for quiet blocks, in milliseconds, as [`now`] counts.
    next_look: AtomicU64,
    /// Whether the last attempt to start a thread that cools blocks has failed, and no thread has run since.
    lacks_threads: AtomicBool,
    /// The condition variable of the threads that wait until a thread of the reaper has cooled a block, with its lock.
    cooled: (Mutex<()>, Condvar),
}

static WARM: PerProcess<Warm> = PerProcess::new(|| Warm {
    bytes: AtomicUsize::new(0),
    blocks: Mutex::new(Vec::new()),
    next_look: AtomicU64::new(0),
    lacks_threads: AtomicBool::new(false),
    cooled: Default::default(),
});

/// Sets the number of bytes of memory that this process keeps for sending large messages, over all channels. Default:
/// 256 MiB. If the process keeps more memory than a lower limit allows, idle memory is given back as by [`trim`].
///
/// The memory of a message is kept after the message was received: the next message finds the memory mapped and warm. A
/// message for which no memory can be kept uses fresh memory once, at the cost of a page fault for each page:
/// [`Counters::used_once`](crate::Counters::used_once) counts such messages. A sender that fills one message while the
/// receiver reads another keeps the memory of two messages. [`Options::pool`](crate::Options::pool) is the limit for
/// one end.
///
/// Memory that was not used for 10 seconds is given back at the library's next use: when this process sends a large
/// message, at every sixteenth message, and before a thread sleeps.
///
/// ```
/// use strait::quota::{pool_held, pool_limit, set_pool_limit, trim};
/// set_pool_limit(1 << 30);
/// assert_eq!(pool_limit(), 1 << 30);
/// let (a, b) = strait::Channel::pair()?;
/// a.send(&vec![1; 1 << 20])?;
/// b.recv()?;
/// assert!(pool_held() > 1 << 20);
/// assert!(trim() >= 1 << 20);
/// # Ok::<(), strait::Error>(())
/// ```
pub fn set_pool_limit(bytes: usize) {
    CAP.store(bytes, Ordering::Relaxed);
    let warm = WARM.get();
    if warm.bytes.load(Ordering::Relaxed) > bytes {
        warm.give_back();
    }
}

/// Returns the most bytes of memory that this process keeps for sending large messages.
///
/// Example: [the limit](crate::quota::set_pool_limit).
pub fn pool_limit() -> usize {
    CAP.load(Ordering::Relaxed)
}

/// Returns the number of bytes of memory that this process keeps now for sending large messages, over all channels.
/// Messages in flight in the memory are included.
///
/// Example: [the limit](crate::quota::set_pool_limit).
pub fn pool_held() -> usize {
    WARM.get().bytes.load(Ordering::Relaxed)
}

/// Gives back the unused part of the memory that this process keeps for large messages, for example before a time
/// without large messages. Returns the number of bytes given back. The memory of a message counts as used until the
/// receiver has received the message, or has dropped the view on the message. Takes some 0.2 ms for each MiB given
/// back.
///
/// A thread of the library gives back memory that a peer has, because a hostile peer can hold the thread up as long as
/// the peer likes. The call waits for the thread, for at most 1 second and 1 ms for each MiB of unused memory. Memory
/// that is not given back by then counts as kept until the thread has given it back.
///
/// Example: [the limit](crate::quota::set_pool_limit).
pub fn trim() -> usize {
    WARM.get().give_back()
}

/// Cools the blocks that were not used for [`QUIET`], if a look for such blocks is due.
#[inline]
pub(crate) fn look() {
    if COUNTED.load(Ordering::Relaxed) {
        WARM.get().look_now_and_then();
    }
}

impl Warm {
    #[inline(never)]
    fn look_now_and_then(&self) {
        let now = now().as_millis() as u64;
        let next = self.next_look.load(Ordering::Relaxed);
        let is_due = || self.next_look.compare_exchange(next, now + LOOK_EVERY, Ordering::Relaxed, Ordering::Relaxed);
        if now >= next && is_due().is_ok() {
            self.cool(QUIET, usize::MAX);
        }
    }

    fn blocks(&self) -> Vec<Arc<dyn Block>> {
        let mut all = unpoisoned(&self.blocks);
        all.retain(|block| block.strong_count() > 0);
        all.iter().filter_map(Weak::upgrade).collect()
    }

    /// Cools idle blocks that were not used for `unused`, in the order of their last use, until `wanted` bytes are
    /// cooled. Bytes that a thread is to cool because of this call count as well. Bytes that a thread is to cool
    /// already do not count: a hostile peer may be holding the thread up.
    fn cool(&self, unused: Duration, wanted: usize) {
        let mut blocks = self.blocks();
        // Other threads use blocks meanwhile, and `sort_by_key`, which asks for a key several times, may then panic.
        blocks.sort_by_cached_key(|block| block.used_at());
        let mut cooled = 0;
        for block in blocks {
            if cooled >= wanted {
                break;
            }
            if !block.is_with_thread() {
                cooled += block.cool(unused);
            }
        }
    }

    /// Cools all idle blocks, and waits for a limited time until threads have cooled the blocks that other processes
    /// have. Returns the number of bytes cooled.
    fn give_back(&self) -> usize {
        let blocks: Vec<_> = self.blocks().into_iter().map(|block| (block.counted(), block)).collect();
        let asked: usize = blocks.iter().map(|(_, block)| block.clone().cool(Duration::ZERO)).sum();
        let limit = PATIENCE + PATIENCE_FOR_EACH_MIB * u32::try_from(asked >> 20).unwrap_or(u32::MAX);
        let is_with_thread = |_: &mut ()| {
            !self.lacks_threads.load(Ordering::Relaxed) && blocks.iter().any(|(_, block)| block.is_with_thread())
        };
        let (lock, turn) = &self.cooled;
        drop(turn.wait_timeout_while(unpoisoned(lock), limit, is_with_thread));
        blocks.iter().map(|(counted, block)| counted.saturating_sub(block.counted())).sum()
    }
}

/// Notes that a thread of the reaper has cooled a block (`ran`), or that no such thread could be started.
pub(crate) fn note_thread(ran: bool) {
    let warm = WARM.get();
    let (lock, turn) = &warm.cooled;
    let _lock = unpoisoned(lock);
    warm.lacks_threads.store(!ran, Ordering::Relaxed);
    turn.notify_all();
}

/// Returns the time since some fixed moment, exact to a few milliseconds. Costs less than a tenth of an exact time.
pub(crate) fn now() -> Duration {
    os::coarse_time()
}

/// Counts `len` bytes as warm memory, if the limit permits. Blocks of other pools that were not used for [`MAKES_WAY`]
/// make way: at once, or for later calls if other processes have them. Returns whether the bytes were counted.
pub(crate) fn count(len: usize) -> bool {
    let warm = WARM.get();
    let add = |bytes: usize| bytes.checked_add(len).filter(|sum| *sum <= pool_limit());
    let counts = || warm.bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).is_ok();
    COUNTED.store(true, Ordering::Relaxed);
    if counts() {
        return true;
    }
    let excess = pool_held().saturating_add(len).saturating_sub(pool_limit());
    len <= pool_limit() && {
        warm.cool(MAKES_WAY, excess);
        counts()
    }
}

/// Ends the count of `len` bytes that [`count`] has counted.
pub(crate) fn uncount(len: usize) {
    WARM.get().bytes.fetch_sub(len, Ordering::Relaxed);
}

/// Lists a block whose bytes were counted: the block can be cooled from now on.
pub(crate) fn list(block: Weak<dyn Block>) {
    unpoisoned(&WARM.get().blocks).push(block);
}

/// Cools the blocks that were not used for [`QUIET`], as a look does when it is due.
#[cfg(test)]
pub(crate) fn look_at_once() {
    WARM.get().next_look.store(0, Ordering::Relaxed);
    look();
}

/// Returns a time of last use so long ago that the next look cools the block.
#[cfg(test)]
pub(crate) fn long_ago() -> Duration {
    now().checked_sub(QUIET).expect("this machine was started before")
}
