//! `strait bench`: round trips and streams of Strait and of what it competes with.
//!
//! Every row stands under its way of waiting and its placement, with the processor time of both sides and how often
//! they slept: a spinning figure and a blocking one are figures of different products.

use std::process::ExitCode;
use std::time::Instant;

use serde::Serialize;

use crate::cli;
use crate::machine;
use crate::peer::{self, Outcome};
use crate::placement::{Cpus, Placement};
use crate::progress::Progress;
use crate::stats::{bytes, digits, median, rate, spread, time};
use crate::table;
use crate::trouble::{Result, Trouble, While};
use crate::work::{Extent, Mechanism, Report, Wait, Work};

/// A mechanism under certain conditions: one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Case {
    pub(crate) mechanism: Mechanism,
    pub(crate) size: usize,
    pub(crate) wait: Wait,
    pub(crate) placement: Placement,
}

impl Case {
    /// Whether it can be measured at all.
    pub(crate) fn is_possible(&self) -> bool {
        self.mechanism.can(self.size, self.wait) && self.wait.fits(self.placement)
    }

    /// Whether the two stand in one group of the table.
    fn is_compared_with(&self, other: &Self) -> bool {
        (self.size, self.wait, self.placement) == (other.size, other.wait, other.placement)
    }

    fn words(&self) -> String {
        let (name, wait) = (self.mechanism.name(), self.wait.name());
        format!("{name}, {}, {wait}, {}", bytes(self.size), self.placement.name())
    }

    /// The runs it takes: round trips and, where the mechanism can, a stream.
    fn works(&self, extent: Extent) -> Vec<Work> {
        let Self { mechanism, size, wait, placement } = *self;
        let mut works = vec![Work::round_trip(mechanism, size, wait, placement)];
        if mechanism.streams() {
            works.push(Work::one_way(mechanism, size, 1, wait, placement));
        }
        for work in &mut works {
            work.extent = extent;
        }
        works
    }
}

/// What a case gave: of each run the repetition with the median time.
#[derive(Debug, Default)]
pub(crate) struct Found {
    pub(crate) round_trip: Option<Report>,
    pub(crate) stream: Option<Report>,
    pub(crate) trouble: Option<String>,
}

/// By how much the probe may move within a group, and how often the group is measured again for that.
const STEADY: f64 = 1.5;
const RETRIES: usize = 3;

/// Measures all cases, `repetitions` times in turn, but begins no repetition that would end after `budget` seconds.
///
/// Cases that are compared, those of one size, wait and placement, follow one another. If the processors moved apart or
/// together meanwhile, as they do on a virtual machine, the group is measured again.
pub(crate) fn measure(cases: &[Case], extent: Extent, repetitions: usize, budget: f64) -> Vec<Found> {
    let begin = Instant::now();
    let mut progress = Progress::new(cases.len() * repetitions);
    let mut reports: Vec<[Vec<Report>; 2]> = cases.iter().map(|_| Default::default()).collect();
    let mut troubles: Vec<Option<String>> = vec![None; cases.len()];
    for repetition in 0..repetitions {
        let elapsed = begin.elapsed().as_secs_f64();
        if elapsed + elapsed / repetition.max(1) as f64 > budget {
            break;
        }
        let mut index = 0;
        for group in cases.chunk_by(Case::is_compared_with) {
            for case in group {
                progress.step(&case.words());
            }
            for result in measure_group(group, extent) {
                match result {
                    Ok(both) => {
                        for (reports, report) in reports[index].iter_mut().zip(both) {
                            reports.push(report);
                        }
                    }
                    Err(trouble) => troubles[index] = Some(trouble.to_string()),
                }
                index += 1;
            }
        }
    }
    progress.finish();
    let found = reports.into_iter().zip(troubles);
    found
        .map(|([round_trips, streams], trouble)| Found {
            round_trip: middle(round_trips),
            stream: middle(streams),
            trouble,
        })
        .collect()
}

/// One repetition of a group: of each case the round trips and, if there is one, the stream.
fn measure_group(group: &[Case], extent: Extent) -> Vec<Result<Vec<Report>>> {
    let mut results = Vec::new();
    for _ in 0..RETRIES {
        results = group.iter().map(|case| case.works(extent).iter().map(measure_one).collect()).collect();
        let measured = results.iter().flatten().flatten();
        let probes: Vec<f64> = measured.flat_map(|report: &Report| report.probes.iter().copied()).collect();
        if spread(&probes) <= STEADY {
            break;
        }
    }
    results
}

fn measure_one(work: &Work) -> Result<Report> {
    match peer::run(work)? {
        Outcome::Measured(report) => Ok(*report),
        Outcome::SilenceBroken => Err(Trouble::new("killed for a system call, though any was allowed")),
    }
}

/// The report with the median time: its distribution is a real one, not one put together.
fn middle(mut reports: Vec<Report>) -> Option<Report> {
    reports.sort_by(|one, other| one.times.p50.total_cmp(&other.times.p50));
    let middle = reports.len() / 2;
    reports.into_iter().nth(middle)
}

/// A row as JSON has it; times in nanoseconds.
#[derive(Debug, Serialize)]
struct Row<'a> {
    mechanism: &'static str,
    size: usize,
    waiting: &'static str,
    placement: &'static str,
    round_trip: Option<&'a Report>,
    stream: Option<&'a Report>,
    stream_per_second: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    trouble: Option<&'a str>,
}

