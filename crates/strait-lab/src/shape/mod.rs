//! The measuring loops, the same for every mechanism: what the first process does, and what the second answers.
//!
//! A run has a warm-up, which is excluded from every figure, and a measured part. The first process announces the
//! second part and the end by messages with special numbers, so that both sides count the same messages. Every message
//! carries its number, whoever receives it has copied it out whole before looking, and one that is lost, doubled, torn or
//! out of order ends the run: see `payload`.
//!
//! To add a shape, name it in [`Shape`], write its two loops in a module of their own, and send both sides there in
//! `first` and `second`.

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

/// What the two sides do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Shape {
    /// The first sends a message and waits for `reply` bytes of it to come back. Closed loop: one message at a time.
    PingPong {
        /// How many bytes come back: all, or a short acknowledgement.
        reply: usize,
    },
    /// The first sends as fast as it can, `batch` messages in one call.
    Stream {
        /// How many messages are given out together.
        batch: usize,
    },
    /// The first sends at a part of what the two can do at most, which is measured in the same processes just before;
    /// messages come at random (as independent senders would send them), and each is timed from when it was to be sent
    /// until the second has it: who falls behind has the wait in every message that waited.
    OpenLoop {
        /// In percent of the capacity.
        load: u8,
    },
    /// The same at so many messages a second, whatever the two can do: all mechanisms at one load.
    Paced {
        /// Messages a second.
        rate: u32,
    },
    /// Several processes send to the first, each as fast as it can.
    Producers {
        /// How many.
        count: u8,
        /// Through one and the same pipe or socket, instead of one for each.
        shared: bool,
    },
    /// The first sends each message to several processes, and waits until all have acknowledged it.
    FanOut {
        /// How many.
        count: u8,
    },
    /// Messages with the sizes that Chrome's have, in random order.
    Mix {
        /// One way, as fast as it goes, instead of there and back.
        stream: bool,
    },
    /// Ping-pong between handlers that run in threads of their own on both sides: what arrives is put into a queue for
    /// them (a mutex and a condition variable), and what they send goes back through one to the thread that does the
    /// input and output.
    Hop {
        /// What they send goes straight out, from their own threads: only what arrives hops.
        #[serde(default)]
        direct: bool,
    },
    /// Ping-pong with descriptors in each message, which move: the sender has them no more.
    Descriptors {
        /// How many.
        count: u16,
    },
    /// A large message there and a short acknowledgement back.
    OutOfLine {
        /// Both sides use memory that was never used before, for each message.
        cold: bool,
        /// The sender writes every byte of each message and the receiver reads every byte; else they do so with 16 bytes.
        touched: bool,
    },
    /// The first fills the message in the transport's own memory and the second reads it there; measured from commit to
    /// the reader's first byte.
    InPlace,
    /// A message that lies in pieces, there, and a short acknowledgement back.
    Vectored {
        /// How many pieces.
        parts: u16,
        /// They are put together in new memory first, and sent as one.
        linear: bool,
    },
    /// Ping-pong after a time of silence.
    Wake {
        /// In milliseconds.
        after: u32,
    },
    /// A new connection, one message there and one back, and the end of it.
    Connect,
    /// The second waits and nothing comes: how often does it wake?
    Idle,
}

/// The processes beside the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Crowd {
    pub(crate) peers: usize,
    /// All have the same end.
    pub(crate) shared: bool,
}

impl Shape {
    /// What a mechanism must be able to do for it.
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

    /// Who is there beside the first process, if not just one other.
    pub(crate) fn crowd(self) -> Option<Crowd> {
        match self {
            Self::Producers { count, shared } => Some(Crowd { peers: count.into(), shared }),
            Self::FanOut { count } => Some(Crowd { peers: count.into(), shared: false }),
            _ => None,
        }
    }

    /// How many processes work at the same time.
    pub fn processes(self) -> usize {
        1 + self.crowd().map_or(1, |crowd| crowd.peers)
    }

    /// The smallest message that holds what this shape writes into it.
    pub(crate) fn smallest(self) -> usize {
        match self {
            // A time beside the number.
            Self::OpenLoop { .. } | Self::Paced { .. } | Self::InPlace | Self::Wake { .. } => 24,
            // The first bytes and the last.
            Self::OutOfLine { .. } => 32,
            Self::Vectored { parts, .. } => usize::from(parts).max(12),
            Self::Mix { .. } => mix::LARGEST,
            _ => SMALLEST,
        }
    }

    /// In words, with what belongs to it; "of 64 B" may follow.
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
            Self::Vectored { parts, linear: true } => format!("{parts} pieces put together first, acknowledged,"),
            Self::Wake { after } => format!("ping-pong after {after} ms of silence"),
            Self::Connect => "connection and first ping-pong".to_owned(),
            Self::PingPong { .. } | Self::Stream { .. } | Self::Idle => self.to_string(),
        }
    }
}

/// A process's share of a report, that is not the first.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Share {
    pub(crate) spent: Spent,
    pub(crate) count: u64,
    pub(crate) times: Percentiles,
    pub(crate) curve: Vec<f64>,
    pub(crate) found: BTreeMap<String, f64>,
}

/// What the first process does, given its end and the number of the other process.
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
        Shape::Producers { .. } | Shape::FanOut { .. } | Shape::Connect => Err(Trouble::new("not between two ends")),
    }
}

/// What the first process does with more than one other, or one end that several have.
pub(crate) fn first_of_many<E: End>(mut ends: Vec<E>, work: &Work) -> Result<Report> {
    match work.shape {
        Shape::Producers { count, shared: true } => match ends.pop() {
            Some(end) => producers::first(&mut producers::One(end), work, count.into()),
            None => Err(Trouble::new("there is no end")),
        },
        Shape::Producers { count, .. } => producers::first(&mut *E::hub(ends, work)?, work, count.into()),
        Shape::FanOut { count } => fan_out::first(&mut *E::hub(ends, work)?, work, count.into()),
        _ => Err(Trouble::new("not among many")),
    }
}

/// What the second process does, or one of several others.
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
        Shape::Connect => Err(Trouble::new("not with one end")),
    }
}

/// What sends a message and waits for one: an end, or what a program has put before it.
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

/// Sends the message with this number and waits for its answer.
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
        Err(Trouble::new("the acknowledgement of another message came"))
    }
}

/// Acknowledges the end, after taking stock.
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

/// What the first process found of a measured part that took `elapsed` nanoseconds.
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

/// If the run is a silent one, begins the silence. What is to be reported when it was kept is made before, since even
/// memory may need a system call.
fn farewell(work: &Work) -> Result<Option<Vec<u8>>> {
    if !work.silent {
        return Ok(None);
    }
    let packet = crate::pair::control::encode(&Ok::<_, Trouble>(Report::default()))?;
    silence::begin()?;
    Ok(Some(packet))
}
