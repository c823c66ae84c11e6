//! What a [fault point](crate::os::fault) does to this process.

use std::os::fd::AsRawFd;

use rustix::process::{Resource, Rlimit, Signal, getpid, getrlimit, kill_process, setrlimit};

/// Ends this process as nothing else can: no destructor runs, nothing is flushed.
pub(crate) fn kill() {
    let _ = kill_process(getpid(), Signal::KILL);
}

/// Stops this process, until somebody continues it.
pub(crate) fn stop() {
    // To this thread: if another one took it, this one would go on for a while.
    // SAFETY: it takes a number and returns when it was continued.
    unsafe { libc::raise(libc::SIGSTOP) };
}

/// Leaves a child behind that holds every descriptor of this process, which is killed.
pub(crate) fn fork_and_die() {
    // SAFETY: the child makes system calls only, and never returns.
    match unsafe { libc::fork() } {
        0 => loop {
            // SAFETY: it waits for a signal, which ends it.
            unsafe { libc::pause() };
        },
        _ => kill(),
    }
}

/// Has this process open no descriptor more.
pub(crate) fn starve() {
    // The kernel gives out the lowest free number; what is closed later is free again.
    let Ok(probe) = rustix::event::eventfd(0, rustix::event::EventfdFlags::CLOEXEC) else { return };
    limit(Some(probe.as_raw_fd() as u64));
}

/// Lets it open as many as it ever could.
pub(crate) fn feed() {
    limit(None);
}

fn limit(current: Option<u64>) {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let _ = setrlimit(Resource::Nofile, Rlimit { current: current.or(maximum), maximum });
}
