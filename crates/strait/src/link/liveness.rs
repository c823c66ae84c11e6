//! Liveness: whether the process at the other end is alive, which its socket does not always show.
//!
//! A socket hangs up once no process has its other end open. If a process forked or gave its end away, the process may
//! be dead while the socket stays open. So a link stores the identity of the handshake's sender, which the kernel never
//! uses again. A thread in a long wait asks the kernel for this process. No descriptor is retained: a pidfd is opened
//! for the sleep, and for each question.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Link;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::os::fork::Born;
use crate::os::process::{self, Identity};
use crate::os::socket::{self, AlsoWatched, Interest, Readiness};
use crate::peer::Peer;
use crate::wake::interrupt::{Interruption, Sleepers};
use crate::wake::leader::Doing;

/// The shortest time between two questions of a spinning thread to the kernel whether the peer is alive.
const PROBE_EVERY: Duration = Duration::from_millis(10);

/// The length of a sleep from which on the sleeping thread also watches for the death of the peer's process. Watching
/// takes a descriptor.
pub(crate) const LONG: Duration = Duration::from_millis(100);

/// The longest interruptible sleep while this process has no free descriptor for a wake fd. After this time the thread
/// checks itself for an interruption.
const MOMENT: Duration = Duration::from_millis(10);

/// The identity of the peer's process, which sent the first packet of the link. Empty before that packet was seen, or
/// if the kernel did not report the process id; contains `None` if that process was dead by then.
#[derive(Default)]
pub(super) struct Liveness(OnceLock<Option<Identity>>);

/// The answer to the question whether the process at the other end of a link is alive.
pub(crate) enum Watch {
    /// The peer's process is alive. This descriptor (a pidfd) becomes readable at the peer's death.
    Lives(OwnedFd),
    Died,
    /// The kernel cannot say whether the peer's process is alive: it cannot be asked now, or did not report the peer's
    /// process.
    Unknown,
}

impl Liveness {
    /// Stores the identity of the peer's process, if the kernel reported its process id. Called when the peer's first
    /// packet is seen. `inode` is the inode number of a pidfd attached to the packet by the kernel, if any.
    pub(super) fn began(&self, peer: Peer, inode: Option<u64>) {
        if let Some(pid) = peer.pid {
            let identity = match inode {
                Some(inode) => Some(Identity::with_inode(pid, inode)),
                // If the kernel cannot be asked now, the present process with this process id is taken for the peer.
                None => Identity::of(pid).unwrap_or_else(|_| Some(Identity::unproven(pid))),
            };
            let _ = self.0.set(identity);
        }
    }

    fn look(&self) -> Watch {
        let identity = match self.0.get() {
            None => return Watch::Unknown,
            Some(None) => return Watch::Died,
            Some(Some(identity)) => identity,
        };
        match identity.open() {
            Ok(Some(process)) if process::has_ended(process.as_fd()) => Watch::Died,
            Ok(Some(process)) => Watch::Lives(process),
            Ok(None) => Watch::Died,
            Err(_) => Watch::Unknown,
        }
    }

    /// Returns whether the peer's process is known to be dead. `false` if the peer is alive, or if its state is
    /// unknown.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.look(), Watch::Died)
    }

    fn is_stopped(&self) -> bool {
        matches!(self.0.get(), Some(Some(identity)) if identity.is_stopped())
    }
}

/// The state of a link's life: whether the link is down and why, and whether the peer is known to be alive.
pub(super) struct Life {
    /// The error with which the link went down; empty while the link is up. Set before `is_down`.
    reason: OnceLock<Error>,
    /// The first [`Error::BadPeer`] of the link, after which the received attachments were dropped. The link may have
    /// gone down for another reason before.
    broken: OnceLock<Error>,
    is_down: AtomicBool,
    pub(super) process: Liveness,
    pub(super) born: Instant,
    /// The process in which the link was created. A forked child of that process must not use the link.
    pub(super) home: Born,
    /// The time of the last question to the kernel whether the peer is alive, in nanoseconds since the link was created
    /// (`born`).
    probed: AtomicU64,
    idle_timer: IdleTimer,
}

impl Default for Life {
    fn default() -> Self {
        Self {
            reason: OnceLock::new(),
            broken: OnceLock::new(),
            is_down: AtomicBool::new(false),
            process: Liveness::default(),
            born: Instant::now(),
            home: Born::here(),
            probed: AtomicU64::new(0),
            idle_timer: IdleTimer::default(),
        }
    }
}

impl Life {
    /// Returns the error with which the link went down, if the link is down.
    pub(super) fn reason(&self) -> Option<&Error> {
        self.reason.get()
    }
}

/// The idle timer of a link: measures for how long the peer has shown no activity. All times are in nanoseconds since
/// the link was created.
#[derive(Default)]
struct IdleTimer {
    /// Whether an end of the link has noticed activity of the peer since the last check that found no activity.
    heard: AtomicBool,
    /// The time of the last check that found no activity of the peer, in nanoseconds since the link was created; 0
    /// before the first such check.
    looked: AtomicU64,
    /// The earliest time at which the peer's present idle period may have begun, in nanoseconds since the link was
    /// created.
    since: AtomicU64,
}

