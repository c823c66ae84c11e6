//! `strait bench floors`: Strait's performance targets, each figure with a floor that is measured in the same
//! seconds.

use crate::bars::contest::{self, Contest, Job, Kind, Row, Run};
use crate::bars::{Bar, Sense, Suite};
use crate::pair::{self, Outcome};
use crate::placement::{Cpus, Placement};
use crate::shape::Shape;
use crate::stats::bytes;
use crate::work::{DEFAULT_SLOTS, Extent, Mechanism, Wait, Work};

/// Time budget in seconds: no repetition begins that would end later, so the suite ends within two minutes.
const BUDGET: f64 = 105.0;

impl Job for Work {
    fn run(&self) -> std::result::Result<Run, String> {
        match pair::run(self) {
            Ok(Outcome::Measured(report)) => Ok(Run::Report(report)),
            Ok(Outcome::SilenceBroken) => Ok(Run::SilenceBroken),
            Err(trouble) => Err(trouble.to_string()),
        }
    }
}

/// Runs the suite `floors`. Returns its rows, and whether a run broke. With `only`, just the rows whose work contains
/// it are measured.
pub fn run(repetitions: usize, only: Option<&str>, cpus: Cpus) -> (Suite, bool) {
    contest::run("floors", contests(cpus), repetitions, only, BUDGET)
}

/// Returns the contests of the suite `floors`, with the target of each row.
fn contests(cpus: Cpus) -> Vec<Contest<Work>> {
    let mut all = Vec::new();
    let two = cpus.two();
    small_round_trips(&mut all, two);
    copied_round_trips(&mut all, two);
    blocking(&mut all, Some(cpus.same()));
    blocking(&mut all, two);
    adaptive(&mut all);
    streams(&mut all, two);
    large(&mut all, two);
    in_place(&mut all, two);
    descriptors(&mut all, two, cpus.same());
    counted(&mut all, two);
    all
}

/// Adds a contest with the runs that `runs` returns for `placement`. Without a placement it has no runs, and its rows
/// say that they were skipped.
fn contest(
    all: &mut Vec<Contest<Work>>,
    placement: Option<Placement>,
    runs: impl Fn(Placement) -> Vec<Work>,
    rows: Vec<Row>,
) {
    all.push(Contest { runs: placement.map(runs).unwrap_or_default(), rows, idle: false });
}

fn times(work: String, reference: &str, against: Vec<usize>, limit: f64) -> Row {
    Row { bar: Bar::new(&work, "ns", reference, Sense::AtMost, limit), kind: Kind::Times(0, against) }
}

fn small_round_trips(all: &mut Vec<Contest<Work>>, two: Option<Placement>) {
    for size in [12, 56] {
        let reference = format!("two flag lines, {size} B in the flag's own line");
        contest(
            all,
            two,
            |place| {
                [Mechanism::STRAIT, Mechanism::LINE]
                    .map(|mechanism| Work::round_trip(mechanism, size, Wait::Spin, place))
                    .to_vec()
            },
            vec![times(format!("round trip {size} B, spinning, two cores"), &reference, vec![1], 1.25)],
        );
    }
}

fn copied_round_trips(all: &mut Vec<Contest<Work>>, two: Option<Placement>) {
    for size in [64, 144, 1024, 4096, 20_736, 248_832] {
        contest(
            all,
            two,
            |place| {
                [Mechanism::STRAIT, Mechanism::FLAG]
                    .map(|mechanism| Work::round_trip(mechanism, size, Wait::Spin, place))
                    .to_vec()
            },
            vec![times(
                format!("round trip {size} B, spinning, two cores"),
                "flag + memcpy in and out of a shared buffer",
                vec![1],
                1.3,
            )],
        );
    }
}

fn blocking(all: &mut Vec<Contest<Work>>, placement: Option<Placement>) {
    let name = placement.map_or("two cores", Placement::name);
    let work = format!("round trip 64 B, blocking, {name}");
    contest(
        all,
        placement,
        |place| {
            [Mechanism::STRAIT, Mechanism::FUTEX, Mechanism::PIPE]
                .map(|mechanism| Work::round_trip(mechanism, 64, Wait::Block, place))
                .to_vec()
        },
        vec![times(work.clone(), "bare futex ping-pong", vec![1], 1.15), times(work, "a pipe each way", vec![2], 1.0)],
    );
}

fn adaptive(all: &mut Vec<Contest<Work>>) {
    contest(
        all,
        Some(Placement::Free),
        |place| {
            [Wait::Adaptive, Wait::Spin, Wait::Block]
                .map(|wait| Work::round_trip(Mechanism::STRAIT, 64, wait, place))
                .to_vec()
        },
        vec![times(
            "round trip 64 B, adaptive, unpinned".to_owned(),
            "the better of Strait spinning and Strait blocking",
            vec![1, 2],
            1.2,
        )],
    );
}

