//! Data pipes: one-way streams of bytes in shared memory, for data too long for a message.
//!
//! ```
//! use strait::Deadline;
//! use strait::pipe::DataPipe;
//!
//! let (producer, consumer) = DataPipe::pair(1 << 20)?; // Either may be sent to another process.
//! producer.write_whole(b"a frame", Deadline::NEVER)?;
//! let unread = consumer.begin_read(Deadline::NEVER)?;
//! assert_eq!(unread.len(), 7);
//! unread.consume(7);
//! producer.finish(Deadline::NEVER)?;
//! assert_eq!(consumer.read_some(&mut [0; 10], Deadline::NEVER)?, 0);
//! # Ok::<(), strait::Error>(())
//! ```
//!
//! [`Room`] and [`Unread`] are the parts of the buffer that the producer fills and the consumer reads in place. Both
//! ends can be sent in messages and be members of a wait set, and each end notices when the process of the other end
//! dies.

// Data pipes: one-way streams of bytes in shared memory.
//
// A data pipe is a piece of shared memory, with [words](crate::shm::PipeMemory) and a buffer, and a channel beside it.
// Bytes and counters are in the memory ([`stream`](crate::ring::stream)); in steady flow nothing else is used. The
// channel carries *doorbells*: empty messages to a side whose sleep word says that the side sleeps. So a data-pipe end
// has the abilities of a channel end: a program can send the end ([`pipe_end`]) and wait for it in a wait set
// ([`watch`]), and the end notices when the other process dies. Only a sleeping side costs a doorbell.
//
// [`pipe_end`] defines the two ends, [`producer`] and [`consumer`] write and read, [`end`] has the code of both, and
// [`splice`] moves bytes between a pipe and a descriptor.
//
// [`pipe_end`]: crate::channel::pipe_end

mod consumer;
mod end;
mod producer;
mod splice;
mod watch;

pub use crate::channel::pipe_end::{DataConsumer, DataProducer, PANICKED};
pub use consumer::Unread;
pub use producer::Room;
pub(crate) use watch::{Gate, PipeEnd};

use std::time::Duration;

use crate::channel::options::Options;
use crate::channel::pipe_end::PipeCore;
use crate::error::Error;
use crate::ring::stream::{Reading, Shape, Writing};
use crate::shm::PipeMemory;
use crate::wake::Wait;

/// A one-way stream of bytes in shared memory, from a [`DataProducer`] to a [`DataConsumer`].
///
/// Both ends are made in one process. Either can be sent to another process at any time; unread bytes stay in the pipe:
///
/// ```
/// use std::io::{Read, Write};
/// use strait::{Channel, Outgoing};
/// use strait::pipe::DataPipe;
/// let (to_child, child) = Channel::pair()?; // The child would be another process.
/// let (mut producer, consumer) = DataPipe::pair(64 << 10)?;
/// producer.write_all(b"log line\n").expect("there is room");
/// to_child.send(Outgoing::new(b"read this").handle(consumer))?;
///
/// let mut consumer = child.recv()?.take_handles()?.remove(0).into_consumer().expect("an end was sent");
/// drop(producer);
/// let mut text = String::new();
/// consumer.read_to_string(&mut text).expect("to the end of the stream");
/// assert_eq!(text, "log line\n");
/// # Ok::<(), strait::Error>(())
/// ```
///
/// # The end of the stream
/// When a producer is dropped, its consumer reads all written bytes, and then the end: 0 bytes. When the producer's
/// process *dies*, the consumer reads all written bytes, and then gets [`Error::PeerClosed`]. When a producer
/// [aborts](DataProducer::abort) the stream, or is dropped by a panic, the consumer reads all written bytes, and then
/// gets [`Error::Aborted`] with the reason. So a producer that may be dropped before it has written everything sets an
/// [abort reason](DataProducer::set_abort_reason) first, and ends the stream by [`finish`](DataProducer::finish).
///
/// If the consumer is dropped or its process dies, the producer gets [`Error::PeerClosed`], at the latest when the pipe
/// is full; if the consumer was closed [with a reason](DataConsumer::abort), [`Error::Aborted`]. If the producer is
/// dropped after this error, the stream counts as incomplete, and no consumer gets the end of the stream.
///
/// # Cost
/// Writing and reading cost one copy each, or no copy with [`DataProducer::begin_write`] and
/// [`DataConsumer::begin_read`]. Neither call makes a system call as long as the other side does not sleep. A pipe
/// costs its buffer and a page; each end costs one descriptor and one mapping.
#[derive(Debug)]
pub struct DataPipe(());

