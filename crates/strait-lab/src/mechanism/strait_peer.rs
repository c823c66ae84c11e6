//! Strait itself. Only this module, `strait_modes` and [`objects`](crate::loops::objects) use Strait's interface.
//!
//! Both processes get a connected socket and make a channel over it. Messages are received into the caller's buffer:
//! one copy in and one copy out, as for every compared mechanism.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::net::SocketType;
use strait::wait::{Event, Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Handle, Options, Outgoing, quota};

use super::{Ability, End, Hub, Opened, Receiving, Sending, Side, exactly, hub, meeting, socket};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// One process's end of a channel.
#[derive(Debug)]
pub(crate) struct Strait(pub(crate) Channel);

/// Returns the channel options for a work: the defaults, except for the way of waiting, a fixed size of the ring,
/// and, for large messages, a larger limit on the memory of peers. For large messages, also raises the limit on warm
/// memory of this process.
pub(crate) fn options(work: &Work) -> Options {
    let mut options = Options::new().wait(match work.wait {
        Wait::Spin => strait::Wait::Spin,
        Wait::Adaptive => strait::Wait::Adaptive,
        Wait::Block => strait::Wait::Block,
    });
    if let Some(slots) = work.slots {
        options = options.ring_max(slots * 64);
    }
    if work.size >= 16 << 20 {
        quota::set_pool_limit(quota::pool_limit().max(4 * work.size));
        options = options.peer_memory(8 * work.size);
    }
    options
}

impl End for Strait {
    const NAME: &'static str = "strait";
    const TITLE: &'static str = "Strait";
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Adaptive, Wait::Block];
    const ABILITIES: &'static [Ability] = &[
        Ability::Stream,
        Ability::InPlace,
        Ability::Fresh,
        Ability::Gather,
        Ability::Descriptors,
        Ability::Hub,
        Ability::Threads,
        Ability::Objects,
    ];
    const MOST_DESCRIPTORS: usize = strait::quota::MAX_HANDLES;

    fn open(_: &Work) -> Result<Opened> {
        let (first, second) = meeting::pair(SocketType::SEQPACKET)?;
        Ok(Opened { first: vec![first], second: vec![second] })
    }

    fn join(work: &Work, _: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [socket] = exactly(descriptors)?;
        options(work).over(socket).map(Self).doing("making the channel")
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.0.send(message).doing("send")
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        receive(&self.0, buffer)
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
        fill(&mut |place, bytes| reservation.write_at(bytes, place));
        reservation.commit().doing("commit")
    }

    fn recv_in_place<T>(&mut self, len: usize, read: impl FnOnce(&mut dyn FnMut(usize, &mut [u8])) -> T) -> Result<T> {
        let mut message = self.0.recv_in_place(Deadline::NEVER).doing("recv_in_place")?;
        whole(message.len(), len)?;
        Ok(read(&mut |place, bytes| message.read_at(bytes, place)))
    }

    fn send_fresh(&mut self, len: usize, fill: impl FnOnce(&mut dyn FnMut(usize, &[u8]))) -> Result<()> {
        let mut reservation = self.0.reserve_sealed(len).doing("reserve_sealed")?;
        let room = reservation.bytes();
        fill(&mut |place, bytes| room[place..place + bytes.len()].copy_from_slice(bytes));
        reservation.commit(Deadline::NEVER).doing("commit")
    }

    fn send_gathered(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        self.0.send(Outgoing::vectored(parts)).doing("send")
    }

    fn send_with(&mut self, message: &[u8], descriptors: &mut Vec<OwnedFd>) -> Result<()> {
        let handles = descriptors.drain(..).map(Handle::from);
        self.0.send(Outgoing::new(message).handles(handles)).doing("send")
    }

    fn recv_with(&mut self, buffer: &mut [u8], descriptors: &mut Vec<OwnedFd>) -> Result<()> {
        let mut received = self.0.recv_into(buffer, Deadline::NEVER).doing("recv_into")?;
        whole(received.len(), buffer.len())?;
        descriptors.extend(received.take_handles().doing("take_handles")?.into_iter().filter_map(Handle::into_fd));
        Ok(())
    }

    fn into_channel(self) -> Result<Channel> {
        Ok(self.0)
    }

    fn divide(&mut self) -> Result<(Sending<'_>, Receiving<'_>)> {
        let channel = &self.0;
        Ok((Box::new(|message| channel.send(message).doing("send")), Box::new(|buffer| receive(channel, buffer))))
    }

    fn hub(ends: Vec<Self>, work: &Work) -> Result<Box<dyn Hub>> {
        if work.wait == Wait::Spin {
            return Ok(hub::spinning(ends));
        }
        let set = WaitSet::new().doing("making a wait set")?;
        for (key, Self(channel)) in (0..).zip(&ends) {
            set.add(channel, key, Interest::Readable, Mode::Level).doing("adding to the wait set")?;
        }
        Ok(Box::new(Waiting { ends, set, events: Vec::with_capacity(EVENTS), next: 0, taken: 0 }))
    }
}

