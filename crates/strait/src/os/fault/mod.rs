//! Fault points: steps at which a test can kill, stop, fork or starve a process, or hold one of its threads. A test can
//! also make system calls fail.
//!
//! The fault points are compiled in only with `--cfg strait_fault_points`. There is a fault point *before* every step
//! that another process can see, and one for every system call, named like the call. The actions of a process between
//! two fault points are invisible to others. So a process that ends anywhere looks as if it had ended at a fault point.
//!
//! A process follows one plan, from the environment variable `STRAIT_FAULT` or from a call of `follow`:
//!
//! | plan | at the `nth` time that this process comes to the point |
//! |---|---|
//! | `kill:<point>:<nth>` | the process is killed |
//! | `stop:<point>:<nth>` | the process is stopped, until another process continues it |
//! | `fork:<point>:<nth>` | the process forks; the child holds every descriptor until it is killed, and the parent is killed at once |
//! | `starve:<point>:<nth>` | the process can open no more descriptors than it has, until `feed`, or for 3 s |
//! | `hold:<point>:<nth>` | the thread waits until `go_on`, or until the process gets another plan |
//! | `fail:<call>:<error>:<nth>` | the call is not made, and fails with this error, such as `EMFILE` |
//!
//! With `:after:<point>` at its end, a plan counts from the first time that the process comes to this other point.

#[cfg(strait_fault_points)]
mod actions;

#[cfg(strait_fault_points)]
pub use on::{feed, follow, go_on, is_past, record, trace};
#[cfg(strait_fault_points)]
pub(crate) use on::{point, refusal};

