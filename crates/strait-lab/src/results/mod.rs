//! Results: a suite is stored as one JSON file, whose format the feature `schema` describes.
//!
//! A [`Figure`] is one [`Work`] with the [`Report`](crate::work::Report) of each of its repetitions. Its [`State`]
//! says how reliable it is. No failure is left out.

pub mod figure;
pub mod tables;

use std::fs;
use std::path::Path;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::trouble::{Result, Trouble, While};
use crate::work::Work;

pub use self::figure::{Each, Figure, State, Summary};

/// The format version that this program writes and reads. It is incremented when a field changes its meaning or is
/// removed.
pub const FORMAT: u32 = 1;

/// The results of a suite. Times are in nanoseconds unless a name says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct Results {
    /// The format version of this file.
    pub format: u32,
    /// The name of the suite.
    pub suite: String,
    /// When the suite began, in seconds since 1970.
    pub began: u64,
    /// The duration of the suite in seconds.
    pub seconds: f64,
    /// Whether all repetitions were completed. If not, the completed runs are stored.
    pub complete: bool,
    /// The machine on which the suite ran.
    pub machine: Machine,
    /// The cost of the measuring itself.
    pub harness: Harness,
    /// Random seed for the order of the runs.
    pub seed: u64,
    /// Counters that are absent in every figure, each with the reason.
    #[serde(default)]
    pub missing: Vec<[String; 2]>,
    /// The fractions at which the curves of distributions are stored.
    #[serde(default)]
    pub quantiles: Vec<f64>,
    /// Every figure, in the order of the suite.
    pub figures: Vec<Figure>,
}

/// The cost of the measuring itself in nanoseconds, measured just before the suite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct Harness {
    /// The duration of one reading of the clock.
    pub clock: f64,
    /// The duration of one 64-byte round trip through the loops of a ping-pong without a mechanism: writing the
    /// message, checking the answer, and a share of reading the clock.
    pub empty: f64,
}

impl Results {
    /// Reads a file that contains results as JSON, as `strait bench -o` writes them.
    ///
    /// # Errors
    /// If the file cannot be read, contains no results, or has another format version than this program knows.
    pub fn read(file: &Path) -> Result<Self> {
        let name = file.display();
        let text = fs::read_to_string(file).doing(&format!("reading {name}"))?;
        #[derive(Deserialize)]
        struct Form {
            format: u32,
        }
        let form: Form = serde_json::from_str(&text).doing(&format!("{name} does not contain results"))?;
        if form.format != FORMAT {
            return Err(Trouble::new(format!(
                "{name} has form {}, and this program reads form {FORMAT}: measure again, or use the program that wrote it",
                form.format
            )));
        }
        serde_json::from_str(&text).doing(&format!("{name} does not contain results"))
    }

    /// Returns the figure of `work`, if there is one. Processor numbers and lengths of runs may differ.
    pub fn figure(&self, work: &Work) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.work.is_same_case(work))
    }
}

/// Returns the format of the file as JSON Schema.
#[cfg(feature = "schema")]
pub fn schema() -> String {
    let schema = schemars::schema_for!(Results);
    serde_json::to_string_pretty(&schema).expect("a schema is JSON")
}

#[cfg(all(test, feature = "schema"))]
mod tests {
    #[test]
    fn the_form_in_the_documentation_is_that_of_the_program() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results.schema.json");
        let kept = std::fs::read_to_string(file).unwrap_or_default();
        let again = "cargo run --features report -- bench schema > docs/results.schema.json";
        let stale = format!("docs/results.schema.json is out of date: {again}");
        assert!(kept.trim() == super::schema().trim(), "{stale}");
    }
}
