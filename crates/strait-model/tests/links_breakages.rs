//! The model of links finds each deliberate error: a model that cannot fail proves nothing.

use strait_model::links::breakage::Breakage::{self, *};
use strait_model::links::catalogue::{
    beside_a, claimed, connected, forged, forged_release, handed_on, idle_introducer, introduced, listener_copied,
    opened, two_introducers, two_links, two_ways,
};
use strait_model::links::configuration::{Attack, Configuration};
use strait_model::links::explore::explore_until;
use strait_model::links::properties::{
    ACCUSED, CLOSED, COUNT, ENDS_TOLD, HARM, IDENTITY, NO_SURPLUS, QUIET, SAME_LINK,
};
use strait_model::links::state::{A, B, V};

/// Explores the rules with a deliberate error, and prints a shortest counter-example to `property`. Panics if the
/// property holds.
#[track_caller]
fn finds(breakage: Breakage, property: &'static str, configuration: Configuration) {
    let report = explore_until(configuration.broken(breakage), property);
    let found: Vec<_> = report.wrong.iter().map(|(property, _)| *property).collect();
    let Some((_, path)) = report.wrong.iter().find(|(name, _)| *name == property) else {
        panic!("{breakage:?} breaks only {found:?} in {} states", report.states);
    };
    println!("{breakage:?} breaks \"{property}\":\n{path}");
}

#[test]
fn identity_by_claimed_name() {
    finds(ClaimedName, IDENTITY, claimed());
}

#[test]
fn an_introducer_believed_about_identities() {
    finds(ExpectedUnchecked, IDENTITY, introduced(1).link(A, V).attack(Attack::NameElsewhere));
    finds(ExpectedUnchecked, IDENTITY, introduced(1).made_by_a(B, V).attack(Attack::Swap));
}

#[test]
fn makers_ignored_by_a_receiver() {
    finds(MakersIgnored, HARM, two_introducers());
}

#[test]
fn makers_ignored_by_an_introducer() {
    finds(KeyWithoutMakers, HARM, two_ways());
}

#[test]
fn naming_a_pair_over_another_link() {
    finds(NamedOverAnyLink, HARM, two_links());
}

#[test]
fn an_introduction_that_holds_no_link() {
    finds(IntroductionHoldsNothing, HARM, idle_introducer());
}

#[test]
fn provenance_by_the_first_packet_alone() {
    finds(FirstPacketAlone, HARM, handed_on());
}

#[test]
fn provenance_by_the_word_of_one_side() {
    finds(DirectByOneSide, HARM, listener_copied());
}

#[test]
fn idle_without_a_count() {
    finds(IdleWithoutCount, CLOSED, opened(1));
}

#[test]
fn sending_between_idle_and_its_answer() {
    finds(SendWhileAsked, QUIET, opened(2).sends(1));
}

#[test]
fn refusing_without_owing_an_idle() {
    finds(RefuserOwesNothing, NO_SURPLUS, opened(1));
}

#[test]
fn crossing_without_owing_an_idle() {
    finds(CrossedOweNothing, NO_SURPLUS, opened(1));
}

#[test]
fn closing_a_link_while_a_lane_is_bound() {
    finds(LanesNotCounted, CLOSED, opened(1));
}

#[test]
fn forget_without_an_answer() {
    finds(ForgetUnanswered, HARM, introduced(2));
}

#[test]
fn forget_without_a_count() {
    finds(ForgetWithoutCount, HARM, introduced(2));
}

#[test]
fn forget_on_another_link() {
    finds(ForgetOnAnyLink, COUNT, forged());
    finds(ForgetOnAnyLink, HARM, forged_release());
}

#[test]
fn forget_by_one_of_two() {
    finds(ForgetByOneSide, COUNT, introduced(2));
}

#[test]
fn a_connect_that_holds_no_link() {
    finds(ConnectHoldsNothing, HARM, connected(2, 0).sends(1));
}

#[test]
fn an_acceptor_that_makes_a_link_while_it_asks() {
    finds(AskedAnswersNew, COUNT, connected(2, 1));
}

#[test]
fn an_acceptor_that_reads_late() {
    finds(AcceptorReadsLate, HARM, connected(2, 0));
}

#[test]
fn a_connector_that_reads_late() {
    finds(ConnectorReadsLate, HARM, connected(2, 0));
}

#[test]
fn acceptor_and_connector_both_choose() {
    finds(BothChoose, SAME_LINK, connected(1, 1));
}

#[test]
fn an_introducer_believed_about_yourself() {
    let alone = Configuration::default().link(A, V).attack(Attack::FalseYourself).deaths(1, &[A]);
    finds(YourselfBelieved, ENDS_TOLD, alone);
}

#[test]
fn an_unknown_lane_taken_for_a_breach() {
    finds(UnknownIsBreach, ACCUSED, beside_a().attack(Attack::Frame).sends(1));
}

#[test]
fn an_unknown_lane_answered_too_early() {
    finds(UnknownAtOnce, HARM, introduced(2).sends(1));
}
