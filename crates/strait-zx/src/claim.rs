//! Claims: records of the slots of the handle table that threads use at the moment, without counting.
//!
//! A thread that uses an entry first writes the number of the entry into its **claim**, a word that no other thread
//! writes. Then the thread checks whether the entry may still be used. A thread that takes an entry away first marks
//! the entry as unusable, and then waits until no claim names the entry. At least one of the two threads must see the
//! write of the other, so each needs a barrier between its write and its check. The barrier of the closing thread
//! serves for both: `membarrier` makes every running thread of the process pass a barrier. So a use costs two plain
//! stores and no locked instruction, and closing costs a system call.
//!
//! ```text
//! user of an entry                      thread that takes an entry away
//! claim = slot                          word = not live
//! (nothing for the compiler to move)    membarrier
//! word is live?  then use the entry     claims name the slot?  then wait
//! claim = 0
//! ```
//!
//! A thread has one claim. A second use of the thread at that time is counted instead. Where the kernel refuses
//! `membarrier`, every use is counted.
//!
//! The protocol consists of [`begin`], [`end`] and [`outlast`]. The three are generic over words and barriers; the
//! model checker has its own types for both.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::time::Duration;

use rustix::thread::{MembarrierCommand, membarrier};

#[cfg(test)]
mod model;

/// The word of a claim.
pub(crate) trait Word {
    fn load(&self) -> usize;
    fn store(&self, value: usize);
}

/// A barrier of two kinds. If one thread passes the light kind and another thread the heavy kind, at least one of the
/// two sees the earlier writes of the other.
trait Barrier {
    fn light(&self);
    fn heavy(&self);
}

/// Claims `what`, and checks whether it may be used. Returns the result of the check; if `false`, nothing is claimed.
#[inline(always)]
fn begin<W: Word>(claim: &W, barrier: &impl Barrier, what: usize, may_be_used: impl FnOnce() -> bool) -> bool {
    claim.store(what);
    barrier.light();
    let used = may_be_used();
    if !used {
        end(claim);
    }
    used
}

/// Ends the use marked by a claim.
#[inline(always)]
fn end<W: Word>(claim: &W) {
    claim.store(NOTHING);
}

/// Waits until no claim names an unusable entry; the caller has marked the entry as unusable before. Stops early if
/// `pause` returns `false`.
fn outlast<'a, W: Word + 'a>(
    claims: impl FnOnce() -> Vec<&'a W>,
    barrier: &impl Barrier,
    is_it: impl Fn(usize) -> bool,
    mut pause: impl FnMut() -> bool,
) {
    barrier.heavy();
    // A thread whose claim is new after the barrier sees the mark.
    for claim in claims() {
        while is_it(claim.load()) && pause() {}
    }
}

/// The value of a claim without a slot.
const NOTHING: usize = 0;

impl Word for AtomicUsize {
    #[inline(always)]
    fn load(&self) -> usize {
        self.load(Ordering::Acquire)
    }

    /// A thread that sees this store, or a later claim of this thread, also sees every earlier use of the entry.
    #[inline(always)]
    fn store(&self, value: usize) {
        self.store(value, Ordering::Release);
    }
}

/// The barrier of the kernel.
struct Membarrier;

impl Barrier for Membarrier {
    #[inline(always)]
    fn light(&self) {
        if cfg!(miri) {
            // Miri does not know the effect of `membarrier` on other threads.
            fence(Ordering::SeqCst);
        } else {
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
        }
    }

    fn heavy(&self) {
        fence(Ordering::SeqCst);
        if cfg!(miri) || membarrier(MembarrierCommand::PrivateExpedited).is_ok() {
            return;
        }
        // The kernel allowed `membarrier` for the first claim and refuses it now, because the process has entered a
        // sandbox. From here on uses are counted: each thread checks `REFUSED` after its claim. Threads that have not
        // seen `REFUSED` may still have unseen claims. Only time helps against those: every thread sees a store
        // within microseconds.
        REFUSED.store(true, Ordering::SeqCst);
        if !SETTLED.load(Ordering::Acquire) {
            std::thread::sleep(SETTLING);
            SETTLED.store(true, Ordering::Release);
        }
    }
}

/// Time after which every CPU has made its earlier stores visible.
const SETTLING: Duration = Duration::from_millis(20);

/// Whether the kernel has ever refused a barrier.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Whether [`SETTLING`] has passed since the kernel refused a barrier, so that no claim is unseen.
static SETTLED: AtomicBool = AtomicBool::new(false);

/// The claim of a thread. Records are never freed: the record of a thread that has ended goes to the next new thread.
#[repr(align(64))]
struct Record {
    /// The name of the slot that the thread uses; [`NOTHING`] if there is none.
    claim: AtomicUsize,
    /// Whether the record belongs to a thread.
    taken: AtomicBool,
    /// The next record of the list; null for the last one.
    next: AtomicPtr<Record>,
}

/// First record of the list of all records.
static RECORDS: AtomicPtr<Record> = AtomicPtr::new(std::ptr::null_mut());

/// Returns an iterator over all records.
fn records() -> impl Iterator<Item = &'static Record> {
    let mut next = RECORDS.load(Ordering::SeqCst);
    std::iter::from_fn(move || {
        // SAFETY: the pointer is null or leads to a record, and records are never freed.
        let record = unsafe { next.as_ref() }?;
        next = record.next.load(Ordering::Relaxed);
        Some(record)
    })
}

