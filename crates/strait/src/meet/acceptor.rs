//! The pending connections of a listener: processes that have connected and are neither accepted nor refused yet.
//!
//! A pending connection costs one descriptor and a few words until its connect request has arrived; no packet of the
//! connecting process raises the cost. The number of pending connections is limited, for each user and for all users
//! together. When a limit is reached, the listener refuses the oldest pending connection of the user with the most
//! pending connections. So processes that connect and stay silent cannot keep out a process that sends its connect
//! request at once. While there is room, no pending connection has a time limit.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::deadline::Deadline;
use crate::error::{Error, Refusal};
use crate::link::packet::{PACKET, Packet, VERSIONS};
use crate::link::reuse::Request;
use crate::os::socket::credentials::{self, Sender};
use crate::os::socket::{self, Bare, Interest};
use crate::os::{epoll, names};
use crate::peer::Peer;
use crate::quota::Payer;
use crate::quota::closing::{self, Unread, WaitingSockets};

/// The most new connections that a listener takes from its listening socket's queue in a row, before reading from its
/// pending connections.
const MOST_AT_ONCE: usize = 64;

/// The number under which the listener's epoll instance reports events of the listening socket: 0. Pending connections
/// have numbers from 1 on.
pub(super) const LISTENING: u64 = 0;

/// The number under which the listener's epoll instance reports that the listener is closed. No pending connection has
/// this number.
pub(super) const CLOSED: u64 = u64::MAX;

/// The connection limits of a listener: the most pending connections (neither accepted nor refused yet) of one user,
/// and of all users together.
#[derive(Clone, Copy, Debug)]
pub(super) struct ConnectionLimits {
    pub(super) of_a_user: usize,
    pub(super) of_all: usize,
}

/// A connection that a listener has taken from the queue of its listening socket, and has neither accepted nor refused
/// yet.
struct PendingConnection {
    socket: Unread,
    /// The number (uid) of the user of the connecting process. The connection counts against this user's limit.
    user: u32,
    handshake: Option<HandshakeDone>,
}

/// The result of a pending connection's handshake packet: the sender, and the name and feature bits in the packet.
#[derive(Clone, Copy)]
struct HandshakeDone {
    /// The process that sent the handshake, as the kernel identified it.
    peer: Peer,
    name: u128,
    features: u64,
}

/// A connection whose handshake and connect request have both arrived: the listener can accept or refuse the connecting
/// process. The connection is not in the table of pending connections any more.
pub(super) struct ConnectRequest {
    pub(super) socket: Unread,
    pub(super) peer: Peer,
    /// The content of the two packets of the connecting process.
    pub(super) request: Request,
    /// The invitation's token from the connect request; 0 if the connecting process has no invitation.
    pub(super) token: u128,
}

/// The state of a connection after the listener has read from it, or has refused it to make room for other connections.
pub(super) enum ConnectionStep {
    /// `Waits`: the connection stays pending, because its connect request has not arrived yet.
    Waits,
    /// `Requested`: the connect request of the connection has arrived; the listener must now accept or refuse the
    /// process.
    Requested(ConnectRequest),
    /// `Gone`: the connecting process has closed its socket, or no pending connection has the given number. The
    /// listener sends no answer.
    Gone,
    /// `Refused`: the listener refused the connection and closed its socket. The fields are the connecting process
    /// (`None` if the kernel did not identify it) and the reason.
    Refused(Option<Peer>, Error),
}

/// The acceptor of one listener: the pending connections (neither accepted nor refused yet), and the limits on their
/// number.
pub(super) struct Acceptor {
    /// The epoll instance that watches the listening socket and the sockets of all connections in `pending`. A socket
    /// must leave the instance when its connection leaves `pending`. Otherwise no thread would read from the socket,
    /// and the instance would stay readable for ever.
    comings: Arc<OwnedFd>,
    /// The listening sockets, one for each name directory.
    listening: Arc<Vec<OwnedFd>>,
    pending: BTreeMap<u64, PendingConnection>,
    /// The count of the sockets of connections that are over and wait for a thread to close them.
    waiting: Arc<WaitingSockets>,
    next: u64,
    limits: ConnectionLimits,
}

impl Acceptor {
    pub(super) fn new(limits: ConnectionLimits, comings: Arc<OwnedFd>, listening: Arc<Vec<OwnedFd>>) -> Self {
        // A thread that closes a socket may outlive the listener, and must not keep the listener's descriptors open.
        let (instance, sockets) = (Arc::downgrade(&comings), Arc::downgrade(&listening));
        let resume = move || {
            if let (Some(instance), Some(sockets)) = (instance.upgrade(), sockets.upgrade()) {
                sockets.iter().for_each(|socket| epoll::resume(&instance, socket, LISTENING));
            }
        };
        let waiting = WaitingSockets::new(limits.of_all, resume);
        Self { comings, listening, pending: BTreeMap::new(), waiting, next: LISTENING + 1, limits }
    }

