//! The child of a `fork` that executes no program.
//!
//! Objects of the parent do not belong to the child: otherwise two processes would be the same end of a channel. So
//! each object records the process that made it ([`Born`]). In any other process the object's calls fail with
//! [`Error::Forked`], and its drop touches nothing that the parent still uses: no shared memory, no socket, and no lock
//! (a thread that exists only in the parent may hold the lock). Objects made by the child work: state of the process as
//! a whole is created anew in the child ([`PerProcess`]).
//!
//! The child does not inherit mappings at all (`MADV_DONTFORK`). So a missed check could crash the child, or harm its
//! own mappings, but never the parent. A child detects the fork by a page that the kernel clears in the child
//! (`MADV_WIPEONFORK`): the check costs one load of a line that is always in the cache, and no system call.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::error::Error;
use crate::os::memory;

/// The number of a process that is not a forked child of a process with objects of the library. (The numbers here are
/// the library's own, not pids.)
const FIRST: u32 = 1;

/// The address of the page with the number of this process; the address of [`UNARMED`] until the page is created. The
/// kernel clears the page in a forked child, so the number is 0 in a child that has not created an object yet.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const UNARMED).cast_mut());

/// The number of this process before the page is created.
static UNARMED: AtomicU32 = AtomicU32::new(FIRST);

/// The highest number that this process or an ancestor has had. Raised before the new number is used, so that a child
/// never has the number of an ancestor.
static LATEST: AtomicU32 = AtomicU32::new(FIRST);

/// Unless this process has a number already, gives the process a number of its own (not its pid), and creates the page
/// for the number. Must be called before the process creates its first object of the library.
///
/// # Errors
/// The errors of the system calls that create the page.
pub(crate) fn arm() -> Result<(), Error> {
    if ptr::eq(page(), &raw const UNARMED) {
        let page = memory::map_wiped_on_fork()?.cast::<AtomicU32>();
        // SAFETY: the page is fresh, zeroed, aligned, never unmapped, and used by this module only.
        unsafe { page.as_ref() }.store(LATEST.load(Ordering::Relaxed), Ordering::Relaxed);
        // If two threads call `arm` at once, one thread installs its page, and the page of the other thread stays
        // unused.
        let unarmed = (&raw const UNARMED).cast_mut();
        let _ = PAGE.compare_exchange(unarmed, page.as_ptr(), Ordering::AcqRel, Ordering::Relaxed);
    }
    if current() == 0 {
        let number = LATEST.fetch_add(1, Ordering::SeqCst) + 1;
        // Another thread of the process may have been faster.
        let _ = page().compare_exchange(0, number, Ordering::SeqCst, Ordering::Relaxed);
    }
    Ok(())
}

#[inline]
fn page() -> &'static AtomicU32 {
    // SAFETY: the pointer points to a static variable, or to the page, which is never unmapped.
    unsafe { &*PAGE.load(Ordering::Acquire) }
}

/// Returns the number of this process (not its pid); 0 in a forked child that has not created an object of the library
/// yet.
#[inline]
fn current() -> u32 {
    page().load(Ordering::Relaxed)
}

/// The number (not the pid) of the process that made an object. Forked children of the process have other numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Born(u32);

impl Born {
    /// Returns the number of the current process (not its pid), to be stored in a new object.
    pub(crate) fn here() -> Self {
        // Without a page the library creates no object that a child could take for its own.
        let _ = arm();
        Self(current())
    }

    /// Returns whether the object with this number was made in another process than the current process. The other
    /// process is then an ancestor: the current process has inherited the object by `fork`.
    #[inline]
    pub(crate) fn is_elsewhere(self) -> bool {
        self.0 != current()
    }

    /// Fails with [`Error::Forked`] if the object with this number was made in an ancestor of the current process.
    #[inline]
    pub(crate) fn check(self) -> Result<(), Error> {
        if self.is_elsewhere() { Err(Error::Forked) } else { Ok(()) }
    }
}

/// An object of type `T`, once in each process. A forked child makes an object of its own at the first use. The child
/// leaves its parent's object untouched: another thread of the parent may have been changing the object during the
/// fork.
#[derive(Debug)]
pub struct PerProcess<T: 'static> {
    state: AtomicPtr<ProcessState<T>>,
    make: fn() -> T,
}

#[derive(Debug)]
struct ProcessState<T> {
    born: Born,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    /// Creates a `PerProcess` without an object: in each process, the first use calls `make` to make the object.
    pub const fn new(make: fn() -> T) -> Self {
        Self { state: AtomicPtr::new(ptr::null_mut()), make }
    }

    /// Returns this process's object of type `T`. The first call in a process makes the object; a forked child makes
    /// its own object and does not use the parent's.
    #[inline]
    pub fn get(&'static self) -> &'static T {
        match self.current_state() {
            Some(state) if !state.born.is_elsewhere() => &state.value,
            _ => self.renew(),
        }
    }

    #[inline]
    fn current_state(&'static self) -> Option<&'static ProcessState<T>> {
        // SAFETY: the pointer is null, or points to a box that `renew` leaked.
        unsafe { self.state.load(Ordering::Acquire).as_ref() }
    }

    #[cold]
    fn renew(&'static self) -> &'static T {
        let born = Born::here();
        let fresh = Box::into_raw(Box::new(ProcessState { born, value: (self.make)() }));
        let swap = |old: *mut ProcessState<T>| {
            // SAFETY: the pointer is null, or points to a box that `renew` leaked.
            let is_ours = unsafe { old.as_ref() }.is_some_and(|state| state.born == born);
            (!is_ours).then_some(fresh)
        };
        if self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, swap).is_err() {
            // SAFETY: the box was made above and is not shared, because another thread of the process was faster.
            drop(unsafe { Box::from_raw(fresh) });
        }
        &self.current_state().expect("it was put there").value
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Calls `is_so` in a forked child of this process. Returns `true` if `is_so` returned `true` there.
    pub(crate) fn holds_in_a_child(is_so: impl FnOnce() -> bool) -> bool {
        let mut status = 0;
        // SAFETY: the child ends without returning; the status is a valid place to write to.
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
        // The test's own thread holds the lock. To the child, the lock seems held by a thread that exists only in the
        // parent.
        assert!(holds_in_a_child(|| STATE.get().try_lock().is_ok_and(|state| *state == 0)));
        drop(state);
        assert_eq!(*STATE.get().lock().unwrap(), 7);
    }

    #[test]
    fn a_child_has_another_name() {
        let name = crate::link::peers::own_name().unwrap();
        assert!(holds_in_a_child(|| crate::link::peers::own_name().is_ok_and(|own| own != name)));
        assert_eq!(crate::link::peers::own_name(), Ok(name));
    }
}
