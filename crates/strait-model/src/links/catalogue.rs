//! The explored configurations, and what each must show.

use super::configuration::{Attack, Configuration};
use super::met::Met;
use super::state::{A, B, H, Packet, V};
use crate::search;

/// A configuration, with its expected result.
pub type Case = search::Case<Configuration, Met>;

fn case(name: &'static str, states: usize, met: &[Met], configuration: Configuration) -> Case {
    Case { name, configuration, met: met.to_vec(), states }
}

/// Returns a configuration: B has links to V and H, and introduces the two processes this many times.
pub fn introduced(times: u8) -> Configuration {
    Configuration::default().link(B, V).link(B, H).introduces(B, V, H, times)
}

/// Returns a configuration: V and H have a direct link on which this many lanes are opened.
pub fn opened(lanes: u8) -> Configuration {
    Configuration::default().idle_link(V, H).opens(lanes)
}

/// Returns a configuration: V may connect to H `from_v` times, and H to V `from_h` times.
pub fn connected(from_v: u8, from_h: u8) -> Configuration {
    Configuration::default().connects(V, H, from_v).connects(H, V, from_h)
}

/// Returns a configuration: the hostile process A and the honest introducer B have links to V and H, and each
/// introduces V and H once.
pub fn two_introducers() -> Configuration {
    introduced(1).link(A, V).link(A, H).introduces(A, V, H, 1)
}

/// Returns a configuration: B has a direct link to V, a second link to V made by the hostile process A, and a direct
/// link to H.
pub fn two_ways() -> Configuration {
    introduced(2).made_by_a(B, V)
}

/// Returns a configuration: H has two links to V and one to B, and introduces V and B twice.
pub fn two_links() -> Configuration {
    Configuration::default().link(V, H).link(V, H).link(H, B).introduces(H, V, B, 2)
}

/// Returns a configuration: H uses its link to V only to introduce V and B twice.
pub fn idle_introducer() -> Configuration {
    Configuration::default().idle_link(V, H).link(H, B).introduces(H, V, B, 2)
}

/// Returns a configuration: the hostile process A has links to V and H.
pub fn beside_a() -> Configuration {
    Configuration::default().link(A, V).link(A, H)
}

/// Returns a configuration: the hostile process A connects to V and lets H send the first packet; H connects to V as
/// well.
pub fn handed_on() -> Configuration {
    beside_a().connects(H, V, 1).attack(Attack::HandOn)
}

/// Returns a configuration: the hostile process A takes a connection of H from V's listener; V connects to H as well.
pub fn listener_copied() -> Configuration {
    beside_a().connects(V, H, 1).attack(Attack::ListenerCopy)
}

/// Returns a configuration: B introduces V and H. H moves the received end to B, and so introduces V and B over the
/// link that B made.
pub fn introduced_in_turn() -> Configuration {
    introduced(1).introduces(H, V, B, 1)
}

/// Returns a configuration: the hostile process A has a link to B, on which A claims to be H; B introduces V and H.
pub fn claimed() -> Configuration {
    introduced(1).claims(B, H)
}

/// Returns a configuration: the hostile process A sends a forged FORGET for a socket pair of B.
pub fn forged() -> Configuration {
    introduced(2).link(A, B).attack(Attack::Say(B, Packet::Forget(3, 1))).attack(Attack::Say(B, Packet::Forget(3, 2)))
}

/// Returns a configuration: the hostile process A sends a forged RELEASED for a socket pair of B, to V and to H.
pub fn forged_release() -> Configuration {
    let say = |to| Attack::Say(to, Packet::Released(4));
    introduced(2).link(A, V).link(A, H).attack(say(V)).attack(say(H))
}

