//! The actions that a [fault point](crate::os::fault) carries out on this process.

use std::os::fd::AsRawFd;

use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};

/// Ends this process with SIGKILL: no destructor runs, and nothing is flushed.
pub(crate) fn kill() {
    let _ = kill_process(getpid(), Signal::KILL);
}

/// Stops this process with SIGSTOP, until another process continues it.
pub(crate) fn stop() {
    // The signal goes to the calling thread: if another thread took the signal, the calling thread would go on for a
    // while.
    // SAFETY: the call takes a number, and returns when the process is continued.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Forks a child that holds every descriptor of this process open, and then kills this process.
pub(crate) fn fork_and_die() {
    // SAFETY: the child makes system calls only, and never returns.
    match unsafe { libc::fork() } {
        0 => loop {
            // SAFETY: the call waits for a signal, which ends the child.
            unsafe { libc::pause() };
        },
        _ => kill(),
    }
}

/// Starves this process: sets its descriptor limit so that it can open no more descriptors.
pub(crate) fn starve() {
    // The kernel gives out the lowest free number; a number that is closed later is free again.
    let Ok(probe) = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC) else { return };
    limit(Some(probe.as_raw_fd() as u64));
}

/// Ends a starvation: sets the descriptor limit of this process to the hard limit.
pub(crate) fn feed() {
    limit(None);
}

fn limit(current: Option<u64>) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: current.or(maximum), maximum });
}
