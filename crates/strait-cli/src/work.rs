//! What is measured: one run of one mechanism, described so that another process can be told of it.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::placement::Placement;
use crate::samples::Percentiles;

/// How a message gets from one process to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Mechanism {
    /// Strait.
    Strait,
    /// Strait, with one descriptor in each message.
    #[value(skip)]
    StraitRights,
    /// Two flag lines, the payload in the flag's own line.
    Line,
    /// A flag, and memcpy in and out of a shared buffer.
    Flag,
    /// A futex, and memcpy in and out of a shared buffer.
    Futex,
    /// A bare single-producer ring of 64-byte slots.
    Ring,
    /// A pair of pipes.
    Pipe,
    /// A Unix stream socket.
    Stream,
    /// A Unix seqpacket socket.
    Seqpacket,
    /// A bare sendmsg and recvmsg with one descriptor.
    #[value(skip)]
    Rights,
}

impl Mechanism {
    /// The words for a table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Strait => "Strait",
            Self::StraitRights => "Strait with a descriptor",
            Self::Line => "bare cache lines",
            Self::Flag => "flag + memcpy",
            Self::Futex => "bare futex",
            Self::Ring => "bare ring",
            Self::Pipe => "pipe",
            Self::Stream => "Unix stream socket",
            Self::Seqpacket => "Unix seqpacket socket",
            Self::Rights => "sendmsg with a descriptor",
        }
    }

    /// Whether more than one message may be under way.
    pub(crate) fn streams(self) -> bool {
        !matches!(self, Self::Line | Self::Flag | Self::Futex | Self::Rights | Self::StraitRights)
    }

    /// Whether it can carry messages of `size` bytes, waited for in this way.
    pub(crate) fn can(self, size: usize, wait: Wait) -> bool {
        match self {
            Self::Strait | Self::StraitRights => true,
            Self::Line => size <= 56 && wait == Wait::Spin,
            Self::Flag => wait == Wait::Spin,
            Self::Futex => wait == Wait::Block,
            Self::Ring => size <= 64 && wait == Wait::Spin,
            Self::Pipe | Self::Stream | Self::Seqpacket | Self::Rights => wait != Wait::Adaptive,
        }
    }
}

/// How a side waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Wait {
    /// Looks again and again, and never sleeps.
    Spin,
    /// Spins while that pays, then sleeps.
    Adaptive,
    /// Sleeps at once.
    Block,
}

impl Wait {
    /// Whether a placement makes sense: spinning on one processor only keeps the other side from running.
    pub(crate) fn fits(self, placement: Placement) -> bool {
        !(self == Self::Spin && matches!(placement, Placement::Same(_)))
    }

    /// The words for a table.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Spin => "spinning",
            Self::Adaptive => "adaptive",
            Self::Block => "blocking",
        }
    }
}

/// What the two sides do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Pattern {
    /// The first sends a message and waits for `reply` bytes of it to come back. Closed loop: one message at a time.
    RoundTrip {
        /// How many bytes come back: all, or a short acknowledgement.
        reply: usize,
    },
    /// The first sends as fast as it can, `batch` messages in one call.
    OneWay {
        /// How many messages are given out together.
        batch: usize,
    },
    /// The first fills the message in the transport's own memory and the second reads it there; measured from commit to
    /// the reader's first byte.
    InPlace,
    /// The second waits and nothing comes: how often does it wake?
    Idle,
}

/// How long it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Extent {
    /// By the clock, in milliseconds.
    Time {
        /// Excluded from all figures.
        warm: u64,
        /// What is measured.
        steady: u64,
    },
    /// By the number of messages.
    Count {
        /// Excluded from all figures.
        warm: u64,
        /// What is measured.
        steady: u64,
    },
}

impl Extent {
    /// Whether the warm-up is over after `done` messages and `elapsed` nanoseconds.
    #[inline]
    pub(crate) fn is_warm(self, done: u64, elapsed: u64) -> bool {
        match self {
            Self::Time { warm, .. } => elapsed >= warm * 1_000_000,
            Self::Count { warm, .. } => done >= warm,
        }
    }

