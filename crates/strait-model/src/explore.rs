//! The search through every state.

use std::fmt::Debug;

use stateright::{Checker, Model, Path};

use crate::configuration::Configuration;
use crate::met::{Met, Seen};
use crate::properties::Protocol;

/// What a run found.
#[derive(Debug)]
pub struct Report {
    /// How many different states there are.
    pub states: usize,
    /// The properties that do not hold, each with a shortest way there, the shortest first.
    pub wrong: Vec<(&'static str, String)>,
    /// What came about.
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
    let checker =
        Protocol { configuration, seen: Seen::default() }.checker().target_state_count(LIMIT).spawn_bfs().join();
    let mut paths: Vec<_> = checker.discoveries().into_iter().collect();
    paths.sort_by_key(|(_, path)| path.clone().into_states().len());
    let wrong = paths.into_iter().map(|(property, path)| (property, show(path))).collect();
    Report { states: checker.unique_state_count(), wrong, met: checker.model().seen.all() }
}

/// The actions, and behind each the lines of the state that it changed.
pub(crate) fn show<S: Debug, A: Debug>(path: Path<S, A>) -> String {
    let (mut text, mut before) = (String::new(), String::new());
    for (state, action) in path.into_vec() {
        let now = format!("{state:?}");
        let known: Vec<_> = before.lines().collect();
        for line in now.lines().filter(|line| !known.contains(line)) {
            text += line;
            text.push('\n');
        }
        before = now;
        if let Some(action) = action {
            text += &format!("=> {action:?}\n");
        }
    }
    text
}
