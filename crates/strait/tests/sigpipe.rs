//! Shows that writes of the library do not kill a program in which SIGPIPE has the default action, as in C and C++.

mod common;

use std::io::Write as _;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt as _;
use std::process::Command;

use common::{DEADLINE, alone};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, Rlimit, setrlimit};
use strait::pipe::{DataConsumer, DataPipe};
use strait::{Deadline, Error, Listener};

#[test]
fn child() {
    common::play(&[
        ("invites children that end at once", invites_children_that_end_at_once),
        ("tells nobody", tells_nobody),
        ("splices to nobody", splices_to_nobody),
        ("splices beyond a limit", splices_beyond_a_limit),
        ("keeps a signal of the program's", keeps_a_signal_of_the_programs),
    ]);
}

/// Sets the default action of SIGPIPE, with which C programs start; Rust's runtime ignores the signal.
fn let_sigpipe_kill() {
    // SAFETY: the default action is not a function of this program.
    assert_ne!(unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) }, libc::SIG_ERR);
}

/// Returns a signal set with SIGPIPE alone.
fn sigpipe() -> libc::sigset_t {
    let mut set = std::mem::MaybeUninit::uninit();
    // SAFETY: the first call fills the set before the second changes it and before it is read.
    unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGPIPE);
        set.assume_init()
    }
}

/// Returns whether SIGPIPE is in the signal set filled by `ask`.
fn has_sigpipe(ask: impl FnOnce(*mut libc::sigset_t) -> libc::c_int) -> bool {
    let mut set = std::mem::MaybeUninit::uninit();
    assert_eq!(ask(set.as_mut_ptr()), 0);
    // SAFETY: the call has filled the set.
    unsafe { libc::sigismember(set.as_ptr(), libc::SIGPIPE) == 1 }
}

fn is_blocked() -> bool {
    // SAFETY: the call changes no mask, and `set` is valid for writes.
    has_sigpipe(|set| unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), set) })
}

fn is_pending() -> bool {
    // SAFETY: `set` is valid for writes.
    has_sigpipe(|set| unsafe { libc::sigpending(set) })
}

/// Calls `with` with a listener in a name directory of this process.
fn with_listener(with: impl FnOnce(&Listener)) {
    let directory = std::env::temp_dir().join(format!("strait-sigpipe-{}", std::process::id()));
    std::fs::DirBuilder::new().mode(0o700).create(&directory).unwrap();
    with(&Listener::builder().directory(&directory).bind("inviter").unwrap());
    std::fs::remove_dir_all(&directory).unwrap();
}

fn invites_children_that_end_at_once(_: &str) {
    let_sigpipe_kill();
    with_listener(|listener| {
        for _ in 0..100 {
            let invitation = listener.invite(DEADLINE).unwrap();
            match invitation.spawn(&mut Command::new("true")) {
                Ok(mut child) => assert!(child.wait().unwrap().success()),
                Err(failed) => assert_eq!(failed.error, Error::System { call: "write", code: libc::EPIPE }),
            }
        }
    });
    assert!(!is_blocked());
}

fn tells_nobody(_: &str) {
    let_sigpipe_kill();
    let (reader, mut writer) = std::io::pipe().unwrap();
    drop(reader);
    with_listener(|listener| {
        let invitation = listener.invite(DEADLINE).unwrap();
        for _ in 0..2 {
            let failed = invitation.tell(&mut writer).unwrap_err();
            assert_eq!(failed.error, Error::System { call: "write", code: libc::EPIPE });
            assert_eq!(failed.path.as_deref(), Some(listener.path()));
        }
    });
    assert!(!is_blocked() && !is_pending());
}

/// Returns a pipe and two sockets whose other ends are closed.
fn broken() -> [OwnedFd; 3] {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let socket = |kind| socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap().0;
    [writer.into(), socket(SocketType::STREAM), socket(SocketType::SEQPACKET)]
}

/// Returns the consumer of a data pipe with bytes to read.
fn full_pipe() -> DataConsumer {
    let (mut producer, consumer) = DataPipe::pair(4096).unwrap();
    producer.write_all(b"bytes").unwrap();
    consumer
}

fn splices_to_nobody(_: &str) {
    let_sigpipe_kill();
    for file in broken() {
        let consumer = full_pipe();
        let error = consumer.splice_to(file.as_fd(), 5, Deadline::NOW).unwrap_err();
        assert_eq!(error, Error::System { call: "write", code: libc::EPIPE });
        assert_eq!(consumer.available().unwrap(), 5, "bytes that were not written left the pipe");
    }
    assert!(!is_blocked() && !is_pending());
}

/// Shows that a splice beyond `RLIMIT_FSIZE` is an error. The kernel sends SIGXFSZ to a thread that writes beyond the
/// limit.
fn splices_beyond_a_limit(_: &str) {
    let consumer = full_pipe();
    let limit = Rlimit { current: Some(4), maximum: None };
    setrlimit(Resource::Fsize, limit).unwrap();
    let file = rustix::fs::memfd_create("limited", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(consumer.splice_to(file.as_fd(), 5, Deadline::NOW), Ok(4));
    let error = consumer.splice_to(file.as_fd(), 5, Deadline::NOW).unwrap_err();
    assert_eq!(error, Error::System { call: "write", code: libc::EFBIG });
}

/// Shows that a program that blocks SIGPIPE keeps an earlier SIGPIPE.
fn keeps_a_signal_of_the_programs(_: &str) {
    let_sigpipe_kill();
    // SAFETY: the set was filled, and the null pointer asks for no old mask.
    assert_eq!(unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &sigpipe(), std::ptr::null_mut()) }, 0);
    let splice = || full_pipe().splice_to(broken()[0].as_fd(), 5, Deadline::NOW).unwrap_err();
    splice();
    assert!(is_blocked() && !is_pending());
    // SAFETY: the call touches no memory.
    assert_eq!(unsafe { libc::raise(libc::SIGPIPE) }, 0);
    splice();
    assert!(is_blocked() && is_pending());
}

#[test]
fn inviting_children_that_end_at_once_kills_nobody() {
    alone("invites children that end at once", "");
}

#[test]
fn telling_an_invitation_to_a_closed_pipe_is_an_error_and_no_signal() {
    alone("tells nobody", "");
}

#[test]
fn splicing_to_a_closed_pipe_or_socket_is_an_error_and_no_signal() {
    alone("splices to nobody", "");
}

#[test]
fn splicing_beyond_the_limit_of_a_file_is_an_error_and_no_signal() {
    alone("splices beyond a limit", "");
}

#[test]
fn a_signal_that_was_pending_stays() {
    alone("keeps a signal of the program's", "");
}
