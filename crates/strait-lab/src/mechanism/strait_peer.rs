//! Strait itself: with [`ends`](crate::bars::ends) all of the benchmarks that knows its interface.
//!
//! Both processes bring a connected socket and make a channel over it. Messages are received into the caller's buffer,
//! which is one copy in and one copy out, as for everything that Strait is compared with.

use std::os::fd::OwnedFd;

use rustix::net::SocketType;
use strait::{Channel, Deadline, Options, Outgoing};

use super::{Ability, End, Opened, Side, exactly, meeting, rights};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// One process's end of a channel.
#[derive(Debug)]
pub(crate) struct Strait(pub(crate) Channel);

/// The options that a work asks for: the defaults, but for the way of waiting, for the size of the ring where that is
/// fixed, and for a pool in which the largest messages stay warm.
fn options(work: &Work) -> Options {
    let mut options = Options::new().wait(match work.wait {
        Wait::Spin => strait::Wait::Spin,
        Wait::Adaptive => strait::Wait::Adaptive,
        Wait::Block => strait::Wait::Block,
    });
    if let Some(slots) = work.slots {
        options = options.ring_max(slots * 64);
    }
    if work.size >= 16 << 20 {
        options = options.pool(4 * work.size).peer_memory(8 * work.size);
    }
    options
}

impl End for Strait {
    const NAME: &'static str = "strait";
    const TITLE: &'static str = "Strait";
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Adaptive, Wait::Block];
    const ABILITIES: &'static [Ability] = &[Ability::Stream, Ability::InPlace];

    fn open(_: &Work) -> Result<Opened> {
        let (first, second) = meeting::pair(SocketType::SEQPACKET)?;
        Ok(Opened { first: vec![first], second: vec![second] })
    }

    fn join(work: &Work, _: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [socket] = exactly(descriptors)?;
        Channel::over(socket, &options(work)).map(Self).doing("making the channel")
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.0.send(message).doing("send")
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        let received = self.0.recv_into(buffer, Deadline::NEVER).doing("recv_into")?;
        whole(received.len(), buffer.len())
    }

    #[inline]
    fn send_batch(&mut self, messages: &[u8], size: usize) -> Result<()> {
        if messages.len() == size {
            return self.send(messages);
        }
        let batch = messages.chunks_exact(size).map(Outgoing::new);
        self.0.send_many(batch, Deadline::NEVER).doing("send_many")?;
        Ok(())
    }

    fn send_filled(&mut self, len: usize, fill: impl FnOnce(&mut dyn FnMut(usize, &[u8]))) -> Result<()> {
        let mut reservation = self.0.reserve(len, Deadline::NEVER).doing("reserve")?;
        fill(&mut |place, bytes| reservation.put_at(place, bytes));
        reservation.commit().doing("commit")
    }

    fn recv_in_place<T>(&mut self, len: usize, read: impl FnOnce(&mut dyn FnMut(usize, &mut [u8])) -> T) -> Result<T> {
        let mut message = self.0.recv_in_place(Deadline::NEVER).doing("recv_in_place")?;
        whole(message.len(), len)?;
        Ok(read(&mut |place, bytes| message.copy_to(place, bytes)))
    }
}

#[inline]
fn whole(got: usize, due: usize) -> Result<()> {
    if got == due { Ok(()) } else { Err(Trouble::new(format!("a message of {got} bytes came where {due} were due"))) }
}

/// The same, with a descriptor that travels in each message.
#[derive(Debug)]
pub(crate) struct StraitRights {
    channel: Channel,
    /// The travelling descriptor, while it is here.
    held: Option<OwnedFd>,
}

impl End for StraitRights {
    const NAME: &'static str = "strait-rights";
    const TITLE: &'static str = "Strait with a descriptor";
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Adaptive, Wait::Block];
    const ABILITIES: &'static [Ability] = &[];

    fn open(work: &Work) -> Result<Opened> {
        let mut opened = Strait::open(work)?;
        opened.first.push(rights::traveller()?);
        Ok(opened)
    }

    fn join(work: &Work, side: Side, mut descriptors: Vec<OwnedFd>) -> Result<Self> {
        let held = match side {
            Side::First => descriptors.pop(),
            Side::Second => None,
        };
        let Strait(channel) = Strait::join(work, side, descriptors)?;
        Ok(Self { channel, held })
    }

    fn send(&mut self, message: &[u8]) -> Result<()> {
        let held = self.held.take().ok_or_else(|| Trouble::new("the descriptor is not here"))?;
        self.channel.send(Outgoing::new(message).handle(held)).doing("send")
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        let mut received = self.channel.recv_into(buffer, Deadline::NEVER).doing("recv_into")?;
        whole(received.len(), buffer.len())?;
        let mut handles = received.take_handles().doing("take_handles")?;
        self.held = handles.pop().and_then(strait::Handle::into_fd);
        match self.held {
            Some(_) => Ok(()),
            None => Err(Trouble::new("the descriptor did not arrive")),
        }
    }
}
