//! The one error type of the program: a sentence.
//!
//! Hardly any error here is handled by its kind. A broken run is reported in its row, and every other error ends the
//! program, so an error needs to read well. There is one exception, a *limit*: a known limit of a mechanism, just met
//! on this machine. A limit is a finding about the mechanism, not a failure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// An error: why something did not work, in words for the person at the terminal.
///
/// A `Trouble` is one pointer wide, so that the measuring loops, where every call can fail, return small values.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Trouble(Box<Told>);

#[derive(Debug, Serialize, Deserialize)]
struct Told {
    words: String,
    is_limit: bool,
}

/// The result of every fallible function in this program.
pub type Result<T> = std::result::Result<T, Trouble>;

impl Trouble {
    /// Returns an error with the text `words`.
    #[cold]
    pub fn new(words: impl Into<String>) -> Self {
        Self::told(words.into(), false)
    }

    /// Returns a known limit of a mechanism on this machine, described by `words`.
    #[cold]
    pub fn limit(words: impl Into<String>) -> Self {
        Self::told(words.into(), true)
    }

    #[cold]
    #[inline(never)]
    fn told(words: String, is_limit: bool) -> Self {
        Self(Box::new(Told { words, is_limit }))
    }

    /// Whether this error is a known limit of a mechanism (not a failure).
    pub fn is_limit(&self) -> bool {
        self.0.is_limit
    }

    /// Combines the errors of the two sides of a run. If one side met a limit, the limit explains the other side's
    /// error, and is returned alone.
    pub(crate) fn of_both(first: Self, second: Self) -> Self {
        match (first.is_limit(), second.is_limit()) {
            (true, _) => first,
            (false, true) => second,
            (false, false) => Self::new(format!("{first}; {second}")),
        }
    }

    /// Puts the name of a process, `who`, before the text of the error, unless the error is a limit.
    pub(crate) fn of(mut self, who: &str) -> Self {
        if !self.is_limit() {
            self.0.words = format!("{who}: {}", self.0.words);
        }
        self
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.words)
    }
}

impl std::error::Error for Trouble {}

/// Adds a description of the failed step to an error.
pub trait While<T> {
    /// Puts `doing` before the error: "opening a pipe: too many open files".
    fn doing(self, doing: &str) -> Result<T>;
}

impl<T, E: fmt::Display> While<T> for std::result::Result<T, E> {
    #[inline]
    fn doing(self, doing: &str) -> Result<T> {
        self.map_err(|error| explain(doing, &error))
    }
}

#[cold]
fn explain(doing: &str, error: &dyn fmt::Display) -> Trouble {
    Trouble::new(format!("{doing}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::Trouble;

    #[test]
    fn a_limit_explains_what_became_of_the_other_side() {
        let broke = || Trouble::new("the other end is closed");
        let limit = || Trouble::limit("no room");
        assert!(Trouble::of_both(broke(), limit().of("second process")).is_limit());
        assert_eq!(Trouble::of_both(limit(), broke()).to_string(), "no room");
        let both = Trouble::of_both(broke(), broke().of("second process"));
        assert!(!both.is_limit());
        assert_eq!(both.to_string(), "the other end is closed; second process: the other end is closed");
    }

    #[test]
    fn a_limit_stays_one_on_its_way_between_processes() {
        let sent = serde_json::to_string(&Trouble::limit("no room")).unwrap();
        let came: Trouble = serde_json::from_str(&sent).unwrap();
        assert!(came.is_limit() && came.to_string() == "no room");
    }
}
