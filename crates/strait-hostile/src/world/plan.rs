//! The plan of a round. Each process of a round draws the same plan from the seed.

use std::time::Duration;

use strait::{Options, Wait};

use crate::world::choices::Choices;

/// The plan of a round: what its processes have and do. Each process of the round draws the same plan from the seed.
#[derive(Clone, Debug)]
pub struct Plan {
    /// For each link between the attacker and the victim, whether the attacker has a copy of the victim's end.
    pub links: Vec<bool>,
    /// The limit of descriptors (`RLIMIT_NOFILE`) of the victim.
    pub descriptors: u64,
    /// Whether the victim has low limits on what it holds for its peers.
    pub tight: bool,
    /// Whether the victim's channels accept file descriptors.
    pub accepts: bool,
    /// Whether the victim waits for the bystander's messages by a wait set, instead of by a receive call.
    pub echoes_by_set: bool,
    /// Whether the attacker tries to mount a file system of its own (see [`Donors`](crate::world::donors::Donors)).
    pub has_donors: bool,
    /// Microseconds between two steps of the attacker.
    pub pace: u64,
    /// Whether the attacker only uses a processor and attacks nothing. Rounds with an attack are compared with such
    /// rounds.
    pub burns: bool,
    /// Whether the attacker is killed at the end of its part; otherwise the attacker ends by itself.
    pub killed: bool,
    /// Whether the attacker has the kernel attach its credentials to its handshakes, as an honest peer does.
    /// Otherwise its handshakes have credentials only if the victim asks for them first. Without credentials, the
    /// kernel does not tell the victim which process the attacker is.
    pub is_named: bool,
    /// The number of a set of options of the victim's channels, below `SIZES`.
    pub sizes: usize,
}

/// The number of sets of options.
const SIZES: usize = 4;

/// Every round whose number is a multiple of this number has an attacker that only uses a processor.
const BURNS_EVERY: u64 = 4;

impl Plan {
    /// Draws the plan of a round.
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
            is_named: !choices.one_in(4),
            sizes: choices.below(SIZES),
        }
    }

    /// Returns the options of the victim's channels.
    pub fn options(&self) -> Options {
        let options = Options::new().max_message(1 << 20).accept_descriptors(self.accepts);
        match self.sizes {
            0 => options,
            1 => options.ring(1 << 12).ring_max(1 << 16).inline_max(1000).spin(Duration::from_micros(20)),
            2 => options.queue_bytes(1 << 20).queue_messages(100).queue_handles(32).max_handles(16).wait(Wait::Block),
            _ => options.peer_memory(16 << 20).pool(0).wait(Wait::Adaptive),
        }
    }
}
