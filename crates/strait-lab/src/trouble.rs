//! The one error of the program: a sentence.
//!
//! Nothing here is ever handled by kind. A run that broke is reported in its row, and everything else ends the
//! program, so what an error needs is to read well.

use std::fmt;

/// Why something did not work, in words for the person at the terminal.
#[derive(Debug)]
pub struct Trouble(Box<str>);

/// What everything that can fail in this program returns.
pub type Result<T> = std::result::Result<T, Trouble>;

impl Trouble {
    /// An error that says `words`.
    pub fn new(words: impl Into<String>) -> Self {
        Self(words.into().into_boxed_str())
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
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
