//! How long a call may block.

use std::time::{Duration, Instant};

use crate::error::Error;

/// How long a call may block. Every blocking call takes a deadline; a [`Duration`] from now or an [`Instant`] converts
/// into a deadline.
///
/// If its deadline has passed, a call still succeeds if it need not wait; otherwise the call fails with
/// [`Error::TimedOut`](crate::Error::TimedOut). With [`Deadline::NOW`] the call fails with
/// [`Error::WouldBlock`](crate::Error::WouldBlock) instead. Time is measured by `CLOCK_MONOTONIC`.
///
/// ```
/// use std::time::Duration;
/// let (a, b) = strait::Channel::pair()?;
/// assert!(b.recv_by(Duration::from_millis(1)).is_err());
/// a.send(b"in time")?;
/// assert_eq!(b.recv_by(strait::Deadline::NOW)?.bytes(), b"in time");
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadline(Until);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    Now,
    At(Instant),
    Never,
}

impl Deadline {
    /// The deadline of a call that must not block at all.
    ///
    /// Example: [deadlines](Self).
    pub const NOW: Self = Self(Until::Now);
    /// The deadline of a call that may block without a time limit.
    ///
    /// Example: [a wait for events](crate::wait).
    pub const NEVER: Self = Self(Until::Never);

    /// Returns the deadline that passes after `duration` from now; [`Deadline::NEVER`] if the time is too far away to
    /// be represented.
    pub fn after(duration: Duration) -> Self {
        Instant::now().checked_add(duration).map_or(Self::NEVER, |at| Self(Until::At(at)))
    }

    pub(crate) fn is_now(self) -> bool {
        self.0 == Until::Now
    }

    pub(crate) fn has_passed(self) -> bool {
        match self.0 {
            Until::Now => true,
            Until::Never => false,
            Until::At(at) => Instant::now() >= at,
        }
    }

    /// Checks that the deadline has not passed.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] for [`Deadline::NOW`]; [`Error::TimedOut`] if the deadline has passed.
    #[doc(hidden)]
    pub fn check(self) -> Result<(), Error> {
        match self.has_passed() {
            false => Ok(()),
            true => Err(if self.is_now() { Error::WouldBlock } else { Error::TimedOut }),
        }
    }

    /// Returns the earlier of the deadlines `self` and `other`.
    pub(crate) fn earlier(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Until::Never, _) | (_, Until::Now) => other,
            (Until::Now, _) | (_, Until::Never) => self,
            (Until::At(at), Until::At(other)) => Self(Until::At(at.min(other))),
        }
    }

    /// Returns the time from `now` until the deadline: zero if the deadline has passed, `None` if the deadline never
    /// passes.
    pub(crate) fn remaining(self, now: Instant) -> Option<Duration> {
        match self.0 {
            Until::Now => Some(Duration::ZERO),
            Until::Never => None,
            Until::At(at) => Some(at.saturating_duration_since(now)),
        }
    }

    /// Returns the time from now until the deadline, but at most `limit`; zero if the deadline has passed.
    pub(crate) fn within(self, limit: Duration) -> Duration {
        self.remaining(Instant::now()).map_or(limit, |left| left.min(limit))
    }
}

impl From<Duration> for Deadline {
    fn from(duration: Duration) -> Self {
        Self::after(duration)
    }
}

impl From<Instant> for Deadline {
    fn from(at: Instant) -> Self {
        Self(Until::At(at))
    }
}
