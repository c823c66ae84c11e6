//! Tests of faults between two processes, one fault for each test.
//!
//! A test that counts descriptors, or limits the process, runs in a process of its own ([`common::alone`]).

#[path = "../common/mod.rs"]
mod common;
mod fork;
mod kill;
mod refuse;
mod roles;
mod starve;
mod stop;

#[test]
fn child() {
    common::play(&[
        ("echo", roles::echo),
        ("late echo", roles::late_echo),
        ("silent", roles::silent),
        ("absent", roles::absent),
        ("gone", kill::gone),
        ("source", starve::source),
        ("source in a row", starve::source_in_a_row),
        ("stream", roles::stream),
        ("dies after sending", kill::dies_after_sending),
        ("closes after sending", kill::closes_after_sending),
        ("closes unread", kill::closes_unread),
        ("closes on request", kill::closes_on_request),
        ("closed descriptor", refuse::closed_descriptor),
        ("kills", kill::kills),
        ("sends to the dead", kill::sends_to_the_dead),
        ("closed socket", refuse::closed_socket),
        ("unread", kill::unread),
        ("closes without descriptors", starve::closes_without_descriptors),
        ("sees the end", starve::sees_the_end),
        ("handles without descriptors", starve::handles_without_descriptors),
        ("memory without descriptors", starve::memory_without_descriptors),
        ("larger ring without descriptors", starve::larger_ring_without_descriptors),
        ("grows before handles", starve::grows_before_handles),
        ("handles behind a ring without descriptors", starve::handles_behind_a_ring_without_descriptors),
        ("sending without descriptors", starve::sending_without_descriptors),
        ("growing without descriptors", starve::growing_without_descriptors),
        ("refused", roles::refused),
        ("memfd refused from the start", refuse::memfd_refused_from_the_start),
        ("memfd refused later", refuse::memfd_refused_later),
        ("futex refused", refuse::futex_refused),
        ("forks", fork::forks),
        ("forks in the middle", fork::forks_in_the_middle),
        ("takes twice", fork::takes_twice),
        ("takes nothing", fork::takes_nothing),
        ("starts a grandchild", fork::starts_a_grandchild),
        ("interrupted", stop::interrupted),
        ("interrupted echo", stop::interrupted_echo),
        ("small files", starve::small_files),
    ]);
}