/// Returns the configurations of `cargo test`.
pub fn small() -> Vec<Case> {
    vec![
        case(
            "lanes on a direct link",
            51151,
            &[Met::Agreed, Met::Refused, Met::CrossedEqual, Met::CrossedUnequal],
            opened(2).sends(2),
        ),
        case("lanes on a direct link, a death", 14307, &[], opened(2).sends(1).deaths(1, &[V, H])),
        case(
            "two introductions",
            27384,
            &[Met::NamedAgain, Met::Released, Met::ForgetCrossed, Met::Agreed],
            introduced(2).sends(1),
        ),
        case("two introductions, a death", 29001, &[Met::Abandoned], introduced(2).deaths(1, &[V, H, B])),
        case(
            "an introduction, a packet, two deaths",
            4176,
            &[Met::Abandoned],
            introduced(1).sends(1).deaths(2, &[V, H, B]),
        ),
        case("connects, both ways", 43131, &[Met::Reused], connected(1, 1).sends(1)),
        case("connects, twice one way, a death", 7076, &[Met::Reused], connected(2, 0).sends(1).deaths(1, &[V, H])),
        case(
            "an honest and a hostile introducer; A shuts down",
            51213,
            &[],
            two_introducers().attack(Attack::Shutdown),
        ),
        case("B's link to V was made by A, too; A shuts down", 93828, &[], two_ways().attack(Attack::Shutdown)),
        case("A swaps a half", 466, &[Met::Mismatch], introduced(1).made_by_a(B, V).attack(Attack::Swap)),
        case("A agrees in another's place", 70975, &[], two_introducers().attack(Attack::Inject(0, Packet::Agree))),
        case("A hands its connection on", 1561, &[Met::Foreign], handed_on()),
        case("A has a copy of a listener", 1561, &[Met::Foreign], listener_copied()),
        case("an introduced process introduces in its turn", 6766, &[Met::Released], introduced_in_turn()),
        case(
            "an introduced process introduces in its turn, a death",
            42619,
            &[Met::Abandoned],
            introduced_in_turn().deaths(1, &[V, H, B]),
        ),
        case("an introducer has two links to one process", 15990, &[Met::NamedAgain], two_links()),
        case("an introducer needs its link for nothing else", 88885, &[Met::NamedAgain], idle_introducer()),
        case("A claims a name", 242, &[], claimed()),
        case(
            "A names a process that is elsewhere",
            3254,
            &[Met::Mismatch],
            introduced(1).link(A, V).attack(Attack::NameElsewhere),
        ),
        case("A announces a lane to one side", 874, &[Met::NoLane], beside_a().attack(Attack::Frame).sends(1)),
        case("A forges FORGET", 42920, &[], forged()),
        case("A forges RELEASED", 38628, &[Met::Released], forged_release()),
        case(
            "yourself, and a false one",
            761,
            &[Met::HalfMailbox],
            Configuration::default()
                .link(B, V)
                .link(A, V)
                .introduces(B, V, V, 1)
                .attack(Attack::FalseYourself)
                .deaths(2, &[A, B]),
        ),
    ]
}

/// Returns the configurations with larger bounds for lanes and introductions.
pub fn large() -> Vec<Case> {
    let all = [V, H, B];
    vec![
        case("in its turn, a packet, two deaths", 367191, &[], introduced_in_turn().sends(1).deaths(2, &all)),
        case("three lanes on a direct link, 2 packets, a death", 1089855, &[], opened(3).sends(2).deaths(1, &[V, H])),
        case("three introductions, a packet", 1149480, &[], introduced(3).sends(1)),
        case("two introductions, 2 packets, two deaths", 1147560, &[], introduced(2).sends(2).deaths(2, &all)),
        case("connects beside an introduction", 1622226, &[], introduced(1).connects(V, H, 1).connects(H, V, 1)),
    ]
}

/// Returns the configurations with larger bounds for connects.
pub fn large_connects() -> Vec<Case> {
    vec![
        case("connects, twice both ways", 1832142, &[], connected(2, 2)),
        case("connects, both ways, 2 packets, a death", 402739, &[], connected(1, 1).sends(2).deaths(1, &[V, H])),
        case("connects, both ways, and a lane opened", 1279519, &[], connected(1, 1).opens(1).sends(1)),
    ]
}

/// Returns the configurations with larger bounds for attacks.
pub fn large_attacks() -> Vec<Case> {
    let (shutdown, swap) = (Attack::Shutdown, Attack::Swap);
    vec![
        case("A hands its connection on, connects both ways", 342750, &[], handed_on().connects(V, H, 1)),
        case("A has a copy of a listener, connects both ways", 342750, &[], listener_copied().connects(H, V, 1)),
        case("two ways; A swaps and shuts down", 251678, &[], two_ways().attack(swap).attack(shutdown)),
        case(
            "two introducers; A shuts down, a death",
            666450,
            &[],
            two_introducers().attack(shutdown).deaths(1, &[V, B, A]),
        ),
    ]
}
