//! The search through every state of the protocol.

use stateright::HasDiscoveries;

use crate::configuration::Configuration;
use crate::met::{Met, Seen};
use crate::properties::Protocol;
use crate::search::{Report, search};

/// Explores every state of a configuration. Once every property is violated, explores only the states up to the end
/// of that level of the search.
pub fn explore(configuration: Configuration) -> Report<Met> {
    search(Protocol { configuration, seen: Seen::default() }, HasDiscoveries::All, |model| model.seen.all())
}
