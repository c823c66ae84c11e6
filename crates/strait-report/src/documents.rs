//! The four documents with published figures for comparison: their figures beside the measured figures.
//!
//! The published figures are in `data/`, with their sources. If a measured mechanism of a document does not exist
//! here (Mach ports on Linux), the nearest mechanism takes its place, and the column names that mechanism. A cell
//! without a figure gives the reason.

use serde::de::DeserializeOwned;
use strait_lab::results::State;
use strait_lab::shape::FIDL_AROUND;
use strait_lab::stats::{bytes, digits, rate, time};
use strait_lab::{CATALOGUE, CODECS, Mechanism, Wait};

use crate::cases::{Case, Condition, Metric, conditions, distinct};
use crate::page::{Cell, Document, Part, Table};
use crate::repeat;

/// The result of looking for a measured figure for a document's table.
#[derive(Clone, Debug)]
enum Found {
    /// The value of the figure, and whether the figure is disturbed.
    Value(f64, bool),
    /// The reason why the figure could not be measured.
    Not(String),
    /// The results do not have the figure.
    Nothing,
}

/// Looks up figures of one condition in the results.
#[derive(Clone, Copy, Debug)]
struct Finder<'a> {
    cases: &'a [Case<'a>],
    condition: Condition,
}

/// The wanted figure, apart from its mechanism.
#[derive(Clone, Copy, Debug)]
struct Wanted<'a> {
    kind: &'a str,
    size: usize,
    metric: Metric,
    /// The required numeric parameters of the manner, by name.
    numbers: &'a [(&'a str, u64)],
    others: &'a [(&'a str, &'a str)],
}

impl<'a> Wanted<'a> {
    fn new(kind: &'a str, size: usize, metric: Metric) -> Self {
        Self { kind, size, metric, numbers: &[], others: &[] }
    }

    fn is(&self, case: &Case<'_>) -> bool {
        case.manner.kind == self.kind
            && case.size() == self.size
            && self.numbers.iter().all(|(name, value)| case.manner.numbers.get(*name) == Some(value))
            && self.others.iter().all(|(name, value)| case.manner.others.get(*name).is_some_and(|is| is == value))
            // Work with a short reply is other work than with a reply as large as the message.
            && case.manner.others.contains_key("reply") == self.others.iter().any(|(name, _)| *name == "reply")
    }
}

impl Finder<'_> {
    /// Returns the figure of the first measured mechanism among `mechanisms`; otherwise the reason why there is none.
    fn find(&self, mechanisms: &[&str], wanted: Wanted<'_>) -> Found {
        let all = mechanisms.iter().filter_map(|name| {
            let is = |case: &&Case<'_>| {
                case.condition == self.condition && case.mechanism().name() == *name && wanted.is(case)
            };
            self.cases.iter().find(is)
        });
        let mut reason = Found::Nothing;
        for case in all {
            match (case.value(wanted.metric), &case.figure.state) {
                (Some(value), _) => return Found::Value(value.value, case.is_doubtful()),
                (None, State::Lacking(why)) => reason = Found::Not(format!("not here: {why}")),
                (None, State::Broken(why)) => reason = Found::Not(format!("broken: {why}")),
                (None, _) => reason = Found::Not("not reached".to_owned()),
            }
        }
        reason
    }
}

impl Found {
    fn cell(&self, show: fn(f64) -> String) -> Cell {
        match self {
            Self::Value(value, false) => Cell::plain(show(*value)),
            Self::Value(value, true) => Cell { note: "disturbed".to_owned(), ..Cell::plain(show(*value)) },
            Self::Not(why) => Cell::without("none", why),
            Self::Nothing => Cell::without("not measured", ""),
        }
    }

    fn value(&self) -> Option<f64> {
        match self {
            Self::Value(value, _) => Some(*value),
            _ => None,
        }
    }

    fn is_doubtful(&self) -> bool {
        matches!(self, Self::Value(_, true))
    }

    /// Adds a figure to a sum of figures. A disturbed or missing part makes the sum disturbed or missing.
    fn plus(self, other: &Self) -> Self {
        match (&self, other) {
            (Self::Value(sum, doubtful), Self::Value(value, also)) => Self::Value(sum + value, *doubtful || *also),
            _ => Self::Nothing,
        }
    }
}

/// Marks a cell computed from several figures if one of the figures is disturbed.
fn marked<const N: usize>(cell: Cell, of: [&Found; N]) -> Cell {
    let note = if of.iter().any(|found| found.is_doubtful()) { "disturbed".to_owned() } else { cell.note };
    Cell { note, ..cell }
}