/// Marks a fault point: a step, visible to other processes, right after the call. Does nothing without `--cfg
/// strait_fault_points`.
#[cfg(not(strait_fault_points))]
#[inline(always)]
pub(crate) fn point(_name: &'static str) {}

#[cfg(strait_fault_points)]
mod on {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU8, Ordering};
    use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
    use std::time::{Duration, Instant};

    use rustix::io::Errno;

    use crate::os::fault::actions as sys;

    /// Name of the environment variable from which the process reads its plan (an action at a fault point) at its first
    /// fault point. The variable is not read if the test has called [`follow`] or [`record`] before.
    const VARIABLE: &str = "STRAIT_FAULT";

    /// Whether fault points have an effect in the process: [`ON`], [`OFF`], or [`UNKNOWN`] until the environment
    /// variable is read.
    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
    /// `UNKNOWN`: the value of `STATE` while the environment variable was not read yet.
    const UNKNOWN: u8 = 0;
    const OFF: u8 = 1;
    const ON: u8 = 2;

    static COURSE: Mutex<Course> = Mutex::new(Course::of(None));

    /// The condition variable on which a held thread waits.
    static HELD: Condvar = Condvar::new();

    /// How long a plan starves the process of descriptors, unless [`feed`] ends the starvation earlier. Longer than any
    /// wait of the library that the program has not asked for.
    const STARVED: Duration = Duration::from_secs(3);

    /// The plan of the process (an action at a fault point), and the fault points that the process has reached.
    struct Course {
        plan: Option<Plan>,
        /// How often the process has reached each fault point since the plan was set or the recording began.
        seen: BTreeMap<&'static str, u32>,
        /// The fault points and system calls that the process has reached while it had no plan, in order, by name.
        trace: Vec<&'static str>,
        /// Whether the process has reached the fault point of its plan as often as the plan says, so that the plan's
        /// action was begun.
        past: bool,
        /// When the plan began to starve the process of descriptors; `None` while the process is not starved.
        starving: Option<Instant>,
        /// Whether the plan holds a thread at its fault point.
        holding: bool,
    }

    impl Course {
        const fn of(plan: Option<Plan>) -> Self {
            Self { plan, seen: BTreeMap::new(), trace: Vec::new(), past: false, starving: None, holding: false }
        }
    }

    struct Plan {
        action: Action,
        point: String,
        nth: u32,
        /// The fault point from which on the plan counts, until the process has come to this point; otherwise `None`.
        after: Option<String>,
    }

    #[derive(Clone, Copy)]
    enum Action {
        Kill,
        Stop,
        Fork,
        Starve,
        Hold,
        Fail(Errno),
    }

    fn course() -> MutexGuard<'static, Course> {
        COURSE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The error numbers that a plan can name, with their names.
    const ERRORS: &[(&str, Errno)] = &[
        ("EACCES", Errno::ACCESS),
        ("EAGAIN", Errno::AGAIN),
        ("EBADF", Errno::BADF),
        ("EBUSY", Errno::BUSY),
        ("ECONNABORTED", Errno::CONNABORTED),
        ("ECONNREFUSED", Errno::CONNREFUSED),
        ("ECONNRESET", Errno::CONNRESET),
        ("EFBIG", Errno::FBIG),
        ("EINTR", Errno::INTR),
        ("EINVAL", Errno::INVAL),
        ("EIO", Errno::IO),
        ("EMFILE", Errno::MFILE),
        ("EMSGSIZE", Errno::MSGSIZE),
        ("ENFILE", Errno::NFILE),
        ("ENOBUFS", Errno::NOBUFS),
        ("ENOENT", Errno::NOENT),
        ("ENOMEM", Errno::NOMEM),
        ("ENOPROTOOPT", Errno::NOPROTOOPT),
        ("ENOSPC", Errno::NOSPC),
        ("ENOSYS", Errno::NOSYS),
        ("ENOTCONN", Errno::NOTCONN),
        ("EPERM", Errno::PERM),
        ("EPIPE", Errno::PIPE),
        ("ESRCH", Errno::SRCH),
        ("ETIMEDOUT", Errno::TIMEDOUT),
        ("ETOOMANYREFS", Errno::TOOMANYREFS),
    ];

    fn parse(plan: &str) -> Option<Plan> {
        let mut parts = plan.split(':');
        let action = parts.next()?;
        let point = parts.next()?.to_owned();
        let action = match action {
            "kill" => Action::Kill,
            "stop" => Action::Stop,
            "fork" => Action::Fork,
            "starve" => Action::Starve,
            "hold" => Action::Hold,
            "fail" => {
                let error = parts.next()?;
                Action::Fail(ERRORS.iter().find(|(name, _)| *name == error)?.1)
            }
            _ => return None,
        };
        let nth = parts.next()?.parse().ok()?;
        let after = match parts.next() {
            None => None,
            Some("after") => Some(parts.next()?.to_owned()),
            Some(_) => return None,
        };
        (parts.next().is_none()).then_some(Plan { action, point, nth, after })
    }

    /// Makes the process follow `plan` from now on. For example, `kill:NAME:2` kills the process when it reaches the
    /// fault point NAME for the second time. Returns `false`, and changes nothing, if `plan` is not valid.
    pub fn follow(plan: &str) -> bool {
        let Some(plan) = parse(plan) else { return false };
        *course() = Course::of(Some(plan));
        HELD.notify_all();
        STATE.store(ON, Ordering::Relaxed);
        true
    }

    /// Makes the process record the fault points reached from now on, without any other action. Drops an earlier plan.
    pub fn record() {
        *course() = Course { trace: Vec::with_capacity(1 << 10), ..Course::of(None) };
        HELD.notify_all();
        STATE.store(ON, Ordering::Relaxed);
    }

    /// Returns the names of the fault points and system calls that the process has reached since the call of
    /// [`record`], in order.
    pub fn trace() -> Vec<&'static str> {
        course().trace.clone()
    }

    /// Returns whether the process has reached the fault point of its plan as often as the plan says, so that the
    /// plan's action was begun.
    pub fn is_past() -> bool {
        course().past
    }

    /// Ends a starvation of descriptors by a plan: sets the process's descriptor limit to its hard limit.
    pub fn feed() {
        sys::feed();
    }

    /// Lets the thread held by a plan go on. Does nothing if no plan holds a thread.
    pub fn go_on() {
        course().holding = false;
        HELD.notify_all();
    }

    /// Waits until no plan holds a thread any more.
    fn hold(mut course: MutexGuard<'_, Course>) {
        course.holding = true;
        while course.holding {
            course = HELD.wait(course).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Marks a fault point: a step, visible to other processes, right after the call. If the plan names this fault
    /// point, carries out the plan's action.
    #[inline]
    pub(crate) fn point(name: &'static str) {
        if STATE.load(Ordering::Relaxed) != OFF {
            reached(name);
        }
    }

    /// Counts the system call named `call`, and returns the error with which the plan makes the call fail now. Returns
    /// `None` if the plan says nothing about the call; the caller must then make the call.
    #[inline]
    pub(crate) fn refusal(call: &'static str) -> Option<Errno> {
        if STATE.load(Ordering::Relaxed) == OFF { None } else { reached(call) }
    }

    #[cold]
    fn reached(name: &'static str) -> Option<Errno> {
        if STATE.load(Ordering::Relaxed) == UNKNOWN {
            let plan = std::env::var(VARIABLE).ok();
            // A test that runs without its fault would prove nothing.
            assert!(plan.is_none_or(|plan| follow(&plan)), "{VARIABLE} holds no plan");
            let _ = STATE.compare_exchange(UNKNOWN, OFF, Ordering::Relaxed, Ordering::Relaxed);
            if STATE.load(Ordering::Relaxed) == OFF {
                return None;
            }
        }
        let mut course = course();
        if let Some(plan) = &mut course.plan
            && plan.after.is_some()
        {
            plan.after.take_if(|after| after == name);
            return None;
        }
        let times = course.seen.entry(name).or_default();
        *times += 1;
        let times = *times;
        if course.starving.is_some_and(|since| since.elapsed() > STARVED) {
            course.starving = None;
            sys::feed();
        }
        if course.plan.is_none() {
            course.trace.push(name);
        }
        let action = course.plan.as_ref().filter(|plan| plan.point == name && plan.nth == times)?.action;
        course.past = true;
        course.starving = matches!(action, Action::Starve).then(Instant::now);
        if let Action::Hold = action {
            hold(course);
            return None;
        }
        // Without the lock, other threads go on, or are stopped, during the action.
        drop(course);
        match action {
            Action::Kill => sys::kill(),
            Action::Stop => sys::stop(),
            Action::Fork => sys::fork_and_die(),
            Action::Starve => sys::starve(),
            Action::Hold => {}
            Action::Fail(errno) => return Some(errno),
        }
        None
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn plans_are_parsed_strictly() {
            let rights =
                ["kill:a step:1", "stop:b:2", "fork:c:3", "starve:d:4", "hold:e:5", "fail:memfd_create:EMFILE:2"];
            for plan in rights {
                for plan in [plan, &format!("{plan}:after:a step")] {
                    assert!(parse(plan).is_some(), "{plan}");
                }
            }
            let wrongs = ["", "kill", "kill:a", "kill:a:b", "kill:a:1:2", "kill:a:1:after", "burn:a:1", "fail:a:1"];
            for wrong in wrongs.into_iter().chain(["kill:a:1:after:b:c", "fail:a:EWHAT:1"]) {
                assert!(parse(wrong).is_none(), "{wrong}");
            }
        }
    }
}
