//! How a link moves packets: by a socket between processes. The link of a process to itself moves none.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::packet::{PACKET, Packet};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::os::call_thread::NoResult;
use crate::os::fault;
use crate::os::fork::Born;
use crate::os::socket::credentials::{self, Next, Sender};
use crate::os::socket::{self, Beside, Interest, Readiness, ReceivedPacket, Sent};
use crate::quota::closing::{self, ReceivedFd};
use crate::quota::{Ledger, OverLimit, Payer};
use crate::shm::{Mapping, Shareable, Sizes};
use crate::sync::unpoisoned;

/// The attachments of a packet about to be sent, in this order: memory, sealed memory with a handle table, and other
/// descriptors.
#[derive(Clone, Copy)]
pub(crate) struct Attachments<'a> {
    pub(crate) memory: Option<&'a Shareable>,
    pub(crate) table: Option<BorrowedFd<'a>>,
    pub(crate) descriptors: &'a [BorrowedFd<'a>],
}

impl<'a> Attachments<'a> {
    pub(crate) const NOTHING: Self = Self { memory: None, table: None, descriptors: &[] };

    pub(crate) fn memory(memory: &'a Shareable) -> Self {
        Self { memory: Some(memory), ..Self::NOTHING }
    }

    pub(crate) fn descriptors(descriptors: &'a [BorrowedFd<'a>]) -> Self {
        Self { descriptors, ..Self::NOTHING }
    }

    /// Returns the number of attachments; each is one descriptor.
    pub(crate) fn len(&self) -> usize {
        let memories = usize::from(self.memory.is_some()) + usize::from(self.table.is_some());
        memories + self.descriptors.len()
    }

    /// Splits off the first descriptors, as many as do not fit into one packet with the other attachments.
    pub(crate) fn split_ahead(self) -> (&'a [BorrowedFd<'a>], Self) {
        let (ahead, descriptors) = self.descriptors.split_at(self.len().saturating_sub(socket::SCM_MAX_FD));
        (ahead, Self { descriptors, ..self })
    }
}

/// An attachment received with a packet: a descriptor of memory, of a socket or of a handle.
#[derive(Debug)]
pub(crate) struct ReceivedAttachment(pub(crate) ReceivedFd);

impl ReceivedAttachment {
    /// Maps the memory of this received attachment, and charges the peer's account for it; `over_limit` says what
    /// happens if the charge exceeds a limit. Fails with [`Error::BadPeer`] if the memory's size in bytes is not in
    /// `sizes`.
    pub(crate) fn map(&self, sizes: Sizes, ledger: &Arc<Ledger>, over_limit: OverLimit) -> Result<Arc<Mapping>, Error> {
        Mapping::received(self.0.as_fd(), sizes, ledger, over_limit)
    }

    /// Maps the memory of this received attachment, like [`ReceivedAttachment::map`]; the memory must be immutable.
    /// Fails with [`Error::BadPeer`] also if any process could still change the memory.
    pub(crate) fn map_immutable(
        &self,
        sizes: Sizes,
        ledger: &Arc<Ledger>,
        over_limit: OverLimit,
    ) -> Result<Arc<Mapping>, Error> {
        Mapping::received_immutable(self.0.as_fd(), sizes, ledger, over_limit)
    }

    /// Gives the descriptor of this received attachment to `mapping`, the mapping of the attachment's sealed memory.
    /// The mapping retains the descriptor of large memory if `ledger` has room for it; otherwise the descriptor is
    /// closed.
    pub(crate) fn leave_descriptor(self, mapping: &Mapping, ledger: &Arc<Ledger>) {
        mapping.retain_descriptor(self.0.into_fd(), ledger);
    }

    /// Closes the descriptor of this received attachment, after the memory was mapped. The close cannot block, because
    /// the mapping keeps the memory alive.
    pub(crate) fn close_mapped(self) {
        drop(self.0.into_fd());
    }
}

