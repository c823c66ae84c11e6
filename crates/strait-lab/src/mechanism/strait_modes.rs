//! Strait in its other ways of use, over the same channel as [`Strait`].
//!
//! [`Strait`] itself measures `send` and `recv_into` over the first channel of a link.

use std::os::fd::OwnedFd;

use strait::wait::{Event, Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Handle, Message, Outgoing};

use super::strait_peer::{options, whole};
use super::{Ability, End, Opened, Side, Strait};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// The ways of waiting that a channel supports.
const WAITS: &[Wait] = &[Wait::Spin, Wait::Adaptive, Wait::Block];

/// A way to use a channel, as a separate mechanism.
pub(crate) trait Manner: Sized + 'static {
    /// The mechanism's name on the command line and in results.
    const NAME: &'static str;
    /// The mechanism's name in a table.
    const TITLE: &'static str;
    /// The supported ways of waiting.
    const WAITS: &'static [Wait] = WAITS;

    /// Prepares `channel` for this use.
    fn over(channel: &mut Channel, side: Side, work: &Work) -> Result<Self>;

    /// Sends `message`.
    #[inline]
    fn send(&mut self, channel: &Channel, message: &[u8]) -> Result<()> {
        channel.send(message).doing("send")
    }

    /// Waits for a message of the length of `buffer`, and copies it into `buffer`.
    #[inline]
    fn recv(&mut self, channel: &Channel, buffer: &mut [u8]) -> Result<()> {
        let received = channel.recv_into(buffer, Deadline::NEVER).doing("recv_into")?;
        whole(received.len(), buffer.len())
    }
}

/// One process's end of a channel, used in the way `M`.
#[derive(Debug)]
pub(crate) struct StraitUsed<M> {
    channel: Channel,
    manner: M,
}

impl<M: Manner> End for StraitUsed<M> {
    const NAME: &'static str = M::NAME;
    const TITLE: &'static str = M::TITLE;
    const WAITS: &'static [Wait] = M::WAITS;
    const ABILITIES: &'static [Ability] = &[Ability::Stream];

    fn open(work: &Work) -> Result<Opened> {
        Strait::open(work)
    }

    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let Strait(mut channel) = Strait::join(work, side, descriptors)?;
        let manner = M::over(&mut channel, side, work)?;
        Ok(Self { channel, manner })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.manner.send(&self.channel, message)
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.manner.recv(&self.channel, buffer)
    }
}

/// Receives each message into a [`Message`] that is used again: the usual way.
#[derive(Debug)]
pub(crate) struct Whole(Message);

impl Manner for Whole {
    const NAME: &'static str = "strait-message";
    const TITLE: &'static str = "Strait, whole messages";

    fn over(_: &mut Channel, _: Side, _: &Work) -> Result<Self> {
        Ok(Self(Message::new()))
    }

    #[inline]
    fn recv(&mut self, channel: &Channel, buffer: &mut [u8]) -> Result<()> {
        channel.recv_message(&mut self.0, Deadline::NEVER).doing("recv_message")?;
        whole(self.0.bytes().len(), buffer.len())?;
        buffer.copy_from_slice(self.0.bytes());
        Ok(())
    }
}

/// Fills and reads messages in place.
#[derive(Debug)]
pub(crate) struct InPlace;

impl Manner for InPlace {
    const NAME: &'static str = "strait-in-place";
    const TITLE: &'static str = "Strait, in place";

    fn over(_: &mut Channel, _: Side, _: &Work) -> Result<Self> {
        Ok(Self)
    }

    #[inline]
    fn send(&mut self, channel: &Channel, message: &[u8]) -> Result<()> {
        let mut room = channel.reserve(message.len(), Deadline::NEVER).doing("reserve")?;
        room.write_at(message, 0);
        room.commit().doing("commit")
    }

