//! Links that serve several connects: if an earlier connect has made a link between two processes, a later connect gets
//! its channel on the existing link.
//!
//! The connecting process looks for such a link to the listening process, and keeps the link until the answer arrives.
//! Its connect request names the link by a number, which the request of the earlier connect has fixed. The listener
//! first checks the policy and the token on the new socket, as always. If it knows a link of this number to the process
//! that asks, and the link has the same terms on its side, it makes a lane there and names the lane in its answer. In
//! every other case the new socket becomes a link.
//!
//! A number alone gives nothing: each of the two processes looks for the link only among its links to the other process
//! by the kernel's report for the new socket.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::peers::{self, Process};
use super::{InUse, Link};
use crate::os::process;
use crate::os::socket::credentials;
use crate::peer::Peer;

/// The settings of one side of a link, shared by its channels. Two channels can be on one link only if these options
/// agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Terms {
    /// The most memory, in bytes, mapped by this process for the link.
    pub(crate) memory: usize,
    /// Whether this process accepts the handles of messages.
    pub(crate) accepts_descriptors: bool,
}

/// The connect that made a link: the number by which both processes name the link, and the terms of this side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MadeBy {
    number: u64,
    terms: Terms,
}

/// The packets that a process sends to a listener.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// The name in the handshake.
    pub(crate) name: u128,
    /// The feature bits in the handshake.
    pub(crate) features: u64,
    /// The number of the new link, from the connect request; 0 if the link is not for further connects.
    pub(crate) link: u64,
    /// The number of the link that the listener may use, from the connect request; 0 for none.
    pub(crate) reuses: u64,
}

impl Link {
    /// Notes that a connect with these terms made the link, known to both processes by `number`. With 0, no further
    /// connect uses the link.
    pub(crate) fn was_connected(&self, number: u64, terms: Terms) {
        if number != 0 {
            let _ = self.peer.made_by.set(MadeBy { number, terms });
        }
    }

    /// Returns a link for a connect over `socket`, and the number of the link: a link to the listening process, made by
    /// a connect with these terms on this side. `None` if there is no such link, and if this process is listening.
    pub(crate) fn for_connect(socket: BorrowedFd<'_>, terms: Terms) -> Option<(InUse, u64)> {
        if peers::is_alone() {
            return None;
        }
        let listens = process::inode(&credentials::pidfd_of_socket(socket).ok()?)?;
        let made_by = |link: &Arc<Self>| link.peer.made_by.get().copied().filter(|made_by| made_by.terms == terms);
        let found = peers::links_to_inode(listens).into_iter();
        let mut found = found.filter_map(|link| Some((made_by(&link)?.number, link)));
        let (number, link) = found.find(|(_, link)| link.is_sound())?;
        Some((link.in_use_still()?, number))
    }

    /// Returns the link named by `request`, for a listener with these terms that got the request from the process
    /// `peer`, whose pidfds have the inode number `inode`. `None` if there is no such link; then the socket of the
    /// request becomes a new link.
    pub(crate) fn for_request(peer: Peer, inode: u64, request: &Request, terms: Terms) -> Option<InUse> {
        if request.reuses == 0 {
            return None;
        }
        let process = Process::new(request.name, peer, inode)?;
        let made_by = MadeBy { number: request.reuses, terms };
        let mut found = peers::links_to(process).into_iter();
        let link = found.find(|link| link.peer.made_by.get() == Some(&made_by) && link.peer() == Some(peer))?;
        if link.is_sound() { link.in_use_still() } else { None }
    }

    /// Returns whether the link is up, as far as the kernel says. Asks the kernel.
    fn is_sound(&self) -> bool {
        self.probe();
        !self.is_down()
    }
}
