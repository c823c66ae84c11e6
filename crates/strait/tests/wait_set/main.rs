//! Tests of wait sets.

mod add;
#[path = "../common/mod.rs"]
mod common;
mod level;
mod one_shot;
mod roles;
mod sources;
mod threads;

#[test]
fn child() {
    common::play(&[
        ("hub", |_| roles::hub()),
        ("soaker", |_| threads::soaker()),
        ("to the dead", |_| add::to_the_dead()),
        ("sends a file", level::sends_a_file),
        ("lacks a descriptor", level::lacks_a_descriptor),
    ]);
}
