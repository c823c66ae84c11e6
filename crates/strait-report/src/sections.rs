//! The plots: the figures on each plot, and the meaning of its axes.
//!
//! All figures of a plot have the same file, wait strategy and placement. The module finds the other varying parameters
//! in the figures, so a shape with a new parameter gets plots without a change here.

use strait_lab::stats::{bytes, rate, time};
use strait_lab::{Mechanism, Wait};

use crate::cases::{Case, Condition, Manner, Metric, Source, conditions, distinct, mechanisms, quantiles};
use crate::looks;
use crate::page::{Family, Key, Opening, Plot, Section};
use crate::plot::{self, Frame, Point, Row, Series, Unit, short_bytes};

/// The maximum number of figures marked by points; more marks would hide the lines.
const MARKS: usize = 130;

fn keys(all: &[Mechanism]) -> Vec<Key> {
    all.iter().map(|&mechanism| Key { class: looks::class(mechanism), title: mechanism.title().to_owned() }).collect()
}

/// Returns all mechanisms that appear on a plot.
pub(crate) fn picks(cases: &[Case<'_>]) -> Vec<Key> {
    keys(&mechanisms(cases.iter().filter(|case| case.figure.summary.is_some())))
}

/// Cases that differ in wait strategy, placement and mechanism, and perhaps in the parameter on the axis.
struct Set<'c> {
    title: String,
    cases: Vec<&'c Case<'c>>,
}

