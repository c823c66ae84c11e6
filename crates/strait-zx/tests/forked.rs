//! Tests of a process that forks without executing a program. The tests have a process of their own, so that no other
//! test holds a lock at the fork.

mod rig;

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::scope;

use rig::*;
use strait_zx::abi::*;

/// Shows that the child does not wait for threads of the parent that were using a handle at the fork.
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
            // SAFETY: the child closes two handles, without a lock that the parent's threads may hold, and exits.
            let pid = unsafe { libc::fork() };
            if pid == 0 {
                // SAFETY: as above. A child that hangs is killed by the alarm.
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

/// Runs `play` in a child of a fork, and checks that the child exits without an error.
fn in_child(play: impl FnOnce()) {
    // SAFETY: the child uses only what this test is about, and never returns to the test harness.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        // SAFETY: plain system calls. The alarm kills a hanging child.
        unsafe {
            libc::alarm(60);
            let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(play)).is_err();
            libc::_exit(failed.into());
        }
    }
    let mut status = 0;
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the child ended with {status:#x}");
}

#[test]
fn child() {
    serve();
}

/// Makes and uses an object of each type.
fn use_everything() {
    let (a, b) = channel();
    let memory = vmo(4096);
    assert_eq!(vmo_write(memory, 0, b"memory"), ZX_OK);
    assert_eq!(write(a, b"message", &[memory, event()]), ZX_OK);
    let message = read(b);
    assert_eq!((message.status, &message.bytes[..]), (ZX_OK, &b"message"[..]));
    assert_eq!(vmo_read(message.handles[0].handle, 0, 6).1, b"memory");
    // Threads of the process wait for each other.
    scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(30));
            assert_eq!(write(a, b"wake", &[]), ZX_OK);
        });
        assert_eq!(await_read(b).bytes, b"wake");
    });
    // For a channel over a socket, the hub watches.
    let (ours, theirs) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    let (mut c, mut d) = (0, 0);
    // SAFETY: the pointers lead to local variables.
    unsafe {
        use std::os::fd::IntoRawFd;
        assert_eq!(strait_zx_channel_from_socket(ours.into_raw_fd(), &mut c), ZX_OK);
        assert_eq!(strait_zx_channel_from_socket(theirs.into_raw_fd(), &mut d), ZX_OK);
    }
    scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(30));
            assert_eq!(write(c, b"across", &[]), ZX_OK);
        });
        assert_eq!(await_read(d).bytes, b"across");
    });
    for handle in [a, b, c, d, message.handles[0].handle, message.handles[1].handle, port()] {
        assert_eq!(close(handle), ZX_OK);
    }
}

#[test]
fn a_child_makes_what_it_needs_by_itself() {
    let (a, b) = channel();
    use_everything();
    let koid_of = |handle| info(handle).1.koid;
    let (reader, writer) = std::io::pipe().unwrap();
    in_child(|| {
        let koid = koid_of(event());
        std::io::Write::write_all(&mut &writer, &koid.to_ne_bytes()).unwrap();
        assert_eq!(write(a, b"not mine", &[]), ZX_ERR_BAD_STATE);
        use_everything();
        assert_eq!((close(a), close(b)), (ZX_OK, ZX_OK));
        use_everything();
        in_child(use_everything);
    });
    let mut koid = [0; 8];
    std::io::Read::read_exact(&mut &reader, &mut koid).unwrap();
    assert_ne!(koid_of(event()), u64::from_ne_bytes(koid), "two objects have the same number");
    assert_eq!(write(a, b"still here", &[]), ZX_OK);
    assert_eq!(read(b).bytes, b"still here");
    use_everything();
}

/// Shares an event with other processes, and waits for it by a port. Returns the event, the port, and the ends of the
/// channel that has another handle of the event.
fn awaited_event() -> [zx_handle_t; 4] {
    let (event, port, (a, b)) = (event(), port(), channel());
    assert_eq!(write(a, b"", &[duplicate(event, ZX_RIGHT_SAME_RIGHTS).unwrap()]), ZX_OK);
    assert_eq!(zx_object_wait_async(event, port, 7, ZX_USER_SIGNAL_0, 0), ZX_OK);
    [event, port, a, b]
}

/// Shows that a child that closes an event of its parent still hears of its own event.
#[test]
fn a_child_that_closes_an_event_of_the_parent_hears_of_its_own() {
    let inherited = awaited_event();
    in_child(|| {
        let own = awaited_event();
        assert_eq!(close(inherited[0]), ZX_OK);
        in_child(|| assert_eq!(zx_object_signal(own[0], 0, ZX_USER_SIGNAL_0), ZX_OK));
        assert_eq!(port_wait(own[1], deadline()).1.key, 7);
    });
    for handle in inherited {
        assert_eq!(close(handle), ZX_OK);
    }
}

/// Makes an end with so many unread messages that waits look for the close of the other end only. Waits for the close
/// by a port. Returns the end, its other end, and the port.
fn full_end() -> [zx_handle_t; 3] {
    let ((a, b), port) = (channel(), port());
    for _ in 0..8200 {
        assert_eq!(write(b, b"x", &[]), ZX_OK);
    }
    assert_eq!(zx_object_wait_async(a, port, 7, ZX_CHANNEL_PEER_CLOSED, 0), ZX_OK);
    [a, b, port]
}

/// Shows that a child that closes an end of its parent still hears of its own end.
#[test]
fn a_child_that_closes_a_full_end_of_the_parent_hears_of_its_own() {
    let inherited = full_end();
    in_child(|| {
        let [_, b, port] = full_end();
        let side = Side::there();
        let b = side.adopt(b);
        assert_eq!(close(inherited[0]), ZX_OK);
        assert_eq!(side.close(b), ZX_OK);
        assert_eq!(port_wait(port, deadline()).1.key, 7);
    });
    for handle in inherited {
        assert_eq!(close(handle), ZX_OK);
    }
}
