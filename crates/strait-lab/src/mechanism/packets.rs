//! Unix sockets that keep messages whole: seqpacket (connected; reports the close of the peer's socket), and datagram.

use std::io::IoSlice;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{RecvFlags, SendFlags, SocketType, recv, send};

use super::keeper::Keeper;
use super::meeting::{Meeting, Pair};
use super::{Ability, End, Hub, Opened, Receiving, Sending, Side, hub, socket};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// The kind of socket: seqpacket or datagram.
pub(crate) trait Kind: 'static {
    /// The socket's type.
    const TYPE: SocketType;
    /// The names of the mechanism: with unnamed and with named sockets.
    const NAMES: [&'static str; 2];
    /// The titles of the mechanism in tables: with unnamed and with named sockets.
    const TITLES: [&'static str; 2];
}

/// `SOCK_SEQPACKET`: the kernel's own message channel.
#[derive(Debug)]
pub(crate) struct Sequenced;

impl Kind for Sequenced {
    const TYPE: SocketType = SocketType::SEQPACKET;
    const NAMES: [&'static str; 2] = ["seqpacket", "seqpacket-named"];
    const TITLES: [&'static str; 2] = ["Unix seqpacket socket", "Unix seqpacket socket, named"];
}

/// `SOCK_DGRAM`: between Unix sockets it is reliable and keeps the order as well.
#[derive(Debug)]
pub(crate) struct Datagrams;

impl Kind for Datagrams {
    const TYPE: SocketType = SocketType::DGRAM;
    const NAMES: [&'static str; 2] = ["datagram", "datagram-named"];
    const TITLES: [&'static str; 2] = ["Unix datagram socket", "Unix datagram socket, named"];
}

/// One process's end of two connected sockets.
#[derive(Debug)]
pub(crate) struct Packets<K, M = Pair> {
    socket: OwnedFd,
    polled: bool,
    _keeper: Option<Keeper>,
    _kind: PhantomData<(K, M)>,
}

impl<K: Kind, M: Meeting> End for Packets<K, M> {
    const NAME: &'static str = K::NAMES[M::NAMED as usize];
    const TITLE: &'static str = K::TITLES[M::NAMED as usize];
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];
    /// The socket's abilities. A socket connected by a name has only one sender.
    const ABILITIES: &'static [Ability] = if M::NAMED {
        &[Ability::Stream, Ability::Gather, Ability::Descriptors, Ability::Hub, Ability::Threads]
    } else {
        &[Ability::Stream, Ability::Gather, Ability::Descriptors, Ability::Hub, Ability::Threads, Ability::Shared]
    };

    fn open(_: &Work) -> Result<Opened> {
        M::open(K::TYPE)
    }

    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let (socket, keeper) = M::join(K::TYPE, side, descriptors)?;
        // A message must fit whole into the send buffer. The kernel grants as much as its limit allows.
        if work.size > 64 << 10 {
            set_socket_send_buffer_size(&socket, 4 * work.size).doing("setsockopt(SO_SNDBUF)")?;
        }
        Ok(Self { socket, polled: work.wait == Wait::Spin, _keeper: keeper, _kind: PhantomData })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        put(&self.socket, message, self.polled)
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        get(&self.socket, buffer, self.polled)
    }

    fn send_gathered(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        while socket::send_parts(self.socket.as_fd(), parts, &[], self.polled)?.is_none() {
            std::hint::spin_loop();
        }
        Ok(())
    }

    fn send_with(&mut self, message: &[u8], descriptors: &mut Vec<OwnedFd>) -> Result<()> {
        while socket::send_parts(self.socket.as_fd(), &[IoSlice::new(message)], descriptors, self.polled)?.is_none() {
            std::hint::spin_loop();
        }
        descriptors.clear();
        Ok(())
    }

    fn recv_with(&mut self, buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Result<()> {
        match socket::recv_with(self.socket.as_fd(), buffer, descriptors, self.polled)? {
            got if got == buffer.len() => Ok(()),
            0 => Err(Trouble::new("the other end of the socket is closed")),
            got => Err(Trouble::new(format!("a message of {got} bytes arrived"))),
        }
    }

    fn divide(&mut self) -> Result<(Sending<'_>, Receiving<'_>)> {
        let (socket, polled) = (&self.socket, self.polled);
        Ok((Box::new(move |message| put(socket, message, polled)), Box::new(move |buffer| get(socket, buffer, polled))))
    }

    fn hub(ends: Vec<Self>, work: &Work) -> Result<Box<dyn Hub>> {
        hub::polled(ends, work)
    }
}

/// Sends `message` through `socket`.
#[inline]
fn put(socket: &OwnedFd, message: &[u8], polled: bool) -> Result<()> {
    let mut flags = SendFlags::NOSIGNAL;
    flags.set(SendFlags::DONTWAIT, polled);
    loop {
        match send(socket, message, flags) {
            Ok(_) => return Ok(()),
            Err(Errno::AGAIN) => std::hint::spin_loop(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(socket::refused(error, message.len(), "sending to the socket")),
        }
    }
}

/// Receives a message of the length of `buffer` from `socket`.
#[inline]
fn get(socket: &OwnedFd, buffer: &mut [u8], polled: bool) -> Result<()> {
    let mut flags = RecvFlags::empty();
    flags.set(RecvFlags::DONTWAIT, polled);
    loop {
        match recv(socket, &mut *buffer, flags) {
            Ok((_, 0)) => return Err(Trouble::new("the other end of the socket is closed")),
            Ok((_, got)) if got == buffer.len() => return Ok(()),
            Ok((_, got)) => return Err(Trouble::new(format!("a message of {got} bytes arrived"))),
            Err(Errno::AGAIN) => std::hint::spin_loop(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).doing("receiving from the socket"),
        }
    }
}

impl<K, M> AsFd for Packets<K, M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
