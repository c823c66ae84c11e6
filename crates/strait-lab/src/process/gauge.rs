//! The resources that a process has used: processor time, sleeps, page faults, allocations, and the counters of
//! processor and kernel.

use std::fs;

use nix::sys::resource::{UsageWho, getrusage};

use super::{allocations, clock, events};
use crate::trouble::{Result, Trouble, While};
use crate::work::Spent;

/// A reading of all counters, to be subtracted from a later one.
#[derive(Debug)]
pub(crate) struct Gauge(Spent);

impl Gauge {
    /// Reads the counters of this process now.
    pub(crate) fn start() -> Result<Self> {
        Ok(Self(now()?))
    }

    /// Returns the resources used by all threads of this process since [`start`](Self::start).
    pub(crate) fn spent(&self) -> Result<Spent> {
        // Reading the other counters may allocate: so allocations are read first here, and last at the start.
        let allocations = allocations::so_far();
        Ok(Spent { allocations, ..now()? }.with(self.0, u64::saturating_sub))
    }
}

/// Reads the counters of this process, the allocations last.
fn now() -> Result<Spent> {
    let usage = getrusage(UsageWho::RUSAGE_SELF).doing("getrusage")?;
    let events = events::now();
    Ok(Spent {
        cpu: clock::cpu(),
        sleeps: usage.voluntary_context_switches() as u64,
        preempted: usage.involuntary_context_switches() as u64,
        minor_faults: usage.minor_page_faults() as u64,
        major_faults: usage.major_page_faults() as u64,
        allocations: allocations::so_far(),
        calls: events.calls,
        instructions: events.instructions,
        branches: events.branches,
        mispredictions: events.mispredictions,
        instruction_misses: events.instruction_misses,
    })
}

/// Returns the number of voluntary context switches of all threads of `process`: how often one went to sleep.
pub(crate) fn sleeps(process: u32) -> Result<u64> {
    let directory = format!("/proc/{process}/task");
    let mut sum = 0;
    for task in fs::read_dir(&directory).doing(&directory)? {
        let path = task.doing(&directory)?.path().join("status");
        // The thread may have ended since the directory was read.
        if let Ok(status) = fs::read_to_string(&path) {
            sum += voluntary(&status).ok_or_else(|| Trouble::new("the kernel does not count context switches"))?;
        }
    }
    Ok(sum)
}

fn voluntary(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::{Gauge, sleeps, voluntary};

    #[test]
    fn the_line_is_found() {
        let status = "Name:\tstrait\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        assert_eq!(voluntary(status), Some(150));
        assert_eq!(voluntary("Name:\tstrait\n"), None);
    }

    #[test]
    fn a_sleep_is_counted() {
        let before = sleeps(std::process::id()).unwrap();
        let gauge = Gauge::start().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(sleeps(std::process::id()).unwrap() > before);
        assert!(gauge.spent().unwrap().sleeps > 0);
    }

    #[test]
    fn first_touches_are_page_faults() {
        let mut memory = Vec::<u8>::with_capacity(64 << 20);
        let gauge = Gauge::start().unwrap();
        memory.resize(64 << 20, 1);
        // Fewer than one fault per page if the kernel uses large pages.
        assert!(gauge.spent().unwrap().minor_faults >= 32);
    }
}
