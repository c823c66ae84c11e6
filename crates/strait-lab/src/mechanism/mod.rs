//! Mechanisms: the ways to send a message to another process, behind one small trait.
//!
//! Each module shows the best correct use of one primitive, polled or asleep, in about a page of code. All of them do
//! the same work: the sender's whole message is copied out of the sender's memory, and the receiver's whole message
//! into the receiver's memory. A *floor* is such a bare loop, without what a library has to do besides.
//!
//! To add a mechanism, implement `End` in a new module and add it to the [`CATALOGUE`].

mod empty;
mod faulty;
mod fifo;
mod flag;
mod futex;
mod hub;
mod keeper;
mod line;
mod mailbox;
mod meeting;
mod note;
mod packets;
mod peers;
mod pipe;
mod posix_queue;
mod process_vm;
mod rendezvous;
mod rights;
mod ring;
mod shm;
mod signal;
mod strait_modes;
mod strait_peer;
mod stream;
mod sysv_queue;
mod tcp;
mod uring;
mod vmsplice;

use std::fmt;
use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::pair;
use crate::shape::Shape;
use crate::trouble::{Result, Trouble};
use crate::work::{Report, Wait, Work};

pub(crate) use self::empty::{Empty, calibrate};
pub(crate) use self::fifo::Fifo;
pub(crate) use self::flag::Flag;
pub(crate) use self::futex::Futex;
pub(crate) use self::hub::Hub;
pub(crate) use self::keeper::{KEEPER, keep};
pub(crate) use self::line::{Line, probe};
pub(crate) use self::meeting::Named;
pub(crate) use self::packets::{Datagrams, Packets, Sequenced};
pub(crate) use self::pipe::Pipe;
pub(crate) use self::posix_queue::PosixQueue;
pub(crate) use self::process_vm::ProcessVm;
pub(crate) use self::rights::{Rights, traveller};
pub(crate) use self::ring::Ring;
pub(crate) use self::shm::bell::{Eventfds, Futex as FutexBell, PosixSemaphores, Spin, SysvSemaphores};
pub(crate) use self::shm::{Shm, carrier};
pub(crate) use self::signal::{Read, Signal, Waited};
pub(crate) use self::strait_modes::{InPlace, InSet, Sealed, Second, StraitUsed, Whole};
pub(crate) use self::strait_peer::{Strait, StraitEnds, StraitRights};
pub(crate) use self::stream::Stream;
pub(crate) use self::sysv_queue::SysvQueue;
pub(crate) use self::tcp::Tcp;
pub(crate) use self::uring::Uring;
pub(crate) use self::vmsplice::Vmsplice;

/// Every mechanism, Strait's first and other libraries last.
pub static CATALOGUE: &[Mechanism] = &[
    Mechanism::STRAIT,
    Mechanism::STRAIT_MESSAGE,
    Mechanism::STRAIT_IN_PLACE,
    Mechanism::STRAIT_SEALED,
    Mechanism::STRAIT_WAIT_SET,
    Mechanism::STRAIT_SECOND,
    Mechanism::STRAIT_RIGHTS,
    Mechanism::STRAIT_ENDS,
    Mechanism::LINE,
    Mechanism::FLAG,
    Mechanism::FUTEX,
    Mechanism::RING,
    Mechanism::PIPE,
    Mechanism::FIFO,
    Mechanism::STREAM,
    Mechanism::STREAM_NAMED,
    Mechanism::DATAGRAM,
    Mechanism::DATAGRAM_NAMED,
    Mechanism::SEQPACKET,
    Mechanism::SEQPACKET_NAMED,
    Mechanism::SYSV_QUEUE,
    Mechanism::POSIX_QUEUE,
    Mechanism::SYSV_SHM_SPIN,
    Mechanism::SYSV_SHM_FUTEX,
    Mechanism::SYSV_SHM_SEM,
    Mechanism::POSIX_SHM_SPIN,
    Mechanism::POSIX_SHM_FUTEX,
    Mechanism::POSIX_SHM_SEM,
    Mechanism::MEMFD_SPIN,
    Mechanism::MEMFD_FUTEX,
    Mechanism::EVENTFD,
    Mechanism::SIGNAL,
    Mechanism::SIGNALFD,
    Mechanism::TCP,
    Mechanism::PROCESS_VM,
    Mechanism::VMSPLICE,
    Mechanism::IO_URING,
    Mechanism::RIGHTS,
    #[cfg(feature = "peers-iceoryx2")]
    Mechanism::ICEORYX2,
    #[cfg(feature = "peers-ipc-channel")]
    Mechanism::IPC_CHANNEL,
    #[cfg(feature = "peers-zeromq")]
    Mechanism::ZEROMQ,
    #[cfg(feature = "peers-heapless")]
    Mechanism::HEAPLESS,
];

