//! Tables of every figure, with the whole distribution and the command to measure the figure again; and a table of the
//! doubtful figures.

use strait_lab::results::{Figure, State};
use strait_lab::stats::{bytes, digits, rate, time};

use crate::cases::{Case, Source, conditions, distinct};
use crate::looks;
use crate::page::{Cell, Group, Listing, Table};
use crate::repeat;

const HEADS: [&str; 14] = [
    "mechanism",
    "median",
    "interval",
    "p90",
    "p98",
    "p99",
    "p99.9",
    "p99.99",
    "max",
    "a second",
    "CPU",
    "sleeps",
    "counted for each",
    "again",
];

/// Up to this many figures, each figure has its own command. With more figures each table has one command, to keep
/// the page small.
const COMMANDS: usize = 400;

/// Returns the tables of all figures: by shape and size, and within these by wait strategy and placement.
pub(crate) fn all(sources: &[Source], cases: &[Case<'_>]) -> Vec<Listing> {
    let each = cases.len() <= COMMANDS;
    let key = |case: &Case<'_>| (case.source, case.manner.clone(), case.size());
    let keys = distinct(cases.iter().map(key));
    let listings = keys.into_iter().map(|wanted| {
        let (source, manner, size) = &wanted;
        let of: Vec<&Case<'_>> = cases.iter().filter(|case| key(case) == wanted).collect();
        let file = if sources.len() > 1 { format!(" — {}", sources[*source].name) } else { String::new() };
        let groups = conditions(of.iter().copied()).into_iter().map(|condition| {
            let mut group: Vec<&Case<'_>> = of.iter().copied().filter(|case| case.condition == condition).collect();
            group.sort_by_key(|case| looks::order(case.mechanism()));
            let rows = group.iter().map(|case| row(sources, case, each)).collect();
            let figures: Vec<&Figure> = group.iter().map(|case| case.figure).collect();
            let command = repeat::group(&sources[*source].results, &figures);
            Group { command, table: Table::new(condition.words(), HEADS, rows) }
        });
        Listing { title: format!("{}, {}{file}", manner.title(), bytes(*size)), groups: groups.collect() }
    });
    listings.collect()
}

fn row(sources: &[Source], case: &Case<'_>, each: bool) -> Vec<Cell> {
    let figure = case.figure;
    let command = if each { repeat::command(&sources[case.source].results, figure) } else { String::new() };
    let mut name = Cell::plain(case.mechanism().title());
    let (state, why) = standing(&figure.state);
    if !state.is_empty() {
        name.note = if why.is_empty() { state.to_owned() } else { format!("{state}: {why}") };
    }
    let again = Cell { words: command, note: String::new(), class: "again" };
    let (Some(summary), Some(middle)) = (figure.summary, figure.middle()) else {
        let mut cells = vec![name, Cell::without(if state.is_empty() { "–" } else { state }, "")];
        cells.extend((2..HEADS.len() - 1).map(|_| Cell::without("–", "")));
        cells.push(again);
        return cells;
    };
    if let Some(count) = figure.wake_ups() {
        let mut cells = vec![name, Cell::plain(format!("{count} wake-ups"))];
        cells.extend((2..HEADS.len() - 1).map(|_| Cell::without("–", "")));
        cells.push(again);
        return cells;
    }
    let times = middle.times;
    // A single repetition has no interval.
    let interval = if summary.confidence > 0.0 {
        Cell::plain(format!("{} – {}", time(summary.interval[0]), time(summary.interval[1])))
    } else {
        Cell::without("taken once", "")
    };
    let mut cells = vec![name, Cell::plain(time(summary.median)), interval];
    let all = [times.p90, times.p98, times.p99, times.p999, times.p9999, times.max];
    cells.extend(all.map(|value| Cell::plain(time(value))));
    cells.push(summary.per_second.map_or(Cell::without("–", ""), |pace| Cell::plain(rate(pace))));
    cells.push(Cell::plain(time(summary.cpu)));
    cells.push(Cell::plain(digits(summary.sleeps)));
    let counts: Vec<String> = case.counts().iter().map(|(name, value)| format!("{name} {}", digits(*value))).collect();
    cells.push(Cell { class: "counts", ..Cell::plain(counts.join(", ")) });
    cells.push(again);
    cells
}

/// Returns how far a figure can be believed, in a word (empty if nothing speaks against the figure), and the reason.
pub(crate) fn standing(state: &State) -> (&'static str, &str) {
    match state {
        State::Measured => ("", ""),
        State::Disturbed(why) => ("disturbed", why),
        State::Broken(why) => ("broken", why),
        State::Lacking(why) => ("not here", why),
        State::NotReached => ("not reached", ""),
    }
}

/// Returns the table of the figures that are disturbed, broken or missing.
pub(crate) fn troubles(cases: &[Case<'_>]) -> Table {
    let rows = cases.iter().filter_map(|case| {
        let (state, why) = standing(&case.figure.state);
        let cells = || vec![Cell::plain(case.figure.work.words()), Cell::plain(state), Cell::plain(why)];
        (!state.is_empty()).then(cells)
    });
    let caption = "Figures in doubt, and figures that are not there".to_owned();
    Table::new(caption, ["figure", "state", "why"], rows.collect())
}
