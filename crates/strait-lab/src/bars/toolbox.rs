//! `strait bench toolbox`: the objects that are built on channels, and Mojo's ping-pongs, each compared with a floor.

use super::bar::{Bar, Sense, Suite};
use super::contest::{self, Contest, Kind};
use crate::placement::{Cpus, Placement};
use crate::shape::{By, Relay, Shape, Task};
use crate::stats::bytes;
use crate::suite::MOJO;
use crate::work::{Extent, Mechanism, Wait, Work};

/// Time budget in seconds: no repetition begins that would end later.
const BUDGET: f64 = 600.0;

/// The explanation below the table of the suite `toolbox`.
pub const HOW: &str = "\
Ping-pongs are Mojo's, at its five sizes. With a hop, each side has a thread for input and output and a thread for
handlers, with a queue (a mutex and a condition variable) in each direction: a round trip goes through four hops. A
bare hop is half of the way to another thread and back. A dispatcher of Strait receives in the thread of its handlers,
which needs no hop. With a pump, another thread receives for it: a round trip goes through two hops, since handlers
send by themselves.
The figures of ipcz are constants: they were measured on another machine (2 × Intel Xeon 2.3 GHz, virtual, Linux 6.18,
November 2026), together with a bare stream socket. So the ratio to that socket is compared, which is measured here in
the same seconds. A call is a request of 64 bytes and a reply of 64 bytes. All
calling threads are on one processor, and the server is one thread. A piece of a data pipe is 64 KiB. A message
through another process is timed from before it is written until the third process has checked each page.
Messages through another process and values have no outside target: a ratio of 1 means no difference. A test counts
the copies of a message: cargo test -p strait-lab --test copies.";

/// The name, in a row, of a ratio of ipcz to a bare stream socket, not measured in this run.
const IPCZ: &str = "ipcz, a constant of November 2026 from 2 × Intel Xeon";

/// The amount of work in a run of the suite `toolbox`.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// The number by which all counts are divided.
    divisor: u64,
}

impl Scale {
    /// The amount of work for measuring.
    pub const FULL: Self = Self { divisor: 1 };
    /// The amount of work for tests: enough to see that the suite works.
    pub const QUICK: Self = Self { divisor: 100 };

    fn of(self, number: u64) -> u64 {
        (number / self.divisor).max(1)
    }
}

/// Runs the suite `toolbox`. Returns its rows, and whether a run broke. With `only`, measures just the rows whose
/// work contains `only`.
pub fn run(repetitions: usize, only: Option<&str>, cpus: Cpus, scale: Scale) -> (Suite, bool) {
    contest::run("toolbox", contests(cpus, scale), repetitions, only, BUDGET)
}

/// Returns the contests of the suite `toolbox`, with the target of each row.
fn contests(cpus: Cpus, scale: Scale) -> Vec<Contest> {
    let mut all = Vec::new();
    ping_pongs(&mut all, cpus, scale);
    hops(&mut all, cpus, scale);
    dispatched(&mut all, cpus, scale.of(10_000));
    ipcz(&mut all, cpus, scale);
    calls(&mut all, cpus, scale.of(300));
    all.push(bulk(cpus, scale.of(20_000)));
    tasks(&mut all, cpus, scale.of(20_000));
    relayed(&mut all, cpus, scale);
    values(&mut all, cpus, scale);
    all
}

/// Returns a contest of two works with different arguments of `run`.
fn two<T>(placement: Option<Placement>, [one, other]: [T; 2], run: impl Fn(T, Placement) -> Work) -> Contest {
    Contest::new(placement, |place| vec![run(one, place), run(other, place)])
}

/// Returns the work of a ping-pong with 10,000 round trips, divided as the scale says.
fn ping_pong(mechanism: Mechanism, shape: Shape, size: usize, wait: Wait, place: Placement, scale: Scale) -> Work {
    let steady = scale.of(10_000);
    let extent = Extent::Count { warm: steady / 10, steady };
    Work { shape, extent, ..Work::round_trip(mechanism, size, wait, place) }
}