/// Mechanisms that lose or damage messages on purpose, or fail. Tests use them to check that such a mechanism gets no
/// figure.
static FAULTY: &[Mechanism] = &[
    Mechanism::of::<faulty::Faulty<{ faulty::LOSES }>>(),
    Mechanism::of::<faulty::Faulty<{ faulty::DOUBLES }>>(),
    Mechanism::of::<faulty::Faulty<{ faulty::TEARS }>>(),
    Mechanism::of::<faulty::Faulty<{ faulty::REORDERS }>>(),
    Mechanism::of::<faulty::Faulty<{ faulty::DIES }>>(),
    Mechanism::of::<faulty::Faulty<{ faulty::LACKING }>>(),
    Mechanism::of::<faulty::Faulty<{ faulty::LIMITED }>>(),
];

impl Mechanism {
    /// The mechanisms of other libraries, as far as they were built in.
    pub const PEERS: &'static [Self] = &[
        #[cfg(feature = "peers-iceoryx2")]
        Self::ICEORYX2,
        #[cfg(feature = "peers-ipc-channel")]
        Self::IPC_CHANNEL,
        #[cfg(feature = "peers-zeromq")]
        Self::ZEROMQ,
        #[cfg(feature = "peers-heapless")]
        Self::HEAPLESS,
    ];
    /// iceoryx2, publish and subscribe over shared memory.
    #[cfg(feature = "peers-iceoryx2")]
    pub const ICEORYX2: Self = Self::of::<peers::iceoryx2::Iceoryx2>();
    /// Servo's ipc-channel.
    #[cfg(feature = "peers-ipc-channel")]
    pub const IPC_CHANNEL: Self = Self::of::<peers::ipc_channel::IpcChannel>();
    /// ZeroMQ over its `ipc` transport.
    #[cfg(feature = "peers-zeromq")]
    pub const ZEROMQ: Self = Self::of::<peers::zeromq::Zeromq>();
    /// The queue of heapless, in shared memory.
    #[cfg(feature = "peers-heapless")]
    pub const HEAPLESS: Self = Self::of::<peers::heapless::Heapless>();
    /// Strait: `send`, and `recv_into` a buffer of the caller.
    pub const STRAIT: Self = Self::of::<Strait>();
    /// Strait, receiving each message into a [`strait::Message`].
    pub const STRAIT_MESSAGE: Self = Self::of::<StraitUsed<Whole>>();
    /// Strait, filling and reading messages in place.
    pub const STRAIT_IN_PLACE: Self = Self::of::<StraitUsed<InPlace>>();
    /// Strait, with messages in sealed memory.
    pub const STRAIT_SEALED: Self = Self::of::<StraitUsed<Sealed>>();
    /// Strait, waiting by a wait set.
    pub const STRAIT_WAIT_SET: Self = Self::of::<StraitUsed<InSet>>();
    /// Strait, over a channel that shares its link with another channel.
    pub const STRAIT_SECOND: Self = Self::of::<StraitUsed<Second>>();
    /// Strait, with one descriptor in each message.
    pub const STRAIT_RIGHTS: Self = Self::of::<StraitRights>();
    /// Strait, with an end of another channel in each message.
    pub const STRAIT_ENDS: Self = Self::of::<StraitEnds>();
    /// Two cache lines, one for each direction, with flag and payload in the same line.
    pub const LINE: Self = Self::of::<Line>();
    /// A flag, with copies into and out of a shared buffer.
    pub const FLAG: Self = Self::of::<Flag>();
    /// A futex, with copies into and out of a shared buffer.
    pub const FUTEX: Self = Self::of::<Futex>();
    /// A bare single-producer ring of 64-byte slots.
    pub const RING: Self = Self::of::<Ring>();
    /// Two pipes.
    pub const PIPE: Self = Self::of::<Pipe>();
    /// Two named pipes.
    pub const FIFO: Self = Self::of::<Fifo>();
    /// A pair of Unix stream sockets.
    pub const STREAM: Self = Self::of::<Stream>();
    /// Unix stream sockets that were connected by a name.
    pub const STREAM_NAMED: Self = Self::of::<Stream<Named>>();
    /// A pair of Unix datagram sockets.
    pub const DATAGRAM: Self = Self::of::<Packets<Datagrams>>();
    /// Unix datagram sockets that were connected by names.
    pub const DATAGRAM_NAMED: Self = Self::of::<Packets<Datagrams, Named>>();
    /// A pair of Unix seqpacket sockets.
    pub const SEQPACKET: Self = Self::of::<Packets<Sequenced>>();
    /// Unix seqpacket sockets that were connected by a name.
    pub const SEQPACKET_NAMED: Self = Self::of::<Packets<Sequenced, Named>>();
    /// Two System V message queues.
    pub const SYSV_QUEUE: Self = Self::of::<SysvQueue>();
    /// Two POSIX message queues.
    pub const POSIX_QUEUE: Self = Self::of::<PosixQueue>();
    /// Rings in System V shared memory, polled.
    pub const SYSV_SHM_SPIN: Self = Self::of::<Shm<carrier::Sysv, Spin>>();
    /// Rings in System V shared memory, with futexes.
    pub const SYSV_SHM_FUTEX: Self = Self::of::<Shm<carrier::Sysv, FutexBell>>();
    /// Rings in System V shared memory, with System V semaphores.
    pub const SYSV_SHM_SEM: Self = Self::of::<Shm<carrier::Sysv, SysvSemaphores>>();
    /// Rings in POSIX shared memory, polled.
    pub const POSIX_SHM_SPIN: Self = Self::of::<Shm<carrier::Posix, Spin>>();
    /// Rings in POSIX shared memory, with futexes.
    pub const POSIX_SHM_FUTEX: Self = Self::of::<Shm<carrier::Posix, FutexBell>>();
    /// Rings in POSIX shared memory, with POSIX semaphores.
    pub const POSIX_SHM_SEM: Self = Self::of::<Shm<carrier::Posix, PosixSemaphores>>();
    /// Rings in a memfd, polled.
    pub const MEMFD_SPIN: Self = Self::of::<Shm<carrier::Memfd, Spin>>();
    /// Rings in a memfd, with futexes.
    pub const MEMFD_FUTEX: Self = Self::of::<Shm<carrier::Memfd, FutexBell>>();
    /// Rings in a memfd, with eventfds.
    pub const EVENTFD: Self = Self::of::<Shm<carrier::Memfd, Eventfds>>();
    /// Signals that carry a value, received by `sigwaitinfo`.
    pub const SIGNAL: Self = Self::of::<Signal<Waited>>();
    /// Signals that carry a value, read from a signalfd.
    pub const SIGNALFD: Self = Self::of::<Signal<Read>>();
    /// A TCP connection over the loopback device.
    pub const TCP: Self = Self::of::<Tcp>();
    /// `process_vm_readv`: the receiver reads the sender's memory.
    pub const PROCESS_VM: Self = Self::of::<ProcessVm>();
    /// Two pipes into which `vmsplice` puts the sender's pages.
    pub const VMSPLICE: Self = Self::of::<Vmsplice>();
    /// A Unix seqpacket socket, used through io_uring.
    pub const IO_URING: Self = Self::of::<Uring>();
    /// A bare `sendmsg` and `recvmsg` with one descriptor.
    pub const RIGHTS: Self = Self::of::<Rights>();
    /// No mechanism: the cost of the measuring itself. It is not in the catalogue.
    pub const EMPTY: Self = Self::of::<Empty>();
}

