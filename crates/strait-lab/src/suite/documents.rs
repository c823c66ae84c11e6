//! The suites that repeat published benchmarks: Mach messages against FIFOs, Mojo's ping-pongs, Zircon's vectored
//! writes, and the sizes of Chrome's messages.

use super::axes::{Axes, placements};
use crate::catalogue::CODECS;
use crate::placement::{Cpus, Placement};
use crate::shape::{CHROME, FIDL_AROUND, Sample, Shape, Step};
use crate::work::{Extent, Mechanism, Wait, Work};

/// Message sizes in bytes, from the table in Chromium's "Mach based OS X Interprocess Communication".
pub const MACH: [usize; 15] =
    [100, 200, 500, 1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192, 9216, 1_048_576, 5_242_880, 7_340_032];

/// Message sizes in bytes, from `ChannelPingPong` in Chromium's perf tests.
pub const MOJO: [usize; 5] = [12, 144, 1728, 20_736, 248_832];

/// Message sizes in bytes, from the benchmarks in Zircon's RFC-0010.
pub const ZIRCON: [usize; 2] = [256, 4096];

/// Returns the works of the suite `mach`.
///
/// The document's programs sent a message and got one byte back; here the answer has 8 bytes, for the message's
/// number. The document's tables show the 98th percentile of more than 2,000 messages. One repetition here measures as
/// many, except at the largest sizes and out of line; [`whole_mach`] has as many everywhere.
///
/// The document has a figure for each size, with sleeping processes placed by the scheduler. This suite measures these
/// figures, and sleeping on one processor, which tells more here. Strait also waits adaptively, its default. Out of
/// line, cold memory is measured on one processor only.
pub(super) fn mach(cpus: Cpus) -> Vec<Work> {
    mach_of(cpus, false)
}

/// Returns the works of the suite `mach` with more than 2,000 messages at each size, as the document has them: its
/// percentiles rest on as many.
pub(super) fn whole_mach(cpus: Cpus) -> Vec<Work> {
    mach_of(cpus, true)
}

/// The number of messages in a repetition whose 98th percentile is compared with the document's.
const ENOUGH: u64 = 2100;

fn mach_of(cpus: Cpus, whole: bool) -> Vec<Work> {
    let copies = [
        Mechanism::STRAIT,
        Mechanism::PIPE,
        Mechanism::FIFO,
        Mechanism::STREAM,
        Mechanism::SEQPACKET,
        Mechanism::FUTEX,
    ];
    let moves =
        [Mechanism::STRAIT, Mechanism::FIFO, Mechanism::MEMFD_FUTEX, Mechanism::PROCESS_VM, Mechanism::VMSPLICE];
    let mut works = Vec::new();
    for size in MACH {
        let axes =
            |mechanisms: &[Mechanism], shapes: Vec<Shape>, (wait, places): (Wait, Vec<Placement>), steady| Axes {
                mechanisms: mechanisms.to_vec(),
                shapes,
                sizes: vec![size],
                waiting: vec![wait],
                placements: places,
                extent: Extent::Count { warm: steady / 10, steady },
            };
        let steady = if whole {
            ENOUGH
        } else if size <= 16 << 10 {
            2000
        } else {
            (256 << 20) / size as u64
        };
        let copied = |how| axes(&copies, vec![Shape::PingPong { reply: 8 }], how, steady).works();
        works.extend(copied((Wait::Block, vec![Placement::Free, cpus.same()])));
        works.extend(copied((Wait::Adaptive, vec![Placement::Free])));
        let out_of_line = |cold| [false, true].map(|touched| Shape::OutOfLine { cold, touched }).to_vec();
        let steady = if whole { ENOUGH } else { ((128 << 20) / size as u64).min(200) };
        let everywhere = (Wait::Block, vec![Placement::Free, cpus.same()]);
        works.extend(axes(&moves, out_of_line(false), everywhere, steady).works());
        works.extend(axes(&moves, out_of_line(true), (Wait::Block, vec![cpus.same()]), steady).works());
        if whole {
            works.extend(axes(&moves, out_of_line(false), (Wait::Adaptive, vec![Placement::Free]), steady).works());
        }
    }
    let rights = Axes {
        mechanisms: vec![Mechanism::RIGHTS, Mechanism::STRAIT_RIGHTS, Mechanism::STRAIT_ENDS],
        shapes: vec![Shape::PingPong { reply: 8 }],
        sizes: vec![64],
        waiting: vec![Wait::Adaptive, Wait::Block],
        placements: placements(cpus),
        extent: Extent::Count { warm: 200, steady: if whole { ENOUGH } else { 2000 } },
    };
    works.extend(rights.works());
    one_at_a_time(works)
}

/// Returns the works of the suite `mojo`: as many ping-pongs as fit into 40 ms, some thousand at least, with one
/// thread on each side, with a hop on each side, and with a hop on receiving only.
pub(super) fn mojo(cpus: Cpus) -> Vec<Work> {
    mojo_of(cpus, Extent::Time { warm: 10, steady: 40 })
}

