//! Waits that a signal ends.
//!
//! ```
//! use std::sync::atomic::{AtomicBool, Ordering};
//! use std::time::{Duration, Instant};
//! use strait::{Channel, Error, signals};
//!
//! /// Set by the program's signal handler.
//! static STOP: AtomicBool = AtomicBool::new(false);
//!
//! /// Receives until the deadline, or until the program is to stop.
//! fn receive(channel: &Channel, deadline: Instant) -> Result<Option<strait::Message>, Error> {
//!     let _guard = signals::Guard::new();
//!     while !STOP.load(Ordering::SeqCst) {
//!         match channel.recv_by(deadline) {
//!             Err(Error::Signalled) => continue, // a handler has run: look at STOP, then go on until the deadline
//!             received => return received.map(Some),
//!         }
//!     }
//!     Ok(None)
//! }
//!
//! let (near, far) = Channel::pair()?;
//! far.send(b"hello")?;
//! let message = receive(&near, Instant::now() + Duration::from_secs(5))?;
//! assert_eq!(message.unwrap().bytes(), b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! By default a signal does not end a wait of this library: the signal handler runs, and the call goes on waiting with
//! the time that is left. A program that has to act after a signal, in code that may not run in the handler, makes a
//! [`Guard`]. An interpreter, for example, raises an exception at Ctrl-C only between two of its instructions.
//!
//! # What a guard promises
//! While a thread has a guard, each sleep of the thread that a signal interrupts ends the wait with
//! [`Error::Signalled`]. Then nothing was sent, received or accepted, and the call may be made again. If the awaited
//! event has happened too, the call succeeds, and the next wait of the thread fails at once instead. This rule holds
//! for all calls that sleep: receiving, sending, data pipes, calls, wait sets, traps, dispatchers, connecting,
//! accepting, and waiting for another thread that uses the same end.
//!
//! * **Only sleeps end.** A signal whose handler ran before the thread slept does not end the next sleep. The section
//!   below shows how a program misses no signal. [`Wait::Spin`](crate::Wait::Spin) does not sleep, so no signal ends
//!   such a wait.
//! * **Only handlers count.** An ignored signal interrupts no sleep. The exception is a signal that stops and continues
//!   the process: although no handler runs, the kernel then interrupts a sleep in a wait set, in `accept` or in
//!   `connect`.
//! * **`std::io` retries.** [`Error::Signalled`] is [`ErrorKind::Interrupted`](std::io::ErrorKind::Interrupted), after
//!   which `read_exact`, `write_all` and `io::copy` try again. Use the calls of the data pipe itself under a guard.
//! * **`SA_RESTART` makes no difference.** Strait sleeps in ways that the kernel does not restart.
//! * **Only the thread with the guard.** The kernel runs the handler in any thread that does not block the signal. To
//!   direct a signal to the thread with the guard, block the signal in all other threads.
//! * **Short waits do not end**: for a lock that another thread holds for the time of a copy, and for the lock of a
//!   name while a listener of this name is made.
//! * **Calls.** If a signal ends [`CallEnd::call`](crate::call::CallEnd::call) after the request was sent, the call
//!   fails with `OutcomeUnknown(Signalled)` and is cancelled. To keep a call in flight, make the call with
//!   [`CallEnd::begin_call`](crate::call::CallEnd::begin_call), and wait with
//!   [`PendingCall::poll`](crate::call::PendingCall::poll).
//! * **Invitations.** [`invited`](crate::meet::invited) reads its line only once: if a signal ends the wait later, the
//!   invitation is used up, as after every failure.
//!
//! # To miss no signal
//! A signal may arrive after the program has checked its own flag and before the thread sleeps. A program that must not
//! miss such a signal does one of the following:
//!
//! * The program blocks the signal, and a separate thread takes the signal by `sigwait` and then calls
//!   [`Interrupter::interrupt`](crate::Interrupter::interrupt). An interruption is never missed.
//! * The program checks its flag in the closure that it gives to [`guarded_if`].
//! * The program waits for a limited time, and checks its flag in between.
//!
//! # Costs
//! Making and dropping a guard take a few instructions and no system call. A thread with a guard sleeps in a wait set
//! by epoll only, which takes a few microseconds longer to wake. Nothing else changes until a signal comes.
//! [`guarded_if`] makes some more system calls, which its documentation names.

use std::cell::Cell;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::os::process::held;

/// The longest sleep of a thread with a guard, after which the thread looks and sleeps again.
const LONGEST_SLEEP: Duration = Duration::from_secs(86_400);

thread_local! {
    /// The number of guards of the thread.
    static GUARDS: Cell<u32> = const { Cell::new(0) };
    /// Whether a signal has interrupted a sleep of the thread since its first guard was made, and no wait has failed
    /// for the signal yet. Never set without a guard.
    static CAME: Cell<bool> = const { Cell::new(false) };
}

/// While the guard exists, a signal that interrupts a sleep of the guard's thread ends the wait with
/// [`Error::Signalled`].
///
/// See [the module](self#what-a-guard-promises) for what a guard promises. A thread may have several guards; the effect
/// ends when the last guard is dropped.
///
/// Example: [a receive that a signal ends](self).
#[derive(Debug)]
#[must_use = "signals end waits only as long as the guard exists"]
pub struct Guard {
    /// A guard belongs to the thread that made it.
    of_this_thread: PhantomData<*const ()>,
}

impl Guard {
    /// Makes a guard for the calling thread. Makes no system call.
    #[allow(clippy::new_without_default)]
    pub fn new() -> Self {
        GUARDS.set(GUARDS.get() + 1);
        Self { of_this_thread: PhantomData }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let left = GUARDS.get() - 1;
        GUARDS.set(left);
        if left == 0 {
            CAME.set(false);
        }
    }
}

