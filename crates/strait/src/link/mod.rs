//! Links. A link is the connection between two processes: one socket for all communication through the kernel.
//!
//! Rings carry the messages. The link carries the [packets](packet) that bring memory and descriptors; a process always
//! sends the packets of a record before committing the record. The link also carries wake-ups for threads that sleep in
//! `poll`. The death of a process shows as a hang-up of the socket.
//!
//! A thread that needs a packet receives all packets from the socket into the [inbox](inbox::Inbox). Only one thread
//! receives at a time, the [leader](crate::wake::leader), which may sleep in `poll` meanwhile. If two threads received,
//! one thread could take the wake-up packet for the other, and the other would sleep on in `poll`.

mod handshake;
mod in_flight;
mod inbox;
pub(crate) mod io;
pub(crate) mod liveness;
mod notifications;
pub(crate) mod packet;
pub(crate) mod peers;
mod reader;
pub(crate) mod reuse;
mod room;
mod stuck;
#[cfg(test)]
mod tests;
pub(crate) mod uses;
mod wake_limiter;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::error::Error;
use crate::os::fault;
use crate::os::socket::credentials;
use crate::peer::Peer;
use crate::quota::{Charge, Ledger, Usage};
pub(crate) use handshake::ANONYMOUS;
use handshake::PeerState;
use in_flight::LinkInFlight;
pub(crate) use in_flight::{Amount, InFlight, Until};
pub(crate) use inbox::{LONGEST_TABLE, MemoryKey, OpenPacket, ReceivedHandles};
pub(crate) use io::{Attachments, Io};
use io::{Local, Socket};
use liveness::Life;
use notifications::Notifications;
#[cfg(test)]
pub(crate) use notifications::tests::{hung_up, linked};
pub(crate) use notifications::{Listener, ListenerSet};
pub(crate) use reader::MISSING;
use reader::Reader;
pub(crate) use room::SocketBlockedOn;
use room::Unsent;
use uses::{Directory, Uses};
pub(crate) use uses::{InTransit, InUse};
pub(crate) use wake_limiter::PAUSE;

/// The number of this process's link to itself. Links to other processes have higher numbers.
const OWN_NUMBER: u64 = 0;

pub(crate) struct Link {
    /// The number of the link, unique in the process: higher for a newer link, and 0 for the link of the process to
    /// itself.
    number: u64,
    me: Weak<Self>,
    io: Box<dyn Io>,
    uses: Uses,
    directory: Arc<dyn Directory>,
    peer: PeerState,
    notifications: Notifications,
    ledger: Arc<Ledger>,
    in_flight: LinkInFlight,
    /// The packets not sent yet. The link sends them before any other packet.
    unsent: Mutex<Unsent>,
    reader: Reader,
    life: Life,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link")
            .field("peer", &self.peer.sender)
            .field("down", &self.life.reason())
            .finish_non_exhaustive()
    }
}

