//! The loops of the suites with targets: channel ends that move, and the objects built on channels.
//!
//! Each process has a channel over a link to the first process, and the first process has a channel to each other
//! process.

mod bulk;
mod calls;
mod crowded;
mod dispatched;
mod holding;
mod many;
mod mesh;
mod relay;
mod sending;
mod stream;
mod talk;
#[cfg(feature = "tasks")]
mod tasks;
mod units;
mod waking;
mod within;

use strait::Channel;

use self::crowded::Crowd;
use super::parts::Share;
use crate::mechanism::options;
use crate::shape::Task;
#[cfg(not(feature = "tasks"))]
use crate::shape::UNBUILT;
use crate::trouble::Result;
#[cfg(not(feature = "tasks"))]
use crate::trouble::Trouble;
use crate::work::{Report, Work};

/// Runs the first process of `task`, which has a channel to each other process. A received end waits in the way of
/// the channel that brought the end.
pub(crate) fn first(mut links: Vec<Channel>, work: &Work, task: Task) -> Result<Report> {
    let options = options(work);
    match task {
        Task::Give { count } => sending::give(&links[0], &options, count),
        Task::Acquaint { count } => sending::acquaint(&links[0], &links[1], &options, count),
        Task::Stream { moves, stretches, stretch } => {
            stream::pour(&links[0], &links[1], &options, moves, stretches, stretch)
        }
        Task::Beside { idle } => holding::ping(&links[0], &options, work, idle),
        Task::Crowded { busy, apart, trips } => {
            crowded::ping(&links[0], &links[1], &options, work, Crowd { busy, apart }, trips)
        }
        Task::Hold { channels } => holding::hold(&links[0], &options, channels),
        Task::Wake { members } => waking::wake(&links[0], &options, members),
        Task::Within { channels } => within::run(&options, channels),
        Task::Open { channels, batch } => many::open(&links[0], &options, channels, batch),
        Task::Pass { crossings, ends, window } => many::pass(&links[0], &options, crossings, ends, window),
        Task::Call { threads, millis } => calls::call(links.remove(0), threads, millis),
        Task::Bulk { bare, pieces } => bulk::fill(&links[0], bare, pieces),
        #[cfg(feature = "tasks")]
        Task::Tasks { bare, trips } => tasks::ask(links.remove(0), bare, trips),
        #[cfg(not(feature = "tasks"))]
        Task::Tasks { .. } => Err(Trouble::new(UNBUILT)),
        Task::Dispatched { by, size, trips } => dispatched::ask(links.remove(0), by, size, trips),
        Task::Relayed { how, size, count } => relay::source(&links[0], &links[1], &options, how, size, count),
        Task::Values { as_bytes, size, count } => relay::values(&options, as_bytes, size, count),
        Task::Units { unit, units } => units::run(unit, units),
        Task::Mesh { joined, .. } => mesh::control(&links, &options, joined),
    }
}

/// Runs another process of `task`, with the number `index` from 0. `first` is the channel to the first process.
pub(crate) fn second(first: Channel, work: &Work, task: Task, index: usize) -> Result<Share> {
    match (task, index) {
        (Task::Give { count }, _) => sending::take(&first, count),
        (Task::Acquaint { count }, 0) => sending::meet(&first, count),
        (Task::Acquaint { count }, _) => sending::greet(&first, count),
        (Task::Stream { stretch, .. }, _) => stream::drain(&first, index == 0, stretch),
        (Task::Beside { idle }, _) => holding::echo(&first, work, idle),
        (Task::Crowded { busy, apart, .. }, 0) => crowded::serve(&first, Crowd { busy, apart }),
        (Task::Crowded { busy, apart, .. }, _) => crowded::fill(&first, Crowd { busy, apart }),
        (Task::Hold { .. }, _) => holding::hold_too(&first),
        (Task::Wake { members }, _) => waking::sleep(&first, members),
        (Task::Open { channels, .. }, _) => many::accept(&first, channels),
        (Task::Pass { .. }, _) => many::pass_back(&first),
        (Task::Call { .. }, _) => calls::serve(first),
        (Task::Bulk { bare, pieces }, _) => bulk::drain(&first, bare, pieces),
        #[cfg(feature = "tasks")]
        (Task::Tasks { bare, trips }, _) => tasks::answer(first, bare, trips),
        #[cfg(not(feature = "tasks"))]
        (Task::Tasks { .. }, _) => Err(Trouble::new(UNBUILT)),
        (Task::Dispatched { by, .. }, _) => dispatched::answer(first, by),
        (Task::Relayed { how, count, .. }, 0) => relay::relay(&first, how, count),
        (Task::Relayed { count, .. }, _) => relay::sink(&first, count),
        (Task::Mesh { .. }, _) => mesh::member(&first),
        (Task::Within { .. } | Task::Values { .. } | Task::Units { .. }, _) => Ok(Share::default()),
    }
}

#[cfg(test)]
mod tests {
    use strait::{Channel, Options};

    use super::super::parts::Share;
    use super::{bulk, calls, relay};
    use crate::shape::Relay;
    use crate::trouble::Result;
    use crate::work::Report;

    /// Runs both sides of a task in this process, and checks that each reports its processor time.
    fn both(first: impl FnOnce(Channel) -> Result<Report>, second: impl FnOnce(Channel) -> Result<Share> + Send) {
        let (one, other) = Channel::pair().unwrap();
        let (report, share) = std::thread::scope(|scope| {
            let second = scope.spawn(|| second(other).unwrap());
            (first(one).unwrap(), second.join().unwrap())
        });
        assert!(report.spent[0].cpu > 0 && share.spent.cpu > 0, "{report:?}, {share:?}");
    }

    #[test]
    fn every_side_of_a_task_reports_its_processor_time() {
        both(|channel| calls::call(channel, 2, 30), calls::serve);
        for bare in [false, true] {
            both(|channel| bulk::fill(&channel, bare, 100), move |channel| bulk::drain(&channel, bare, 100));
        }
        #[cfg(feature = "tasks")]
        for bare in [false, true] {
            both(
                |channel| super::tasks::ask(channel, bare, 100),
                move |channel| super::tasks::answer(channel, bare, 100),
            );
        }
        for how in [Relay::Sealed, Relay::View, Relay::Forwarded, Relay::Sent] {
            let (to_sink, sink) = Channel::pair().unwrap();
            std::thread::scope(|scope| {
                let sink = scope.spawn(move || relay::sink(&sink, 20).unwrap());
                let source = |relay: Channel| relay::source(&relay, &to_sink, &Options::new(), how, 1 << 16, 20);
                both(source, |channel| relay::relay(&channel, how, 20));
                drop(to_sink);
                assert!(sink.join().unwrap().spent.cpu > 0);
            });
        }
    }
}
