//! `strait bench ends`: what it costs that ends of channels travel.

mod many;
mod order;
mod process;
mod sending;
mod talk;

use crate::bars::{Bar, Sense, Suite};
use crate::contest::{self, Contest, Kind, Row};
use crate::placement::{Cpus, Placement};
use crate::work::Wait;

use self::order::{Order, Task};

pub(crate) use self::process::main;

/// No repetition is begun that would end later, in seconds.
const BUDGET: f64 = 600.0;

/// How much is done in a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// Messages of which each is timed.
    count: u64,
    /// Everything that is counted in thousands is divided by this.
    divisor: usize,
}

impl Scale {
    /// What is measured.
    pub(crate) const FULL: Self = Self { count: 4000, divisor: 1 };
    /// Enough to see that it works.
    pub(crate) const QUICK: Self = Self { count: 50, divisor: 100 };

    fn of(self, number: usize) -> usize {
        (number / self.divisor).max(1)
    }
}

/// Runs the suite, and says whether a run broke.
pub(crate) fn run(repetitions: usize, only: Option<&str>, cpus: Cpus, scale: Scale) -> (Suite, bool) {
    contest::run("ends", contests(cpus, scale), repetitions, only, BUDGET)
}

/// The table of what must be reached.
fn contests(cpus: Cpus, scale: Scale) -> Vec<Contest<Order>> {
    let mut all = Vec::new();
    sent(&mut all, cpus, scale);
    third(&mut all, cpus.same(), scale);
    opened(&mut all, cpus, scale);
    passed(&mut all, cpus, scale);
    all
}

/// The two arrangements in which two processes are measured.
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

fn told(work: String, run: usize, name: &'static str, remark: &str) -> Row {
    Row { bar: Bar::told(&work, "ns", remark), kind: Kind::Found(run, name) }
}

fn limit(work: &str, run: usize, reference: &str, limit: f64) -> Row {
    Row { bar: Bar::new(work, "ns", reference, Sense::AtMost, 1.0), kind: Kind::Limit(run, limit) }
}

/// What an end is compared with.
const DESCRIPTOR: &str = "a message with one descriptor over a channel, one way";
const BARE_DESCRIPTOR: &str = "a message with one descriptor over a bare seqpacket socket, one way";

fn sent(all: &mut Vec<Contest<Order>>, cpus: Cpus, scale: Scale) {
    let count = scale.count;
    for (placement, wait, how) in arrangements(cpus) {
        let work = format!("an end sent to the peer, to the first message through it, {how}");
        contest(
            all,
            placement,
            wait,
            [Task::Give { count }, Task::Descriptor { bare: false, count }, Task::Descriptor { bare: true, count }],
            vec![
                times(&work, 0, DESCRIPTOR, 1, 2.0),
                times(&work, 0, BARE_DESCRIPTOR, 2, 2.0),
                told(format!("of that the call that sends, {how}"), 0, "sending", ""),
            ],
        );
    }
}

fn third(all: &mut Vec<Contest<Order>>, same: Placement, scale: Scale) {
    let count = scale.count;
    let work = "an end sent to a third process, to the first message from there to the other end, blocking, same core";
    contest(
        all,
        Some(same),
        Wait::Block,
        [Task::Acquaint { count }, Task::Descriptor { bare: false, count }, Task::Descriptor { bare: true, count }],
        vec![times(work, 0, DESCRIPTOR, 1, 4.0), times(work, 0, BARE_DESCRIPTOR, 2, 4.0)],
    );
}

fn opened(all: &mut Vec<Contest<Order>>, cpus: Cpus, scale: Scale) {
    let channels = scale.of(10_000);
    for (placement, wait, how) in arrangements(cpus) {
        for (batch, each) in [(1, "one end in a message"), (64, "64 ends in a message")] {
            let work = format!("{channels} channels made, an end sent and a message through it, {each}, {how}");
            contest(
                all,
                placement,
                wait,
                [Task::Open { channels, batch }],
                vec![
                    limit(&work, 0, "4 µs a channel", 4000.0),
                    told(format!("of that making and sending, {each}, {how}"), 0, "sending", "a channel"),
                    told(format!("and then closing, {each}, {how}"), 0, "closing", "a channel, one side"),
                ],
            );
        }
    }
}

fn passed(all: &mut Vec<Contest<Order>>, cpus: Cpus, scale: Scale) {
    let crossings = scale.of(200_000);
    for (placement, wait, how) in arrangements(cpus) {
        for (ends, window, each) in [
            (1, 1, "one in a message, one message under way"),
            (64, 1, "64 in a message, one message under way"),
            (64, 16, "64 in a message, 16 messages under way"),
        ] {
            let work = format!("{crossings} ends passed to and fro, {each}, {how}");
            contest(
                all,
                placement,
                wait,
                [Task::Pass { crossings, ends, window }],
                vec![limit(&work, 0, "4 µs for each end that crosses once", 4000.0)],
            );
        }
    }
}
