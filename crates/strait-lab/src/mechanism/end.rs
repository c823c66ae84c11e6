//! Ends: the operations of a mechanism that the measuring loops use.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use crate::shape::Ability;
use crate::trouble::{Result, Trouble};
use crate::work::{Side, Wait, Work};

/// The descriptors that each side needs to join a mechanism.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) first: Vec<OwnedFd>,
    pub(crate) second: Vec<OwnedFd>,
}

/// One process's end of a mechanism.
pub(crate) trait End: Sized + 'static {
    /// The mechanism's name on the command line and in results.
    const NAME: &'static str;
    /// The mechanism's name in a table.
    const TITLE: &'static str;
    /// The ways of waiting that the mechanism supports.
    const WAITS: &'static [Wait];
    /// The mechanism's abilities, besides sending a message and waiting for the next one.
    const ABILITIES: &'static [Ability] = &[Ability::Stream];
    /// The ways of waiting for several ends at once, if the mechanism has [`Ability::Hub`].
    const HUB_WAITS: &'static [Wait] = Self::WAITS;
    /// The size in bytes of the largest message that the mechanism carries.
    const MOST: usize = usize::MAX;
    /// The size in bytes of the largest message that stays whole with several senders on one end.
    const MOST_SHARED: usize = usize::MAX;
    /// The most descriptors that a message can carry, if the mechanism has [`Ability::Descriptors`].
    const MOST_DESCRIPTORS: usize = 253;

    /// If this machine does not support the mechanism, returns the reason.
    fn missing() -> Option<String> {
        None
    }

    /// Creates, in the first process, the descriptors that both sides need.
    fn open(work: &Work) -> Result<Opened>;

    /// Makes this process's end from descriptors.
    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self>;

    /// Sends `message`.
    fn send(&mut self, message: &[u8]) -> Result<()>;

    /// Waits for a message of exactly the length of `buffer`, and copies it into `buffer`.
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()>;

    /// Sends the messages of `size` bytes each in `messages`.
    #[inline]
    fn send_batch(&mut self, messages: &[u8], size: usize) -> Result<()> {
        messages.chunks_exact(size).try_for_each(|message| self.send(message))
    }

    /// Sends a message of `len` bytes that `fill` writes in place. `fill` is called with a function that writes bytes
    /// at an offset of the message.
    fn send_filled(&mut self, _len: usize, _fill: impl FnOnce(&mut dyn FnMut(usize, &[u8]))) -> Result<()> {
        Err(Self::unable())
    }

    /// Waits for a message of `len` bytes and lets `read` read it in place. `read` is called with a function that
    /// copies out the bytes at an offset of the message.
    fn recv_in_place<T>(
        &mut self,
        _len: usize,
        _read: impl FnOnce(&mut dyn FnMut(usize, &mut [u8])) -> T,
    ) -> Result<T> {
        Err(Self::unable())
    }

    /// Sends a message that `fill` writes into new memory, and otherwise as [`send_filled`](Self::send_filled). The
    /// first touch of each page belongs to the call.
    fn send_fresh(&mut self, _len: usize, _fill: impl FnOnce(&mut dyn FnMut(usize, &[u8]))) -> Result<()> {
        Err(Self::unable())
    }

    /// Sends one message with the bytes of `parts`, joined.
    fn send_gathered(&mut self, _parts: &[IoSlice<'_>]) -> Result<()> {
        Err(Self::unable())
    }

    /// Sends `message` and all of `descriptors`. The vector is empty afterwards: this process's copies are closed.
    fn send_with(&mut self, _message: &[u8], _descriptors: &mut Vec<OwnedFd>) -> Result<()> {
        Err(Self::unable())
    }

    /// Receives as [`recv`](Self::recv), and appends the descriptors of the message to `descriptors`.
    fn recv_with(&mut self, _buffer: &mut [u8], _descriptors: &mut Vec<OwnedFd>) -> Result<()> {
        Err(Self::unable())
    }

    /// Splits the end into its two directions, for two threads.
    fn divide(&mut self) -> Result<(Sending<'_>, Receiving<'_>)> {
        Err(Self::unable())
    }

    /// Combines the ends to several processes into a hub with one wait for all ends.
    fn hub(_ends: Vec<Self>, _work: &Work) -> Result<Box<dyn Hub>> {
        Err(Self::unable())
    }

    /// Returns the channel that the end is.
    fn into_channel(self) -> Result<strait::Channel> {
        Err(Self::unable())
    }

    /// Returns the error of a method that the mechanism does not support.
    fn unable() -> Trouble {
        Trouble::new(format!("{} does not support this operation", Self::TITLE))
    }
}

/// The ends to several processes, used as one: a hub sends to any of them and waits for all.
pub(crate) trait Hub {
    /// Sends `message` through the end with the index `to`.
    fn send(&mut self, to: usize, message: &[u8]) -> Result<()>;

    /// Waits for a message of the length of `buffer` from any process. Returns the index of the message's end, or
    /// `None` if all processes share one end.
    fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<usize>>;
}

/// A function that sends a message like [`End::send`], in any thread.
pub(crate) type Sending<'a> = Box<dyn FnMut(&[u8]) -> Result<()> + Send + 'a>;

/// A function that waits for a message as [`End::recv`] does.
pub(crate) type Receiving<'a> = Box<dyn FnMut(&mut [u8]) -> Result<()> + 'a>;

/// Converts the descriptors of a side into an array. Fails if their number is not `N`.
pub(super) fn exactly<const N: usize>(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; N]> {
    descriptors
        .try_into()
        .map_err(|these: Vec<OwnedFd>| Trouble::new(format!("{} descriptors arrived instead of {N}", these.len())))
}
