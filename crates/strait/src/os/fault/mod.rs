//! Fault points: the steps at which a test can have this process killed, stopped, forked or starved, and the system
//! calls that it can have refused.
//!
//! Only with the feature `fault-points`; without it nothing of this is compiled in. Every step that another process can
//! see has a point *before* it, every system call has one of its own name, and so what lies between two of them is
//! invisible: a process that ends anywhere looks to others as one that ended at a point.
//!
//! A process follows one plan, which the variable `STRAIT_FAULT` holds, or [`follow`] is given:
//!
//! | plan | at the so many-th time that this process comes to the point |
//! |---|---|
//! | `kill:<point>:<nth>` | it is killed |
//! | `stop:<point>:<nth>` | it is stopped, until somebody continues it |
//! | `fork:<point>:<nth>` | it forks; the child holds every descriptor until it is killed, and the parent is killed at once |
//! | `starve:<point>:<nth>` | it may open no more descriptors than it has, until [`feed`], or for 3 s |
//! | `fail:<call>:<error>:<nth>` | the call is not made, and fails with this error, such as `EMFILE` |

#[cfg(feature = "fault-points")]
mod deeds;

#[cfg(feature = "fault-points")]
pub use on::{feed, follow, is_past, record, trace};
#[cfg(feature = "fault-points")]
pub(crate) use on::{point, refusal};

/// A step that others can see, right before it is taken.
#[cfg(not(feature = "fault-points"))]
#[inline(always)]
pub(crate) fn point(_name: &'static str) {}

#[cfg(feature = "fault-points")]
mod on {
    use std::collections::BTreeMap;
    use std::sync::atomic::{AtomicU8, Ordering};
    use std::sync::{Mutex, MutexGuard, PoisonError};
    use std::time::{Duration, Instant};

    use rustix::io::Errno;

    use crate::os::fault::deeds as sys;

    /// Where the plan of a process that nobody gives one comes from.
    const VARIABLE: &str = "STRAIT_FAULT";

    /// Whether there is anything to do at a point.
    static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);
    /// The variable was not looked at yet.
    const UNKNOWN: u8 = 0;
    const OFF: u8 = 1;
    const ON: u8 = 2;

    static COURSE: Mutex<Course> =
        Mutex::new(Course { plan: None, seen: BTreeMap::new(), trace: Vec::new(), past: false, starving: None });

    /// How long a process is starved at most, if no call of its returns an error that ends it: longer than the library waits for
    /// anything by itself.
    const STARVED: Duration = Duration::from_secs(3);

    /// How far this process has come.
    struct Course {
        plan: Option<Plan>,
        /// How often it came to each point.
        seen: BTreeMap<&'static str, u32>,
        /// The points that it came to, if it has no plan.
        trace: Vec<&'static str>,
        /// Whether it came to that of the plan.
        past: bool,
        /// Since when it is starved.
        starving: Option<Instant>,
    }

    struct Plan {
        action: Action,
        point: String,
        nth: u32,
    }

    #[derive(Clone, Copy)]
    enum Action {
        Kill,
        Stop,
        Fork,
        Starve,
        Fail(Errno),
    }

    fn course() -> MutexGuard<'static, Course> {
        COURSE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The errors that a plan can name.
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
            "fail" => {
                let error = parts.next()?;
                Action::Fail(ERRORS.iter().find(|(name, _)| *name == error)?.1)
            }
            _ => return None,
        };
        let nth = parts.next()?.parse().ok()?;
        (parts.next().is_none()).then_some(Plan { action, point, nth })
    }

    /// Has this process follow a plan from here on; false if it is none.
    pub fn follow(plan: &str) -> bool {
        let Some(plan) = parse(plan) else { return false };
        *course() = Course { plan: Some(plan), seen: BTreeMap::new(), trace: Vec::new(), past: false, starving: None };
        STATE.store(ON, Ordering::Relaxed);
        true
    }

    /// Has this process only write down its steps from here on.
    pub fn record() {
        *course() = Course {
            plan: None,
            seen: BTreeMap::new(),
            trace: Vec::with_capacity(1 << 10),
            past: false,
            starving: None,
        };
        STATE.store(ON, Ordering::Relaxed);
    }

    /// The points that this process came to since it [records](record), one after the other.
    pub fn trace() -> Vec<&'static str> {
        course().trace.clone()
    }

    /// Whether this process came to the point of its plan.
    pub fn is_past() -> bool {
        course().past
    }

    /// Ends a starvation: this process may open as many descriptors as it ever might.
    pub fn feed() {
        sys::feed();
    }

    /// A step that others can see, right before it is taken.
    #[inline]
    pub(crate) fn point(name: &'static str) {
        if STATE.load(Ordering::Relaxed) != OFF {
            reached(name);
        }
    }

    /// The error with which a system call is to fail, if it is to.
    #[inline]
    pub(crate) fn refusal(call: &'static str) -> Option<Errno> {
        if STATE.load(Ordering::Relaxed) == OFF { None } else { reached(call) }
    }

    #[cold]
    fn reached(name: &'static str) -> Option<Errno> {
        if STATE.load(Ordering::Relaxed) == UNKNOWN {
            let plan = std::env::var(VARIABLE).ok();
            // A test that runs without the fault it asked for would pass for nothing.
            assert!(plan.is_none_or(|plan| follow(&plan)), "{VARIABLE} holds no plan");
            let _ = STATE.compare_exchange(UNKNOWN, OFF, Ordering::Relaxed, Ordering::Relaxed);
            if STATE.load(Ordering::Relaxed) == OFF {
                return None;
            }
        }
        let mut course = course();
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
        // Other threads go on, or are stopped, in between.
        drop(course);
        match action {
            Action::Kill => sys::kill(),
            Action::Stop => sys::stop(),
            Action::Fork => sys::fork_and_die(),
            Action::Starve => sys::starve(),
            Action::Fail(errno) => return Some(errno),
        }
        None
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        #[test]
        fn plans_are_parsed_strictly() {
            for plan in ["kill:a step:1", "stop:b:2", "fork:c:3", "starve:d:4", "fail:memfd_create:EMFILE:2"] {
                assert!(parse(plan).is_some(), "{plan}");
            }
            for wrong in ["", "kill", "kill:a", "kill:a:b", "kill:a:1:2", "burn:a:1", "fail:a:1", "fail:a:EWHAT:1"] {
                assert!(parse(wrong).is_none(), "{wrong}");
            }
        }
    }
}
