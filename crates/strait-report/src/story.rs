//! The texts and the first tables of the page: where the figures were measured, what to look at, and where Strait
//! loses.

use strait_lab::Mechanism;
use strait_lab::stats::{digits, time};

use crate::cases::{Case, Metric, Source, Value1, conditions};
use crate::looks;
use crate::losses::{self, Loss, Losses};
use crate::page::{Cell, Defeats, Origin, Part, Table};
use crate::sections;

/// The number of rows in the first table of losses; a second table, to be opened, has the rest.
const WORST: usize = 12;

pub(crate) fn title(sources: &[Source]) -> String {
    let mut suites: Vec<&str> = sources.iter().map(|source| source.results.suite.as_str()).collect();
    suites.dedup();
    format!("Strait benchmark: {}", suites.join(", "))
}

/// Returns a line about the machines and the dates of the measurements.
pub(crate) fn machine(sources: &[Source]) -> String {
    let mut machines: Vec<String> = sources.iter().map(|source| source.results.machine.words()).collect();
    machines.dedup();
    let dates: Vec<String> = sources.iter().map(|source| date(source.results.began)).collect();
    format!("{}. Taken {}.", machines.join("; "), dates.first().map_or("", |date| date.as_str()))
}

/// Returns the warnings for the reader, one for each entry.
pub(crate) fn warnings(sources: &[Source]) -> Vec<String> {
    let mut out = Vec::new();
    let words = |source: &Source| source.results.machine.words();
    if sources.iter().any(|source| words(source) != words(&sources[0])) {
        out.push(
            "These files come from different machines. Figures of different files are never on one plot, but the \
                  tables of the four documents take each figure from where it is."
                .to_owned(),
        );
    }
    // Each warning appears once, with all files concerned: nobody reads a wall of warnings.
    let those = |are: &dyn Fn(&Source) -> bool| sources.iter().filter(|source| are(source)).collect::<Vec<_>>();
    let stopped = those(&|source| !source.results.complete);
    if !stopped.is_empty() {
        out.push(format!("{} stopped before the end. What was done is kept.", files(&stopped, "was", "were")));
    }
    let virtual_ones = those(&|source| source.results.machine.virtual_machine);
    if !virtual_ones.is_empty() {
        out.push(format!(
            "{} taken on a virtual machine: times across processors depend on where the host puts them, and change from \
             hour to hour. Ratios within one run stay.",
            files(&virtual_ones, "was", "were")
        ));
    }
    let single = those(&|source| source.results.figures.iter().all(|figure| figure.repetitions.len() < 2));
    if !single.is_empty() {
        out.push(format!(
            "{} one repetition of each figure: nothing says how far these can be believed.",
            files(&single, "has", "have")
        ));
    }
    let foreign = |source: &Source| source.results.machine.foreign.unwrap_or(0.0);
    let crowded = those(&|source| foreign(source) > strait_lab::results::figure::FOREIGN);
    if !crowded.is_empty() {
        let shares = crowded.iter().map(|source| format!("{:.0} % ({})", 100.0 * foreign(source), source.name));
        let shares: Vec<String> = shares.collect();
        out.push(format!("Others used much of the processors meanwhile: {}.", shares.join(", ")));
    }
    out
}

/// Returns the names of the files, followed by `one` if there is one file, or by `several` if there are more.
fn files(sources: &[&Source], one: &str, several: &str) -> String {
    let names: Vec<&str> = sources.iter().map(|source| source.name.as_str()).collect();
    match names.split_last() {
        Some((last, [])) => format!("{last} {one}"),
        Some((last, others)) => format!("{} and {last} {several}", others.join(", ")),
        None => String::new(),
    }
}

/// Returns the shortest of these figures whose mechanism fits.
fn best<'a>(these: &[(&'a Case<'a>, Value1)], is: &dyn Fn(Mechanism) -> bool) -> Option<(&'a Case<'a>, Value1)> {
    let fit = these.iter().filter(|(case, _)| is(case.mechanism()));
    fit.min_by(|(_, one), (_, other)| one.value.total_cmp(&other.value)).copied()
}

