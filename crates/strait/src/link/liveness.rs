//! Liveness: whether the process at the other end is alive, which its socket does not always tell.
//!
//! A socket hangs up once no process has its other end open. A process that forked, or gave its end away, may be dead
//! while the socket stays open. So a link stores which process sent the handshake, by an identity that the kernel never
//! uses again. A thread that waits long asks for that process. No descriptor is retained: one is opened for the sleep,
//! and for each question.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use super::Link;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::os::process::{self, Identity};
use crate::os::socket::{self, AlsoWatched, Interest, Readiness};
use crate::peer::Peer;
use crate::wake::interrupt::Interruption;

/// The length of a sleep from which on the sleeping thread also watches for the death of the peer's process. Watching
/// takes a descriptor.
pub(crate) const LONG: Duration = Duration::from_millis(100);

/// The longest sleep that must be interruptible while this process has no free descriptor for a wake fd. After this
/// time the thread checks itself for an interruption.
const MOMENT: Duration = Duration::from_millis(10);

/// The identity of the peer's process, which sent the first packet of the link. Empty before that packet was seen, or
/// if the kernel did not report the process id; contains `None` if that process was dead by then.
#[derive(Default)]
pub(super) struct Liveness(OnceLock<Option<Identity>>);

/// The answer to the question whether the process at the other end of a link is alive.
pub(crate) enum Watch {
    /// The peer's process is alive. This descriptor (a pidfd) becomes readable at its death.
    Lives(OwnedFd),
    Died,
    /// The kernel cannot say whether the peer's process is alive: it cannot be asked now, or did not report which
    /// process the peer is.
    Unknown,
}

impl Liveness {
    /// Stores the identity of the peer's process, if the kernel reported its process id. Called when the peer's first
    /// packet is seen.
    pub(super) fn began(&self, peer: Peer) {
        if let Some(pid) = peer.pid {
            // If the kernel cannot be asked now, the process that has this process id is taken for the peer.
            let _ = self.0.set(Identity::of(pid).unwrap_or_else(|_| Some(Identity::unproven(pid))));
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

    /// Returns whether the peer's process is known to be dead. `false` if it is alive, or if this is not known.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.look(), Watch::Died)
    }
}

impl Link {
    /// Asks the kernel whether the peer's process is alive, and returns the answer. If the process is dead, the link is
    /// down from now on.
    pub(crate) fn watch(&self) -> Watch {
        let found = self.liveness.look();
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
        match self.liveness.look() {
            Watch::Died => Ok(Readiness { hung_up: true, ..found }),
            Watch::Lives(process) => {
                let process = Some(process.as_fd());
                socket::wait_also(socket, AlsoWatched { wake_fd, process }, interest, deadline)
            }
            Watch::Unknown => socket::wait_also(socket, AlsoWatched { wake_fd, process: None }, interest, deadline),
        }
    }
}