impl Link {
    fn new(number: u64, io: Box<dyn Io>, ledger: Arc<Ledger>, directory: Arc<dyn Directory>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            number,
            me: me.clone(),
            io,
            uses: Uses::default(),
            directory,
            peer: PeerState::default(),
            notifications: Notifications::default(),
            ledger: ledger.clone(),
            in_flight: LinkInFlight::default(),
            unsent: Mutex::default(),
            reader: Reader::new(ledger),
            life: Life::default(),
        })
    }

    /// Creates the link over `socket`, a connected socket, and sends nothing. `memory_limit` is the most memory, in
    /// bytes, that this process maps for the link. `directory` is the state of the lanes for the link.
    pub(crate) fn over(socket: OwnedFd, memory_limit: usize, directory: Arc<dyn Directory>) -> Result<InUse, Error> {
        credentials::ask(socket.as_fd(), true)?;
        crate::os::socket::receive_plainly(socket.as_fd());
        // Best effort: the sockets of a listener are made without this option, and sockets from other processes may be,
        // too.
        let _ = credentials::accept_rights(socket.as_fd(), true);
        Ok(Self::over_prepared(socket, Ledger::new(Some(memory_limit)), directory))
    }

    /// Creates the link over `socket`, a connected socket that the peer of the link `by` has sent with an introduction,
    /// and sends nothing. `charge` is the charge for the socket against that peer. `directory` is the state of the
    /// lanes for the link.
    ///
    /// The peer may have kept a copy of the socket. So the call sets no option of the socket: `setsockopt` blocks while
    /// a thread of another process holds the lock of the socket. The introducer has made the kernel attach credentials
    /// to each packet, which the caller has [checked](credentials::are_asked). Further control messages end the link.
    pub(crate) fn over_received(
        socket: OwnedFd,
        by: &Self,
        charge: Option<Charge>,
        directory: Arc<dyn Directory>,
    ) -> InUse {
        Self::over_prepared(socket, Ledger::of_introduced(&by.ledger, charge), directory)
    }

    fn over_prepared(socket: OwnedFd, ledger: Arc<Ledger>, directory: Arc<dyn Directory>) -> InUse {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        crate::os::close::look_up();
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let link = Self::new(number, Box::new(Socket::new(socket, ledger.clone())), ledger, directory).in_use();
        peers::note(&link);
        link
    }

    /// Creates the link over `socket` to a process that has connected to a listener, after the handshake was received.
    /// `peer` is the process by the kernel's report, and `inode` the inode number of its pidfds, if the kernel has such
    /// a number; `name` and `features` come from the handshake. `memory_limit` is the most memory, in bytes, that this
    /// process maps for the link. `directory` is the state of the lanes for the link.
    pub(crate) fn known(
        socket: OwnedFd,
        (peer, inode): (Peer, Option<u64>),
        (name, features): (u128, u64),
        memory_limit: usize,
        directory: Arc<dyn Directory>,
    ) -> Result<InUse, Error> {
        let link = Self::over(socket, memory_limit, directory)?;
        link.ledger.belongs_to(peer);
        let socket = link.io.socket().expect("it is over one");
        credentials::ask(socket, false)?;
        link.life.process.began(peer, inode);
        let _ = (link.peer.sender.set(peer), link.peer.features.set(features));
        link.peer.is_identified.store(true, Ordering::Release);
        if let Some(inode) = inode {
            let _ = link.peer.inode.set(inode);
            link.learn_name(name);
        }
        Ok(link)
    }

    /// Creates the link of this process to itself. `directory` is the state of the lanes for the link.
    pub(crate) fn local(directory: Arc<dyn Directory>) -> Arc<Self> {
        // Nothing is charged: objects sent within the process are the process's own.
        Self::new(OWN_NUMBER, Box::new(Local), Ledger::nobodys(), directory)
    }

    /// Returns whether this is the process's link to itself ([`Link::local`]).
    #[inline]
    fn is_own(&self) -> bool {
        self.number == OWN_NUMBER
    }

    /// Returns whether this is the process's link to itself, without a socket.
    pub(crate) fn is_local(&self) -> bool {
        self.io.socket().is_none()
    }

    /// Returns the number of the link, unique in this process; newer links have higher numbers.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn io(&self) -> &dyn Io {
        &*self.io
    }

    /// Returns whether the link was created by another process, before this process was forked.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.life.home.is_elsewhere()
    }

    /// Returns the ledger of this link: the part of the peer's account for everything held because of this link.
    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Returns how much of each resource this process holds for the process at the other end.
    pub(crate) fn usage(&self) -> Usage {
        self.ledger.usage()
    }

    pub(crate) fn weak(&self) -> Weak<Self> {
        self.me.clone()
    }

    /// Moves everything except the uses out of this link, whose destructor runs. Returns a new link with all of that
    /// and with the same number.
    fn move_out(&mut self) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            number: self.number,
            me: me.clone(),
            io: std::mem::replace(&mut self.io, Box::new(Local)),
            uses: Uses::default(),
            directory: self.directory.clone(),
            peer: std::mem::take(&mut self.peer),
            notifications: std::mem::take(&mut self.notifications),
            ledger: self.ledger.clone(),
            in_flight: std::mem::take(&mut self.in_flight),
            unsent: std::mem::take(&mut self.unsent),
            reader: std::mem::replace(&mut self.reader, Reader::new(self.ledger.clone())),
            life: std::mem::take(&mut self.life),
        })
    }

    /// Returns whether the link's destructor runs.
    pub(crate) fn is_being_dropped(&self) -> bool {
        self.me.strong_count() == 0
    }
}

impl Drop for Link {
    /// Receives the remaining packets of a link that is dropped. Channels over another link to the same process may
    /// need the peer's announcements over this link. If the packets cannot be received now, a new link takes everything
    /// of this link over, and is dropped later.
    fn drop(&mut self) {
        if self.is_elsewhere() {
            return;
        }
        peers::while_dropping(self.number, || {
            let Some(socket) = self.io.socket() else { return };
            // From here on the peer cannot send, and sees that the link is down. So the peer refers to no announcement
            // over this link any more. Packets sent before can still be received.
            crate::os::socket::shut(socket);
            if peers::is_alone() || !self.directory.may_drain() {
                return;
            }
            let heard = self.receive_rest(reader::REST_LIMIT).map(|_| ());
            fault::point("before the socket of a link is closed");
            if self.directory.end(self, heard).is_err() {
                peers::retain(&self.me.clone(), self.move_out());
            }
        });
        peers::forget_dropped(self.process());
    }
}
