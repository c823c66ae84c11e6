//! A Unix seqpacket socket: the kernel's own message channel.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::sockopt::set_socket_send_buffer_size;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use super::{End, Opened, Side, exactly};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// One process's end.
#[derive(Debug)]
pub(crate) struct Seqpacket {
    socket: OwnedFd,
    polled: bool,
}

/// A connected pair.
pub(super) fn pair() -> Result<(OwnedFd, OwnedFd)> {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).doing("socketpair")
}

impl End for Seqpacket {
    const NAME: &'static str = "seqpacket";
    const TITLE: &'static str = "Unix seqpacket socket";
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];

    fn open(work: &Work) -> Result<Opened> {
        let (first, second) = pair()?;
        // A message must fit into the send buffer whole; the kernel gives what its limit allows.
        if work.size > 64 << 10 {
            for socket in [&first, &second] {
                set_socket_send_buffer_size(socket, 4 * work.size).doing("setsockopt(SO_SNDBUF)")?;
            }
        }
        Ok(Opened { first: vec![first], second: vec![second] })
    }

    fn join(work: &Work, _: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [socket] = exactly(descriptors)?;
        Ok(Self { socket, polled: work.wait == Wait::Spin })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::DONTWAIT, self.polled);
        loop {
            match send(&self.socket, message, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN) => std::hint::spin_loop(),
                Err(Errno::INTR) => {}
                Err(Errno::MSGSIZE) => {
                    return Err(Trouble::new("too large for the socket's send buffer"));
                }
                Err(error) => return Err(error).doing("sending to the seqpacket socket"),
            }
        }
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        let mut flags = RecvFlags::empty();
        flags.set(RecvFlags::DONTWAIT, self.polled);
        loop {
            match recv(&self.socket, &mut *buffer, flags) {
                Ok((_, 0)) => return Err(Trouble::new("the other end of the socket is closed")),
                Ok((_, got)) if got == buffer.len() => return Ok(()),
                Ok((_, got)) => {
                    return Err(Trouble::new(format!("a message of {got} bytes came")));
                }
                Err(Errno::AGAIN) => std::hint::spin_loop(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).doing("receiving from the seqpacket socket"),
            }
        }
    }
}
