//! Everything once: every mechanism in every shape that it can be used in, at a few sizes.

use super::{Axes, placements};
use crate::mechanism::{CATALOGUE, Mechanism};
use crate::pair::placement::Cpus;
use crate::shape::{CHROME, Shape};
use crate::work::{Extent, Wait, Work};

const WAITING: [Wait; 3] = [Wait::Spin, Wait::Adaptive, Wait::Block];

pub(super) fn full(cpus: Cpus) -> Vec<Work> {
    let all = |shapes: Vec<Shape>, sizes: Vec<usize>, extent: Extent| Axes {
        mechanisms: CATALOGUE.to_vec(),
        shapes,
        sizes,
        waiting: WAITING.to_vec(),
        placements: placements(cpus),
        extent,
    };
    let short = Extent::Time { warm: 15, steady: 60 };
    let mut works = Vec::new();
    let mut add = |axes: Axes| works.extend(axes.works());
    add(all(vec![Shape::PingPong { reply: 0 }], vec![8, 56, 256, 1024, 4096, 65_536, 1 << 20], short));
    add(all(vec![Shape::Stream { batch: 1 }], vec![56, 1024, 65_536], short));
    add(all(vec![Shape::Stream { batch: 16 }], vec![56], short));
    let loads = [10, 30, 50, 70, 90].map(|load| Shape::OpenLoop { load });
    add(all(loads.to_vec(), vec![56], Extent::Time { warm: 40, steady: 100 }));
    let rates = [1_000, 10_000, 100_000, 1_000_000].map(|rate| Shape::Paced { rate });
    add(all(rates.to_vec(), vec![56], Extent::Time { warm: 40, steady: 100 }));
    let crowds = [2, 4].into_iter().flat_map(|count| {
        let producers = [false, true].map(|shared| Shape::Producers { count, shared });
        producers.into_iter().chain([Shape::FanOut { count }])
    });
    add(all(crowds.collect(), vec![56], Extent::Time { warm: 20, steady: 100 }));
    let largest = CHROME.last().map_or(0, |&(bytes, _)| bytes - 1);
    add(all(vec![Shape::Mix { stream: false }, Shape::Mix { stream: true }], vec![largest], short));
    add(all([false, true].map(|direct| Shape::Hop { direct }).to_vec(), vec![56], short));
    add(all([0, 1, 8, 64, 253].map(|count| Shape::Descriptors { count }).to_vec(), vec![56], short));
    add(all(vec![Shape::Vectored { parts: 16, linear: false }], vec![4096], short));
    for after in [1, 10, 100] {
        let steady = if after == 100 { 5 } else { 20 };
        add(all(vec![Shape::Wake { after }], vec![56], Extent::Count { warm: 2, steady }));
    }
    add(all(vec![Shape::Connect], vec![56], Extent::Count { warm: 10, steady: 100 }));
    for mechanism in [Mechanism::STRAIT, Mechanism::FLAG] {
        let extent = Extent::Count { warm: 2, steady: 5 };
        let in_place =
            Axes { mechanisms: vec![mechanism], ..all(vec![Shape::InPlace], vec![1 << 20, 256 << 20], extent) };
        add(in_place);
    }
    // Where memory is moved or copied by the hundred megabytes, how one waits is no matter.
    for size in [64 << 10, 1 << 20, 16 << 20, 256 << 20] {
        let shapes = [(false, false), (false, true), (true, false), (true, true)]
            .map(|(cold, touched)| Shape::OutOfLine { cold, touched });
        let steady = (256 << 20) / size as u64;
        let extent = Extent::Count { warm: steady.div_ceil(8), steady: steady.clamp(2, 50) };
        let axes = Axes { waiting: vec![Wait::Block], ..all(shapes.to_vec(), vec![size], extent) };
        works.extend(axes.works());
    }
    works
}
