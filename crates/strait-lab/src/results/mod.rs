//! What is kept of a suite: one JSON file, whose form [`schema`] describes.
//!
//! A [`Figure`] is one [`Work`] with the [`Report`](crate::work::Report) of each of its repetitions, and says of itself how far it can be
//! believed: see [`State`]. Nothing that went wrong is left out.

pub mod figure;
pub mod tables;

use std::fs;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::trouble::{Result, Trouble, While};
use crate::work::Work;

pub use self::figure::{Each, Figure, State, Summary};

/// The form that this program writes and reads. It grows by one when a field changes its meaning or goes.
pub const FORMAT: u32 = 1;

/// What a suite found. Times are in nanoseconds unless a name says otherwise.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Results {
    /// The form of this file: [`FORMAT`].
    pub format: u32,
    /// Which suite.
    pub suite: String,
    /// When it began, in seconds since 1970.
    pub began: u64,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// Whether it came to its end. If not, what was done is kept.
    pub complete: bool,
    /// Where it was taken.
    pub machine: Machine,
    /// What the measuring itself costs.
    pub harness: Harness,
    /// The order of the runs was drawn from this.
    pub seed: u64,
    /// What could not be counted here, and why: a counter that is absent in every figure.
    #[serde(default)]
    pub missing: Vec<[String; 2]>,
    /// The fractions at which the curves of distributions are kept.
    #[serde(default)]
    pub quantiles: Vec<f64>,
    /// Every figure, in the order of the suite.
    pub figures: Vec<Figure>,
}

/// What the measuring itself costs, taken just before the suite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Harness {
    /// One reading of the clock.
    pub clock: f64,
    /// One round trip of 64 bytes through the loops of a ping-pong with nothing behind them: writing the message, checking
    /// the answer, and the share of the clock.
    pub empty: f64,
}

impl Results {
    /// Reads what [`write`](Self::write) wrote.
    ///
    /// # Errors
    /// If the file cannot be read, is not such a file, or has a newer form than this program knows.
    pub fn read(file: &Path) -> Result<Self> {
        let name = file.display();
        let text = fs::read_to_string(file).doing(&format!("reading {name}"))?;
        #[derive(Deserialize)]
        struct Form {
            format: u32,
        }
        let form: Form = serde_json::from_str(&text).doing(&format!("{name} holds no results"))?;
        if form.format != FORMAT {
            return Err(Trouble::new(format!(
                "{name} has form {}, and this program knows form {FORMAT}: take it again, or use the program that wrote it",
                form.format
            )));
        }
        serde_json::from_str(&text).doing(&format!("{name} holds no results"))
    }

    /// Writes everything as JSON.
    ///
    /// # Errors
    /// If the file cannot be written. It is whole or untouched: it is written beside itself and renamed.
    pub fn write(&self, file: &Path) -> Result<()> {
        let text = serde_json::to_string_pretty(self).doing("writing JSON")?;
        let name = file.display();
        let beside = file.with_extension("json.new");
        fs::write(&beside, text).doing(&format!("writing {name}"))?;
        fs::rename(&beside, file).doing(&format!("writing {name}"))
    }

    /// The figure of this work, if it is there.
    pub fn figure(&self, work: &Work) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.work.is_same_case(work))
    }
}

/// The form of the file, as JSON Schema.
pub fn schema() -> String {
    let schema = schemars::schema_for!(Results);
    serde_json::to_string_pretty(&schema).expect("a schema is JSON")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_form_in_the_documentation_is_that_of_the_program() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/results.schema.json");
        let kept = std::fs::read_to_string(file).unwrap_or_default();
        let stale = "docs/results.schema.json is out of date: cargo run -- bench schema > docs/results.schema.json";
        assert!(kept.trim() == super::schema().trim(), "{stale}");
    }
}
