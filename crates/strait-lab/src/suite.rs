//! What belongs together: the named suites, and works put together by hand.

use clap::ValueEnum;

use crate::mechanism::Mechanism;
use crate::pair::placement::{Cpus, Placement};
use crate::shape::Shape;
use crate::work::{Extent, Wait, Work};

/// A named suite.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Suite {
    /// What one wants to know first, in less than a minute
    Quick,
}

impl Suite {
    /// The name on the command line and in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Quick => "quick",
        }
    }

    /// How often each figure is taken, unless told otherwise.
    pub fn repetitions(self) -> usize {
        match self {
            Self::Quick => 5,
        }
    }

    /// What belongs to it on these processors.
    pub fn works(self, cpus: Cpus) -> Vec<Work> {
        match self {
            Self::Quick => quick(cpus),
        }
    }
}

/// The axes of a table: every combination that makes sense is measured.
#[derive(Clone, Debug)]
pub struct Axes {
    /// By what means.
    pub mechanisms: Vec<Mechanism>,
    /// In which manner; ping-pongs answer with the whole message.
    pub shapes: Vec<Shape>,
    /// Bytes in a message.
    pub sizes: Vec<usize>,
    /// How each side waits.
    pub waiting: Vec<Wait>,
    /// Where each side runs.
    pub placements: Vec<Placement>,
    /// For how long.
    pub extent: Extent,
}

impl Axes {
    /// Everything that these axes span and that can be measured at all.
    pub fn works(&self) -> Vec<Work> {
        let mut works = Vec::new();
        for &size in &self.sizes {
            for &shape in &self.shapes {
                for &wait in &self.waiting {
                    for &placement in &self.placements {
                        for &mechanism in &self.mechanisms {
                            let shape = match shape {
                                Shape::PingPong { .. } => Shape::PingPong { reply: size },
                                other => other,
                            };
                            let extent = self.extent;
                            works.push(Work { shape, extent, ..Work::round_trip(mechanism, size, wait, placement) });
                        }
                    }
                }
            }
        }
        works.retain(|work| work.unfit().is_none());
        works
    }
}

/// All placements, unpinned first.
pub fn placements(cpus: Cpus) -> Vec<Placement> {
    [Some(Placement::Free), cpus.two(), Some(cpus.same())].into_iter().flatten().collect()
}

fn quick(cpus: Cpus) -> Vec<Work> {
    let axes = Axes {
        mechanisms: vec![
            Mechanism::STRAIT,
            Mechanism::LINE,
            Mechanism::FLAG,
            Mechanism::FUTEX,
            Mechanism::PIPE,
            Mechanism::STREAM,
            Mechanism::SEQPACKET,
        ],
        shapes: vec![Shape::PingPong { reply: 0 }],
        sizes: vec![56, 4096],
        waiting: vec![Wait::Spin, Wait::Adaptive, Wait::Block],
        placements: placements(cpus),
        extent: Extent::Time { warm: 20, steady: 80 },
    };
    axes.works()
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::Suite;
    use crate::pair::placement::Cpus;

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
