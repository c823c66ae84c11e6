//! Call threads: a call thread makes system calls for other threads, because another process can block the calls.
//!
//! The maker of a socket may have kept a copy. While a thread of the maker receives from the socket, and the kernel
//! waits for a page of the maker's memory that never comes, every other receive from the socket blocks, with
//! `MSG_DONTWAIT` too. So call threads receive from the sockets that other processes have made. The thread that needs
//! the result waits only for a while. A call thread that blocks stays blocked for as long as the peer likes, and
//! meanwhile no further call is made for the peer.
//!
//! The calls for all peers share the call threads: a call goes to a thread without a call, or to a new thread. There is
//! at most one call for each peer at a time, so a peer can block one thread. A thread exits when there was no call for
//! [`IDLE`].

use std::any::Any;
use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::os::fork::PerProcess;
use crate::os::process::background::{self, NoThread};
use crate::sync::unpoisoned;

/// The greatest number of call threads at the same time, blocked threads included.
const MOST_THREADS: usize = 1024;

/// Stack size in bytes of a call thread.
const STACK: usize = 256 << 10;

/// The time without a call after which a call thread exits. To start a thread takes longer than to wake it.
const IDLE: Duration = Duration::from_secs(1);

/// The time for which a thread yields its processor before it sleeps, while it waits for a result or for the next call.
/// Calls often follow one another, and to put a thread to sleep and to wake it takes longer than such a call.
const YIELDING: Duration = Duration::from_micros(50);

/// Time between two checks of a thread that waits for the result of a call.
const MOMENT: Duration = Duration::from_millis(1);

/// The number of checks after the call thread has begun its system call, after which the call counts as blocked: a
/// quarter of a second. Checks are counted instead of time, because a machine that stands still makes no checks.
const CHECKS: u32 = 250;

type Outcome = Box<dyn Any + Send>;

/// A call with everything around it. The call passes its result on after it has called the argument.
type Call = Box<dyn FnOnce(&dyn Fn()) + Send>;

/// Yields the processor until `done` returns `true`, for [`YIELDING`] at most.
fn yield_until(done: impl Fn() -> bool) {
    let begin = Instant::now();
    while !done() && begin.elapsed() < YIELDING {
        std::thread::yield_now();
    }
}

/// The call threads of this process, and the calls that no thread has begun.
#[derive(Default)]
struct Pool {
    state: Mutex<PoolState>,
    /// The number of calls that no thread has begun.
    waiting: AtomicUsize,
    /// Notified when there is a call to begin, and a thread sleeps.
    work: Condvar,
}

#[derive(Default)]
struct PoolState {
    calls: VecDeque<Call>,
    threads: usize,
    /// The number of threads without a call, or with a call that has been made.
    free: usize,
    /// The number of threads that sleep until there is a call.
    asleep: usize,
}

#[cfg(test)]
thread_local! {
    /// How many calls of this thread find a call thread before one call finds none; `None` if every call finds one.
    pub(crate) static UNTIL_REFUSED: std::cell::Cell<Option<usize>> = const { std::cell::Cell::new(None) };
}

static POOL: PerProcess<Pool> = PerProcess::new(Pool::default);

impl Pool {
    /// Lets a thread make `call`: a thread without a call, or a new thread. Returns `call` if no thread could be
    /// started, or if [`MOST_THREADS`] threads have calls.
    fn make(&self, call: Call) -> Result<(), (NoThread, Call)> {
        #[cfg(test)]
        if let Some(before) = UNTIL_REFUSED.take() {
            UNTIL_REFUSED.set(before.checked_sub(1));
            if before == 0 {
                return Err((NoThread::Failed(libc::EAGAIN), call));
            }
        }
        let mut state = unpoisoned(&self.state);
        if state.free <= state.calls.len() {
            let started = match state.threads {
                MOST_THREADS.. => Err(NoThread::Failed(libc::EAGAIN)),
                _ => background::try_to_start(c"strait-receive", STACK, || POOL.get().run()),
            };
            if let Err(reason) = started {
                return Err((reason, call));
            }
            state.threads += 1;
            state.free += 1;
        }
        state.calls.push_back(call);
        self.waiting.store(state.calls.len(), Ordering::Relaxed);
        if state.asleep > 0 {
            self.work.notify_one();
        }
        Ok(())
    }

