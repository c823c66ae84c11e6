//! The suite `full`: every mechanism in every supported shape, around one base.
//!
//! All combinations of the axes would be some ten thousand figures, most of them repeating their neighbours. So there
//! is a *base*: a message of 56 bytes there and back, in every way of waiting and every placement. From the base one
//! axis varies at a time: the size, or the shape with its parameters. Figures that differ from the base are measured in
//! three *corners*:
//!
//! * spinning on two processors, where only cache lines cost something;
//! * asleep on one processor, where only system calls and process switches cost something;
//! * adaptive and unpinned: the default.

use super::axes::{Axes, placements};
use crate::catalogue::CATALOGUE;
use crate::placement::{Cpus, Placement};
use crate::shape::{CHROME, Shape};
use crate::work::{Extent, Mechanism, Wait, Work};

/// The message size of the base in bytes: with its length, such a message fits into one cache line.
const BASE: usize = 56;

/// The extent of a run that is limited by time.
const SHORT: Extent = Extent::Time { warm: 15, steady: 60 };

/// The extent of an open-loop run: long enough for some thousand messages of the slowest mechanism at 10 % of its
/// capacity.
const LOADED: Extent = Extent::Time { warm: 30, steady: 70 };

pub(super) fn full(cpus: Cpus) -> Vec<Work> {
    let mut works = everywhere(cpus, CATALOGUE, BASE);
    let corners = Corners(cpus);
    // Cost against size. With large messages spinning and sleeping cost about the same, so large messages are measured
    // in one corner.
    let there_and_back = Shape::PingPong { reply: 0 };
    works.extend(corners.of(&[there_and_back], &[256, 1024, 4096, 64 << 10], SHORT));
    works.extend(corners.asleep(CATALOGUE, &[there_and_back], &[8, 1 << 20], SHORT));
    works.extend(signals(cpus, &corners));
    works.extend(corners.of(&[Shape::Stream { batch: 1 }], &[BASE, 64 << 10], SHORT));
    works.extend(corners.of(&[Shape::Stream { batch: 16 }], &[BASE], SHORT));
    // Latency against load, as a share of each mechanism's capacity, and at loads that are equal for all mechanisms.
    works.extend(corners.pinned(&[10, 50, 90].map(|load| Shape::OpenLoop { load }), &[BASE], LOADED));
    works.extend(corners.pinned(&[10_000, 100_000].map(|rate| Shape::Paced { rate }), &[BASE], LOADED));
    // More than two processes: with two others every mechanism; with four others only sleeping ones, since four
    // processes cannot all spin on a small machine.
    let of = |count| {
        [false, true].map(|shared| Shape::Producers { count, shared }).into_iter().chain([Shape::FanOut { count }])
    };
    works.extend(corners.of(&of(2).collect::<Vec<_>>(), &[BASE], SHORT));
    works.extend(corners.asleep(CATALOGUE, &of(4).collect::<Vec<_>>(), &[BASE], SHORT));
    let largest = CHROME.last().map_or(0, |&(bytes, _)| bytes - 1);
    works.extend(corners.pinned(&[false, true].map(|stream| Shape::Mix { stream }), &[largest], SHORT));
    // A hop sleeps on its own condition variable, so spinning shows little.
    works.extend(corners.asleep(CATALOGUE, &[false, true].map(|direct| Shape::Hop { direct }), &[BASE], SHORT));
    works.extend(corners.of(&[1, 64].map(|count| Shape::Descriptors { count }), &[BASE], SHORT));
    works.extend(corners.asleep(CATALOGUE, &[0, 253].map(|count| Shape::Descriptors { count }), &[BASE], SHORT));
    works.extend(corners.pinned(&[Shape::Vectored { parts: 16, linear: false }], &[4096], SHORT));
    works.extend(corners.asleep(CATALOGUE, &[Shape::Vectored { parts: 16, linear: true }], &[4096], SHORT));
    // All mechanisms that do not spin through idle time cost the same then, except for how the message wakes the
    // receiver.
    for (after, steady) in [(1, 20), (10, 10), (100, 3)] {
        works.extend(corners.asleep(CATALOGUE, &[Shape::Wake { after }], &[BASE], Extent::Count { warm: 2, steady }));
    }
    works.extend(corners.asleep(CATALOGUE, &[Shape::Connect], &[BASE], Extent::Count { warm: 10, steady: 100 }));
    works.extend(large(&corners));
    works
}

/// Returns the works for one message of `size` bytes there and back, in every way of waiting and every placement.
fn everywhere(cpus: Cpus, mechanisms: &[Mechanism], size: usize) -> Vec<Work> {
    let axes = Axes {
        mechanisms: mechanisms.to_vec(),
        shapes: vec![Shape::PingPong { reply: 0 }],
        sizes: vec![size],
        waiting: vec![Wait::Spin, Wait::Adaptive, Wait::Block],
        placements: placements(cpus),
        extent: SHORT,
    };
    axes.works()
}