/// The result of a look for the next packet in a link's socket: a packet, nothing or a hang-up.
pub(crate) enum Incoming {
    Packet {
        packet: Packet,
        /// The attachments that were received with the packet. If this process had no free descriptors, there are fewer
        /// handles than the peer sent.
        attachments: Vec<ReceivedAttachment>,
        /// The number of wake-ups after the packet, which is a wake-up, that were removed from the socket with it.
        more_wakes: usize,
    },
    Empty,
    HungUp,
}

/// The transport of a link's packets: a socket to another process; or, on the link of this process to itself, nothing.
/// No method blocks except `wait`.
pub(crate) trait Io: Send + Sync {
    /// Sends a packet with all its attachments, or sends nothing at all. Does not block. The returned [`Sent`] says
    /// whether the packet was sent; if not, whether the socket was full, the kernel had no memory for the packet, or
    /// the peer has hung up. Every other failure is an error.
    fn send(&self, packet: &Packet, attachments: Attachments<'_>) -> Result<Sent, Error>;
    /// Returns the next packet with its attachments. The packet stays in the socket until [`take`](Self::take). If the
    /// packet brings memory and this process has no free descriptor, fails with [`Error::NoDescriptors`], because the
    /// kernel would drop the memory. If `refusing` (this process accepts no handles over the link), the kernel drops
    /// the handles of messages, and no handles are returned. From a socket that another process made, the call itself
    /// removes the packets that `takes` says; [`take`](Self::take) then does nothing.
    fn receive(&self, refusing: bool, takes: Takes) -> Result<Incoming, Error>;
    /// Removes from the socket the packet that [`receive`](Self::receive) returned last; the caller has processed this
    /// packet, and passes it as `packet`. If the packet needs a thread for its removal, and no thread can be started,
    /// the next look at the socket removes the packet. Fails if the socket gives another packet. Every error of this
    /// call is permanent.
    fn take(&self, packet: &Packet) -> Result<(), Error>;
    /// Returns the sender of the next packet, and leaves the packet in the socket; `None` if no packet is there.
    fn next_sender(&self) -> Result<Option<Next>, Error> {
        Ok(None)
    }
    /// Returns the sender of the first packet, which is the packet `next`, and the inode number of a pidfd of the
    /// sender, if known. From then on, the kernel attaches credentials to no later packet; but on a socket that another
    /// process made, credentials come with every packet. Returns `None` if another process has taken the packet.
    fn first_sender(&self, _next: Next) -> Result<Option<(Sender, Option<u64>)>, Error> {
        Ok(None)
    }
    /// Checks that the socket really has no packet, after [`receive`](Self::receive) has returned none. A process with
    /// a copy of the socket can make it hide packets.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if the socket may have hidden packets.
    fn check_nothing(&self) -> Result<(), Error>;
    /// Sleeps until a packet can be received or sent (`interest` selects), the peer has hung up, or the deadline
    /// passes. Returns what is ready. On a local link returns at once.
    fn wait(&self, interest: Interest, deadline: Deadline) -> Result<Readiness, Error>;
    /// Creates zeroed memory of `len` bytes for sending over this link. The memory shows as `name` in `/proc`.
    fn memory(&self, name: &str, len: usize) -> Result<Shareable, Error>;
    /// Returns the link's socket; `None` on the link of a process to itself.
    fn socket(&self) -> Option<BorrowedFd<'_>>;
}

/// The socket of a link to another process: a connected `SOCK_SEQPACKET` socket.
pub(crate) struct Socket {
    /// The socket's descriptor; `None` only while this `Socket` is being dropped.
    fd: Option<Arc<OwnedFd>>,
    /// Whether the last packet from [`Io::receive`] has unreceived descriptors. Removing the packet from the socket
    /// then closes those descriptors.
    has_more: AtomicBool,
    /// Whether the last packet from [`Io::receive`] was removed from the socket already.
    is_taken: AtomicBool,
    /// The packet at the head of the socket, if it was processed and could not be removed for lack of a thread.
    unremoved: Mutex<Option<Packet>>,
    /// The ledger of the link (this link's part of the peer's account), which charges the peer for attachments received
    /// over the socket.
    ledger: Arc<Ledger>,
    born: Born,
}

impl Socket {
    pub(crate) fn new(socket: OwnedFd, ledger: Arc<Ledger>) -> Self {
        let (has_more, is_taken) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { fd: Some(Arc::new(socket)), has_more, is_taken, unremoved: Mutex::default(), ledger, born: Born::here() }
    }

