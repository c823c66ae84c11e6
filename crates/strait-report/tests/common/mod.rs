//! Results like those of a suite, but equal each time: made up by a simple rule, and some of them spoiled.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses a part of it")]

use strait_lab::CATALOGUE;
use strait_lab::machine::Machine;
use strait_lab::results::{FORMAT, Figure, Harness, Results, State};
use strait_lab::work::Report;
use strait_lab::{Mechanism, Placement, Wait, Work};
use strait_report::Source;

/// Text that the page must never show as markup.
pub const HOSTILE: &str = "\"'></svg></style><script>alert(1)</script><img src=x onerror=alert(2)>&amp;";

/// The message sizes, in bytes, of the made-up round trips.
pub const SIZES: [usize; 5] = [64, 128, 1024, 4096, 65_536];

/// Returns how long a round trip of this work takes by the made-up rule, in nanoseconds.
fn rule(work: &Work) -> f64 {
    let base = match (work.wait, work.placement) {
        (Wait::Spin, _) => 100.0,
        (Wait::Adaptive, _) => 120.0,
        (Wait::Block, Placement::Same(_)) => 3_000.0,
        (Wait::Block, _) => 30_000.0,
    };
    let index = CATALOGUE.iter().position(|&mechanism| mechanism == work.mechanism).unwrap();
    // Strait is first in the catalogue, and the fastest but for the case below.
    let mut factor = 1.0 + 0.3 * index as f64;
    // But a pipe is faster than Strait when both sides sleep on one processor.
    if work.mechanism == Mechanism::PIPE && work.wait == Wait::Block && matches!(work.placement, Placement::Same(_)) {
        factor = 0.5;
    }
    base * factor + 0.1 * work.size as f64
}

/// Returns one repetition with the median `p50`, in nanoseconds.
pub fn report(p50: f64) -> Report {
    let mut report = Report { count: 1000, elapsed: (1000.0 * p50) as u64, ..Report::default() };
    let times = &mut report.times;
    (times.min, times.p50, times.p90, times.p98) = (0.8 * p50, p50, 1.1 * p50, 1.5 * p50);
    (times.p99, times.p999, times.p9999, times.max) = (2.0 * p50, 5.0 * p50, 40.0 * p50, 100.0 * p50);
    report.spent[0].cpu = (600.0 * p50) as u64;
    report.spent[1].cpu = (500.0 * p50) as u64;
    report
}

/// Returns a figure with five repetitions.
pub fn figure(work: Work) -> Figure {
    let p50 = rule(&work);
    Figure::of(work, [0.98, 1.0, 1.01, 0.99, 1.02].map(|noise| report(noise * p50)).to_vec(), None)
}

/// Returns all works of these sizes that the mechanisms can do.
pub fn works() -> Vec<Work> {
    let mut works = Vec::new();
    for size in SIZES {
        for wait in [Wait::Spin, Wait::Adaptive, Wait::Block] {
            for placement in [Placement::Free, Placement::Two(0, 1), Placement::Same(0)] {
                for &mechanism in CATALOGUE {
                    works.push(Work::round_trip(mechanism, size, wait, placement));
                    if size == 64 {
                        works.push(Work::one_way(mechanism, size, 1, wait, placement));
                        works.push(Work::one_way(mechanism, size, 16, wait, placement));
                    }
                }
            }
        }
    }
    works.retain(|work| work.unfit().is_none());
    works
}

/// Returns a results file with these figures.
pub fn source(figures: Vec<Figure>) -> Source {
    let machine =
        Machine { processor: "Abacus".to_owned(), processors: 2, kernel: "6.1".to_owned(), ..Machine::default() };
    let results = Results {
        missing: Vec::new(),
        quantiles: Vec::new(),
        format: FORMAT,
        suite: "quick".to_owned(),
        began: 1_795_232_666,
        seconds: 30.0,
        complete: true,
        machine,
        harness: Harness { clock: 20.0, empty: 4.0 },
        seed: 7,
        figures,
    };
    Source { name: "quick.json".to_owned(), results }
}

/// Returns a results file with all figures, none of them disturbed.
pub fn calm() -> Source {
    source(works().into_iter().map(figure).collect())
}

/// Returns a results file with all figures, one of them in each state, and with hostile text in the names.
pub fn spoiled() -> Source {
    let mut source = calm();
    let figures = &mut source.results.figures;
    figures[1].state = State::Disturbed(format!("the neighbours {HOSTILE}"));
    figures[2].state = State::Broken(format!("message 7 came twice {HOSTILE}"));
    figures[2].summary = None;
    figures[3] = Figure::lacking(figures[3].work.clone(), format!("no such thing {HOSTILE}"));
    figures[4] = Figure::of(figures[4].work.clone(), Vec::new(), None);
    source.results.machine.processor = HOSTILE.to_owned();
    source.results.machine.kernel = HOSTILE.to_owned();
    source.results.machine.governor = Some(HOSTILE.to_owned());
    source.results.machine.mitigations = vec![[HOSTILE.to_owned(), HOSTILE.to_owned()]];
    source.results.machine.virtual_machine = true;
    source.results.complete = false;
    source.name = format!("{HOSTILE}.json");
    source
}
