//! The handshake of a link: the peer's identity, its version and features, and whether a listener has accepted this
//! process.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Link;
use super::io::Attachments;
use super::packet::{FEATURES, Packet, VERSIONS, Versions};
use super::peers::PeerEntry;
use super::reuse::MadeBy;
use crate::deadline::Deadline;
use crate::error::{Error, Refusal};
use crate::os::socket::Interest;
use crate::os::socket::credentials::Sender;
use crate::peer::Peer;
use crate::signals;
use crate::wake::interrupt::Interruption;

/// Returns the handshake packet, the first packet of each side of a link. `name` is the random name of this process.
/// With [`ANONYMOUS`] as the name the peer cannot recognise this process on other links.
fn handshake(name: u128) -> Packet {
    Packet::Handshake { name, versions: VERSIONS, features: FEATURES }
}

/// The name in the handshake of a process that does not want to be recognised on other links.
pub(crate) const ANONYMOUS: u128 = 0;

/// The knowledge of a link about its peer.
#[derive(Default)]
pub(super) struct PeerState {
    /// The sender of the first packet of the link, by the kernel's report; empty before the first packet, and if the
    /// kernel did not report the sender.
    pub(super) sender: OnceLock<Peer>,
    /// The inode number of the pidfd of the process that has sent the first packet; empty before the first packet, and
    /// if the kernel did not give the number with that packet.
    pub(super) inode: OnceLock<u64>,
    /// Whether the kernel was asked for the sender of the first packet.
    pub(super) is_identified: AtomicBool,
    /// The feature bits from the peer's handshake; empty until the handshake was received.
    pub(super) features: OnceLock<u64>,
    /// The content of the listener's accept packet; empty until it was received. Used on a link with a connect request
    /// from this process. If the listener has accepted over another link, contains the name of the lane there.
    pub(super) accepted: OnceLock<Option<[u64; 2]>>,
    /// The connect that made the link; empty if no connect made it.
    pub(super) made_by: OnceLock<MadeBy>,
    pub(super) entry: PeerEntry,
}

impl Link {
    /// Waits until the listener at the other end accepts this process, after the connect request was sent over this
    /// link.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] or [`Error::TimedOut`] at the deadline; [`Error::Signalled`]; the link's error if the
    /// link is down; errors of receiving.
    pub(crate) fn await_accept(&self, deadline: Deadline) -> Result<(), Error> {
        self.fetch(|_| None::<()>)?;
        self.park(deadline, Interruption::SIGNALS, || self.peer.accepted.get().is_some())?;
        if self.peer.accepted.get().is_some() {
            Ok(())
        } else if self.is_down() {
            Err(self.reason())
        } else if deadline.is_now() {
            Err(Error::WouldBlock)
        } else {
            signals::check()?;
            Err(Error::TimedOut)
        }
    }

    /// Waits for the listener's answer as [`Link::await_accept`] does. If the wait fails, the listener cannot answer
    /// any more; but if it has accepted over another link before, this succeeds, because its channel there is open.
    pub(crate) fn await_accept_or_end(&self, deadline: Deadline) -> Result<(), Error> {
        let waited = self.await_accept(deadline);
        let Some(socket) = self.io.socket().filter(|_| waited.is_err()) else { return waited };
        crate::os::socket::stop_receiving(socket);
        // A failure to receive changes nothing: the first error is returned.
        let _ = self.fetch(|_| None::<()>);
        if self.lane_elsewhere().is_some() { Ok(()) } else { waited }
    }

    /// Returns the name of the lane on another link over which the listener has accepted this process; `None` if the
    /// listener has not answered, or if the channel is on this link.
    pub(crate) fn lane_elsewhere(&self) -> Option<[u64; 2]> {
        self.peer.accepted.get().copied().flatten()
    }