    /// Returns whether another process made the socket, and sent it to this process with an introduction. The maker may
    /// have kept a copy. While a thread of the maker holds the lock of the socket, for as long as the maker likes, each
    /// `setsockopt` on the socket blocks. So this process sets no option of the socket.
    fn is_received(&self) -> bool {
        self.ledger.introducer().is_some()
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("closed when it is dropped").as_fd()
    }

    /// Calls `call` with the socket, and returns the result. If another process made the socket, a call thread makes
    /// the call: a process with a copy of the socket can block each receive. The call then takes some 250 ms at most.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if the call, or an earlier call for the introducer, has not returned in time;
    /// [`Error::System`] if no thread could be started.
    fn receive_by<T: Send + 'static>(
        &self,
        call: impl FnOnce(BorrowedFd<'_>) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let Some(calls) = self.ledger.introducer().and_then(Payer::peer_calls) else { return Ok(call(self.fd())) };
        let socket = self.fd.clone().expect("closed when it is dropped");
        calls.call(move || call(socket.as_fd())).map_err(|none| match none {
            NoResult::Blocked => {
                self.ledger.note_that_introducer_blocks();
                Error::BadPeer(BLOCKS)
            }
            NoResult::NoThread => Error::System { call: "clone", code: libc::EAGAIN },
        })
    }

    /// Removes the packet at the head of the socket, which is the packet `shown`.
    ///
    /// # Errors
    /// A temporary error if no thread could be started for the removal. Every other error is permanent.
    fn remove(&self, shown: &Packet) -> Result<(), Error> {
        if let Some(socket) = self.fd.as_ref().filter(|_| self.has_more.load(Ordering::Relaxed)) {
            return closing::take_elsewhere(socket.clone(), &shown.encode(), &self.ledger.payer());
        }
        let shown = *shown;
        self.receive_by(move |socket| take_shown(socket, &shown))?
    }

    /// Removes the packet that was processed before and could not be removed; does nothing without such a packet. Fails
    /// as [`remove`](Self::remove) does.
    fn remove_processed(&self) -> Result<(), Error> {
        let mut unremoved = unpoisoned(&self.unremoved);
        let Some(packet) = *unremoved else { return Ok(()) };
        match self.remove(&packet) {
            Err(error) if error.passes() => Err(error),
            removed => {
                *unremoved = None;
                removed
            }
        }
    }

    /// Returns whether a receive would find anything, as far as the kernel knows without a receive: a packet, or a
    /// hang-up. Returns `true` without a question for a socket that this process made: then the receive itself is
    /// cheap.
    fn has_something(&self) -> Result<bool, Error> {
        Ok(!self.is_received() || self.wait(Interest::Readable, Deadline::NOW)? != Readiness::default())
    }

