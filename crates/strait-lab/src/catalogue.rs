//! The catalogue: every mechanism by its name, and the measuring processes.

use std::os::fd::OwnedFd;
use std::str::FromStr;

use serde::Deserialize;

use crate::loops::coding::{self, Codec};
use crate::mechanism::{
    Datagrams, Empty, End, Eventfds, Fifo, Flag, Futex, FutexBell, InPlace, InSet, Line, Named, Packets, Pipe,
    PosixQueue, PosixSemaphores, ProcessVm, Read, Rights, Ring, Sealed, Second, Sequenced, Shm, Signal, Spin, Strait,
    StraitUsed, StraitWith, Stream, SysvQueue, SysvSemaphores, Tcp, Uring, Vmsplice, Waited, Whole, carrier,
};
#[cfg(feature = "suites")]
use crate::mechanism::{Faulty, faulty};
use crate::pair;
use crate::shape::Ability;
#[cfg(not(feature = "suites"))]
use crate::shape::UNBUILT;
use crate::trouble::{Result, Trouble};
use crate::work::{Listing, Mechanism, Wait};

/// Returns the entry of the end of a mechanism.
macro_rules! entry {
    ($end:ty) => {
        Mechanism::of::<$end>()
    };
    ($end:ty, suites) => {
        Mechanism::in_suites::<$end>()
    };
}

