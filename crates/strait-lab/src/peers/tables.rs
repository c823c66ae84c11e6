//! Formats the comparison for the terminal and as Markdown.

use super::results::{Figure, PeerResults};
use super::row::{Form, Row};
use super::summary::date;
use crate::stats::{digits, rate, time};
use crate::table;

/// A table of one row, form and placement.
struct Grid {
    heading: String,
    heads: Vec<&'static str>,
    rows: Vec<Vec<String>>,
    /// The index of the best row that is no floor.
    best: Option<usize>,
}

/// Formats all tables for the terminal. `bold` marks the best library of each table; floors are no libraries.
pub fn print(results: &PeerResults, bold: bool) -> String {
    let mut out = String::new();
    for grid in grids(results) {
        out += &format!("\n{}\n{}", grid.heading, terminal(&grid, bold));
    }
    out + &notes(results)
}

fn terminal(grid: &Grid, bold: bool) -> String {
    let mut table = table::empty(&grid.heads, 1);
    for row in &grid.rows {
        table.add_row(row.clone());
    }
    // The first two lines are the header and the line below it.
    let marked = grid.best.filter(|_| bold).map(|best| best + 2);
    let line = |(index, line): (usize, &str)| match Some(index) == marked {
        true => format!("\x1b[1m{line}\x1b[0m\n"),
        false => format!("{line}\n"),
    };
    table.to_string().lines().enumerate().map(line).collect()
}

/// Formats all tables as Markdown, with the machine and the command below them.
pub fn markdown(results: &PeerResults) -> String {
    let mut out = String::new();
    for grid in grids(results) {
        out += &format!(
            "**{}**\n\n| {} |\n|---{}|\n",
            grid.heading,
            grid.heads.join(" | "),
            "|--:".repeat(grid.heads.len() - 1)
        );
        for (index, row) in grid.rows.iter().enumerate() {
            let mut row = row.clone();
            if grid.best == Some(index) {
                row[0] = format!("**{}**", row[0]);
            }
            out += &format!("| {} |\n", row.join(" | "));
        }
        out.push('\n');
    }
    out + &notes(results)
}

/// Returns what belongs below the tables: how the figures were taken, which are disturbed, and why others are missing.
fn notes(results: &PeerResults) -> String {
    let end = if results.complete { "" } else { ", stopped before its end" };
    let commit = results.commit.as_ref().map_or_else(String::new, |commit| format!(", commit {commit}"));
    let mut out = format!(
        "\n{}, {}, {:.0} s{end}{commit}.\nMedians of up to {} runs of {} ms in random order, each with two new processes; \
         [quartiles].\nCPU: both sides, for each round trip or message. Built with Cargo's profile `release`.\n",
        results.machine.words(),
        date(results.began),
        results.seconds,
        results.runs(),
        results.milliseconds
    );
    let mut said = Vec::new();
    for figure in &results.figures {
        let does = format!("{}, {}: {}", figure.title, figure.form.name(), figure.does);
        if !figure.runs.is_empty() && !said.contains(&does) {
            said.push(does);
        }
    }
    for figure in &results.figures {
        if let Some(why) = figure.failed.first() {
            said.push(format!("failed {} times: {}: {why}", figure.failed.len(), figure.words()));
        }
    }
    for figure in &results.figures {
        if let Some(why) = figure.disturbance() {
            said.push(format!("disturbed (!): {}: {why}", figure.words()));
        }
    }
    for line in said {
        out += &format!("* {line}\n");
    }
    out + &distances(results)
}

/// Says how the distance between the processors changed during the run, and what Strait and the floors took at either.
fn distances(results: &PeerResults) -> String {
    let Some([shortest, longest]) = results.distances() else { return String::new() };
    let mut out = format!(
        "\nA cache-line round trip between the two processors took {} to {} during the run",
        time(shortest),
        time(longest)
    );
    let Some(border) = results.border() else { return out + ".\n" };
    out += &format!(
        ":\nthey are near each other (up to {}) or far. Medians of Strait and of the floors, near and far:\n",
        time(border)
    );
    for figure in results.figures.iter().filter(|figure| figure.program == "strait" || figure.is_floor()) {
        if let Some([near, far]) = figure.near_and_far(border, |run| run.p50) {
            out += &format!("* {}: {}, {}\n", figure.words(), time(near), time(far));
        }
    }
    out
}

