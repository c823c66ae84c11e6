//! The right to drive a reactor, whose drop ends the reactor.

use std::ops::Deref;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use super::Reactor;

/// Drives a [`Reactor`]. When the driver is dropped, the reactor [ends](Reactor::end), so that no task waits in vain.
///
/// A task of a runtime that owns the driver needs nothing more: the runtime drops the task when the runtime ends. The
/// calls of a driver are those of the reactor.
///
/// ```
/// use std::task::{Context, Poll, Waker};
/// use strait::task::{AsyncChannel, Reactor};
/// use strait::{Channel, Error};
/// let reactor = Reactor::new()?;
/// let driver = reactor.driver();
/// let (a, b) = Channel::pair()?;
/// let b = AsyncChannel::new(b, &reactor)?;
/// let mut context = Context::from_waker(Waker::noop());
/// assert!(b.poll_recv(&mut context).is_pending());
/// driver.turn()?;
/// drop(driver);
/// assert!(matches!(b.poll_recv(&mut context), Poll::Ready(Err(Error::ReactorEnded))));
/// // The channel has lost nothing.
/// a.send(b"hello")?;
/// assert_eq!(b.into_inner().recv()?.bytes(), b"hello");
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug)]
pub struct Driver(Reactor);

impl Driver {
    pub(super) fn new(reactor: Reactor) -> Self {
        Self(reactor)
    }
}

impl Deref for Driver {
    type Target = Reactor;

    fn deref(&self) -> &Reactor {
        &self.0
    }
}

impl AsFd for Driver {
    /// Returns the descriptor of the reactor.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for Driver {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // After a driver that polled, the peers need not wake the reactor; the call makes them do so again.
        let _ = self.0.turn();
        self.0.end();
    }
}