/// Defines a constant for each mechanism, and the list of them all. A program without the feature `suites` knows the
/// mechanisms marked with `=> suites` by name alone: the loops of all mechanisms take most of the time of a build. The
/// mechanisms with [`ALIASES`] are in every program.
macro_rules! catalogue {
    ($($(#[doc = $doc:literal])* $(#[cfg($cfg:meta)])? $name:ident: $end:ty $(=> $suites:ident)?;)*) => {
        impl Mechanism {
            $($(#[doc = $doc])* $(#[cfg($cfg)])? pub const $name: Self = entry!($end $(, $suites)?);)*
        }

        /// Every mechanism, Strait's first and other libraries last.
        pub static CATALOGUE: &[Mechanism] = &[$($(#[cfg($cfg)])? Mechanism::$name),*];
    };
}

catalogue! {
    /// Strait: `send`, and `recv_into` a buffer of the caller.
    STRAIT: Strait;
    /// Strait, receiving each message into a [`strait::Message`].
    STRAIT_MESSAGE: StraitUsed<Whole> => suites;
    /// Strait, filling and reading messages in place.
    STRAIT_IN_PLACE: StraitUsed<InPlace> => suites;
    /// Strait, with messages in sealed memory.
    STRAIT_SEALED: StraitUsed<Sealed> => suites;
    /// Strait, waiting by a wait set.
    STRAIT_WAIT_SET: StraitUsed<InSet> => suites;
    /// Strait, over a channel on a link with another channel.
    STRAIT_SECOND: StraitUsed<Second> => suites;
    /// Strait, with one descriptor in each message.
    STRAIT_RIGHTS: StraitWith<OwnedFd>;
    /// Strait, with an end of another channel in each message.
    STRAIT_ENDS: StraitWith<strait::Channel> => suites;
    /// Two cache lines, one for each direction, with flag and payload in the same line.
    LINE: Line;
    /// A flag, with copies into and out of a shared buffer.
    FLAG: Flag;
    /// A futex, with copies into and out of a shared buffer.
    FUTEX: Futex;
    /// A bare single-producer ring of 64-byte slots.
    RING: Ring;
    /// Two pipes.
    PIPE: Pipe;
    /// Two named pipes.
    FIFO: Fifo;
    /// A pair of Unix stream sockets.
    STREAM: Stream;
    /// Unix stream sockets that were connected by a name.
    STREAM_NAMED: Stream<Named>;
    /// A pair of Unix datagram sockets.
    DATAGRAM: Packets<Datagrams> => suites;
    /// Unix datagram sockets that were connected by names.
    DATAGRAM_NAMED: Packets<Datagrams, Named> => suites;
    /// A pair of Unix seqpacket sockets.
    SEQPACKET: Packets<Sequenced>;
    /// Unix seqpacket sockets that were connected by a name.
    SEQPACKET_NAMED: Packets<Sequenced, Named> => suites;
    /// Two System V message queues.
    SYSV_QUEUE: SysvQueue;
    /// Two POSIX message queues.
    POSIX_QUEUE: PosixQueue => suites;
    /// Rings in System V shared memory, polled.
    SYSV_SHM_SPIN: Shm<carrier::Sysv, Spin> => suites;
    /// Rings in System V shared memory, with futexes.
    SYSV_SHM_FUTEX: Shm<carrier::Sysv, FutexBell> => suites;
    /// Rings in System V shared memory, with System V semaphores.
    SYSV_SHM_SEM: Shm<carrier::Sysv, SysvSemaphores> => suites;
    /// Rings in POSIX shared memory, polled.
    POSIX_SHM_SPIN: Shm<carrier::Posix, Spin>;
    /// Rings in POSIX shared memory, with futexes.
    POSIX_SHM_FUTEX: Shm<carrier::Posix, FutexBell> => suites;
    /// Rings in POSIX shared memory, with POSIX semaphores.
    POSIX_SHM_SEM: Shm<carrier::Posix, PosixSemaphores> => suites;
    /// Rings in a memfd, polled.
    MEMFD_SPIN: Shm<carrier::Memfd, Spin> => suites;
    /// Rings in a memfd, with futexes.
    MEMFD_FUTEX: Shm<carrier::Memfd, FutexBell> => suites;
    /// Rings in a memfd, with eventfds.
    EVENTFD: Shm<carrier::Memfd, Eventfds> => suites;
    /// Signals that carry a value, received by `sigwaitinfo`.
    SIGNAL: Signal<Waited> => suites;
    /// Signals that carry a value, read from a signalfd.
    SIGNALFD: Signal<Read> => suites;
    /// A TCP connection over the loopback device.
    TCP: Tcp => suites;
    /// `process_vm_readv`: the receiver reads the sender's memory.
    PROCESS_VM: ProcessVm => suites;
    /// Two pipes into which `vmsplice` puts the sender's pages.
    VMSPLICE: Vmsplice => suites;
    /// A Unix seqpacket socket, used through io_uring.
    IO_URING: Uring => suites;
    /// A bare `sendmsg` and `recvmsg` with one descriptor.
    RIGHTS: Rights;
    /// iceoryx2, publish and subscribe over shared memory.
    #[cfg(feature = "peers-iceoryx2")]
    ICEORYX2: crate::mechanism::peers::iceoryx2::Iceoryx2;
    /// Servo's ipc-channel.
    #[cfg(feature = "peers-ipc-channel")]
    IPC_CHANNEL: crate::mechanism::peers::ipc_channel::IpcChannel;
    /// ZeroMQ over its `ipc` transport.
    #[cfg(feature = "peers-zeromq")]
    ZEROMQ: crate::mechanism::peers::zeromq::Zeromq;
    /// The queue of heapless, in shared memory.
    #[cfg(feature = "peers-heapless")]
    HEAPLESS: crate::mechanism::peers::heapless::Heapless;
}

/// Ways to encode values, which are measured like mechanisms. These mechanisms send no messages, and are in no default
/// list.
pub static CODECS: &[Mechanism] = &[
    Mechanism::FIDL,
    Mechanism::FIDL_LINEAR,
    Mechanism::MEMCPY,
    Mechanism::POSTCARD,
    #[cfg(feature = "codecs-rkyv")]
    Mechanism::coding::<coding::Rkyv>(),
    #[cfg(feature = "codecs-prost")]
    Mechanism::coding::<coding::Prost>(),
    #[cfg(feature = "codecs-capnp")]
    Mechanism::coding::<coding::Capnp>(),
];

/// Mechanisms that lose or damage messages on purpose, or fail. Tests use them to check that such a mechanism gets no
/// figure. They are in programs with the feature `suites`.
#[cfg(not(feature = "suites"))]
static FAULTY: &[Mechanism] = &[];

/// Mechanisms that lose or damage messages on purpose, or fail. Tests use them to check that such a mechanism gets no
/// figure.
#[cfg(feature = "suites")]
static FAULTY: &[Mechanism] = &[
    Mechanism::of::<Faulty<{ faulty::LOSES }>>(),
    Mechanism::of::<Faulty<{ faulty::DOUBLES }>>(),
    Mechanism::of::<Faulty<{ faulty::TEARS }>>(),
    Mechanism::of::<Faulty<{ faulty::REORDERS }>>(),
    Mechanism::of::<Faulty<{ faulty::DIES }>>(),
    Mechanism::of::<Faulty<{ faulty::LACKING }>>(),
    Mechanism::of::<Faulty<{ faulty::LIMITED }>>(),
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
    /// FIDL, with vectors as parts of a message.
    pub const FIDL: Self = Self::coding::<coding::Fidl>();
    /// FIDL in one piece.
    pub const FIDL_LINEAR: Self = Self::coding::<coding::FidlLinear>();
    /// No format: bytes are copied.
    pub const MEMCPY: Self = Self::coding::<coding::Flat>();
    /// Postcard, with serde.
    pub const POSTCARD: Self = Self::coding::<coding::Postcard>();
    /// No mechanism: the cost of the measuring itself. It is not in the catalogue.
    pub const EMPTY: Self = Self::of::<Empty>();

    const fn coding<C: Codec>() -> Self {
        Self::listed(<C as ListedCodec>::LISTING)
    }

    const fn of<E: End>() -> Self {
        Self::listed(<E as Listed>::LISTING)
    }

    /// Returns the mechanism of the end `E`, which only a program with the feature `suites` can measure.
    #[cfg(feature = "suites")]
    const fn in_suites<E: End>() -> Self {
        Self::of::<E>()
    }

    /// Returns the name of the mechanism of the end `E`, which only a program with the feature `suites` can measure.
    #[cfg(not(feature = "suites"))]
    const fn in_suites<E: End>() -> Self {
        Self::listed(<E as ListedByName>::LISTING)
    }
}

/// A codec with its entry.
trait ListedCodec: Codec + Sized {
    const LISTING: &'static Listing = &Listing {
        name: Self::NAME,
        title: Self::TITLE,
        waits: &[Wait::Spin],
        abilities: &[Ability::Codec],
        hub_waits: &[],
        most: usize::MAX,
        most_shared: 0,
        most_descriptors: 0,
        missing: || None,
        run: coding::run::<Self>,
    };
}

impl<C: Codec> ListedCodec for C {}

/// An end with its entry in the catalogue.
trait Listed: End {
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
}

impl<E: End> Listed for E {}

/// An end with an entry in the catalogue of a program that cannot measure the mechanism.
#[cfg(not(feature = "suites"))]
trait ListedByName: End {
    const LISTING: &'static Listing = &Listing {
        name: Self::NAME,
        title: Self::TITLE,
        waits: Self::WAITS,
        abilities: Self::ABILITIES,
        hub_waits: Self::HUB_WAITS,
        most: Self::MOST,
        most_shared: Self::MOST_SHARED,
        most_descriptors: Self::MOST_DESCRIPTORS,
        missing: || Some(UNBUILT.to_owned()),
        run: |_, _| Err(Trouble::new(UNBUILT)),
    };
}

#[cfg(not(feature = "suites"))]
impl<E: End> ListedByName for E {}

/// The names of other benchmark programs for mechanisms that have another name here.
const ALIASES: [(&str, Mechanism); 4] = [
    ("message_queue", Mechanism::SYSV_QUEUE),
    ("named_pipe", Mechanism::FIFO),
    ("shm", Mechanism::POSIX_SHM_SPIN),
    ("unix_socket", Mechanism::STREAM_NAMED),
];

impl FromStr for Mechanism {
    type Err = Trouble;

    fn from_str(name: &str) -> Result<Self> {
        if let Some((_, mechanism)) = ALIASES.iter().find(|(alias, _)| *alias == name) {
            return Ok(*mechanism);
        }
        CATALOGUE.iter().chain(CODECS).chain(FAULTY).copied().find(|mechanism| mechanism.name() == name).ok_or_else(
            || {
                let names: Vec<_> = CATALOGUE.iter().chain(CODECS).map(|mechanism| mechanism.name()).collect();
                Trouble::new(format!("there is no mechanism {name:?}; choose one of {}", names.join(", ")))
            },
        )
    }
}

impl<'de> Deserialize<'de> for Mechanism {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        name.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::{ALIASES, CATALOGUE};
    use crate::work::Mechanism;

    #[test]
    fn every_name_finds_its_mechanism() {
        for mechanism in CATALOGUE {
            assert_eq!(mechanism.name().parse::<Mechanism>().unwrap(), *mechanism);
        }
        for (alias, mechanism) in ALIASES {
            assert_eq!(alias.parse::<Mechanism>().unwrap(), mechanism);
            assert!(CATALOGUE.iter().all(|other| other.name() != alias));
        }
        assert!("carrier-pigeon".parse::<Mechanism>().unwrap_err().to_string().contains("strait, "));
    }
}
