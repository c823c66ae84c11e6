//! The objects that a wait set can hold.

use std::rc::Rc;
use std::sync::{Arc, Weak};

use crate::call::CallEnd;
use crate::channel::Channel;
use crate::channel::pipe_end::{DataConsumer, DataProducer};
use crate::pipe::{Gate, PipeEnd};

mod sealed {
    pub trait Sealed {}
}

/// An object that a [wait set](crate::wait::WaitSet) can hold: a channel, an end of a data pipe, or a call end; also
/// behind a pointer.
///
/// | source | its events |
/// |---|---|
/// | [`Channel`] | readable: there is a message, or the peer is gone; writable: there is room for a small message |
/// | [`DataConsumer`] | readable: there is an element, or the stream has ended; the interest does not matter |
/// | [`DataProducer`] | writable: there is room for an element, or the consumer is gone; the interest does not matter |
/// | [`CallEnd`] | readable: a request or a reply may have arrived, so [`CallEnd::next_request`] is worthwhile |
pub trait Source: sealed::Sealed {
    #[doc(hidden)]
    fn parts(&self) -> Parts<'_>;
}

/// What a wait set needs of a source: the channel that is the member of the wait set and, for an end of a data pipe,
/// the gate that the wait set asks before it looks at the channel.
#[doc(hidden)]
#[derive(Debug)]
pub struct Parts<'a> {
    pub(crate) channel: &'a Channel,
    pub(crate) gate: Option<Weak<dyn Gate>>,
}

impl<'a> Parts<'a> {
    fn of_channel(channel: &'a Channel) -> Self {
        Self { channel, gate: None }
    }

    fn of_pipe(end: &'a impl PipeEnd) -> Self {
        let (channel, gate) = end.watched();
        Self { channel, gate: Some(gate) }
    }
}

impl sealed::Sealed for Channel {}
impl Source for Channel {
    fn parts(&self) -> Parts<'_> {
        Parts::of_channel(self)
    }
}

impl sealed::Sealed for CallEnd {}
impl Source for CallEnd {
    fn parts(&self) -> Parts<'_> {
        Parts::of_channel(self.channel())
    }
}

impl sealed::Sealed for DataProducer {}
impl Source for DataProducer {
    fn parts(&self) -> Parts<'_> {
        Parts::of_pipe(self)
    }
}

impl sealed::Sealed for DataConsumer {}
impl Source for DataConsumer {
    fn parts(&self) -> Parts<'_> {
        Parts::of_pipe(self)
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
