//! `strait bench floors`: Strait's performance targets, each figure with a floor that is measured in the same
//! seconds.

use super::bar::{Bar, Sense, Suite};
use super::contest::{self, Contest, Kind};
use crate::placement::{Cpus, Placement};
use crate::shape::Shape;
use crate::stats::bytes;
use crate::work::{DEFAULT_SLOTS, Extent, Mechanism, Wait, Work};

/// Time budget in seconds: no repetition begins that would end later, so the suite ends within two minutes.
const BUDGET: f64 = 105.0;

const MIB: usize = 1 << 20;

/// Runs the suite `floors`. Returns its rows, and whether a run broke. With `only`, measures just the rows with this
/// text in their work.
pub fn run(repetitions: usize, only: Option<&str>, cpus: Cpus) -> (Suite, bool) {
    contest::run("floors", contests(cpus), repetitions, only, BUDGET)
}

/// Returns the contests of the suite `floors`, with the target of each row.
fn contests(cpus: Cpus) -> Vec<Contest> {
    let mut all = round_trips(cpus);
    all.extend(streams(cpus.two()));
    all.extend(large(cpus.two()));
    all.extend(descriptors(cpus));
    all.extend(counted(cpus.two()));
    all
}

/// Returns round trips of `size` bytes, one work for each mechanism.
fn trips<const N: usize>(mechanisms: [Mechanism; N], size: usize, wait: Wait, place: Placement) -> Vec<Work> {
    mechanisms.map(|mechanism| Work::round_trip(mechanism, size, wait, place)).into()
}

fn round_trips(cpus: Cpus) -> Vec<Contest> {
    let (two, same) = (cpus.two(), Some(cpus.same()));
    let mut all = Vec::new();
    let mut spinning = |size: usize, floor, reference: &str, limit| {
        let work = format!("round trip {size} B, spinning, two cores");
        let runs = |place| trips([Mechanism::STRAIT, floor], size, Wait::Spin, place);
        all.push(Contest::new(two, runs).times(&work, reference, &[1], limit));
    };
    for size in [12, 56] {
        spinning(size, Mechanism::LINE, &format!("two flag lines, {size} B in the flag's own line"), 1.25);
    }
    for size in [64, 144, 1024, 4096, 20_736, 248_832] {
        spinning(size, Mechanism::FLAG, "flag + memcpy in and out of a shared buffer", 1.3);
    }
    for (placement, how) in [(same, "same core"), (two, "two cores")] {
        let work = format!("round trip 64 B, blocking, {how}");
        let floors = [Mechanism::STRAIT, Mechanism::FUTEX, Mechanism::PIPE];
        all.push(
            Contest::new(placement, |place| trips(floors, 64, Wait::Block, place))
                .times(&work, "bare futex ping-pong", &[1], 1.15)
                .times(&work, "a pipe each way", &[2], 1.0),
        );
    }
    let waits = [Wait::Adaptive, Wait::Spin, Wait::Block];
    let adaptive = |place| waits.map(|wait| Work::round_trip(Mechanism::STRAIT, 64, wait, place)).into();
    let reference = "the better of Strait spinning and Strait blocking";
    let work = "round trip 64 B, adaptive, unpinned";
    all.push(Contest::new(Some(Placement::Free), adaptive).times(work, reference, &[1, 2], 1.2));
    all
}

fn descriptors(cpus: Cpus) -> Vec<Contest> {
    let (two, same) = (cpus.two(), Some(cpus.same()));
    let mut all = Vec::new();
    for (placement, wait, how) in [(two, Wait::Spin, "spinning, two cores"), (same, Wait::Block, "blocking, same core")]
    {
        let runs = |place| trips([Mechanism::STRAIT_RIGHTS, Mechanism::RIGHTS], 64, wait, place);
        let work = format!("one descriptor in a message each way, {how}");
        all.push(Contest::new(placement, runs).times(&work, "bare sendmsg and recvmsg with one", &[1], 1.5));
    }
    all
}

fn streams(two: Option<Placement>) -> Vec<Contest> {
    let mut all = Vec::new();
    for (batch, how) in [(1, "one at a time"), (16, "in batches of 16")] {
        for slots in [1024, DEFAULT_SLOTS] {
            let stream = |mechanism, place| Work {
                slots: Some(slots),
                ..Work::one_way(mechanism, 64, batch, Wait::Spin, place)
            };
            let runs = |place| [Mechanism::STRAIT, Mechanism::RING].map(|mechanism| stream(mechanism, place)).into();
            let work = format!("stream of 64 B, {how}, ring of {slots}");
            let reference = format!("bare single-producer ring of {slots} slots, {how}");
            all.push(Contest::new(two, runs).paces(&work, &reference, 0.8));
        }
    }
    all
}

