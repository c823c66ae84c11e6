//! Axes: every combination of mechanism, shape, size, waiting and placement that makes sense.

use clap::ValueEnum;

use crate::placement::{Cpus, Placement};
use crate::shape::Shape;
use crate::work::{Extent, Mechanism, Wait, Work};

/// The axes of a table: every combination that makes sense is measured.
#[derive(Clone, Debug)]
pub struct Axes {
    /// The mechanisms to measure.
    pub mechanisms: Vec<Mechanism>,
    /// The shapes of work. A ping-pong with a reply of 0 bytes stands for a ping-pong with the whole message as reply.
    pub shapes: Vec<Shape>,
    /// The message sizes in bytes.
    pub sizes: Vec<usize>,
    /// The ways in which each side waits.
    pub waiting: Vec<Wait>,
    /// The placements of the sides on processors.
    pub placements: Vec<Placement>,
    /// The length of each run.
    pub extent: Extent,
}

impl Axes {
    /// Returns a work for every combination of the axes, except for nonsensical combinations and for combinations that
    /// the mechanism cannot do.
    pub fn works(&self) -> Vec<Work> {
        let mut works = self.combinations();
        works.retain(|work| work.unfit().is_none());
        works
    }

    /// Returns the first combination that [`works`](Self::works) leaves out, with the reason. `None` if there is none.
    pub fn first_unfit(&self) -> Option<String> {
        self.combinations().iter().find_map(|work| Some(format!("{}: {}", work.words(), work.unfit()?)))
    }

    fn combinations(&self) -> Vec<Work> {
        let mut works = Vec::new();
        for &size in &self.sizes {
            for &shape in &self.shapes {
                for &wait in &self.waiting {
                    for &placement in &self.placements {
                        for &mechanism in &self.mechanisms {
                            let shape = match shape {
                                Shape::PingPong { reply: 0 } => Shape::PingPong { reply: size },
                                other => other,
                            };
                            let extent = self.extent;
                            works.push(Work { shape, extent, ..Work::round_trip(mechanism, size, wait, placement) });
                        }
                    }
                }
            }
        }
        works
    }
}

/// A placement without processor numbers, as the command line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Place {
    /// Not pinned: the scheduler places the processes
    Free,
    /// The first process on one CPU, all others on another
    Two,
    /// All processes on one CPU
    Same,
}

impl Place {
    /// Returns this placement on the processors `cpus`; `None` if the placement needs two processors and `cpus` has
    /// one.
    pub fn on(self, cpus: Cpus) -> Option<Placement> {
        match self {
            Self::Free => Some(Placement::Free),
            Self::Two => cpus.two(),
            Self::Same => Some(cpus.same()),
        }
    }
}

/// Returns all placements that `cpus` allows, unpinned first.
pub(crate) fn placements(cpus: Cpus) -> Vec<Placement> {
    Place::value_variants().iter().filter_map(|place| place.on(cpus)).collect()
}
