//! `strait bench ends`: the cost of sending channel ends, and of many channels.

use super::bar::{Bar, Sense, Suite};
use super::contest::{self, Contest, Kind};
use crate::placement::{Cpus, Placement};
use crate::shape::{Shape, Task};
use crate::work::{Extent, Mechanism, Wait, Work};

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
    /// The number of messages in a run with single timing of each message.
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

/// Runs the suite `ends`. Returns its rows, and whether a run broke. With `only`, measures just the rows with this text
/// in their work.
pub fn run(repetitions: usize, only: Option<&str>, cpus: Cpus, scale: Scale) -> (Suite, bool) {
    contest::run("ends", contests(cpus, scale), repetitions, only, BUDGET)
}

/// Returns the contests of the suite `ends`, with the target of each row.
fn contests(cpus: Cpus, scale: Scale) -> Vec<Contest> {
    let mut all = Vec::new();
    sent(&mut all, cpus, scale.count);
    moving_stream(&mut all, cpus, scale);
    beside(&mut all, cpus, scale.of(100_000));
    all.push(held(scale.of(100_000)));
    woken(&mut all, cpus, scale.of(100_000));
    opened(&mut all, cpus, scale.of(10_000));
    passed(&mut all, cpus, scale.of(200_000));
    within(&mut all, cpus, scale);
    all
}

