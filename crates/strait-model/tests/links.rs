//! Explores every configuration of the rules for links completely, and checks that every property holds. With
//! `--nocapture` the tests print the table of the documentation.

use strait_model::links::catalogue;
use strait_model::links::explore::explore;
use strait_model::search::check;

#[test]
fn small_bounds() {
    check(catalogue::small(), explore);
}

#[test]
#[ignore = "takes minutes; the nightly run has it"]
fn larger_bounds() {
    check(catalogue::large(), explore);
}

#[test]
#[ignore = "takes minutes; the nightly run has it"]
fn larger_bounds_for_connects() {
    check(catalogue::large_connects(), explore);
}

#[test]
#[ignore = "takes minutes; the nightly run has it"]
fn larger_bounds_for_attacks() {
    check(catalogue::large_attacks(), explore);
}
