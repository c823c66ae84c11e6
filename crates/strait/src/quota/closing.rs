//! Closing descriptors that a peer sent and the program did not take, and descriptors of the library's own whose close takes
//! long.
//!
//! A descriptor that is [known](close::is_harmless) to close at once is closed in place. The [reaper](fd_reaper) closes
//! every other descriptor, which stays charged to its peer until then. If the program has taken a descriptor out of a
//! message, the program closes it.

use std::cell::{Cell, RefCell};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{Payer, PendingClose};
use crate::deferred;
use crate::error::Error;
use crate::os::fd_reaper::{self, PacketRemoval};
use crate::os::fork::{Born, PerProcess};
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
/// closed, it is charged to the peer that `payer` stands for. While the calling thread [holds descriptors
/// back](hold_back), `fd` is only stored, and passed to the closing thread once the calling thread stops holding back.
pub(crate) fn close_elsewhere(fd: OwnedFd, payer: &Payer) {
    let closing = Closing { fd, account: payer.number(), charge: payer.charge_pending_close() };
    let mut closing = Some(closing);
    let _ = HELD_BACK.try_with(|held| {
        if held.depth.get() > 0 {
            held.descriptors.borrow_mut().extend(closing.take());
        }
    });
    closing.into_iter().for_each(Closing::pass_on);
}

/// The number of the account under which the reaper closes descriptors of the library's own. No peer has it, so no peer's
/// descriptor holds up their thread.
const OWN: usize = usize::MAX - 1;

/// The most descriptors of the library's own that wait until a thread closes them. The kernel limits inotify instances, for
/// example, for all processes of a user together.
const MOST_OWN: usize = 8;

/// The number of descriptors of the library's own that wait until a thread closes them.
static OWN_WAITING: PerProcess<AtomicUsize> = PerProcess::new(|| AtomicUsize::new(0));

/// A descriptor of the library's own that waits to be closed. Counted until this value is dropped.
struct OwnClose;

impl Drop for OwnClose {
    fn drop(&mut self) {
        OWN_WAITING.get().fetch_sub(1, Ordering::Relaxed);
    }
}

/// Closes `fd`, a descriptor of the library's own whose close takes long: a thread of the library closes it. If
/// [`MOST_OWN`] descriptors wait for that thread already, this call closes `fd` itself.
pub(crate) fn close_own(fd: OwnedFd) {
    let waiting = OWN_WAITING.get().fetch_add(1, Ordering::Relaxed);
    let count = OwnClose;
    if waiting < MOST_OWN && !fd_reaper::close(fd, OWN, Box::new(count)) {
        deferred::try_later("closing", start_again);
    }
}

/// A descriptor that a thread of the library is to close, with the number of the account that is charged for it and
/// with the charge.
struct Closing {
    fd: OwnedFd,
    account: usize,
    charge: PendingClose,
}

impl Closing {
    fn pass_on(self) {
        if !fd_reaper::close(self.fd, self.account, Box::new(self.charge)) {
            deferred::try_later("closing", start_again);
        }
    }
}

/// The descriptors that one thread holds back: passed to [`close_elsewhere`], and not handed to another thread yet.
struct HeldBack {
    /// The number of [`HoldingBack`] guards of this thread.
    depth: Cell<usize>,
    descriptors: RefCell<Vec<Closing>>,
}

thread_local! {
    static HELD_BACK: HeldBack = const { HeldBack { depth: Cell::new(0), descriptors: RefCell::new(Vec::new()) } };
}

/// A guard of [`hold_back`]. Until the guard is dropped, its thread holds back the descriptors to be closed.
pub(crate) struct HoldingBack(());

/// Makes the calling thread hold back the descriptors passed to [`close_elsewhere`], until the returned guard is
/// dropped; nested guards count as one.
///
/// A thread holds descriptors back while it takes a packet. The packet in the socket refers to the same open files as
/// the descriptors that the kernel has opened for this process. If another thread closed such a descriptor before the
/// packet is removed, the removal would be the last close of that file, and would block this thread as long as the
/// sender likes.
pub(crate) fn hold_back() -> HoldingBack {
    let _ = HELD_BACK.try_with(|held| held.depth.set(held.depth.get() + 1));
    HoldingBack(())
}

impl Drop for HoldingBack {
    fn drop(&mut self) {
        let end = |held: &HeldBack| {
            held.depth.set(held.depth.get() - 1);
            if held.depth.get() == 0 { held.descriptors.take() } else { Vec::new() }
        };
        HELD_BACK.try_with(end).into_iter().flatten().for_each(Closing::pass_on);
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
/// removes the packet, because dropping the packet's descriptors can take long; this call waits for that thread. Each
/// peer has at most one such thread at a time.
///
/// # Errors
/// [`Error::BadPeer`] if the thread that removes an earlier packet of this peer still blocks; [`Error::PeerClosed`] if
/// the packet could not be removed; [`Error::System`] if no thread could be started.
pub(crate) fn take_elsewhere(socket: Arc<OwnedFd>, shown: &[u8], payer: &Payer) -> Result<(), Error> {
    // Every link whose packets are taken has a peer that is charged.
    let Some(mut last) = payer.taking() else { return Err(Error::PeerClosed) };
    if last.as_ref().is_some_and(|last| !last.comes_back()) {
        return Err(Error::BadPeer("descriptors that take longer to close than to send"));
    }
    let taking = PacketRemoval::begin(socket, shown)?;
    *last = Some(taking.clone());
    drop(last);
    if taking.wait(shown) { Ok(()) } else { Err(Error::PeerClosed) }
}

/// A descriptor that a peer sent and that the program has not taken. Dropping this value closes the descriptor without
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

    /// Returns the descriptor. From now on the caller owns the descriptor and must close it.
    pub(crate) fn into_fd(mut self) -> OwnedFd {
        self.fd.take().expect("taken once")
    }
}

impl AsRawFd for ReceivedFd {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::deadline::Deadline;
    use crate::os::socket::Interest;

    fn is_closed(reader: &std::io::PipeReader, limit: Duration) -> bool {
        socket::wait(reader.as_fd(), Interest::Readable, Deadline::after(limit)).unwrap().hung_up
    }

    #[test]
    fn what_a_thread_holds_back_is_closed_after_its_last_guard() {
        let (reader, writer) = std::io::pipe().unwrap();
        let outer = hold_back();
        let inner = hold_back();
        close_nobodys(writer.into());
        drop(inner);
        assert!(!is_closed(&reader, Duration::from_millis(50)));
        drop(outer);
        assert!(is_closed(&reader, Duration::from_secs(60)));
    }
}
