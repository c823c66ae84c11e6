//! Call threads: a call thread makes system calls for other threads, because another process can block the calls.
//!
//! The maker of a socket may have kept a copy. While a thread of the maker receives from the socket, and the kernel
//! waits for a page of the maker's memory that never comes, every other receive from the socket blocks, with
//! `MSG_DONTWAIT` too. So a call thread receives from the sockets that one peer has made. The thread that needs the
//! result waits only for a while. A call thread that blocks stays blocked for as long as the peer likes, and meanwhile
//! no further call is made for the peer.
//!
//! A call thread is started for a call, and exits when there was no call for [`IDLE`].

use std::any::Any;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::os::fork::PerProcess;
use crate::os::process::background;
use crate::sync::unpoisoned;

/// The greatest number of call threads at the same time, blocked threads included.
const MOST_THREADS: usize = 1024;

/// Stack size in bytes of a call thread.
const STACK: usize = 256 << 10;

/// The time without a call after which a call thread exits. To start a thread takes longer than to wake it.
const IDLE: Duration = Duration::from_secs(1);

/// Time between two checks of a thread that waits for the result of a call.
const MOMENT: Duration = Duration::from_millis(1);

/// The number of checks after the call thread has begun its system call, after which the call counts as blocked: a
/// quarter of a second. Checks are counted instead of time, because a machine that stands still makes no checks.
const CHECKS: u32 = 250;

/// The number of call threads of this process, blocked threads included.
static THREADS: PerProcess<AtomicUsize> = PerProcess::new(|| AtomicUsize::new(0));

type Outcome = Box<dyn Any + Send>;
type Job = Box<dyn FnOnce() -> Outcome + Send>;

/// The progress of the call that a call thread has to make.
enum Step {
    /// There is no call.
    Idle,
    /// The call thread has not begun the call.
    Given(Job),
    /// The call thread makes the call.
    Running,
    Done(Outcome),
}

struct State {
    step: Step,
    has_thread: bool,
}

struct Shared {
    state: Mutex<State>,
    /// Notified when there is a call to make.
    work: Condvar,
    /// Notified when a call has returned, and when the next call may be given.
    turn: Condvar,
    /// Whether a call has not returned in time, and has not returned since.
    is_blocked: AtomicBool,
}

/// The reason why a call has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoResult {
    /// This call or an earlier call has not returned in time.
    Blocked,
    /// No thread could be started.
    NoThread,
}

/// The place of one call thread, with or without a running thread. Calls are made one at a time.
pub(crate) struct CallThread(Arc<Shared>);

impl Default for CallThread {
    fn default() -> Self {
        Self(Arc::new(Shared {
            state: Mutex::new(State { step: Step::Idle, has_thread: false }),
            work: Condvar::new(),
            turn: Condvar::new(),
            is_blocked: AtomicBool::new(false),
        }))
    }
}

impl CallThread {
    /// Returns whether a call has not returned in time, and has not returned since. Meanwhile no further call is made.
    fn is_blocked(&self) -> bool {
        self.0.is_blocked.load(Ordering::Relaxed)
    }