/// A side of a measurement: the first process, or the other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The process that sends first, and measures.
    First,
    /// A process that answers.
    Second,
}

impl Side {
    /// Returns `(mine, theirs)` of two values: `first` belongs to the first side and `second` to the second.
    pub(crate) fn of<T>(self, first: T, second: T) -> (T, T) {
        match self {
            Self::First => (first, second),
            Self::Second => (second, first),
        }
    }
}

/// The descriptors that each side needs to join a mechanism.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) first: Vec<OwnedFd>,
    pub(crate) second: Vec<OwnedFd>,
}

/// An ability that a mechanism may have, besides sending a message and waiting for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ability {
    /// More than one message may be in flight.
    Stream,
    /// A message can be filled and read in the memory that both processes share.
    InPlace,
    /// A message can be filled in new memory, and sent and read without a copy.
    Fresh,
    /// A message can be sent from several pieces by one call.
    Gather,
    /// A message can carry descriptors.
    Descriptors,
    /// Several processes can send through one end, and messages stay whole.
    Shared,
    /// One process can wait for several ends at once.
    Hub,
    /// One thread can send while another receives.
    Threads,
}

impl Ability {
    /// Returns the explanation why a mechanism without this ability cannot be used.
    fn lacking(self) -> &'static str {
        match self {
            Self::Stream => "carries one message at a time",
            Self::InPlace => "has no memory to fill in place",
            Self::Fresh => "cannot send new memory",
            Self::Gather => "cannot send several pieces in one call",
            Self::Descriptors => "carries no descriptors",
            Self::Shared => "has one sender for each end",
            Self::Hub => "cannot wait for several ends",
            Self::Threads => "is used by one thread at a time",
        }
    }
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
    /// The size in bytes of the largest message that stays whole if several processes send through one end.
    const MOST_SHARED: usize = usize::MAX;
    /// The most descriptors that a message can carry, if the mechanism has [`Ability::Descriptors`].
    const MOST_DESCRIPTORS: usize = 253;

    /// The mechanism's entry in the list of all mechanisms.
    const LISTING: &'static Listing = &Listing {
        name: Self::NAME,
        title: Self::TITLE,
        waits: Self::WAITS,
        abilities: Self::ABILITIES,
        hub_waits: Self::HUB_WAITS,
        most: Self::MOST,
        most_shared: Self::MOST_SHARED,
        most_descriptors: Self::MOST_DESCRIPTORS,
        missing: Self::missing,
        run: pair::run_side::<Self>,
    };

    /// Returns why this machine does not support the mechanism, if it does not.
    fn missing() -> Option<String> {
        None
    }

    /// Creates, in the first process, the descriptors that both sides need.
    fn open(work: &Work) -> Result<Opened>;

    /// Makes this process's end from its descriptors.
    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self>;

    /// Sends `message`.
    fn send(&mut self, message: &[u8]) -> Result<()>;

    /// Waits for a message of exactly the length of `buffer`, and copies it into `buffer`.
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()>;

    /// Sends the messages of `size` bytes each that `messages` contains one after the other.
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

    /// Sends one message whose bytes are those of `parts`, one after the other.
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

    /// Combines the ends to several processes into a hub, which waits for all of them at once.
    fn hub(_ends: Vec<Self>, _work: &Work) -> Result<Box<dyn Hub>> {
        Err(Self::unable())
    }

    /// Returns the error of a method that the mechanism does not support.
    fn unable() -> Trouble {
        Trouble::new(format!("{} does not support this operation", Self::TITLE))
    }
}