    /// Returns the next packet in the socket with its attachments, and leaves the packet there. If `refusing` (this
    /// process accepts no handles over the link), the handles of messages are not received. If the packet's memory
    /// cannot be received for lack of free descriptors, sets `needed` to the number of descriptors that the memory
    /// needs.
    fn look(&self, refusing: bool, takes: Takes, needed: &Cell<usize>) -> Result<Incoming, Error> {
        if !self.has_something()? {
            return Ok(Incoming::Empty);
        }
        let is_received = self.is_received();
        let Look { bytes, descriptors, found, is_taken, more_wakes } =
            self.receive_by(move |socket| Look::at(socket, refusing, takes, is_received))??;
        match found {
            ReceivedPacket::Empty => Ok(Incoming::Empty),
            ReceivedPacket::HungUp => Ok(Incoming::HungUp),
            ReceivedPacket::Packet { len, truncated, descriptors_lost, has_more, lacks_credentials } => {
                let packet = (len == PACKET && !truncated).then(|| Packet::decode(&bytes)).flatten();
                let payer = self.ledger.payer();
                let attachments: Vec<_> = descriptors.into_iter().map(|fd| ReceivedFd::new(fd, &payer)).collect();
                let packet = match packet {
                    None => return Err(Error::BadPeer("an invalid packet")),
                    Some(_) if has_more => {
                        return Err(Error::BadPeer("a packet with control data that was not asked for"));
                    }
                    Some(_) if lacks_credentials => {
                        return Err(Error::BadPeer("a packet without the credentials of its sender"));
                    }
                    Some(packet) => packet,
                };
                let expected = packet.descriptors() as usize;
                if attachments.len() > expected || (attachments.len() < expected && !descriptors_lost) {
                    return Err(Error::BadPeer("a packet with other descriptors than announced"));
                }
                if attachments.len() < packet.memories() {
                    needed.set(packet.memories());
                    return Err(Error::NoDescriptors);
                }
                self.has_more.store(attachments.len() < expected, Ordering::Relaxed);
                self.is_taken.store(is_taken, Ordering::Relaxed);
                let attachments = attachments.into_iter().map(ReceivedAttachment).collect();
                Ok(Incoming::Packet { packet, attachments, more_wakes })
            }
        }
    }
}

/// The reason for the end of a link whose introducer blocks the receives from a socket of its making.
pub(super) const BLOCKS: &str = "an introduced socket from which another process keeps this process from receiving";

/// The most further wake-ups that one look removes together with a wake-up.
const MOST_WAKES: usize = 31;

/// The packets that [`Io::receive`] may remove from the socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Takes {
    /// The call removes no packet: the caller looks at the packet, and does not process it.
    Nothing,
    /// The call may remove a packet whose processing cannot fail for lack of a resource.
    PacketsThatNeedNothing,
}

/// The result of a look at the next packet in a socket.
struct Look {
    bytes: [u8; PACKET],
    descriptors: Vec<OwnedFd>,
    found: ReceivedPacket,
    /// Whether the look has removed the packet from the socket.
    is_taken: bool,
    /// The number of further wake-ups that the look has removed from the socket.
    more_wakes: usize,
}

impl Look {
    /// Looks at the next packet in `socket`. If `refusing`, the handles of messages are not received. If another
    /// process made the socket (`is_received`), each packet comes with credentials; and the look removes the packets
    /// that `takes` says. A second call for the removal would take longer.
    fn at(socket: BorrowedFd<'_>, refusing: bool, takes: Takes, is_received: bool) -> Result<Self, Error> {
        let (mut bytes, mut descriptors, mut most) = ([0; PACKET], Vec::new(), socket::SCM_MAX_FD);
        let beside = if is_received { Beside::Credentials } else { Beside::Nothing };
        if refusing {
            // The memory comes first; the receive has no room for any other attachment.
            most = match socket::look(socket, &mut bytes, &mut descriptors, 0, beside)? {
                found @ (ReceivedPacket::Empty | ReceivedPacket::HungUp) => {
                    return Ok(Self { bytes, descriptors, found, is_taken: false, more_wakes: 0 });
                }
                ReceivedPacket::Packet { len: PACKET, .. } => {
                    Packet::decode(&bytes).map_or(0, |packet| packet.memories())
                }
                ReceivedPacket::Packet { .. } => 0,
            };
        }
        let found = socket::look(socket, &mut bytes, &mut descriptors, most, beside)?;
        let is_plain = matches!(found, ReceivedPacket::Packet { len: PACKET, truncated: false, .. });
        let needs_nothing = |packet: &Packet| {
            matches!(packet, Packet::Wake | Packet::Retire { .. } | Packet::Absent { .. } | Packet::Handshake { .. })
        };
        let is_taken = is_received
            && takes == Takes::PacketsThatNeedNothing
            && is_plain
            && descriptors.is_empty()
            && Packet::decode(&bytes).filter(needs_nothing).is_some_and(|packet| take_shown(socket, &packet).is_ok());
        let mut more_wakes = 0;
        if is_taken && Packet::decode(&bytes) == Some(Packet::Wake) {
            // Further wake-ups say nothing more.
            let is_wake = |bytes: &[u8; PACKET]| Packet::decode(bytes) == Some(Packet::Wake);
            let mut next = [0; PACKET];
            while more_wakes < MOST_WAKES
                && socket::next_is_plain(socket, &mut next)
                && is_wake(&next)
                && take_shown(socket, &Packet::Wake).is_ok()
            {
                more_wakes += 1;
            }
        }
        Ok(Self { bytes, descriptors, found, is_taken, more_wakes })
    }
}

