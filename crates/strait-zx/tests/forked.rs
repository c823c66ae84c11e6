//! A process that forks without executing a program. In a process of its own: no other test has a lock then.

mod rig;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

use rig::*;

/// The child has none of the other threads, which may have been looking at a handle just then: it does not wait for them.
#[test]
fn a_forked_child_closes_handles_that_other_threads_were_using() {
    let (a, b) = channel();
    let done = AtomicBool::new(false);
    scope(|scope| {
        for handle in [a, b] {
            let done = &done;
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    write(handle, b"steady", &[]);
                    read(handle);
                }
            });
        }
        for _ in 0..100 {
            // SAFETY: the child closes two handles, which takes no lock that those threads may have, and ends.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: as above. One that hangs is killed.
                unsafe {
                    libc::alarm(30);
                    zx_handle_close(a);
                    zx_handle_close(b);
                    libc::_exit(0);
                }
            }
            let mut status = 0;
            // SAFETY: a plain system call.
            assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
            assert!(libc::WIFEXITED(status), "the child ended with {status:#x}");
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!((close(a), close(b)), (ZX_OK, ZX_OK));
}
