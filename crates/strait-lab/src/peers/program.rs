//! The measuring programs, one for each library.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde::Deserialize;

use super::results::Run;
use super::row::{Form, Row};
use crate::trouble::{Result, Trouble, While};

/// The begin of the name of each program.
const PREFIX: &str = "peer-";

/// A program, with the description of its library.
#[derive(Clone, Debug)]
pub struct Program {
    /// The name of the program without `peer-`.
    pub name: String,
    /// The name of the library in tables.
    pub title: String,
    /// A description of the form *default*.
    pub default: String,
    /// A description of the form *tuned*, if the library's documentation advises anything.
    pub tuned: Option<String>,
    path: PathBuf,
}

#[derive(Deserialize)]
struct Description {
    title: String,
    default: String,
    tuned: Option<String>,
}

/// The result of a run of a program.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The figures of the run.
    Measured(Box<Run>),
    /// The library does not offer the row, for this reason.
    Lacking(String),
    /// The program failed, and said this.
    Failed(String),
}

impl Program {
    /// Returns the programs in `directory`, Strait first and the others by name. If `only` names programs, returns only
    /// these.
    ///
    /// # Errors
    ///
    /// If the directory cannot be read, or lacks Strait's program or one of `only`; the error says how to build them.
    /// Also if one of the returned programs does not describe itself.
    pub fn all(directory: &Path, only: &[String]) -> Result<Vec<Self>> {
        let how = "build the programs first, in a checkout: tools/peers";
        let entries = std::fs::read_dir(directory)
            .map_err(|error| Trouble::new(format!("{}: {error}; {how}", directory.display())))?;
        let mut found = Vec::new();
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if let Some(name) = name.strip_prefix(PREFIX).filter(|name| !name.contains('.')) {
                found.push((name.to_owned(), entry.path()));
            }
        }
        let has = |name: &str| found.iter().any(|(found, _)| found == name);
        if !has("strait") {
            return Err(Trouble::new(format!("{} has no program peer-strait; {how}", directory.display())));
        }
        if let Some(name) = only.iter().find(|name| !has(name)) {
            let directory = directory.display();
            return Err(Trouble::new(format!(
                "{directory} has no program peer-{name}; in a checkout: tools/peers {name}"
            )));
        }
        found.retain(|(name, _)| only.is_empty() || only.contains(name));
        found.sort_by_key(|(name, _)| (name != "strait", name.clone()));
        found.into_iter().map(|(name, path)| Self::described(&name, path)).collect()
    }

    fn described(name: &str, path: PathBuf) -> Result<Self> {
        let output = Command::new(&path).arg("describe").output().doing(&path.display().to_string())?;
        if !output.status.success() {
            let again = format!("build the program again, in a checkout: tools/peers {name}");
            return Err(Trouble::new(format!("{}: {}; {again}", path.display(), failure(&output))));
        }
        let described: Description =
            serde_json::from_slice(&output.stdout).doing(&format!("the description by {}", path.display()))?;
        let Description { title, default, tuned } = described;
        Ok(Self { name: name.to_owned(), title, default, tuned, path })
    }

    /// Runs the program once.
    pub(super) fn run(
        &self,
        form: Form,
        row: Row,
        processors: Option<[usize; 2]>,
        milliseconds: u64,
    ) -> Result<Outcome> {
        let processors = processors.map_or("-".to_owned(), |[client, server]| format!("{client},{server}"));
        // No measurement takes longer than this but by a fault of the library: such a program is ended.
        let limit = (30 + milliseconds / 100).to_string();
        let output = Command::new("timeout")
            .args(["--kill-after=5", &limit])
            .arg(&self.path)
            .args(["run", form.name(), row.word(), &row.size().to_string(), &processors, &milliseconds.to_string()])
            .output()
            .doing("timeout")?;
        if output.status.code() == Some(124) {
            return Ok(Outcome::Failed(format!("no end within {limit} s")));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        Ok(match serde_json::from_str::<Run>(text.trim()) {
            Ok(Run { lacking: Some(why), .. }) if output.status.success() => Outcome::Lacking(why),
            Ok(run) if output.status.success() => Outcome::Measured(Box::new(run)),
            // A program that died after its line may have measured anything.
            _ => Outcome::Failed(failure(&output)),
        })
    }
}

/// Returns why a program failed: its last word, and its status unless the program ended by itself with the usual code.
fn failure(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    match (output.status, said.lines().last().unwrap_or_default().trim()) {
        (status, "") => status.to_string(),
        (status, word) if status.code() == Some(1) => word.to_owned(),
        (status, word) => format!("{status}: {word}"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::{Outcome, Program};
    use crate::peers::{Form, Row};

    fn program(directory: &Path, name: &str, script: &str) {
        let path = directory.join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    }

    const DESCRIBED: &str = r#"[ "$1" = describe ] && echo '{"title":"T","default":"d","tuned":null}' && exit"#;

    #[test]
    fn a_directory_without_the_programs_says_how_to_build_them() {
        let directory = tempfile::tempdir().unwrap();
        let error = |path: &Path| Program::all(path, &[]).unwrap_err().to_string();
        assert!(error(&directory.path().join("none")).contains("tools/peers"));
        assert!(error(directory.path()).contains("tools/peers"));
    }

    #[test]
    fn a_program_is_described_and_run() {
        let directory = tempfile::tempdir().unwrap();
        program(directory.path(), "peer-strait", &format!(r#"{DESCRIBED}; echo '{{"p50":7,"count":1}}'"#));
        program(directory.path(), "peer-a", &format!(r#"{DESCRIBED}; echo '{{"lacking":"not offered"}}'"#));
        program(directory.path(), "peer-b", &format!("{DESCRIBED}; echo broken >&2; exit 1"));
        std::fs::write(directory.path().join("peer-a.d"), "").unwrap();
        program(directory.path(), "peer-c", &format!(r#"{DESCRIBED}; echo '{{"p50":7,"count":1}}'; kill -SEGV $$"#));
        let programs = Program::all(directory.path(), &[]).unwrap();
        assert_eq!(programs.iter().map(|program| program.name.as_str()).collect::<Vec<_>>(), ["strait", "a", "b", "c"]);
        let run = |index: usize| programs[index].run(Form::Default, Row::RoundTrip(64), None, 1).unwrap();
        assert!(matches!(run(0), Outcome::Measured(run) if run.p50 == Some(7.0)));
        assert!(matches!(run(1), Outcome::Lacking(why) if why == "not offered"));
        assert!(matches!(run(2), Outcome::Failed(why) if why == "broken"));
        // A program that dies after its line has no figure.
        assert!(matches!(run(3), Outcome::Failed(why) if why.contains("SIGSEGV") || why.contains("139")));
    }

    #[test]
    fn a_program_that_does_not_start_is_no_obstacle_for_the_others() {
        let directory = tempfile::tempdir().unwrap();
        program(directory.path(), "peer-strait", DESCRIBED);
        program(directory.path(), "peer-a", "echo libzmq.so.5 is missing >&2; exit 127");
        let only = ["strait".to_owned()];
        assert_eq!(Program::all(directory.path(), &only).unwrap().len(), 1);
        let error = Program::all(directory.path(), &[]).unwrap_err().to_string();
        assert!(error.contains("libzmq.so.5 is missing; build the program again"), "{error}");
        let error = Program::all(directory.path(), &["b".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("tools/peers b"), "{error}");
    }
}