fn ping_pongs(all: &mut Vec<Contest>, cpus: Cpus, scale: Scale) {
    for (placement, wait, how, floor, what, limit) in [
        (cpus.two(), Wait::Spin, "spinning, two cores", Mechanism::FLAG, "flag + memcpy in and out", 1.3),
        (Some(cpus.same()), Wait::Block, "blocking, same core", Mechanism::FUTEX, "bare futex ping-pong", 1.15),
        (cpus.two(), Wait::Block, "blocking, two cores", Mechanism::FUTEX, "bare futex ping-pong", 1.15),
    ] {
        for size in MOJO {
            let shape = Shape::PingPong { reply: size };
            let run = |mechanism, place| ping_pong(mechanism, shape, size, wait, place, scale);
            let of = format!("{}, {how}", bytes(size));
            all.push(
                two(placement, [Mechanism::STRAIT, floor], run)
                    .times(&format!("ping-pong {of}"), what, &[1], limit)
                    .counts(&format!("– allocations, {of}"), "allocations", 0.0, |report| {
                        Some(report.allocations() as f64)
                    }),
            );
        }
    }
}

fn hops(all: &mut Vec<Contest>, cpus: Cpus, scale: Scale) {
    for (placement, how) in [(Some(cpus.same()), "same core"), (cpus.two(), "two cores")] {
        for size in MOJO {
            let run = |shape, place| ping_pong(Mechanism::STRAIT, shape, size, Wait::Block, place, scale);
            let shapes = [Shape::Hop { direct: false }, Shape::PingPong { reply: size }];
            let work = format!("each of four hops, added to a ping-pong {}, blocking, {how}", bytes(size));
            all.push(two(placement, shapes, run).hops(&work, 4.0));
        }
    }
}

/// Adds the contests of handlers called by a dispatcher in its thread, on each side. The dispatcher receives by itself,
/// or by a pump in another thread.
fn dispatched(all: &mut Vec<Contest>, cpus: Cpus, trips: u64) {
    for (placement, how) in [(Some(cpus.same()), "same core"), (cpus.two(), "two cores")] {
        for size in [MOJO[0], MOJO[3]] {
            for (by, what) in [(By::Dispatcher, "dispatchers"), (By::Pump, "dispatchers with a pump")] {
                let run = |by, place| Work::objects(Task::Dispatched { by, size, trips }, Wait::Block, place);
                let work = format!("each of two {what}, added to a round trip {}, blocking, {how}", bytes(size));
                all.push(two(placement, [by, By::Itself], run).hops(&work, 2.0));
            }
        }
    }
}

/// Adds the contests against ipcz's best figures, each as a ratio to a bare socket in the same seconds. When ipcz was
/// measured, the socket itself took 4.3 µs blocking and 3.5 µs spinning, and carried 1.32 million messages per
/// second.
fn ipcz(all: &mut Vec<Contest>, cpus: Cpus, scale: Scale) {
    let socket = "a bare stream socket";
    for (placement, wait, how, limit, theirs) in [
        (Some(cpus.same()), Wait::Block, "blocking, same core", 3.5 / 4.3, 7.0 / 4.3),
        (cpus.two(), Wait::Spin, "spinning, two cores", 0.5 / 3.5, 5.5 / 3.5),
    ] {
        let run = |mechanism, place| ping_pong(mechanism, Shape::PingPong { reply: 64 }, 64, wait, place, scale);
        let work = format!("round trip 64 B, {how}");
        let bar = Bar::new(&work, "ns", socket, Sense::AtMost, round(limit)).noted(format!("{IPCZ}: {theirs:.2}"));
        all.push(two(placement, [Mechanism::STRAIT, Mechanism::STREAM], run).row(bar, Kind::Times(0, vec![1])));
    }
    let steady = scale.of(1_000_000);
    let run = |(mechanism, wait), place| {
        let extent = Extent::Count { warm: steady / 10, steady };
        Work { extent, ..Work::one_way(mechanism, 64, 1, wait, place) }
    };
    let bar = Bar::new("stream of 64 B, two cores", "M/s", socket, Sense::AtLeast, round(8.0 * 0.7 / 1.32));
    let runs = [(Mechanism::STRAIT, Wait::Adaptive), (Mechanism::STREAM, Wait::Block)];
    all.push(two(cpus.two(), runs, run).row(bar.noted(format!("{IPCZ}: 0.53")), Kind::Paces(1)));
}

