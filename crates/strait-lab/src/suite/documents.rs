//! The suites that take a document's own measurements again: Mach messages against FIFOs, Mojo's ping-pongs, Zircon's vectored
//! writes, and the sizes of Chrome's messages.

use super::{Axes, placements};
use crate::mechanism::Mechanism;
use crate::pair::placement::{Cpus, Placement};
use crate::shape::{CHROME, Shape};
use crate::work::{Extent, Wait, Work};

/// The sizes of the table in Chromium's "Mach based OS X Interprocess Communication".
pub const MACH: [usize; 15] =
    [100, 200, 500, 1024, 2048, 3072, 4096, 5120, 6144, 7168, 8192, 9216, 1_048_576, 5_242_880, 7_340_032];

/// The sizes of `ChannelPingPong` in Chromium's perf tests.
pub const MOJO: [usize; 5] = [12, 144, 1728, 20_736, 248_832];

/// The sizes of the benchmarks in Zircon's RFC-0010.
pub const ZIRCON: [usize; 2] = [256, 4096];

/// A message there and a byte back is what the document's programs did; here the answer has the 8 bytes of a number. Its
/// tables show the 98th percentile of 2,000 messages, which are here what one repetition measures as long as they are not
/// large.
///
/// The document has one figure for each size, of processes that run wherever they are put and sleep. So do these, and
/// beside it sleep on one processor, which tells more here; Strait also waits as it does if nobody says how. What cold
/// memory costs is told there alone.
pub(super) fn mach(cpus: Cpus) -> Vec<Work> {
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
        let steady = if size <= 16 << 10 { 2000 } else { (256 << 20) / size as u64 };
        let copied = |how| axes(&copies, vec![Shape::PingPong { reply: 8 }], how, steady).works();
        works.extend(copied((Wait::Block, vec![Placement::Free, cpus.same()])));
        works.extend(copied((Wait::Adaptive, vec![Placement::Free])));
        let out_of_line = |cold| [false, true].map(|touched| Shape::OutOfLine { cold, touched }).to_vec();
        let steady = ((128 << 20) / size as u64).min(200);
        let everywhere = (Wait::Block, vec![Placement::Free, cpus.same()]);
        works.extend(axes(&moves, out_of_line(false), everywhere, steady).works());
        works.extend(axes(&moves, out_of_line(true), (Wait::Block, vec![cpus.same()]), steady).works());
    }
    let rights = Axes {
        mechanisms: vec![Mechanism::RIGHTS, Mechanism::STRAIT_RIGHTS, Mechanism::STRAIT_ENDS],
        shapes: vec![Shape::PingPong { reply: 8 }],
        sizes: vec![64],
        waiting: vec![Wait::Adaptive, Wait::Block],
        placements: placements(cpus),
        extent: Extent::Count { warm: 200, steady: 2000 },
    };
    works.extend(rights.works());
    one_at_a_time(works)
}

/// As many of the ping-pongs as there is time for, which are some thousand at least, on one thread a side and with a hop on each side.
pub(super) fn mojo(cpus: Cpus) -> Vec<Work> {
    mojo_of(cpus, Extent::Time { warm: 10, steady: 40 })
}

/// 50,000 ping-pongs at each size, in five repetitions of 10,000.
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
    // A kernel socket that is polled is another product than what the thread speaks of.
    let sockets = [Mechanism::STREAM, Mechanism::SEQPACKET];
    works.retain(|work| work.wait != Wait::Spin || !sockets.contains(&work.mechanism));
    // A hop sleeps on its condition variable, so spinning for the other process only takes the processor from the handler
    // where that is not certainly alone.
    let hops = |work: &Work| matches!(work.shape, Shape::Hop { .. });
    works.retain(|work| !hops(work) || work.wait != Wait::Spin || work.placement.is_two());
    works
}

/// Messages in pieces, given as they lie or put together first.
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
    axes.works()
}

/// The sizes of an hour of browsing, there and back and one way.
pub(super) fn chrome_mix(cpus: Cpus) -> Vec<Work> {
    let largest = CHROME.last().map_or(0, |&(bytes, _)| bytes - 1);
    let axes = Axes {
        mechanisms: crate::mechanism::CATALOGUE.to_vec(),
        shapes: vec![Shape::Mix { stream: false }, Shape::Mix { stream: true }],
        sizes: vec![largest],
        waiting: vec![Wait::Spin, Wait::Adaptive, Wait::Block],
        placements: placements(cpus),
        extent: Extent::Time { warm: 30, steady: 170 },
    };
    axes.works()
}

/// The documents' percentiles are of single messages, not of means of several.
fn one_at_a_time(mut works: Vec<Work>) -> Vec<Work> {
    works.iter_mut().for_each(|work| work.stride = 1);
    works
}
