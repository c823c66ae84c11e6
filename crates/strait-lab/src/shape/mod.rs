//! Shapes: the tasks of the processes. Their measuring loops are in the module `loops`.

pub(crate) mod chrome;
pub mod names;
mod objects;
pub(crate) mod payload;
mod value;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::chrome::CHROME;
pub use self::objects::{By, Relay, Task, Unit};
pub use self::payload::{SMALLEST, stamp, sum};
pub use self::value::{Sample, Step};

/// The number of bytes of a FIDL message with one vector, besides the vector: the header, the length and the presence.
pub const FIDL_AROUND: usize = 32;

/// The shape of the work: which process sends what, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Shape {
    /// The first process sends a message and waits until `reply` bytes come back: a closed loop, one message at a
    /// time.
    PingPong {
        /// The size of the answer in bytes: the size of the message, or 8 for an acknowledgement.
        reply: usize,
    },
    /// The first process sends as fast as it can, `batch` messages in one call.
    Stream {
        /// The number of messages in one call.
        batch: usize,
    },
    /// The first process sends at a share of the capacity of the two processes, measured just before. Messages are
    /// due at random intervals, like the messages of many independent senders. The time of each message counts from
    /// when the message was due until the second process has it, so a delay counts for every waiting message.
    OpenLoop {
        /// The load in percent of the capacity.
        load: u8,
    },
    /// The first process sends at a fixed rate, whatever the capacity, at random intervals. The time of each message
    /// counts from when the message was due until the second process has it.
    Paced {
        /// The number of messages per second.
        rate: u32,
    },
    /// Several processes send to the first, each as fast as it can.
    Producers {
        /// The number of sending processes.
        count: u8,
        /// Whether all processes send through the same pipe or socket, instead of one for each.
        shared: bool,
    },
    /// The first process sends each message to several processes, and waits until all have acknowledged it.
    FanOut {
        /// The number of receiving processes.
        count: u8,
    },
    /// Messages with the sizes of Chrome's messages, in random order.
    Mix {
        /// Whether messages go one way, as fast as possible, instead of there and back.
        stream: bool,
    },
    /// Ping-pong between handlers in threads of their own on both sides. Received messages go through a queue (a
    /// mutex and a condition variable) to the handler. Its answers go through another queue to the thread for input
    /// and output.
    Hop {
        /// Whether the handlers send from their own threads, so that only received messages hop.
        #[serde(default)]
        direct: bool,
    },
    /// Ping-pong with descriptors in each message, which move: the sender closes its copies.
    Descriptors {
        /// The number of descriptors in a message.
        count: u16,
    },
    /// A large message there and a short acknowledgement back.
    OutOfLine {
        /// Whether both sides use new memory for each message.
        cold: bool,
        /// Whether the sender writes and the receiver reads every byte of each message; otherwise 16 bytes.
        touched: bool,
    },
    /// The first process fills the message in the transport's memory and the second reads it there. The time from
    /// commit to the reader's first byte is measured.
    InPlace,
    /// A message in several pieces there, and a short acknowledgement back.
    Vectored {
        /// The number of pieces.
        parts: u16,
        /// Whether the sender assembles the pieces in new memory first, and sends them as one.
        linear: bool,
    },
    /// A FIDL message with a vector of bytes there, and a short acknowledgement back. The message is encoded, sent,
    /// received and decoded.
    Fidl {
        /// Whether the sender copies everything into one piece; otherwise the vector is a part of the message.
        linear: bool,
    },
    /// A value is encoded or decoded in memory; no message is sent.
    Coded {
        /// Whether the value is encoded or decoded.
        step: Step,
        /// The value. It has as many bytes as the work says.
        value: Sample,
    },
    /// Ping-pong after a time in which both processes were idle.
    Wake {
        /// The idle time in milliseconds.
        after: u32,
    },
    /// A new connection, one message there and one back, and closing.
    Connect,
    /// The second process waits and no message arrives. Its wake-ups are counted.
    Idle,
    /// A task of the suites with targets: the processes use Strait's objects.
    #[cfg_attr(feature = "schema", schemars(skip))]
    Objects {
        /// The task.
        task: Task,
    },
}

/// The processes other than the first, if there may be more than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crowd {
    pub(crate) peers: usize,
    /// Whether all these processes use the same end.
    pub(crate) shared: bool,
}

/// Why a program without the feature `suites` cannot measure a work.
pub(crate) const UNBUILT: &str = "not in this program: build it with --features suites";

impl Shape {
    /// Whether this program can measure the shape. Some shapes need other crates, which a feature brings.
    pub(crate) fn is_built(self) -> bool {
        const FORMATS: bool = cfg!(feature = "formats");
        const TASKS: bool = cfg!(feature = "tasks");
        let formats = matches!(self, Self::Fidl { .. } | Self::Coded { .. });
        let tasks = matches!(self, Self::Objects { task: Task::Tasks { .. } });
        (FORMATS || !formats) && (TASKS || !tasks)
    }

