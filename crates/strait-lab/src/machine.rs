//! The machine on which figures were measured, and how much other processes used it meanwhile.

use std::fs;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The machine when a suite began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct Machine {
    /// The model of the processor.
    pub processor: String,
    /// The number of processors that this process may use.
    pub processors: usize,
    /// Whether the machine is virtual.
    pub virtual_machine: bool,
    /// The release of the kernel.
    pub kernel: String,
    /// The frequency governor of the first processor, if there is one.
    pub governor: Option<String>,
    /// The kernel's mitigations of processor vulnerabilities, by name. Vulnerabilities that do not affect this
    /// processor are left out.
    pub mitigations: Vec<[String; 2]>,
    /// The memory in bytes.
    pub memory: u64,
    /// The load average over one minute when the suite began.
    pub load: Option<f64>,
    /// The share of all processors' time that other processes used during the suite, from 0 to 1.
    pub foreign: Option<f64>,
}

impl Machine {
    /// Describes this machine as it is now.
    pub fn here() -> Self {
        let read = |file: &str| fs::read_to_string(file).ok().map(|text| text.trim().to_owned());
        let cpuinfo = read("/proc/cpuinfo").unwrap_or_default();
        let flags = field(&cpuinfo, "flags").unwrap_or_default();
        let memory =
            read("/proc/meminfo").and_then(|text| field(&text, "MemTotal")?.split(' ').next()?.parse::<u64>().ok());
        Self {
            processor: field(&cpuinfo, "model name").unwrap_or("unknown processor").to_owned(),
            processors: Self::processors(),
            virtual_machine: flags.split(' ').any(|flag| flag == "hypervisor"),
            kernel: read("/proc/sys/kernel/osrelease").unwrap_or_default(),
            governor: read("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            mitigations: mitigations(),
            memory: memory.unwrap_or(0) * 1024,
            load: read("/proc/loadavg").and_then(|text| text.split(' ').next()?.parse().ok()),
            foreign: None,
        }
    }

    /// Returns the number of processors that this process may use.
    pub fn processors() -> usize {
        std::thread::available_parallelism().map_or(1, usize::from)
    }

    /// Describes the machine in a line: number and model of processors, whether it is virtual, and the kernel.
    pub fn words(&self) -> String {
        let virtual_machine = if self.virtual_machine { ", virtual" } else { "" };
        format!("{} × {}{virtual_machine}, Linux {}", self.processors, self.processor, self.kernel)
    }
}

fn mitigations() -> Vec<[String; 2]> {
    let entries = fs::read_dir("/sys/devices/system/cpu/vulnerabilities").into_iter().flatten().flatten();
    let mut all: Vec<_> = entries
        .filter_map(|entry| {
            let what = fs::read_to_string(entry.path()).ok()?.trim().to_owned();
            (what != "Not affected").then(|| [entry.file_name().to_string_lossy().into_owned(), what])
        })
        .collect();
    all.sort();
    all
}

/// Describes this machine in a line: see [`Machine::words`].
pub fn describe() -> String {
    Machine::here().words()
}

/// Measures how much other processes use the processors, so that a disturbed run can be marked.
#[derive(Debug)]
pub struct Watch(Option<Ticks>);

/// A reading of processor times, in ticks of the kernel since the machine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    /// The time of all processors in ticks, busy or idle.
    all: u64,
    /// The time in ticks in which processors were idle or waited for input and output.
    idle: u64,
    /// The processor time of this process in ticks, with its children that have ended.
    ours: u64,
}

impl Watch {
    /// Starts to measure the use of the processors.
    pub fn start() -> Self {
        Self(Ticks::now())
    }

    /// Returns the share of all processors' time that other processes have used since [`start`](Self::start), from 0
    /// to 1. Other guests of a virtual machine's host count as well. `None` if the kernel's counters cannot be read.
    pub fn foreign(&self) -> Option<f64> {
        let (then, now) = (self.0?, Ticks::now()?);
        let all = now.all.checked_sub(then.all).filter(|&all| all > 0)?;
        let busy = all.saturating_sub(now.idle.saturating_sub(then.idle));
        Some(busy.saturating_sub(now.ours.saturating_sub(then.ours)) as f64 / all as f64)
    }

    /// Returns a sentence with the share that [`foreign`](Self::foreign) returns.
    pub fn sentence(&self) -> String {
        match self.foreign() {
            Some(share) => format!("others used {:.0} % of the processors meanwhile", 100.0 * share),
            None => "how much others used the processors is not known".to_owned(),
        }
    }
}

impl Ticks {
    fn now() -> Option<Self> {
        let all = fs::read_to_string("/proc/stat").ok()?;
        let ours = fs::read_to_string("/proc/self/stat").ok()?;
        Self::parse(&all, &ours)
    }

    fn parse(all: &str, ours: &str) -> Option<Self> {
        // user, nice, system, idle, iowait, irq, softirq, steal. The fields after these are contained in the first
        // two.
        let line = all.lines().next()?.strip_prefix("cpu ")?;
        let fields: Option<Vec<u64>> = line.split_whitespace().take(8).map(|field| field.parse().ok()).collect();
        let fields = fields?;
        // The process name, in parentheses, may contain any character; utime, stime, cutime and cstime begin 11
        // fields after it.
        let (_, rest) = ours.rsplit_once(')')?;
        let ours = rest.split_whitespace().skip(11).take(4).map(|field| field.parse::<u64>().ok());
        Some(Self { all: fields.iter().sum(), idle: fields.get(3)? + fields.get(4)?, ours: ours.sum::<Option<u64>>()? })
    }
}

fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn ticks_are_read() {
        let all = "cpu  10 1 20 300 4 5 6 7 99 0\ncpu0 1 2 3\n";
        let ours = "42 (a) name) R 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16";
        let ticks = super::Ticks::parse(all, ours).unwrap();
        assert_eq!(ticks, super::Ticks { all: 353, idle: 304, ours: 11 + 12 + 13 + 14 });
        assert_eq!(super::Ticks::parse("", ours), None);
    }

    #[test]
    fn a_field_is_found() {
        let text = "processor\t: 0\nmodel name\t: Abacus 3\n";
        assert_eq!(super::field(text, "model name"), Some("Abacus 3"));
        assert_eq!(super::field(text, "flags"), None);
    }
}
