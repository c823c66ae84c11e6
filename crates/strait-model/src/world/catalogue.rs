//! The configurations that are explored completely.

use strait_proto::links::Packet;

use super::configuration::{Attack, Configuration};
use super::state::{A, B, H, V};

/// A configuration with a name and the number of states.
pub type Case = (&'static str, usize, Configuration);

/// Returns a configuration: B has links to V and H, and introduces the two this many times.
pub fn introduced(times: u8) -> Configuration {
    Configuration::default().link(B, V).link(B, H).introduces(B, V, H, times)
}

/// Returns a configuration: V and H have a direct link, on which this many lanes are opened.
pub fn opened(lanes: u8) -> Configuration {
    Configuration::default().idle_link(V, H).opens(lanes)
}

/// Returns a configuration: V connects to H `from_v` times, and H to V `from_h` times.
pub fn connected(from_v: u8, from_h: u8) -> Configuration {
    Configuration::default().connects(V, H, from_v).connects(H, V, from_h)
}

/// Returns a configuration: V and H have links to the hostile process A.
pub fn beside_a() -> Configuration {
    Configuration::default().link(A, V).link(A, H)
}

/// Returns every configuration.
pub fn all() -> Vec<Case> {
    let of_all = [V, H, B];
    vec![
        ("lanes on a direct link, a death", 19089, opened(2).sends(1).deaths(1, &[V, H])),
        ("an introduction, room for one packet", 653, introduced(1).sends(1).room(1)),
        ("two introductions", 15681, introduced(2)),
        ("an introduction, a packet, two deaths", 5825, introduced(1).sends(1).deaths(2, &of_all)),
        ("connects, both ways", 3065, connected(1, 1)),
        ("connects, twice one way", 5465, connected(2, 0).sends(1)),
        ("connects, one way, a death", 541, connected(1, 0).opens(1).deaths(1, &[V, H])),
        ("A can copy one of B's links to V", 413, introduced(1).foreign(B, V)),
        ("A swaps a half", 872, introduced(1).foreign(B, V).attack(Attack::Swap(2))),
        ("A hands its connection on", 886, beside_a().connects(H, V, 1).attack(Attack::HandOn)),
        ("A has a copy of a listener", 1744, beside_a().connects(V, H, 1).attack(Attack::ListenerCopy)),
        ("A names a process that is elsewhere", 9477, introduced(1).link(A, V).attack(Attack::NameElsewhere)),
        ("A names itself, and gives the half to H", 7200, beside_a().connects(V, H, 1).attack(Attack::NameSelf)),
        ("A hands the socket of its parent down", 2425, beside_a().connects(V, H, 1).attack(Attack::HandDown)),
        ("A takes the socket of a child", 4659, beside_a().connects(H, V, 1).attack(Attack::Intercept)),
        ("A announces a lane to one side", 1012, beside_a().attack(Attack::Frame).sends(1)),
        (
            "A forges RELEASED",
            621,
            introduced(1).link(A, V).attack(Attack::Inject(2, 1, Packet::Released { number: 1 })),
        ),
        (
            "A forges FORGET",
            621,
            introduced(1).link(A, B).attack(Attack::Inject(2, 1, Packet::Forget { number: 1, times: 1 })),
        ),
        (
            "A connects to V, and answers a connect of V",
            655,
            Configuration::default()
                .connects(V, H, 1)
                .connects(V, A, 1)
                .attack(Attack::Inject(1, 0, Packet::Reuse { lane: 1, link: 0 }))
                .attack(Attack::Inject(0, 0, Packet::Reuse { lane: 0, link: 1 })),
        ),
        (
            "yourself, and a false one",
            800,
            Configuration::default()
                .link(B, V)
                .link(A, V)
                .introduces(B, V, V, 1)
                .attack(Attack::FalseYourself)
                .calls_off(1)
                .deaths(2, &[A, B]),
        ),
        ("an introduced process introduces", 16287, introduced(1).introduces(H, V, B, 1)),
    ]
}

/// Returns the configurations with larger bounds.
pub fn larger() -> Vec<Case> {
    vec![
        ("lanes on a direct link", 88801, opened(2).sends(2)),
        ("two introductions, one is called off", 49384, introduced(2).calls_off(1)),
    ]
}
