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

/// Closes the descriptor `fd`, which came from the peer that `payer` stands for, without blocking. If closing the
/// descriptor might block, a thread of the library closes it; until then, the descriptor is charged to the peer.
pub(crate) fn close(fd: OwnedFd, payer: &Payer) {
    if !close::is_harmless(fd.as_fd()) {
        close_elsewhere(fd, payer);
    }
}

/// Closes the descriptor `fd`, which came from a process without an account, without blocking. No peer is charged for
/// the descriptor.
pub(crate) fn close_nobodys(fd: OwnedFd) {
    close(fd, &Payer::default());
}

/// Makes a thread of the library close the descriptor `fd`, also if closing cannot block. Until the descriptor is
/// closed, it is charged to the peer that `payer` stands for.
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

/// A socket to a process that the listener has not accepted yet. If unread packets may be in the socket when this value
/// is dropped, a thread of the library closes the socket: closing it may block, since descriptors in the packets are
/// closed too.
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

/// Removes the packet at the head of the queue of `socket`, without opening the packet's descriptors in this process.
/// `shown` are the packet's bytes, which the caller has read without removing the packet. A thread of the library
/// removes the packet, because dropping its descriptors can take long, and this call waits for that thread. Each peer
/// has at most one such thread at a time.
///
/// # Errors
/// [`Error::BadPeer`] if the thread that removes an earlier packet of this peer still blocks; [`Error::PeerClosed`] if
/// the packet could not be removed; [`Error::System`] if no thread could be started.
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

/// A descriptor that a peer sent and that the program has not taken. Dropping this value closes the descriptor, without
/// blocking.
#[derive(Debug)]
pub(crate) struct ReceivedFd {
    fd: Option<OwnedFd>,
    payer: Payer,
}

impl ReceivedFd {
    pub(crate) fn new(fd: OwnedFd, payer: &Payer) -> Self {
        Self { fd: Some(fd), payer: payer.clone() }
    }

    /// Returns the descriptor. From now on the caller owns it and must close it.
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
