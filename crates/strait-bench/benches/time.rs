//! The time of each scene, per message: `cargo bench -p strait-bench --bench time`.
//!
//! Both sides run in one thread, so no cache line moves between processors: the result is the work of the library
//! alone. `strait bench` measures messages between two processes.

use divan::Bencher;
use divan::counter::ItemsCount;
use strait_bench::{COUNT, Scene};

fn main() {
    divan::main();
}

fn scene(bencher: Bencher<'_, '_>, mut scene: Scene) {
    bencher.counter(ItemsCount::new(COUNT)).bench_local(|| scene.play());
}

#[divan::bench]
fn ring(bencher: Bencher<'_, '_>) {
    scene(bencher, strait_bench::ring());
}

#[divan::bench]
fn wake_check(bencher: Bencher<'_, '_>) {
    scene(bencher, strait_bench::wake_check());
}

#[divan::bench]
fn table(bencher: Bencher<'_, '_>) {
    scene(bencher, strait_bench::table());
}

#[divan::bench(args = [8, 56, 1024, 4096, 65_536])]
fn message(bencher: Bencher<'_, '_>, size: usize) {
    scene(bencher, strait_bench::message(size));
}

#[divan::bench]
fn batch(bencher: Bencher<'_, '_>) {
    scene(bencher, strait_bench::batch());
}

#[divan::bench]
fn in_place(bencher: Bencher<'_, '_>) {
    scene(bencher, strait_bench::in_place());
}

#[divan::bench]
fn descriptor(bencher: Bencher<'_, '_>) {
    scene(bencher, strait_bench::descriptor());
}

#[divan::bench]
fn value(bencher: Bencher<'_, '_>) {
    scene(bencher, strait_bench::value());
}

#[divan::bench]
fn forward(bencher: Bencher<'_, '_>) {
    scene(bencher, strait_bench::forward());
}

#[divan::bench]
fn end(bencher: Bencher<'_, '_>) {
    scene(bencher, strait_bench::end());
}

#[divan::bench]
fn wait_set(bencher: Bencher<'_, '_>) {
    scene(bencher, strait_bench::wait_set());
}
