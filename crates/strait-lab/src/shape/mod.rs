//! Shapes: the measuring loops of the first and the second process, written once for all mechanisms.
//!
//! A run has a warm-up, which is excluded from every figure, and a measured part. The first process announces the
//! measured part and the end by messages with special numbers, so that both sides count the same messages. Every
//! message carries its number. The receiver copies a message out whole before it checks the number. A message that is
//! lost, doubled, torn or out of order ends the run: see `payload`.
//!
//! To add a shape, add it to [`Shape`], write its two loops in a module, and call them in `first` and `second`.

pub(crate) mod connect;
mod descriptors;
mod fan_out;
pub(crate) mod hop;
mod idle;
mod in_place;
mod mix;
pub mod names;
mod open_loop;
mod out_of_line;
pub(crate) mod payload;
mod ping_pong;
mod producers;
mod stream;
mod vectored;
mod wake;

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use self::mix::CHROME;
pub use self::payload::{SMALLEST, stamp, sum};

use crate::mechanism::{Ability, End};
use crate::pair::gauge::Gauge;
use crate::pair::silence;
use crate::samples::{Percentiles, Samples};
use crate::trouble::{Result, Trouble};
use crate::work::{Report, Spent, Work};

/// The shape of the work: which process sends what, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
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
    /// The first process sends at a share of the capacity of the two processes, which is measured just before.
    /// Messages are due at random intervals, as those of many independent senders are. Each message is timed from
    /// when it was due until the second process has it, so a delay counts for every message that waited.
    OpenLoop {
        /// The load in percent of the capacity.
        load: u8,
    },
    /// The first process sends at a fixed rate, whatever the capacity, at random intervals. Each message is timed
    /// from when it was due until the second process has it.
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
    /// Ping-pong between handlers that run in threads of their own on both sides. Received messages go through a
    /// queue (a mutex and a condition variable) to the handler. Its answers go through another queue to the thread
    /// that does the input and output.
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
    /// Ping-pong after a time in which both processes were idle.
    Wake {
        /// The idle time in milliseconds.
        after: u32,
    },
    /// A new connection, one message there and one back, and closing.
    Connect,
    /// The second process waits and no message arrives. Its wake-ups are counted.
    Idle,
}

/// The processes other than the first, if there may be more than one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crowd {
    pub(crate) peers: usize,
    /// Whether all these processes use the same end.
    pub(crate) shared: bool,
}

impl Shape {
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
            Self::Vectored { linear: false, .. } => &[Ability::Gather],
        }
    }

    /// Returns the processes other than the first; `None` if there is exactly one.
    pub(crate) fn crowd(self) -> Option<Crowd> {
        match self {
            Self::Producers { count, shared } => Some(Crowd { peers: count.into(), shared }),
            Self::FanOut { count } => Some(Crowd { peers: count.into(), shared: false }),
            _ => None,
        }
    }

    /// Returns the number of processes that take part.
    pub fn processes(self) -> usize {
        1 + self.crowd().map_or(1, |crowd| crowd.peers)
    }

    /// Returns the size in bytes of the smallest message that has room for what this shape writes.
    pub(crate) fn smallest(self) -> usize {
        match self {
            // The number and a time.
            Self::OpenLoop { .. } | Self::Paced { .. } | Self::InPlace | Self::Wake { .. } => 24,
            // The bytes that are written without `touched`: the first 8 and the last 8.
            Self::OutOfLine { .. } => 32,
            Self::Vectored { parts, .. } => usize::from(parts).max(12),
            Self::Mix { .. } => mix::LARGEST,
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
            Self::Wake { after } => format!("ping-pong after {after} ms of idle time"),
            Self::Connect => "connection and first ping-pong".to_owned(),
            Self::PingPong { .. } | Self::Stream { .. } | Self::Idle => self.to_string(),
        }
    }
}

/// The report of a process other than the first.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Share {
    pub(crate) spent: Spent,
    pub(crate) count: u64,
    pub(crate) times: Percentiles,
    pub(crate) curve: Vec<f64>,
    pub(crate) found: BTreeMap<String, f64>,
}

/// Runs the loop of the first process. `peer` is the process id of the second process.
pub(crate) fn first<E: End>(end: &mut E, work: &Work, peer: u32) -> Result<Report> {
    match work.shape {
        Shape::PingPong { reply } => ping_pong::first(end, work, reply),
        Shape::Stream { batch } => stream::first(end, work, batch),
        Shape::OpenLoop { load } => open_loop::first(end, work, open_loop::Load::Share(load)),
        Shape::Paced { rate } => open_loop::first(end, work, open_loop::Load::Rate(rate)),
        Shape::Mix { stream } => mix::first(end, work, stream),
        Shape::Hop { direct } => hop::first(end, work, direct),
        Shape::Descriptors { count } => descriptors::first(end, work, count.into()),
        Shape::OutOfLine { cold, touched } => out_of_line::first(end, work, cold, touched),
        Shape::InPlace => in_place::first(end, work),
        Shape::Vectored { parts, linear } => vectored::first(end, work, parts.into(), linear),
        Shape::Wake { after } => wake::first(end, work, after),
        Shape::Idle => idle::first(end, work, peer),
        Shape::Producers { .. } | Shape::FanOut { .. } | Shape::Connect => {
            Err(Trouble::new("this shape does not run between two ends"))
        }
    }
}

