//! The processors on which the processes of a measurement run: an axis of every figure.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::trouble::{Result, Trouble, While};

/// The processors on which the processes of a measurement run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// All processes run on this processor.
    Same(usize),
    /// The first process runs on the first of these processors, and all others on the second.
    Two(usize, usize),
    /// The scheduler places the processes.
    Free,
}

impl Placement {
    /// Binds the calling process to its processor. `first` says whether it is the first process.
    pub fn take(self, first: bool) -> Result<()> {
        let cpu = match self {
            Self::Same(cpu) => cpu,
            Self::Two(cpu, _) if first => cpu,
            Self::Two(_, cpu) => cpu,
            Self::Free => return Ok(()),
        };
        let mut set = CpuSet::new();
        if cpu >= CpuSet::MAX_CPU {
            return Err(Trouble::new(format!("there is no processor {cpu}")));
        }
        set.set(cpu);
        sched_setaffinity(None, &set).doing(&format!("binding the process to processor {cpu}"))
    }

    /// Returns the name of the placement for a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Same(_) => "same core",
            Self::Two(..) => "two cores",
            Self::Free => "unpinned",
        }
    }

    /// Whether the two sides certainly run at the same time, which spinning needs.
    pub fn is_two(self) -> bool {
        matches!(self, Self::Two(..))
    }
}

/// The processors that a suite uses: the first two that this process may use, or those that the user named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpus {
    first: usize,
    second: Option<usize>,
}

impl Cpus {
    /// Returns the first two processors that this process may use, or the only one.
    pub fn allowed() -> Result<Self> {
        let set = sched_getaffinity(None).doing("sched_getaffinity")?;
        let mut cpus = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu));
        let first = cpus.next().unwrap_or(0);
        Ok(Self { first, second: cpus.next() })
    }

    /// Returns the processors that the user named: one or two.
    pub fn named(named: &[usize]) -> Result<Self> {
        match *named {
            [first] => Ok(Self { first, second: None }),
            [first, second] => Ok(Self { first, second: (first != second).then_some(second) }),
            _ => Err(Trouble::new("--cpus takes one or two processors, as in 0,1")),
        }
    }

    /// Returns the processors: the first, and the second if there is one.
    pub(crate) fn both(self) -> (usize, Option<usize>) {
        (self.first, self.second)
    }

    /// Returns the processors, if this process may use them.
    ///
    /// # Errors
    ///
    /// If this process may not use one of them; the error lists those that it may use.
    pub fn verified(self) -> Result<Self> {
        let set = sched_getaffinity(None).doing("sched_getaffinity")?;
        let is_allowed = |cpu: usize| cpu < CpuSet::MAX_CPU && set.is_set(cpu);
        let Some(wrong) = [Some(self.first), self.second].into_iter().flatten().find(|cpu| !is_allowed(*cpu)) else {
            return Ok(self);
        };
        let allowed: Vec<String> =
            (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).map(|cpu| cpu.to_string()).collect();
        Err(Trouble::new(format!("this process may not use processor {wrong}, only {}", allowed.join(","))))
    }

    /// Returns the placement of all processes on the first of the processors.
    pub fn same(self) -> Placement {
        Placement::Same(self.first)
    }

    /// Returns the placement on two processors; `None` if there is only one.
    pub fn two(self) -> Option<Placement> {
        self.second.map(|second| Placement::Two(self.first, second))
    }
}

#[cfg(test)]
mod tests {
    use super::{CpuSet, Cpus, Placement};

    #[test]
    fn one_processor_is_never_two() {
        assert_eq!(Cpus::named(&[3]).unwrap().two(), None);
        assert_eq!(Cpus::named(&[3, 3]).unwrap().two(), None);
        assert_eq!(Cpus::named(&[3]).unwrap().same(), Placement::Same(3));
        assert_eq!(Cpus::named(&[0, 1]).unwrap().two(), Some(Placement::Two(0, 1)));
        assert!(Cpus::named(&[0, 1, 2]).is_err());
    }

    #[test]
    fn a_processor_that_is_not_there_is_named() {
        assert!(Cpus::allowed().unwrap().verified().is_ok());
        let error = Cpus::named(&[CpuSet::MAX_CPU]).unwrap().verified().unwrap_err().to_string();
        assert!(error.contains(&format!("processor {}", CpuSet::MAX_CPU)), "{error}");
    }
}
