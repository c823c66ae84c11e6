//! Checks the contents of the page for made-up results with known content.

mod common;

use std::collections::BTreeSet;

use common::{HOSTILE, calm, figure, report, source, spoiled, works};
use strait_lab::results::Figure;
use strait_lab::{Mechanism, Placement, Shape, Wait, Work};
use strait_report::{Source, page};

fn of(sources: &[Source]) -> String {
    page(sources).unwrap()
}

/// Returns the section of the page with this id.
fn part<'a>(page: &'a str, id: &str) -> &'a str {
    let begin = page.find(&format!("<section id=\"{id}\"")).unwrap_or_else(|| panic!("no section {id}"));
    let rest = &page[begin..];
    &rest[..rest.find("</section>").unwrap()]
}

/// Returns the text of the table rows in a section, with a bar between cells.
fn rows(part: &str) -> Vec<String> {
    let mut out = Vec::new();
    for row in part.split("<tr>").skip(1) {
        let row = row.split("</tr>").next().unwrap().replace("</td>", "|").replace("</th>", "|");
        let mut text = String::new();
        let mut inside = false;
        for letter in row.chars() {
            match letter {
                '<' => inside = true,
                '>' => inside = false,
                letter if !inside => text.push(letter),
                _ => {}
            }
        }
        out.push(text.trim_end_matches('|').to_owned());
    }
    out
}

#[test]
fn a_page_needs_nothing_but_itself() {
    let page = of(&[calm()]);
    for outside in ["http:", "https:", "<script", " src=", "url(", "@import", "<link", "javascript:"] {
        assert!(!page.contains(outside), "{outside}");
    }
    assert!(page.contains("default-src 'none'"));
    assert!(page.len() < 1 << 20, "{} KiB", page.len() >> 10);
    assert!(strait_report::page(&[]).is_err());
}

#[test]
fn what_a_file_says_is_no_markup() {
    let page = of(&[spoiled()]);
    for markup in ["<script", "<img", "onerror=alert(2)>", "</svg></style>", "\"'>"] {
        assert!(!page.contains(markup), "{markup}");
    }
    assert!(HOSTILE.contains("<script>") && page.contains("alert(1)"), "it is still to be read");
    assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
    assert_eq!(page.matches("<style").count(), 1);
}

#[test]
fn a_defeat_is_found_and_the_worst_stands_first() {
    let page = of(&[calm()]);
    let losses = rows(part(&page, "losses"));
    // The pipe is about twice as fast on one processor at every size; the ratio is greatest for the smallest size.
    assert!(losses[1].contains("Round trips") && losses[1].contains("blocking, same core"), "{losses:?}");
    assert!(losses[1].contains("pipe") && losses[1].contains("|2.00 ×|"), "{losses:?}");
    assert!(losses.iter().all(|row| row.starts_with("work|") || row.contains("same core")), "{losses:?}");
    let factors: Vec<f64> =
        losses.iter().filter_map(|row| row.split('|').nth(1)?.strip_suffix(" ×")?.parse().ok()).collect();
    assert!(factors.len() > 4 && factors.iter().all(|&factor| factor > 1.0), "{factors:?}");
    assert!(factors[..4].is_sorted_by(|one, other| one >= other), "{factors:?}");
    // A bare floor that is ahead is not a loss.
    assert!(!losses.iter().any(|row| row.contains("bare")), "{losses:?}");
}