thread_local! {
    /// The record of this thread. The variable has no destructor, so a read of it is a plain load.
    static MINE: Cell<Option<&'static Record>> = const { Cell::new(None) };
    /// Releases the record of this thread when the thread ends.
    static GIVE_BACK: GiveBack = const { GiveBack };
}

struct GiveBack;

impl Drop for GiveBack {
    fn drop(&mut self) {
        if let Some(record) = MINE.take() {
            record.taken.store(false, Ordering::Release);
        }
    }
}

/// Returns whether uses can be claimed in this process.
pub(crate) fn is_possible() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    !REFUSED.load(Ordering::Relaxed)
        && *REGISTERED.get_or_init(|| cfg!(miri) || membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok())
}

/// Gets a record for this thread. Returns `None` if claims are not possible or the thread is about to end.
#[cold]
fn register() -> Option<&'static Record> {
    if !is_possible() {
        return None;
    }
    GIVE_BACK.try_with(|_| ()).ok()?;
    let free =
        |record: &&Record| record.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok();
    let record = records().find(free).unwrap_or_else(|| {
        let record: &'static Record = Box::leak(Box::new(Record {
            claim: AtomicUsize::new(NOTHING),
            taken: AtomicBool::new(true),
            next: AtomicPtr::default(),
        }));
        let mut head = RECORDS.load(Ordering::Relaxed);
        loop {
            record.next.store(head, Ordering::Relaxed);
            let pointer = std::ptr::from_ref(record).cast_mut();
            match RECORDS.compare_exchange_weak(head, pointer, Ordering::SeqCst, Ordering::Relaxed) {
                Ok(_) => break record,
                Err(now) => head = now,
            }
        }
    });
    MINE.set(Some(record));
    Some(record)
}

/// A claim of this thread, ended by the drop. The pointer keeps the claim from moving to another thread.
pub(crate) struct Claim(*const AtomicUsize);

impl Claim {
    /// Claims the number `what` (not 0), if `may_be_used` returns `true` after the claim. Returns `None` otherwise,
    /// or if this thread has a claim already or cannot have a claim.
    #[inline(always)]
    pub(crate) fn begin(what: usize, may_be_used: impl FnOnce() -> bool) -> Option<Self> {
        let record = match MINE.get() {
            Some(record) => record,
            None => register()?,
        };
        if record.claim.load(Ordering::Relaxed) != NOTHING {
            return None;
        }
        let may_be_used = || !REFUSED.load(Ordering::Relaxed) && may_be_used();
        begin(&record.claim, &Membarrier, what, may_be_used).then_some(Self(&record.claim))
    }
}

impl Drop for Claim {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: records are never freed, and this thread owns the record.
        end(unsafe { &*self.0 });
    }
}

/// Waits until no claim satisfies `is_it`. The caller has marked those slots as unusable before, and has no claim
/// itself.
#[cold]
pub(crate) fn wait_for(is_it: impl Fn(usize) -> bool, pause: impl FnMut() -> bool) {
    outlast(|| records().map(|record| &record.claim).collect(), &Membarrier, is_it, pause);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// Shows that claimed memory is not freed: threads read, under claims, memory that another thread frees and makes
    /// anew, and always find it whole. Runs under Miri too.
    #[test]
    fn what_is_claimed_is_not_freed() {
        let rounds = if cfg!(miri) { 20 } else { 2000 };
        let value = AtomicPtr::new(Box::into_raw(Box::new([7usize; 4])));
        let done = AtomicBool::new(false);
        let looks = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !done.load(Ordering::Relaxed) {
                        let seen = value.load(Ordering::Acquire);
                        let is_still = || value.load(Ordering::Acquire) == seen;
                        if !seen.is_null()
                            && let Some(_claim) = Claim::begin(seen.addr(), is_still)
                        {
                            // SAFETY: the memory was there once it was claimed, and is not freed before the claim has
                            // ended.
                            assert!(unsafe { *seen }.iter().all(|&word| word == 7));
                            looks.fetch_add(1, Ordering::Relaxed);
                            assert!(Claim::begin(8, || true).is_none(), "a thread has one claim");
                        }
                    }
                });
            }
            while looks.load(Ordering::Relaxed) == 0 {
                assert!(is_possible(), "claims work here, as far as is known");
                std::thread::yield_now();
            }
            for _ in 0..rounds {
                let old = value.swap(std::ptr::null_mut(), Ordering::AcqRel);
                wait_for(
                    |claim| claim == old.addr(),
                    || {
                        std::thread::yield_now();
                        true
                    },
                );
                // SAFETY: the memory came from a box, and no thread finds it or reads it any more.
                drop(unsafe { Box::from_raw(old) });
                value.store(Box::into_raw(Box::new([7; 4])), Ordering::Release);
            }
            done.store(true, Ordering::Relaxed);
        });
        // SAFETY: the threads have ended.
        drop(unsafe { Box::from_raw(value.into_inner()) });
    }

    /// Shows that the record of an ended thread is reused, so that there are never more records than threads at a
    /// time.
    #[test]
    fn claims_of_threads_that_have_ended_are_used_again() {
        let count = || records().count();
        let run = || std::thread::spawn(|| drop(Claim::begin(8, || true).unwrap())).join().unwrap();
        run();
        let before = count();
        (0..50).for_each(|_| run());
        // Other tests of the process have threads, too.
        assert!(count() < before + 25, "{before} records, then {}", count());
    }
}
