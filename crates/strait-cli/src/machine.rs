//! Where the figures were taken, and who else was at work there.

use std::fs;

/// The processor, how many of them, whether the machine is virtual, and the kernel.
pub(crate) fn describe() -> String {
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = field(&cpuinfo, "model name").unwrap_or("unknown processor");
    let virtual_machine = match field(&cpuinfo, "flags") {
        Some(flags) if flags.split(' ').any(|flag| flag == "hypervisor") => ", virtual",
        _ => "",
    };
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("{count} × {model}{virtual_machine}, Linux {}", kernel.trim())
}

/// Watches what the processors do that is not ours: a disturbed run should say so.
#[derive(Debug)]
pub(crate) struct Watch(Option<Ticks>);

/// Processor time in ticks since the machine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    /// All processors, busy or not.
    all: u64,
    /// Doing nothing.
    idle: u64,
    /// This process and its children that have ended.
    ours: u64,
}

impl Watch {
    /// Begins to watch.
    pub(crate) fn start() -> Self {
        Self(Ticks::now())
    }

    /// The share of all processors' time that others have used since, from 0 to 1, a host's other guests included.
    pub(crate) fn foreign(&self) -> Option<f64> {
        let (then, now) = (self.0?, Ticks::now()?);
        let all = now.all.checked_sub(then.all).filter(|&all| all > 0)?;
        let busy = all.saturating_sub(now.idle.saturating_sub(then.idle));
        Some(busy.saturating_sub(now.ours.saturating_sub(then.ours)) as f64 / all as f64)
    }

    /// The same in a sentence.
    pub(crate) fn sentence(&self) -> String {
        match self.foreign() {
            Some(share) => format!("others used {:.0} % of the processors meanwhile", 100.0 * share),
            None => "what others did meanwhile is not known".to_owned(),
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
        // user, nice, system, idle, iowait, irq, softirq, steal; what follows is contained in the first two.
        let line = all.lines().next()?.strip_prefix("cpu ")?;
        let fields: Option<Vec<u64>> = line.split_whitespace().take(8).map(|field| field.parse().ok()).collect();
        let fields = fields?;
        // The name, in brackets, may contain anything; utime, stime, cutime and cstime are 11 fields behind it.
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
