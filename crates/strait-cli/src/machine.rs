//! Where the figures were taken, in one line.

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

fn field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    cpuinfo.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_field_is_found() {
        let text = "processor\t: 0\nmodel name\t: Abacus 3\n";
        assert_eq!(super::field(text, "model name"), Some("Abacus 3"));
        assert_eq!(super::field(text, "flags"), None);
    }
}
