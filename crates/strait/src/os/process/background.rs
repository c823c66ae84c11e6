//! Threads of the library's own: few, and seldom.

use std::thread::Builder;

use super::signals::Blocked;

/// Starts a thread on which no handler of the program's runs, whatever signals are sent to the process: a handler may count on the
/// program's own threads, their stacks and what is in them. False if there is no room for a thread.
pub(crate) fn start(name: &str, stack: usize, run: impl FnOnce() + Send + 'static) -> bool {
    // It inherits what this thread blocks meanwhile. Where that is refused it is a thread as any other.
    let _blocked = Blocked::all();
    Builder::new().name(name.into()).stack_size(stack).spawn(run).is_ok()
}