    /// Makes calls until there was none for [`IDLE`].
    fn run(&self) {
        loop {
            let mut state = unpoisoned(&self.state);
            if state.calls.is_empty() {
                drop(state);
                yield_until(|| self.waiting.load(Ordering::Relaxed) > 0);
                state = unpoisoned(&self.state);
            }
            if state.calls.is_empty() {
                state.asleep += 1;
                let waited = self.work.wait_timeout_while(state, IDLE, |state| state.calls.is_empty());
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                state.asleep -= 1;
            }
            state.free -= 1;
            let Some(call) = state.calls.pop_front() else {
                state.threads -= 1;
                return;
            };
            self.waiting.store(state.calls.len(), Ordering::Relaxed);
            drop(state);
            // The thread counts as free before the result is there. Otherwise the thread that waits for the result
            // could give its next call first, and would need one more call thread.
            call(&|| unpoisoned(&self.state).free += 1);
        }
    }
}

/// The progress of the call that a call thread has to make for a peer.
enum Step {
    /// There is no call.
    Idle,
    /// No call thread has begun the call.
    Given,
    /// A call thread makes the call.
    Running,
    Done(Outcome),
}

struct Shared {
    step: Mutex<Step>,
    /// Notified when a call has returned, and when the next call may be given.
    turn: Condvar,
    /// Whether the call has returned.
    is_done: AtomicBool,
    /// Whether a call has not returned in time, and has not returned since.
    is_blocked: AtomicBool,
}

impl Shared {
    /// Makes the call `make`, then calls `made`, and stores the result for the thread that waits for it. If that thread
    /// has given up, drops the result.
    fn run(&self, make: impl FnOnce() -> Outcome, made: &dyn Fn()) {
        *unpoisoned(&self.step) = Step::Running;
        let outcome = make();
        let mut step = unpoisoned(&self.step);
        if self.is_blocked.load(Ordering::Relaxed) {
            drop(step);
            // Descriptors in the result may take long to close. Until then, no other call may wait for this thread.
            drop(outcome);
            made();
            step = unpoisoned(&self.step);
            self.is_blocked.store(false, Ordering::Relaxed);
            *step = Step::Idle;
        } else {
            made();
            *step = Step::Done(outcome);
            self.is_done.store(true, Ordering::Relaxed);
        }
        drop(step);
        self.turn.notify_all();
    }
}

/// The reason why a call has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoResult {
    /// This call or an earlier call has not returned in time.
    Blocked,
    /// No thread could be started.
    NoThread,
}

/// The calls that one peer can block. Call threads make them, one at a time.
pub(crate) struct PeerCalls(Arc<Shared>);

impl Default for PeerCalls {
    fn default() -> Self {
        Self(Arc::new(Shared {
            step: Mutex::new(Step::Idle),
            turn: Condvar::new(),
            is_done: AtomicBool::new(false),
            is_blocked: AtomicBool::new(false),
        }))
    }
}

impl PeerCalls {
    /// Returns whether a call has not returned in time, and has not returned since. Meanwhile no further call is made.
    fn is_blocked(&self) -> bool {
        self.0.is_blocked.load(Ordering::Relaxed)
    }

