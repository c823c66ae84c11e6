//! Which slots of the handle table threads look at just now, without counting.
//!
//! A thread that uses an entry writes down which: its **claim**, a word of its own that no other thread writes. Then it
//! looks whether the entry may still be used so. Who takes entries away says first that this one may not be used any
//! more, and then waits until no claim names it. For that to work neither may see what was before the other's write
//! *and* go unseen: between a write and a look of either a barrier is needed. The one of who closes serves for both:
//! `membarrier` has every thread of the process that runs pass one. So a use costs two plain stores, and no locked
//! instruction; and closing a system call.
//!
//! ```text
//! who uses                              who takes away
//! claim = slot                          word = not live
//! (nothing for the compiler to move)    membarrier
//! word is live?  then use the entry     claims name the slot?  then wait
//! claim = 0
//! ```
//!
//! A thread has one claim. Who needs another meanwhile counts, and so does every thread where the kernel refuses
//! `membarrier`.
//!
//! The protocol is [`begin`], [`end`] and [`outlast`], over words and barriers that the model checker has its own of.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::time::Duration;

use rustix::thread::{MembarrierCommand, membarrier};

#[cfg(test)]
mod model;

/// A claim.
pub(crate) trait Word {
    fn load(&self) -> usize;
    fn store(&self, value: usize);
}

/// A barrier of two kinds: of two threads of which one passes the light kind and one the heavy kind, either the first
/// sees what the second wrote before, or the other way round.
trait Barrier {
    fn light(&self);
    fn heavy(&self);
}

/// Claims something, and looks whether it may be used. If not, nothing is claimed.
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

/// Ends the use.
#[inline(always)]
fn end<W: Word>(claim: &W) {
    claim.store(NOTHING);
}

/// Waits until none claims what must not be used any more, which the caller has said before.
fn outlast<'a, W: Word + 'a>(
    claims: impl FnOnce() -> Vec<&'a W>,
    barrier: &impl Barrier,
    is_it: impl Fn(usize) -> bool,
    mut pause: impl FnMut() -> bool,
) {
    barrier.heavy();
    // Who begins to have a claim only now sees what was said before the barrier.
    for claim in claims() {
        while is_it(claim.load()) && pause() {}
    }
}

/// What a claim is that names nothing.
const NOTHING: usize = 0;

impl Word for AtomicUsize {
    #[inline(always)]
    fn load(&self) -> usize {
        self.load(Ordering::Acquire)
    }

    /// What was done to an entry before is seen by who sees this, or what the thread claims later.
    #[inline(always)]
    fn store(&self, value: usize) {
        self.store(value, Ordering::Release);
    }
}

/// The kernel's.
struct Membarrier;

impl Barrier for Membarrier {
    #[inline(always)]
    fn light(&self) {
        if cfg!(miri) {
            // Checkers know nothing of the other half.
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
        // It was allowed when the first claim was made, and is not any more: the process has shut itself in. From here
        // on uses are counted. Whoever claims looks behind the claim whether that is so; and for the claims of those
        // who have not seen it there is only time: a store is seen by all within microseconds.
        REFUSED.store(true, Ordering::SeqCst);
        if !SETTLED.load(Ordering::Acquire) {
            std::thread::sleep(SETTLING);
            SETTLED.store(true, Ordering::Release);
        }
    }
}

/// Longer than any processor keeps a store to itself.
const SETTLING: Duration = Duration::from_millis(20);

/// Whether the kernel has refused a barrier some time.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// Whether that is so long ago that no claim is left unseen.
static SETTLED: AtomicBool = AtomicBool::new(false);

/// The claim of a thread. They are never freed: one whose thread has ended goes to the next that comes.
#[repr(align(64))]
struct Record {
    claim: AtomicUsize,
    /// Whether a thread has it.
    taken: AtomicBool,
    next: AtomicPtr<Record>,
}

/// All records.
static RECORDS: AtomicPtr<Record> = AtomicPtr::new(std::ptr::null_mut());

fn records() -> impl Iterator<Item = &'static Record> {
    let mut next = RECORDS.load(Ordering::SeqCst);
    std::iter::from_fn(move || {
        // SAFETY: null, or a record, which is never freed.
        let record = unsafe { next.as_ref() }?;
        next = record.next.load(Ordering::Relaxed);
        Some(record)
    })
}

thread_local! {
    /// The record of this thread. It needs no destructor, so looking at it is a load.
    static MINE: Cell<Option<&'static Record>> = const { Cell::new(None) };
    /// Gives it back when the thread ends.
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

/// Whether uses can be claimed in this process.
pub(crate) fn is_possible() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    !REFUSED.load(Ordering::Relaxed)
        && *REGISTERED.get_or_init(|| cfg!(miri) || membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok())
}

/// Gives this thread a record, unless it is about to end.
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

/// A claim of this thread. It ends where it was made: the pointer keeps it from going to another thread.
pub(crate) struct Claim(*const AtomicUsize);

impl Claim {
    /// Claims what is named by a number other than 0, if it may be used once it is claimed. `None` if not; or if this
    /// thread claims something already, or cannot.
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
        // SAFETY: records are never freed, and the thread is the one that the record is of.
        end(unsafe { &*self.0 });
    }
}

/// Waits until no thread claims any of what must not be used any more, which the caller has said before. The caller
/// claims nothing.
#[cold]
pub(crate) fn wait_for(is_it: impl Fn(usize) -> bool, pause: impl FnMut() -> bool) {
    outlast(|| records().map(|record| &record.claim).collect(), &Membarrier, is_it, pause);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    /// Threads look at what another one frees and makes anew, by claims: they always find it whole. Under Miri too.
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
                            // SAFETY: it was there once it was claimed, and is not freed before the claim has ended.
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
                // SAFETY: it came from a box, and nobody finds it any more or looks at it.
                drop(unsafe { Box::from_raw(old) });
                value.store(Box::into_raw(Box::new([7; 4])), Ordering::Release);
            }
            done.store(true, Ordering::Relaxed);
        });
        // SAFETY: the threads have ended.
        drop(unsafe { Box::from_raw(value.into_inner()) });
    }

    /// A thread's claim is the next one's once it has ended, so that there are never more than there were threads at a
    /// time.
    #[test]
    fn claims_of_threads_that_have_ended_are_used_again() {
        let count = || records().count();
        let run = || std::thread::spawn(|| drop(Claim::begin(8, || true).unwrap())).join().unwrap();
        run();
        let before = count();
        (0..50).for_each(|_| run());
        // Other tests have threads, too.
        assert!(count() < before + 25, "{before} records, then {}", count());
    }
}