impl DataPipe {
    /// Creates a data pipe whose buffer has `capacity` bytes, with elements of 1 byte, and returns its two ends.
    ///
    /// # Errors
    /// As [`PipeOptions::create`].
    pub fn pair(capacity: usize) -> Result<(DataProducer, DataConsumer), Error> {
        PipeOptions::new().capacity(capacity).create()
    }
}

/// Options of a new data pipe.
///
/// | option | default |
/// |---|---|
/// | [`capacity`](Self::capacity) | 256 KiB |
/// | [`element`](Self::element) | 1 byte |
/// | [`name`](Self::name) | `strait-pipe` |
/// | [`prefault`](Self::prefault) | no |
/// | [`wait`](Self::wait) | [`Wait::Adaptive`] |
/// | [`spin`](Self::spin) | [`Options::default_spin`] |
///
/// ```
/// use strait::Deadline;
/// use strait::pipe::PipeOptions;
/// // Samples of 4 bytes: no part of a sample is read or written.
/// let (producer, consumer) = PipeOptions::new().capacity(1 << 16).element(4).create()?;
/// producer.write_whole(&[0; 8], Deadline::NEVER)?;
/// assert_eq!((consumer.element(), consumer.available()?), (4, 8));
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct PipeOptions {
    capacity: usize,
    element: u32,
    name: Option<String>,
    prefault: bool,
    wait: Wait,
    spin: Duration,
}

impl Default for PipeOptions {
    fn default() -> Self {
        let Options { wait, spin, .. } = Options::new();
        Self { capacity: 256 << 10, element: 1, name: None, prefault: false, wait, spin }
    }
}

impl PipeOptions {
    /// Returns the default options, as in the table of [`PipeOptions`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the size of the buffer in bytes: how many bytes can be written and not read yet. The number is rounded up
    /// to whole elements, at least one.
    #[must_use]
    pub fn capacity(mut self, bytes: usize) -> Self {
        self.capacity = bytes;
        self
    }

    /// Sets the number of bytes in one element, at least 1. Only whole elements are written and read.
    #[must_use]
    pub fn element(mut self, bytes: u32) -> Self {
        self.element = bytes.max(1);
        self
    }

    /// Sets the pipe's name for debugging, which `/proc/*/maps` shows: at most 249 bytes, without a zero byte.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Sets whether the kernel allocates all memory of the pipe when the pipe is made, so that the first pass through
    /// the buffer is as fast as later passes.
    #[must_use]
    pub fn prefault(mut self, wanted: bool) -> Self {
        self.prefault = wanted;
        self
    }

    /// Sets how the calls on both ends wait: by spinning, by sleeping, or adaptively. An end that is sent to another
    /// process waits there in the same way as the channel over which it was received.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Sets how long an adaptive wait spins, as [`Options::spin`] does.
    #[must_use]
    pub fn spin(mut self, spin: Duration) -> Self {
        self.spin = spin;
        self
    }

    /// Creates the data pipe with these options, and returns its two ends.
    ///
    /// # Errors
    /// [`Error::NoMemory`] if the capacity is more than there can be; [`Error::NoDescriptors`]; [`Error::System`];
    /// [`Error::Forked`].
    pub fn create(&self) -> Result<(DataProducer, DataConsumer), Error> {
        let too_large = Error::NoMemory { call: "memory for a data pipe" };
        let element = u64::from(self.element);
        let capacity = (self.capacity.max(1) as u64).checked_next_multiple_of(element).ok_or(too_large)?;
        let shape = Shape::new(self.element, capacity).ok_or(too_large)?;
        let (one, other) = Options::new().wait(self.wait).spin(self.spin).pair()?;
        let memory = PipeMemory::new(self.name.as_deref().unwrap_or("strait-pipe"), capacity)?;
        let again = memory.again()?;
        if self.prefault {
            memory.populate();
            again.populate();
        }
        let writing = Writing::at(shape, 0).expect("the beginning is a position");
        let reading = Reading::at(shape, 0).expect("the beginning is a position");
        Ok((
            DataProducer::new(PipeCore::new(one, memory), writing),
            DataConsumer::new(PipeCore::new(other, again), reading),
        ))
    }
}