/// Runs the loop of the first process in a shape with several other processes. `ends` has an end for each of them, or
/// one end that all of them use.
pub(crate) fn first_of_many<E: End>(mut ends: Vec<E>, work: &Work) -> Result<Report> {
    match work.shape {
        Shape::Producers { count, shared: true } => match ends.pop() {
            Some(end) => producers::first(&mut producers::One(end), work, count.into()),
            None => Err(Trouble::new("the mechanism has no end")),
        },
        Shape::Producers { count, .. } => producers::first(&mut *E::hub(ends, work)?, work, count.into()),
        Shape::FanOut { count } => fan_out::first(&mut *E::hub(ends, work)?, work, count.into()),
        _ => Err(Trouble::new("this shape does not run between several ends")),
    }
}

/// Runs the loop of the second process, or of another process with the number `index` from 0.
pub(crate) fn second<E: End>(end: &mut E, work: &Work, index: usize) -> Result<Share> {
    match work.shape {
        Shape::PingPong { reply } => ping_pong::second(end, work, reply),
        Shape::Stream { .. } => stream::second(end, work),
        Shape::OpenLoop { .. } | Shape::Paced { .. } => open_loop::second(end, work),
        Shape::Producers { .. } => producers::second(end, work, index),
        Shape::FanOut { .. } => ping_pong::second(end, work, SMALLEST),
        Shape::Mix { stream } => mix::second(end, work, stream),
        Shape::Hop { direct } => hop::second(end, work, direct),
        Shape::Descriptors { .. } => descriptors::second(end, work),
        Shape::OutOfLine { cold, touched } => out_of_line::second(end, work, cold, touched),
        Shape::InPlace => in_place::second(end, work),
        Shape::Vectored { .. } => ping_pong::second(end, work, SMALLEST),
        Shape::Wake { .. } => wake::second(end, work),
        Shape::Idle => idle::second(end),
        Shape::Connect => Err(Trouble::new("this shape does not run with one end")),
    }
}

/// Sends messages and waits for messages: an end, or a handler in front of an end.
trait Messages {
    fn send(&mut self, message: &[u8]) -> Result<()>;
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()>;
}

impl<E: End> Messages for E {
    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        End::send(self, message)
    }

    #[inline(always)]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        End::recv(self, buffer)
    }
}

/// Sends the message with this number, waits for its answer and checks it.
#[inline(always)]
fn exchange(end: &mut impl Messages, message: &mut [u8], answer: &mut [u8], number: u64) -> Result<()> {
    payload::stamp(message, number);
    end.send(message)?;
    end.recv(answer)?;
    if answer.len() == message.len() { payload::check(answer, number) } else { acknowledged(answer, number) }
}

/// Checks that `answer` acknowledges the message with this number.
#[inline(always)]
fn acknowledged(answer: &[u8], number: u64) -> Result<()> {
    if payload::number(answer) == number {
        Ok(())
    } else {
        Err(Trouble::new("the acknowledgement of another message arrived"))
    }
}

/// Reads the counters of this process, and then acknowledges the end of the run. In a silent run it ends the process
/// instead of returning.
fn finish(
    end: &mut impl Messages,
    work: &Work,
    answer: &[u8],
    gauge: &Gauge,
    count: u64,
    samples: &Samples,
) -> Result<Share> {
    if work.silent {
        end.send(answer)?;
        silence::farewell(&[]);
    }
    let share = Share::of(gauge.spent()?, count, samples);
    end.send(answer)?;
    Ok(share)
}

impl Share {
    fn of(spent: Spent, count: u64, samples: &Samples) -> Self {
        Self { spent, count, times: samples.percentiles(), curve: samples.curve(), ..Self::default() }
    }
}

/// Builds the first process's report of a measured part that took `elapsed` nanoseconds.
fn report(spent: Spent, count: u64, elapsed: u64, samples: &Samples) -> Report {
    Report {
        count,
        elapsed,
        times: samples.percentiles(),
        curve: samples.curve(),
        spent: [spent, Spent::default()],
        ..Report::default()
    }
}

/// In a silent run, forbids system calls from now on. Returns the packet that reports success, which is encoded
/// before, since allocating memory may need a system call. Returns `None` if the run is not silent.
fn farewell(work: &Work) -> Result<Option<Vec<u8>>> {
    if !work.silent {
        return Ok(None);
    }
    let packet = crate::pair::control::encode(&Ok::<_, Trouble>(Report::default()))?;
    silence::begin()?;
    Ok(Some(packet))
}
