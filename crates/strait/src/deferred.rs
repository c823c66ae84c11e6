//! Work that waits until the library holds no lock.
//!
//! The program's own code must not run while the library holds a lock, because the program cannot know of the lock.
//! Such code is the destructor of a [value](crate::view::Value) dropped inside the library, and the callback for [peers
//! that broke the protocol](crate::on_bad_peer). So such work goes into a queue, and a library call by the program runs
//! the queue just before returning. Sending and receiving look at the queue only on failure; a wait on a wait set, the
//! closing of a channel and the taking of handles out of a message always look. So the queue stays short in a process
//! that does nothing but pass ends on.
//!
//! | work | runs in |
//! |---|---|
//! | an object to [drop](drop_later) | the thread that deferred the drop, in its next such call or at its end |
//! | a [job](run_later) | the next such call of any thread |
//! | an action that failed for lack of a thread, memory or descriptors, to be [tried again](try_later) | after a pause a thread of the library, or the next such call of any thread if there is no such thread |
//!
//! [`InTurn`] is for objects whose drop would drop further objects of their type: the objects are dropped one after the
//! other.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::LocalKey;
use std::time::{Duration, Instant};

use crate::os::fork::PerProcess;
use crate::os::process::background;
use crate::sync::unpoisoned;
use crate::{blocked_on, os};

/// A job: a closure that the library defers until its thread holds no lock of the library. A job runs once.
type Job = Box<dyn FnOnce() + Send>;

static JOBS: PerProcess<Jobs> = PerProcess::new(Jobs::default);
static RETRIES: PerProcess<Mutex<Retries>> =
    PerProcess::new(|| Mutex::new(Retries { when: None, again: BTreeMap::new() }));

/// Shows whether any work is deferred in this process; 0 if none is. The value is the sum of the flags [`HAS_JOBS`] and
/// [`HAS_RETRIES`], and of [`ASIDE`] for each object whose drop a thread has deferred.
static PENDING: AtomicUsize = AtomicUsize::new(0);
const HAS_JOBS: usize = 1;
const HAS_RETRIES: usize = 2;
const ASIDE: usize = 4;

/// The queue of jobs (deferred closures), oldest first. The next call of [`run`] in any thread runs the jobs.
#[derive(Default)]
struct Jobs(Mutex<VecDeque<Job>>);

impl Jobs {
    fn add(&self, job: Job, pending: &AtomicUsize) {
        let mut jobs = unpoisoned(&self.0);
        jobs.push_back(job);
        pending.fetch_or(HAS_JOBS, Ordering::Release);
    }

    fn take(&self, pending: &AtomicUsize) -> Option<Job> {
        let mut jobs = unpoisoned(&self.0);
        if jobs.len() <= 1 {
            pending.fetch_and(!HAS_JOBS, Ordering::AcqRel);
        }
        jobs.pop_front()
    }

    /// Runs the deferred jobs one by one, oldest first, until none is left. `pending` is [`PENDING`], whose flag says
    /// whether there are jobs. A job may call the library, and so call `Jobs::run`. If a job panics, later jobs stay in
    /// the queue until the next call.
    fn run(&self, pending: &AtomicUsize) {
        while pending.load(Ordering::Acquire) & HAS_JOBS != 0 {
            if let Some(job) = self.take(pending) {
                job();
            }
        }
    }
}

/// The failed actions that [`try_later`] has recorded, by name, and the earliest time at which they run again.
struct Retries {
    when: Option<Instant>,
    again: BTreeMap<&'static str, fn()>,
}

/// The shortest time between two rounds of attempts of the failed actions that [`try_later`] has recorded: 10 ms.
const PAUSE: Duration = Duration::from_millis(10);

/// Whether a thread of the library runs the recorded actions.
static HAS_THREAD: PerProcess<AtomicBool> = PerProcess::new(AtomicBool::default);

/// Stack size in bytes of that thread.
const STACK: usize = 256 << 10;

/// The objects of one thread that are to be dropped when the thread holds no lock of the library.
struct Aside {
    things: RefCell<Vec<Box<dyn Any>>>,
    /// Whether the thread is dropping its deferred objects now. If so, a destructor that calls the library does not
    /// begin a second, nested round of drops.
    busy: Cell<bool>,
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.things.get_mut().drain(..).for_each(drop_one);
    }
}

thread_local! {
    static THINGS: Aside = const { Aside { things: RefCell::new(Vec::new()), busy: Cell::new(false) } };
    /// Whether the thread must not run deferred work now, because it holds locks of the library.
    static POSTPONED: Cell<bool> = const { Cell::new(false) };
}