impl<'c> Set<'c> {
    /// Groups the cases by a key, in the order of the cases.
    fn by<K: PartialEq>(
        cases: impl IntoIterator<Item = &'c Case<'c>>,
        key: impl Fn(&Case<'_>) -> K,
        title: impl Fn(&Case<'_>) -> String,
    ) -> Vec<Self> {
        let mut sets: Vec<(K, Self)> = Vec::new();
        for case in cases.into_iter().filter(|case| case.figure.summary.is_some()) {
            let this = key(case);
            match sets.iter_mut().find(|(key, _)| *key == this) {
                Some((_, set)) => set.cases.push(case),
                None => sets.push((this, Self { title: title(case), cases: vec![case] })),
            }
        }
        sets.into_iter().map(|(_, set)| set).collect()
    }

    /// Returns the plots of these cases, one for each condition; `None` if no plot can be drawn.
    fn family(&self, open: bool, plot: impl Fn(Condition, &[&'c Case<'c>]) -> Option<String>) -> Option<Family> {
        let plots: Vec<Plot> = conditions(self.cases.iter().copied())
            .into_iter()
            .filter_map(|condition| {
                let cases: Vec<_> = self.cases.iter().copied().filter(|case| case.condition == condition).collect();
                Some(Plot { caption: condition.words(), svg: plot(condition, &cases)? })
            })
            .collect();
        let keys = keys(&mechanisms(self.cases.iter().copied()));
        (!plots.is_empty()).then(|| Family { title: self.title.clone(), keys, plots, open })
    }
}

/// Returns the mechanisms in drawing order: floors first, and Strait last, so that Strait is on top.
fn drawn_order(cases: &[&Case<'_>]) -> Vec<Mechanism> {
    let mut all = mechanisms(cases.iter().copied());
    all.reverse();
    all
}

/// Returns the description of a plot for blind readers.
fn said(what: &str, series: &[Series], across: impl Fn(f64) -> String) -> String {
    let each = series.iter().rev().take(12).filter_map(|series| {
        let (first, last) = (series.points.first()?, series.points.last()?);
        Some(match series.points.len() {
            1 => format!("{}: {}", series.title, time(first.y)),
            _ => format!(
                "{}: {} at {} to {} at {}",
                series.title,
                time(first.y),
                across(first.x),
                time(last.y),
                across(last.x)
            ),
        })
    });
    format!("{what}. {}", each.collect::<Vec<_>>().join("; "))
}

/// Returns the name of the case's file for a title, if there are several files; otherwise nothing.
fn of_file(sources: &[Source], case: &Case<'_>) -> String {
    if sources.len() > 1 { format!(" — {}", sources[case.source].name) } else { String::new() }
}

/// Returns the size that is nearest to `wanted` by ratio; `None` if there are no sizes.
fn nearest(sizes: &[usize], wanted: usize) -> Option<usize> {
    let distance = |size: usize| ((size.max(1) as f64).ln() - (wanted as f64).ln()).abs();
    sizes.iter().copied().min_by(|&one, &other| distance(one).total_cmp(&distance(other)))
}

/// Returns the round trips of the most usual size: the size nearest to 64 bytes, a cache line.
pub(crate) fn usual<'c>(cases: &'c [Case<'c>]) -> Vec<&'c Case<'c>> {
    let plain = |case: &&Case<'_>| {
        case.manner.kind == "ping-pong" && case.manner.others.is_empty() && case.figure.summary.is_some()
    };
    let of_strait: Vec<usize> =
        cases.iter().filter(plain).filter(|case| looks::is_strait(case.mechanism())).map(Case::size).collect();
    let all: Vec<usize> = cases.iter().filter(plain).map(Case::size).collect();
    let Some(size) = nearest(if of_strait.is_empty() { &all } else { &of_strait }, 64) else { return Vec::new() };
    let these: Vec<_> = cases.iter().filter(plain).filter(|case| case.size() == size).collect();
    // If several files have such figures, the file with most of them is used.
    let count = |source: usize| these.iter().filter(|case| case.source == source).count();
    let Some(source) = distinct(these.iter().map(|case| case.source)).into_iter().max_by_key(|&source| count(source))
    else {
        return Vec::new();
    };
    these.into_iter().filter(|case| case.source == source).collect()
}

/// Returns a list of the medians of these cases, shortest first; `None` for a single case, which is in the tables.
fn medians(cases: &[&Case<'_>], condition: &str) -> Option<String> {
    let mut rows: Vec<Row> = cases
        .iter()
        .filter_map(|case| {
            let value = case.value(Metric::Median)?;
            Some(Row {
                class: looks::class(case.mechanism()),
                title: case.mechanism().title().to_owned(),
                value: value.value,
                interval: value.interval,
                shown: time(value.value),
                doubtful: case.is_doubtful(),
                bold: looks::is_strait(case.mechanism()),
            })
        })
        .collect();
    rows.sort_by(|one, other| one.value.total_cmp(&other.value));
    let each: Vec<String> = rows.iter().map(|row| format!("{} {}", row.title, row.shown)).collect();
    if rows.len() > 1 {
        plot::list(&rows, &format!("Median round trips, {condition}: {}", each.join("; ")))
    } else {
        None
    }
}

/// Returns the sentence and the picture that the page opens with: the most usual work, with each mechanism as a program
/// has it by default. Strait waits adaptively, other mechanisms sleep, and the scheduler places the processes. `None`
/// if Strait or every other mechanism was not measured so.
pub(crate) fn opening(cases: &[Case<'_>]) -> Option<Opening> {
    let by_default = |case: &&Case<'_>| {
        let strait = case.mechanism() == Mechanism::STRAIT;
        let wait = if strait { Wait::Adaptive } else { Wait::Block };
        let other = !looks::is_strait(case.mechanism()) && !looks::is_floor(case.mechanism());
        case.condition == Condition { wait, placement: "unpinned" } && (strait || other)
    };
    let these: Vec<_> = usual(cases).into_iter().filter(by_default).collect();
    let median = |case: &Case<'_>| case.value(Metric::Median).map(|value| value.value);
    let (strait, others): (Vec<&Case<'_>>, Vec<_>) =
        these.iter().copied().partition(|case| looks::is_strait(case.mechanism()));
    let ours = *strait.first()?;
    // Most readers know pipes; without a pipe, the comparison is with the fastest of the others.
    let fastest = others.iter().min_by(|one, other| {
        let key = |case: &Case<'_>| median(case).unwrap_or(f64::INFINITY);
        key(one).total_cmp(&key(other))
    });
    let theirs = *others.iter().find(|case| case.mechanism() == Mechanism::PIPE).or(fastest)?;
    let rival = if theirs.mechanism() == Mechanism::PIPE { "a pipe" } else { theirs.mechanism().title() };
    let [size, ours_takes, theirs_takes] = [bytes(ours.size()), time(median(ours)?), time(median(theirs)?)];
    let mut sentence = format!("A round trip of {size} takes {ours_takes} with Strait and {theirs_takes} with {rival}");
    if let (Some(one), Some(other)) = (ours.value(Metric::Cpu), theirs.value(Metric::Cpu)) {
        sentence += &format!(
            "; the processor time of both sides is {} with Strait and {} with {rival}",
            time(one.value),
            time(other.value)
        );
    }
    let svg = medians(&these, "default options")?;
    let caption = format!("A round trip of {size} with default options");
    Some(Opening { sentence: sentence + ".", plot: Plot { caption, svg } })
}

/// Returns the section with the medians of the most usual work, as lists.
pub(crate) fn glance(cases: &[Case<'_>]) -> Section {
    let usual = usual(cases);
    let title = usual.first().map_or(String::new(), |case| format!("A round trip of {}", bytes(case.size())));
    let set = Set { title, cases: usual };
    let family = set.family(true, |condition, cases| medians(cases, &condition.words()));
    Section {
        id: "glance",
        title: "At a glance",
        words: "Medians, shortest first; the bar behind a dot is where the true median lies. A hollow dot was disturbed. \
                Grey are bare floors: loops without what a library has to do, to see how much is left to win.",
        families: family.into_iter().collect(),
        command: "strait bench quick -o quick.json",
    }
}

/// Returns the sections with plots, in the order of the page.
pub(crate) fn all(sources: &[Source], cases: &[Case<'_>]) -> Vec<Section> {
    let is = |kind: &'static str| move |case: &&Case<'_>| case.manner.kind == kind;
    let sizes = |cases: Vec<&Case<'_>>| by_size(sources, cases);
    vec![
        Section {
            id: "size",
            title: "Cost against size",
            words: "Median time, both axes logarithmic. Flat is what each message costs whatever its size; where a line \
                    begins to rise, copying begins to count.",
            families: sizes(cases.iter().filter(|case| case.manner.kind != "out-of-line").collect()),
            command: "strait bench table --sizes 8,64,512,4096,32768,262144 -o sizes.json",
        },
        Section {
            id: "distributions",
            title: "Latency distributions",
            words: "How slow the slow ones are: at 99 %, one message of a hundred takes longer than the line. A line that \
                    stays flat keeps its promise; one that shoots up was interrupted, by its own sleep or by the machine. \
                    Spinning round trips of up to 256 B are timed by 64 and those of up to 4 KiB by 16, so that theirs are \
                    means of so many.",
            families: distributions(sources, cases),
            command: "strait bench quick -o quick.json",
        },
        Section {
            id: "cpu",
            title: "Processor time against latency",
            words: "What a short wait costs: to the left is fast, low is cheap, and nothing is both. Processor time is that \
                    of both sides, for each round trip or message.",
            families: cpu(sources, cases),
            command: "strait bench quick -o quick.json",
        },
        Section {
            id: "load",
            title: "Load against latency",
            words: "Open loop: messages are sent when they are due, whether or not the last one is through, and timed from \
                    that moment. Where a line turns up, a queue builds. Over messages a second mechanisms stand beside one \
                    another at the same load, and a line ends where its mechanism can do no more; over percent of its own \
                    capacity, which was measured in the same processes just before, each shows how it behaves when it is busy.",
            families: load(sources, cases.iter().filter(|case| is_open_loop(case)).collect()),
            command: "strait bench full -o full.json",
        },
        Section {
            id: "out-of-line",
            title: "Out of line against size",
            words: "A large message there and a short acknowledgement back. Cold is memory that was never used before, so \
                    that its pages are made first; touched means that every byte is written and read.",
            families: sizes(cases.iter().filter(is("out-of-line")).collect()),
            command: "strait bench mach -o mach.json",
        },
        Section {
            id: "more",
            title: "Everything else that varies",
            words: "Senders, receivers, descriptors, pieces of memory, and the silence before a message.",
            families: numbers(sources, cases),
            command: "strait bench full -o full.json",
        },
    ]
}

/// Returns plots of a metric over a varying parameter, with one line for each mechanism; `None` if no plot has a line
/// of two points.
fn sweep(
    set: &Set<'_>,
    open: bool,
    frame: Frame,
    metric: Metric,
    across: impl Fn(&Case<'_>) -> f64,
    words: impl Fn(f64) -> String,
) -> Option<Family> {
    set.family(open, |condition, cases| {
        let few = cases.len() <= MARKS;
        let mut series: Vec<Series> = Vec::new();
        for mechanism in drawn_order(cases) {
            let mut points: Vec<Point> = cases
                .iter()
                .filter(|case| case.mechanism() == mechanism)
                .filter_map(|case| {
                    let value = case.value(metric)?;
                    let x = across(case);
                    let words = format!("{}, {}: {}", mechanism.title(), words(x), time(value.value));
                    Some(Point { x, y: value.value, words, doubtful: case.is_doubtful() })
                })
                .collect();
            points.sort_by(|one, other| one.x.total_cmp(&other.x));
            let marks = few || points.len() == 1;
            series.push(Series {
                class: looks::class(mechanism),
                title: mechanism.title().to_owned(),
                points,
                line: true,
                marks,
            });
        }
        let varies = series.iter().any(|series| series.points.len() > 1);
        let what = format!("{}, {}, {}", set.title, metric.words(), condition.words());
        let said = said(&what, &series, &words);
        if varies { plot::lines(frame, &series, &said) } else { None }
    })
}

fn by_size(sources: &[Source], cases: Vec<&Case<'_>>) -> Vec<Family> {
    let key = |case: &Case<'_>| (case.source, case.manner.clone());
    let title = |case: &Case<'_>| format!("{}{}", case.manner.title(), of_file(sources, case));
    let sets = Set::by(cases, key, title);
    let frame = |manner: &Manner| Frame {
        across: Unit::Bytes,
        across_name: "bytes in a message",
        up: Unit::Time,
        up_name: manner.quantity(),
    };
    let families = sets.iter().filter_map(|set| {
        let manner = &set.cases[0].manner;
        sweep(set, false, frame(manner), Metric::Median, |case| case.size() as f64, short_bytes)
    });
    first_open(families)
}

/// Returns whether the axis of the case's plot shows the load.
fn is_open_loop(case: &Case<'_>) -> bool {
    matches!(case.manner.kind.as_str(), "open-loop" | "paced")
}

/// Returns the plots of the figures under load: at an equal number of messages a second for all mechanisms, and at an
/// equal share of the capacity of each mechanism.
fn load(sources: &[Source], cases: Vec<&Case<'_>>) -> Vec<Family> {
    let (shares, rates): (Vec<_>, Vec<_>) = cases.into_iter().partition(|case| case.manner.kind == "open-loop");
    let key = |case: &Case<'_>| (case.source, case.manner.without("load").without("rate"), case.size());
    let mut families = Vec::new();
    let frame = |across, across_name, metric| {
        let up_name = if metric == Metric::P99 { "99th percentile" } else { "median" };
        Frame { across, across_name, up: Unit::Time, up_name }
    };
    for metric in [Metric::Median, Metric::P99] {
        let title = |case: &Case<'_>| {
            let over = if case.manner.kind == "paced" { "at equal load" } else { "over messages a second" };
            format!("{}, {} {over}{}", bytes(case.size()), metric.words(), of_file(sources, case))
        };
        let frame = frame(Unit::Count, "messages a second that were due", metric);
        let offered = |case: &Case<'_>| case.found("offered").unwrap_or(f64::NAN);
        for same in [&rates, &shares] {
            let sets = Set::by(same.iter().copied().filter(|case| case.found("offered").is_some()), key, title);
            families.extend(sets.iter().filter_map(|set| sweep(set, false, frame, metric, offered, rate)));
        }
    }
    for metric in [Metric::Median, Metric::P99] {
        let title = |case: &Case<'_>| {
            format!("{}, {} against the own capacity{}", bytes(case.size()), metric.words(), of_file(sources, case))
        };
        let frame = frame(Unit::Share, "load, in percent of capacity", metric);
        let load = |case: &Case<'_>| case.manner.numbers.get("load").map_or(f64::NAN, |&load| load as f64);
        let sets = Set::by(shares.iter().copied(), key, title);
        families
            .extend(sets.iter().filter_map(|set| sweep(set, false, frame, metric, load, |load| format!("{load} %"))));
    }
    first_open(families)
}

fn numbers(sources: &[Source], cases: &[Case<'_>]) -> Vec<Family> {
    let mut families = Vec::new();
    let names = distinct(cases.iter().filter(|case| !is_open_loop(case)).flat_map(|case| {
        let names = case.manner.numbers.keys();
        names.map(|name| (case.manner.kind.clone(), name.clone()))
    }));
    for (kind, name) in names {
        let number = |case: &Case<'_>| case.manner.numbers.get(&name).map_or(f64::NAN, |&value| value as f64);
        let key = |case: &Case<'_>| (case.source, case.manner.without(&name), case.size());
        let title = |case: &Case<'_>| {
            let manner = case.manner.without(&name).title();
            format!("{manner}, {}{}", bytes(case.size()), of_file(sources, case))
        };
        let these = cases.iter().filter(|case| case.manner.kind == kind && case.manner.numbers.contains_key(&name));
        let frame = |manner: &Manner| Frame {
            across: Unit::Count,
            across_name: across_name(&name),
            up: Unit::Time,
            up_name: manner.quantity(),
        };
        let sets = Set::by(these, key, title);
        families.extend(sets.iter().filter_map(|set| {
            let frame = frame(&set.cases[0].manner);
            sweep(set, false, frame, Metric::Median, number, |value| format!("{} {value}", name.replace('_', " ")))
        }));
    }
    first_open(families)
}

fn across_name(number: &str) -> &'static str {
    match number {
        "count" => "how many",
        "parts" => "pieces",
        "after" => "milliseconds of silence",
        "batch" => "messages in a call",
        _ => "",
    }
}

/// Returns for each manner the cases of the most telling sizes: near a cache line (64 bytes), and for plain round
/// trips also near a page (4,096 bytes).
fn chosen<'c>(sources: &[Source], cases: &'c [Case<'c>]) -> Vec<Set<'c>> {
    let key = |case: &Case<'_>| (case.source, case.manner.clone(), case.size());
    let title = |case: &Case<'_>| format!("{}, {}{}", case.manner.title(), bytes(case.size()), of_file(sources, case));
    let mut kept: Vec<(usize, String)> = Vec::new();
    let mut sets = Set::by(cases, key, title);
    sets.retain(|set| {
        let first = set.cases[0];
        let same = |case: &&Case<'_>| case.source == first.source && case.manner == first.manner;
        let sizes: Vec<usize> = cases.iter().filter(same).map(Case::size).collect();
        let usual = first.manner.kind == "ping-pong" && first.manner.others.is_empty();
        let wanted: &[usize] = if usual { &[64, 4096] } else { &[64] };
        let is_chosen = wanted.iter().any(|&wanted| nearest(&sizes, wanted) == Some(first.size()));
        // Of a kind with parameters, only the first manner is shown: plots of all manners would be too many to look at.
        let slot = (first.source, first.manner.kind.clone());
        let is_kept = is_chosen && (usual || !kept.contains(&slot)) && first.manner.kind != "idle";
        if is_kept {
            kept.push(slot);
        }
        is_kept
    });
    sets
}

fn distributions(sources: &[Source], cases: &[Case<'_>]) -> Vec<Family> {
    let quantiles: Vec<Vec<f64>> = sources.iter().map(quantiles).collect();
    let families: Vec<Option<Family>> = chosen(sources, cases)
        .iter()
        .map(|set| {
            let frame = Frame {
                across: Unit::Nines,
                across_name: "of messages take no longer",
                up: Unit::Time,
                up_name: set.cases[0].manner.quantity(),
            };
            set.family(false, |condition, cases| {
                let mut series = Vec::new();
                for case in drawn_order(cases)
                    .into_iter()
                    .filter_map(|mechanism| cases.iter().copied().find(|case| case.mechanism() == mechanism))
                {
                    let title = case.mechanism().title();
                    let points = case.curve(&quantiles[case.source]).into_iter().map(|(quantile, value)| Point {
                        x: quantile,
                        y: value,
                        words: title.to_owned(),
                        doubtful: case.is_doubtful(),
                    });
                    series.push(Series {
                        class: looks::class(case.mechanism()),
                        title: title.to_owned(),
                        points: points.collect(),
                        line: true,
                        marks: false,
                    });
                }
                let what = format!("Distribution of {}, {}", set.title, condition.words());
                let percent = |quantile: f64| format!("{} %", 100.0 * quantile);
                plot::lines(frame, &series, &said(&what, &series, percent))
            })
        })
        .collect();
    first_open(families.into_iter().flatten())
}

fn cpu(sources: &[Source], cases: &[Case<'_>]) -> Vec<Family> {
    let frame =
        Frame { across: Unit::Time, across_name: "median time", up: Unit::Time, up_name: "processor time, both sides" };
    let families: Vec<Option<Family>> = chosen(sources, cases)
        .iter()
        .map(|set| {
            set.family(false, |condition, cases| {
                let mut series = Vec::new();
                for mechanism in drawn_order(cases) {
                    let of = cases.iter().filter(|case| case.mechanism() == mechanism);
                    let points: Vec<Point> = of
                        .filter_map(|case| {
                            let (median, cpu) = (case.value(Metric::Median)?.value, case.value(Metric::Cpu)?.value);
                            let title = mechanism.title();
                            let words = format!("{title}: median {}, processor time {}", time(median), time(cpu));
                            Some(Point { x: median, y: cpu, words, doubtful: case.is_doubtful() })
                        })
                        .collect();
                    series.push(Series {
                        class: looks::class(mechanism),
                        title: mechanism.title().to_owned(),
                        points,
                        line: false,
                        marks: true,
                    });
                }
                if series.iter().map(|series| series.points.len()).sum::<usize>() < 2 {
                    return None;
                }
                let what = format!("Processor time against median time, {}, {}", set.title, condition.words());
                plot::lines(frame, &series, &said(&what, &series, time))
            })
        })
        .collect();
    first_open(families.into_iter().flatten())
}

/// Returns the families, with the first one opened.
fn first_open(families: impl IntoIterator<Item = Family>) -> Vec<Family> {
    let mut all: Vec<Family> = families.into_iter().collect();
    if let Some(first) = all.first_mut() {
        first.open = true;
    }
    all
}
