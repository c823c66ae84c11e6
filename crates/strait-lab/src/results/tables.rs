//! Formats results for the terminal: a table for each shape and size, in the order of the suite.

use super::{Figure, Results, State};
use crate::shape::Shape;
use crate::stats::{bytes, digits, rate, time};
use crate::table;

/// The text of a table cell without a figure.
const NOTHING: &str = "–";

/// The greatest number of disturbed figures with a line each, unless the tables are wide.
const FEW: usize = 3;

/// Formats all tables, and below the tables the reason for each disturbed or missing figure. `look` says how. Only wide
/// tables have all of many disturbed figures, and the counters that are not available.
pub fn print(results: &Results, look: Look) -> String {
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
        out += &table(&figures.collect::<Vec<_>>(), look);
    }
    let wide = look == Look::Wide;
    let disturbed: Vec<(&Figure, &String)> = results
        .figures
        .iter()
        .filter_map(|figure| match &figure.state {
            State::Disturbed(why) => Some((figure, why)),
            _ => None,
        })
        .collect();
    let summed = !wide && disturbed.len() > FEW;
    if let (true, Some((figure, why))) = (summed, disturbed.first()) {
        let (count, all) = (disturbed.len(), results.figures.len());
        out += &format!("disturbed: {count} of {all} figures, the first: {}: {why}\n", figure.work.words());
    }
    for figure in &results.figures {
        match &figure.state {
            State::Measured => {}
            State::Disturbed(_) if summed => {}
            State::Disturbed(why) => out += &format!("disturbed: {}: {why}\n", figure.work.words()),
            State::Broken(why) => out += &format!("broken: {}: {why}\n", figure.work.words()),
            State::Lacking(why) => out += &format!("not here: {}: {why}\n", figure.work.words()),
            State::NotReached => out += &format!("not reached: {}\n", figure.work.words()),
        }
    }
    for [what, why] in results.missing.iter().filter(|_| wide) {
        out += &format!("not here: {what}: {why}\n");
    }
    out
}

/// How tables are printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Look {
    /// Within 100 columns, without marks: for files and pipes.
    Plain,
    /// Within 100 columns; the fastest of each way of waiting and placement is bold: for terminals.
    Bold,
    /// With every column.
    Wide,
    /// As Markdown, within 100 columns; the fastest of each way of waiting and placement is bold.
    Markdown,
}

/// The columns that stand in every table.
const HEADS: [&str; 8] = ["waiting", "placement", "", "median", "interval", "p99", "a second", "CPU"];

/// The columns that only wide tables have.
const MORE: [&str; 6] = ["p90", "p99.9", "max", "sleeps", "calls", "probe"];

fn table(figures: &[&Figure], look: Look) -> String {
    let heads: Vec<&str> = if look == Look::Wide { [&HEADS[..], &MORE].concat() } else { HEADS.to_vec() };
    let rows: Vec<Vec<String>> = figures
        .iter()
        .map(|figure| {
            let work = &figure.work;
            let names = [work.wait.name(), work.placement.name(), work.mechanism.title()].map(str::to_owned);
            names.into_iter().chain(cells(figure)).take(heads.len()).collect()
        })
        .collect();
    let best: Vec<bool> = figures.iter().map(|figure| is_best(figure, figures)).collect();
    if look == Look::Markdown {
        let mut out = format!("\n| {} |\n|---|---|---{}|\n", heads.join(" | "), "|--:".repeat(heads.len() - 3));
        for (mut row, best) in rows.into_iter().zip(best) {
            if best {
                row[2] = format!("**{}**", row[2]);
            }
            out += &format!("| {} |\n", row.join(" | "));
        }
        return out;
    }
    let mut table = table::empty(&heads, 3);
    for row in rows {
        table.add_row(row);
    }
    let mut out = String::new();
    // The first two lines are the header and the line below it.
    for (index, line) in table.to_string().lines().enumerate() {
        let bold = look == Look::Bold && index.checked_sub(2).and_then(|row| best.get(row)) == Some(&true);
        out += &if bold { format!("\x1b[1m{line}\x1b[0m\n") } else { format!("{line}\n") };
    }
    out
}

/// Returns whether no other mechanism has a shorter median with the same way of waiting and placement. A single
/// mechanism is not marked, and neither is a figure without times.
fn is_best(figure: &Figure, figures: &[&Figure]) -> bool {
    let same = |other: &&&Figure| {
        (other.work.wait, other.work.placement) == (figure.work.wait, figure.work.placement) && other.summary.is_some()
    };
    let median = |figure: &Figure| {
        figure.summary.filter(|summary| summary.median > 0.0).map_or(f64::INFINITY, |summary| summary.median)
    };
    let others: Vec<f64> = figures.iter().filter(same).map(|other| median(other)).collect();
    others.len() > 1 && median(figure).is_finite() && others.iter().all(|other| *other >= median(figure))
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
    if let Some(count) = figure.wake_ups() {
        let mut cells = [NOTHING; 11].map(str::to_owned);
        cells[0] = format!("{count} wake-ups");
        return cells;
    }
    let times = middle.times;
    [
        time(summary.median),
        format!("{} – {}", time(summary.interval[0]), time(summary.interval[1])),
        time(times.p99),
        summary.per_second.map_or(NOTHING.to_owned(), rate),
        time(summary.cpu),
        time(times.p90),
        time(times.p999),
        time(times.max),
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

#[cfg(test)]
mod tests {
    use super::{Look, print};
    use crate::machine::Machine;
    use crate::placement::Placement;
    use crate::results::{FORMAT, Figure, Harness, Results, State};
    use crate::work::{Mechanism, Report, Wait, Work};

    #[test]
    fn many_disturbed_figures_have_one_line_and_wide_tables_all() {
        let works =
            [64, 128, 256, 512].map(|size| Work::round_trip(Mechanism::PIPE, size, Wait::Block, Placement::Free));
        let mut figures = works.map(|work| Figure::of(work, vec![Report::default()], None)).to_vec();
        for figure in &mut figures {
            figure.state = State::Disturbed("the neighbours".to_owned());
        }
        let mut results = Results {
            missing: vec![["instructions".to_owned(), "no counters".to_owned()]],
            quantiles: Vec::new(),
            format: FORMAT,
            suite: "table".to_owned(),
            began: 0,
            seconds: 1.0,
            complete: true,
            machine: Machine::default(),
            harness: Harness { clock: 20.0, empty: 4.0 },
            seed: 7,
            figures,
        };
        let plain = print(&results, Look::Plain);
        assert_eq!(plain.matches("disturbed: ").count(), 1, "{plain}");
        assert!(plain.contains("disturbed: 4 of 4 figures") && !plain.contains("no counters"), "{plain}");
        let wide = print(&results, Look::Wide);
        assert_eq!(wide.matches("disturbed: ").count(), 4, "{wide}");
        assert!(wide.contains("not here: instructions: no counters"), "{wide}");
        // A few are named one by one.
        results.figures.truncate(2);
        assert_eq!(print(&results, Look::Plain).matches("disturbed: ").count(), 2);
    }
}