/// Defers the drop of `thing` until the calling thread holds no lock of the library. If the thread is ending, drops
/// `thing` now.
pub(crate) fn drop_later(thing: Box<dyn Any>) {
    let mut thing = Some(thing);
    let _ = THINGS.try_with(|aside| {
        aside.things.borrow_mut().extend(thing.take());
        PENDING.fetch_add(ASIDE, Ordering::Relaxed);
    });
}

fn drop_one(thing: Box<dyn Any>) {
    PENDING.fetch_sub(ASIDE, Ordering::Relaxed);
    drop(thing);
}

/// Defers `job`: the next call of [`run`] in any thread runs the job, when the thread holds no lock of the library.
#[cold]
pub(crate) fn run_later(job: impl FnOnce() + Send + 'static) {
    JOBS.get().add(Box::new(job), &PENDING);
}

/// Records the failed action `again`: after [`PAUSE`] a thread of the library runs the action. If that thread cannot
/// be started, the first call of [`run`], in any thread, after the pause runs the action. The pause begins with the
/// first recorded action and serves all later ones, so actions that keep failing delay no other action. `what` is the
/// action's name: a new action replaces a recorded action of the same name.
#[cold]
pub(crate) fn try_later(what: &'static str, again: fn()) {
    let mut retries = unpoisoned(RETRIES.get());
    if retries.again.is_empty() {
        retries.when = Some(Instant::now() + PAUSE);
    }
    retries.again.insert(what, again);
    PENDING.fetch_or(HAS_RETRIES, Ordering::Release);
    drop(retries);
    // The program may make no further call.
    if !HAS_THREAD.get().swap(true, Ordering::SeqCst) && !background::start(c"strait-retry", STACK, retry) {
        HAS_THREAD.get().store(false, Ordering::SeqCst);
    }
}

/// Runs the recorded actions again and again, until none is left. No event tells that an action would succeed now.
fn retry() {
    /// After a panic in an action, the next failure starts another thread.
    struct AfterPanic;
    impl Drop for AfterPanic {
        fn drop(&mut self) {
            if std::thread::panicking() {
                HAS_THREAD.get().store(false, Ordering::SeqCst);
            }
        }
    }
    let _after_panic = AfterPanic;
    let mut pause = PAUSE;
    loop {
        os::pause(pause);
        pause = (2 * pause).min(blocked_on::POLL_INTERVAL);
        postponed(try_again);
        let retries = unpoisoned(RETRIES.get());
        if retries.again.is_empty() {
            HAS_THREAD.get().store(false, Ordering::SeqCst);
            return;
        }
    }
}

/// Runs `act`, and returns its result; meanwhile the calling thread runs no deferred work. Meant for code that may drop
/// channels while holding locks of the library.
pub(crate) fn postponed<T>(act: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            POSTPONED.with(|postponed| postponed.set(self.0));
        }
    }
    let _restore = Restore(POSTPONED.with(|postponed| postponed.replace(true)));
    act()
}

/// Runs all deferred work that is due: drops the calling thread's deferred objects, tries failed actions again, and
/// runs jobs. Does nothing within [`postponed`]. The caller must hold no lock of the library. Costs one load if no work
/// is deferred.
#[inline]
pub(crate) fn run() {
    if PENDING.load(Ordering::Relaxed) != 0 {
        run_all();
    }
}

/// Runs the deferred work, as [`run`] does, if `result` is an error; returns `result`, the result of a call of the
/// library. The caller must hold no lock of the library.
#[inline]
pub(crate) fn run_if_failed<T, E>(result: Result<T, E>) -> Result<T, E> {
    if result.is_err() {
        run();
    }
    result
}

#[cold]
fn run_all() {
    if POSTPONED.with(Cell::get) {
        return;
    }
    // The deferred work may call the library, and such calls overwrite the record of what the present call was blocked
    // on.
    blocked_on::preserved(|| {
        drop_aside();
        // Some actions receive from all links, so a call of the program leaves them to the thread, if there is one.
        if !HAS_THREAD.get().load(Ordering::Relaxed) {
            try_again();
        }
        JOBS.get().run(&PENDING);
    });
}

/// Drops the objects whose drop the calling thread has deferred, also objects that a destructor defers meanwhile. Does
/// nothing if called from a destructor that `drop_aside` runs.
fn drop_aside() {
    struct Busy;
    impl Drop for Busy {
        fn drop(&mut self) {
            let _ = THINGS.try_with(|aside| aside.busy.set(false));
        }
    }
    if THINGS.try_with(|aside| aside.busy.replace(true)) != Ok(false) {
        return;
    }
    let _busy = Busy;
    // Objects deferred by a destructor are dropped after the destructor.
    while let Ok(Some(thing)) = THINGS.try_with(|aside| aside.things.borrow_mut().pop()) {
        drop_one(thing);
    }
}

