//! Signals that queue, with a value.

use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

use rustix::io::{Errno, read};
use rustix::process::Pid;

use super::outcome;

/// A set of signals, blocked by this process, so that each stays in the queue until it is received.
#[derive(Clone, Copy)]
pub(crate) struct Blocked(libc::sigset_t);

impl std::fmt::Debug for Blocked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Blocked")
    }
}

/// A signal that was received.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Came {
    /// The process id of the sender.
    pub(crate) from: i32,
    /// The value of the signal.
    pub(crate) value: u64,
}

/// Returns the first real-time signal: it queues, has no predefined meaning, and the C library does not use it.
pub(crate) fn first_free() -> i32 {
    libc::SIGRTMIN()
}

impl Blocked {
    /// Blocks the signals in the calling thread, and in its later threads.
    pub(crate) fn these(signals: &[i32]) -> Result<Self, Errno> {
        // SAFETY: a structure of numbers, for which all zeros are valid; it is made empty below all the same.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: `set` is a valid set; the old mask is not requested.
        unsafe {
            libc::sigemptyset(&raw mut set);
            for &signal in signals {
                libc::sigaddset(&raw mut set, signal);
            }
            match libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) {
                0 => Ok(Self(set)),
                error => Err(Errno::from_raw_os_error(error)),
            }
        }
    }

    /// Waits for the next signal of the set, and receives it.
    #[inline]
    pub(crate) fn wait(&self) -> Result<Came, Errno> {
        self.fetch(ptr::null())
    }

    /// Receives the next signal of the set; `EAGAIN` if there is none.
    #[inline]
    pub(crate) fn try_wait(&self) -> Result<Came, Errno> {
        self.fetch(&libc::timespec { tv_sec: 0, tv_nsec: 0 })
    }

    #[inline]
    fn fetch(&self, limit: *const libc::timespec) -> Result<Came, Errno> {
        // SAFETY: a structure of numbers and of a union of numbers and pointers, for which all zeros are valid.
        let mut about: libc::siginfo_t = unsafe { std::mem::zeroed() };
        // SAFETY: the set is valid, `about` has room for the result, and the time limit is null or lives until the
        // call returns.
        outcome(unsafe { libc::sigtimedwait(&raw const self.0, &raw mut about, limit) })?;
        // SAFETY: a signal that `sigqueue` sent has both of these fields.
        unsafe { Ok(Came { from: about.si_pid(), value: about.si_value().sival_ptr.addr() as u64 }) }
    }

    /// Returns a descriptor from which the signals of the set can be read.
    pub(crate) fn descriptor(&self) -> Result<OwnedFd, Errno> {
        // SAFETY: a valid set; -1 asks for a new descriptor.
        let descriptor = outcome(unsafe { libc::signalfd(-1, &raw const self.0, libc::SFD_CLOEXEC) })?;
        // SAFETY: the descriptor was just opened, and nothing else owns it.
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor) })
    }
}

/// Sends `signal` with `value` to a process.
#[inline]
pub(crate) fn queue(to: Pid, signal: i32, value: u64) -> Result<(), Errno> {
    let value = libc::sigval { sival_ptr: ptr::without_provenance_mut(value as usize) };
    // SAFETY: the call takes numbers only; the value is never used as a pointer.
    outcome(unsafe { libc::sigqueue(to.as_raw_nonzero().get(), signal, value) }).map(drop)
}

/// Reads the next signal from a [descriptor](Blocked::descriptor).
#[inline]
pub(crate) fn read_one(descriptor: &OwnedFd) -> Result<Came, Errno> {
    const RECORD: usize = size_of::<libc::signalfd_siginfo>();
    let mut record = [0; RECORD];
    if read(descriptor, &mut record)? != RECORD {
        return Err(Errno::IO);
    }
    // SAFETY: the record has as many bytes as the structure, which consists of numbers; it need not be aligned.
    let about: libc::signalfd_siginfo = unsafe { ptr::read_unaligned(record.as_ptr().cast()) };
    Ok(Came { from: about.ssi_pid as i32, value: about.ssi_ptr })
}