    /// Takes new connections from the queues of all listening sockets, as [`open`](Self::open) does for one socket.
    pub(super) fn open_all(&mut self, sent_away: &mut Vec<ConnectionStep>) -> Result<(), Error> {
        let listening = self.listening.clone();
        listening.iter().try_for_each(|socket| self.open(socket, sent_away))
    }

    /// Stops listening, and closes all pending connections.
    pub(super) fn close(&mut self) {
        // Another process may have copies of a socket that a service manager made; closing the socket would not take
        // the socket out of the epoll instance.
        self.listening.iter().for_each(|socket| epoll::remove(&self.comings, socket));
        // The last holder closes the sockets: this call, or a thread of the library that resumes the listener just now.
        Arc::into_inner(std::mem::take(&mut self.listening)).into_iter().flatten().for_each(stop_listening);
        while let Some(number) = self.pending.keys().next().copied() {
            self.take_out(number);
        }
    }

    /// If too many sockets wait for a thread to close them, makes the epoll instance ignore the listening sockets until
    /// such a socket is closed, and returns `true`.
    fn is_paused(&self) -> bool {
        self.waiting.pause_if_full(|| {
            for socket in &*self.listening {
                // If a filter of system calls refuses the change, the thread that handles connections does not sleep.
                let _ = epoll::pause(&self.comings, socket, LISTENING);
            }
        })
    }

    /// Takes new connections from the queue of the listening socket `listening`, at most [`MOST_AT_ONCE`], and makes
    /// them pending. Takes no connection while too many sockets wait for a thread to close them. If a limit is exceeded
    /// or descriptors are lacking, a pending connection makes room for the new connection. The outcome of the removed
    /// connection is added to `sent_away`, even if the call then fails.
    fn open(&mut self, listening: &OwnedFd, sent_away: &mut Vec<ConnectionStep>) -> Result<(), Error> {
        for _ in 0..MOST_AT_ONCE {
            if self.is_paused() {
                break;
            }
            let socket = match names::accept(listening.as_fd()) {
                Ok(Some(socket)) => socket,
                Ok(None) => break,
                // The oldest pending connection gives up its descriptor to the new connection.
                Err(Error::NoDescriptors) if !self.pending.is_empty() => {
                    sent_away.extend(self.make_room());
                    continue;
                }
                Err(error) => return Err(error),
            };
            // The user of the socket only decides against which limit the connection counts. The kernel is asked later
            // for the sender of each packet.
            let Ok(peer) = credentials::of_socket(socket.as_fd()) else { continue };
            // The new socket has inherited its settings from a listening socket that another process may have made.
            credentials::ask(socket.as_fd(), true)?;
            socket::receive_plainly(socket.as_fd());
            let number = self.next;
            self.next += 1;
            epoll::add(&self.comings, &socket, number)?;
            self.pending.insert(
                number,
                PendingConnection { socket: Unread::new(socket, &self.waiting), user: peer.uid, handshake: None },
            );
            if self.count(peer.uid) > self.limits.of_a_user {
                sent_away.extend(self.send_away_oldest_of(peer.uid));
            } else if self.pending.len() > self.limits.of_all {
                sent_away.extend(self.make_room());
            }
        }
        Ok(())
    }

    fn count(&self, user: u32) -> usize {
        self.pending.values().filter(|connection| connection.user == user).count()
    }

    /// Refuses the oldest pending connection of the user with the most pending connections, and returns the outcome. If
    /// the connect request of the connection has arrived by now, returns the request instead of refusing. `None` if no
    /// connection is pending.
    fn make_room(&mut self) -> Option<ConnectionStep> {
        let users: BTreeSet<_> = self.pending.values().map(|connection| connection.user).collect();
        let greediest = users.into_iter().max_by_key(|user| self.count(*user))?;
        self.send_away_oldest_of(greediest)
    }

    /// Refuses the oldest pending connection of `user` with the reason *busy*, and returns the outcome. If the connect
    /// request of the connection has arrived by now, returns the request instead of refusing. `None` if the user has no
    /// pending connection.
    fn send_away_oldest_of(&mut self, user: u32) -> Option<ConnectionStep> {
        let (&oldest, _) = self.pending.iter().find(|(_, connection)| connection.user == user)?;
        match self.read_request(oldest) {
            ConnectionStep::Waits => {}
            over => return Some(over),
        }
        let connection = self.take_out(oldest)?;
        refuse(connection.socket.as_fd(), Refusal::Busy);
        let peer = credentials::of_socket(connection.socket.as_fd()).ok();
        Some(ConnectionStep::Refused(peer, Error::Refused(Refusal::Busy)))
    }

    /// Removes the pending connection `number` from the table and from the epoll instance, and returns the connection.
    /// `None` if no connection has the number.
    fn take_out(&mut self, number: u64) -> Option<PendingConnection> {
        let connection = self.pending.remove(&number)?;
        epoll::remove(&self.comings, connection.socket.as_fd());
        Some(connection)
    }