    /// Makes the call thread call `make`, and returns the result. Starts the thread if there is none. If the call has
    /// not returned after some 250 ms, gives up; the thread drops the result then. If a sandbox forbids this process to
    /// start threads, calls `make` in the calling thread, which may then block.
    pub(crate) fn call<T: Send + 'static>(&self, make: impl FnOnce() -> T + Send + 'static) -> Result<T, NoResult> {
        let shared = &*self.0;
        let mut state = unpoisoned(&shared.state);
        // Another thread's call comes first.
        while !matches!(state.step, Step::Idle) && !self.is_blocked() {
            state = shared.turn.wait_timeout(state, MOMENT).unwrap_or_else(PoisonError::into_inner).0;
        }
        if self.is_blocked() {
            return Err(NoResult::Blocked);
        }
        if !state.has_thread {
            match self.start() {
                Ok(()) => state.has_thread = true,
                Err(libc::EPERM | libc::ENOSYS | libc::EACCES) => {
                    drop(state);
                    return Ok(make());
                }
                Err(_) => return Err(NoResult::NoThread),
            }
        }
        state.step = Step::Given(Box::new(move || Box::new(make())));
        shared.work.notify_one();
        let mut checks = 0;
        loop {
            state = shared.turn.wait_timeout(state, MOMENT).unwrap_or_else(PoisonError::into_inner).0;
            match &state.step {
                Step::Done(_) => break,
                Step::Running if checks == CHECKS => {
                    shared.is_blocked.store(true, Ordering::Relaxed);
                    shared.turn.notify_all();
                    return Err(NoResult::Blocked);
                }
                Step::Running => checks += 1,
                Step::Given(_) | Step::Idle => {}
            }
        }
        let done = mem::replace(&mut state.step, Step::Idle);
        drop(state);
        shared.turn.notify_all();
        match done {
            Step::Done(outcome) => Ok(*outcome.downcast().expect("the result of this call")),
            _ => unreachable!("left the loop with a result"),
        }
    }

    /// Starts the thread. Fails with an error number of the C library if the thread could not be started, or if
    /// [`MOST_THREADS`] threads run.
    fn start(&self) -> Result<(), libc::c_int> {
        let mut started = Err(libc::EAGAIN);
        if THREADS.get().fetch_add(1, Ordering::Relaxed) < MOST_THREADS {
            let shared = self.0.clone();
            started = background::try_to_start(c"strait-receive", STACK, move || run(&shared));
        }
        if started.is_err() {
            THREADS.get().fetch_sub(1, Ordering::Relaxed);
        }
        started
    }
}

/// Makes the calls given to the call thread of `shared`, until there was none for [`IDLE`], or until a call has not
/// returned in time.
fn run(shared: &Shared) {
    let mut state = unpoisoned(&shared.state);
    loop {
        match mem::replace(&mut state.step, Step::Running) {
            Step::Given(job) => {
                drop(state);
                let outcome = job();
                state = unpoisoned(&shared.state);
                if shared.is_blocked.load(Ordering::Relaxed) {
                    drop(state);
                    // Nobody waits for the result. Descriptors in the result may take long to close.
                    drop(outcome);
                    state = unpoisoned(&shared.state);
                    shared.is_blocked.store(false, Ordering::Relaxed);
                    state.step = Step::Idle;
                } else {
                    state.step = Step::Done(outcome);
                }
                shared.turn.notify_all();
            }
            other => {
                state.step = other;
                let waited = shared.work.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
                state = waited.0;
                if waited.1.timed_out() && !matches!(state.step, Step::Given(_)) {
                    state.has_thread = false;
                    break;
                }
            }
        }
    }
    THREADS.get().fetch_sub(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn calls_of_many_threads_have_their_own_results() {
        let thread = CallThread::default();
        std::thread::scope(|scope| {
            for number in 0..8 {
                let thread = &thread;
                scope.spawn(move || (0..50).for_each(|n| assert_eq!(thread.call(move || number * n), Ok(number * n))));
            }
        });
        assert!(!thread.is_blocked());
    }

    #[test]
    fn a_call_that_blocks_is_given_up_and_its_result_is_dropped_by_the_call_thread() {
        struct Dropped(mpsc::Sender<std::thread::ThreadId>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                let _ = self.0.send(std::thread::current().id());
            }
        }
        let thread = CallThread::default();
        let (release, released) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let refused = thread.call(move || {
            let _ = released.recv();
            Dropped(tell)
        });
        assert!(matches!(refused, Err(NoResult::Blocked)));
        assert!(thread.is_blocked());
        assert_eq!(thread.call(|| 1), Err(NoResult::Blocked));
        drop(release);
        let dropped_by = told.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_ne!(dropped_by, std::thread::current().id());
        let begin = std::time::Instant::now();
        while thread.call(|| 1) != Ok(1) {
            assert!(begin.elapsed() < Duration::from_secs(60), "the call thread makes no further calls");
        }
    }
}