/// The subcommand.
pub(crate) fn run(options: &cli::Table, cpus: Cpus) -> Result<ExitCode> {
    let begin = Instant::now();
    let watch = machine::Watch::start();
    let cases = cases(options, cpus);
    if cases.is_empty() {
        return Err(Trouble::new("nothing of what was asked for can be measured"));
    }
    let extent = match options.count {
        Some(count) => Extent::Count { warm: count / 4, steady: count },
        None => Extent::Time { warm: 30, steady: 170 },
    };
    let found = measure(&cases, extent, options.repetitions.into(), f64::INFINITY);
    if options.json {
        print_json(&cases, &found, begin, &watch)?;
    } else {
        print_tables(options, &cases, &found, cpus);
        println!("\n{}, {:.0} s; {}", machine::describe(), begin.elapsed().as_secs_f64(), watch.sentence());
    }
    let broken = found.iter().any(|found| found.trouble.is_some());
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn cases(options: &cli::Table, cpus: Cpus) -> Vec<Case> {
    let placements = [Some(Placement::Free), cpus.two(), Some(cpus.same())];
    let mut cases = Vec::new();
    for &size in &options.sizes {
        for &wait in &options.waiting {
            for placement in placements.into_iter().flatten() {
                for &mechanism in &options.mechanisms {
                    cases.push(Case { mechanism, size, wait, placement });
                }
            }
        }
    }
    cases.retain(Case::is_possible);
    cases
}

fn print_json(cases: &[Case], found: &[Found], begin: Instant, watch: &machine::Watch) -> Result<()> {
    let rows: Vec<_> = (cases.iter().zip(found))
        .map(|(case, found)| Row {
            mechanism: case.mechanism.name(),
            size: case.size,
            waiting: case.wait.name(),
            placement: case.placement.name(),
            round_trip: found.round_trip.as_ref(),
            stream: found.stream.as_ref(),
            stream_per_second: found.stream.as_ref().map(|report| 1e9 / report.times.p50),
            trouble: found.trouble.as_deref(),
        })
        .collect();
    let all = serde_json::json!({
        "suite": "table",
        "machine": machine::describe(),
        "seconds": begin.elapsed().as_secs_f64(),
        "foreign": watch.foreign(),
        "rows": rows,
    });
    println!("{}", serde_json::to_string_pretty(&all).doing("writing JSON")?);
    Ok(())
}

fn print_tables(options: &cli::Table, cases: &[Case], found: &[Found], cpus: Cpus) {
    if cpus.two().is_none() {
        println!("One processor only: nothing was measured on two cores.");
    }
    for &size in &options.sizes {
        println!("\nMessages of {}", bytes(size));
        let heads = [
            "waiting",
            "placement",
            "",
            "probe",
            "round trip",
            "p90",
            "p99",
            "p99.9",
            "max",
            "first",
            "CPU",
            "sleeps",
            "stream",
            "GB/s",
            "CPU",
        ];
        let mut table = table::new(heads, 3..15);
        for (case, found) in cases.iter().zip(found).filter(|(case, _)| case.size == size) {
            let mut row =
                vec![case.wait.name().to_owned(), case.placement.name().to_owned(), case.mechanism.name().to_owned()];
            row.extend(round_trip_cells(found));
            row.extend(stream_cells(found, size));
            table.add_row(row);
        }
        println!("{table}");
        let troubles = cases.iter().zip(found).filter(|(case, _)| case.size == size);
        for (case, trouble) in troubles.filter_map(|(c, f)| Some((c, f.trouble.as_ref()?))) {
            println!("broken: {}: {trouble}", case.words());
        }
    }
    println!(
        "\nRound trips are closed loop, one message at a time, median first. Spinning ones of up to 4 KiB are timed by \
         sixteens,\nso their percentiles are of means of 16. CPU is processor time of both sides per round trip or \
         message. The probe is a round trip\nof two empty flag lines in the same processes: it tells how near the two \
         processors were to each other just then."
    );
}

const NOTHING: &str = "–";

fn round_trip_cells(found: &Found) -> [String; 9] {
    let Some(report) = &found.round_trip else {
        return [NOTHING; 9].map(str::to_owned);
    };
    let times = report.times;
    [
        median(&report.probes).map_or(NOTHING.to_owned(), time),
        time(times.p50),
        time(times.p90),
        time(times.p99),
        time(times.p999),
        time(times.max),
        time(report.first as f64),
        time(report.cpu_per_message()),
        digits(report.sleeps_per_message()),
    ]
}

fn stream_cells(found: &Found, size: usize) -> [String; 3] {
    let Some(report) = &found.stream else {
        return [NOTHING; 3].map(str::to_owned);
    };
    let pace = report.times.p50;
    [rate(1e9 / pace), digits(size as f64 / pace), time(report.cpu_per_message())]
}

#[cfg(test)]
mod tests {
    use super::{Case, middle};
    use crate::placement::Placement;
    use crate::work::{Extent, Mechanism, Report, Wait};

    #[test]
    fn the_middle_report_is_a_real_one() {
        let reports = [30.0, 10.0, 20.0].map(|p50| {
            let mut report = Report::default();
            report.times.p50 = p50;
            report
        });
        assert_eq!(middle(reports.to_vec()).unwrap().times.p50, 20.0);
        assert_eq!(middle(Vec::new()), None);
    }

    #[test]
    fn a_mailbox_has_no_stream() {
        let case = |mechanism, wait, placement| Case { mechanism, size: 64, wait, placement };
        let extent = Extent::Count { warm: 0, steady: 1 };
        let flag = case(Mechanism::Flag, Wait::Spin, Placement::Two(0, 1));
        assert_eq!(flag.works(extent).len(), 1);
        let pipe = case(Mechanism::Pipe, Wait::Block, Placement::Same(0));
        assert_eq!(pipe.works(extent).len(), 2);
        assert!(pipe.is_possible());
        assert!(!case(Mechanism::Pipe, Wait::Spin, Placement::Same(0)).is_possible());
    }
}
