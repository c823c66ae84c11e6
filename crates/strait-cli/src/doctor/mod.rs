//! What works on this machine, and what does not, and why: each thing that Strait asks of the system is tried.
//!
//! [`checks`] are what is tried; a check says what it found and, if that is not as it should be, what mends it.

mod checks;

use std::process::ExitCode;

use strait_lab::machine;
use strait_lab::table;

/// What came of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// As it should be.
    Good,
    /// Strait works without it, with the restriction that is named.
    Lacking {
        /// What is not so good for it.
        so: &'static str,
        /// What mends it.
        cure: String,
    },
    /// Strait does not work.
    Broken {
        /// What mends it.
        cure: String,
    },
}

/// One thing that was looked at.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    what: &'static str,
    found: String,
    outcome: Outcome,
}

impl Finding {
    fn good(what: &'static str, found: impl Into<String>) -> Self {
        Self { what, found: found.into(), outcome: Outcome::Good }
    }

    fn lacking(what: &'static str, found: impl Into<String>, so: &'static str, cure: impl Into<String>) -> Self {
        Self { what, found: found.into(), outcome: Outcome::Lacking { so, cure: cure.into() } }
    }

    fn broken(what: &'static str, found: impl Into<String>, cure: impl Into<String>) -> Self {
        Self { what, found: found.into(), outcome: Outcome::Broken { cure: cure.into() } }
    }
}

/// Prints what was found. Fails if Strait does not work here.
pub(crate) fn run() -> ExitCode {
    println!("{}\n", machine::describe());
    let findings = checks::all();
    let mut table = table::new(["", "", "", ""], 0..0);
    for finding in &findings {
        let (mark, so) = match finding.outcome {
            Outcome::Good => ("good", ""),
            Outcome::Lacking { so, .. } => ("lacking", so),
            Outcome::Broken { .. } => ("BROKEN", ""),
        };
        table.add_row([mark, finding.what, &finding.found, so]);
    }
    // There is nothing to say over these columns.
    let lines: Vec<String> = table.lines().skip(2).collect();
    println!("{}", lines.join("\n"));
    let cures: Vec<_> = findings.iter().filter_map(cure).collect();
    if !cures.is_empty() {
        println!("\nWhat mends it:");
        for (what, cure) in cures {
            println!("  {what}: {cure}");
        }
    }
    if findings.iter().any(|finding| matches!(finding.outcome, Outcome::Broken { .. })) {
        println!("\nStrait does not work here.");
        return ExitCode::FAILURE;
    }
    println!("\nStrait works here.");
    ExitCode::SUCCESS
}

fn cure(finding: &Finding) -> Option<(&'static str, &str)> {
    match &finding.outcome {
        Outcome::Good => None,
        Outcome::Lacking { cure, .. } | Outcome::Broken { cure } => Some((finding.what, cure)),
    }
}
