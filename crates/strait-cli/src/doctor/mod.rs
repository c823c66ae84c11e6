//! `strait doctor`: tries everything that Strait needs of the system, and prints the result of each check.
//!
//! [`checks`] has the checks. A check has a finding and, for a problem, a way to fix the problem.

mod checks;

use std::process::ExitCode;

use serde_json::{Value, json};
use strait_lab::machine;
use strait_lab::table;

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The check passed.
    Good,
    /// Strait works, with a restriction.
    Lacking {
        /// The restriction.
        so: &'static str,
        /// How to fix the problem.
        cure: String,
    },
    /// Strait does not work, because this check failed.
    Broken {
        /// How to fix the problem.
        cure: String,
    },
}

/// A finding of one check.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    /// The name of the check.
    what: &'static str,
    /// The finding of the check.
    found: String,
    /// The result.
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

/// Runs all checks and prints the findings. The exit code is a failure if Strait does not work on this machine.
pub(crate) fn run(json: bool) -> ExitCode {
    let findings = checks::all();
    let works = !findings.iter().any(|finding| matches!(finding.outcome, Outcome::Broken { .. }));
    if json {
        println!("{:#}", in_json(&findings, works));
    } else {
        print(&findings, works);
    }
    if works { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns the findings as JSON.
fn in_json(findings: &[Finding], works: bool) -> Value {
    let findings = findings.iter().map(|finding| {
        let (outcome, so) = words(&finding.outcome);
        let cure = cure(finding);
        json!({ "what": finding.what, "found": finding.found, "outcome": outcome, "restriction": so, "cure": cure })
    });
    json!({ "machine": machine::describe(), "works": works, "findings": findings.collect::<Value>() })
}

/// Returns the word for a result, and its restriction.
fn words(outcome: &Outcome) -> (&'static str, Option<&'static str>) {
    match outcome {
        Outcome::Good => ("good", None),
        Outcome::Lacking { so, .. } => ("limited", Some(so)),
        Outcome::Broken { .. } => ("broken", None),
    }
}

fn print(findings: &[Finding], works: bool) {
    println!("{}\n", machine::describe());
    let mut table = table::new(["", "", "", ""], 0..0);
    for finding in findings {
        let (mark, so) = match words(&finding.outcome) {
            ("broken", _) => ("BROKEN", ""),
            (mark, so) => (mark, so.unwrap_or_default()),
        };
        table.add_row([mark, finding.what, &finding.found, so]);
    }
    // The columns need no headings, so the first two lines of the table are left out.
    for (line, finding) in table.lines().skip(2).zip(findings) {
        println!("{}", line.trim_end());
        if let Some(cure) = cure(finding) {
            println!("      fix: {cure}");
        }
    }
    println!("\nStrait {} here.", if works { "works" } else { "does not work" });
}

/// Returns how to fix the problem found by a check; `None` if the check passed.
fn cure(finding: &Finding) -> Option<&str> {
    match &finding.outcome {
        Outcome::Good => None,
        Outcome::Lacking { cure, .. } | Outcome::Broken { cure } => Some(cure),
    }
}
