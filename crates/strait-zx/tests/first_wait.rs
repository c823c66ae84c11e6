//! Shows that a wait or a call fails if the process lacks the descriptors for its first wait. The process has a single
//! test: another test could make a wait first.

mod rig;

use rig::*;
use strait_zx::abi::*;

#[test]
fn the_first_wait_of_a_process_needs_descriptors() {
    let (a, b) = channel();
    let (port, event) = (port(), event());
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointers lead to local variables.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut old), 0);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: 3, ..old }), 0);
    }
    let waits = wait(a, ZX_CHANNEL_READABLE, deadline()).0;
    let waits_for_packet = zx_object_wait_async(a, port, 1, ZX_CHANNEL_READABLE, 0);
    let calls = call(a, b"....", &[]).status;
    // Another thread can share an event or a port that only this process has, so these waits need descriptors, too.
    let soon = || zx_deadline_after(1_000_000_000);
    let waits_for_event = wait(event, ZX_EVENT_SIGNALED, soon()).0;
    let waits_at_port = port_wait(port, soon()).0;
    // SAFETY: there is no item.
    let waits_for_nothing = unsafe { zx_object_wait_many(std::ptr::null_mut(), 0, soon()) };
    // A wait without an event, and a wait that ends at once, need no descriptor.
    let ends = (wait(a, ZX_CHANNEL_READABLE, 0).0, wait(a, ZX_CHANNEL_WRITABLE, deadline()).0, port_wait(port, 0).0);
    // SAFETY: the pointer leads to a local variable.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &old) }, 0);
    assert_eq!(waits, ZX_ERR_NO_RESOURCES);
    assert_eq!(waits_for_packet, ZX_ERR_NO_RESOURCES);
    assert_eq!(calls, ZX_ERR_NO_RESOURCES);
    assert_eq!([waits_for_event, waits_at_port, waits_for_nothing], [ZX_ERR_NO_RESOURCES; 3]);
    assert_eq!(ends, (ZX_ERR_TIMED_OUT, ZX_OK, ZX_ERR_TIMED_OUT));
    assert_eq!(read(b).status, ZX_ERR_SHOULD_WAIT, "the call has sent its message");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| wait(a, ZX_CHANNEL_READABLE, deadline()).0);
        assert_eq!(write(b, b"x", &[]), ZX_OK);
        assert_eq!(waits.join().unwrap(), ZX_OK);
    });
    assert_eq!((close(a), close(b), close(port), close(event)), (ZX_OK, ZX_OK, ZX_OK, ZX_OK));
}