/// A function that sends a message as [`End::send`] does, and that may run in any thread.
pub(crate) type Sending<'a> = Box<dyn FnMut(&[u8]) -> Result<()> + Send + 'a>;

/// A function that waits for a message as [`End::recv`] does.
pub(crate) type Receiving<'a> = Box<dyn FnMut(&mut [u8]) -> Result<()> + 'a>;

/// The properties of a mechanism, and the functions that run it.
#[derive(Debug)]
pub(crate) struct Listing {
    name: &'static str,
    title: &'static str,
    waits: &'static [Wait],
    abilities: &'static [Ability],
    hub_waits: &'static [Wait],
    most: usize,
    most_shared: usize,
    most_descriptors: usize,
    missing: fn() -> Option<String>,
    run: fn(&Work, Side) -> Result<Report>,
}

/// A way to send a message to another process: an entry of the [`CATALOGUE`].
#[derive(Clone, Copy)]
pub struct Mechanism(&'static Listing);

impl Mechanism {
    pub(crate) const fn of<E: End>() -> Self {
        Self(E::LISTING)
    }

    /// Returns the mechanism's name on the command line and in results.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Returns the mechanism's name in a table.
    pub fn title(self) -> &'static str {
        self.0.title
    }

    /// Returns why the mechanism cannot do this work on any machine, if it cannot: because of the size, the way of
    /// waiting or the shape.
    pub fn unfit(self, work: &Work) -> Option<String> {
        if work.size > self.0.most {
            return Some(format!("carries {} bytes at most", self.0.most));
        }
        if !self.0.waits.contains(&work.wait) {
            return Some(format!("does not support {} waits", work.wait.name()));
        }
        let able = |ability: &Ability| self.0.abilities.contains(ability);
        if let Some(lacking) = work.shape.needs().iter().find(|ability| !able(ability)) {
            return Some(lacking.lacking().to_owned());
        }
        let hub = work.shape.needs().contains(&Ability::Hub);
        if hub && !self.0.hub_waits.contains(&work.wait) {
            return Some(format!("does not support {} waits for several ends", work.wait.name()));
        }
        match work.shape {
            Shape::Producers { shared: true, .. } if work.size > self.0.most_shared => Some(format!(
                "keeps only messages of up to {} bytes whole if several processes send",
                self.0.most_shared
            )),
            Shape::Descriptors { count } if usize::from(count) > self.0.most_descriptors => {
                Some(format!("carries {} descriptors in a message at most", self.0.most_descriptors))
            }
            Shape::OutOfLine { cold: true, .. } if able(&Ability::InPlace) && !able(&Ability::Fresh) => {
                Some("uses memory that is always warm".to_owned())
            }
            _ => None,
        }
    }

    /// Returns why this machine does not support the mechanism, if it does not.
    pub fn missing(self) -> Option<String> {
        (self.0.missing)()
    }

    /// Returns the ways of waiting that the mechanism supports.
    pub fn waits(self) -> &'static [Wait] {
        self.0.waits
    }

    /// Whether more than one message may be in flight.
    pub fn streams(self) -> bool {
        self.0.abilities.contains(&Ability::Stream)
    }

    /// Runs one process of the measurement `work`, on the given side, until the end.
    pub(crate) fn run(self, work: &Work, side: Side) -> Result<Report> {
        (self.0.run)(work, side)
    }
}

