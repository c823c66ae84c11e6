//! The one error of the program: a sentence.
//!
//! Hardly anything here is ever handled by kind. A run that broke is reported in its row, and everything else ends the
//! program, so what an error needs is to read well. The one kind that there is: a *limit*, which a mechanism is known
//! to have, and which this machine has just shown. It is a finding about the mechanism and no failure.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Why something did not work, in words for the person at the terminal.
///
/// One pointer, so that a loop whose calls all could fail hands nothing larger around.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Trouble(Box<Told>);

#[derive(Debug, Serialize, Deserialize)]
struct Told {
    words: String,
    is_limit: bool,
}

/// What everything that can fail in this program returns.
pub type Result<T> = std::result::Result<T, Trouble>;

impl Trouble {
    /// An error that says `words`.
    #[cold]
    pub fn new(words: impl Into<String>) -> Self {
        Self::told(words.into(), false)
    }

    /// A limit of a mechanism on this machine, in `words`: it cannot do what is asked of it here, and that is known.
    #[cold]
    pub fn limit(words: impl Into<String>) -> Self {
        Self::told(words.into(), true)
    }

    #[cold]
    #[inline(never)]
    fn told(words: String, is_limit: bool) -> Self {
        Self(Box::new(Told { words, is_limit }))
    }

    /// Whether it is a known limit, and not something that broke.
    pub fn is_limit(&self) -> bool {
        self.0.is_limit
    }

    /// One error of the two sides of a run. A limit that one side met explains what became of the other.
    pub(crate) fn of_both(first: Self, second: Self) -> Self {
        match (first.is_limit(), second.is_limit()) {
            (true, _) => first,
            (false, true) => second,
            (false, false) => Self::new(format!("{first}; {second}")),
        }
    }

    /// The same, of whom `who` names.
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

/// Says which step failed.
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
