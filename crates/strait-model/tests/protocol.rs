//! Explores every configuration completely, and checks that every property holds. With `--nocapture` the tests print
//! the table of the crate's documentation.

use strait_model::catalogue;
use strait_model::explore::explore;
use strait_model::search::check;

#[test]
fn ends_move() {
    check(catalogue::moves(), explore);
}

#[test]
fn channels_are_fused() {
    check(catalogue::fuses(), explore);
}

#[test]
fn closing_full_sockets_and_death() {
    check(catalogue::troubles(), explore);
}

#[test]
fn sleepers_wake() {
    check(catalogue::sleepers(), explore);
}

#[test]
#[ignore = "takes minutes; the nightly run has it"]
fn larger_bounds() {
    check(catalogue::large(), explore);
    check(catalogue::large_fuses(), explore);
}
