//! Tests of a data pipe's counters: under the model checker, and with arbitrary input.

mod model;
mod properties;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::publish_cpu;

#[test]
fn the_word_of_a_cpu_holds_its_number_plus_one_and_is_written_when_that_changes() {
    let (word, mut published) = (AtomicU32::new(0), 0);
    publish_cpu(&mut published, &word, 0);
    assert_eq!(word.load(Relaxed), 1, "0 would mean that no CPU is known");
    publish_cpu(&mut published, &word, 7);
    assert_eq!(word.swap(99, Relaxed), 8);
    publish_cpu(&mut published, &word, 7);
    assert_eq!(word.load(Relaxed), 99, "an unchanged number is not written again");
}