/// Removes the next packet from `socket`, which must be the packet `shown`, without its descriptors.
fn take_shown(socket: BorrowedFd<'_>, shown: &Packet) -> Result<(), Error> {
    let mut bytes = [0; PACKET];
    let len = socket::take(socket, &mut bytes)?;
    let taken = (len == PACKET).then(|| Packet::decode(&bytes)).flatten();
    // A process with a copy of the socket can also receive from the socket, and so can make a peek show a packet other
    // than the next packet.
    if taken == Some(*shown) {
        Ok(())
    } else {
        Err(Error::BadPeer("a packet other than the one that the socket has shown before"))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let Some(fd) = self.fd.take() else { return };
        if self.born.is_elsewhere() {
            return;
        }
        socket::stop_receiving(fd.as_fd());
        // Otherwise a thread that takes a packet holds the socket, and closes the socket when done.
        let Some(fd) = Arc::into_inner(fd) else { return };
        match self.ledger.introducer() {
            // The creator of the socket may have made others watch the socket, so that closing could block.
            Some(introducer) => closing::close_elsewhere(fd, introducer),
            // Closing the socket also closes the descriptors of unread packets.
            None if !socket::ends_empty(fd.as_fd()) => closing::close_elsewhere(fd, &self.ledger.payer()),
            None => {}
        }
    }
}

/// The most attempts to receive memory whose descriptor does not arrive although this process has a free descriptor.
/// Several are needed, because another thread of this process may use the free descriptor between two attempts.
const TRIES_WITH_ROOM: usize = 8;

/// Calls `look`, which looks for the next packet, and returns the result. After [`Error::NoDescriptors`] calls `look`
/// again if `is_free` reports free descriptors for the packet. After [`TRIES_WITH_ROOM`] such attempts the packet can
/// never be received: returns [`Error::BadPeer`].
fn unless_never(
    mut look: impl FnMut() -> Result<Incoming, Error>,
    is_free: impl Fn() -> bool,
) -> Result<Incoming, Error> {
    for _ in 0..TRIES_WITH_ROOM {
        match look() {
            Err(Error::NoDescriptors) if is_free() => {}
            found => return found,
        }
    }
    Err(Error::BadPeer("a descriptor that cannot be received"))
}

impl Io for Socket {
    fn send(&self, packet: &Packet, attachments: Attachments<'_>) -> Result<Sent, Error> {
        let bytes = packet.encode();
        fault::point(packet.step());
        let memory = attachments.memory.map(|memory| memory.descriptor().expect("memory for another process has one"));
        if memory.is_none() && attachments.table.is_none() {
            return socket::send(self.fd(), &bytes, attachments.descriptors);
        }
        let mut descriptors = Vec::with_capacity(attachments.len());
        descriptors.extend(memory.into_iter().chain(attachments.table));
        descriptors.extend_from_slice(attachments.descriptors);
        socket::send(self.fd(), &bytes, &descriptors)
    }