#[test]
fn without_a_defeat_the_closest_is_shown() {
    let work = |mechanism| Work::round_trip(mechanism, 64, Wait::Block, Placement::Free);
    let both = [Mechanism::STRAIT, Mechanism::PIPE].map(|mechanism| figure(work(mechanism)));
    let page = of(&[source(both.to_vec())]);
    let losses = part(&page, "losses");
    assert!(losses.contains("These come closest"), "{losses}");
    assert!(rows(losses).len() > 1);
    // The pipe is ahead, but within the noise.
    let noisy = |mechanism, p50: f64| {
        Figure::of(work(mechanism), [0.5, 0.9, 1.0, 1.1, 2.0].map(|noise| report(noise * p50)).to_vec(), None)
    };
    let page = of(&[source(vec![noisy(Mechanism::STRAIT, 110.0), noisy(Mechanism::PIPE, 100.0)])]);
    assert!(part(&page, "losses").contains("less than can be told"));
    // One repetition proves nothing, however large the difference.
    let once = |mechanism, p50| Figure::of(work(mechanism), vec![report(p50)], None);
    let page = of(&[source(vec![once(Mechanism::STRAIT, 900.0), once(Mechanism::PIPE, 100.0)])]);
    let losses = part(&page, "losses");
    assert!(losses.contains("less than can be told") && losses.contains("taken once"), "{losses}");
    assert!(page.contains("one repetition of each figure"));
    // If there is nothing to compare with, the page says so.
    let page = of(&[source(vec![figure(work(Mechanism::STRAIT))])]);
    assert!(part(&page, "losses").contains("nothing that Strait could be compared with"));
}

#[test]
fn what_went_wrong_is_shown_with_its_reason() {
    let page = of(&[spoiled()]);
    let figures = part(&page, "figures");
    for state in ["disturbed", "broken", "not here", "not reached"] {
        assert!(rows(figures).iter().any(|row| row.split('|').nth(1) == Some(state)), "{state}");
    }
    assert!(figures.contains("the neighbours") && figures.contains("message 7 came twice"));
    assert!(page.contains("was stopped before the end") && page.contains("on a virtual machine"));
    // A warning about several files appears once.
    let named = |name: &str| Source { name: name.to_owned(), ..spoiled() };
    let page = of(&[named("one.json"), named("two.json"), named("three.json")]);
    assert!(page.contains("one.json, two.json and three.json were stopped before the end"));
    assert_eq!(page.matches("stopped before the end").count(), 1);
    assert!(part(&of(&[calm()]), "figures").contains("Nothing speaks against any of them"));
}

#[test]
fn published_figures_stand_beside_ours_or_beside_what_would_measure_them() {
    let page = of(&[calm()]);
    let documents = part(&page, "documents");
    let pipe = rows(documents).into_iter().find(|row| row.starts_with("pipe, 64 B|304 k/s")).unwrap();
    // The made-up rule gives 30 µs, and a little more for the size.
    assert!(pipe.contains("|33.3 k/s|"), "{pipe}");
    assert!(!pipe.contains("not measured"), "{pipe}");
    let mach = rows(documents).into_iter().find(|row| row.starts_with("7 MiB|15.1 ms / 15.7 ms")).unwrap();
    assert!(mach.contains("not measured"), "{mach}");
    assert!(documents.contains("strait bench"), "{documents}");
    assert!(documents.contains("no Mach ports on Linux"));
}

#[test]
fn the_page_opens_with_a_sentence_and_defaults_against_defaults() {
    let work = |mechanism, wait| Work::round_trip(mechanism, 64, wait, Placement::Free);
    let strait = work(Mechanism::STRAIT, Wait::Adaptive);
    let pipe = work(Mechanism::PIPE, Wait::Block);
    let floor = work(Mechanism::FUTEX, Wait::Block);
    let page = of(&[source([&strait, &pipe, &floor].map(|work| figure(work.clone())).to_vec())]);
    let opening = &page[page.find("id=\"opening\"").unwrap()..page.find("id=\"glance\"").unwrap()];
    assert!(opening.contains("A round trip of 64 B takes 126 ns with Strait and "), "{opening}");
    assert!(opening.contains(" with a pipe; the processor time of both sides is "), "{opening}");
    let figure_ = opening.split("<figure>").nth(1).unwrap();
    assert!(figure_.contains("Strait: 126 ns") && figure_.contains("pipe: "), "{figure_}");
    assert!(!figure_.contains("futex"), "a floor is no product: {figure_}");
    // Adaptive waits have one figure: no panel shows it alone.
    assert!(!part(&page, "glance").contains("<figcaption>adaptive"), "{page}");
    // Without Strait there is no such sentence.
    assert!(!of(&[source(vec![figure(pipe)])]).contains("class=\"message\""));
}

