//! The handshake of a link: the peer's identity, its version and layout, and whether a listener has accepted this
//! process.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Link;
use super::io::Attachments;
use super::packet::{FEATURES, Packet, VERSIONS, Versions};
use super::peers::PeerEntry;
use crate::deadline::Deadline;
use crate::error::{Error, Refusal};
use crate::os::socket::Interest;
use crate::os::socket::credentials::{self, Next, Sender};
use crate::peer::Peer;
use crate::quota::closing;
use crate::shm::Layout;
use crate::signals;
use crate::wake::interrupt::Interruption;

/// Returns the handshake packet, the first packet of each side of a link. `name` is the random name of this process.
/// With [`ANONYMOUS`] as the name the peer cannot recognise this process on other links.
fn handshake(name: u128) -> Packet {
    Packet::Handshake { name, versions: VERSIONS, features: FEATURES, layout: Layout::FIRST.said() }
}

/// The name that a process sends in its handshake so that the peer cannot recognise the process on other links.
pub(crate) const ANONYMOUS: u128 = 0;

/// The features and the memory layout of a peer, as the peer's handshake gives them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerParameters {
    /// The layout of the words in the shared memory that this peer creates.
    layout: Layout,
    features: u64,
}

impl PeerParameters {
    /// Decodes the layout and the feature bits from a peer's handshake. Fails with [`Error::BadPeer`] if the layout is
    /// impossible.
    pub(crate) fn heard(layout: u64, features: u64) -> Result<Self, Error> {
        let layout = Layout::heard(layout).ok_or(Error::BadPeer("an impossible memory layout"))?;
        Ok(Self { layout, features })
    }
}

/// The knowledge of a link about its peer.
#[derive(Default)]
pub(super) struct PeerState {
    /// The process that has sent the first packet of the link, as the kernel reported it; empty before the first
    /// packet, and if the kernel did not report the sender.
    pub(super) sender: OnceLock<Peer>,
    /// Whether the kernel was asked for the sender of the first packet.
    pub(super) is_identified: AtomicBool,
    /// The features and the memory layout from the peer's handshake; empty until the handshake was received.
    pub(super) parameters: OnceLock<PeerParameters>,
    /// Whether the listener's accept packet was received. Used on a link over which this process sent a connect
    /// request.
    pub(super) accepted: AtomicBool,
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
        self.park(deadline, Interruption::SIGNALS, || self.peer.accepted.load(Ordering::Acquire))?;
        if self.peer.accepted.load(Ordering::Acquire) {
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

    /// Asks the kernel which process sent the first packet of the link, unless that is known. Leaves the packet in the
    /// socket. Returns `false` if no packet has arrived. Returns `true` if packets may be received now. Only the leader
    /// may call this.
    pub(super) fn knows_who_it_is(&self) -> Result<bool, Error> {
        let Some(socket) = self.io.socket().filter(|_| !self.peer.is_identified.load(Ordering::Relaxed)) else {
            return Ok(true);
        };
        let mut sender = credentials::of_next_packet(socket, closing::close_nobodys)?;
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
            sender = credentials::of_next_packet(socket, closing::close_nobodys)?;
        }
        let Some(Next { sender, .. }) = sender else { return Ok(true) };
        // From here on the kernel attaches no credentials to packets; no packet is received while it attaches them.
        credentials::ask(socket, false)?;
        // An honest peer asks for credentials itself before its handshake, so that the kernel attaches the peer's own.
        // Without that request the kernel cannot name the peer; the creator of the socket need not be the peer.
        if let Sender::Known(peer) = sender {
            self.life.process.began(peer);
            let _ = self.peer.sender.set(peer);
            self.ledger.belongs_to(peer);
        }
        self.peer.is_identified.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// Handles the peer's handshake: stores the peer's memory layout and features. If this process and the peer have no
    /// version in common, refuses the peer and fails with [`Error::Refused`].
    pub(super) fn learn_how_it_speaks(&self, versions: Versions, layout: u64, features: u64) -> Result<(), Error> {
        if VERSIONS.common(versions).is_none() {
            let refusal = Refusal::version(versions);
            // Tells the peer, so that the peer can report the reason too.
            let _ = self.io.send(&refusal.packet(), Attachments::NOTHING);
            return Err(Error::Refused(refusal));
        }
        let parameters = PeerParameters::heard(layout, features)?;
        self.peer.parameters.set(parameters).map_err(|_| Error::BadPeer("a second handshake"))
    }

    /// Returns the layout of the words in the shared memory that the peer creates. Until the peer's handshake was
    /// received, returns [`Layout::FIRST`].
    pub(crate) fn layout(&self) -> Layout {
        self.peer.parameters.get().map_or(Layout::FIRST, |parameters| parameters.layout)
    }

    /// Returns whether the peer's handshake has the bit `feature` among its feature bits. If the handshake was not
    /// received yet, first receives the packets in the socket; `false` if the handshake is not among them.
    pub(crate) fn knows(&self, feature: u64) -> bool {
        if self.peer.parameters.get().is_none() && !self.is_local() {
            self.drain_once();
        }
        self.peer.parameters.get().is_some_and(|parameters| parameters.features & feature != 0)
    }
}