fn streams(all: &mut Vec<Contest<Work>>, two: Option<Placement>) {
    for (batch, how) in [(1, "one at a time"), (16, "in batches of 16")] {
        for slots in [1024, DEFAULT_SLOTS] {
            let work = format!("stream of 64 B, {how}, ring of {slots}");
            let reference = format!("bare single-producer ring of {slots} slots, {how}");
            contest(
                all,
                two,
                |place| {
                    [Mechanism::STRAIT, Mechanism::RING]
                        .map(|mechanism| Work {
                            slots: Some(slots),
                            ..Work::one_way(mechanism, 64, batch, Wait::Spin, place)
                        })
                        .to_vec()
                },
                vec![Row { bar: Bar::new(&work, "M/s", &reference, Sense::AtLeast, 0.8), kind: Kind::Paces(1) }],
            );
        }
    }
}

const MIB: usize = 1 << 20;

fn large(all: &mut Vec<Contest<Work>>, two: Option<Placement>) {
    for (size, extent) in
        [(MIB, Extent::Time { warm: 50, steady: 150 }), (64 * MIB, Extent::Count { warm: 3, steady: 7 })]
    {
        contest(
            all,
            two,
            |place| {
                [Mechanism::STRAIT, Mechanism::FLAG]
                    .map(|mechanism| Work {
                        shape: Shape::PingPong { reply: 8 },
                        extent,
                        ..Work::round_trip(mechanism, size, Wait::Spin, place)
                    })
                    .to_vec()
            },
            vec![times(
                format!("{} copied in and out, warm", bytes(size)),
                "flag + two memcpy through a warm shared buffer",
                vec![1],
                1.15,
            )],
        );
    }
}

fn in_place(all: &mut Vec<Contest<Work>>, two: Option<Placement>) {
    contest(
        all,
        two,
        |place| {
            [(256 * MIB, 8), (MIB, 12)]
                .map(|(size, steady)| Work {
                    shape: Shape::InPlace,
                    extent: Extent::Count { warm: 3, steady },
                    ..Work::round_trip(Mechanism::STRAIT, size, Wait::Spin, place)
                })
                .to_vec()
        },
        vec![times(
            "256 MiB filled and read in place, commit to first byte".to_owned(),
            "1 MiB with equally cold caches",
            vec![1],
            1.5,
        )],
    );
}

fn descriptors(all: &mut Vec<Contest<Work>>, two: Option<Placement>, same: Placement) {
    for (placement, wait, how) in
        [(two, Wait::Spin, "spinning, two cores"), (Some(same), Wait::Block, "blocking, same core")]
    {
        contest(
            all,
            placement,
            |place| {
                [Mechanism::STRAIT_RIGHTS, Mechanism::RIGHTS]
                    .map(|mechanism| Work::round_trip(mechanism, 64, wait, place))
                    .to_vec()
            },
            vec![times(
                format!("one descriptor in a message each way, {how}"),
                "bare sendmsg and recvmsg with one",
                vec![1],
                1.5,
            )],
        );
    }
}

fn counted(all: &mut Vec<Contest<Work>>, two: Option<Placement>) {
    let sizes = [12, 64, 1024, 4096];
    let count = |work: &str, unit, kind| Row { bar: Bar::new(work, unit, "none", Sense::AtMost, 0.0), kind };
    contest(
        all,
        two,
        |place| {
            let short = Extent::Time { warm: 30, steady: 30 };
            let there = |size| Work::round_trip(Mechanism::STRAIT, size, Wait::Spin, place);
            let mut runs = sizes.map(there).to_vec();
            runs.push(Work::one_way(Mechanism::STRAIT, 64, 1, Wait::Spin, place));
            for run in &mut runs {
                run.extent = short;
            }
            runs
        },
        vec![count(
            "memory allocations in steady flow, 12 to 4096 B",
            "allocations",
            Kind::Count(|report| Some(report.allocations() as f64)),
        )],
    );
    contest(
        all,
        two,
        |place| {
            let silent = |work| Work { silent: true, ..work };
            let there = |size| {
                silent(Work {
                    extent: Extent::Count { warm: 20_000, steady: 50_000 },
                    ..Work::round_trip(Mechanism::STRAIT, size, Wait::Spin, place)
                })
            };
            let mut runs = sizes.map(there).to_vec();
            runs.push(silent(Work {
                extent: Extent::Count { warm: 200_000, steady: 1_000_000 },
                ..Work::one_way(Mechanism::STRAIT, 64, 1, Wait::Spin, place)
            }));
            runs
        },
        vec![count("system calls in steady flow, spinning, 12 to 4096 B", "calls", Kind::SystemCalls)],
    );
    all.push(Contest {
        runs: [Wait::Block, Wait::Adaptive]
            .map(|wait| Work {
                shape: Shape::Idle,
                extent: Extent::Time { warm: 200, steady: 10_000 },
                ..Work::round_trip(Mechanism::STRAIT, 64, wait, Placement::Free)
            })
            .to_vec(),
        rows: vec![count(
            "wake-ups of an idle receiver in 10 s, blocking and adaptive",
            "wake-ups",
            Kind::Count(|report| report.wake_ups.map(|count| count as f64)),
        )],
        idle: true,
    });
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
