//! Prints the part of the README that has figures of other libraries: picture, caption, table, and the command.

use super::results::{Figure, PeerResults, Run};
use super::row::{Form, Row, Spot};
use crate::stats::{rate, time};

/// The command that takes the figures again.
const COMMAND: &str = "strait bench peers -o docs/peers.json --picture docs/peers.svg";

/// A column of the table: head, row, and the text of a figure.
type Column = (&'static str, Row, fn(&Figure) -> Option<String>);

fn median(figure: &Figure, field: fn(&Run) -> Option<f64>, text: fn(f64) -> String) -> Option<String> {
    let mark = if figure.disturbance().is_some() { " !" } else { "" };
    figure.median(field).map(|value| text(value) + mark)
}

const COLUMNS: [Column; 7] = [
    ("64 B: median", Row::RoundTrip(64), |figure| median(figure, |run| run.p50, time)),
    ("99 %", Row::RoundTrip(64), |figure| median(figure, |run| run.p99, time)),
    ("CPU of both", Row::RoundTrip(64), |figure| median(figure, |run| run.cpu, time)),
    ("1 MiB copied", Row::RoundTrip(1 << 20), |figure| median(figure, |run| run.p50, time)),
    ("64 MiB in place", Row::Ends(64 << 20), |figure| median(figure, |run| run.p50, time)),
    ("stream of 64 B", Row::Stream(64), |figure| median(figure, |run| run.per_second, rate)),
    ("death noticed", Row::Death, |figure| {
        let deaf = figure.runs.iter().any(|run| run.not_noticed_within_ms.is_some());
        if deaf { Some("no".to_owned()) } else { median(figure, |run| run.noticed, time) }
    }),
];

/// Returns the lines between the two marks of the README's section *How fast*, for default forms and unpinned
/// processes. `picture` is the path of the picture. Libraries are ordered by the round trip of 64 B; floors come last.
pub fn readme(results: &PeerResults, picture: &str) -> String {
    let of = |row: Row, program: &str| {
        results.figures.iter().find(|figure| {
            (figure.form, figure.row, figure.spot) == (Form::Default, row, Spot::Free) && figure.program == program
        })
    };
    let ranked = results.ranked((Form::Default, Row::RoundTrip(64), Spot::Free));
    let (floors, libraries): (Vec<_>, Vec<_>) = ranked.into_iter().partition(|figure| figure.is_floor());
    let mut out = wrapped(&format!(
        "![Bars of the round trip of 64 bytes, its CPU time, and the round trip of 1 MiB, for Strait and the other \
         libraries]({picture})"
    ));
    out.push('\n');
    out += &wrapped(&format!(
        "What a user gets who writes the first example of each library's documentation: default options, two processes that \
         the scheduler places, one run on one machine ({}).",
        machine(results)
    ));
    out += &format!(
        "\n| |{}\n|---{}|\n",
        COLUMNS.map(|(head, ..)| format!(" {head} |")).concat(),
        "|--:".repeat(COLUMNS.len()),
    );
    for figure in libraries.into_iter().chain(floors) {
        let title = if figure.program == "strait" { "**Strait**" } else { &figure.title };
        out += &format!("| {title} |");
        for (_, row, text) in COLUMNS {
            let cell = of(row, &figure.program).filter(|figure| !figure.runs.is_empty()).and_then(text);
            out += &format!(" {} |", cell.unwrap_or_else(|| "–".to_owned()));
        }
        out.push('\n');
    }
    if let Some(text) = near_and_far(results) {
        out.push('\n');
        out += &wrapped(&text);
    }
    if out.contains(" ! |") {
        out += "\n! Other programs used the machine during these runs.\n";
    }
    out + &format!(
        "\nTake the figures again, in a checkout (some 15 minutes on an idle machine):\n\n```sh\ntools/peers\n{COMMAND}\n```\n"
    )
}

/// Breaks a paragraph into lines of at most 100 characters.
fn wrapped(text: &str) -> String {
    let (mut out, mut width) = (String::new(), 0);
    for word in text.split(' ') {
        let len = word.chars().count();
        if width > 0 && width + 1 + len > 100 {
            out.push('\n');
            width = 0;
        } else if width > 0 {
            out.push(' ');
            width += 1;
        }
        out += word;
        width += len;
    }
    out + "\n"
}

/// Describes the machine and the run.
fn machine(results: &PeerResults) -> String {
    format!(
        "{}; medians of {} runs, {}",
        results.machine.words(),
        results.runs().min(results.repetitions),
        date(results.began)
    )
}

/// Says how the distance between the processors changed Strait's figures, if it did.
fn near_and_far(results: &PeerResults) -> Option<String> {
    let border = results.border()?;
    let of = |spot: Spot| {
        let key = (Form::Default, Row::RoundTrip(64), spot);
        let figure = results.ranked(key).into_iter().find(|figure| figure.program == "strait")?;
        let [near, far] = figure.near_and_far(border, |run| run.p50)?;
        Some(format!("{} {} near and {} far", spot.name(), time(near), time(far)))
    };
    let [shortest, longest] = results.distances()?;
    let all: Vec<String> = [Spot::Free, Spot::Two].into_iter().filter_map(of).collect();
    (!all.is_empty()).then(|| {
        format!(
            "The processors of this virtual machine are near each other or far (a cache-line round trip takes {} to {}): 64 B \
             by Strait takes {}.",
            time(shortest),
            time(longest),
            all.join(", ")
        )
    })
}

/// Formats a time in seconds since 1970 as a date.
pub(super) fn date(seconds: u64) -> String {
    // The calendar of years that begin in March: the leap day is the last day of its year.
    let days = seconds / 86_400 + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{:04}-{month:02}-{day:02}", year_of_era + era * 400 + carry)
}

#[cfg(test)]
mod tests {
    use super::{date, readme};
    use crate::machine::Machine;
    use crate::peers::{Figure, Form, PeerResults, Row, Run, Spot};

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(951_782_400), "2000-02-29");
        assert_eq!(date(1_772_323_199), "2026-02-28");
        assert_eq!(date(1_795_737_600), "2026-11-27");
    }

    #[test]
    fn the_readme_has_libraries_by_rank_and_floors_last() {
        let figure = |program: &str, title: &str, row: Row, run: Run| Figure {
            program: program.into(),
            title: title.into(),
            does: String::new(),
            form: Form::Default,
            row,
            spot: Spot::Free,
            runs: vec![run],
            lacking: None,
            failed: Vec::new(),
        };
        let trip = |p50: f64| Run { p50: Some(p50), ..Run::default() };
        let deaf = Run { not_noticed_within_ms: Some(4000.0), ..Run::default() };
        let row = Row::RoundTrip(64);
        let results = PeerResults {
            machine: Machine::default(),
            repetitions: 1,
            milliseconds: 1,
            seed: 0,
            complete: true,
            seconds: 1.0,
            began: 0,
            commit: None,
            figures: vec![
                figure("flag", "floor: flag", row, trip(90.0)),
                figure("pipe", "pipe", row, Run { foreign: Some(0.5), ..trip(90_000.0) }),
                figure("pipe", "pipe", Row::Death, deaf),
                figure("strait", "Strait", row, trip(400.0)),
            ],
        };
        let text = readme(&results, "docs/peers.png");
        let at = |word: &str| text.find(word).unwrap_or_else(|| panic!("no {word} in {text}"));
        assert!(at("| **Strait** | 400 ns |") < at("| pipe | 90.0 µs ! |") && at("| pipe |") < at("| floor: flag |"));
        assert!(text.contains("| no |") && text.contains("(docs/peers.png)") && text.contains("tools/peers"), "{text}");
        assert!(text.contains("! Other programs used"), "{text}");
        let wide = text.lines().find(|line| !line.starts_with('|') && line.chars().count() > 100);
        assert_eq!(wide, None);
    }
}
