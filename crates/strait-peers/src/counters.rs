//! The resources used by a process, as counted by the kernel.

use std::fs;

use serde_json::{Value, json};

/// Returns the processor time of all threads of this process, in nanoseconds.
pub(crate) fn cpu() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The resources of a process at one moment, held and used.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Held {
    sleeps: u64,
    ticks: u64,
    threads: u64,
    descriptors: u64,
    proportional: u64,
}

impl Held {
    /// Reads the counters of a process from /proc. A counter that cannot be read is 0.
    pub(crate) fn of(process: u32) -> Self {
        let root = format!("/proc/{process}");
        let mut held = Held { descriptors: entries(&format!("{root}/fd")), ..Held::default() };
        let Ok(tasks) = fs::read_dir(format!("{root}/task")) else { return held };
        for task in tasks.flatten() {
            held.threads += 1;
            held.sleeps += field(&task.path().join("status").to_string_lossy(), "voluntary_ctxt_switches:");
        }
        let stat = fs::read_to_string(format!("{root}/stat")).unwrap_or_default();
        let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
        // The fields 14 and 15 of the file, utime and stime: the 12th and 13th after the name.
        held.ticks = after_name.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
        held.proportional = field(&format!("{root}/smaps_rollup"), "Pss:");
        held
    }

    /// Returns what this process and another held at the end, and used since `before`.
    pub(crate) fn both_since(now: [Self; 2], before: [Self; 2], seconds: f64) -> Value {
        let sum = |of: fn(&Self) -> u64, of_both: [Self; 2]| of_both.iter().map(of).sum::<u64>();
        let grown = |of: fn(&Self) -> u64| sum(of, now).saturating_sub(sum(of, before));
        json!({
            "seconds": seconds,
            "sleeps": grown(|held| held.sleeps),
            "cpu_ticks": grown(|held| held.ticks),
            "threads": sum(|held| held.threads, now),
            "descriptors": sum(|held| held.descriptors, now),
            "pss_kib": sum(|held| held.proportional, now),
        })
    }
}

/// Returns the number of entries of a directory.
fn entries(directory: &str) -> u64 {
    fs::read_dir(directory).map_or(0, |entries| entries.count() as u64)
}

/// Returns the first number after `name` at the begin of a line of a file.
fn field(file: &str, name: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    line.split_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or(0)
}
