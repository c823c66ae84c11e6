//! Unix stream sockets.

use std::io::IoSlice;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, SocketType, recv, send};

use super::keeper::Keeper;
use super::meeting::{Meeting, Pair};
use super::{Ability, End, Hub, Opened, Receiving, Sending, Side, hub, socket};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// One process's end of two connected stream sockets.
#[derive(Debug)]
pub(crate) struct Stream<M = Pair> {
    socket: OwnedFd,
    polled: bool,
    _keeper: Option<Keeper>,
    _met: PhantomData<M>,
}

impl<M: Meeting> End for Stream<M> {
    const NAME: &'static str = if M::NAMED { "stream-named" } else { "stream" };
    const TITLE: &'static str = if M::NAMED { "Unix stream socket, named" } else { "Unix stream socket" };
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];
    const ABILITIES: &'static [Ability] =
        &[Ability::Stream, Ability::Gather, Ability::Descriptors, Ability::Hub, Ability::Threads];

    fn open(_: &Work) -> Result<Opened> {
        M::open(SocketType::STREAM)
    }

    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let (socket, keeper) = M::join(SocketType::STREAM, side, descriptors)?;
        Ok(Self { socket, polled: work.wait == Wait::Spin, _keeper: keeper, _met: PhantomData })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        send_all(&self.socket, message, self.polled)
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        recv_all(&self.socket, buffer, self.polled)
    }

    /// Sends several messages by one call, since a stream keeps no message boundaries.
    #[inline]
    fn send_batch(&mut self, messages: &[u8], _: usize) -> Result<()> {
        self.send(messages)
    }

    fn send_gathered(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        hub::gathered(parts, |parts| socket::send_parts(self.socket.as_fd(), parts, &[], self.polled))
    }

    fn send_with(&mut self, message: &[u8], descriptors: &mut Vec<OwnedFd>) -> Result<()> {
        // The descriptors go with the first byte. Bytes that did not fit follow in further calls.
        let sent = loop {
            match socket::send_parts(self.socket.as_fd(), &[IoSlice::new(message)], descriptors, self.polled)? {
                Some(sent) => break sent,
                None => std::hint::spin_loop(),
            }
        };
        descriptors.clear();
        self.send(&message[sent..])
    }

    fn recv_with(&mut self, buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Result<()> {
        let got = socket::recv_with(self.socket.as_fd(), buffer, descriptors, self.polled)?;
        if got == 0 && !buffer.is_empty() {
            return Err(Trouble::new("the other end of the socket is closed"));
        }
        self.recv(&mut buffer[got..])
    }

    fn divide(&mut self) -> Result<(Sending<'_>, Receiving<'_>)> {
        Ok(divided(&self.socket, self.polled))
    }

    fn hub(ends: Vec<Self>, work: &Work) -> Result<Box<dyn Hub>> {
        hub::polled(ends, work)
    }
}

/// Splits a stream into its two directions, for two threads.
pub(super) fn divided(socket: &OwnedFd, polled: bool) -> (Sending<'_>, Receiving<'_>) {
    (
        Box::new(move |message| send_all(socket, message, polled)),
        Box::new(move |buffer| recv_all(socket, buffer, polled)),
    )
}

impl<M> AsFd for Stream<M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Sends all of `bytes` over a stream socket.
#[inline]
pub(super) fn send_all(socket: &OwnedFd, bytes: &[u8], polled: bool) -> Result<()> {
    let mut flags = SendFlags::NOSIGNAL;
    flags.set(SendFlags::DONTWAIT, polled);
    let mut rest = bytes;
    while !rest.is_empty() {
        match send(socket, rest, flags) {
            Ok(sent) => rest = &rest[sent..],
            Err(Errno::AGAIN) => std::hint::spin_loop(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).doing("sending to the stream socket"),
        }
    }
    Ok(())
}

/// Receives from a stream socket until `buffer` is full.
#[inline]
pub(super) fn recv_all(socket: &OwnedFd, buffer: &mut [u8], polled: bool) -> Result<()> {
    let flags = if polled { RecvFlags::DONTWAIT } else { RecvFlags::WAITALL };
    let mut filled = 0;
    while filled < buffer.len() {
        match recv(socket, &mut buffer[filled..], flags) {
            Ok((_, 0)) => return Err(Trouble::new("the other end of the socket is closed")),
            Ok((_, got)) => filled += got,
            Err(Errno::AGAIN) => std::hint::spin_loop(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).doing("receiving from the stream socket"),
        }
    }
    Ok(())
}
