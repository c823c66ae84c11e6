//! Suites: named lists of works, and tables that the user composes from [`Axes`].

mod axes;
mod documents;
mod full;

use std::time::Duration;

use clap::ValueEnum;

use self::axes::placements;
pub use self::axes::{Axes, Place};
pub use self::documents::{MACH, MOJO, ZIRCON};

use crate::placement::Cpus;
use crate::shape::Shape;
use crate::work::{Extent, Mechanism, Wait, Work};

/// A named suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// Quick benchmark (under a minute)
    Quick,
    /// All benchmarks (needs --features suites, as the other suites do for most of their figures)
    Full,
    /// Mach's published benchmark against FIFOs: fifteen sizes, inline and out of line, and sending descriptors or
    /// channel ends
    Mach,
    /// Mojo's published ping-pong benchmark: five sizes, with and without a thread hop on each side
    Mojo,
    /// Zircon's published benchmark of vectored writes: messages in 1 to 64 parts
    Zircon,
    /// Messages with the size distribution of Chrome
    ChromeMix,
    /// Every local IPC primitive of the system, one message at a time, at the usual sizes
    Posix,
    /// Other libraries on the laboratory's own loops, if built in (--features peers); see also `strait bench peers`
    Libraries,
}

impl Suite {
    /// Returns the suite's name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
            Self::Full => "full",
            Self::Mach => "mach",
            Self::Mojo => "mojo",
            Self::Zircon => "zircon",
            Self::ChromeMix => "chrome-mix",
            Self::Posix => "posix",
            Self::Libraries => "libraries",
        }
    }

    /// Returns how often each figure is measured by default.
    pub fn repetitions(self) -> usize {
        match self {
            Self::Full => 3,
            _ => 5,
        }
    }

    /// Returns the works of this suite, for the processors in `cpus`.
    pub fn works(self, cpus: Cpus) -> Vec<Work> {
        match self {
            Self::Quick => quick(cpus),
            Self::Full => full::full(cpus),
            Self::Mach => documents::mach(cpus),
            Self::Mojo => documents::mojo(cpus),
            Self::Zircon => documents::zircon(cpus),
            Self::ChromeMix => documents::chrome_mix(cpus),
            Self::Posix => posix(cpus),
            Self::Libraries => libraries(cpus),
        }
    }

    /// Returns the suite's works with as many messages as the benchmark that the suite repeats. `None` for a suite
    /// without such a longer variant.
    pub fn whole_works(self, cpus: Cpus) -> Option<Vec<Work>> {
        match self {
            Self::Mojo => Some(documents::whole_mojo(cpus)),
            Self::Mach => Some(documents::whole_mach(cpus)),
            _ => None,
        }
    }

    /// Whether the suite counts system calls by default, in separate runs.
    pub fn counts_calls(self) -> bool {
        matches!(self, Self::Full | Self::ChromeMix)
    }
}

/// Estimates how long `repetitions` runs of each work take, on a machine like the machine of the estimate. If `calls`
/// is set, the runs that count system calls are added.
pub fn expected(works: &[Work], repetitions: usize, calls: bool) -> Duration {
    let run = |work: &Work| {
        let measured = match work.extent {
            Extent::Time { warm, steady } => Duration::from_millis(warm + steady),
            Extent::Count { warm, steady } => work.about() * (warm + steady) as u32,
        };
        // Starting and probing the two processes takes about 25 ms.
        measured + Duration::from_millis(25)
    };
    let once: Duration = works.iter().map(run).sum();
    let traced = if calls { Duration::from_millis(200) * works.len() as u32 } else { Duration::ZERO };
    once * repetitions as u32 + traced
}

fn quick(cpus: Cpus) -> Vec<Work> {
    let axes = |mechanisms: &[Mechanism], shape: Shape, sizes: &[usize]| Axes {
        mechanisms: mechanisms.to_vec(),
        shapes: vec![shape],
        sizes: sizes.to_vec(),
        waiting: vec![Wait::Spin, Wait::Adaptive, Wait::Block],
        placements: placements(cpus),
        extent: Extent::Time { warm: 15, steady: 60 },
    };
    let there_and_back = [
        Mechanism::STRAIT,
        Mechanism::LINE,
        Mechanism::FLAG,
        Mechanism::FUTEX,
        Mechanism::PIPE,
        Mechanism::STREAM,
        Mechanism::SEQPACKET,
    ];
    let one_way = [Mechanism::STRAIT, Mechanism::RING, Mechanism::PIPE, Mechanism::SEQPACKET];
    let mut works = axes(&there_and_back, Shape::PingPong { reply: 0 }, &[56, 4096]).works();
    works.extend(axes(&one_way, Shape::Stream { batch: 1 }, &[56]).works());
    works
}