/// Returns the works for signals. A signal carries eight bytes, so its other figures have only this size, asleep on one
/// processor, together with two other mechanisms.
fn signals(cpus: Cpus, corners: &Corners) -> Vec<Work> {
    let signals = [Mechanism::SIGNAL, Mechanism::SIGNALFD];
    let mut works = everywhere(cpus, &signals, 8);
    works.retain(|work| work.wait != Wait::Block || work.placement != cpus.same());
    let beside = [Mechanism::SIGNAL, Mechanism::SIGNALFD, Mechanism::STRAIT, Mechanism::PIPE];
    let shapes = [Shape::Stream { batch: 1 }, Shape::Producers { count: 2, shared: false }, Shape::FanOut { count: 2 }];
    works.extend(corners.asleep(&beside, &shapes, &[8], SHORT));
    works
}

/// Returns the works for large messages (64 KiB to 256 MiB), which are copied or moved. The way of waiting hardly
/// matters there.
fn large(corners: &Corners) -> Vec<Work> {
    let mut works = Vec::new();
    let out_of_line = |cold, touched| Shape::OutOfLine { cold, touched };
    let all =
        [(false, false), (false, true), (true, false), (true, true)].map(|(cold, touched)| out_of_line(cold, touched));
    let counted = |steady: u64| Extent::Count { warm: steady.div_ceil(8), steady };
    works.extend(corners.asleep(CATALOGUE, &all, &[1 << 20], counted(50)));
    works.extend(corners.asleep(CATALOGUE, &[out_of_line(false, true)], &[64 << 10], counted(50)));
    works.extend(corners.asleep(CATALOGUE, &[out_of_line(false, true)], &[16 << 20], counted(8)));
    // At 256 MiB only the mechanisms that a program would choose for such a size.
    let largest = [Mechanism::STRAIT, Mechanism::STRAIT_SEALED, Mechanism::FUTEX, Mechanism::PIPE, Mechanism::STREAM];
    works.extend(corners.asleep(
        &largest,
        &[out_of_line(false, true), out_of_line(true, true)],
        &[256 << 20],
        counted(2),
    ));
    works.extend(corners.of(&[Shape::InPlace], &[1 << 20], counted(5)));
    works.extend(corners.asleep(&[Mechanism::STRAIT], &[Shape::InPlace], &[256 << 20], counted(5)));
    works
}

/// The combinations of waiting and placement in which figures other than the base are measured.
struct Corners(Cpus);

impl Corners {
    /// Returns the works for these shapes, with every mechanism, in all three corners.
    fn of(&self, shapes: &[Shape], sizes: &[usize], extent: Extent) -> Vec<Work> {
        let mut works = self.pinned(shapes, sizes, extent);
        works.extend(taken(CATALOGUE, shapes, sizes, Wait::Adaptive, Placement::Free, extent));
        works
    }

    /// Returns the works for these shapes, with every mechanism, in the two pinned corners: spinning on two
    /// processors, and asleep on one.
    fn pinned(&self, shapes: &[Shape], sizes: &[usize], extent: Extent) -> Vec<Work> {
        let apart = self.0.two().unwrap_or(Placement::Free);
        let mut works = taken(CATALOGUE, shapes, sizes, Wait::Spin, apart, extent);
        works.extend(taken(CATALOGUE, shapes, sizes, Wait::Block, self.0.same(), extent));
        works
    }

    /// Returns the works asleep on one processor; a mechanism that cannot sleep spins on two.
    fn asleep(&self, mechanisms: &[Mechanism], shapes: &[Shape], sizes: &[usize], extent: Extent) -> Vec<Work> {
        let sleeps = |&mechanism: &Mechanism| mechanism.waits().contains(&Wait::Block);
        let (asleep, awake): (Vec<Mechanism>, Vec<Mechanism>) = mechanisms.iter().partition(|one| sleeps(one));
        let mut works = taken(&asleep, shapes, sizes, Wait::Block, self.0.same(), extent);
        let apart = self.0.two().unwrap_or(Placement::Free);
        works.extend(taken(&awake, shapes, sizes, Wait::Spin, apart, extent));
        works
    }
}

fn taken(
    mechanisms: &[Mechanism],
    shapes: &[Shape],
    sizes: &[usize],
    wait: Wait,
    placement: Placement,
    extent: Extent,
) -> Vec<Work> {
    let axes = Axes {
        mechanisms: mechanisms.to_vec(),
        shapes: shapes.to_vec(),
        sizes: sizes.to_vec(),
        waiting: vec![wait],
        placements: vec![placement],
        extent,
    };
    axes.works()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::full;
    use crate::catalogue::CATALOGUE;
    use crate::placement::Cpus;
    use crate::suite::expected;
    use crate::work::Work;

    fn works() -> Vec<Work> {
        full(Cpus::named(&[0, 1]).unwrap())
    }

    #[test]
    fn a_repetition_of_it_with_system_calls_takes_ten_minutes_at_most() {
        let works = works();
        let all = expected(&works, 1, true).as_secs();
        assert!(all <= 600, "{} figures, {all} s", works.len());
    }

    #[test]
    fn nothing_is_taken_twice() {
        let works = works();
        let mut seen = HashSet::new();
        for work in &works {
            assert!(seen.insert(work.words()), "{}", work.words());
        }
    }

    #[test]
    fn every_mechanism_is_in_it() {
        let works = works();
        for mechanism in CATALOGUE {
            assert!(works.iter().any(|work| work.mechanism == *mechanism), "{}", mechanism.name());
        }
    }
}
