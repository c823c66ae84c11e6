//! The ways to get a message across, behind one small trait.
//!
//! Each is a page of code that shows the best correct use of one primitive, polled or asleep, and all of them do the
//! same work: the sender's whole message is copied out of the sender's memory, and the receiver's whole message into
//! the receiver's. A *floor* is such a bare loop, with none of the things a library has to do.
//!
//! To add one, implement `End` in a module of its own and name it in the [`CATALOGUE`].

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

/// Every mechanism there is, Strait first and other people's last.
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

/// Mechanisms that break what a mechanism must keep, to see that it shows. Only tests ask for them.
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
    /// Other people's, as far as they were built in.
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
    /// iceoryx2.
    #[cfg(feature = "peers-iceoryx2")]
    pub const ICEORYX2: Self = Self::of::<peers::iceoryx2::Iceoryx2>();
    /// Servo's ipc-channel.
    #[cfg(feature = "peers-ipc-channel")]
    pub const IPC_CHANNEL: Self = Self::of::<peers::ipc_channel::IpcChannel>();
    /// ZeroMQ over ipc.
    #[cfg(feature = "peers-zeromq")]
    pub const ZEROMQ: Self = Self::of::<peers::zeromq::Zeromq>();
    /// The queue of heapless, in shared memory.
    #[cfg(feature = "peers-heapless")]
    pub const HEAPLESS: Self = Self::of::<peers::heapless::Heapless>();
    /// Strait.
    pub const STRAIT: Self = Self::of::<Strait>();
    /// Strait, receiving whole messages.
    pub const STRAIT_MESSAGE: Self = Self::of::<StraitUsed<Whole>>();
    /// Strait, filling and reading in place.
    pub const STRAIT_IN_PLACE: Self = Self::of::<StraitUsed<InPlace>>();
    /// Strait, with messages that are sealed.
    pub const STRAIT_SEALED: Self = Self::of::<StraitUsed<Sealed>>();
    /// Strait, waiting for a set of channels.
    pub const STRAIT_WAIT_SET: Self = Self::of::<StraitUsed<InSet>>();
    /// Strait, by a channel that shares its socket with another.
    pub const STRAIT_SECOND: Self = Self::of::<StraitUsed<Second>>();
    /// Strait, with one descriptor in each message.
    pub const STRAIT_RIGHTS: Self = Self::of::<StraitRights>();
    /// Strait, with an end of another channel in each message.
    pub const STRAIT_ENDS: Self = Self::of::<StraitEnds>();
    /// Two flag lines, the payload in the flag's own line.
    pub const LINE: Self = Self::of::<Line>();
    /// A flag, and memcpy in and out of a shared buffer.
    pub const FLAG: Self = Self::of::<Flag>();
    /// A futex, and memcpy in and out of a shared buffer.
    pub const FUTEX: Self = Self::of::<Futex>();
    /// A bare single-producer ring of 64-byte slots.
    pub const RING: Self = Self::of::<Ring>();
    /// A pair of pipes.
    pub const PIPE: Self = Self::of::<Pipe>();
    /// A pair of named pipes.
    pub const FIFO: Self = Self::of::<Fifo>();
    /// A pair of Unix stream sockets.
    pub const STREAM: Self = Self::of::<Stream>();
    /// Unix stream sockets that met under a name.
    pub const STREAM_NAMED: Self = Self::of::<Stream<Named>>();
    /// A pair of Unix datagram sockets.
    pub const DATAGRAM: Self = Self::of::<Packets<Datagrams>>();
    /// Unix datagram sockets that met under names.
    pub const DATAGRAM_NAMED: Self = Self::of::<Packets<Datagrams, Named>>();
    /// A pair of Unix seqpacket sockets.
    pub const SEQPACKET: Self = Self::of::<Packets<Sequenced>>();
    /// Unix seqpacket sockets that met under a name.
    pub const SEQPACKET_NAMED: Self = Self::of::<Packets<Sequenced, Named>>();
    /// A pair of System V message queues.
    pub const SYSV_QUEUE: Self = Self::of::<SysvQueue>();
    /// A pair of POSIX message queues.
    pub const POSIX_QUEUE: Self = Self::of::<PosixQueue>();
    /// A ring in System V memory, polled.
    pub const SYSV_SHM_SPIN: Self = Self::of::<Shm<carrier::Sysv, Spin>>();
    /// A ring in System V memory, with futexes.
    pub const SYSV_SHM_FUTEX: Self = Self::of::<Shm<carrier::Sysv, FutexBell>>();
    /// A ring in System V memory, with System V semaphores.
    pub const SYSV_SHM_SEM: Self = Self::of::<Shm<carrier::Sysv, SysvSemaphores>>();
    /// A ring in POSIX memory, polled.
    pub const POSIX_SHM_SPIN: Self = Self::of::<Shm<carrier::Posix, Spin>>();
    /// A ring in POSIX memory, with futexes.
    pub const POSIX_SHM_FUTEX: Self = Self::of::<Shm<carrier::Posix, FutexBell>>();
    /// A ring in POSIX memory, with POSIX semaphores.
    pub const POSIX_SHM_SEM: Self = Self::of::<Shm<carrier::Posix, PosixSemaphores>>();
    /// A ring in a memfd, polled.
    pub const MEMFD_SPIN: Self = Self::of::<Shm<carrier::Memfd, Spin>>();
    /// A ring in a memfd, with futexes.
    pub const MEMFD_FUTEX: Self = Self::of::<Shm<carrier::Memfd, FutexBell>>();
    /// A ring in a memfd, with eventfds.
    pub const EVENTFD: Self = Self::of::<Shm<carrier::Memfd, Eventfds>>();
    /// Signals with a value, fetched by sigwaitinfo.
    pub const SIGNAL: Self = Self::of::<Signal<Waited>>();
    /// Signals with a value, read from a signalfd.
    pub const SIGNALFD: Self = Self::of::<Signal<Read>>();
    /// A TCP connection over the loopback device.
    pub const TCP: Self = Self::of::<Tcp>();
    /// The receiver reads the sender's memory.
    pub const PROCESS_VM: Self = Self::of::<ProcessVm>();
    /// A pair of pipes that the sender's pages go into.
    pub const VMSPLICE: Self = Self::of::<Vmsplice>();
    /// A Unix seqpacket socket, through io_uring.
    pub const IO_URING: Self = Self::of::<Uring>();
    /// A bare sendmsg and recvmsg with one descriptor.
    pub const RIGHTS: Self = Self::of::<Rights>();
    /// Nothing: what the measuring itself costs. Not in the catalogue.
    pub const EMPTY: Self = Self::of::<Empty>();
}

