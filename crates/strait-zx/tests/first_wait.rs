//! Shows that a wait or a call fails if the process lacks the descriptors for its first wait. The process has a single
//! test: another test could make a wait first.

mod rig;

use rig::*;
use strait_zx::abi::*;

#[test]
fn the_first_wait_of_a_process_needs_descriptors() {
    let (a, b) = channel();
    let port = port();
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointers lead to local variables.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut old), 0);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: 3, ..old }), 0);
    }
    let waits = wait(a, ZX_CHANNEL_READABLE, deadline()).0;
    let waits_for_packet = zx_object_wait_async(a, port, 1, ZX_CHANNEL_READABLE, 0);
    let calls = call(a, b"....", &[]).status;
    // A wait without an event, and a wait that ends at once, need no descriptor.
    let ends = (wait(a, ZX_CHANNEL_READABLE, 0).0, wait(a, ZX_CHANNEL_WRITABLE, deadline()).0);
    // SAFETY: the pointer leads to a local variable.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &old) }, 0);
    assert_eq!(waits, ZX_ERR_NO_RESOURCES);
    assert_eq!(waits_for_packet, ZX_ERR_NO_RESOURCES);
    assert_eq!(calls, ZX_ERR_NO_RESOURCES);
    assert_eq!(ends, (ZX_ERR_TIMED_OUT, ZX_OK));
    assert_eq!(read(b).status, ZX_ERR_SHOULD_WAIT, "the call has sent its message");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| wait(a, ZX_CHANNEL_READABLE, deadline()).0);
        assert_eq!(write(b, b"x", &[]), ZX_OK);
        assert_eq!(waits.join().unwrap(), ZX_OK);
    });
    assert_eq!((close(a), close(b), close(port)), (ZX_OK, ZX_OK, ZX_OK));
}
