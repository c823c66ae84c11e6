//! The objects that a wait set can hold.

use std::rc::Rc;
use std::sync::{Arc, Weak};

use crate::call::CallEnd;
use crate::channel::pipe_end::{DataConsumer, DataProducer};
use crate::channel::{Channel, Receiver, Sender};
use crate::meet::Listener;
use crate::pipe::{Gate, PipeEnd};
use crate::wake::watched_fd::WatchedFd;

use super::{Fd, Interest};

mod sealed {
    pub trait Sealed {}
}

/// An object that a [wait set](crate::wait::WaitSet) can hold: a channel, an end of a data pipe, a call end, a
/// listener, or a descriptor of the program; also behind a pointer.
///
/// | source | its events |
/// |---|---|
/// | [`Channel`] | readable: there is a message, or the peer is gone; writable: there is room for a small message |
/// | [`Sender`], [`Receiver`] | as the channel; the two halves of an end are one source |
/// | [`DataConsumer`] | readable: there is an element, or the stream has ended; the interest does not matter |
/// | [`DataProducer`] | writable: there is room for an element, or the consumer is gone; the interest does not matter |
/// | [`CallEnd`] | readable: a request or a reply may have arrived, so [`CallEnd::next_request`] is worthwhile |
/// | [`Listener`] | readable: [`Listener::accept`] has something to do, though not always something to return; the interest does not matter |
/// | [`Fd`] | readable or writable as `poll` says; both on an error or a hang-up |
///
/// One set can serve all the channels of a server, and its listener:
///
/// ```
/// use std::time::Duration;
/// use strait::wait::{Interest, Mode, WaitSet};
/// use strait::{Deadline, Error, Listener, connect};
///
/// const LIMIT: Duration = Duration::from_secs(10);
/// const LISTENER: u64 = 0;
/// let name = format!("example-of-sources-{}", std::process::id());
/// let listener = Listener::bind(&name)?;
/// let client = std::thread::spawn(move || connect(&name, LIMIT)?.send(b"hello").map_err(Error::from));
/// let set = WaitSet::new()?;
/// set.add(&listener, LISTENER, Interest::Readable, Mode::Level)?;
/// let (mut clients, mut events, mut received) = (Vec::new(), Vec::new(), Vec::new());
/// while received.is_empty() {
///     set.wait(&mut events, LIMIT)?;
///     for event in &events {
///         if event.key() == LISTENER {
///             match listener.accept(Deadline::NOW) {
///                 Ok(channel) => {
///                     clients.push(channel);
///                     set.add(&clients[clients.len() - 1], clients.len() as u64, Interest::Readable, Mode::Level)?;
///                 }
///                 Err(failed) if failed.error == Error::WouldBlock => {}
///                 Err(failed) => return Err(failed.into()),
///             }
///         } else {
///             received.push(clients[event.key() as usize - 1].try_recv()?);
///         }
///     }
/// }
/// assert_eq!(received[0].bytes(), b"hello");
/// client.join().expect("a client")?;
/// # Ok::<(), strait::Error>(())
/// ```
pub trait Source: sealed::Sealed {
    #[doc(hidden)]
    fn parts(&self) -> Parts<'_>;
}

/// The parts of a source for the wait set: the channel or the descriptor.
#[doc(hidden)]
#[derive(Debug)]
pub enum Parts<'a> {
    #[doc(hidden)]
    End(EndParts<'a>),
    #[doc(hidden)]
    Fd(FdParts<'a>),
}

/// The parts of a source with a channel: the channel, which is the member of the wait set, and, for an end of a data
/// pipe, the gate that the wait set asks before looking at the channel.
#[doc(hidden)]
#[derive(Debug)]
pub struct EndParts<'a> {
    pub(crate) channel: &'a Channel,
    pub(crate) gate: Option<Weak<dyn Gate>>,
}

/// The parts of a source that is a descriptor: the descriptor with its place in a wait set.
#[doc(hidden)]
#[derive(Debug)]
pub struct FdParts<'a> {
    pub(crate) fd: &'a Arc<WatchedFd>,
    /// Whether only reading the descriptor makes sense, whatever interest the program gives.
    pub(crate) only_readable: bool,
}

impl<'a> Parts<'a> {
    fn of_fd(fd: &'a Arc<WatchedFd>, only_readable: bool) -> Self {
        Self::Fd(FdParts { fd, only_readable })
    }

    /// Returns the interest of the source's registration if the program gives `interest`.
    pub(crate) fn interest(&self, interest: Interest) -> Interest {
        match self {
            // Doorbells arrive on the channel of a data-pipe end, whether the end reads or writes.
            Self::End(EndParts { gate: Some(_), .. }) | Self::Fd(FdParts { only_readable: true, .. }) => {
                Interest::Readable
            }
            _ => interest,
        }
    }
}

/// A source that is made of a channel.
pub(crate) trait EndSource: Source {
    fn end_parts(&self) -> EndParts<'_>;
}

/// Implements [`Source`] for objects that are made of a channel.
macro_rules! ends {
    ($($end:ty: $parts:expr),* $(,)?) => {$(
        impl EndSource for $end {
            fn end_parts(&self) -> EndParts<'_> {
                let parts: fn(&Self) -> EndParts<'_> = $parts;
                parts(self)
            }
        }

        impl sealed::Sealed for $end {}
        impl Source for $end {
            fn parts(&self) -> Parts<'_> {
                Parts::End(self.end_parts())
            }
        }
    )*};
}

impl<'a> EndParts<'a> {
    fn of_pipe(end: &'a impl PipeEnd) -> Self {
        let (channel, gate) = end.watched();
        Self { channel, gate: Some(gate) }
    }
}

ends! {
    Channel: |channel| EndParts { channel, gate: None },
    Sender: |half| EndParts { channel: half.shared(), gate: None },
    Receiver: |half| EndParts { channel: half.shared(), gate: None },
    CallEnd: |end| EndParts { channel: end.channel(), gate: None },
    DataProducer: |end| EndParts::of_pipe(end),
    DataConsumer: |end| EndParts::of_pipe(end),
}

impl sealed::Sealed for Listener {}
impl Source for Listener {
    fn parts(&self) -> Parts<'_> {
        Parts::of_fd(&self.outside, true)
    }
}

impl sealed::Sealed for Fd {}
impl Source for Fd {
    fn parts(&self) -> Parts<'_> {
        Parts::of_fd(&self.watched, false)
    }
}

/// Implements [`Source`] for a pointer to a source.
macro_rules! through {
    ($($pointer:ty),*) => {$(
        impl<T: Source + ?Sized> sealed::Sealed for $pointer {}
        impl<T: Source + ?Sized> Source for $pointer {
            fn parts(&self) -> Parts<'_> {
                (**self).parts()
            }
        }
    )*};
}

through!(&T, Box<T>, Rc<T>, Arc<T>);