/// Returns the contests of large messages: copied, and filled and read in place.
fn large(two: Option<Placement>) -> Vec<Contest> {
    let long = [(MIB, Extent::Time { warm: 50, steady: 150 }), (64 * MIB, Extent::Count { warm: 3, steady: 7 })];
    let copied = long.map(|(size, extent)| {
        let shape = Shape::PingPong { reply: 8 };
        let run = |mechanism, place| Work { shape, extent, ..Work::round_trip(mechanism, size, Wait::Spin, place) };
        Contest::new(two, |place| [Mechanism::STRAIT, Mechanism::FLAG].map(|mechanism| run(mechanism, place)).into())
            .times(
                &format!("{} copied in and out, warm", bytes(size)),
                "flag + two memcpy through a warm shared buffer",
                &[1],
                1.15,
            )
    });
    let in_place = |(size, steady), place| Work {
        shape: Shape::InPlace,
        extent: Extent::Count { warm: 3, steady },
        ..Work::round_trip(Mechanism::STRAIT, size, Wait::Spin, place)
    };
    let runs = |place| [(256 * MIB, 8), (MIB, 12)].map(|long| in_place(long, place)).into();
    let work = "256 MiB filled and read in place, commit to first byte";
    copied
        .into_iter()
        .chain([Contest::new(two, runs).times(work, "1 MiB with equally cold caches", &[1], 1.5)])
        .collect()
}

/// Returns the contests of counts, which must be zero.
fn counted(two: Option<Placement>) -> Vec<Contest> {
    // Round trips of four sizes and a stream; the extents are those of the round trips and of the stream.
    let steady_flow = |place, trips: Extent, stream: Extent, silent| {
        let trip = |size| Work { extent: trips, ..Work::round_trip(Mechanism::STRAIT, size, Wait::Spin, place) };
        let one_way = Work { extent: stream, ..Work::one_way(Mechanism::STRAIT, 64, 1, Wait::Spin, place) };
        let works = [12, 64, 1024, 4096].map(trip).into_iter().chain([one_way]);
        works.map(|work| Work { silent, ..work }).collect()
    };
    let short = Extent::Time { warm: 30, steady: 30 };
    let allocations = Contest::new(two, |place| steady_flow(place, short, short, false)).counts(
        "memory allocations in steady flow, 12 to 4096 B",
        "allocations",
        0.0,
        |report| Some(report.allocations() as f64),
    );
    let trips = Extent::Count { warm: 20_000, steady: 50_000 };
    let stream = Extent::Count { warm: 200_000, steady: 1_000_000 };
    let work = "system calls in steady flow, spinning, 12 to 4096 B";
    let calls = Contest::new(two, |place| steady_flow(place, trips, stream, true))
        .row(Bar::new(work, "calls", "none", Sense::AtMost, 0.0), Kind::SystemCalls);
    let idle = |wait| Work {
        shape: Shape::Idle,
        extent: Extent::Time { warm: 200, steady: 10_000 },
        ..Work::round_trip(Mechanism::STRAIT, 64, wait, Placement::Free)
    };
    let work = "wake-ups of an idle receiver in 10 s, blocking and adaptive";
    let idle = Contest::new(Some(Placement::Free), |_| [Wait::Block, Wait::Adaptive].map(idle).into()).counts(
        work,
        "wake-ups",
        0.0,
        |report| report.wake_ups.map(|count| count as f64),
    );
    vec![allocations, calls, Contest { idle: true, ..idle }]
}

#[cfg(test)]
mod tests {
    use super::{Kind, contests};
    use crate::placement::Cpus;

    #[test]
    fn every_run_can_be_done() {
        for contest in contests(Cpus::named(&[0, 1]).unwrap()) {
            assert!(!contest.runs.is_empty() && !contest.rows.is_empty());
            for run in &contest.runs {
                assert_eq!(run.mechanism.unfit(run), None, "{run:?}");
            }
            for row in &contest.rows {
                let references = match &row.kind {
                    Kind::Times(_, references) => references.clone(),
                    Kind::Paces(reference) => vec![*reference],
                    _ => vec![],
                };
                assert!(references.iter().all(|&index| index < contest.runs.len()));
            }
        }
    }

    #[test]
    fn with_one_processor_nothing_is_pretended() {
        for contest in contests(Cpus::named(&[0]).unwrap()) {
            assert!(contest.runs.iter().all(|run| !run.placement.is_two()));
        }
    }
}
