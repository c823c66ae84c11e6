//! A Unix stream socket.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};

use super::{End, Opened, Side, exactly};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// One process's end.
#[derive(Debug)]
pub(crate) struct Stream {
    socket: OwnedFd,
    polled: bool,
}

impl End for Stream {
    const NAME: &'static str = "stream";
    const TITLE: &'static str = "Unix stream socket";
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];

    fn open(_: &Work) -> Result<Opened> {
        let (first, second) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).doing("socketpair")?;
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
        let mut rest = message;
        while !rest.is_empty() {
            match send(&self.socket, rest, flags) {
                Ok(sent) => rest = &rest[sent..],
                Err(Errno::AGAIN) => std::hint::spin_loop(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).doing("sending to the stream socket"),
            }
        }
        Ok(())
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        let flags = if self.polled { RecvFlags::DONTWAIT } else { RecvFlags::WAITALL };
        let mut filled = 0;
        while filled < buffer.len() {
            match recv(&self.socket, &mut buffer[filled..], flags) {
                Ok((_, 0)) => return Err(Trouble::new("the other end of the socket is closed")),
                Ok((_, got)) => filled += got,
                Err(Errno::AGAIN) => std::hint::spin_loop(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).doing("receiving from the stream socket"),
            }
        }
        Ok(())
    }

    /// Several messages are one call: a stream keeps no boundaries anyway.
    #[inline]
    fn send_batch(&mut self, messages: &[u8], _: usize) -> Result<()> {
        self.send(messages)
    }
}
