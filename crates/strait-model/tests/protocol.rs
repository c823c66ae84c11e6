//! Every configuration is explored to its end, and is right. With `--nocapture` the table of the documentation is
//! printed.

use std::time::Instant;

use strait_model::catalogue::{self, Case};
use strait_model::explore::explore;

fn check(cases: Vec<Case>) {
    let mut other = Vec::new();
    for case in cases {
        let begun = Instant::now();
        let report = explore(case.configuration);
        println!("//! | {} | {} | ({:.1} s)", case.name, report.states, begun.elapsed().as_secs_f64());
        report.assert_right(case.name, &case.met);
        if report.states != case.states {
            other.push((case.name, case.states, report.states));
        }
    }
    assert!(other.is_empty(), "the table says another number of states; see whether that was meant: {other:#?}");
}

#[test]
fn ends_move() {
    check(catalogue::moves());
}

#[test]
fn channels_are_fused() {
    check(catalogue::fuses());
}

#[test]
fn closing_full_sockets_and_death() {
    check(catalogue::troubles());
}

#[test]
fn sleepers_wake() {
    check(catalogue::sleepers());
}

#[test]
#[ignore = "takes minutes"]
fn larger_bounds() {
    check(catalogue::large());
    check(catalogue::large_fuses());
}
