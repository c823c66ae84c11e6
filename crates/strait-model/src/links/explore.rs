//! The search through every state.

use stateright::{Checker, HasDiscoveries, Model};

use super::configuration::Configuration;
use super::met::{Met, Seen};
use super::properties::Rules;
use crate::explore::show;

/// The result of a run.
#[derive(Debug)]
pub struct Report {
    /// How many different states there are.
    pub states: usize,
    /// The properties that do not hold, each with a shortest way there, the shortest first.
    pub wrong: Vec<(&'static str, String)>,
    /// The situations that came about.
    pub met: Vec<Met>,
}

impl Report {
    /// Fails, with the way there, if a property does not hold or one of these situations never came about.
    #[track_caller]
    pub fn assert_right(&self, name: &str, met: &[Met]) {
        assert!(self.states < LIMIT, "{name}: too many states");
        if let Some((property, path)) = self.wrong.first() {
            panic!("{name}: not so: {property}\n{path}");
        }
        for what in met {
            assert!(self.met.contains(what), "{name}: {what:?} never came about in {} states", self.states);
        }
    }
}

/// More states than any configuration here should have.
const LIMIT: usize = 8_000_000;

/// Explores every state of a configuration, or as many as it takes to find something wrong.
pub fn explore(configuration: Configuration) -> Report {
    run(configuration, HasDiscoveries::AnyFailures)
}

/// Explores the states of a configuration until this property does not hold.
pub fn explore_until(configuration: Configuration, property: &'static str) -> Report {
    run(configuration, HasDiscoveries::AnyOf([property].into()))
}

fn run(configuration: Configuration, until: HasDiscoveries) -> Report {
    let rules = Rules { configuration, seen: Seen::default() };
    let checker = rules.checker().target_state_count(LIMIT).finish_when(until).spawn_bfs().join();
    let mut paths: Vec<_> = checker.discoveries().into_iter().collect();
    paths.sort_by_key(|(_, path)| path.clone().into_states().len());
    let wrong = paths.into_iter().map(|(property, path)| (property, show(path))).collect();
    Report { states: checker.unique_state_count(), wrong, met: checker.model().seen.all() }
}
