//! A bare `sendmsg` and `recvmsg` with one descriptor (`SCM_RIGHTS`), on a Unix seqpacket socket.
//!
//! One descriptor goes back and forth. The sender closes its own copy, since the descriptor *moves*. So each way costs
//! a `sendmsg`, a `close` and a `recvmsg`, and no descriptor is duplicated.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketType, recvmsg, sendmsg,
};

use super::{Ability, End, Opened, Side, exactly, meeting, traveller};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// One process's end of a socket. A descriptor goes back and forth over the socket.
#[derive(Debug)]
pub(crate) struct Rights {
    socket: OwnedFd,
    polled: bool,
    /// The descriptor, while this process has it.
    held: Option<OwnedFd>,
}

impl End for Rights {
    const NAME: &'static str = "rights";
    const TITLE: &'static str = "sendmsg with a descriptor";
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];
    const ABILITIES: &'static [Ability] = &[];
    /// The size of the largest message: small enough for every socket's buffer, since only the descriptor matters.
    const MOST: usize = 64 << 10;

    fn open(_: &Work) -> Result<Opened> {
        let (first, second) = meeting::pair(SocketType::SEQPACKET)?;
        Ok(Opened { first: vec![first, traveller()?], second: vec![second] })
    }

    fn join(work: &Work, side: Side, mut descriptors: Vec<OwnedFd>) -> Result<Self> {
        let held = match side {
            Side::First => descriptors.pop(),
            Side::Second => None,
        };
        let [socket] = exactly(descriptors)?;
        Ok(Self { socket, polled: work.wait == Wait::Spin, held })
    }

    fn send(&mut self, message: &[u8]) -> Result<()> {
        let mut flags = SendFlags::NOSIGNAL;
        flags.set(SendFlags::DONTWAIT, self.polled);
        let held = self.held.take().ok_or_else(|| Trouble::new("this process does not have the descriptor"))?;
        let held = [held.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&held));
        loop {
            match sendmsg(&self.socket, &[IoSlice::new(message)], &mut control, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN) => std::hint::spin_loop(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).doing("sendmsg"),
            }
        }
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        let mut flags = RecvFlags::CMSG_CLOEXEC;
        flags.set(RecvFlags::DONTWAIT, self.polled);
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            match recvmsg(&self.socket, &mut [IoSliceMut::new(buffer)], &mut control, flags) {
                Ok(got) => break got.bytes,
                Err(Errno::AGAIN) => std::hint::spin_loop(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).doing("recvmsg"),
            }
        };
        if got != buffer.len() {
            return Err(Trouble::new(format!("a message of {got} bytes arrived")));
        }
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
                self.held = descriptors.next();
            }
        }
        match self.held {
            Some(_) => Ok(()),
            None => Err(Trouble::new("the descriptor did not arrive")),
        }
    }
}
