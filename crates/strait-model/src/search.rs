//! The search through every state of a model, and its cases: shared by the model of the protocol and the model of the
//! rules for links.

use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

use stateright::{Checker, HasDiscoveries, Model, Path};

/// A configuration `C` of a model and its expected result; `M` are the situations of the model.
#[derive(Debug)]
pub struct Case<C, M> {
    /// The name of the case: a few words.
    pub name: &'static str,
    /// The bounds of the search.
    pub configuration: C,
    /// The situations that must come about in the search.
    pub met: Vec<M>,
    /// The expected number of different states, as in the tables of the documentation.
    pub states: usize,
}

/// The result of a search.
#[derive(Debug)]
pub struct Report<M> {
    /// The number of different states.
    pub states: usize,
    /// The violated properties, each with a shortest path to a violation, the shortest path first.
    pub wrong: Vec<(&'static str, String)>,
    /// The situations reached in the search.
    pub met: Vec<M>,
}

impl<M: Debug + PartialEq> Report<M> {
    /// Panics, with the path, if a property does not hold; also if a situation in `met` never came about, or the search
    /// reached too many states.
    #[track_caller]
    pub fn assert_right(&self, name: &str, met: &[M]) {
        assert!(self.states < LIMIT, "{name}: too many states");
        if let Some((property, path)) = self.wrong.first() {
            panic!("{name}: not so: {property}\n{path}");
        }
        for what in met {
            assert!(self.met.contains(what), "{name}: {what:?} never came about in {} states", self.states);
        }
    }
}

/// The number of states at which a search stops; every configuration has fewer.
const LIMIT: usize = 8_000_000;

/// Searches the states of a model: until the properties in `until` are violated, or else all states. `met` returns
/// the situations reached.
pub(crate) fn search<R, M>(model: R, until: HasDiscoveries, met: impl Fn(&R) -> Vec<M>) -> Report<M>
where
    R: Model + Send + Sync + 'static,
    R::State: Clone + PartialEq + Hash + Debug + Send + Sync + 'static,
    R::Action: Clone + PartialEq + Debug,
{
    let checker = model.checker().target_state_count(LIMIT).finish_when(until).spawn_bfs().join();
    let mut paths: Vec<_> = checker.discoveries().into_iter().collect();
    paths.sort_by_key(|(_, path)| path.clone().into_states().len());
    let wrong = paths.into_iter().map(|(property, path)| (property, show(path))).collect();
    Report { states: checker.unique_state_count(), wrong, met: met(checker.model()) }
}

/// Explores each case to its end and checks its result. Prints the rows of the table in the documentation.
///
/// # Panics
/// If a case violates a property, does not reach a situation, or does not have the expected number of states.
#[track_caller]
pub fn check<C, M: Debug + PartialEq>(cases: Vec<Case<C, M>>, explore: impl Fn(C) -> Report<M>) {
    let mut other = Vec::new();
    for case in cases {
        let begun = Instant::now();
        let report = explore(case.configuration);
        println!("//! | {} | {} | ({:.1} s)", case.name, report.states, begun.elapsed().as_secs_f64());
        report.assert_right(case.name, &case.met);
        if report.states != case.states {
            other.push((case.name, case.states, report.states));
        }
    }
    assert!(other.is_empty(), "the table says another number of states; see whether that was meant: {other:#?}");
}

/// Returns the actions of a path as text. Behind each action are the changed lines of the state.
fn show<S: Debug, A: Debug>(path: Path<S, A>) -> String {
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
