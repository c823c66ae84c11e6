//! System calls: no other module makes any.
//!
//! All calls go through `rustix`, except a few that `rustix` lacks. The exceptions go through `libc`, in [`socket`] and
//! [`process`]: credentials given by the kernel (whose process number may be 0 across process namespaces), control
//! messages beside a packet, some socket options, the hook between `fork` and `exec`, threads, and the signals of a
//! thread. A port to another operating system would replace this module with another module of the same functions.
//!
//! A failed call becomes [`Error::System`] with the name of the call. So a call refused by a sandbox can be
//! distinguished from a full table.

#[cfg(test)]
pub(crate) mod alone;
pub(crate) mod call_thread;
pub(crate) mod close;
pub(crate) mod epoll;
#[cfg(strait_fault_points)]
#[doc(hidden)]
pub mod fault;
#[cfg(not(strait_fault_points))]
pub(crate) mod fault;
pub(crate) mod fork;
pub(crate) mod futex;
#[cfg(strait_fuzzing)]
pub(crate) mod fuzz_hooks;
pub(crate) mod memory;
pub(crate) mod names;
pub(crate) mod process;
pub(crate) mod reaper;
pub(crate) mod region;
pub(crate) mod sealing;
pub(crate) mod socket;

use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::{ClockId, NanosleepRelativeResult, Timespec, clock_nanosleep_relative};

use crate::error::Error;
use crate::signals;

/// Calls `make`, which makes the system call named `_name`, and returns its result. All system calls go through this
/// function, so that a test can make each call [fail](crate::os::fault).
#[inline(always)]
fn call<T>(_name: &'static str, make: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
    #[cfg(strait_fault_points)]
    if let Some(errno) = crate::os::fault::refusal(_name) {
        return Err(errno);
    }
    make()
}

/// Converts `returned`, the result of a function of `libc` that returns a negative number on failure and sets `errno`.
/// Returns the number if it is not negative, otherwise the error in `errno`.
fn done(returned: isize) -> Result<isize, Errno> {
    let errno = || Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO));
    if returned < 0 { Err(errno()) } else { Ok(returned) }
}

/// Converts the error number of a failed system call to an [`Error`] that names the call.
pub(crate) trait Named<T> {
    fn named(self, call: &'static str) -> Result<T, Error>;
}

impl<T> Named<T> for Result<T, Errno> {
    fn named(self, call: &'static str) -> Result<T, Error> {
        self.map_err(|errno| failed(call, errno))
    }
}

pub(crate) fn failed(call: &'static str, errno: Errno) -> Error {
    match errno {
        Errno::MFILE | Errno::NFILE => Error::NoDescriptors,
        Errno::NOMEM => Error::NoMemory { call },
        _ => Error::System { call, code: errno.raw_os_error() },
    }
}

fn last_errno() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Returns a token: a random number of 128 bits that no other process can guess.
pub(crate) fn random_token() -> Result<u128, Error> {
    #[cfg(strait_fuzzing)]
    if let Some(token) = fuzz_hooks::token() {
        return Ok(token);
    }
    let mut bytes = [0u8; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        let ask = || rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty());
        match call("getrandom", ask) {
            Ok(n) => filled += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("getrandom", errno)),
        }
    }
    Ok(u128::from_le_bytes(bytes))
}

/// Returns the number of the CPU on which the calling thread runs. A hint only: the thread may be on another CPU by
/// now.
#[inline]
pub(crate) fn current_cpu() -> u32 {
    rustix::thread::sched_getcpu() as u32
}

/// Returns the time since some fixed moment, exact to a few milliseconds (`CLOCK_MONOTONIC_COARSE`).
pub(crate) fn coarse_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::MonotonicCoarse);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

/// Sleeps for the time `limit`. If a signal interrupts the sleep of a thread with a [guard](signals::Guard), returns
/// early.
pub(crate) fn pause(limit: Duration) {
    let mut request =
        Timespec { tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX), tv_nsec: limit.subsec_nanos().into() };
    if process::held::is_holding() {
        if let Err(Errno::INTR) = call("ppoll", || process::held::poll(&mut [], Some(&request))) {
            signals::interrupted();
        }
        return;
    }
    while let NanosleepRelativeResult::Interrupted(left) = clock_nanosleep_relative(ClockId::Monotonic, &request) {
        if signals::interrupted() {
            break;
        }
        request = left;
    }
}

/// Overwrites a secret with zeroes, in a way that the compiler does not optimise away.
pub(crate) fn wipe<T: Wipe + ?Sized>(secret: &mut T) {
    secret.wipe();
    std::hint::black_box(secret);
}

/// A secret that can be overwritten with zeroes.
pub(crate) trait Wipe {
    fn wipe(&mut self);
}

impl Wipe for u128 {
    fn wipe(&mut self) {
        *self = 0;
    }
}

impl Wipe for Vec<u8> {
    fn wipe(&mut self) {
        self.fill(0);
    }
}