    #[inline]
    fn recv(&mut self, channel: &Channel, buffer: &mut [u8]) -> Result<()> {
        let mut message = channel.recv_in_place(Deadline::NEVER).doing("recv_in_place")?;
        whole(message.len(), buffer.len())?;
        message.read_at(buffer, 0);
        Ok(())
    }
}

/// Seals each message before the send, so that the receiver may read immutable bytes. Each message is a memfd of its
/// own: a way for large messages that are read in pieces.
#[derive(Debug)]
pub(crate) struct Sealed;

impl Manner for Sealed {
    const NAME: &'static str = "strait-sealed";
    const TITLE: &'static str = "Strait, sealed";

    fn over(_: &mut Channel, _: Side, _: &Work) -> Result<Self> {
        Ok(Self)
    }

    fn send(&mut self, channel: &Channel, message: &[u8]) -> Result<()> {
        let mut room = channel.reserve_sealed(message.len()).doing("reserve_sealed")?;
        room.bytes().copy_from_slice(message);
        room.commit(Deadline::NEVER).doing("commit")
    }

    fn recv(&mut self, channel: &Channel, buffer: &mut [u8]) -> Result<()> {
        let message = channel.recv_in_place(Deadline::NEVER).doing("recv_in_place")?;
        whole(message.len(), buffer.len())?;
        buffer.copy_from_slice(message.sealed().ok_or_else(|| Trouble::new("the message is not sealed"))?);
        Ok(())
    }
}

/// Receives by a wait set with only this channel, like a server with many clients.
#[derive(Debug)]
pub(crate) struct InSet {
    set: WaitSet,
    events: Vec<Event>,
    ready: bool,
    patience: Deadline,
}

impl Manner for InSet {
    const NAME: &'static str = "strait-wait-set";
    const TITLE: &'static str = "Strait, over a wait set";
    /// The ways of waiting that a wait set supports: it polls, or sleeps in epoll without spinning first.
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];

    fn over(channel: &mut Channel, _: Side, work: &Work) -> Result<Self> {
        let set = WaitSet::new().doing("WaitSet::new")?;
        set.add(channel, 0, Interest::Readable, Mode::Level).doing("WaitSet::add")?;
        let patience = if work.wait == Wait::Spin { Deadline::NOW } else { Deadline::NEVER };
        Ok(Self { set, events: Vec::with_capacity(1), ready: false, patience })
    }

    #[inline]
    fn recv(&mut self, channel: &Channel, buffer: &mut [u8]) -> Result<()> {
        loop {
            // A ready channel may have several messages. The wait set is asked again when none is left.
            if self.ready {
                match channel.recv_into(buffer, Deadline::NOW) {
                    Ok(received) => return whole(received.len(), buffer.len()),
                    Err(Error::WouldBlock) => self.ready = false,
                    Err(error) => return Err(error).doing("recv_into"),
                }
            }
            self.events.clear();
            self.ready = self.set.wait(&mut self.events, self.patience).doing("WaitSet::wait")? > 0;
        }
    }
}

/// Uses a channel sent over another channel, with the socket and the memory of the other channel: like every channel
/// but the first between two processes.
#[derive(Debug)]
pub(crate) struct Second {
    _carrier: Channel,
}

impl Manner for Second {
    const NAME: &'static str = "strait-second";
    const TITLE: &'static str = "Strait, second channel";

    fn over(channel: &mut Channel, side: Side, work: &Work) -> Result<Self> {
        let second = match side {
            Side::First => {
                let (here, there) = options(work).pair().doing("Channel::pair")?;
                channel.send(Outgoing::new(b"").handle(Handle::from(there))).doing("sending an end")?;
                here
            }
            Side::Second => {
                let mut handles = channel.recv().doing("recv")?.take_handles().doing("take_handles")?;
                let end = handles.pop().and_then(Handle::into_channel);
                end.ok_or_else(|| Trouble::new("the message has no channel end"))?
            }
        };
        Ok(Self { _carrier: std::mem::replace(channel, second) })
    }
}