/// Returns the works of the suite `mojo` with all messages of the original: 50,000 ping-pongs at each size, in five
/// repetitions of 10,000.
pub(super) fn whole_mojo(cpus: Cpus) -> Vec<Work> {
    mojo_of(cpus, Extent::Count { warm: 1000, steady: 10_000 })
}

fn mojo_of(cpus: Cpus, extent: Extent) -> Vec<Work> {
    let axes = Axes {
        mechanisms: vec![Mechanism::STRAIT, Mechanism::FLAG, Mechanism::FUTEX, Mechanism::STREAM, Mechanism::SEQPACKET],
        shapes: vec![Shape::PingPong { reply: 0 }, Shape::Hop { direct: false }, Shape::Hop { direct: true }],
        sizes: MOJO.to_vec(),
        waiting: vec![Wait::Spin, Wait::Adaptive, Wait::Block],
        placements: placements(cpus),
        extent,
    };
    let mut works = axes.works();
    // A polled kernel socket is another product than in the Mojo benchmark.
    let sockets = [Mechanism::STREAM, Mechanism::SEQPACKET];
    works.retain(|work| work.wait != Wait::Spin || !sockets.contains(&work.mechanism));
    // A handler sleeps on its condition variable. Unless two processors are reserved for the two sides, spinning for
    // the other process only takes the processor from the handler.
    let hops = |work: &Work| matches!(work.shape, Shape::Hop { .. });
    works.retain(|work| !hops(work) || work.wait != Wait::Spin || work.placement.is_two());
    works
}

/// Returns the works of the suite `zircon`: messages in pieces, sent by one vectored call, or assembled first; FIDL
/// messages with a vector, both ways; and values that are encoded and decoded, in FIDL and in other formats.
pub(super) fn zircon(cpus: Cpus) -> Vec<Work> {
    let vectored = |parts| Shape::Vectored { parts, linear: false };
    let linear = |parts| Shape::Vectored { parts, linear: true };
    let axes = Axes {
        mechanisms: vec![
            Mechanism::STRAIT,
            Mechanism::FLAG,
            Mechanism::FUTEX,
            Mechanism::PIPE,
            Mechanism::STREAM,
            Mechanism::SEQPACKET,
        ],
        shapes: [1, 2, 4, 8, 16, 32, 64].map(vectored).into_iter().chain([2, 16, 64].map(linear)).collect(),
        sizes: ZIRCON.to_vec(),
        waiting: vec![Wait::Spin, Wait::Adaptive, Wait::Block],
        placements: placements(cpus),
        extent: Extent::Time { warm: 10, steady: 40 },
    };
    let mut works = axes.works();
    let events = Axes {
        mechanisms: vec![Mechanism::STRAIT, Mechanism::PIPE, Mechanism::STREAM, Mechanism::SEQPACKET],
        shapes: vec![Shape::Fidl { linear: false }, Shape::Fidl { linear: true }],
        sizes: ZIRCON.map(|size| size + FIDL_AROUND).to_vec(),
        ..axes
    };
    works.extend(events.works());
    for (value, sizes) in [
        (Sample::Bytes, &ZIRCON[..]),
        (Sample::Fields, &ZIRCON[..]),
        // 1, 64 and 512 vectors.
        (Sample::Vectors, &[64, 64 * 64, 512 * 64][..]),
    ] {
        let coded = Axes {
            mechanisms: CODECS.to_vec(),
            shapes: [Step::Encode, Step::Decode].map(|step| Shape::Coded { step, value }).to_vec(),
            sizes: sizes.to_vec(),
            waiting: vec![Wait::Spin],
            placements: vec![Placement::Free],
            extent: events.extent,
        };
        works.extend(coded.works().into_iter().map(|work| Work { stride: 64, ..work }));
    }
    works
}

/// Returns the works of the suite `chrome-mix`: the message sizes of an hour of browsing, both ways and one way.
pub(super) fn chrome_mix(cpus: Cpus) -> Vec<Work> {
    let largest = CHROME.last().map_or(0, |&(bytes, _)| bytes - 1);
    let axes = Axes {
        mechanisms: crate::catalogue::CATALOGUE.to_vec(),
        shapes: vec![Shape::Mix { stream: false }, Shape::Mix { stream: true }],
        sizes: vec![largest],
        waiting: vec![Wait::Spin, Wait::Adaptive, Wait::Block],
        placements: placements(cpus),
        extent: Extent::Time { warm: 30, steady: 170 },
    };
    axes.works()
}

/// Sets the works to time every message separately, and returns them. The documents' percentiles are of single
/// messages, not of means of several.
fn one_at_a_time(mut works: Vec<Work>) -> Vec<Work> {
    works.iter_mut().for_each(|work| work.stride = 1);
    works
}
