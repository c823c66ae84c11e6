//! The instructions of each scene, counted by callgrind and compared with the numbers recorded here, per message.
//!
//! `./count-instructions` runs this benchmark. One program gives the same count every time; another compiler may cost
//! up to 5 % more. If a change makes a path more than 5 % longer, the change raises the number here, and its commit
//! message says why. If a change makes a path shorter, the change lowers the number, to keep the gain.

// The macros make items without documentation.
#![allow(missing_docs)]

use gungraun::prelude::*;
use gungraun::{Callgrind, EventKind};
use strait_bench::{COUNT, Scene};

/// Returns a configuration with the recorded count for each message of a scene, and a limit of 5 % above it.
fn recorded(per_message: usize) -> LibraryBenchmarkConfig {
    let limit = (per_message * COUNT * 105 / 100) as u64;
    let mut config = LibraryBenchmarkConfig::default();
    config.tool(Callgrind::default().hard_limits([(EventKind::Ir, limit)]));
    config
}

#[library_benchmark]
#[bench::ring(args = (strait_bench::ring(),), config = recorded(188))]
#[bench::wake_check(args = (strait_bench::wake_check(),), config = recorded(7))]
#[bench::table(args = (strait_bench::table(),), config = recorded(1659))]
#[bench::message_8(args = (strait_bench::message(8),), config = recorded(267))]
#[bench::halves_8(args = (strait_bench::halves(8),), config = recorded(270))]
#[bench::message_56(args = (strait_bench::message(56),), config = recorded(279))]
#[bench::message_1024(args = (strait_bench::message(1024),), config = recorded(1044))]
#[bench::message_4096(args = (strait_bench::message(4096),), config = recorded(1632))]
#[bench::round_trip_12(args = (strait_bench::round_trip(12),), config = recorded(575))]
#[bench::round_trip_144(args = (strait_bench::round_trip(144),), config = recorded(2021))]
#[bench::round_trip_1728(args = (strait_bench::round_trip(1728),), config = recorded(2198))]
#[bench::call(args = (strait_bench::call(),), config = recorded(4376))]
#[bench::batch(args = (strait_bench::batch(),), config = recorded(388))]
#[bench::in_place(args = (strait_bench::in_place(),), config = recorded(1129))]
#[bench::descriptor(args = (strait_bench::descriptor(),), config = recorded(3295))]
#[bench::value(args = (strait_bench::value(),), config = recorded(2789))]
#[bench::forward(args = (strait_bench::forward(),), config = recorded(843))]
#[bench::end(args = (strait_bench::end(),), config = recorded(10780))]
#[bench::wait_set(args = (strait_bench::wait_set(),), config = recorded(2289))]
fn messages(mut scene: Scene) -> Scene {
    scene.play();
    // Returned, so that the drop of the scene is not counted.
    scene
}

library_benchmark_group!(name = paths, benchmarks = messages);
main!(library_benchmark_groups = paths);
