//! The exact command to measure a figure again.

use clap::ValueEnum;
use strait_lab::Work;
use strait_lab::results::{Figure, Results};
use strait_lab::suite::Suite;
use strait_lab::work::Extent;

/// Returns the command to measure this figure again as before.
pub(crate) fn command(results: &Results, figure: &Figure) -> String {
    let work = &figure.work;
    let repetitions = figure.repetitions.len().max(1);
    if suite(&results.suite).is_some() {
        let only = quoted(&work.words());
        return format!("strait bench {} --only {only} --repetitions {repetitions}", results.suite);
    }
    if results.suite == "one" {
        let iterations = match work.extent {
            Extent::Count { steady, .. } => steady,
            Extent::Time { .. } => 10_000,
        };
        return format!("strait bench -n {} -m {} -i {iterations}", work.mechanism.name(), work.size);
    }
    let only = quoted(work.placement.name());
    let table = table(&[work.mechanism.name()], &[work.size], work);
    format!("{table}{} --only {only} --repetitions {repetitions}", count(work))
}

/// Returns the command to measure these figures again in random order. The figures differ only in the mechanism.
pub(crate) fn group(results: &Results, figures: &[&Figure]) -> String {
    let Some(first) = figures.first() else { return String::new() };
    let work = &first.work;
    let words = work.words();
    if suite(&results.suite).is_some() {
        // The name of the mechanism stands before the other words.
        let rest = words.strip_prefix(work.mechanism.title()).unwrap_or(&words).trim_start_matches(", ");
        return format!("strait bench {} --only {}", results.suite, quoted(rest));
    }
    let mechanisms: Vec<&str> = figures.iter().map(|figure| figure.work.mechanism.name()).collect();
    let repetitions = figures.iter().map(|figure| figure.repetitions.len()).max().unwrap_or(1).max(1);
    let only = quoted(work.placement.name());
    format!("{}{} --only {only} --repetitions {repetitions}", table(&mechanisms, &[work.size], work), count(work))
}

/// Returns the option that sets the number of messages; empty if the work is limited by time.
fn count(work: &Work) -> String {
    match work.extent {
        Extent::Count { steady, .. } => format!(" --count {steady}"),
        Extent::Time { .. } => String::new(),
    }
}

fn table(mechanisms: &[&str], sizes: &[usize], like: &Work) -> String {
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    let waiting = like.wait.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned());
    format!(
        "strait bench table --mechanisms {} --shapes {} --sizes {} --waiting {waiting}",
        mechanisms.join(","),
        like.shape,
        sizes.join(",")
    )
}

/// Returns the suite with this name; `None` if this program has no such suite.
pub(crate) fn suite(name: &str) -> Option<Suite> {
    Suite::from_str(name, false).ok()
}

/// Returns `words` quoted as a single word of a shell, for any contents.
pub(crate) fn quoted(words: &str) -> String {
    format!("'{}'", words.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::quoted;

    #[test]
    fn a_shell_takes_any_words_for_one() {
        assert_eq!(quoted("it's; rm *"), r"'it'\''s; rm *'");
    }
}
