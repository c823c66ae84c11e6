//! Traces: the last calls of a killed process can be read afterwards.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

fn text(trace: &PathBuf) -> String {
    String::from_utf8_lossy(&fs::read(trace).unwrap_or_default()).into_owned()
}

/// Returns the lines of a trace about calls, in the order of their numbers.
fn lines(trace: &PathBuf) -> Vec<(u64, String)> {
    let text = text(trace);
    let number = |line: &str| Some((line.split_whitespace().next()?.parse().ok()?, line.trim_end().to_owned()));
    let mut lines: Vec<_> = text.lines().filter_map(number).collect();
    lines.sort();
    lines
}

#[test]
fn the_last_calls_of_a_killed_process_are_in_its_trace() {
    let directory = std::env::temp_dir().join(format!("strait-trace-{}", std::process::id()));
    fs::create_dir(&directory).expect("a directory");
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait-world"));
    command.args(["--seconds", "0", "--seed", "5", "--faults", "0", "--trace"]).arg(&directory);
    let world = command.stdout(Stdio::piped()).spawn().expect("a world");
    let begin = Instant::now();
    let trace = loop {
        assert!(begin.elapsed() < Duration::from_secs(60), "no process has written 100 lines");
        let traces = fs::read_dir(&directory).expect("the directory").flatten().map(|entry| entry.path());
        if let Some(trace) = traces.into_iter().find(|trace| lines(trace).len() > 100) {
            break trace;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let pid = text(&trace).strip_prefix("process ").and_then(|rest| rest.split(',').next()?.parse().ok());
    let pid = pid.and_then(Pid::from_raw).expect("the number of the process");
    kill_process(pid, Signal::KILL).expect("the process runs");

    let output = world.wait_with_output().expect("the controller");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains(&trace.display().to_string()), "{said}");
    let lines = lines(&trace);
    let (_, returned) = lines.split_last().expect("lines");
    assert!(returned.iter().all(|(_, line)| line.contains("] -> ")), "{returned:#?}");
    assert!(lines.windows(2).all(|two| two[0].0 + 1 == two[1].0), "{lines:#?}");
    fs::remove_dir_all(&directory).expect("the directory");
}