    fn receive(&self, refusing: bool, takes: Takes) -> Result<Incoming, Error> {
        self.remove_processed()?;
        let needed = Cell::new(1);
        unless_never(|| self.look(refusing, takes, &needed), || socket::are_descriptors_free(self.fd(), needed.get()))
    }

    fn take(&self, packet: &Packet) -> Result<(), Error> {
        if self.is_taken.swap(false, Ordering::Relaxed) {
            return Ok(());
        }
        match self.remove(packet) {
            Err(error) if error.passes() => {
                *unpoisoned(&self.unremoved) = Some(*packet);
                Ok(())
            }
            removed => removed,
        }
    }

    fn next_sender(&self) -> Result<Option<Next>, Error> {
        self.remove_processed()?;
        if !self.has_something()? {
            return Ok(None);
        }
        self.receive_by(|socket| credentials::of_next_packet(socket, closing::close_nobodys))?
    }

    fn first_sender(&self, next: Next) -> Result<Option<(Sender, Option<u64>)>, Error> {
        if self.is_received() {
            return Ok(Some((next.sender, credentials::inode_by_pid(next.sender))));
        }
        let first = credentials::of_first_packet(self.fd(), closing::close_nobodys)?;
        // No packet is received while the kernel attaches credentials to the packets.
        if first.is_some() {
            credentials::ask(self.fd(), false)?;
        }
        Ok(first)
    }

    fn check_nothing(&self) -> Result<(), Error> {
        match socket::looks_at_head(self.fd()) {
            true => Ok(()),
            false => Err(Error::BadPeer("a socket that does not show its next packet")),
        }
    }

    fn wait(&self, interest: Interest, deadline: Deadline) -> Result<Readiness, Error> {
        socket::wait(self.fd(), interest, deadline)
    }

    fn memory(&self, name: &str, len: usize) -> Result<Shareable, Error> {
        let (mapping, fd) = Mapping::shared(name, len)?;
        Ok(Shareable { mapping, fd: Some(fd) })
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        Some(self.fd())
    }
}

/// The transport of the link of this process to itself; nothing is sent over this transport. Handles, values and memory
/// of messages within this process lie in the [mailbox](crate::lane::mailbox).
pub(crate) struct Local;

impl Io for Local {
    fn send(&self, _packet: &Packet, _attachments: Attachments<'_>) -> Result<Sent, Error> {
        Ok(Sent::Done)
    }

    fn receive(&self, _refusing: bool, _takes: Takes) -> Result<Incoming, Error> {
        Ok(Incoming::Empty)
    }

    fn take(&self, _packet: &Packet) -> Result<(), Error> {
        Ok(())
    }

    fn check_nothing(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Returns at once that nothing can be received. Does not sleep.
    fn wait(&self, _interest: Interest, _deadline: Deadline) -> Result<Readiness, Error> {
        Ok(Readiness { readable: false, writable: true, hung_up: false })
    }

    fn memory(&self, _name: &str, len: usize) -> Result<Shareable, Error> {
        Ok(Shareable { mapping: Mapping::private(len)?, fd: None })
    }

    fn socket(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_never_arrives_is_a_breach_only_if_there_was_room_for_it() {
        let lacks = || Err(Error::NoDescriptors);
        assert!(matches!(unless_never(lacks, || false), Err(Error::NoDescriptors)));
        assert!(matches!(unless_never(lacks, || true), Err(Error::BadPeer(_))));
        // Another thread takes the free descriptor a few times, and then no more.
        let mut looks = 0;
        let look = || {
            looks += 1;
            if looks < TRIES_WITH_ROOM { Err(Error::NoDescriptors) } else { Ok(Incoming::Empty) }
        };
        assert!(matches!(unless_never(look, || true), Ok(Incoming::Empty)));
    }
}
