//! `strait bench ends`: the cost of sending channel ends, and of many channels.

mod holding;
mod many;
pub(super) mod order;
mod process;
mod sending;
mod stream;
pub(super) mod talk;
mod waking;
mod within;

use crate::bars::contest::{self, Contest, Kind, Row};
use crate::bars::{Bar, Sense, Suite};
use crate::placement::{Cpus, Placement};
use crate::work::Wait;

use self::order::{Order, Task};

pub use self::process::main;

/// Time budget in seconds: no repetition begins that would end later.
const BUDGET: f64 = 600.0;

/// The explanation below the table of the suite `ends`.
pub const HOW: &str = "\
A single end or descriptor is timed one way: from before the call that sends it until the other process has received
the descriptor, or a message through the end. With a third process, the second holds the other end of the channel, and
receives a message that the third sends through its end at once.
Channels made, sent and used are timed from before the first is made until a message through each was received. Ends
sent back and forth are timed until the last is back; each crossing counts. The receiving end of the stream moves back
and forth between two processes on one core; the sender has the other core.
Times of many channels or messages are means over the run, with percentiles of stretches of about a hundred. CPU is
the processor time of all processes for each. The probe is a round trip of two empty flag lines between the same
processes. Memory is that of the pages in use.";

/// The amount of work in a run of the suite `ends`.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The number of messages in a run that times each message by itself.
    count: u64,
    /// The number by which all other counts (thousands and more) are divided.
    divisor: usize,
}

impl Scale {
    /// The amount of work for measuring.
    pub const FULL: Self = Self { count: 4000, divisor: 1 };
    /// The amount of work for tests: enough to see that the suite works.
    pub const QUICK: Self = Self { count: 50, divisor: 100 };

    fn of(self, number: usize) -> usize {
        (number / self.divisor).max(1)
    }
}

/// Runs the suite `ends`. Returns its rows, and whether a run broke. With `only`, just the rows whose work contains
/// it are measured.
pub fn run(repetitions: usize, only: Option<&str>, cpus: Cpus, scale: Scale) -> (Suite, bool) {
    contest::run("ends", contests(cpus, scale), repetitions, only, BUDGET)
}

/// Returns the contests of the suite `ends`, with the target of each row.
fn contests(cpus: Cpus, scale: Scale) -> Vec<Contest<Order>> {
    let mut all = Vec::new();
    sent(&mut all, cpus, scale);
    third(&mut all, cpus.same(), scale);
    moving_stream(&mut all, cpus, scale);
    beside(&mut all, cpus, scale);
    held(&mut all, scale);
    woken(&mut all, cpus, scale);
    opened(&mut all, cpus, scale);
    passed(&mut all, cpus, scale);
    within(&mut all, cpus, scale);
    counts(&mut all, cpus, scale);
    all
}

