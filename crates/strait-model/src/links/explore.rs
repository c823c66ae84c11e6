//! The search through every state of the rules for links.

use stateright::HasDiscoveries;

use super::configuration::Configuration;
use super::met::{Met, Seen};
use super::properties::Rules;
use crate::search::{Report, search};

/// Explores every state of a configuration, or only as many as a counter-example takes.
pub fn explore(configuration: Configuration) -> Report<Met> {
    run(configuration, HasDiscoveries::AnyFailures)
}

/// Explores the states of a configuration until `property` does not hold.
pub fn explore_until(configuration: Configuration, property: &'static str) -> Report<Met> {
    run(configuration, HasDiscoveries::AnyOf([property].into()))
}

fn run(configuration: Configuration, until: HasDiscoveries) -> Report<Met> {
    search(Rules { configuration, seen: Seen::default() }, until, |model| model.seen.all())
}
