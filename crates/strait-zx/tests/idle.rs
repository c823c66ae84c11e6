//! Shows that a wait without an event sleeps, and uses no processor. The process has a single thread with waits, since
//! a thread that waits is woken for the other threads' events, too.

mod rig;

use std::time::Duration;

use rig::*;
use strait_zx::abi::*;

#[test]
fn child() {
    serve();
}

/// Returns the number of context switches, and the CPU time, that `wait` takes in this thread. The count leaves out
/// switches to other threads without a sleep of this thread.
fn cost(wait: impl FnOnce()) -> (u64, Duration) {
    let usage = || {
        // SAFETY: all zeroes are a valid value, and the pointer leads to it.
        let usage = unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
            usage
        };
        let time = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
        (usage.ru_nvcsw as u64, time(usage.ru_utime) + time(usage.ru_stime))
    };
    let before = usage();
    wait();
    let after = usage();
    (after.0 - before.0, after.1 - before.1)
}

/// Waits in vain for the close of `a` and for a message at `c`.
fn wait_in_vain(a: zx_handle_t, c: zx_handle_t, limit: i64) {
    let mut items = [(a, ZX_CHANNEL_PEER_CLOSED), (c, ZX_CHANNEL_READABLE)].map(|(handle, waitfor)| zx_wait_item_t {
        handle,
        waitfor,
        pending: 0,
    });
    // SAFETY: the pointer and the length are those of an array.
    let status = unsafe { zx_object_wait_many(items.as_mut_ptr(), 2, zx_deadline_after(limit)) };
    assert_eq!(status, ZX_ERR_TIMED_OUT);
}

/// Shows that a wait beside more unread messages than a wait moves out of the ring sleeps until it ends.
fn sleeps_beside_many_messages(side: &Side) {
    let (a, b) = channel();
    (0..8200).for_each(|_| assert_eq!(write(b, b"x", &[]), ZX_OK));
    let (c, d) = channel();
    let (b, d) = (side.adopt(b), side.adopt(d));
    // This wait moves as many messages as it may.
    wait_in_vain(a, c, 1_000_000);
    let (sleeps, time) = cost(|| wait_in_vain(a, c, 300_000_000));
    // A look every 10 ms would make 30 sleeps.
    assert!(sleeps < 15 && time < Duration::from_millis(30), "{sleeps} sleeps, {time:?}");
    assert_eq!((side.close(b), side.close(d), close(a), close(c)), (ZX_OK, ZX_OK, ZX_OK, ZX_OK));
}

/// Shows that after a wait beside more unread messages than a wait moves out of the ring, further messages do not wake
/// a thread that waits for something else.
fn sleeps_after_a_wait_beside_many_messages() {
    let (a, b) = channel();
    (0..8200).for_each(|_| assert_eq!(write(b, b"x", &[]), ZX_OK));
    let (c, d) = channel();
    wait_in_vain(a, c, 1_000_000);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..100 {
                assert_eq!(write(b, b"x", &[]), ZX_OK);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let (sleeps, _) = cost(|| {
            assert_eq!(wait(c, ZX_CHANNEL_READABLE, zx_deadline_after(300_000_000)).0, ZX_ERR_TIMED_OUT);
        });
        assert!(sleeps < 15, "{sleeps} sleeps");
    });
    assert_eq!((close(a), close(b), close(c), close(d)), (ZX_OK, ZX_OK, ZX_OK, ZX_OK));
}

/// Shows that a wait uses little of the processor while the process has no descriptor left for an unread message, and
/// that the message arrives once there is one.
fn sleeps_without_descriptors(side: &Side) {
    let (a, b) = channel();
    let (c, d) = channel();
    let (b, d) = (side.adopt(b), side.adopt(d));
    let (sent, kept) = channel();
    let sent = side.adopt(sent);
    wait_in_vain(a, c, 1_000_000);
    let mut old = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointers lead to local variables.
    unsafe {
        assert_eq!(libc::getrlimit(libc::RLIMIT_NOFILE, &mut old), 0);
        assert_eq!(libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: 3, ..old }), 0);
    }
    assert_eq!(side.write(b, b"an end", &[sent]), ZX_OK);
    let (sleeps, time) = cost(|| wait_in_vain(a, c, 300_000_000));
    // SAFETY: the pointer leads to a local variable.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &old) }, 0);

    assert!(sleeps < 15 && time < Duration::from_millis(30), "{sleeps} sleeps, {time:?}");
    let message = await_read(a);
    assert_eq!((message.status, &message.bytes[..]), (ZX_OK, &b"an end"[..]));
    assert_eq!((close(message.handles[0].handle), close(a), close(c)), (ZX_OK, ZX_OK, ZX_OK));
    assert_eq!((side.close(b), side.close(d), close(kept)), (ZX_OK, ZX_OK, ZX_OK));
}

#[test]
fn waits_without_an_event_sleep() {
    let there = Side::there();
    sleeps_beside_many_messages(&Side::here());
    sleeps_beside_many_messages(&there);
    sleeps_after_a_wait_beside_many_messages();
    sleeps_without_descriptors(&there);
}
