//! The search through every state of the protocol.

use stateright::HasDiscoveries;

use crate::configuration::Configuration;
use crate::met::{Met, Seen};
use crate::properties::Protocol;
use crate::search::{Report, search};

/// Explores every state of a configuration, or all states up to the end of the level at which each property is violated.
pub fn explore(configuration: Configuration) -> Report<Met> {
    search(Protocol { configuration, seen: Seen::default() }, HasDiscoveries::All, |model| model.seen.all())
}
