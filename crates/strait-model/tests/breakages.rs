//! The model finds each deliberate error: a model that cannot fail proves nothing.

use strait_model::breakage::Breakage;
use strait_model::catalogue::{both_move, busy_carrier_moves, carrier_moves, one_moves, two_fused};
use strait_model::configuration::{Configuration, User};
use strait_model::explore::explore;
use strait_model::properties::{ALL_ARRIVED, CLOSED_SEEN, NO_IDLE_SOURCE, NO_SLEEPER, OWN_LANES};

/// Explores the protocol with a deliberate error, and prints a shortest counter-example to `property`. Panics if the
/// property holds.
#[track_caller]
fn finds(breakage: Breakage, property: &str, configuration: Configuration) {
    let report = explore(configuration.broken(breakage));
    let found: Vec<_> = report.wrong.iter().map(|(property, _)| *property).collect();
    let Some((_, path)) = report.wrong.iter().find(|(name, _)| *name == property) else {
        panic!("{breakage:?} breaks only {found:?} in {} states", report.states);
    };
    println!("{breakage:?} breaks \"{property}\":\n{path}");
}

fn two() -> Configuration {
    both_move(1, 1)
}

fn reader_sleeps() -> Configuration {
    one_moves(User::writes(1), User::writes(1).sleeps())
}

fn writer_waits() -> Configuration {
    one_moves(User::writes(1), User::writes(3).waits())
}

#[test]
fn freeze_before_mark() {
    finds(Breakage::FreezeBeforeMark, OWN_LANES, two());
    finds(Breakage::FreezeBeforeMark, ALL_ARRIVED, two().deaths(2, &[0, 1, 2]));
}

#[test]
fn neither_gives_way() {
    finds(Breakage::BothWin, ALL_ARRIVED, two());
}

#[test]
fn telling_one_far_end_before_the_other_is_frozen() {
    finds(Breakage::MarkBeforeFreeze, ALL_ARRIVED, two_fused(User::writes(1), User::writes(1)));
}

#[test]
fn far_ends_that_are_not_woken_once_they_have_each_other() {
    finds(Breakage::NoWakeOnHandOver, NO_SLEEPER, two_fused(User::writes(1).sleeps(), User::writes(1).sleeps()));
}

#[test]
fn hand_before_commit() {
    finds(Breakage::HandOverBeforeCommit, CLOSED_SEEN, two().deaths(1, &[0, 1, 2]));
}

#[test]
fn abandoning_without_the_word() {
    finds(Breakage::AbandonWithoutWord, CLOSED_SEEN, two().deaths(1, &[0, 1, 2]));
}

#[test]
fn following_a_frozen_ring_with_reading_too() {
    finds(Breakage::FollowWithoutMark, ALL_ARRIVED, two());
}

#[test]
fn dead_before_looking_at_the_seal() {
    finds(Breakage::DeadBeforeSeal, CLOSED_SEEN, two().deaths(1, &[0, 1, 2]));
}

#[test]
fn carrying_over_a_pending_lane() {
    finds(Breakage::CarryOverPending, CLOSED_SEEN, busy_carrier_moves().deaths(1, &[0, 1, 2]));
    finds(Breakage::CarryOverPending, OWN_LANES, busy_carrier_moves().fulls(1));
}

#[test]
fn calling_off_without_the_word() {
    finds(Breakage::StayPending, NO_IDLE_SOURCE, two().fulls(1));
    finds(Breakage::StayPending, NO_IDLE_SOURCE, two().stays(1));
}

#[test]
fn nested_ends_as_they_are() {
    finds(Breakage::NestedAsTheyAre, OWN_LANES, carrier_moves());
}

#[test]
fn taking_the_word_of_a_pending_sleeper() {
    finds(Breakage::TakeRelayed, NO_SLEEPER, reader_sleeps());
}

#[test]
fn not_waking_after_the_hand_over() {
    finds(Breakage::NoWakeOnHandOver, NO_SLEEPER, reader_sleeps());
}

#[test]
fn not_waking_a_writer_after_the_hand_over() {
    finds(Breakage::NoWakeOfWriter, NO_SLEEPER, writer_waits());
}

#[test]
fn not_waking_a_writer_of_a_frozen_ring() {
    finds(Breakage::NoWakeOnSeal, NO_SLEEPER, writer_waits());
}

#[test]
fn taking_any_word_after_the_hand_over() {
    finds(Breakage::TakePlainOnHandOver, NO_SLEEPER, reader_sleeps());
}

#[test]
fn sleeping_without_another_look_at_the_hand() {
    finds(Breakage::SleepWithoutTransfer, NO_SLEEPER, reader_sleeps());
}

#[test]
fn looking_whom_to_wake_before_taking_the_word() {
    finds(Breakage::WakeBeforeWord, NO_SLEEPER, one_moves(User::writes(1).sleeps(), User::writes(2)));
}
