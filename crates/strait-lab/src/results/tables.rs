//! Formats results for the terminal: a table for each shape and size, in the order of the suite.

use super::{Figure, Results, State};
use crate::shape::Shape;
use crate::stats::{bytes, digits, rate, time};
use crate::table;

/// The text of a table cell without a figure.
const NOTHING: &str = "–";

/// Formats all tables, and below them the reason for each figure that is disturbed or missing.
pub fn print(results: &Results) -> String {
    let mut out = String::new();
    let mut shown: Vec<(Shape, usize)> = Vec::new();
    for figure in &results.figures {
        let key = (figure.work.shape, figure.work.size);
        if shown.contains(&key) {
            continue;
        }
        shown.push(key);
        out += &format!("\n{} of {}\n", figure.work.shape.words(), bytes(key.1));
        let figures = results.figures.iter().filter(|figure| (figure.work.shape, figure.work.size) == key);
        out += &format!("{}\n", table(figures));
    }
    for figure in &results.figures {
        match &figure.state {
            State::Measured => {}
            State::Disturbed(why) => out += &format!("disturbed: {}: {why}\n", figure.work.words()),
            State::Broken(why) => out += &format!("broken: {}: {why}\n", figure.work.words()),
            State::Lacking(why) => out += &format!("not here: {}: {why}\n", figure.work.words()),
            State::NotReached => out += &format!("not reached: {}\n", figure.work.words()),
        }
    }
    for [what, why] in &results.missing {
        out += &format!("not here: {what}: {why}\n");
    }
    out
}

fn table<'a>(figures: impl Iterator<Item = &'a Figure>) -> comfy_table::Table {
    let heads = [
        "waiting",
        "placement",
        "",
        "median",
        "interval",
        "p90",
        "p99",
        "p99.9",
        "max",
        "a second",
        "CPU",
        "sleeps",
        "calls",
        "probe",
    ];
    let mut table = table::new(heads, 3..14);
    for figure in figures {
        let work = &figure.work;
        let mut row =
            vec![work.wait.name().to_owned(), work.placement.name().to_owned(), work.mechanism.title().to_owned()];
        row.extend(cells(figure));
        table.add_row(row);
    }
    table
}

fn cells(figure: &Figure) -> [String; 11] {
    let (Some(summary), Some(middle)) = (figure.summary, figure.middle()) else {
        let mut cells = [NOTHING; 11].map(str::to_owned);
        cells[0] = match figure.state {
            State::Broken(_) => "broken",
            State::Lacking(_) => "not here",
            _ => NOTHING,
        }
        .to_owned();
        return cells;
    };
    let times = middle.times;
    [
        time(summary.median),
        format!("{} – {}", time(summary.interval[0]), time(summary.interval[1])),
        time(times.p90),
        time(times.p99),
        time(times.p999),
        time(times.max),
        rate(summary.per_second),
        time(summary.cpu),
        digits(summary.sleeps),
        figure.calls.map_or(NOTHING.to_owned(), |calls| digits(calls.sides[0] + calls.sides[1])),
        summary.probe.map_or(NOTHING.to_owned(), time),
    ]
}

/// The explanation below the tables.
pub const HOW: &str = "\
Medians over the repetitions, each in two fresh processes. The interval contains the true median, by the order of the
repetitions. The percentiles are of the repetition with the median time.
A round trip is a closed loop, one message at a time. Spinning round trips of up to 256 B are timed in groups of 64,
and of up to 4 KiB in groups of 16, so their percentiles are of the groups' means. The percentiles of a stream are of
stretches of 5 ms.
CPU is the processor time of both sides for each round trip or message, sleeps is how often a side slept, and calls are
the system calls of both sides, if they were asked for. The probe is a round trip of two empty flag lines in the same
processes: how close the two processors were at that moment.";