impl hub::Look for Strait {
    #[inline]
    fn try_recv(&mut self, buffer: &mut [u8]) -> Result<bool> {
        match self.0.recv_into(buffer, Deadline::NOW) {
            Ok(received) => whole(received.len(), buffer.len()).map(|()| true),
            Err(strait::Error::WouldBlock) => Ok(false),
            Err(error) => Err(error).doing("recv_into"),
        }
    }
}

/// The most events returned by one call of the wait set.
const EVENTS: usize = 64;
/// The maximum number of messages taken from a channel before the next channel has its turn. A hub of sockets takes one
/// from each ready socket: there a further attempt is a system call.
const TURN: usize = 64;

/// A hub of several channels in a wait set.
#[derive(Debug)]
struct Waiting {
    ends: Vec<Strait>,
    set: WaitSet,
    events: Vec<Event>,
    /// The index in `events` of the event whose channel is received from.
    next: usize,
    /// The number of messages received for this event since the report of the wait set.
    taken: usize,
}

impl Hub for Waiting {
    fn send(&mut self, to: usize, message: &[u8]) -> Result<()> {
        self.ends[to].send(message)
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        loop {
            while let Some(event) = self.events.get(self.next) {
                let from = event.key() as usize;
                if self.taken < TURN && hub::Look::try_recv(&mut self.ends[from], buffer)? {
                    self.taken += 1;
                    return Ok(Some(from));
                }
                self.next += 1;
                self.taken = 0;
            }
            self.set.wait(&mut self.events, Deadline::NEVER).doing("waiting for the set")?;
            self.next = 0;
        }
    }
}

/// Receives a message of the length of `buffer` into `buffer`; a message of another length is an error.
#[inline]
fn receive(channel: &Channel, buffer: &mut [u8]) -> Result<()> {
    let received = channel.recv_into(buffer, Deadline::NEVER).doing("recv_into")?;
    whole(received.len(), buffer.len())
}

#[inline]
pub(super) fn whole(got: usize, due: usize) -> Result<()> {
    if got == due { Ok(()) } else { Err(Trouble::new(format!("a message of {got} bytes arrived instead of {due}"))) }
}

/// An object that goes back and forth over a channel.
pub(crate) trait Travels: Sized + Into<Handle> + 'static {
    /// The name and the title of the mechanism.
    const NAMES: [&'static str; 2];

    /// Makes the object, and the channel end, if any, that stays in the first process meanwhile.
    fn new() -> Result<(Self, Option<Channel>)>;

    /// Returns the object in a received handle of its kind.
    fn of(handle: Handle) -> Option<Self>;
}

impl Travels for OwnedFd {
    const NAMES: [&'static str; 2] = ["strait-rights", "Strait with a descriptor"];

    fn new() -> Result<(Self, Option<Channel>)> {
        Ok((socket::traveller()?, None))
    }

    fn of(handle: Handle) -> Option<Self> {
        handle.into_fd()
    }
}

/// An end of another channel, whose other end stays in the first process.
impl Travels for Channel {
    const NAMES: [&'static str; 2] = ["strait-ends", "Strait with an end"];

    fn new() -> Result<(Self, Option<Channel>)> {
        Channel::pair().map(|(end, home)| (end, Some(home))).doing("making a channel")
    }

    fn of(handle: Handle) -> Option<Self> {
        handle.into_channel()
    }
}

/// One process's end of a channel. Every message carries the same object back or forth.
#[derive(Debug)]
pub(crate) struct StraitWith<T> {
    channel: Channel,
    /// The object, while in this process.
    held: Option<T>,
    /// The channel end that stays in the first process.
    _home: Option<Channel>,
}

impl<T: Travels> End for StraitWith<T> {
    const NAME: &'static str = T::NAMES[0];
    const TITLE: &'static str = T::NAMES[1];
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Adaptive, Wait::Block];
    const ABILITIES: &'static [Ability] = &[];

    fn open(work: &Work) -> Result<Opened> {
        Strait::open(work)
    }

    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let Strait(channel) = Strait::join(work, side, descriptors)?;
        let (held, home) = match side {
            Side::First => T::new().map(|(held, home)| (Some(held), home))?,
            Side::Second => (None, None),
        };
        Ok(Self { channel, held, _home: home })
    }

    fn send(&mut self, message: &[u8]) -> Result<()> {
        let held = self.held.take().ok_or_else(|| Trouble::new("this process does not have the object"))?;
        self.channel.send(Outgoing::new(message).handle(held)).doing("send")
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        let mut received = self.channel.recv_into(buffer, Deadline::NEVER).doing("recv_into")?;
        whole(received.len(), buffer.len())?;
        self.held = received.take_handles().doing("take_handles")?.pop().and_then(T::of);
        if self.held.is_some() { Ok(()) } else { Err(Trouble::new("the object did not arrive")) }
    }
}
