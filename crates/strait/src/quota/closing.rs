//! Closing descriptors that a peer sent and the program did not take.
//!
//! A descriptor that is [known](close::is_harmless) to close at once is closed in place. The [reaper](fd_reaper) closes any
//! other one, which is charged to its peer until then. If the program has taken a descriptor out of a message, the program
//! closes it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::Payer;
use crate::deferred;
use crate::error::Error;
use crate::os::fd_reaper::{self, PacketRemoval};
use crate::os::fork::Born;
use crate::os::{close, socket};

/// Closes a descriptor that came from this peer. Does not block: if closing might, a thread closes the descriptor,
/// which is charged to the peer until then.
pub(crate) fn close(fd: OwnedFd, payer: &Payer) {
    if !close::is_harmless(fd.as_fd()) {
        close_elsewhere(fd, payer);
    }
}

/// Closes a descriptor that came from a process of which nothing is known. Does not block.
pub(crate) fn close_nobodys(fd: OwnedFd) {
    close(fd, &Payer::default());
}

/// Makes a thread close a descriptor, whether or not closing might block. It is charged to the peer until then.
pub(crate) fn close_elsewhere(fd: OwnedFd, payer: &Payer) {
    if !fd_reaper::close(fd, payer.number(), Box::new(payer.charge_pending_close())) {
        deferred::try_later("closing", start_again);
    }
}

fn start_again() {
    if !fd_reaper::start_again() {
        deferred::try_later("closing", start_again);
    }
}

/// A socket of a process that was not accepted yet. If unread packets may be in it, dropping this value makes a thread
/// close the socket.
pub(crate) struct Unread {
    socket: Option<OwnedFd>,
    born: Born,
}

impl Unread {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket: Some(socket), born: Born::here() }
    }

    pub(crate) fn into_fd(mut self) -> OwnedFd {
        self.socket.take().expect("taken once")
    }
}

impl AsFd for Unread {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_ref().expect("not taken yet").as_fd()
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        if let Some(socket) = self.socket.take()
            && !self.born.is_elsewhere()
            && !socket::ends_empty(socket.as_fd())
        {
            close_elsewhere(socket, &Payer::default());
        }
    }
}

/// Removes the packet at the head of a socket's queue, with descriptors that were not opened in this process. `shown`
/// are its bytes as they were looked at. A thread does this, because dropping the descriptors can take long. Each peer
/// has one such thread at a time.
///
/// # Errors
/// [`Error::BadPeer`] if the thread for the peer's last such packet has not come back; [`Error::PeerClosed`] if the
/// packet could not be removed; [`Error::System`] if no thread could be started.
pub(crate) fn take_elsewhere(socket: Arc<OwnedFd>, shown: &[u8], payer: &Payer) -> Result<(), Error> {
    // A link has a peer that is charged; without one there is no such link.
    let Some(mut last) = payer.taking() else { return Err(Error::PeerClosed) };
    if last.as_ref().is_some_and(|last| !last.comes_back()) {
        return Err(Error::BadPeer("descriptors that take longer to close than to send"));
    }
    let taking = PacketRemoval::begin(socket, shown)?;
    *last = Some(taking.clone());
    drop(last);
    if taking.wait(shown) { Ok(()) } else { Err(Error::PeerClosed) }
}

/// A descriptor that a peer sent and that has no owner yet. Dropping this value closes it, without blocking.
#[derive(Debug)]
pub(crate) struct ReceivedFd {
    fd: Option<OwnedFd>,
    payer: Payer,
}

impl ReceivedFd {
    pub(crate) fn new(fd: OwnedFd, payer: &Payer) -> Self {
        Self { fd: Some(fd), payer: payer.clone() }
    }

    /// Takes the descriptor: from now on the caller owns it.
    pub(crate) fn into_fd(mut self) -> OwnedFd {
        self.fd.take().expect("taken once")
    }
}

impl AsFd for ReceivedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("not taken yet").as_fd()
    }
}

impl Drop for ReceivedFd {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            close(fd, &self.payer);
        }
    }
}
