//! The looks of each mechanism, equal on every plot: a colour for its kind, and a pattern of dashes within the kind.
//!
//! Readers with red-green blindness can distinguish the colours. Each colour has a lighter form for dark pages. An
//! unknown mechanism gets the colour of the kind `Other`, and is drawn as well.

use std::fmt::Write;

use strait_lab::CATALOGUE;
use strait_lab::Mechanism;

/// The kind of a mechanism, which decides its colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Strait,
    Pipe,
    Socket,
    Queue,
    Memory,
    Signal,
    Copy,
    Peer,
    Other,
    Floor,
}

/// The colours of each kind: on a light page, then on a dark page.
const COLOURS: [(Kind, &str, &str); 10] = [
    (Kind::Strait, "#0060b0", "#5ab4ff"),
    (Kind::Pipe, "#b85c00", "#ffab4f"),
    (Kind::Socket, "#00795c", "#3ed2a2"),
    (Kind::Queue, "#a8327d", "#f08cc8"),
    (Kind::Memory, "#7d7200", "#ddd04a"),
    (Kind::Signal, "#6747b8", "#b49cff"),
    (Kind::Copy, "#00788c", "#5fd6e8"),
    (Kind::Peer, "#c02636", "#ff8a80"),
    (Kind::Other, "#7a5540", "#d4ab92"),
    (Kind::Floor, "#6a6f76", "#9aa1a9"),
];

/// The dash patterns of the mechanisms of one kind. The first mechanism of a kind has a solid line.
const DASHES: [&str; 9] =
    ["none", "70 35", "22 28", "90 30 22 30", "150 40", "60 25 22 25 22 25", "35 35", "120 30 60 30", "8 22"];

/// The names of mechanisms of each kind, or their beginnings. Floors are bare loops, without the other work of a
/// library.
const KINDS: [(Kind, &[&str]); 9] = [
    (Kind::Strait, &["strait"]),
    (Kind::Floor, &["line", "flag", "futex", "ring", "empty"]),
    (Kind::Pipe, &["pipe", "fifo", "named-pipe"]),
    (Kind::Socket, &["stream", "datagram", "dgram", "seqpacket", "socket", "rights", "unix", "tcp", "udp"]),
    (Kind::Queue, &["sysv-queue", "sysv-message", "posix-queue", "posix-message", "mq", "msg", "queue"]),
    (Kind::Memory, &["shm", "sysv-shm", "posix-shm", "sysv-memory", "posix-memory", "memfd", "shared", "memory"]),
    (Kind::Signal, &["eventfd", "signal", "signalfd", "semaphore"]),
    (Kind::Copy, &["process-vm", "process_vm", "vm", "vmsplice", "splice", "io-uring", "io_uring", "uring"]),
    (Kind::Peer, &["iceoryx", "ipc-channel", "zmq", "zeromq", "boost", "heapless", "rtrb", "nng", "crossbeam"]),
];

/// Returns the kind of a mechanism.
pub(crate) fn kind(mechanism: Mechanism) -> Kind {
    let name = mechanism.name();
    let belongs = |prefix: &&str| {
        name.strip_prefix(*prefix).is_some_and(|rest| !rest.starts_with(|next: char| next.is_ascii_alphabetic()))
    };
    let fits = |(_, prefixes): &&(Kind, &[&str])| prefixes.iter().any(belongs);
    KINDS.iter().find(fits).map_or(Kind::Other, |(kind, _)| *kind)
}

/// Returns whether the mechanism is a floor: a bare loop, useless for a program as it is.
pub(crate) fn is_floor(mechanism: Mechanism) -> bool {
    kind(mechanism) == Kind::Floor
}

/// Returns whether the mechanism is Strait, in any of its modes.
pub(crate) fn is_strait(mechanism: Mechanism) -> bool {
    kind(mechanism) == Kind::Strait
}

/// Returns whether the messages of the mechanism carry descriptors or channel ends. Such mechanisms are compared only
/// with each other.
pub(crate) fn carries_descriptors(mechanism: Mechanism) -> bool {
    ["rights", "ends"].iter().any(|what| mechanism.name().contains(what))
}

fn index(mechanism: Mechanism) -> usize {
    CATALOGUE.iter().position(|&other| other == mechanism).unwrap_or(CATALOGUE.len())
}

/// Returns the CSS class of everything on the page that belongs to the mechanism.
pub(crate) fn class(mechanism: Mechanism) -> String {
    format!("m{}", index(mechanism))
}

/// Returns a sort key for mechanisms: Strait first, then by kind, floors last.
pub(crate) fn order(mechanism: Mechanism) -> (Kind, usize) {
    (kind(mechanism), index(mechanism))
}

/// Returns the CSS rules for the looks of these mechanisms, and for highlighting the mechanism picked by the reader.
pub(crate) fn style(mechanisms: &[Mechanism]) -> String {
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(out, ":root{{");
    for (kind, light, _) in COLOURS {
        let _ = write!(out, "--{kind:?}:{light};");
    }
    let _ = write!(out, "}}\n@media screen and (prefers-color-scheme:dark){{:root{{");
    for (kind, _, dark) in COLOURS {
        let _ = write!(out, "--{kind:?}:{dark};");
    }
    let _ = writeln!(out, "}}}}");
    for &mechanism in mechanisms {
        let (class, kind) = (class(mechanism), kind(mechanism));
        let earlier = CATALOGUE.iter().take(index(mechanism)).filter(|&&other| self::kind(other) == kind).count();
        let dash = DASHES[earlier % DASHES.len()];
        let _ = writeln!(out, ".{class}{{--c:var(--{kind:?});--d:{dash}}}");
        if kind == Kind::Strait && earlier == 0 {
            let _ = writeln!(out, ".{class}{{--w:30}}");
        }
        let _ = writeln!(
            out,
            "body:has(#p-{class}:checked) :is(svg .{class},.key .{class}){{opacity:1}}\n\
             body:has(#p-{class}:checked) .key .{class}{{font-weight:700}}"
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use strait_lab::CATALOGUE;
    use strait_lab::Mechanism;

    use super::{Kind, class, is_floor, kind};

    #[test]
    fn every_mechanism_has_a_kind_and_a_class_of_its_own() {
        assert_eq!(kind(Mechanism::STRAIT), Kind::Strait);
        assert_eq!(kind(Mechanism::STREAM), Kind::Socket);
        assert!(is_floor(Mechanism::LINE) && !is_floor(Mechanism::PIPE));
        let mut classes: Vec<_> = CATALOGUE.iter().map(|&mechanism| class(mechanism)).collect();
        classes.dedup();
        assert_eq!(classes.len(), CATALOGUE.len());
        for &mechanism in CATALOGUE {
            assert_ne!(kind(mechanism), Kind::Other, "{} has no kind", mechanism.name());
        }
    }
}