/// Calls `wait` with a [`Guard`], and returns its result: a signal that interrupts a sleep within `wait` ends the
/// sleep's wait with [`Error::Signalled`].
///
/// ```
/// let (near, far) = strait::Channel::pair()?;
/// far.send(b"hello")?;
/// let message = strait::signals::guarded(|| near.recv())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn guarded<T>(wait: impl FnOnce() -> T) -> T {
    let _guard = Guard::new();
    wait()
}

/// Blocks all signals of the calling thread, calls `check`, and if `check` returns `true`, calls `wait` with a
/// [`Guard`]. While `wait` sleeps, signals are not blocked. Returns the result of `wait`, or `None` if `check` returned
/// `false`.
///
/// So no signal is missed between the check and the sleep. A signal that arrives after the call of `check` reaches its
/// handler in the next sleep, and ends the sleep with [`Error::Signalled`]; or it reaches its handler when `guarded_if`
/// returns.
///
/// ```
/// use std::sync::atomic::{AtomicBool, Ordering};
/// use std::time::{Duration, Instant};
/// use strait::{Channel, Error, signals};
///
/// /// Set by the program's signal handler.
/// static STOP: AtomicBool = AtomicBool::new(false);
///
/// fn receive(channel: &Channel) -> Result<Option<strait::Message>, Error> {
///     let since = Instant::now();
///     loop {
///         let checked = signals::guarded_if(since, || !STOP.load(Ordering::SeqCst), || channel.recv());
///         match checked {
///             Some(Err(Error::Signalled)) => continue,
///             Some(received) => return received.map(Some),
///             None => return Ok(None),
///         }
///     }
/// }
///
/// let (near, far) = Channel::pair()?;
/// far.send(b"hello")?;
/// assert_eq!(receive(&near)?.unwrap().bytes(), b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// * **Sleeps on words.** A thread sleeps on a word (a futex) in a wait for another thread: on a channel within the
///   process, or because the other thread uses the end or receives from the peer. Such a sleep cannot unblock signals
///   and begin in one step. A signal in the less than a microsecond between the two does not end the sleep. So each
///   such sleep lasts at most as long as the program has waited since `since`, and at least 20 ms if nothing happens.
///   The wait then ends with [`Error::Signalled`] although there may have been no signal. A connection to a listener
///   whose queue is full waits in the same way.
/// * **Only the calling thread.** While the calling thread blocks a signal, the kernel may give the signal to another
///   thread that does not block it. Then the sleep of the calling thread does not end.
/// * **Costs.** Two system calls (`rt_sigprocmask`), and up to three more for each sleep on a word. Sleeps in a wait
///   set take one more (`ppoll`). If the kernel refuses `rt_sigprocmask`, `guarded_if` works as [`guarded`] does.
/// * **`check`** runs with all signals blocked, and so do its child processes if it starts any.
pub fn guarded_if<T>(since: Instant, check: impl FnOnce() -> bool, wait: impl FnOnce() -> T) -> Option<T> {
    let _guard = Guard::new();
    held::holding(since, || check().then(wait))
}

/// Returns whether the calling thread has a [`Guard`].
pub(crate) fn is_guarded() -> bool {
    GUARDS.get() > 0
}

/// Notes that a signal has interrupted a sleep of the calling thread, if the thread has a [`Guard`]. Returns whether
/// the thread has a guard. If so, the caller does not sleep again, and its own caller checks [`has_come`].
pub(crate) fn interrupted() -> bool {
    let guarded = is_guarded();
    if guarded {
        CAME.set(true);
    }
    guarded
}

/// Returns the limit for a sleep that is to last for at most `limit`. If the calling thread has a [`Guard`], every
/// sleep has a limit: after a handler with `SA_RESTART`, the kernel restarts some sleeps without a limit, and no sleep
/// with a limit.
pub(crate) fn bounded(limit: Option<Duration>) -> Option<Duration> {
    limit.or_else(|| is_guarded().then_some(LONGEST_SLEEP))
}

/// Returns whether a signal has interrupted a sleep of the calling thread. If so, the thread's wait is to end.
#[inline]
pub(crate) fn has_come() -> bool {
    CAME.get()
}

/// Checks whether a signal is to end the wait of the calling thread. Returns `Ok` if not.
///
/// # Errors
/// [`Error::Signalled`] if a signal is to end the wait, once for each signal.
pub(crate) fn check() -> Result<(), Error> {
    if CAME.replace(false) { Err(Error::Signalled) } else { Ok(()) }
}

/// Drops `error`, the error of a step within a wait, because the wait goes on or ends otherwise. If the error stands
/// for a signal, the signal ends the next wait instead.
pub(crate) fn postpone(error: Error) {
    if error == Error::Signalled {
        interrupted();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_counts_once_and_only_under_a_guard() {
        assert!(!interrupted() && !has_come());
        let outer = Guard::new();
        assert!(!has_come());
        drop(Guard::new());
        assert!(interrupted() && has_come());
        assert_eq!((check(), check()), (Err(Error::Signalled), Ok(())));
        postpone(Error::TimedOut);
        assert!(!has_come());
        postpone(Error::Signalled);
        assert!(has_come());
        drop(outer);
        assert!(!has_come() && !interrupted());
    }

    #[test]
    fn each_thread_has_its_own_guards() {
        guarded(|| {
            assert!(!std::thread::spawn(is_guarded).join().unwrap());
            assert!(is_guarded());
        });
    }
}