    /// Returns [`Error::Refused`] with the peer's reason, if `error` is [`Error::PeerClosed`] and the last packet from
    /// the peer refuses this process. Otherwise returns `error`. A full listener may refuse this process even before
    /// the connect request is sent.
    pub(crate) fn refusal_or(&self, error: Error) -> Error {
        match (error, self.fetch(|_| None::<()>)) {
            (Error::PeerClosed, Err(refused @ Error::Refused(_))) => refused,
            _ => error,
        }
    }

    /// Sends the handshake, the first packet of each side of a link. `name` is the random name of this process. With
    /// [`ANONYMOUS`] as the name the peer cannot recognise this process on other links.
    pub(crate) fn send_handshake(&self, name: u128) -> Result<(), Error> {
        self.send_first(&handshake(name), Attachments::NOTHING)
    }

    /// Sends the handshake on a link over the socket of an introduction. `name` is the random name of this process. If
    /// the handshake cannot be sent now, the link sends it before any other packet. Does nothing if the link is down.
    pub(crate) fn send_handshake_sooner_or_later(&self, name: u128) {
        self.send_sooner_or_later(handshake(name));
    }

    /// Returns the identity of the process at the other end, as the kernel reported it. Returns `None` until the peer's
    /// first packet was seen, and if the kernel did not report the sender.
    pub(crate) fn peer(&self) -> Option<Peer> {
        self.peer.sender.get().copied()
    }

    /// Asks the kernel for the sender of the first packet of the link, unless known. Leaves the packet in the socket.
    /// Returns `false` if no packet has arrived. Returns `true` if packets may be received now. Only the leader may
    /// call this.
    pub(super) fn knows_who_it_is(&self) -> Result<bool, Error> {
        if self.is_local() || self.peer.is_identified.load(Ordering::Relaxed) {
            return Ok(true);
        }
        let mut sender = self.io.next_sender()?;
        if sender.is_none() {
            // The first packet may arrive just now, and must not be taken before the kernel was asked for the sender.
            let found = self.io.wait(Interest::Readable, Deadline::NOW)?;
            if !found.hung_up {
                if found.readable {
                    self.io.check_nothing()?;
                }
                return Ok(false);
            }
            // The peer may have sent packets between the two looks and hung up then. After a hang-up it sends none.
            sender = self.io.next_sender()?;
        }
        let Some(next) = sender else { return Ok(true) };
        // Only a process with a copy of the socket can have taken the packet meanwhile.
        let Some((sender, inode)) = self.io.first_sender(next)? else { return Ok(false) };
        // An honest peer requests credentials before its handshake, so that the kernel attaches the peer's own
        // credentials. Without that request the kernel cannot name the peer; the creator of the socket need not be the
        // peer.
        if let Sender::Known(peer) = sender {
            self.life.process.began(peer, inode);
            let _ = self.peer.sender.set(peer);
            let _ = inode.map(|inode| self.peer.inode.set(inode));
            self.ledger.belongs_to(peer);
        }
        self.peer.is_identified.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// Handles the peer's handshake: stores the peer's features. If this process and the peer have no version in
    /// common, refuses the peer and fails with [`Error::Refused`].
    pub(super) fn learn_how_it_speaks(&self, versions: Versions, features: u64) -> Result<(), Error> {
        if VERSIONS.common(versions).is_none() {
            let refusal = Refusal::version(versions);
            // Tells the peer, so that the peer can report the reason too.
            let _ = self.io.send(&refusal.packet(), Attachments::NOTHING);
            return Err(Error::Refused(refusal));
        }
        self.peer.features.set(features).map_err(|_| Error::BadPeer("a second handshake"))
    }

    /// Returns whether the peer's handshake has the bit `feature` among its feature bits. If the handshake was not
    /// received yet, first receives the packets in the socket; `false` if the handshake is not among them.
    pub(crate) fn knows(&self, feature: u64) -> bool {
        if self.peer.features.get().is_none() && !self.is_local() {
            self.drain_once();
        }
        self.peer.features.get().is_some_and(|features| features & feature != 0)
    }
}
