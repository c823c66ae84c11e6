//! Functions that take a descriptor over: if the function fails, the caller still owns the descriptor, which is as it
//! was. The process has a single test, since the test fills the handle table.

mod rig;

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::null;

use rig::*;
use rustix::io::{FdFlags, fcntl_getfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket, socketpair};
use strait_zx::abi::*;

/// Maximum number of handles of a process.
const MOST: usize = 1 << 20;

/// Checks that a descriptor is open, and is not closed on `exec`.
fn check_untouched(fd: &OwnedFd, what: &str) {
    assert_eq!(fcntl_getfd(fd), Ok(FdFlags::empty()), "{what}");
}

fn from_socket(fd: &OwnedFd, out: &mut zx_handle_t) -> zx_status_t {
    // SAFETY: the pointer leads to a local variable. The test gives up the descriptor if the function succeeds.
    unsafe { strait_zx_channel_from_socket(fd.as_raw_fd(), out) }
}

fn from_fd(fd: &OwnedFd, out: &mut zx_handle_t) -> zx_status_t {
    // SAFETY: the pointer leads to a local variable. The test gives up the descriptor if the function succeeds.
    unsafe { strait_zx_handle_from_fd(fd.as_raw_fd(), out) }
}

#[test]
fn a_descriptor_stays_the_callers_if_the_call_fails() {
    let mut out = 0;
    let none = SocketFlags::empty();
    // Not connected, another type, and no socket.
    let lonely = socket(AddressFamily::UNIX, SocketType::SEQPACKET, None).unwrap();
    assert_eq!((from_socket(&lonely, &mut out), out), (ZX_ERR_INVALID_ARGS, 0));
    check_untouched(&lonely, "a socket without a peer");
    let (stream, _other) = socketpair(AddressFamily::UNIX, SocketType::STREAM, none, None).unwrap();
    assert_eq!((from_socket(&stream, &mut out), out), (ZX_ERR_INVALID_ARGS, 0));
    check_untouched(&stream, "a stream socket");
    let memory = rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::empty()).unwrap();
    assert_eq!((from_socket(&memory, &mut out), out), (ZX_ERR_INVALID_ARGS, 0));
    check_untouched(&memory, "no socket");

    // No handle is free.
    let first = event();
    let mut handles = vec![first];
    while handles.len() < MOST {
        handles.push(duplicate(first, ZX_RIGHT_SAME_RIGHTS).unwrap());
    }
    assert_eq!(duplicate(first, ZX_RIGHT_SAME_RIGHTS), Err(ZX_ERR_NO_MEMORY));
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, none, None).unwrap();
    assert_eq!((from_fd(&memory, &mut out), out), (ZX_ERR_NO_MEMORY, 0));
    check_untouched(&memory, "from a descriptor without a free handle");
    assert_eq!((from_socket(&ours, &mut out), out), (ZX_ERR_NO_MEMORY, 0));
    check_untouched(&ours, "from a socket without a free handle");
    let (argv, mut pid) = ([c"true".as_ptr(), null()], 0);
    // SAFETY: the pointers lead to local variables, and the array ends with a null pointer.
    assert_eq!(unsafe { strait_zx_spawn(argv.as_ptr(), &mut pid, &mut out) }, ZX_ERR_NO_MEMORY);
    // SAFETY: a plain system call.
    assert_eq!(unsafe { libc::waitpid(-1, std::ptr::null_mut(), 0) }, -1, "a process was started");

    // With free handles, the descriptors serve after all.
    handles.into_iter().for_each(|handle| assert_eq!(close(handle), ZX_OK));
    let (mut a, mut b, mut file) = (0, 0, 0);
    assert_eq!((from_socket(&ours, &mut a), from_socket(&theirs, &mut b)), (ZX_OK, ZX_OK));
    assert_eq!(from_fd(&memory, &mut file), ZX_OK);
    [ours, theirs, memory].into_iter().for_each(std::mem::forget);
    assert_eq!(write(a, b"over a socket", &[file]), ZX_OK);
    let received = await_read(b);
    assert_eq!((received.bytes.as_slice(), received.handles.len()), (b"over a socket".as_slice(), 1));
    assert_eq!((close(received.handles[0].handle), close(a), close(b)), (ZX_OK, ZX_OK, ZX_OK));
}
