//! The child of a `fork` that executes no program.
//!
//! What its parent had is not the child's: both would be the same end of a channel. So each object knows in which process it
//! was made ([`Born`]), its calls fail in any other with [`Error::Forked`], and dropping it there touches nothing that the
//! parent still uses: no shared memory, no lock (a thread of the parent that the child does not have may hold it), no socket.
//! What the child makes by itself works: state that belongs to a process as a whole is made anew ([`PerProcess`]).
//!
//! Mappings are not carried into the child at all (`MADV_DONTFORK`), so a missed check could only crash the child, or harm
//! what it has mapped by itself, never the parent. That a process is a child is seen on a page which the kernel empties in it
//! (`MADV_WIPEONFORK`): one load of a line that is always in the cache, no system call.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::error::Error;
use crate::os::memory;

/// The number of a process that has no ancestor with objects of this library.
const FIRST: u32 = 1;

/// The page: the number of this process; 0 in a child that has made nothing yet.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// The highest number that this process or an ancestor of it has had. It is raised before the number is used, so that a child
/// has none of its ancestors'.
static LATEST: AtomicU32 = AtomicU32::new(FIRST);

/// Makes the page before the first object of the process, and gives the process a number of its own.
///
/// # Errors
/// What the kernel refuses.
pub(crate) fn arm() -> Result<(), Error> {
    if PAGE.load(Ordering::Acquire).is_null() {
        let page = memory::map_wiped_on_fork()?.cast::<AtomicU32>();
        // SAFETY: a fresh page of zeroes, aligned, never unmapped, touched by nobody else than this module.
        unsafe { page.as_ref() }.store(LATEST.load(Ordering::Relaxed), Ordering::Relaxed);
        // Of two threads at once one keeps its page, and the other's stays as a page of nobody's.
        let _ = PAGE.compare_exchange(ptr::null_mut(), page.as_ptr(), Ordering::AcqRel, Ordering::Relaxed);
    }
    if current() == 0 {
        let number = LATEST.fetch_add(1, Ordering::SeqCst) + 1;
        if let Some(page) = page() {
            // Another thread of this process may have been faster.
            let _ = page.compare_exchange(0, number, Ordering::SeqCst, Ordering::Relaxed);
        }
    }
    Ok(())
}

#[inline]
fn page() -> Option<&'static AtomicU32> {
    // SAFETY: null, or the page, which is never unmapped.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

/// The number of this process; 0 in a child of a fork that has made nothing yet.
#[inline]
fn current() -> u32 {
    page().map_or(FIRST, |page| page.load(Ordering::Relaxed))
}

/// The process in which something was made, as distinct from its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Born(u32);

impl Born {
    /// This process.
    pub(crate) fn here() -> Self {
        // Without a page nothing of the library's is made that a child could take for its own.
        let _ = arm();
        Self(current())
    }

    /// Whether it is another process: an ancestor of this one.
    #[inline]
    pub(crate) fn is_elsewhere(self) -> bool {
        self.0 != current()
    }

    /// [`Error::Forked`] in any other process.
    #[inline]
    pub(crate) fn check(self) -> Result<(), Error> {
        if self.is_elsewhere() { Err(Error::Forked) } else { Ok(()) }
    }
}

/// State of a process as a whole. A child of a fork gets one of its own when it first asks, and leaves that of its parent
/// as it is: another thread may have been changing it.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    kept: AtomicPtr<Kept<T>>,
    make: fn() -> T,
}

#[derive(Debug)]
struct Kept<T> {
    born: Born,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// State that `make` makes for each process that asks.
    pub const fn new(make: fn() -> T) -> Self {
        Self { kept: AtomicPtr::new(ptr::null_mut()), make }
    }

    /// This process's.
    #[inline]
    pub fn get(&'static self) -> &'static T {
        match self.kept() {
            Some(kept) if !kept.born.is_elsewhere() => &kept.value,
            _ => self.renew(),
        }
    }

    #[inline]
    fn kept(&'static self) -> Option<&'static Kept<T>> {
        // SAFETY: null, or a box that `renew` leaked.
        unsafe { self.kept.load(Ordering::Acquire).as_ref() }
    }

    #[cold]
    fn renew(&'static self) -> &'static T {
        let born = Born::here();
        let fresh = Box::into_raw(Box::new(Kept { born, value: (self.make)() }));
        let swap = |old: *mut Kept<T>| {
            // SAFETY: null, or a box that was leaked here.
            let is_ours = unsafe { old.as_ref() }.is_some_and(|kept| kept.born == born);
            (!is_ours).then_some(fresh)
        };
        if self.kept.fetch_update(Ordering::AcqRel, Ordering::Acquire, swap).is_err() {
            // SAFETY: made above, and given to nobody: another thread of this process was faster.
            drop(unsafe { Box::from_raw(fresh) });
        }
        &self.kept().expect("it was put there").value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in a child of this process; whether it is so there.
    fn holds_in_a_child(is_so: impl FnOnce() -> bool) -> bool {
        let mut status = 0;
        // SAFETY: the child ends without coming back; the status is a place to write to.
        unsafe {
            let pid = libc::fork();
            if pid == 0 {
                libc::alarm(30);
                libc::_exit(i32::from(!is_so()));
            }
            assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
        }
        status == 0
    }

    #[test]
    fn each_process_has_a_number_of_its_own() {
        let here = Born::here();
        assert!(!here.is_elsewhere());
        assert!(holds_in_a_child(|| here.is_elsewhere() && {
            let there = Born::here();
            there != here
                && !there.is_elsewhere()
                && here.is_elsewhere()
                && holds_in_a_child(|| {
                    here.is_elsewhere() && there.is_elsewhere() && ![here, there].contains(&Born::here())
                })
        }));
        assert_eq!(Born::here(), here);
    }

    #[test]
    fn state_is_made_anew_for_each_process() {
        static STATE: PerProcess<std::sync::Mutex<u32>> = PerProcess::new(Default::default);
        let mut state = STATE.get().lock().unwrap();
        *state = 7;
        // The lock is held, by a thread that the child does not have, as far as it can tell.
        assert!(holds_in_a_child(|| STATE.get().try_lock().is_ok_and(|state| *state == 0)));
        drop(state);
        assert_eq!(*STATE.get().lock().unwrap(), 7);
    }

    #[test]
    fn a_child_has_another_name() {
        let name = crate::link::acquaintance::own_name().unwrap();
        assert!(holds_in_a_child(|| crate::link::acquaintance::own_name().is_ok_and(|own| own != name)));
        assert_eq!(crate::link::acquaintance::own_name(), Ok(name));
    }
}
