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
use crate::peer::Peer;
use crate::sys::process::{self, Identity};
use crate::sys::socket::{self, Interest, Readiness};

/// How long a sleep lasts before it is worth the while to watch the process as well.
pub(crate) const LONG: Duration = Duration::from_millis(100);

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

    /// Sleeps until the socket is ready, or the peer's process has died (then it has hung up), or the deadline.
    pub(super) fn sleep(&self, interest: Interest, deadline: Deadline) -> Result<Readiness, Error> {
        let first = Deadline::after(deadline.within(LONG));
        let found = self.io.wait(interest, first)?;
        if found.readable || found.writable || found.hung_up || deadline.has_passed() {
            return Ok(found);
        }
        match (self.life.look(), self.io.socket()) {
            (Watch::Died, _) => Ok(Readiness { hung_up: true, ..found }),
            (Watch::Lives(process), Some(socket)) => socket::wait_beside(socket, process.as_fd(), interest, deadline),
            _ => self.io.wait(interest, deadline),
        }
    }
}
