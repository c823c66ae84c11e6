//! The few threads that the library starts.
//!
//! The library starts its threads without the standard library. A thread of the standard library allocates memory for a
//! signal stack when it begins to run, and aborts the process if there is no memory. The threads here allocate
//! everything before they run.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

use super::signals::Blocked;

/// The name and the closure of a new thread, which the thread gets when it begins.
struct Thread {
    name: &'static CStr,
    run: Box<dyn FnOnce() + Send>,
}

/// Number of bytes by which a stack is enlarged if the system refuses the stack as too small: thread-local data of the
/// program's libraries takes room on the stack as well.
const MORE: usize = 1 << 20;

/// Starts a thread with the given name and stack size in bytes, which runs `run`. The thread blocks all signals: a
/// signal handler of the program may rely on the program's own threads, their stacks and their data. Returns `false` if
/// no thread could be started.
pub(crate) fn start(name: &'static CStr, stack: usize, run: impl FnOnce() + Send + 'static) -> bool {
    try_to_start(name, stack, run).is_ok()
}

/// The reason why a thread could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoThread {
    /// A filter of system calls forbids threads.
    Forbidden,
    /// The C library or the kernel failed with this error number.
    Failed(libc::c_int),
}

/// Starts a thread as [`start`] does, and returns the reason if no thread could be started.
pub(crate) fn try_to_start(
    name: &'static CStr,
    stack: usize,
    run: impl FnOnce() + Send + 'static,
) -> Result<(), NoThread> {
    // The new thread inherits the signal mask of the calling thread. If blocking is refused, handlers may run on the
    // new thread.
    let _blocked = Blocked::all();
    let thread = Box::into_raw(Box::new(Thread { name, run: Box::new(run) }));
    let created = match create(stack, thread) {
        libc::EINVAL => create(stack + MORE, thread),
        created => created,
    };
    if created != 0 {
        // SAFETY: the box was leaked above, and no thread owns the box.
        drop(unsafe { Box::from_raw(thread) });
        if [libc::EPERM, libc::EACCES, libc::ENOSYS].contains(&created) {
            FORBIDDEN.store(true, Ordering::Relaxed);
            return Err(NoThread::Forbidden);
        }
        return Err(NoThread::Failed(created));
    }
    Ok(())
}

/// Whether a filter of system calls has refused a thread.
static FORBIDDEN: AtomicBool = AtomicBool::new(false);

/// Returns whether the start of a thread has failed because a filter of system calls forbids threads.
pub(crate) fn is_forbidden() -> bool {
    FORBIDDEN.load(Ordering::Relaxed)
}

/// Creates the thread with a stack of `stack` bytes; the thread then owns `thread`. Returns 0, or the error number if
/// no thread was created.
fn create(stack: usize, thread: *mut Thread) -> libc::c_int {
    let mut attributes = MaybeUninit::uninit();
    let mut number = MaybeUninit::uninit();
    // SAFETY: the attributes are initialised before they are changed and used, and destroyed after that. `begin` takes
    // the value behind `thread`, once, and only if the thread was created.
    unsafe {
        let refused = libc::pthread_attr_init(attributes.as_mut_ptr());
        if refused != 0 {
            return refused;
        }
        libc::pthread_attr_setdetachstate(attributes.as_mut_ptr(), libc::PTHREAD_CREATE_DETACHED);
        libc::pthread_attr_setstacksize(attributes.as_mut_ptr(), stack);
        let created = libc::pthread_create(number.as_mut_ptr(), attributes.as_ptr(), begin, thread.cast());
        libc::pthread_attr_destroy(attributes.as_mut_ptr());
        created
    }
}

/// The start function of a new thread: takes ownership of the object behind `thread`, sets the thread's name and runs
/// its closure.
extern "C" fn begin(thread: *mut c_void) -> *mut c_void {
    // SAFETY: `start` leaked the box for the new thread alone.
    let thread = unsafe { Box::from_raw(thread.cast::<Thread>()) };
    // SAFETY: the name ends with a zero byte; the call changes nothing but the name of the thread.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), thread.name.as_ptr()) };
    // A panic ends the thread only, as with other threads.
    let _ = catch_unwind(AssertUnwindSafe(thread.run));
    ptr::null_mut()
}
