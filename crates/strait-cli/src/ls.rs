//! `strait ls`: lists listeners.

use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use strait::meet::{self, Listening};
use strait_lab::table;
use strait_lab::trouble::{Result, While};

use crate::cli::Ls;

/// Prints the listeners of this user, or in a directory.
pub(crate) fn run(asked: &Ls) -> Result<()> {
    let directory = asked.directory.as_deref();
    if let Some(directory) = directory {
        // A missing directory has no names. But a missing directory on the command line is a mistake.
        std::fs::read_dir(directory).doing(&format!("opening {}", directory.display()))?;
    }
    if asked.prune {
        let removed = meet::prune(directory).doing("removing the names of dead listeners")?;
        removed.iter().for_each(|name| eprintln!("removed {name}"));
    }
    let there = meet::names(directory).doing("listing listeners")?;
    if asked.json {
        println!("{:#}", there.iter().map(in_json).collect::<Value>());
    } else if let (true, Some(directory)) = (there.is_empty(), directory) {
        println!("No listeners in {}.", directory.display());
    } else if there.is_empty() {
        println!("No listeners of this user.");
    } else {
        print(there);
    }
    Ok(())
}

/// Returns everything known about a listener, as JSON, with the time in seconds since 1970.
fn in_json(listening: &Listening) -> Value {
    let since = listening.since.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    json!({
        "name": listening.name,
        "uid": listening.uid,
        "pid": listening.pid,
        "since": since.as_secs(),
        "live": listening.is_live,
    })
}

fn print(there: Vec<Listening>) {
    let mut table = table::new(["name", "user", "process", "since", ""], 2..3);
    for listening in there {
        let process = listening.pid.filter(|_| listening.is_live);
        table.add_row([
            listening.name,
            user(listening.uid),
            process.map_or_else(|| "–".to_owned(), |pid| pid.to_string()),
            ago(listening.since),
            if listening.is_live { process.and_then(program).unwrap_or_default() } else { "gone".to_owned() },
        ]);
    }
    println!("{table}");
}

/// Returns the name of a user, or the uid if the user has no name.
fn user(uid: u32) -> String {
    let named = |line: &str| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == uid.to_string()).then(|| name.to_owned())
    };
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    users.lines().find_map(named).unwrap_or_else(|| uid.to_string())
}

/// Returns the name of a process's program; `None` if the process is gone.
fn program(pid: u32) -> Option<String> {
    Some(std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?.trim().to_owned())
}

/// Formats the age of `time`, in the largest unit of which at least two have passed.
fn ago(time: SystemTime) -> String {
    let seconds = time.elapsed().unwrap_or(Duration::ZERO).as_secs();
    let units = [(86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds")];
    let (size, unit) = units.into_iter().find(|(size, _)| seconds >= 2 * size).unwrap_or((1, "seconds"));
    format!("{} {unit} ago", seconds / size)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_in_the_largest_unit_that_tells_something() {
        let before = |seconds| ago(SystemTime::now() - Duration::from_secs(seconds));
        assert_eq!(before(0), "0 seconds ago");
        assert_eq!(before(119), "119 seconds ago");
        assert_eq!(before(120), "2 minutes ago");
        assert_eq!(before(3 * 86400 + 5), "3 days ago");
    }
}
