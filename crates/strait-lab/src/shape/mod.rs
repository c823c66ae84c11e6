//! The measuring loops, the same for every mechanism: what the first process does, and what the second answers.
//!
//! A run has a warm-up, which is excluded from every figure, and a measured part. The first process announces the
//! second part and the end by messages with special numbers, so that both sides count the same messages. Every message
//! carries its number, whoever receives it has copied it out whole before looking, and one that is lost, doubled, torn or
//! out of order ends the run: see `payload`.
//!
//! To add a shape, name it in [`Shape`], write its two loops in a module of their own, and send both sides there in
//! `first` and `second`.

mod idle;
mod in_place;
pub(crate) mod payload;
mod ping_pong;
mod stream;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
    /// The first fills the message in the transport's own memory and the second reads it there; measured from commit to
    /// the reader's first byte.
    InPlace,
    /// The second waits and nothing comes: how often does it wake?
    Idle,
}

impl Shape {
    /// What a mechanism must be able to do for it.
    pub(crate) fn needs(self) -> &'static [Ability] {
        match self {
            Self::PingPong { .. } | Self::Idle => &[],
            Self::Stream { .. } => &[Ability::Stream],
            Self::InPlace => &[Ability::InPlace],
        }
    }

    /// In words, with what belongs to it.
    pub fn words(self) -> String {
        match self {
            Self::Stream { batch } if batch > 1 => format!("one way, {batch} in a call,"),
            other => other.name().to_owned(),
        }
    }

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::PingPong { .. } => "ping-pong",
            Self::Stream { .. } => "stream",
            Self::InPlace => "in-place",
            Self::Idle => "idle",
        }
    }
}

/// The second process's share of a report.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub(crate) struct Share {
    pub(crate) spent: Spent,
    pub(crate) count: u64,
    pub(crate) times: Percentiles,
}

/// What the first process does, given its end and the number of the other process.
pub(crate) fn first<E: End>(end: &mut E, work: &Work, peer: u32) -> Result<Report> {
    match work.shape {
        Shape::PingPong { reply } => ping_pong::first(end, work, reply),
        Shape::Stream { batch } => stream::first(end, work, batch),
        Shape::InPlace => in_place::first(end, work),
        Shape::Idle => idle::first(end, work, peer),
    }
}

/// What the second process does.
pub(crate) fn second<E: End>(end: &mut E, work: &Work) -> Result<Share> {
    match work.shape {
        Shape::PingPong { reply } => ping_pong::second(end, work, reply),
        Shape::Stream { .. } => stream::second(end, work),
        Shape::InPlace => in_place::second(end, work),
        Shape::Idle => idle::second(end),
    }
}

/// Sends the message with this number and waits for its answer.
#[inline(always)]
fn exchange(end: &mut impl End, message: &mut [u8], answer: &mut [u8], number: u64) -> Result<()> {
    payload::stamp(message, number);
    end.send(message)?;
    end.recv(answer)?;
    if answer.len() == message.len() {
        payload::check(answer, number)
    } else if payload::number(answer) == number {
        Ok(())
    } else {
        Err(Trouble::new("the acknowledgement of another message came"))
    }
}

/// Acknowledges the end, after taking stock.
fn finish(
    end: &mut impl End,
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
    let share = Share { spent: gauge.spent()?, count, times: samples.percentiles() };
    end.send(answer)?;
    Ok(share)
}

/// If the run is a silent one, begins the silence. What is to be reported when it was kept is made before, since even
/// memory may need a system call.
fn farewell(work: &Work) -> Result<Option<Vec<u8>>> {
    if !work.silent {
        return Ok(None);
    }
    let packet = crate::pair::control::encode(&Ok::<_, String>(Report::default()))?;
    silence::begin()?;
    Ok(Some(packet))
}