/// Runs the failed actions that [`try_later`] has recorded, if their pause is over, and forgets the actions. An action
/// that fails once more must record itself again.
fn try_again() {
    if PENDING.load(Ordering::Acquire) & HAS_RETRIES == 0 {
        return;
    }
    let mut retries = unpoisoned(RETRIES.get());
    if retries.when.is_some_and(|when| when > Instant::now()) {
        return;
    }
    let again = std::mem::take(&mut retries.again);
    retries.when = None;
    PENDING.fetch_and(!HAS_RETRIES, Ordering::AcqRel);
    drop(retries);
    again.into_values().for_each(|again| again());
}

/// The list of objects that the thread still has to drop, for types whose drop may drop further objects of the type.
/// The objects are dropped one after the other, not nested: otherwise a peer could make a chain of objects whose drops
/// overflow the stack.
pub(crate) struct InTurn<T>(RefCell<Option<Vec<T>>>);

impl<T: 'static> InTurn<T> {
    pub(crate) const fn new() -> Self {
        Self(RefCell::new(None))
    }

    /// Returns whether the calling thread is dropping objects of the list `turn` now; `None` if the thread is ending
    /// and has no list any more.
    pub(crate) fn is_at_it(turn: &'static LocalKey<Self>) -> Option<bool> {
        turn.try_with(|turn| turn.0.borrow().is_some()).ok()
    }

    /// Calls `each` with each of `things`, one after the other; `each` drops its argument. If `each` calls `let_go`
    /// again on the same thread, the inner call only adds its `things` to the list `turn`, which the outermost call
    /// processes. Only the outermost call runs `first`, before the first object.
    pub(crate) fn let_go(turn: &'static LocalKey<Self>, things: Vec<T>, first: impl FnOnce(), mut each: impl FnMut(T)) {
        let mut things = Some(things);
        let is_outermost = turn.try_with(|turn| match &mut *turn.0.borrow_mut() {
            Some(waiting) => {
                waiting.extend(things.take().into_iter().flatten());
                false
            }
            none => {
                *none = things.take();
                true
            }
        });
        match is_outermost {
            Ok(true) => {
                first();
                let next = |turn: &Self| turn.0.borrow_mut().as_mut().and_then(Vec::pop);
                while let Ok(Some(thing)) = turn.try_with(next) {
                    each(thing);
                }
                let _ = turn.try_with(|turn| turn.0.take());
            }
            Ok(false) => {}
            // The thread is ending, so its list is gone.
            Err(_) => things.into_iter().flatten().for_each(each),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct Log(Arc<Mutex<Vec<&'static str>>>);

    impl Log {
        fn say(&self, what: &'static str) {
            unpoisoned(&self.0).push(what);
        }

        fn said(&self) -> Vec<&'static str> {
            std::mem::take(&mut unpoisoned(&self.0))
        }
    }

    /// An object of the tests whose destructor records the object's name in a log. First, the destructor defers the
    /// drop of the object in the third field, if there is such an object.
    struct Noisy(Log, &'static str, Option<Box<Noisy>>);

    impl Drop for Noisy {
        fn drop(&mut self) {
            if let Some(next) = self.2.take() {
                drop_later(next);
                run();
            }
            self.0.say(self.1);
        }
    }

    #[test]
    fn a_thing_is_dropped_by_its_thread_and_after_the_one_that_put_it_aside() {
        let log = Log::default();
        let inner = Box::new(Noisy(log.clone(), "inner", None));
        drop_later(Box::new(Noisy(log.clone(), "outer", Some(inner))));
        std::thread::spawn(run).join().unwrap();
        assert_eq!(log.said(), [""; 0]);
        postponed(run);
        assert_eq!(log.said(), [""; 0]);
        assert_eq!(run_if_failed::<_, ()>(Ok(())), Ok(()));
        assert_eq!(log.said(), [""; 0]);
        assert_eq!(run_if_failed::<(), _>(Err(())), Err(()));
        assert_eq!(log.said(), ["outer", "inner"]);
    }

    #[test]
    fn a_thread_that_ends_drops_what_it_has_put_aside() {
        let log = Log::default();
        let thing = Noisy(log.clone(), "at the end", None);
        std::thread::spawn(|| drop_later(Box::new(thing))).join().unwrap();
        assert_eq!(log.said(), ["at the end"]);
    }

    #[test]
    fn jobs_run_in_order_and_those_behind_a_panic_in_the_next_call() {
        let (jobs, pending, log) = (Jobs::default(), AtomicUsize::new(0), Log::default());
        let add = |what| {
            let log = log.clone();
            jobs.add(Box::new(move || log.say(what)), &pending);
        };
        add("first");
        add("second");
        jobs.add(Box::new(|| panic!("as a callback may")), &pending);
        add("behind");
        assert!(catch_unwind(AssertUnwindSafe(|| jobs.run(&pending))).is_err());
        assert_eq!(log.said(), ["first", "second"]);
        jobs.run(&pending);
        assert_eq!((log.said(), pending.into_inner()), (vec!["behind"], 0));
    }

    #[test]
    fn a_job_that_calls_the_library_runs_the_next_one() {
        static JOBS: Jobs = Jobs(Mutex::new(VecDeque::new()));
        static PENDING: AtomicUsize = AtomicUsize::new(0);
        let log = Log::default();
        let (outer, inner) = (log.clone(), log.clone());
        let calls = move || {
            JOBS.run(&PENDING);
            outer.say("outer");
        };
        JOBS.add(Box::new(calls), &PENDING);
        JOBS.add(Box::new(move || inner.say("inner")), &PENDING);
        JOBS.run(&PENDING);
        assert_eq!(log.said(), ["inner", "outer"]);
    }

    #[test]
    fn work_that_calls_the_library_loses_no_note_of_the_call_that_does_it() {
        struct Forgets;
        impl Drop for Forgets {
            fn drop(&mut self) {
                blocked_on::forget();
            }
        }
        drop_later(Box::new(Forgets));
        blocked_on::note(blocked_on::BlockedOn::Lock);
        run();
        assert!(matches!(blocked_on::take(), Some(blocked_on::BlockedOn::Lock)));
    }

    #[test]
    fn a_retry_waits_for_its_pause_and_is_made_once() {
        // Another test may have recorded an action before, whose pause began earlier.
        if !crate::os::alone::is_alone() {
            return;
        }
        static TRIES: AtomicUsize = AtomicUsize::new(0);
        let again = || {
            TRIES.fetch_add(1, Ordering::Relaxed);
        };
        let begin = Instant::now();
        try_later("a test", again);
        while TRIES.load(Ordering::Relaxed) == 0 {
            run();
            assert!(begin.elapsed() < Duration::from_secs(60), "it is never made");
        }
        assert!(begin.elapsed() >= PAUSE);
        assert!(!unpoisoned(RETRIES.get()).again.contains_key("a test"));
    }

    #[test]
    fn an_action_that_keeps_failing_delays_no_other_retry() {
        static TRIES: AtomicUsize = AtomicUsize::new(0);
        let again = || {
            TRIES.fetch_add(1, Ordering::Relaxed);
        };
        let begin = Instant::now();
        try_later("another test", again);
        while TRIES.load(Ordering::Relaxed) == 0 {
            try_later("a failing test", || {});
            run();
            assert!(begin.elapsed() < Duration::from_secs(60), "it is never made");
        }
    }

    #[test]
    fn actions_run_without_a_call_of_the_program_and_after_a_panic_in_another() {
        if !crate::os::alone::is_alone() {
            return;
        }
        static TRIES: AtomicUsize = AtomicUsize::new(0);
        let begin = Instant::now();
        let wait_until = |is_so: &dyn Fn() -> bool| {
            while !is_so() {
                assert!(begin.elapsed() < Duration::from_secs(60), "the thread does not run the actions");
                std::thread::yield_now();
            }
        };
        try_later("a panic", || panic!("as a defect may"));
        wait_until(&|| !HAS_THREAD.get().load(Ordering::SeqCst));
        try_later("a test", || {
            TRIES.fetch_add(1, Ordering::Relaxed);
        });
        wait_until(&|| TRIES.load(Ordering::Relaxed) == 1);
    }

    /// An object of the tests whose destructor drops the next object of a chain.
    struct Chain(Option<Box<Chain>>);

    thread_local! {
        static CHAINS: InTurn<Box<Chain>> = const { InTurn::new() };
        static BEGUN: Cell<usize> = const { Cell::new(0) };
        static GONE: Cell<usize> = const { Cell::new(0) };
    }

    impl Drop for Chain {
        fn drop(&mut self) {
            GONE.set(GONE.get() + 1);
            let next = self.0.take().into_iter().collect();
            InTurn::let_go(&CHAINS, next, || BEGUN.set(BEGUN.get() + 1), drop);
        }
    }

    #[test]
    fn a_row_that_is_longer_than_a_stack_is_let_go_in_turn() {
        let mut row = Chain(None);
        for _ in 0..1_000_000 {
            row = Chain(Some(Box::new(row)));
        }
        drop(row);
        assert_eq!((GONE.get(), BEGUN.get()), (1_000_001, 1));
    }
}
