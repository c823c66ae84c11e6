//! Every mechanism in every shape that it can be used in, around one point.
//!
//! All that the axes span would be some ten thousand figures, of which most say what their neighbours say. So there is a
//! *base*: a message of 56 bytes there and back, in every way of waiting and every placement. From there one axis is varied at
//! a time: the size, or the shape with what belongs to it. What differs from the base is taken in three *corners*: spinning on
//! two processors, where only the cache lines cost something; asleep on one, where only system calls and changes of
//! process do; and adaptive wherever the scheduler likes, which is what one gets who asks for nothing.

use super::{Axes, placements};
use crate::mechanism::{CATALOGUE, Mechanism};
use crate::pair::placement::{Cpus, Placement};
use crate::shape::{CHROME, Shape};
use crate::work::{Extent, Wait, Work};

/// Bytes of the base: what fits a cache line with its length.
const BASE: usize = 56;

/// How long is measured where nothing is counted.
const SHORT: Extent = Extent::Time { warm: 15, steady: 60 };

/// As long as it takes until some thousand messages are due at 10 % of the capacity of the slowest.
const LOADED: Extent = Extent::Time { warm: 30, steady: 70 };

pub(super) fn full(cpus: Cpus) -> Vec<Work> {
    let mut works = everywhere(cpus, CATALOGUE, BASE);
    let corners = Corners(cpus);
    // Cost against size. What spins and what sleeps meet at large messages, so those are taken in one corner.
    let there_and_back = Shape::PingPong { reply: 0 };
    works.extend(corners.of(&[there_and_back], &[256, 1024, 4096, 64 << 10], SHORT));
    works.extend(corners.asleep(CATALOGUE, &[there_and_back], &[8, 1 << 20], SHORT));
    works.extend(signals(cpus, &corners));
    works.extend(corners.of(&[Shape::Stream { batch: 1 }], &[BASE, 64 << 10], SHORT));
    works.extend(corners.of(&[Shape::Stream { batch: 16 }], &[BASE], SHORT));
    // Latency against load, and at a load that is the same for all.
    works.extend(corners.pinned(&[10, 50, 90].map(|load| Shape::OpenLoop { load }), &[BASE], LOADED));
    works.extend(corners.pinned(&[10_000, 100_000].map(|rate| Shape::Paced { rate }), &[BASE], LOADED));
    // More than two processes: of two others each mechanism, of four only what sleeps, since four spin on no small machine.
    let of = |count| {
        [false, true].map(|shared| Shape::Producers { count, shared }).into_iter().chain([Shape::FanOut { count }])
    };
    works.extend(corners.of(&of(2).collect::<Vec<_>>(), &[BASE], SHORT));
    works.extend(corners.asleep(CATALOGUE, &of(4).collect::<Vec<_>>(), &[BASE], SHORT));
    let largest = CHROME.last().map_or(0, |&(bytes, _)| bytes - 1);
    works.extend(corners.pinned(&[false, true].map(|stream| Shape::Mix { stream }), &[largest], SHORT));
    // A hop sleeps by itself, so that spinning says little of it.
    works.extend(corners.asleep(CATALOGUE, &[false, true].map(|direct| Shape::Hop { direct }), &[BASE], SHORT));
    works.extend(corners.of(&[1, 64].map(|count| Shape::Descriptors { count }), &[BASE], SHORT));
    works.extend(corners.asleep(CATALOGUE, &[0, 253].map(|count| Shape::Descriptors { count }), &[BASE], SHORT));
    works.extend(corners.pinned(&[Shape::Vectored { parts: 16, linear: false }], &[4096], SHORT));
    works.extend(corners.asleep(CATALOGUE, &[Shape::Vectored { parts: 16, linear: true }], &[4096], SHORT));
    // Silence is the same for all who do not spin through it, but for how the way there wakes.
    for (after, steady) in [(1, 20), (10, 10), (100, 3)] {
        works.extend(corners.asleep(CATALOGUE, &[Shape::Wake { after }], &[BASE], Extent::Count { warm: 2, steady }));
    }
    works.extend(corners.asleep(CATALOGUE, &[Shape::Connect], &[BASE], Extent::Count { warm: 10, steady: 100 }));
    works.extend(large(&corners));
    works
}

/// One message of this size there and back, in every way of waiting and every placement.
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

/// A signal carries eight bytes, and so is in none of the other figures but those of that size, asleep on one processor.
fn signals(cpus: Cpus, corners: &Corners) -> Vec<Work> {
    let signals = [Mechanism::SIGNAL, Mechanism::SIGNALFD];
    let mut works = everywhere(cpus, &signals, 8);
    works.retain(|work| work.wait != Wait::Block || work.placement != cpus.same());
    let beside = [Mechanism::SIGNAL, Mechanism::SIGNALFD, Mechanism::STRAIT, Mechanism::PIPE];
    let shapes = [Shape::Stream { batch: 1 }, Shape::Producers { count: 2, shared: false }, Shape::FanOut { count: 2 }];
    works.extend(corners.asleep(&beside, &shapes, &[8], SHORT));
    works
}

/// Memory that is copied or moved by the megabyte, where how one waits is no matter.
fn large(corners: &Corners) -> Vec<Work> {
    let mut works = Vec::new();
    let out_of_line = |cold, touched| Shape::OutOfLine { cold, touched };
    let all =
        [(false, false), (false, true), (true, false), (true, true)].map(|(cold, touched)| out_of_line(cold, touched));
    let counted = |steady: u64| Extent::Count { warm: steady.div_ceil(8), steady };
    works.extend(corners.asleep(CATALOGUE, &all, &[1 << 20], counted(50)));
    works.extend(corners.asleep(CATALOGUE, &[out_of_line(false, true)], &[64 << 10], counted(50)));
    works.extend(corners.asleep(CATALOGUE, &[out_of_line(false, true)], &[16 << 20], counted(8)));
    // Of those that one would take for so much.
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

/// The ways of waiting and placements that are taken where the base is left.
struct Corners(Cpus);

impl Corners {
    /// These shapes of every mechanism in all corners.
    fn of(&self, shapes: &[Shape], sizes: &[usize], extent: Extent) -> Vec<Work> {
        let mut works = self.pinned(shapes, sizes, extent);
        works.extend(taken(CATALOGUE, shapes, sizes, Wait::Adaptive, Placement::Free, extent));
        works
    }

    /// The same in those corners that every mechanism has its own in: spinning on two processors, and asleep on one.
    fn pinned(&self, shapes: &[Shape], sizes: &[usize], extent: Extent) -> Vec<Work> {
        let apart = self.0.two().unwrap_or(Placement::Free);
        let mut works = taken(CATALOGUE, shapes, sizes, Wait::Spin, apart, extent);
        works.extend(taken(CATALOGUE, shapes, sizes, Wait::Block, self.0.same(), extent));
        works
    }

    /// Asleep on one processor; what cannot sleep spins on two.
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
    use crate::mechanism::CATALOGUE;
    use crate::pair::placement::Cpus;
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