/// Returns the two arrangements in which two processes are measured: placement, way of waiting, and their
/// description.
fn arrangements(cpus: Cpus) -> [(Option<Placement>, Wait, &'static str); 2] {
    [(cpus.two(), Wait::Spin, "spinning, two cores"), (Some(cpus.same()), Wait::Block, "blocking, same core")]
}

/// Returns a contest of these tasks.
fn tasks<const N: usize>(placement: Option<Placement>, wait: Wait, tasks: [Task; N]) -> Contest {
    Contest::new(placement, |place| tasks.map(|task| Work::objects(task, wait, place)).into())
}

/// Returns a contest of the task and of sending a descriptor, over a channel and over a bare socket. All are timed one
/// way.
fn against_descriptors(placement: Option<Placement>, wait: Wait, task: Task, count: u64) -> Contest {
    let descriptor = |mechanism, place| Work {
        shape: Shape::Wake { after: 0 },
        extent: Extent::Count { warm: count.min(500), steady: count },
        ..Work::round_trip(mechanism, 56, wait, place)
    };
    Contest::new(placement, |place| {
        vec![
            Work::objects(task, wait, place),
            descriptor(Mechanism::STRAIT_RIGHTS, place),
            descriptor(Mechanism::RIGHTS, place),
        ]
    })
}

/// The description of the reference for sending an end: a descriptor over a channel.
const DESCRIPTOR: &str = "one descriptor sent over a channel";
/// The description of the reference for sending an end: a descriptor over a bare socket.
const BARE_DESCRIPTOR: &str = "one descriptor sent over a bare seqpacket socket";

fn sent(all: &mut Vec<Contest>, cpus: Cpus, count: u64) {
    for (placement, wait, how) in arrangements(cpus) {
        let work = format!("end sent to the peer and used there, {how}");
        all.push(
            against_descriptors(placement, wait, Task::Give { count }, count)
                .times(&work, DESCRIPTOR, &[1], 2.0)
                .times(&work, BARE_DESCRIPTOR, &[2], 2.0)
                .told(&format!("– the call that sends the end, {how}"), 0, "sending", "ns", ""),
        );
    }
    let work = "end sent to a third process and used there, blocking, same core";
    all.push(
        against_descriptors(Some(cpus.same()), Wait::Block, Task::Acquaint { count }, count)
            .times(work, DESCRIPTOR, &[1], 4.0)
            .times(work, BARE_DESCRIPTOR, &[2], 4.0),
    );
}

/// Adds the contest of a stream with a moving receiving end against a stream with a fixed end.
///
/// The end moves between two processes other than the sender's. In the sender's own process, the end would receive
/// without another process, and its backlog would never have left the process.
fn moving_stream(all: &mut Vec<Contest>, cpus: Cpus, scale: Scale) {
    let stretch = scale.of(10_000) as u64;
    let work = format!("stream of 56 B whose receiving end moves every {stretch}, adaptive, two cores");
    let task = |moves| Task::Stream { moves, stretches: scale.of(300).max(20) as u64, stretch };
    all.push(
        tasks(cpus.two(), Wait::Adaptive, [task(true), task(false)])
            .paces(&work, "a stream to an end that stays", 0.9)
            .told("– a stretch with its move", 0, "stretch", "ns", "median")
            .told("– a stretch without a move", 1, "stretch", "ns", "median"),
    );
}

fn beside(all: &mut Vec<Contest>, cpus: Cpus, idle: usize) {
    for (placement, wait, how) in arrangements(cpus) {
        let work = format!("round trip 56 B beside {idle} idle channels, {how}");
        all.push(tasks(placement, wait, [Task::Beside { idle }, Task::Beside { idle: 0 }]).times(
            &work,
            "without idle channels",
            &[1],
            1.1,
        ));
    }
}

/// Returns the contest of the memory and descriptors that idle channels hold. The worst repetition is judged.
fn held(channels: usize) -> Contest {
    let descriptors = format!("descriptors that {channels} channels use, more than one channel does");
    tasks(Some(Placement::Free), Wait::Adaptive, [Task::Hold { channels }])
        .counts(&descriptors, "descriptors", 0.0, |report| report.found.get("descriptors").copied())
        .counts("shared memory of an idle channel", "B", 1024.0, |report| report.found.get("shared").copied())
        .counts("private memory of an idle channel, larger side", "B", 512.0, |report| {
            report.found.get("private").copied()
        })
        .told("– allocated memory alone", 0, "heap", "B", "")
}

fn woken(all: &mut Vec<Contest>, cpus: Cpus, members: usize) {
    for (placement, how) in [(cpus.two(), "two cores"), (Some(cpus.same()), "same core")] {
        let work = format!("a message wakes a thread in a wait set of {members}, one of them active, {how}");
        all.push(tasks(placement, Wait::Block, [Task::Wake { members }, Task::Wake { members: 1 }]).times(
            &work,
            "a wait set with one member",
            &[1],
            1.2,
        ));
    }
}

/// Adds a row that compares the additional result `each` with 4 µs. `others` is the time of ipcz in microseconds, for a
/// remark.
fn at_most_4_us(contest: Contest, work: &str, reference: &str, others: f64) -> Contest {
    let bar = Bar::new(work, "ns", reference, Sense::AtMost, 1.0)
        .noted(format!("ipcz took {others} µs in November 2026 on 2 × Intel Xeon 2.3 GHz, virtual"));
    contest.row(bar, Kind::Limit(0, "each", 4000.0))
}

fn opened(all: &mut Vec<Contest>, cpus: Cpus, channels: usize) {
    for (placement, wait, how) in arrangements(cpus) {
        for (batch, each) in [(1, "1 in a message"), (64, "64 in a message")] {
            let work = format!("{channels} channels made, sent and used, {each}, {how}");
            let contest = tasks(placement, wait, [Task::Open { channels, batch }]);
            all.push(
                at_most_4_us(contest, &work, "4 µs a channel", 4.1)
                    .told(&format!("– making and sending alone, {each}, {how}"), 0, "sending", "ns", "a channel")
                    .told(&format!("– and then closing, {each}, {how}"), 0, "closing", "ns", "a channel, at one side"),
            );
        }
    }
}

fn passed(all: &mut Vec<Contest>, cpus: Cpus, crossings: usize) {
    for (placement, wait, how) in arrangements(cpus) {
        for (ends, window, each) in [
            (1, 1, "1 in a message, 1 message in flight"),
            (64, 1, "64 in a message, 1 message in flight"),
            (64, 16, "64 in a message, 16 messages in flight"),
        ] {
            let work = format!("{crossings} ends sent back and forth, {each}, {how}");
            let contest = tasks(placement, wait, [Task::Pass { crossings, ends, window }]);
            all.push(at_most_4_us(contest, &work, "4 µs for each crossing of an end", 3.9));
        }
    }
}

/// Adds the times of making and using channels within one process, and the time of a channel among 1, 10, 1,000 and
/// 100,000 channels. These times have no target.
fn within(all: &mut Vec<Contest>, cpus: Cpus, scale: Scale) {
    let same = Some(cpus.same());
    let rows = [
        ("a channel made", "making"),
        ("an end sent and received", "sending"),
        ("a message through a new channel, and received", "first"),
        ("a second message", "second"),
        ("a channel closed, both ends", "closing"),
    ];
    let contest = tasks(same, Wait::Adaptive, [Task::Within { channels: scale.of(100_000) }]);
    all.push(rows.into_iter().fold(contest, |all, (work, name)| all.told(work, 0, name, "ns", "within one process")));

    for channels in [1, 10, 1000, scale.of(100_000)] {
        let made = format!("{channels} channels, made within one process");
        let used = format!("{channels} channels, used for the first time");
        all.push(
            tasks(same, Wait::Block, [Task::Within { channels }])
                .told(&made, 0, "making", "ns", "each, in a fresh process")
                .told(&used, 0, "first", "ns", "each"),
        );
        let work = format!("{channels} channels, made, sent to the peer and used");
        all.push(tasks(cpus.two(), Wait::Spin, [Task::Open { channels, batch: 64 }]).told(
            &work,
            0,
            "each",
            "ns",
            "each, in fresh processes, spinning, two cores",
        ));
    }
}
