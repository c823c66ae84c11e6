//! Shows that a message whose handles are lost, for lack of free descriptors, is lost as a whole, with an error. The
//! process has a single test, since the test limits its descriptors.

mod rig;

use rig::*;
use strait_zx::abi::*;

#[test]
fn child() {
    serve();
}

/// Runs `action` while this process gets no new descriptor.
fn without_descriptors<R>(action: impl FnOnce() -> R) -> R {
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointers lead to local variables.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut old), 0);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: 3, ..old }), 0);
    }
    let result = action();
    // SAFETY: the pointer leads to a local variable.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &old) }, 0);
    result
}

#[test]
fn a_message_with_lost_handles_is_an_error() {
    let side = Side::there();
    let (a, b) = channel();
    let b = side.adopt(b);
    // Makes everything that waits and long messages need.
    for _ in 0..3 {
        assert_eq!(side.write(b, &[0; 65536], &[]), ZX_OK);
        assert_eq!(await_read(a).bytes.len(), 65536);
    }
    // The records of the longest message make the message longer than any without handles.
    for (waits, len) in [(false, 5), (true, 5), (false, 65536), (true, 65536)] {
        let sent = side.adopt(vmo(1));
        let lost = without_descriptors(|| {
            assert_eq!(side.write(b, &vec![7; len], &[sent]), ZX_OK);
            if waits {
                // A wait takes the message out of the ring.
                assert_eq!(wait(a, ZX_CHANNEL_PEER_CLOSED, zx_deadline_after(1_000_000)).0, ZX_ERR_TIMED_OUT);
            }
            assert_eq!(wait(a, ZX_CHANNEL_READABLE, deadline()).0, ZX_OK);
            read(a)
        });
        assert_eq!((lost.status, lost.bytes.len()), (ZX_ERR_NO_RESOURCES, 0), "with {len} bytes");
        assert_eq!(side.write(b, b"after", &[]), ZX_OK);
        assert_eq!(await_read(a).bytes, b"after");
    }
    // Likewise the answer to a call.
    let sent = side.adopt(vmo(1));
    let called = without_descriptors(|| {
        std::thread::scope(|scope| {
            let calls = scope.spawn(|| call(a, b"....", &[]).status);
            let request = side.await_read(b);
            assert_eq!(side.write(b, &request.bytes, &[sent]), ZX_OK);
            calls.join().unwrap()
        })
    });
    assert_eq!(called, ZX_ERR_NO_RESOURCES);
    assert_eq!(side.write(b, b"after", &[]), ZX_OK);
    assert_eq!(await_read(a).bytes, b"after");
    assert_eq!((close(a), side.close(b)), (ZX_OK, ZX_OK));
}
