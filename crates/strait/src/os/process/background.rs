//! Threads of the library's own: few, and seldom.
//!
//! They are started without the standard library, whose threads take memory once they run, for a stack on which they handle
//! signals: where there is none, it ends the process. These threads take all that they need before they run.

use std::ffi::{CStr, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;

use super::signals::Blocked;

/// A thread that is about to run.
struct Thread {
    name: &'static CStr,
    run: Box<dyn FnOnce() + Send>,
}

/// Bytes that are added to a stack which is too small: what the program's libraries keep for each thread lies there, too.
const MORE: usize = 1 << 20;

/// Starts a thread on which no handler of the program's runs, whatever signals are sent to the process: a handler may count on the
/// program's own threads, their stacks and what is in them. False if there is no room for a thread.
pub(crate) fn start(name: &'static CStr, stack: usize, run: impl FnOnce() + Send + 'static) -> bool {
    // It inherits what this thread blocks meanwhile. Where that is refused it is a thread as any other.
    let _blocked = Blocked::all();
    let thread = Box::into_raw(Box::new(Thread { name, run: Box::new(run) }));
    let created = match create(stack, thread) {
        libc::EINVAL => create(stack + MORE, thread),
        created => created,
    };
    if created != 0 {
        // SAFETY: it was leaked above, and there is no thread that has it.
        drop(unsafe { Box::from_raw(thread) });
    }
    created == 0
}

/// Makes the thread, which then has `thread`. Returns 0, or why there is none.
fn create(stack: usize, thread: *mut Thread) -> libc::c_int {
    let mut attributes = MaybeUninit::uninit();
    let mut number = MaybeUninit::uninit();
    // SAFETY: the attributes are initialised before they are changed and used, and destroyed after that; `begin` takes what
    // `thread` points to, once, and only if the thread was made.
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

/// What the thread does.
extern "C" fn begin(thread: *mut c_void) -> *mut c_void {
    // SAFETY: `start` leaked it for this thread alone.
    let thread = unsafe { Box::from_raw(thread.cast::<Thread>()) };
    // SAFETY: the name ends with a zero; the call changes nothing but the name of this thread.
    unsafe { libc::pthread_setname_np(libc::pthread_self(), thread.name.as_ptr()) };
    // A panic ends the thread, as any other's.
    let _ = catch_unwind(AssertUnwindSafe(thread.run));
    ptr::null_mut()
}