    /// Whether the measured part is over after `done` messages and `elapsed` nanoseconds of it.
    #[inline]
    pub(crate) fn is_over(self, done: u64, elapsed: u64) -> bool {
        match self {
            Self::Time { steady, .. } => elapsed >= steady * 1_000_000,
            Self::Count { steady, .. } => done >= steady,
        }
    }
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Work {
    /// By what means.
    pub(crate) mechanism: Mechanism,
    /// In which manner.
    pub(crate) pattern: Pattern,
    /// Bytes in a message, at least 8.
    pub(crate) size: usize,
    /// How each side waits.
    pub(crate) wait: Wait,
    /// Where each side runs.
    pub(crate) placement: Placement,
    /// For how long.
    pub(crate) extent: Extent,
    /// Round trips between two looks at the clock: more than one where the clock would cost as much as the message.
    pub(crate) stride: u32,
    /// Slots of 64 bytes in a ring, where the size of the ring is fixed.
    pub(crate) slots: Option<usize>,
    /// Whether any system call in the measured part ends the run.
    pub(crate) silent: bool,
}

/// The number of slots of Strait's largest ring, if it is not told otherwise.
pub(crate) const DEFAULT_SLOTS: usize = 16_384;

impl Work {
    /// A round trip of `size` bytes there and back.
    pub(crate) fn round_trip(mechanism: Mechanism, size: usize, wait: Wait, placement: Placement) -> Self {
        // Up to 4 KiB a spinning round trip costs little more than reading the clock.
        let stride = if wait == Wait::Spin && size <= 4096 { 16 } else { 1 };
        Self {
            mechanism,
            pattern: Pattern::RoundTrip { reply: size },
            size,
            wait,
            placement,
            extent: Extent::Time { warm: 30, steady: 120 },
            stride,
            slots: None,
            silent: false,
        }
    }

    /// A stream of messages in one direction.
    pub(crate) fn one_way(mechanism: Mechanism, size: usize, batch: usize, wait: Wait, placement: Placement) -> Self {
        Self { pattern: Pattern::OneWay { batch }, ..Self::round_trip(mechanism, size, wait, placement) }
    }
}

/// What one side used up in the measured part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Spent {
    /// Processor time in nanoseconds.
    pub(crate) cpu: u64,
    /// How often it went to sleep and was woken.
    pub(crate) sleeps: u64,
    /// Memory allocations.
    pub(crate) allocations: u64,
}

/// What a run found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Messages (one way) or round trips in the measured part.
    pub(crate) count: u64,
    /// The distribution of the measured quantity, in nanoseconds: a round trip; the pace of a stream per message, by
    /// stretches of 5 milliseconds; or the way from commit to the reader's first byte.
    pub(crate) times: Percentiles,
    /// What each side spent.
    pub(crate) spent: [Spent; 2],
    /// How long it took to connect, in nanoseconds.
    pub(crate) connect: u64,
    /// How long the very first round trip took, in nanoseconds.
    pub(crate) first: u64,
    /// The bare cache-line round trip on the same processors in the same processes, just before and just after.
    pub(crate) probes: Vec<f64>,
    /// How often the idle receiver woke.
    pub(crate) wake_ups: Option<u64>,
    /// The second process was killed for a system call when none was allowed.
    pub(crate) silence_broken: bool,
    /// What else was found, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) found: BTreeMap<String, f64>,
}

impl Report {
    /// Processor time of both sides per message, in nanoseconds.
    pub(crate) fn cpu_per_message(&self) -> f64 {
        (self.spent[0].cpu + self.spent[1].cpu) as f64 / self.count.max(1) as f64
    }

    /// How often a side slept, per message.
    pub(crate) fn sleeps_per_message(&self) -> f64 {
        (self.spent[0].sleeps + self.spent[1].sleeps) as f64 / self.count.max(1) as f64
    }

    /// Memory allocations of both sides.
    pub(crate) fn allocations(&self) -> u64 {
        self.spent[0].allocations + self.spent[1].allocations
    }
}

#[cfg(test)]
mod tests {
    use super::{Extent, Mechanism, Pattern, Wait, Work};
    use crate::placement::Placement;

    #[test]
    fn a_work_survives_the_way_to_its_process() {
        let work = Work {
            pattern: Pattern::OneWay { batch: 16 },
            slots: Some(1024),
            ..Work::round_trip(Mechanism::Ring, 64, Wait::Spin, Placement::Two(0, 1))
        };
        let told = serde_json::to_string(&work).unwrap();
        assert_eq!(serde_json::from_str::<Work>(&told).unwrap(), work);
    }

    #[test]
    fn an_extent_ends_by_its_own_measure() {
        let time = Extent::Time { warm: 1, steady: 2 };
        assert!(!time.is_warm(1_000_000, 999_999));
        assert!(time.is_warm(0, 1_000_000));
        assert!(time.is_over(0, 2_000_000));
        let count = Extent::Count { warm: 3, steady: 4 };
        assert!(!count.is_warm(2, u64::MAX));
        assert!(count.is_over(4, 0));
    }

    #[test]
    fn what_cannot_be_done_is_not_asked_for() {
        assert!(!Mechanism::Line.can(64, Wait::Spin));
        assert!(!Mechanism::Pipe.can(64, Wait::Adaptive));
        assert!(!Mechanism::Futex.can(64, Wait::Spin));
        assert!(Mechanism::Strait.can(1 << 28, Wait::Adaptive));
    }
}
