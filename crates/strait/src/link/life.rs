//! Whether the process at the other end still lives, which its socket does not always tell.
//!
//! A socket hangs up once nobody holds the other end. A process that forked, or gave its end away, may be dead and its socket
//! open. So a link keeps which process it was that greeted, by what the kernel never uses again, and asks for that one where
//! somebody waits long. No descriptor is kept: it is opened for the sleep, and for each question.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::OnceLock;
use std::time::Duration;

use super::Link;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::os::process::{self, Identity};
use crate::os::socket::{self, Beside, Interest, Readiness};
use crate::peer::Peer;
use crate::wake::interrupt::Interruption;

/// How long a sleep lasts before it is worth the while to watch the process as well.
pub(crate) const LONG: Duration = Duration::from_millis(100);

/// The same for one that could be interrupted and has no descriptor for the bell.
const MOMENT: Duration = Duration::from_millis(10);

/// The process that greeted; no identity if it was dead by the time that this was heard.
#[derive(Default)]
pub(super) struct Life(OnceLock<Option<Identity>>);

/// What is known of it.
pub(crate) enum Watch {
    /// It lives, and this descriptor can be watched for its death.
    Lives(OwnedFd),
    Died,
    /// It cannot be asked for.
    Unknown,
}

impl Life {
    /// Takes note of who it is.
    pub(super) fn began(&self, peer: Peer) {
        if let Some(pid) = peer.pid {
            // If it cannot be asked for now, whoever has the number is taken for it.
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

    /// Whether it is known to be dead.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.look(), Watch::Died)
    }
}

impl Link {
    /// What can be watched of the peer's process. If it has died, the link is down.
    pub(crate) fn watch(&self) -> Watch {
        let found = self.life.look();
        if matches!(found, Watch::Died) {
            self.fail(Error::PeerClosed);
        }
        found
    }

    /// Sleeps until the socket is ready, or the peer's process has died (then it has hung up), or the deadline, or an
    /// interruption.
    pub(super) fn sleep(
        &self,
        interest: Interest,
        deadline: Deadline,
        interruption: Interruption<'_>,
    ) -> Result<Readiness, Error> {
        let Some(socket) = self.io.socket() else { return self.io.wait(interest, deadline) };
        let (bell, deadline) = match interruption.bell() {
            None => (None, deadline),
            Some(Ok(bell)) => (Some(bell), deadline),
            // Without one it has to look now and then.
            Some(Err(_)) => (None, Deadline::after(deadline.within(MOMENT))),
        };
        let bell = bell.as_ref().map(|bell| bell.as_fd());
        if interruption.has_come() {
            return Ok(Readiness::default());
        }
        let first = Deadline::after(deadline.within(LONG));
        let found = socket::wait_beside(socket, Beside { bell, process: None }, interest, first)?;
        if found != Readiness::default() || deadline.has_passed() || interruption.has_come() {
            return Ok(found);
        }
        match self.life.look() {
            Watch::Died => Ok(Readiness { hung_up: true, ..found }),
            Watch::Lives(process) => {
                let process = Some(process.as_fd());
                socket::wait_beside(socket, Beside { bell, process }, interest, deadline)
            }
            Watch::Unknown => socket::wait_beside(socket, Beside { bell, process: None }, interest, deadline),
        }
    }
}