fn round(ratio: f64) -> f64 {
    (ratio * 100.0).round() / 100.0
}

/// Adds the contests of calls from eight threads against calls from one. A single thread that spins, or shares a core
/// with its server, already uses all processor time. A single thread that sleeps on two cores leaves most of the time
/// unused, so more is expected of eight threads there.
fn calls(all: &mut Vec<Contest>, cpus: Cpus, millis: u64) {
    for (placement, wait, how, limit) in [
        (Some(cpus.same()), Wait::Block, "blocking, same core", 0.8),
        (cpus.two(), Wait::Spin, "spinning, two cores", 0.8),
        (cpus.two(), Wait::Block, "blocking, two cores", 0.8 * 8.0),
    ] {
        let run = |threads, place| Work::objects(Task::Call { threads, millis }, wait, place);
        let work = format!("calls 64 B from 8 threads on one end, {how}");
        all.push(two(placement, [8, 1], run).paces(&work, "from one thread", round(limit)));
    }
}

fn bulk(cpus: Cpus, pieces: u64) -> Contest {
    let run = |bare, place| Work::objects(Task::Bulk { bare, pieces }, Wait::Spin, place);
    two(cpus.two(), [false, true], run).paces(
        "data pipe, pieces of 64 KiB, two-phase, warm, two cores",
        "one memcpy in, one out, and a flag",
        0.9,
    )
}

fn tasks(all: &mut Vec<Contest>, cpus: Cpus, trips: u64) {
    for (placement, how) in [(Some(cpus.same()), "same core"), (cpus.two(), "two cores")] {
        let run = |bare, place| Work::objects(Task::Tasks { bare, trips }, Wait::Adaptive, place);
        let work = format!("round trip 64 B in tokio tasks, {how}");
        // A program without the feature `suites` leaves these rows out.
        if !run(false, Placement::Free).shape.is_built() {
            continue;
        }
        all.push(two(placement, [false, true], run).times(&work, "round trips over tokio's UnixStream", &[1], 0.7));
    }
}

/// Adds the contests of messages that another process passes on: forwarding against receiving and sending. No target
/// is set, so forwarding only must not be slower (or, if it copies as often, about as fast).
fn relayed(all: &mut Vec<Contest>, cpus: Cpus, scale: Scale) {
    for (size, count) in [(1 << 20, 200), (16 << 20, 20)] {
        let run = |how, place| Work::objects(Task::Relayed { how, size, count: scale.of(count) }, Wait::Block, place);
        let runs =
            |place| [Relay::Sealed, Relay::View, Relay::Forwarded, Relay::Sent].map(|how| run(how, place)).into();
        // Forwarding an unsealed message makes as many copies as sending the message.
        let rows = [("sealed and forwarded", 1.0), ("forwarded in place", 1.0), ("forwarded", 1.1)];
        let row = |contest: Contest, (index, (how, limit)): (usize, (&str, f64))| {
            let work = format!("{} through another process, {how}, two cores", bytes(size));
            contest.times_of(index, &work, "received there, and sent", &[3], limit)
        };
        all.push(rows.into_iter().enumerate().fold(Contest::new(cpus.two(), runs), row));
    }
}

/// Adds the contests of values sent within one process against sending the bytes.
fn values(all: &mut Vec<Contest>, cpus: Cpus, scale: Scale) {
    for (size, count) in [(64, 100_000), (64 << 10, 20_000), (1 << 20, 1000)] {
        let run = |as_bytes, place| {
            Work::objects(Task::Values { as_bytes, size, count: scale.of(count) }, Wait::Adaptive, place)
        };
        let work = format!("a value that owns {}, within a process", bytes(size));
        all.push(two(Some(cpus.same()), [false, true], run).times(&work, "its bytes sent and received", &[1], 1.0));
    }
}

#[cfg(test)]
mod tests {
    use super::{Scale, contests};
    use crate::placement::Cpus;

    #[test]
    fn every_run_can_be_done() {
        for contest in contests(Cpus::named(&[0, 1]).unwrap(), Scale::FULL) {
            assert!(contest.runs.len() >= 2 && !contest.rows.is_empty());
            for work in &contest.runs {
                assert_eq!(work.unfit(), None, "{work:?}");
            }
        }
    }
}
