//! What a process has used up: processor time, sleeps, allocations.

use std::fs;

use super::{allocations, clock};
use crate::trouble::{Result, Trouble, While};
use crate::work::Spent;

/// A stand of the counters, to be subtracted from a later one.
#[derive(Debug)]
pub(crate) struct Gauge(Spent);

impl Gauge {
    /// The counters of this process now.
    pub(crate) fn start() -> Result<Self> {
        // Reading the sleeps allocates, so the allocations are read after it here and before it in `spent`.
        let sleeps = sleeps(std::process::id())?;
        Ok(Self(Spent { cpu: clock::cpu(), sleeps, allocations: allocations::so_far() }))
    }

    /// What has been used since the start.
    pub(crate) fn spent(&self) -> Result<Spent> {
        let allocations = allocations::so_far();
        let cpu = clock::cpu();
        Ok(Spent {
            cpu: cpu - self.0.cpu,
            sleeps: sleeps(std::process::id())? - self.0.sleeps,
            allocations: allocations - self.0.allocations,
        })
    }
}

/// How often the threads of `process` have gone to sleep of their own accord, each to be woken later.
pub(crate) fn sleeps(process: u32) -> Result<u64> {
    let directory = format!("/proc/{process}/task");
    let mut sum = 0;
    for task in fs::read_dir(&directory).doing(&directory)? {
        let path = task.doing(&directory)?.path().join("status");
        // A thread may end while we look.
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
    use super::{sleeps, voluntary};

    #[test]
    fn the_line_is_found() {
        let status = "Name:\tstrait\nvoluntary_ctxt_switches:\t150\nnonvoluntary_ctxt_switches:\t545\n";
        assert_eq!(voluntary(status), Some(150));
        assert_eq!(voluntary("Name:\tstrait\n"), None);
    }

    #[test]
    fn a_sleep_is_counted() {
        let before = sleeps(std::process::id()).unwrap();
        std::thread::sleep(std::time::Duration::from_millis(2));
        assert!(sleeps(std::process::id()).unwrap() > before);
    }
}
