//! The configurations that are explored, each with what it is there for.

use super::configuration::{Attack, Configuration};
use super::met::Met;
use super::state::{A, B, H, Packet, V};

/// A configuration and what is expected of it.
#[derive(Debug)]
pub struct Case {
    /// A few words.
    pub name: &'static str,
    /// The bounds.
    pub configuration: Configuration,
    /// What has to come about in it.
    pub met: Vec<Met>,
    /// How many states it has; the table in the documentation is made of these.
    pub states: usize,
}

fn case(name: &'static str, states: usize, met: &[Met], configuration: Configuration) -> Case {
    Case { name, configuration, met: met.to_vec(), states }
}

/// B has links to V and H, and introduces them so often.
pub fn introduced(times: u8) -> Configuration {
    Configuration::default().link(B, V).link(B, H).introduces(B, V, H, times)
}

/// V and H have a direct link on which so many lanes are opened.
pub fn opened(lanes: u8) -> Configuration {
    Configuration::default().idle_link(V, H).opens(lanes)
}

/// V and H may connect to each other, so often each.
pub fn connected(from_v: u8, from_h: u8) -> Configuration {
    Configuration::default().connects(V, H, from_v).connects(H, V, from_h)
}

/// A and B have links to V and H, and each introduces them once.
pub fn two_introducers() -> Configuration {
    introduced(1).link(A, V).link(A, H).introduces(A, V, H, 1)
}

/// B has a direct link to V, and one that A made; its link to H is direct.
pub fn two_ways() -> Configuration {
    introduced(2).made_by_a(B, V)
}

/// A has links to V and H.
pub fn beside_a() -> Configuration {
    Configuration::default().link(A, V).link(A, H)
}

/// A lets H say the first word on a connection to V, and H connects as well.
pub fn handed_on() -> Configuration {
    beside_a().connects(H, V, 1).attack(Attack::HandOn)
}

/// A takes a connection of H from V's listener, and V connects to H as well.
pub fn listener_copied() -> Configuration {
    beside_a().connects(V, H, 1).attack(Attack::ListenerCopy)
}

/// B introduces V and H; H moves the end that it got on to B, over the link that B made.
pub fn introduced_in_turn() -> Configuration {
    introduced(1).introduces(H, V, B, 1)
}

/// A has a link to B and claims to be H.
pub fn claimed() -> Configuration {
    introduced(1).claims(B, H)
}

/// A forges FORGET for a pair of B.
pub fn forged() -> Configuration {
    introduced(2).link(A, B).attack(Attack::Say(B, Packet::Forget(3, 1))).attack(Attack::Say(B, Packet::Forget(3, 2)))
}

/// A says RELEASED of a pair of B, to both.
pub fn forged_release() -> Configuration {
    let say = |to| Attack::Say(to, Packet::Released(4));
    introduced(2).link(A, V).link(A, H).attack(say(V)).attack(say(H))
}

/// What cargo test explores.
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
        case("an introduced process introduces in its turn", 7155, &[Met::Released], introduced_in_turn()),
        case(
            "an introduced process introduces in its turn, a death",
            46266,
            &[Met::Abandoned],
            introduced_in_turn().deaths(1, &[V, H, B]),
        ),
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