    /// Makes a call thread call `make`, and returns the result. If the call has not returned after some 250 ms, gives
    /// up; the thread drops the result then. If a sandbox forbids this process to start threads, calls `make` in the
    /// calling thread, which may then block.
    pub(crate) fn call<T: Send + 'static>(&self, make: impl FnOnce() -> T + Send + 'static) -> Result<T, NoResult> {
        let shared = &self.0;
        // Another thread's call comes first.
        let must_wait = |step: &mut Step| !matches!(step, Step::Idle) && !self.is_blocked();
        let waited = shared.turn.wait_while(unpoisoned(&shared.step), must_wait);
        let mut step = waited.unwrap_or_else(PoisonError::into_inner);
        if self.is_blocked() {
            return Err(NoResult::Blocked);
        }
        *step = Step::Given;
        shared.is_done.store(false, Ordering::Relaxed);
        drop(step);
        let call = {
            let shared = shared.clone();
            move |made: &dyn Fn()| shared.run(|| Box::new(make()), made)
        };
        match POOL.get().make(Box::new(call)) {
            Ok(()) => yield_until(|| shared.is_done.load(Ordering::Relaxed)),
            Err((NoThread::Forbidden, call)) => call(&|| {}),
            Err((NoThread::Failed(_), call)) => {
                drop(call);
                self.end_turn();
                return Err(NoResult::NoThread);
            }
        }
        self.await_result()?;
        match self.end_turn() {
            Step::Done(outcome) => Ok(*outcome.downcast().expect("the result of this call")),
            _ => unreachable!("the result is there"),
        }
    }

    /// Waits until the call has returned. Gives up if the call takes too long.
    fn await_result(&self) -> Result<(), NoResult> {
        let shared = &*self.0;
        let mut step = unpoisoned(&shared.step);
        let mut checks = 0;
        loop {
            match &*step {
                Step::Done(_) => return Ok(()),
                Step::Running if checks == CHECKS => {
                    shared.is_blocked.store(true, Ordering::Relaxed);
                    shared.turn.notify_all();
                    return Err(NoResult::Blocked);
                }
                Step::Running => checks += 1,
                Step::Given | Step::Idle => {}
            }
            step = shared.turn.wait_timeout(step, MOMENT).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Lets the next call be given. Returns the step of the call that has ended.
    fn end_turn(&self) -> Step {
        let step = mem::replace(&mut *unpoisoned(&self.0.step), Step::Idle);
        self.0.turn.notify_all();
        step
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn calls_of_many_threads_have_their_own_results() {
        let calls = PeerCalls::default();
        std::thread::scope(|scope| {
            for number in 0..8 {
                let calls = &calls;
                scope.spawn(move || (0..50).for_each(|n| assert_eq!(calls.call(move || number * n), Ok(number * n))));
            }
        });
        assert!(!calls.is_blocked());
    }

    #[test]
    fn a_call_that_blocks_is_given_up_and_its_result_is_dropped_by_the_call_thread() {
        struct Dropped(mpsc::Sender<std::thread::ThreadId>);
        impl Drop for Dropped {
            fn drop(&mut self) {
                let _ = self.0.send(std::thread::current().id());
            }
        }
        let calls = PeerCalls::default();
        let (release, released) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let refused = calls.call(move || {
            let _ = released.recv();
            Dropped(tell)
        });
        assert!(matches!(refused, Err(NoResult::Blocked)));
        assert!(calls.is_blocked());
        assert_eq!(calls.call(|| 1), Err(NoResult::Blocked));
        drop(release);
        let dropped_by = told.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_ne!(dropped_by, std::thread::current().id());
        let begin = std::time::Instant::now();
        while calls.call(|| 1) != Ok(1) {
            assert!(begin.elapsed() < Duration::from_secs(60), "the call thread makes no further calls");
        }
    }

    /// Shows that a call waits for no thread that still drops the result of a call of another peer.
    #[test]
    fn a_result_that_takes_long_to_drop_delays_no_call_for_another_peer() {
        /// Tells that it is being dropped, and waits until the sender of the receiver is gone.
        struct Slow(mpsc::Sender<()>, mpsc::Receiver<()>);
        impl Drop for Slow {
            fn drop(&mut self) {
                let _ = self.0.send(());
                let _ = self.1.recv();
            }
        }
        // Threads of other tests would make the second call.
        if !crate::os::alone::is_alone() {
            return;
        }
        let (release, released) = mpsc::channel::<()>();
        let (tell, told) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let refused = PeerCalls::default().call(move || {
            let _ = released.recv();
            Slow(tell, ended)
        });
        assert!(matches!(refused, Err(NoResult::Blocked)));
        drop(release);
        told.recv_timeout(Duration::from_secs(60)).unwrap();
        let (answer, answered) = mpsc::channel();
        std::thread::spawn(move || answer.send(PeerCalls::default().call(|| 1)));
        assert_eq!(answered.recv_timeout(Duration::from_secs(20)), Ok(Ok(1)));
        drop(end);
    }
}