/// Returns a cell with Strait's advantage: the other's time divided by Strait's.
fn times_faster(theirs: &Found, ours: &Found) -> Cell {
    match (theirs.value(), ours.value()) {
        (Some(one), Some(other)) => marked(Cell::plain(format!("{} ×", digits(one / other))), [theirs, ours]),
        _ => Cell::without("–", ""),
    }
}

fn rows<T: DeserializeOwned>(data: &str) -> Vec<T> {
    let mut reader = csv::ReaderBuilder::new().comment(Some(b'#')).from_reader(data.as_bytes());
    reader.deserialize().collect::<Result<_, _>>().expect("the published figures are part of the program")
}

/// Returns as text the rate of work with this many nanoseconds per item.
fn as_rate(nanoseconds: f64) -> String {
    rate(1e9 / nanoseconds)
}

/// Returns the four documents with their tables.
pub(crate) fn all(cases: &[Case<'_>]) -> Vec<Document> {
    vec![posix(cases), mach(cases), mojo(cases), zircon(cases)]
}

/// Returns the tables of all conditions with figures; if there are none, only the table of the first condition in
/// `always`. The first shown condition of `always` comes first, and its table is open.
fn parts(
    cases: &[Case<'_>],
    always: &[Condition],
    mut table: impl FnMut(Finder<'_>, String) -> (Table, usize),
) -> Vec<Part> {
    let mut all = conditions(cases);
    all.extend(always.iter().copied().filter(|condition| !all.contains(condition)).collect::<Vec<_>>());
    all.sort_by_key(|condition| condition.rank());
    let parts: Vec<(Condition, Table, usize)> = all
        .into_iter()
        .map(|condition| {
            let (table, found) = table(Finder { cases, condition }, condition.words());
            (condition, table, found)
        })
        .collect();
    let best = parts.iter().map(|(.., found)| *found).max().unwrap_or(0);
    let mut shown: Vec<(Condition, Table, usize)> = parts
        .into_iter()
        .filter(|(condition, _, found)| if best == 0 { always.first() == Some(condition) } else { *found > 0 })
        .collect();
    let first =
        always.iter().find_map(|condition| shown.iter().position(|(other, ..)| other == condition)).unwrap_or(0);
    // The wait strategy of the document comes first.
    shown[..=first].rotate_right(1);
    shown
        .into_iter()
        .enumerate()
        .map(|(index, (condition, table, _))| Part { title: condition.words(), open: index == 0, table })
        .collect()
}

/// Returns the command to measure the missing figures: the suite, or a table of the listed mechanisms, as far as this
/// program knows the mechanisms.
fn command(suite: &str, mechanisms: &[&str], rest: &str) -> String {
    if repeat::suite(suite).is_some() {
        return format!("strait bench {suite} -o {suite}.json");
    }
    let known = |name: &&str| CATALOGUE.iter().any(|mechanism| mechanism.name() == *name);
    let known: Vec<&str> = distinct(mechanisms.iter().copied().filter(known));
    format!("strait bench table --mechanisms {} {rest} -o {suite}.json", known.join(","))
}

/// Returns the title of the first listed mechanism that this program has; the names are ordered from the exact
/// mechanism to less near mechanisms.
fn titled(names: &[&str]) -> String {
    let known = names.iter().find_map(|name| name.parse::<Mechanism>().ok());
    known.map_or_else(|| "not in this program".to_owned(), |mechanism| mechanism.title().to_owned())
}

const BLOCK: Condition = Condition { wait: Wait::Block, placement: "unpinned" };
const SPIN: Condition = Condition { wait: Wait::Spin, placement: "unpinned" };
const ADAPTIVE: Condition = Condition { wait: Wait::Adaptive, placement: "unpinned" };

fn posix(cases: &[Case<'_>]) -> Document {
    #[derive(serde::Deserialize)]
    struct Row {
        method: String,
        bytes_64: f64,
        bytes_128: f64,
        bytes_1024: f64,
    }
    const NEAREST: [(&str, &[&str]); 5] = [
        ("unix domain socket", &["stream-named", "stream"]),
        ("system v message queue", &["sysv-queue"]),
        ("named pipe (fifo)", &["fifo"]),
        ("pipe", &["pipe"]),
        ("shared memory", &["posix-shm-spin", "posix-shm-futex", "flag"]),
    ];
    let published: Vec<Row> = rows(include_str!("../data/posix-primitives.csv"));
    let nearest = |method: &str| NEAREST.iter().find(|(name, _)| *name == method).map_or(&[][..], |(_, names)| *names);
    let table = |finder: Finder<'_>, caption: String| {
        let mut out = Vec::new();
        let mut found = 0;
        for row in &published {
            let names = nearest(&row.method);
            for (size, figure) in [(64, row.bytes_64), (128, row.bytes_128), (1024, row.bytes_1024)] {
                let wanted = Wanted::new("ping-pong", size, Metric::Pace);
                let (original, strait) = (finder.find(names, wanted), finder.find(&["strait"], wanted));
                found += usize::from(original.value().is_some()) + usize::from(strait.value().is_some());
                out.push(vec![
                    Cell::plain(format!("{}, {}", row.method, bytes(size))),
                    Cell::published(rate(figure)),
                    Cell { note: titled(names), ..original.cell(as_rate) },
                    strait.cell(as_rate),
                    times_faster(&original, &strait),
                ]);
            }
        }
        let heads = ["method, message", "published, macOS", "today, original", "today, Strait", "Strait is"];
        (Table::new(format!("Round trips a second, {caption}"), heads, out), found)
    };
    let names: Vec<&str> = NEAREST.iter().flat_map(|(_, names)| names.iter().copied()).chain(["strait"]).collect();
    Document {
        id: "posix",
        title: "Common POSIX primitives",
        source: "unix-ipc-benchmarks: ping-pong, 10,000 iterations, macOS; messages a second, one for each round trip",
        words: "Unpinned as in the document. Its kernel primitives block and its shared memory spins, so each has its \
                answer under its own way of waiting. Its shared memory compares whole messages in a loop, without any \
                ordering between the processors; ours has the ordering that makes it correct.",
        parts: parts(cases, &[BLOCK, SPIN], table),
        command: command("posix", &names, "--shapes ping-pong --sizes 64,128,1024"),
    }
}

fn mach(cases: &[Case<'_>]) -> Document {
    #[derive(serde::Deserialize)]
    struct Row {
        machine: String,
        bytes: usize,
        mach_inline_us: f64,
        mach_out_of_line_us: f64,
        fifo_us: f64,
    }
    let published: Vec<Row> = rows(include_str!("../data/mach-vs-fifo.csv"));
    let of = |machine: &'static str| published.iter().filter(move |row| row.machine == machine);
    let table = |finder: Finder<'_>, caption: String| {
        let mut found = 0;
        let mut out = Vec::new();
        for (laptop, desktop) in of("laptop").zip(of("desktop")) {
            let size = laptop.bytes;
            let round = |kind| Wanted { others: &[("reply", "8 B")], ..Wanted::new(kind, size, Metric::P98) };
            // The sender wrote the data before the run, and the receiver only maps it: only the transfer is timed.
            let apart = Wanted {
                others: &[("cold", "false"), ("touched", "false")],
                ..Wanted::new("out-of-line", size, Metric::P98)
            };
            let touched = Wanted {
                others: &[("cold", "false"), ("touched", "true")],
                ..Wanted::new("out-of-line", size, Metric::P98)
            };
            let either = |names: &[&str]| {
                let whole = Wanted::new("ping-pong", size, Metric::P98);
                let all =
                    [finder.find(names, touched), finder.find(names, round("ping-pong")), finder.find(names, whole)];
                let best = all
                    .iter()
                    .find(|found| found.value().is_some())
                    .or(all.iter().find(|found| matches!(found, Found::Not(_))));
                best.cloned().unwrap_or(Found::Nothing)
            };
            let (fifo, inline, strait) = (either(&["fifo", "pipe"]), either(&["seqpacket"]), either(&["strait"]));
            let mapped = finder.find(&["vmsplice"], apart);
            let in_place = finder.find(&["strait-in-place", "strait"], apart);
            let all = [&fifo, &inline, &mapped, &strait, &in_place];
            found += all.iter().filter(|found| found.value().is_some()).count();
            let pair = |one: f64, other: f64| Cell::published(format!("{} / {}", time(1e3 * one), time(1e3 * other)));
            out.push(vec![
                Cell::plain(bytes(size)),
                pair(laptop.mach_inline_us, desktop.mach_inline_us),
                inline.cell(time),
                pair(laptop.mach_out_of_line_us, desktop.mach_out_of_line_us),
                mapped.cell(time),
                pair(laptop.fifo_us, desktop.fifo_us),
                fifo.cell(time),
                strait.cell(time),
                in_place.cell(time),
            ]);
        }
        let heads = [
            "message",
            "published: Mach inline, laptop / desktop",
            "today: seqpacket socket",
            "published: Mach out of line",
            "today: pipe with vmsplice, untouched",
            "published: FIFO",
            "today: FIFO",
            "today: Strait, every byte touched",
            "today: Strait, untouched",
        ];
        (Table::new(format!("98th percentile, {caption}"), heads, out), found)
    };
    Document {
        id: "mach",
        title: "Mach messages and FIFOs",
        source: "Chromium's design document on IPC over Mach ports: 98th percentile of 2,000 messages, OS X; \
                 the published figures vary by 10 µs",
        words: "There are no Mach ports on Linux. Nearest to an inline message is one through a seqpacket socket, which \
                the kernel copies and keeps whole; nearest to an out-of-line one is a pipe whose pages are lent by vmsplice \
                instead of copied in. Untouched means that neither side looks at the bytes, as Mach's figure has it: what \
                remains is the way. In the other columns every byte is written and read. Ours are for the way there and a \
                short acknowledgement back.",
        parts: parts(cases, &[BLOCK, ADAPTIVE], table),
        command: command(
            "mach",
            &["strait", "strait-in-place", "fifo", "pipe", "seqpacket", "vmsplice"],
            "--shapes ping-pong --sizes 100,200,500,1024,2048,3072,4096,5120,6144,7168,8192,9216,1048576,5242880,7340032",
        ),
    }
}

/// The message sizes, in bytes, of a run of Chromium's performance test, which sends each 50,000 times there and back.
const MOJO_SIZES: [usize; 5] = [12, 144, 1728, 20_736, 248_832];
const MOJO_ROUNDS: f64 = 50_000.0;

fn mojo(cases: &[Case<'_>]) -> Document {
    #[derive(serde::Deserialize)]
    struct Row {
        date: String,
        platform: String,
        test: String,
        original_ipc_ms: f64,
        mojo_ms: f64,
        mojo_thread_safe_send_ms: Option<f64>,
    }
    let published: Vec<Row> = rows(include_str!("../data/mojo-ping-pong.csv"));
    let millis = |ms: f64| format!("{:.0} ms", ms);
    let run = |nanoseconds: f64| format!("{:.0} ms", nanoseconds * MOJO_ROUNDS / 1e6);
    let table = |finder: Finder<'_>, caption: String| {
        let mut found = 0;
        let mut out = Vec::new();
        let ways = [
            ("ping-pong", None, "channel", "no hop"),
            ("hop", Some("false"), "proxy", "hop on each side"),
            ("hop", Some("true"), "proxy", "hop on receiving"),
        ];
        for (kind, sends_directly, test, words) in ways {
            let others: Vec<_> = sends_directly.iter().map(|directly| ("direct", *directly)).collect();
            let direct = sends_directly == Some("true");
            let mut sums = [Found::Value(0.0, false), Found::Value(0.0, false)];
            for size in MOJO_SIZES {
                let wanted = Wanted { others: &others, ..Wanted::new(kind, size, Metric::Pace) };
                let both = [finder.find(&["stream", "seqpacket"], wanted), finder.find(&["strait"], wanted)];
                for (sum, one) in sums.iter_mut().zip(&both) {
                    found += usize::from(one.value().is_some());
                    *sum = std::mem::replace(sum, Found::Nothing).plus(one);
                }
                let none = || Cell::without("–", "");
                let [socket, strait] = &both;
                out.push(vec![
                    Cell::plain(format!("{words}, {}", bytes(size))),
                    none(),
                    none(),
                    socket.cell(run),
                    strait.cell(run),
                    times_faster(socket, strait),
                ]);
            }
            let linux = published.iter().rev().find(|row| row.platform == "Linux" && row.test == test);
            let was =
                |value: Option<f64>| value.map_or(Cell::without("–", ""), |value| Cell::published(millis(value)));
            let [socket, strait] = sums;
            out.push(vec![
                Cell::plain(format!("{words}, all five")),
                // Chrome's own channel had a single kind of round trip.
                was(linux.filter(|_| !direct).map(|row| row.original_ipc_ms)),
                was(linux.and_then(|row| if direct { row.mojo_thread_safe_send_ms } else { Some(row.mojo_ms) })),
                socket.cell(run),
                strait.cell(run),
                times_faster(&socket, &strait),
            ]);
        }
        let heads = [
            "50,000 round trips of",
            "published, Linux 2015: Chrome IPC",
            "published, Linux 2015: Mojo",
            "today: Unix stream socket",
            "today: Strait",
            "Strait is",
        ];
        (Table::new(format!("Time for 50,000 round trips, {caption}"), heads, out), found)
    };
    let mut parts = parts(cases, &[BLOCK, ADAPTIVE], table);
    let all = published.iter().map(|row| {
        vec![
            Cell::plain(format!("{}, {}, {}", row.platform, row.test, row.date)),
            Cell::published(millis(row.original_ipc_ms)),
            Cell::published(millis(row.mojo_ms)),
            row.mojo_thread_safe_send_ms.map_or(Cell::without("–", ""), |ms| Cell::published(millis(ms))),
        ]
    });
    parts.push(Part {
        title: "all that was published".to_owned(),
        open: false,
        table: Table::new(
            "One whole run of the perf test, as published".to_owned(),
            ["platform, test, date", "Chrome IPC", "Mojo", "Mojo, sending from any thread"],
            all.collect(),
        ),
    });
    Document {
        id: "mojo",
        title: "Chrome's IPC and Mojo",
        source: "Mojo performance, mojo-dev 2015: milliseconds for one whole run of the perf test, 50,000 round trips at \
                 each of its five sizes",
        words: "On Linux Chrome's channel was a Unix stream socket, so a bare one stands for it; what Chrome's own code \
                cost on top is in the published figure only. With a hop on each side, a second thread takes what arrives \
                and hands over what is sent, as Chrome's proxies do; with a hop on receiving, it sends by itself, which Mojo \
                came to allow. Published is what was last measured on Linux.",
        parts,
        command: command("mojo", &["strait", "stream"], "--shapes ping-pong --sizes 12,144,1728,20736,248832"),
    }
}

/// Returns a cell with a figure before and a figure after.
fn before_and_after(before: &Found, after: &Found) -> Cell {
    match (before.value(), after.value()) {
        (Some(one), Some(other)) => marked(Cell::plain(format!("{} → {}", time(one), time(other))), [before, after]),
        (None, Some(after)) => Cell::plain(format!("? → {}", time(after))),
        (Some(before), None) => Cell::plain(format!("{} → ?", time(before))),
        _ => before.cell(time),
    }
}

/// Returns the tables of encoding and decoding values: a row for each value, a column for each format.
fn coded(cases: &[Case<'_>]) -> Option<Part> {
    let finder = Finder { cases, condition: SPIN };
    let values = [
        ("a vector of 256 B", "bytes", 256),
        ("a vector of 4,096 B", "bytes", 4096),
        ("a struct of 256 uint8", "fields", 256),
        ("16 structs of 256 uint8", "fields", 4096),
        ("1 vector of 64 B", "vectors", 64),
        ("64 vectors of 64 B", "vectors", 64 * 64),
        ("512 vectors of 64 B", "vectors", 512 * 64),
    ];
    let any = |codec: &&Mechanism| {
        cases.iter().any(|case| case.manner.kind == "coded" && case.mechanism().name() == codec.name())
    };
    let codecs: Vec<&Mechanism> = CODECS.iter().filter(any).collect();
    if codecs.is_empty() {
        return None;
    }
    let mut rows = Vec::new();
    for (step, verb) in [("encode", "encode"), ("decode", "decode")] {
        for (words, value, size) in values {
            let others = [("step", step), ("value", value)];
            let wanted = Wanted { others: &others, ..Wanted::new("coded", size, Metric::Median) };
            let found = codecs.iter().map(|codec| finder.find(&[codec.name()], wanted).cell(time));
            rows.push(std::iter::once(Cell::plain(format!("{verb} {words}"))).chain(found).collect());
        }
    }
    let heads: Vec<&str> = std::iter::once("value").chain(codecs.iter().map(|codec| codec.title())).collect();
    let heads = heads.into_iter().map(str::to_owned).collect();
    let table = Table { caption: "Median time in one process, without sending".to_owned(), heads, rows };
    Some(Part { title: "encoding and decoding alone".to_owned(), open: false, table })
}

fn zircon(cases: &[Case<'_>]) -> Document {
    #[derive(serde::Deserialize)]
    struct Row {
        benchmark: String,
        bytes: usize,
        linearised_ns: f64,
        iovec_ns: f64,
    }
    const PARTS: u64 = 2;
    let published: Vec<Row> = rows(include_str!("../data/zircon-iovec.csv"));
    let table = |finder: Finder<'_>, caption: String| {
        let mut found = 0;
        let mut out = Vec::new();
        for row in &published {
            let mut cells = vec![
                Cell::plain(format!("{}, {}", row.benchmark, bytes(row.bytes))),
                Cell::published(format!("{} → {}", time(row.linearised_ns), time(row.iovec_ns))),
            ];
            if row.benchmark.starts_with("encode") {
                // Encoding needs no second process, and is measured in one way only.
                let finder = Finder { condition: SPIN, ..finder };
                let value = if row.benchmark.contains("struct") { "fields" } else { "bytes" };
                let others = [("step", "encode"), ("value", value)];
                let wanted = Wanted { others: &others, ..Wanted::new("coded", row.bytes, Metric::Median) };
                let (linear, parts) = (finder.find(&["fidl-linear"], wanted), finder.find(&["fidl"], wanted));
                cells.push(Cell::without("no part of a transport", ""));
                cells.push(before_and_after(&linear, &parts));
                out.push(cells);
                continue;
            }
            for names in [&["seqpacket"][..], &["strait"]] {
                let find = |linear: &'static str| {
                    let others = [("linear", linear)];
                    let wanted = Wanted::new("fidl", row.bytes + FIDL_AROUND, Metric::Median);
                    let whole = finder.find(names, Wanted { others: &others, ..wanted });
                    if whole.value().is_some() {
                        return whole;
                    }
                    // Results of an earlier program have pieces without an encoding.
                    let numbers = [("parts", PARTS)];
                    let wanted = Wanted::new("vectored", row.bytes, Metric::Median);
                    finder.find(names, Wanted { numbers: &numbers, others: &others, ..wanted })
                };
                let (linear, apart) = (find("true"), find("false"));
                found += usize::from(linear.value().is_some()) + usize::from(apart.value().is_some());
                cells.push(before_and_after(&linear, &apart));
            }
            out.push(cells);
        }
        let heads =
            ["benchmark", "published: put together → gathered", "today: seqpacket socket, sendmsg", "today: Strait"];
        (Table::new(format!("Median time, {caption}"), heads, out), found)
    };
    Document {
        id: "zircon",
        title: "Zircon's gathered writes",
        source: "RFC-0010, zx_channel_iovec_t: nanoseconds before and after, Intel Core i5-7300U",
        words: "A header and a vector of bytes are two pieces of memory. Either they are put together first and written \
                as one, or written as they lie. Published is one write, wait and read on Zircon; ours is the message \
                there, encoded and decoded, and a short acknowledgement back, in two processes. The figures of encoding \
                alone are those of the crate strait-fidl; a struct of 4,096 fields is 16 structs of 256.",
        parts: parts(cases, &[BLOCK, ADAPTIVE], table).into_iter().chain(coded(cases)).collect(),
        command: command("zircon", &["strait", "seqpacket"], "--shapes vectored:2,linearised:2 --sizes 256,4096"),
    }
}

#[cfg(test)]
mod tests {
    use super::{Found, MOJO_ROUNDS, all, before_and_after, times_faster};

    #[test]
    fn ratios_and_sums_of_disturbed_figures_are_marked() {
        let (sure, disturbed) = (Found::Value(2.0, false), Found::Value(4.0, true));
        assert_eq!(times_faster(&sure, &sure).note, "");
        assert_eq!(times_faster(&disturbed, &sure).note, "disturbed");
        assert_eq!(before_and_after(&sure, &disturbed).note, "disturbed");
        let sum = Found::Value(0.0, false).plus(&sure).plus(&disturbed);
        assert!(sum.value() == Some(6.0) && sum.is_doubtful());
        assert_eq!(sum.plus(&Found::Nothing).value(), None);
    }

    #[test]
    fn the_published_figures_are_all_there() {
        let documents = all(&[]);
        let rows = |id: &str| {
            let document = documents.iter().find(|document| document.id == id).unwrap();
            document.parts.iter().map(|part| part.table.rows.len()).sum::<usize>()
        };
        assert_eq!(rows("posix"), 15);
        assert_eq!(rows("mach"), 15);
        assert_eq!(rows("mojo"), 18 + 8);
        assert_eq!(rows("zircon"), 5);
        assert_eq!(MOJO_ROUNDS, 50_000.0);
    }
}