/// Returns the two arrangements in which two processes are measured: placement, way of waiting, and their
/// description.
fn arrangements(cpus: Cpus) -> [(Option<Placement>, Wait, &'static str); 2] {
    [(cpus.two(), Wait::Spin, "spinning, two cores"), (Some(cpus.same()), Wait::Block, "blocking, same core")]
}

fn contest(
    all: &mut Vec<Contest<Order>>,
    placement: Option<Placement>,
    wait: Wait,
    tasks: impl IntoIterator<Item = Task>,
    rows: Vec<Row>,
) {
    let runs = placement.map(|placement| tasks.into_iter().map(|task| Order { task, wait, placement }).collect());
    all.push(Contest { runs: runs.unwrap_or_default(), rows, idle: false });
}

fn times(work: &str, run: usize, reference: &str, against: usize, limit: f64) -> Row {
    Row { bar: Bar::new(work, "ns", reference, Sense::AtMost, limit), kind: Kind::Times(run, vec![against]) }
}

fn told(work: &str, run: usize, name: &'static str, unit: &str, remark: &str) -> Row {
    Row { bar: Bar::told(work, unit, remark), kind: Kind::Found(run, name) }
}

/// Returns a row that compares the additional result `each` with the time `limit` in nanoseconds. `others` is the
/// time of ipcz in microseconds, for a remark.
fn limit(work: &str, reference: &str, limit: f64, others: f64) -> Row {
    let bar = Bar::new(work, "ns", reference, Sense::AtMost, 1.0).noted(format!("ipcz takes {others} µs"));
    Row { bar, kind: Kind::Limit(0, "each", limit) }
}

/// The description of the reference for sending an end: a descriptor over a channel.
const DESCRIPTOR: &str = "one descriptor sent over a channel";
/// The description of the reference for sending an end: a descriptor over a bare socket.
const BARE_DESCRIPTOR: &str = "one descriptor sent over a bare seqpacket socket";

fn sent(all: &mut Vec<Contest<Order>>, cpus: Cpus, scale: Scale) {
    let count = scale.count;
    for (placement, wait, how) in arrangements(cpus) {
        let work = format!("end sent to the peer and used there, {how}");
        contest(
            all,
            placement,
            wait,
            [Task::Give { count }, Task::Descriptor { bare: false, count }, Task::Descriptor { bare: true, count }],
            vec![
                times(&work, 0, DESCRIPTOR, 1, 2.0),
                times(&work, 0, BARE_DESCRIPTOR, 2, 2.0),
                told(&format!("– the call that sends the end, {how}"), 0, "sending", "ns", ""),
            ],
        );
    }
}

fn third(all: &mut Vec<Contest<Order>>, same: Placement, scale: Scale) {
    let count = scale.count;
    let work = "end sent to a third process and used there, blocking, same core";
    contest(
        all,
        Some(same),
        Wait::Block,
        [Task::Acquaint { count }, Task::Descriptor { bare: false, count }, Task::Descriptor { bare: true, count }],
        vec![times(work, 0, DESCRIPTOR, 1, 4.0), times(work, 0, BARE_DESCRIPTOR, 2, 4.0)],
    );
}

/// Adds the contest of a stream whose receiving end moves, against one whose end stays.
///
/// The end moves between two processes other than the sender's. In the sender's own process it would receive without
/// another process, and its backlog would never have left that process.
fn moving_stream(all: &mut Vec<Contest<Order>>, cpus: Cpus, scale: Scale) {
    let stretch = scale.of(10_000) as u64;
    let work = format!("stream of 56 B whose receiving end moves every {stretch}, adaptive, two cores");
    let task = |moves| Task::Stream { moves, stretches: scale.of(300).max(20) as u64, stretch };
    contest(
        all,
        cpus.two(),
        Wait::Adaptive,
        [task(true), task(false)],
        vec![
            Row {
                bar: Bar::new(&work, "M/s", "a stream to an end that stays", Sense::AtLeast, 0.9),
                kind: Kind::Paces(1),
            },
            told("– a stretch with its move", 0, "stretch", "ns", "median"),
            told("– a stretch without a move", 1, "stretch", "ns", "median"),
        ],
    );
}

fn beside(all: &mut Vec<Contest<Order>>, cpus: Cpus, scale: Scale) {
    let idle = scale.of(100_000);
    for (placement, wait, how) in arrangements(cpus) {
        let work = format!("round trip 56 B beside {idle} idle channels, {how}");
        contest(
            all,
            placement,
            wait,
            [Task::Beside { idle }, Task::Beside { idle: 0 }],
            vec![times(&work, 0, "without idle channels", 1, 1.1)],
        );
    }
}

fn held(all: &mut Vec<Contest<Order>>, scale: Scale) {
    let channels = scale.of(100_000);
    // The worst repetition is judged.
    let count = |work: &str, unit, bar, found| Row {
        bar: Bar::new(work, unit, "none", Sense::AtMost, bar),
        kind: Kind::Count(found),
    };
    contest(
        all,
        Some(Placement::Free),
        Wait::Adaptive,
        [Task::Hold { channels }],
        vec![
            count(
                &format!("descriptors that {channels} channels use, more than one channel does"),
                "descriptors",
                0.0,
                |report| report.found.get("descriptors").copied(),
            ),
            count("shared memory of an idle channel", "B", 1024.0, |report| report.found.get("shared").copied()),
            count("private memory of an idle channel, larger side", "B", 512.0, |report| {
                report.found.get("private").copied()
            }),
            told("– allocated memory alone", 0, "heap", "B", ""),
        ],
    );
}

fn woken(all: &mut Vec<Contest<Order>>, cpus: Cpus, scale: Scale) {
    let members = scale.of(100_000);
    for (placement, how) in [(cpus.two(), "two cores"), (Some(cpus.same()), "same core")] {
        let work = format!("a message wakes a thread in a wait set of {members}, one of them active, {how}");
        contest(
            all,
            placement,
            Wait::Block,
            [Task::Wake { members }, Task::Wake { members: 1 }],
            vec![times(&work, 0, "a wait set with one member", 1, 1.2)],
        );
    }
}

fn opened(all: &mut Vec<Contest<Order>>, cpus: Cpus, scale: Scale) {
    let channels = scale.of(10_000);
    for (placement, wait, how) in arrangements(cpus) {
        for (batch, each) in [(1, "1 in a message"), (64, "64 in a message")] {
            let work = format!("{channels} channels made, sent and used, {each}, {how}");
            contest(
                all,
                placement,
                wait,
                [Task::Open { channels, batch }],
                vec![
                    limit(&work, "4 µs a channel", 4000.0, 4.1),
                    told(&format!("– making and sending alone, {each}, {how}"), 0, "sending", "ns", "a channel"),
                    told(&format!("– and then closing, {each}, {how}"), 0, "closing", "ns", "a channel, at one side"),
                ],
            );
        }
    }
}

fn passed(all: &mut Vec<Contest<Order>>, cpus: Cpus, scale: Scale) {
    let crossings = scale.of(200_000);
    for (placement, wait, how) in arrangements(cpus) {
        for (ends, window, each) in [
            (1, 1, "1 in a message, 1 message in flight"),
            (64, 1, "64 in a message, 1 message in flight"),
            (64, 16, "64 in a message, 16 messages in flight"),
        ] {
            let work = format!("{crossings} ends sent back and forth, {each}, {how}");
            contest(
                all,
                placement,
                wait,
                [Task::Pass { crossings, ends, window }],
                vec![limit(&work, "4 µs for each crossing of an end", 4000.0, 3.9)],
            );
        }
    }
}

/// Adds the times of making and using channels within one process. They have no target.
fn within(all: &mut Vec<Contest<Order>>, cpus: Cpus, scale: Scale) {
    let channels = scale.of(100_000);
    let row = |work: &str, name| told(work, 0, name, "ns", "within one process");
    contest(
        all,
        Some(cpus.same()),
        Wait::Adaptive,
        [Task::Within { channels }],
        vec![
            row("a channel made", "making"),
            row("an end sent and received", "sending"),
            row("a message through a new channel, and received", "first"),
            row("a second message", "second"),
            row("a channel closed, both ends", "closing"),
        ],
    );
}

/// Adds the time of a channel if there are 1, 10, 1,000 and 100,000 of them. These times have no target.
fn counts(all: &mut Vec<Contest<Order>>, cpus: Cpus, scale: Scale) {
    for channels in [1, 10, 1000, 100_000].map(|channels| if channels > 1000 { scale.of(channels) } else { channels }) {
        contest(
            all,
            Some(cpus.same()),
            Wait::Block,
            [Task::Within { channels }],
            vec![
                told(
                    &format!("{channels} channels, made within one process"),
                    0,
                    "making",
                    "ns",
                    "each, in a fresh process",
                ),
                told(&format!("{channels} channels, used for the first time"), 0, "first", "ns", "each"),
            ],
        );
        let batch = 64;
        contest(
            all,
            cpus.two(),
            Wait::Spin,
            [Task::Open { channels, batch }],
            vec![told(
                &format!("{channels} channels, made, sent to the peer and used"),
                0,
                "each",
                "ns",
                "each, in fresh processes, spinning, two cores",
            )],
        );
    }
}
