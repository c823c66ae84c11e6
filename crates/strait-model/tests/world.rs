//! Worlds with the machines of links: every state of small ones, and random walks through large ones.

use std::sync::Arc;
use std::time::Instant;

use strait_model::world::catalogue::{self, Case};
use strait_model::world::coverage::Coverage;
use strait_model::world::{properties, random};

/// Explores each configuration completely. Prints the rows of the table in the documentation.
fn check(cases: Vec<Case>) {
    let coverage = Arc::new(Coverage::default());
    let mut other = Vec::new();
    for (name, states, configuration) in cases {
        let begun = Instant::now();
        let report = properties::explore(configuration, &coverage);
        println!("//! | {name} | {} | ({:.1} s)", report.states, begun.elapsed().as_secs_f64());
        report.assert_right(name, &[]);
        if report.states != states {
            other.push((name, states, report.states));
        }
    }
    assert!(other.is_empty(), "the table says another number of states; see whether that was meant: {other:#?}");
}

#[test]
fn every_configuration_holds() {
    check(catalogue::all());
}

#[test]
#[ignore = "takes a minute; the nightly run has it"]
fn larger_bounds() {
    check(catalogue::larger());
}

#[test]
fn random_worlds_hold() {
    let coverage = Arc::new(Coverage::default());
    for seed in 1..=600 {
        random::run(seed, &coverage).unwrap_or_else(|report| panic!("{report}"));
    }
}