#[test]
fn a_plot_has_one_way_of_waiting_and_one_placement() {
    let page = of(&[calm()]);
    let conditions: BTreeSet<String> =
        works().iter().map(|work| format!("{}, {}", work.wait.name(), work.placement.name())).collect();
    for id in ["glance", "size", "distributions", "cpu", "more"] {
        let section = part(&page, id);
        let captions: Vec<&str> =
            section.split("<figcaption>").skip(1).map(|rest| rest.split("</figcaption>").next().unwrap()).collect();
        assert!(captions.len() >= conditions.len(), "{id}: {captions:?}");
        assert_eq!(captions.iter().map(|&words| words.to_owned()).collect::<BTreeSet<_>>(), conditions, "{id}");
        assert_eq!(section.matches("<svg role=\"img\" aria-label=").count(), captions.len(), "{id}");
    }
    // A section without figures is left out, and the page says how to measure them.
    for id in ["load", "out-of-line"] {
        assert!(!page.contains(&format!("<section id=\"{id}\"")) && !page.contains(&format!("#{id}\"")), "{id}");
    }
    let again = part(&page, "again");
    assert!(again.contains("Not measured in these results: ") && again.contains("strait bench mach"), "{again}");
}

#[test]
fn open_loops_stand_beside_one_another_at_equal_load() {
    let mut figures = Vec::new();
    for (mechanism, capacity) in [(Mechanism::STRAIT, 4e6), (Mechanism::PIPE, 1e6)] {
        for load in [10, 50, 90] {
            let work = Work::round_trip(mechanism, 64, Wait::Block, Placement::Same(0));
            let mut one = figure(Work { shape: Shape::OpenLoop { load }, ..work });
            for report in &mut one.repetitions {
                report.found.insert("offered".to_owned(), capacity * f64::from(load) / 100.0);
            }
            figures.push(one);
        }
        for rate in [10_000, 100_000] {
            let work = Work::round_trip(mechanism, 64, Wait::Block, Placement::Same(0));
            let mut one = figure(Work { shape: Shape::Paced { rate }, ..work });
            for report in &mut one.repetitions {
                report.found.insert("offered".to_owned(), rate.into());
            }
            figures.push(one);
        }
    }
    let page = of(&[source(figures)]);
    let load = part(&page, "load");
    assert!(load.contains("over messages a second") && load.contains("messages a second that were due"), "{load}");
    // Both mechanisms have the same rate.
    assert!(load.contains("at equal load"), "{load}");
    assert!(load.contains("Strait, 100 k/s: ") && load.contains("pipe, 100 k/s: "), "{load}");
    // Half of Strait's capacity is four times half of the pipe's; each point is at its own rate.
    assert!(load.contains("Strait, 2.00 M/s: ") && load.contains("pipe, 500 k/s: "), "{load}");
    assert!(load.contains("Strait, 50 %: ") && load.contains("pipe, 50 %: "), "{load}");
}

#[test]
fn every_figure_can_be_taken_again() {
    let mut source = calm();
    // With many figures only tables have commands.
    assert!(of(std::slice::from_ref(&source)).contains("strait bench quick --only &#39;ping-pong of 64 B, "));
    source.results.figures.truncate(300);
    let page = of(std::slice::from_ref(&source));
    for figure in &source.results.figures {
        let words = figure.work.words();
        let command = format!("strait bench quick --only &#39;{words}&#39; --repetitions 5");
        assert!(page.contains(&command), "{command}");
    }
    assert!(page.contains("strait bench quick --repetitions 5 --seed 7"));
}

#[test]
fn nonsense_in_a_file_is_survived() {
    for value in [0.0, -1.0, 1e-300, 1e300, f64::INFINITY, f64::NAN, f64::MAX] {
        let mut source = calm();
        source.results.began = u64::MAX;
        source.results.harness.empty = value;
        source.results.seconds = value;
        for (index, figure) in source.results.figures.iter_mut().enumerate() {
            if index % 3 == 0 {
                if let Some(summary) = &mut figure.summary {
                    (summary.median, summary.interval, summary.cpu) = (value, [value, -value], value);
                }
                for report in &mut figure.repetitions {
                    (report.times.p50, report.times.p99, report.times.max) = (value, value, value);
                }
            } else if index % 3 == 1 {
                figure.repetitions.clear();
            }
        }
        of(&[source.clone(), source]);
    }
}