impl fmt::Debug for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

impl PartialEq for Mechanism {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Mechanism {}

impl std::hash::Hash for Mechanism {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl FromStr for Mechanism {
    type Err = Trouble;

    fn from_str(name: &str) -> Result<Self> {
        CATALOGUE.iter().chain(FAULTY).copied().find(|mechanism| mechanism.name() == name).ok_or_else(|| {
            let names: Vec<_> = CATALOGUE.iter().map(|mechanism| mechanism.name()).collect();
            Trouble::new(format!("there is no mechanism {name:?}; choose one of {}", names.join(", ")))
        })
    }
}

impl Serialize for Mechanism {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.name)
    }
}

impl schemars::JsonSchema for Mechanism {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Mechanism".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        String::json_schema(generator)
    }
}

impl<'de> Deserialize<'de> for Mechanism {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}

/// Converts the descriptors of a side into an array. Fails if their number is not `N`.
fn exactly<const N: usize>(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; N]> {
    descriptors.try_into().map_err(|these: Vec<OwnedFd>| {
        crate::trouble::Trouble::new(format!("{} descriptors arrived instead of {N}", these.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::{CATALOGUE, Mechanism};

    #[test]
    fn every_name_finds_its_mechanism() {
        for mechanism in CATALOGUE {
            assert_eq!(mechanism.name().parse::<Mechanism>().unwrap(), *mechanism);
        }
        assert!("carrier-pigeon".parse::<Mechanism>().unwrap_err().to_string().contains("strait, "));
    }
}