/// Which of the two processes this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// It sends first, and measures.
    First,
    /// It answers.
    Second,
}

impl Side {
    /// `(mine, theirs)` of two things, the first side's one standing first.
    pub(crate) fn of<T>(self, first: T, second: T) -> (T, T) {
        match self {
            Self::First => (first, second),
            Self::Second => (second, first),
        }
    }
}

/// The descriptors that each side needs.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) first: Vec<OwnedFd>,
    pub(crate) second: Vec<OwnedFd>,
}

/// What a mechanism can do beside sending one message and waiting for the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ability {
    /// More than one message may be in flight.
    Stream,
    /// A message can be filled and read in the memory that both processes share.
    InPlace,
    /// A message can be filled in memory that was never used before, and sent and read without a copy.
    Fresh,
    /// A message can be given in pieces.
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
    /// What is to be said of a mechanism without it.
    fn lacking(self) -> &'static str {
        match self {
            Self::Stream => "carries one message at a time",
            Self::InPlace => "has no place to fill",
            Self::Fresh => "cannot send fresh memory",
            Self::Gather => "takes no pieces",
            Self::Descriptors => "carries no descriptors",
            Self::Shared => "has one sender",
            Self::Hub => "cannot wait for several ends",
            Self::Threads => "is used by one thread at a time",
        }
    }
}