    /// Reads the packets that have arrived from the pending connection `number`, without blocking, and returns the
    /// outcome. Unless the outcome is [`ConnectionStep::Waits`], removes the connection from the pending connections.
    pub(super) fn read_request(&mut self, number: u64) -> ConnectionStep {
        let Some(connection) = self.pending.get_mut(&number) else { return ConnectionStep::Gone };
        let said = connection.read_request();
        if matches!(said, ConnectionInput::Nothing) {
            return ConnectionStep::Waits;
        }
        let Some(PendingConnection { socket, .. }) = self.take_out(number) else { return ConnectionStep::Gone };
        match said {
            ConnectionInput::Nothing | ConnectionInput::Goodbye => ConnectionStep::Gone,
            ConnectionInput::Everything { peer, request, token } => {
                ConnectionStep::Requested(ConnectRequest { socket, peer, request, token })
            }
            ConnectionInput::Nonsense(peer, error) => {
                if let Error::Refused(why) = error {
                    refuse(socket.as_fd(), why);
                }
                ConnectionStep::Refused(peer, error)
            }
        }
    }
}

/// The result of a read from a pending connection: a packet is still missing, the socket was closed, both packets
/// (handshake and connect request) have arrived, or the connecting process broke the protocol.
enum ConnectionInput {
    Nothing,
    Goodbye,
    Everything { peer: Peer, request: Request, token: u128 },
    Nonsense(Option<Peer>, Error),
}

impl PendingConnection {
    fn read_request(&mut self) -> ConnectionInput {
        loop {
            // The kernel names the sender of a packet before the packet is received. A packet that arrives after the
            // kernel was asked waits for the next call.
            let sender = match credentials::of_next_packet(self.socket.as_fd(), closing::close_nobodys) {
                Ok(Some(next)) if next.has_descriptors => {
                    // The descriptors are not received; closing the socket closes the descriptors.
                    return ConnectionInput::Nonsense(
                        None,
                        Error::BadPeer("descriptors beside a handshake or a connect request"),
                    );
                }
                Ok(Some(next)) => next.sender,
                Err(error @ Error::BadPeer(_)) => {
                    return ConnectionInput::Nonsense(self.handshake.map(|handshake| handshake.peer), error);
                }
                Ok(None) | Err(_) => {
                    let found = socket::wait(self.socket.as_fd(), Interest::Readable, Deadline::NOW);
                    return if found.is_ok_and(|found| !found.hung_up) {
                        ConnectionInput::Nothing
                    } else {
                        ConnectionInput::Goodbye
                    };
                }
            };
            let mut bytes = [0; PACKET];
            let packet = match socket::receive_bare(self.socket.as_fd(), &mut bytes) {
                Bare::Packet(PACKET) => Packet::decode(&bytes),
                Bare::Packet(_) => None,
                Bare::Empty => return ConnectionInput::Nothing,
                Bare::HungUp => return ConnectionInput::Goodbye,
            };
            let Sender::Known(sender) = sender else {
                return ConnectionInput::Nonsense(None, Error::BadPeer("a process that the kernel does not identify"));
            };
            let nonsense = |error| ConnectionInput::Nonsense(Some(sender), error);
            match (packet, self.handshake) {
                (Some(Packet::Handshake { name, versions, features }), None) => {
                    if VERSIONS.common(versions).is_none() {
                        return nonsense(Error::Refused(Refusal::version(versions)));
                    }
                    self.handshake = Some(HandshakeDone { peer: sender, name, features });
                }
                (Some(Packet::Connect { token, link, reuses }), Some(HandshakeDone { peer, name, features }))
                    if peer == sender =>
                {
                    let request = Request { name, features, link, reuses };
                    return ConnectionInput::Everything { peer, request, token };
                }
                (Some(Packet::Connect { .. }), Some(_)) => {
                    return nonsense(Error::BadPeer("packets of two processes on one connection"));
                }
                _ => return nonsense(Error::BadPeer("something else than a handshake and a connect request")),
            }
        }
    }
}

/// Closes a listening socket without blocking. Before Linux 6.16, the processes in its queue may have sent descriptors,
/// which are closed with the socket. Closing these may block, so a thread of the library closes the socket.
fn stop_listening(socket: OwnedFd) {
    if !credentials::refuses_rights(socket.as_fd()) {
        closing::close_elsewhere(socket, &Payer::default());
    }
}

/// Sends the refusal `why` over the socket of a pending connection. Does not block: if the socket is full, the refusal
/// is lost.
pub(super) fn refuse(socket: BorrowedFd<'_>, why: Refusal) {
    let _ = socket::send(socket, &why.packet().encode(), &[]);
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::channel::Channel;
    use crate::channel::options::Options;

    #[test]
    fn who_is_sent_away_before_its_request_hears_why() {
        let (connection, listener) = socket::pair().unwrap();
        credentials::ask(connection.as_fd(), true).unwrap();
        refuse(listener.as_fd(), Refusal::Busy);
        drop(listener);
        let deadline = Deadline::after(Duration::from_secs(60));
        let requested = Channel::connect(connection, names::own_user(), 0, &Options::new(), deadline);
        assert_eq!(requested.err(), Some(Error::Refused(Refusal::Busy)));
    }
}
