//! What a round is about: drawn from its seed by each of its processes alike.

use strait::Options;

use crate::world::choices::Choices;

/// A round.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Of each link between the attacker and the victim: whether the attacker has a copy of the victim's end.
    pub links: Vec<bool>,
    /// The victim's limit of descriptors.
    pub descriptors: u64,
    /// Whether the victim's limits for its peers are low.
    pub tight: bool,
    /// Whether the victim takes descriptors.
    pub accepts: bool,
    /// Whether the victim waits for the bystander by a set.
    pub echoes_by_set: bool,
    /// Whether the attacker has a file system of its own.
    pub has_donors: bool,
    /// Microseconds between the attacker's steps.
    pub pace: u64,
    /// The attacker does nothing but to use a processor: what the others are compared with.
    pub burns: bool,
    /// Whether the attacker is killed at its end, or ends by itself.
    pub killed: bool,
}

/// So often there is a round in which the attacker only uses a processor.
const BURNS_EVERY: u64 = 4;

impl Plan {
    /// The plan of a round.
    pub fn draw(seed: u64, round: u64) -> Self {
        let mut choices = Choices::of_seed(seed, round, 0);
        Self {
            links: (0..1 + choices.below(3)).map(|_| choices.one_in(2)).collect(),
            descriptors: choices.pick(&[1024, 4096, 20_000]),
            tight: choices.one_in(2),
            accepts: !choices.one_in(5),
            echoes_by_set: choices.one_in(2),
            has_donors: choices.one_in(3),
            pace: choices.pick(&[1, 200, 1000]),
            burns: round.is_multiple_of(BURNS_EVERY),
            killed: choices.one_in(2),
        }
    }

    /// Options of the victim's channels.
    pub fn options(&self) -> Options {
        Options::new().max_message(1 << 20).accept_descriptors(self.accepts)
    }
}