// If two threads look at once, the change of one may get lost; that does no harm.
impl IdleTimer {
    /// Notes that an end of the link has noticed activity of the peer. Does not read the clock.
    #[inline]
    fn reset(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }

    /// Returns for how long the peer may have been idle at most. The caller has just found no activity of the peer;
    /// `now` is the time of that check, in nanoseconds since the link was created.
    ///
    /// A peer shows activity only now and then: it gives credit after a quarter of a ring. So many checks in a row find
    /// no activity even in a steady flow, but never for long. The idle period begins at the last check without activity
    /// before the latest activity. So a process that sends seldom need not check twice.
    fn lasts(&self, now: u64) -> Duration {
        if self.heard.swap(false, Ordering::Relaxed) {
            self.since.store(self.looked.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.looked.store(now, Ordering::Relaxed);
        Duration::from_nanos(now.saturating_sub(self.since.load(Ordering::Relaxed)))
    }
}

impl Link {
    /// Returns whether the link is down: nothing more will be received over it. Costs one load.
    #[inline]
    pub(crate) fn is_down(&self) -> bool {
        self.life.is_down.load(Ordering::Acquire)
    }

    /// Returns the error with which the link went down; [`Error::PeerClosed`] if the link is up.
    pub(crate) fn reason(&self) -> Error {
        self.life.reason.get().copied().unwrap_or(Error::PeerClosed)
    }

    /// Returns the error of a record whose attachment is missing. `error` names the missing attachment, and is returned
    /// unless the peer was found to be a bad peer before. Then the received attachments were dropped, and the returned
    /// error says why the peer is a bad peer.
    pub(crate) fn missing(&self, error: Error) -> Error {
        self.life.broken.get().copied().unwrap_or(error)
    }

    pub(crate) fn fail(&self, reason: Error) {
        let _ = self.life.reason.set(reason);
        let first = !self.life.is_down.swap(true, Ordering::AcqRel);
        if let Error::BadPeer(broken) = reason {
            let _ = self.life.broken.set(reason);
            self.inbox().clear();
            if first {
                self.ledger.broken(broken, true);
            }
        }
        self.wake_followers();
        if first {
            self.end_notifications();
        }
    }

    /// Shuts the link down with the error `reason`, because the peer broke the protocol in shared memory. The peer sees
    /// a hang-up of the socket.
    pub(crate) fn cut(&self, reason: Error) {
        self.fail(reason);
        self.shut();
    }

    /// Shuts the socket down, so that the peer sees a hang-up. Packets that the peer has sent can still be received.
    pub(crate) fn shut(&self) {
        if let Some(socket) = self.io.socket() {
            crate::os::socket::shut(socket);
        }
    }

    /// Asks the kernel whether the peer is alive, unless this process has asked within the last [`PROBE_EVERY`]. Used
    /// by threads that spin.
    pub(crate) fn probe_if_due(&self) {
        if !self.is_local() && self.is_due() {
            self.probe();
        }
    }

    /// Asks the kernel whether the peer is alive, if the peer may have been idle for [`PROBE_EVERY`] and this process
    /// has not asked meanwhile. `news` says whether the caller, an end of the link, has noticed activity of the peer
    /// since its last check; the call then only resets the idle timer.
    pub(crate) fn probe_if_idle(&self, news: bool) {
        if news {
            self.life.idle_timer.reset();
        } else if !self.is_local() && self.life.idle_timer.lasts(self.age()) >= PROBE_EVERY {
            self.probe_if_due();
        }
    }

    /// Returns whether the peer's process is known to be dead; if so, the link is down from now on. `false` if the
    /// process is alive, even if the link is down, and if the kernel does not say which process the peer is. Asks the
    /// kernel.
    pub(crate) fn has_lost_its_peer(&self) -> bool {
        matches!(self.watch(), Watch::Died)
    }

    /// Returns whether the peer need not wake this process: the link is down, or the peer's process is stopped. Asks
    /// the kernel. For the [check for lost wake-ups](crate::wake::strict).
    pub(crate) fn may_be_silent(&self) -> bool {
        self.probe_if_due();
        self.is_down() || self.life.process.is_stopped()
    }

    /// Returns the time in nanoseconds since the link was created.
    fn age(&self) -> u64 {
        u64::try_from(self.life.born.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn is_due(&self) -> bool {
        let now = self.age();
        let due = now.saturating_sub(self.life.probed.load(Ordering::Relaxed)) >= PROBE_EVERY.as_nanos() as u64;
        if due {
            self.life.probed.store(now, Ordering::Relaxed);
        }
        due
    }

    /// Asks the kernel whether the peer's process is alive and its end of the socket open. If not, the link is down
    /// from now on. Does nothing on a local link and on a link that is down.
    #[cold]
    pub(crate) fn probe(&self) {
        self.ask(true);
    }

    /// As [`Link::probe`], but asks about the process only if this process has not asked within the last
    /// [`PROBE_EVERY`]. That question costs five system calls; whether the socket is open costs one, and tells of most
    /// deaths. For calls that a program makes again and again.
    pub(crate) fn probe_for_less(&self) {
        self.ask(self.is_due());
    }

    fn ask(&self, about_process: bool) {
        if self.is_local() || self.is_down() {
            return;
        }
        // If this process only sends, the peer's identifying first packet may still be unread.
        if !self.peer.is_identified.load(Ordering::Relaxed)
            && let Some(leading) = self.try_lead(Doing::Sleeping)
        {
            if let Err(error) = self.knows_who_it_is()
                && !error.passes()
            {
                self.fail(error);
            }
            self.leave(leading);
        }
        let has_hung_up = || self.io.wait(Interest::Readable, Deadline::NOW).is_ok_and(|found| found.hung_up);
        if has_hung_up() || (about_process && self.life.process.is_over()) {
            self.fail(Error::PeerClosed);
        }
    }

    /// Asks the kernel whether the peer's process is alive, and returns the answer. If the process is dead, the link is
    /// down from now on.
    pub(crate) fn watch(&self) -> Watch {
        let found = self.life.process.look();
        if matches!(found, Watch::Died) {
            self.fail(Error::PeerClosed);
        }
        found
    }

    /// Sleeps until the socket is ready for `interest`, the peer's process dies (returned as a hang-up), the deadline
    /// passes or an interruption comes. Returns what is ready. On a local link returns at once.
    pub(super) fn sleep(
        &self,
        interest: Interest,
        deadline: Deadline,
        interruption: Interruption<'_>,
    ) -> Result<Readiness, Error> {
        let Some(socket) = self.io.socket() else { return self.io.wait(interest, deadline) };
        let (wake_fd, deadline) = match interruption.wake_fd() {
            None => (None, deadline),
            Some(Ok(wake_fd)) => (Some(wake_fd), deadline),
            // Without a wake fd the thread has to look now and then.
            Some(Err(_)) => (None, Deadline::after(deadline.within(MOMENT))),
        };
        let wake_fd = wake_fd.as_ref().map(|wake_fd| wake_fd.as_fd());
        if interruption.has_come() {
            return Ok(Readiness::default());
        }
        let first = Deadline::after(deadline.within(LONG));
        let found = socket::wait_also(socket, AlsoWatched { wake_fd, process: None }, interest, first)?;
        if found != Readiness::default() || deadline.has_passed() || interruption.has_come() {
            return Ok(found);
        }
        match self.life.process.look() {
            Watch::Died => Ok(Readiness { hung_up: true, ..found }),
            Watch::Lives(process) => {
                let process = Some(process.as_fd());
                socket::wait_also(socket, AlsoWatched { wake_fd, process }, interest, deadline)
            }
            Watch::Unknown => socket::wait_also(socket, AlsoWatched { wake_fd, process: None }, interest, deadline),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Shows that a sender that checks every millisecond, and finds activity at every fourth check, sees less than 5 ms
    /// of idle time.
    #[test]
    fn a_peer_that_says_something_now_and_then_is_never_silent_for_long() {
        let idle_timer = IdleTimer::default();
        for at in 0..1000 {
            if at % 4 == 0 {
                idle_timer.reset();
            } else {
                assert!(idle_timer.lasts(at * MS) < Duration::from_millis(5), "at {at} ms");
            }
        }
    }

    /// Shows that a missing attachment is not the peer's fault if this process has dropped the attachments: the peer
    /// died first, and then a thread reported the peer.
    #[test]
    fn a_report_after_the_peers_death_explains_missing_attachments() {
        let link = Link::local(std::sync::Arc::<crate::lane::directory::LaneDirectory>::default());
        let missing = Error::BadPeer("a record that refers to memory which was never sent");
        link.fail(Error::PeerClosed);
        assert_eq!(link.missing(missing), missing);
        link.fail(Error::BadPeer("a report"));
        assert_eq!((link.reason(), link.missing(missing)), (Error::PeerClosed, Error::BadPeer("a report")));
    }

    #[test]
    fn a_peer_that_says_nothing_more_is_silent_since_the_last_look_before() {
        let idle_timer = IdleTimer::default();
        idle_timer.reset();
        assert_eq!(idle_timer.lasts(3 * MS), Duration::from_millis(3));
        idle_timer.reset();
        assert_eq!(idle_timer.lasts(4 * MS), Duration::from_millis(1));
        assert_eq!(idle_timer.lasts(13 * MS), Duration::from_millis(10));
        // If a process sends seldom, it probes at the first look without activity.
        idle_timer.reset();
        assert!(idle_timer.lasts(500 * MS) > PROBE_EVERY);
    }
}
