//! `strait bench fairness`: how long a quiet channel waits beside busy channels on its own link, compared with busy
//! channels on another link.

use super::bar::Suite;
use super::contest::{self, Contest};
use crate::placement::{Cpus, Placement};
use crate::shape::Task;
use crate::work::{Wait, Work};

/// The explanation below the table of the suite `fairness`.
pub const HOW: &str = "\
A process makes round trips of 56 bytes on a quiet channel. Its peer serves the quiet channel and all busy channels
with one wait set, one message of a channel at a time. A single thread sends 56-byte messages through the busy
channels in turn, as fast as they take them. That thread belongs to the process of the quiet channel, so that all
channels share one link; or, for the reference, to a third process, so that the busy channels have a link of their
own. The round trip contains the turns of the busy channels that are ready, and the times for which other threads have
the processor: three threads are busy. A ratio of 1 means that sharing a link costs the quiet channel nothing.";

/// The greatest allowed ratio of the quiet channel's median round trip to that beside busy channels on another link.
const BAR: f64 = 1.5;

/// The numbers of busy channels.
const BUSY: [usize; 3] = [1, 10, 100];

/// Runs the suite `fairness` with `trips` round trips in each run. Returns its rows, and whether a run broke. With
/// `only`, measures just the rows with this text in their work.
pub fn run(repetitions: usize, only: Option<&str>, cpus: Cpus, trips: u64) -> (Suite, bool) {
    contest::run("fairness", contests(cpus, trips), repetitions, only, f64::INFINITY)
}

/// Returns the contests of the suite `fairness`.
fn contests(cpus: Cpus, trips: u64) -> Vec<Contest> {
    let places =
        [(Placement::Free, Wait::Adaptive, "adaptive, unpinned"), (cpus.same(), Wait::Block, "blocking, same core")];
    let of = |(place, wait, how)| BUSY.map(|busy| contest(busy, trips, place, wait, how));
    places.into_iter().flat_map(of).collect()
}

/// Returns the contest of a quiet channel beside `busy` channels on its link, and beside as many on another link.
fn contest(busy: usize, trips: u64, place: Placement, wait: Wait, how: &str) -> Contest {
    let work = |apart| Work::objects(Task::Crowded { busy, apart, trips }, wait, place);
    let channels = if busy == 1 { "1 busy channel".to_owned() } else { format!("{busy} busy channels") };
    let beside = |link: &str| format!("– {link}, {channels}, {how}");
    Contest::new(Some(place), |_| vec![work(false), work(true)])
        .times(
            &format!("round trip 56 B beside {channels} on the link, {how}"),
            "beside busy channels on another link",
            &[1],
            BAR,
        )
        .told(&beside("p99 on another link"), 1, "p99", "ns", "–")
        .told(&beside("messages of the busy channels, one link"), 0, "busy", "M/s", "–")
        .told(&beside("messages of the busy channels, another link"), 1, "busy", "M/s", "–")
}

#[cfg(test)]
mod tests {
    use super::contests;
    use crate::placement::Cpus;

    #[test]
    fn every_run_can_be_done() {
        for contest in contests(Cpus::named(&[0, 1]).unwrap(), 1000) {
            assert!(contest.runs.len() == 2 && contest.rows.len() == 4);
            for work in &contest.runs {
                assert_eq!(work.unfit(), None, "{work:?}");
            }
        }
    }
}