    /// Returns the abilities that a mechanism needs for this shape.
    pub(crate) fn needs(self) -> &'static [Ability] {
        match self {
            Self::PingPong { .. } | Self::Mix { stream: false } | Self::Wake { .. } => &[],
            Self::Hop { direct: false } => &[],
            Self::Hop { direct: true } => &[Ability::Threads],
            Self::Connect | Self::Idle | Self::OutOfLine { .. } | Self::Vectored { linear: true, .. } => &[],
            Self::Stream { .. } | Self::OpenLoop { .. } | Self::Paced { .. } => &[Ability::Stream],
            Self::Mix { stream: true } => &[Ability::Stream],
            Self::Producers { shared: true, .. } => &[Ability::Stream, Ability::Shared],
            Self::Producers { shared: false, .. } => &[Ability::Stream, Ability::Hub],
            Self::FanOut { .. } => &[Ability::Hub],
            Self::Descriptors { .. } => &[Ability::Descriptors],
            Self::InPlace => &[Ability::InPlace],
            Self::Objects { .. } => &[Ability::Objects],
            Self::Vectored { linear: false, .. } | Self::Fidl { linear: false } => &[Ability::Gather],
            Self::Fidl { linear: true } => &[],
            Self::Coded { .. } => &[Ability::Codec],
        }
    }

    /// Returns the processes other than the first; `None` if there is exactly one.
    pub(crate) fn crowd(self) -> Option<Crowd> {
        match self {
            Self::Producers { count, shared } => Some(Crowd { peers: count.into(), shared }),
            Self::FanOut { count } => Some(Crowd { peers: count.into(), shared: false }),
            Self::Coded { .. } => Some(Crowd { peers: 0, shared: false }),
            Self::Objects { task } if task.processes() != 2 => {
                Some(Crowd { peers: task.processes() - 1, shared: false })
            }
            _ => None,
        }
    }

    /// Returns the number of processes that take part.
    pub fn processes(self) -> usize {
        1 + self.crowd().map_or(1, |crowd| crowd.peers)
    }

    /// Returns the size in bytes of the smallest message with room for everything that this shape writes.
    pub(crate) fn smallest(self) -> usize {
        match self {
            // The number and a time.
            Self::OpenLoop { .. } | Self::Paced { .. } | Self::InPlace | Self::Wake { .. } => 24,
            // The bytes that are written without `touched`: the first 8 and the last 8.
            Self::OutOfLine { .. } => 32,
            Self::Vectored { parts, .. } => usize::from(parts).max(12),
            Self::Fidl { .. } => FIDL_AROUND + 12,
            Self::Mix { .. } => chrome::LARGEST,
            _ => SMALLEST,
        }
    }

    /// Describes the shape and its parameters in words; "of 64 B" may follow.
    pub fn words(self) -> String {
        match self {
            Self::Stream { batch } if batch > 1 => format!("one way, {batch} in a call,"),
            Self::OpenLoop { load } => format!("open loop at {load} % of capacity"),
            Self::Paced { rate } => format!("open loop at {rate} messages a second"),
            Self::Producers { count, shared: true } => format!("{count} producers through one end"),
            Self::Producers { count, .. } => format!("{count} producers"),
            Self::FanOut { count } => format!("fan-out to {count}"),
            Self::Mix { stream: false } => "ping-pong, the Chrome mix".to_owned(),
            Self::Mix { stream: true } => "one way, the Chrome mix".to_owned(),
            Self::Hop { direct: false } => "ping-pong with a hop on each side".to_owned(),
            Self::Hop { direct: true } => "ping-pong with a hop on receiving".to_owned(),
            Self::Descriptors { count } => format!("ping-pong with {count} descriptors"),
            Self::OutOfLine { cold, touched } => {
                let memory = if cold { "cold" } else { "warm" };
                let touched = if touched { "every byte written and read" } else { "not touched" };
                format!("there, acknowledged, {memory}, {touched},")
            }
            Self::InPlace => "in place".to_owned(),
            Self::Vectored { parts, linear: false } => format!("{parts} pieces in one call, acknowledged,"),
            Self::Vectored { parts, linear: true } => format!("{parts} pieces assembled first, acknowledged,"),
            Self::Fidl { linear: false } => "FIDL in parts, acknowledged,".to_owned(),
            Self::Fidl { linear: true } => "FIDL in one piece, acknowledged,".to_owned(),
            Self::Coded { step, value } => format!("{} {}", step.words(), value.words()),
            Self::Wake { after } => format!("ping-pong after {after} ms of idle time"),
            Self::Connect => "connection and first ping-pong".to_owned(),
            Self::PingPong { .. } | Self::Stream { .. } | Self::Idle | Self::Objects { .. } => self.to_string(),
        }
    }
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
    /// The end is one of Strait's channels, which carries objects.
    Objects,
    /// Values are encoded and decoded; no message is sent.
    Codec,
}

impl Ability {
    /// Returns the explanation why a mechanism without this ability cannot be used.
    pub(crate) fn lacking(self) -> &'static str {
        match self {
            Self::Stream => "carries one message at a time",
            Self::InPlace => "has no memory to fill in place",
            Self::Fresh => "cannot send new memory",
            Self::Gather => "cannot send several pieces in one call",
            Self::Descriptors => "carries no descriptors",
            Self::Shared => "has one sender for each end",
            Self::Hub => "cannot wait for several ends",
            Self::Threads => "is used by one thread at a time",
            Self::Objects => "carries none of Strait's objects",
            Self::Codec => "encodes no values",
        }
    }
}