fn grids(results: &PeerResults) -> Vec<Grid> {
    let grid = |group| {
        let figures = results.ranked(group);
        let (form, row, spot): (Form, Row, _) = group;
        let best = figures.iter().position(|figure| !figure.is_floor());
        let heads = match row {
            Row::Idle => vec!["", "wake-ups", "CPU", "threads", "descriptors", "PSS"],
            Row::Death => vec!["", "noticed after", "[quartiles]"],
            Row::Stream(_) => vec!["", "messages", "[quartiles]", "CPU", "× Strait's time"],
            _ => vec!["", "p50", "[quartiles]", "p99", "p99.9", "rate", "CPU", "× Strait"],
        };
        let cells = |figure: &&Figure| cells(results, figure);
        Grid {
            heading: format!("{}; {}; {}", row.words(), form.name(), spot.words()),
            heads,
            rows: figures.iter().map(cells).collect(),
            best,
        }
    };
    results.groups().into_iter().map(grid).filter(|grid| !grid.rows.is_empty()).collect()
}

/// The text of a cell without a figure.
const NOTHING: &str = "–";

fn cells(results: &PeerResults, figure: &Figure) -> Vec<String> {
    let in_time = |value: Option<f64>| value.map_or(NOTHING.to_owned(), time);
    // A ratio is disturbed if either of its figures is.
    let ratio = |ratio: Option<(f64, bool)>, of: fn(f64) -> f64| match ratio {
        Some((ratio, disturbed)) => digits(of(ratio)) + if disturbed { " !" } else { "" },
        None => NOTHING.to_owned(),
    };
    let range = |quartiles: Option<[f64; 2]>, text: fn(f64) -> String| {
        quartiles.map_or(NOTHING.to_owned(), |[low, high]| format!("[{} – {}]", text(low), text(high)))
    };
    let mark = if figure.disturbance().is_some() { " !" } else { "" };
    let title = format!("{}{mark}", figure.title);
    match figure.row {
        Row::Idle => vec![
            title,
            figure.median(|run| run.sleeps).map_or(NOTHING.to_owned(), |sleeps| format!("{sleeps:.0}")),
            in_time(figure.median(|run| run.cpu_ticks).map(|ticks| ticks * 1e7)),
            figure.median(|run| run.threads).map_or(NOTHING.to_owned(), |threads| format!("{threads:.0}")),
            figure.median(|run| run.descriptors).map_or(NOTHING.to_owned(), |count| format!("{count:.0}")),
            figure.median(|run| run.pss_kib).map_or(NOTHING.to_owned(), |kib| format!("{kib:.0} KiB")),
        ],
        Row::Death => {
            let noticed = match figure.median(|run| run.noticed) {
                Some(nanoseconds) => time(nanoseconds),
                None => figure
                    .median(|run| run.not_noticed_within_ms)
                    .map_or(NOTHING.to_owned(), |within| format!("not within {} s", digits(within / 1e3))),
            };
            vec![title, noticed, range(figure.quartiles(|run| run.noticed), time)]
        }
        Row::Stream(_) => vec![
            title,
            figure.median(|run| run.per_second).map_or(NOTHING.to_owned(), rate),
            range(figure.quartiles(|run| run.per_second), rate),
            in_time(figure.median(|run| run.cpu)),
            ratio(results.marked_ratio(figure, |run| run.per_second), |ratio| 1.0 / ratio),
        ],
        _ => vec![
            title,
            in_time(figure.median(|run| run.p50)),
            range(figure.quartiles(|run| run.p50), time),
            in_time(figure.median(|run| run.p99)),
            in_time(figure.median(|run| run.p999)),
            figure.median(|run| run.mean).map_or(NOTHING.to_owned(), |mean| rate(1e9 / mean)),
            in_time(figure.median(|run| run.cpu)),
            ratio(results.marked_ratio(figure, |run| run.p50), |ratio| ratio),
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::{markdown, print};
    use crate::machine::Machine;
    use crate::peers::{Figure, Form, PeerResults, Row, Run, Spot};

    fn figure(program: &str, title: &str, row: Row, runs: Vec<Run>) -> Figure {
        let (program, title, does) = (program.to_owned(), title.to_owned(), "sends".to_owned());
        let (form, spot) = (Form::Default, Spot::Free);
        Figure { program, title, does, form, row, spot, runs, lacking: None, failed: Vec::new() }
    }

    fn results() -> PeerResults {
        let trip =
            |p50: f64| Run { p50: Some(p50), p99: Some(2.0 * p50), p999: None, cpu: Some(p50), ..Run::default() };
        let row = Row::RoundTrip(64);
        let death = Run { not_noticed_within_ms: Some(4000.0), ..Run::default() };
        PeerResults {
            machine: Machine::default(),
            repetitions: 3,
            milliseconds: 200,
            seed: 1,
            complete: true,
            seconds: 1.0,
            began: 0,
            commit: None,
            figures: vec![
                figure("pipe", "pipe", row, vec![trip(80_000.0), trip(90_000.0), trip(100_000.0)]),
                figure("strait", "Strait", row, vec![trip(400.0), trip(450.0), trip(500.0)]),
                figure("flag", "floor: flag", row, vec![trip(100.0)]),
                figure("futex", "floor: futex", Row::Death, vec![death]),
            ],
        }
    }

    #[test]
    fn a_table_is_ordered_and_no_wider_than_100_columns() {
        let text = print(&results(), false);
        let at = |word: &str| text.find(word).unwrap();
        assert!(at("\nfloor: flag") < at("\nStrait") && at("\nStrait") < at("\npipe "), "{text}");
        assert!(text.contains("90.0 µs") && text.contains("200") && text.contains("not within 4.00 s"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 110), "{text}");
    }

    #[test]
    fn a_disturbed_figure_and_its_ratios_are_marked() {
        let mut results = results();
        results.figures[0].runs.iter_mut().for_each(|run| run.foreign = Some(0.5));
        let text = print(&results, false);
        assert!(text.contains("\npipe !") && !text.contains("\nStrait !"), "{text}");
        assert!(text.contains("200 !") && text.contains("disturbed (!): pipe, default: round trip of 64 B"), "{text}");
    }

    #[test]
    fn the_notes_name_the_measured_commit_if_it_is_known() {
        let mut results = results();
        let unknown = markdown(&results);
        assert!(unknown.contains("1970-01-01, 1 s.\n"), "{unknown}");
        results.commit = Some("0123456789ab-dirty".to_owned());
        let known = markdown(&results);
        assert!(known.contains("1970-01-01, 1 s, commit 0123456789ab-dirty.\n"), "{known}");
    }

    /// Shows that the page of all tables has what is printed from the recorded run, which may have been written before
    /// results named their commit. Headings and blank lines differ.
    #[test]
    fn the_page_of_tables_has_every_line_of_the_recorded_run() {
        let docs = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs");
        let results = crate::peers::read(format!("{docs}/peers.json").as_ref()).unwrap();
        let page = std::fs::read_to_string(format!("{docs}/how-it-works/peers.md")).unwrap();
        let (_, page) = page.split_once("<!-- figures begin").unwrap();
        let (page, _) = page.split_once("<!-- figures end -->").unwrap();
        fn lines(text: &str) -> Vec<&str> {
            let is_kept = |line: &&str| {
                !line.is_empty() && !["**", "## ", "```", ": tools"].iter().any(|mark| line.starts_with(mark))
            };
            text.lines().filter(is_kept).collect()
        }
        let printed = markdown(&results);
        assert_eq!(lines(page), lines(&printed), "tools/how-fast writes the page");
        assert!(printed.lines().count() > 100);
    }

    #[test]
    fn the_best_library_is_bold_in_markdown() {
        let text = markdown(&results());
        assert!(text.contains("| **Strait** | 450 ns |"), "{text}");
        assert!(text.contains("| floor: flag | 100 ns |"), "{text}");
    }
}
