//! Every configuration of the rules for links is explored to its end, and is right. With `--nocapture` the table of the
//! documentation is printed.

use std::time::Instant;

use strait_model::links::catalogue::{self, Case};
use strait_model::links::explore::explore;

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
fn small_bounds() {
    check(catalogue::small());
}

#[test]
#[ignore = "takes minutes"]
fn larger_bounds() {
    check(catalogue::large());
}

#[test]
#[ignore = "takes minutes"]
fn larger_bounds_for_connects() {
    check(catalogue::large_connects());
}

#[test]
#[ignore = "takes minutes"]
fn larger_bounds_for_attacks() {
    check(catalogue::large_attacks());
}