/// Strait, and every primitive for messages that the system has.
const PRIMITIVES: &[Mechanism] = &[
    Mechanism::STRAIT,
    Mechanism::PIPE,
    Mechanism::FIFO,
    Mechanism::STREAM,
    Mechanism::STREAM_NAMED,
    Mechanism::DATAGRAM,
    Mechanism::DATAGRAM_NAMED,
    Mechanism::SEQPACKET,
    Mechanism::SEQPACKET_NAMED,
    Mechanism::IO_URING,
    Mechanism::TCP,
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
    Mechanism::FLAG,
    Mechanism::FUTEX,
    Mechanism::SIGNAL,
    Mechanism::SIGNALFD,
    Mechanism::PROCESS_VM,
    Mechanism::VMSPLICE,
];

fn posix(cpus: Cpus) -> Vec<Work> {
    let mut axes = Axes {
        mechanisms: PRIMITIVES.to_vec(),
        shapes: vec![Shape::PingPong { reply: 0 }],
        sizes: vec![64, 128, 1024, 4096],
        waiting: vec![Wait::Spin, Wait::Adaptive, Wait::Block],
        placements: placements(cpus),
        extent: Extent::Time { warm: 20, steady: 80 },
    };
    let mut works = axes.works();
    // A signal carries eight bytes, so signals have separate figures, with two other mechanisms at this size.
    axes.sizes = vec![8];
    axes.mechanisms = vec![Mechanism::STRAIT, Mechanism::PIPE, Mechanism::SIGNAL, Mechanism::SIGNALFD];
    works.extend(axes.works());
    works
}

fn libraries(cpus: Cpus) -> Vec<Work> {
    let ours = [Mechanism::STRAIT, Mechanism::STRAIT_IN_PLACE, Mechanism::MEMFD_SPIN, Mechanism::MEMFD_FUTEX];
    let axes = Axes {
        mechanisms: ours.iter().chain(Mechanism::PEERS).copied().collect(),
        shapes: vec![Shape::PingPong { reply: 0 }, Shape::Stream { batch: 1 }],
        sizes: vec![64, 1024, 4096],
        waiting: vec![Wait::Spin, Wait::Adaptive, Wait::Block],
        placements: placements(cpus),
        extent: Extent::Time { warm: 20, steady: 80 },
    };
    axes.works()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::{Suite, expected};
    use crate::placement::Cpus;
    use crate::work::Extent;

    #[test]
    fn quick_takes_less_than_a_minute() {
        let works = Suite::Quick.works(Cpus::named(&[0, 1]).unwrap());
        assert!(expected(&works, Suite::Quick.repetitions(), Suite::Quick.counts_calls()).as_secs() < 55);
    }

    #[test]
    fn mach_takes_less_than_five_minutes() {
        let works = Suite::Mach.works(Cpus::named(&[0, 1]).unwrap());
        let all = expected(&works, Suite::Mach.repetitions(), Suite::Mach.counts_calls()).as_secs();
        assert!(all < 300, "{} figures, {all} s", works.len());
    }

    #[test]
    fn mojo_takes_two_minutes_at_every_size_and_all_its_messages_if_asked() {
        let cpus = Cpus::named(&[0, 1]).unwrap();
        let (works, whole) = (Suite::Mojo.works(cpus), Suite::Mojo.whole_works(cpus).unwrap());
        let all = expected(&works, Suite::Mojo.repetitions(), Suite::Mojo.counts_calls()).as_secs();
        assert!(all <= 120, "{} figures, {all} s", works.len());
        assert!(works.iter().zip(&whole).all(|(one, other)| one.is_same_case(other)) && works.len() == whole.len());
        for work in whole {
            let Extent::Count { steady, .. } = work.extent else { panic!("not counted") };
            assert_eq!(steady * Suite::Mojo.repetitions() as u64, 50_000);
        }
        assert!(super::documents::MOJO.iter().all(|&size| works.iter().any(|work| work.size == size)));
    }

    #[test]
    fn every_suite_has_something_to_do_on_one_processor_and_on_two() {
        for suite in Suite::value_variants() {
            for cpus in [&[0][..], &[0, 1]] {
                let works = suite.works(Cpus::named(cpus).unwrap());
                assert!(!works.is_empty(), "{}", suite.name());
                for work in works {
                    assert_eq!(work.unfit(), None, "{}: {}", suite.name(), work.words());
                }
            }
        }
    }
}