/// Returns a table of the most usual work in each condition: Strait, the best other usable mechanism, and the lowest
/// floor. `None` if that work was not measured.
pub(crate) fn summary(cases: &[Case<'_>]) -> Option<Table> {
    let usual = sections::usual(cases);
    let size = usual.first()?.size();
    let mut heads = vec![String::new()];
    let mut lines =
        ["Strait", "the best of the others", "Strait is", "the lowest floor"].map(|name| vec![Cell::plain(name)]);
    for condition in conditions(usual.iter().copied()) {
        heads.push(condition.words());
        let these: Vec<(&Case<'_>, Value1)> = usual
            .iter()
            .filter(|case| case.condition == condition)
            .filter_map(|&case| Some((case, case.value(Metric::Median)?)))
            .collect();
        let strait = best(&these, &looks::is_strait);
        let rival = best(&these, &|mechanism| !looks::is_strait(mechanism) && !looks::is_floor(mechanism));
        let floor = best(&these, &looks::is_floor);
        let cell = |found: Option<(&Case<'_>, Value1)>, named: bool| match found {
            Some((case, value)) => {
                let title = if named { case.mechanism().title() } else { "" };
                Cell { note: with_doubt(title, [case]), ..Cell::plain(time(value.value)) }
            }
            None => Cell::without("none", ""),
        };
        let factor = match (strait, rival) {
            (Some((case, ours)), Some((other, theirs))) => {
                let cell = factor(ours, theirs);
                Cell { note: with_doubt(&cell.note, [case, other]), ..cell }
            }
            _ => Cell::without("–", ""),
        };
        let cells = [cell(strait, false), cell(rival, true), factor, cell(floor, true)];
        for (line, cell) in lines.iter_mut().zip(cells) {
            line.push(cell);
        }
    }
    let caption = format!("Round trips of {}: medians", strait_lab::stats::bytes(size));
    Some(Table { caption, heads, rows: lines.into() })
}

/// Returns a note, with the word *disturbed* added if any of the figures is disturbed.
fn with_doubt<const N: usize>(note: &str, cases: [&Case<'_>; N]) -> String {
    let doubt = if cases.iter().any(|case| case.is_doubtful()) { "disturbed" } else { "" };
    [note, doubt].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ")
}

/// Returns a cell that compares Strait's time with the other's, and tells whether the difference is more than noise.
fn factor(ours: Value1, theirs: Value1) -> Cell {
    let apart = ours.interval[0] > theirs.interval[1] || theirs.interval[0] > ours.interval[1];
    let certain = apart && ours.sure > 0.0 && theirs.sure > 0.0;
    let note = if certain { String::new() } else { "not certain: the intervals meet".to_owned() };
    if theirs.value >= ours.value {
        Cell { note, ..Cell::plain(format!("{} × as fast", digits(theirs.value / ours.value))) }
    } else {
        let class = if certain { "lost" } else { "" };
        Cell { words: format!("{} × as slow", digits(ours.value / theirs.value)), note, class }
    }
}

/// Returns the losses of Strait; if there is none, the comparisons with the smallest advantage of Strait.
pub(crate) fn defeats(sources: &[Source], cases: &[Case<'_>]) -> Defeats {
    let Losses { certain, unsure, closest, compared } = losses::find(cases);
    if compared == 0 {
        return Defeats {
            words: "These results have nothing that Strait could be compared with. strait bench quick has.".to_owned(),
            table: Table::default(),
            more: Vec::new(),
        };
    }
    let groups = format!("{compared} groups of comparable figures");
    let count = certain.len();
    let (words, first, caption): (String, &[Loss<'_>], &str) = if !certain.is_empty() {
        let times = if count == 1 { "one comparison".to_owned() } else { format!("{count} comparisons") };
        let words = format!(
            "In {groups}, something that one could use instead is ahead of Strait beyond the intervals in {times} of a \
             median, a 99th percentile, or processor time. The worst first."
        );
        (words, &certain[..count.min(WORST)], "Where another is ahead")
    } else if !unsure.is_empty() {
        let words = format!(
            "In {groups}, nothing is ahead of Strait beyond the intervals. These are ahead by less than can be told."
        );
        (words, &unsure[..unsure.len().min(WORST)], "Where another seems to be ahead")
    } else {
        let words = format!("In {groups}, nothing that one could use instead is ahead of Strait. These come closest.");
        (words, &closest[..closest.len().min(5)], "What comes closest")
    };
    let mut more = Vec::new();
    let mut part = |title: String, losses: &[Loss<'_>], caption: &str| {
        if !losses.is_empty() {
            more.push(Part { title, open: false, table: table(sources, losses, caption) });
        }
    };
    if !certain.is_empty() {
        let rest = certain.get(WORST..).unwrap_or_default();
        part(format!("the other {}", rest.len()), rest, "Where another is ahead, continued");
        part(format!("{} that cannot be told", unsure.len()), &unsure, "Ahead by less than the intervals can tell");
    }
    Defeats { words, table: table(sources, first, caption), more }
}

fn table(sources: &[Source], losses: &[Loss<'_>], caption: &str) -> Table {
    let rows = losses.iter().map(|loss| {
        let work = &loss.ours.figure.work;
        let manner = format!("{}, {}", loss.ours.manner.title(), strait_lab::stats::bytes(work.size));
        let disturbed = |case: &Case<'_>| if case.is_doubtful() { ", disturbed" } else { "" };
        let shown = |case: &Case<'_>, value: Value1| {
            let range = if value.sure > 0.0 {
                format!("{} – {}", time(value.interval[0]), time(value.interval[1]))
            } else {
                "taken once".to_owned()
            };
            Cell { note: format!("{range}{}", disturbed(case)), ..Cell::plain(time(value.value)) }
        };
        let mut theirs = shown(loss.theirs, loss.their_value);
        theirs.words = format!("{} {}", loss.theirs.mechanism().title(), theirs.words);
        if loss.more > 0 {
            let others = if loss.more == 1 { "one other" } else { "others" };
            theirs.note += &format!("; {others} ahead too");
        }
        let file = if sources.len() > 1 { format!(" ({})", sources[loss.ours.source].name) } else { String::new() };
        vec![
            Cell { note: format!("{}{file}", loss.ours.condition.words()), ..Cell::plain(manner) },
            Cell {
                class: if loss.factor > 1.0 { "lost" } else { "" },
                ..Cell::plain(format!("{} ×", digits(loss.factor)))
            },
            Cell::plain(loss.metric.words()),
            shown(loss.ours, loss.our_value),
            theirs,
        ]
    });
    Table::new(caption.to_owned(), ["work", "factor", "measure", "Strait", "ahead"], rows.collect())
}

/// Returns for each results file the machine, the cost of the measuring, and the command to repeat the measurement.
pub(crate) fn origins(sources: &[Source]) -> Vec<Origin> {
    let origin = |source: &Source| {
        let results = &source.results;
        let (machine, harness) = (&results.machine, &results.harness);
        let share = |share: f64| format!("{:.0} %", 100.0 * share);
        let unknown = || "not known".to_owned();
        let mitigations: Vec<String> =
            machine.mitigations.iter().map(|[flaw, what]| format!("{flaw}: {what}")).collect();
        let fastest = results.figures.iter().filter_map(|figure| figure.summary);
        let fastest = fastest.map(|summary| summary.median).filter(|&median| median > 0.0).reduce(f64::min);
        let empty = match fastest {
            Some(fastest) => format!(
                "{} for a round trip of 64 B with nothing behind it, {:.1} % of the fastest figure",
                time(harness.empty),
                100.0 * harness.empty / fastest
            ),
            None => time(harness.empty),
        };
        let repetitions = results.figures.iter().map(|figure| figure.repetitions.len()).max().unwrap_or(0);
        let facts = vec![
            ("suite", results.suite.clone()),
            (
                "taken",
                format!(
                    "{}, in {:.0} s{}",
                    date(results.began),
                    results.seconds,
                    if results.complete { "" } else { ", stopped before its end" }
                ),
            ),
            (
                "repetitions",
                format!(
                    "up to {repetitions} of each figure, each in fresh processes, in the random order of seed {}",
                    results.seed
                ),
            ),
            (
                "processor",
                format!(
                    "{} × {}{}",
                    machine.processors,
                    machine.processor,
                    if machine.virtual_machine { ", virtual" } else { "" }
                ),
            ),
            ("memory", format!("{} GiB", digits(machine.memory as f64 / (1u64 << 30) as f64))),
            ("kernel", machine.kernel.clone()),
            ("governor", machine.governor.clone().unwrap_or_else(|| "not shown by this machine".to_owned())),
            ("mitigations", if mitigations.is_empty() { "none shown".to_owned() } else { mitigations.join("; ") }),
            ("load when it began", machine.load.map_or_else(unknown, digits)),
            (
                "others meanwhile",
                machine.foreign.map_or_else(unknown, |foreign| format!("{} of the processors", share(foreign))),
            ),
            ("one reading of the clock", time(harness.clock)),
            ("the measuring itself", empty),
        ];
        let command = match results.suite.as_str() {
            suite if crate::repeat::suite(suite).is_some() => {
                format!(
                    "strait bench {suite} --repetitions {repetitions} --seed {} -o {}",
                    results.seed,
                    crate::repeat::quoted(&source.name)
                )
            }
            _ => String::new(),
        };
        Origin { name: source.name.clone(), facts, command }
    };
    sources.iter().map(origin).collect()
}

/// Returns a time in seconds since 1970 as a date in the Gregorian calendar and in UTC.
fn date(seconds: u64) -> String {
    // Limits the year to four digits, for any contents of the file.
    let seconds = seconds.min(253_402_300_799);
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Counts days from a first of March, so that a leap day is the last day of a year.
    let days = days + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", rest / 3600, rest / 60 % 60)
}

#[cfg(test)]
mod tests {
    use super::date;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_795_232_666), "2026-11-21 03:44 UTC");
        assert_eq!(date(u64::MAX), "9999-12-31 23:59 UTC");
    }
}