/// One process's end of a mechanism.
pub(crate) trait End: Sized + 'static {
    /// Its name on the command line and in results.
    const NAME: &'static str;
    /// Its name in a table.
    const TITLE: &'static str;
    /// How it can wait.
    const WAITS: &'static [Wait];
    /// What else it can do.
    const ABILITIES: &'static [Ability] = &[Ability::Stream];
    /// How it can wait for several ends at once, where it can.
    const HUB_WAITS: &'static [Wait] = Self::WAITS;
    /// The largest message.
    const MOST: usize = usize::MAX;
    /// The largest message that comes through whole if several processes send through one end.
    const MOST_SHARED: usize = usize::MAX;
    /// The most descriptors in a message, where it can carry any.
    const MOST_DESCRIPTORS: usize = 253;

    /// What the catalogue says of it.
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

    /// Why this machine does not have it, if it does not.
    fn missing() -> Option<String> {
        None
    }

    /// Makes, in the first process, what both need.
    fn open(work: &Work) -> Result<Opened>;

    /// Takes up this process's side of it.
    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self>;

    /// Sends `message`.
    fn send(&mut self, message: &[u8]) -> Result<()>;

    /// Waits for a message of exactly the length of `buffer`, and copies all of it there.
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()>;

    /// Sends messages of `size` bytes that stand one behind the other.
    #[inline]
    fn send_batch(&mut self, messages: &[u8], size: usize) -> Result<()> {
        messages.chunks_exact(size).try_for_each(|message| self.send(message))
    }

    /// Has a message of `len` bytes written by `fill`, which is called with a function that writes bytes at a place, and
    /// gives it out.
    fn send_filled(&mut self, _len: usize, _fill: impl FnOnce(&mut dyn FnMut(usize, &[u8]))) -> Result<()> {
        Err(Self::unable())
    }

    /// Waits for a message of `len` bytes and has `read` look at it, which is called with a function that copies out what
    /// stands at a place.
    fn recv_in_place<T>(
        &mut self,
        _len: usize,
        _read: impl FnOnce(&mut dyn FnMut(usize, &mut [u8])) -> T,
    ) -> Result<T> {
        Err(Self::unable())
    }

    /// As [`send_filled`](Self::send_filled), in memory that was never used before: the first touch of each page is part of it.
    fn send_fresh(&mut self, _len: usize, _fill: impl FnOnce(&mut dyn FnMut(usize, &[u8]))) -> Result<()> {
        Err(Self::unable())
    }

    /// Sends one message whose bytes lie in `parts`, one behind the other.
    fn send_gathered(&mut self, _parts: &[IoSlice<'_>]) -> Result<()> {
        Err(Self::unable())
    }

    /// Sends `message` and all of `descriptors`, which this process has no longer then.
    fn send_with(&mut self, _message: &[u8], _descriptors: &mut Vec<OwnedFd>) -> Result<()> {
        Err(Self::unable())
    }

    /// As [`recv`](Self::recv), and puts the descriptors that came along into `descriptors`.
    fn recv_with(&mut self, _buffer: &mut [u8], _descriptors: &mut Vec<OwnedFd>) -> Result<()> {
        Err(Self::unable())
    }

    /// Its two directions, for two threads.
    fn divide(&mut self) -> Result<(Sending<'_>, Receiving<'_>)> {
        Err(Self::unable())
    }

    /// Makes one thing of the ends to several processes, which waits for all of them at once.
    fn hub(_ends: Vec<Self>, _work: &Work) -> Result<Box<dyn Hub>> {
        Err(Self::unable())
    }

    /// What it says when asked for what it cannot do.
    fn unable() -> Trouble {
        Trouble::new(format!("a {} cannot do that", Self::TITLE))
    }
}

/// What sends a message, as [`End::send`], in whatever thread.
pub(crate) type Sending<'a> = Box<dyn FnMut(&[u8]) -> Result<()> + Send + 'a>;

/// What waits for a message, as [`End::recv`].
pub(crate) type Receiving<'a> = Box<dyn FnMut(&mut [u8]) -> Result<()> + 'a>;

/// What the catalogue says of a mechanism.
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

/// How a message gets from one process to the other: an entry of the [`CATALOGUE`].
#[derive(Clone, Copy)]
pub struct Mechanism(&'static Listing);

impl Mechanism {
    pub(crate) const fn of<E: End>() -> Self {
        Self(E::LISTING)
    }

    /// The name on the command line and in results.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// The name in a table.
    pub fn title(self) -> &'static str {
        self.0.title
    }

    /// Why it cannot do this work, if it cannot: the size, the way of waiting, the shape. Says nothing of the machine.
    pub fn unfit(self, work: &Work) -> Option<String> {
        if work.size > self.0.most {
            return Some(format!("carries {} bytes at most", self.0.most));
        }
        if !self.0.waits.contains(&work.wait) {
            return Some(format!("cannot wait {}", work.wait.name()));
        }
        let able = |ability: &Ability| self.0.abilities.contains(ability);
        if let Some(lacking) = work.shape.needs().iter().find(|ability| !able(ability)) {
            return Some(lacking.lacking().to_owned());
        }
        let hub = work.shape.needs().contains(&Ability::Hub);
        if hub && !self.0.hub_waits.contains(&work.wait) {
            return Some(format!("cannot wait for several ends {}", work.wait.name()));
        }
        match work.shape {
            Shape::Producers { shared: true, .. } if work.size > self.0.most_shared => {
                Some(format!("keeps messages of up to {} bytes whole if several send", self.0.most_shared))
            }
            Shape::Descriptors { count } if usize::from(count) > self.0.most_descriptors => {
                Some(format!("carries {} descriptors in a message at most", self.0.most_descriptors))
            }
            Shape::OutOfLine { cold: true, .. } if able(&Ability::InPlace) && !able(&Ability::Fresh) => {
                Some("has memory that is always warm".to_owned())
            }
            _ => None,
        }
    }

    /// Why this machine does not have it, if it does not.
    pub fn missing(self) -> Option<String> {
        (self.0.missing)()
    }

    /// How it can wait.
    pub fn waits(self) -> &'static [Wait] {
        self.0.waits
    }

    /// Whether more than one message may be in flight.
    pub fn streams(self) -> bool {
        self.0.abilities.contains(&Ability::Stream)
    }

    /// The life of one process of a measurement.
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
            Trouble::new(format!("there is no mechanism {name:?}; there are {}", names.join(", ")))
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

/// Takes the descriptors of a side out of the vector they came in.
fn exactly<const N: usize>(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; N]> {
    descriptors.try_into().map_err(|these: Vec<OwnedFd>| {
        crate::trouble::Trouble::new(format!("{} descriptors came instead of {N}", these.len()))
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
