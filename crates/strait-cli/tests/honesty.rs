//! Tests that the benchmark reports no wrong figures: messages lost, doubled, torn or out of order, processes that die,
//! disturbances, unsupported mechanisms and benchmarks not reached are shown as such, and never as a figure. The tests
//! need mechanisms that break messages; programs with the feature `suites` have such mechanisms.
#![cfg(feature = "suites")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

fn strait(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    command.args(words).stdin(Stdio::null());
    command
}

fn run(words: &[&str]) -> Output {
    strait(words).output().expect("the program starts")
}

/// Runs `strait bench table`, and returns its figures and whether the program failed.
fn table(words: &[&str]) -> (Vec<Value>, bool) {
    let output = run(&[&["bench", "table", "--sizes", "64", "--repetitions", "1", "--json"], words].concat());
    let results: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    (results["figures"].as_array().expect("figures").clone(), !output.status.success())
}

#[test]
fn a_mechanism_that_breaks_messages_has_no_figure() {
    for (mechanism, words) in [
        ("faulty-loses", "where message 499 was due"),
        ("faulty-doubles", "came where message"),
        ("faulty-tears", "torn"),
        ("faulty-reorders", "where message 499 was due"),
        ("faulty-dies", "second process died"),
    ] {
        let shapes = if mechanism == "faulty-tears" { "stream,ping-pong" } else { "stream" };
        // More than 500 messages, however short the time is.
        let asked = ["--mechanisms", mechanism, "--shapes", shapes, "--waiting", "block", "--cpus", "0"];
        let (figures, failed) = table(&[&asked[..], &["--count", "1000"]].concat());
        assert!(failed, "{mechanism}");
        assert!(!figures.is_empty());
        for figure in figures {
            assert_eq!(figure["state"]["state"], "broken", "{mechanism}: {figure}");
            assert!(figure["state"]["why"].as_str().unwrap().contains(words), "{mechanism}: {figure}");
            assert!(figure["summary"].is_null(), "{mechanism}: {figure}");
        }
    }
    // Pipes without the fault give figures.
    let (figures, failed) = table(&["--mechanisms", "pipe", "--shapes", "stream", "--waiting", "block", "--cpus", "0"]);
    assert!(!failed && figures.iter().all(|figure| figure["summary"].is_object()));
}

#[test]
fn a_message_that_never_comes_is_no_figure_either() {
    let words = ["--mechanisms", "faulty-loses", "--shapes", "ping-pong", "--waiting", "block", "--count", "1000"];
    let (figures, failed) = table(&[&words[..], &["--cpus", "0", "--only", "same core"]].concat());
    assert!(failed && figures.len() == 1);
    assert!(figures[0]["state"]["why"].as_str().unwrap().contains("hangs or died"), "{}", figures[0]);
}

#[test]
fn what_the_machine_lacks_is_said() {
    let (figures, failed) = table(&["--mechanisms", "faulty-lacking", "--waiting", "block", "--cpus", "0"]);
    assert!(!failed, "to lack something is no failure");
    for figure in figures {
        assert_eq!(figure["state"]["state"], "lacking");
        assert_eq!(figure["state"]["why"], "no machine has it");
        assert!(figure["summary"].is_null());
    }
    let words = ["bench", "table", "--mechanisms", "faulty-lacking", "--waiting", "block", "--count", "1"];
    let said = String::from_utf8(run(&words).stdout).unwrap();
    assert!(said.contains("not here: faulty-lacking") && said.contains("no machine has it"), "{said}");

    // If a limit is reached during the run, there is no figure, and no failure.
    let words = ["--mechanisms", "faulty-limited", "--shapes", "stream,ping-pong", "--waiting", "block", "--cpus", "0"];
    let (figures, failed) = table(&[&words[..], &["--count", "1000"]].concat());
    assert!(!failed && !figures.is_empty());
    for figure in figures {
        assert_eq!(figure["state"]["state"], "lacking", "{figure}");
        assert_eq!(figure["state"]["why"], "no pipe takes more than 499 messages");
        assert!(figure["summary"].is_null());
    }

    // More spinning processes than CPUs cannot run either; how many CPUs there are depends on the machine.
    let words = ["--mechanisms", "ring", "--shapes", "producers:64", "--waiting", "spin"];
    let (figures, _) = table(&words);
    let processors = std::thread::available_parallelism().unwrap().get();
    assert!(processors > 64 || figures.iter().all(|figure| figure["state"]["state"] == "lacking"));
}

#[test]
fn counters_are_counted_or_absent_with_a_reason() {
    let words = ["bench", "table", "--mechanisms", "pipe", "--waiting", "block", "--count", "500", "--json", "--calls"];
    let output = run(&words);
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let missing: Vec<&str> =
        results["missing"].as_array().unwrap().iter().map(|pair| pair[0].as_str().unwrap()).collect();
    for figure in results["figures"].as_array().unwrap() {
        let each = &figure["summary"]["each"];
        for (field, name) in [("instructions", "instructions"), ("branches", "branches")] {
            let counted = each[field].as_f64();
            assert_eq!(counted.is_none(), missing.contains(&name), "{name}: {figure}");
            assert!(counted.is_none_or(|counted| counted > 1.0), "{name}: {figure}");
        }
        // A round trip over a pipe takes two system calls on each side, a message of a stream one. Where tracing is not
        // permitted, the figure says so.
        let untraced = missing.iter().any(|what| what.starts_with("system calls of"));
        let Some(sides) = figure["calls"]["sides"].as_array() else {
            assert!(untraced, "{figure}");
            continue;
        };
        let due = if figure["work"]["shape"]["kind"] == "ping-pong" { 2.0 } else { 1.0 };
        for side in sides {
            assert!((side.as_f64().unwrap() - due).abs() < 0.2, "{figure}");
        }
    }
}

/// Returns the children of `process`, as the kernel lists them.
fn children(process: u32) -> Vec<u32> {
    let list = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    list.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

/// Calls `look` until it returns a value, for at most a minute.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing was found");
        std::thread::yield_now();
    }
}

#[test]
fn a_peer_that_is_killed_leaves_no_figure() {
    let words =
        ["bench", "table", "--mechanisms", "strait", "--shapes", "ping-pong", "--sizes", "64", "--waiting", "block"];
    let words = [&words[..], &["--cpus", "0", "--only", "same core", "--count", "100000000", "--json"]].concat();
    let program = strait(&words).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let second = until(|| children(*children(program.id()).first()?).first().copied());
    let killed = Command::new("kill").args(["-KILL", &second.to_string()]).status().expect("kill");
    assert!(killed.success());
    let output = program.wait_with_output().unwrap();
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(!output.status.success());
    assert_eq!(results["figures"][0]["state"]["state"], "broken", "{results}");
    // The first process may notice the death while talking to the second process, before waiting for the second
    // process.
    let why = results["figures"][0]["state"]["why"].as_str().unwrap();
    assert!(["second process", "other process"].iter().any(|named| why.contains(named)), "{results}");
}

/// A process that spins until the test ends.
struct Busy(Child);

impl Busy {
    fn start() -> Self {
        Self(Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("a shell"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_disturbed_run_is_marked() {
    let processors = std::thread::available_parallelism().unwrap().get();
    let busy: Vec<Busy> = (0..processors).map(|_| Busy::start()).collect();
    let (figures, _) = table(&["--mechanisms", "pipe", "--shapes", "ping-pong", "--waiting", "block"]);
    drop(busy);
    for figure in figures {
        assert_eq!(figure["state"]["state"], "disturbed", "{figure}");
        assert!(figure["state"]["why"].as_str().unwrap().contains("others used"), "{figure}");
    }
}

#[test]
fn a_suite_that_is_interrupted_keeps_what_is_done() {
    keeps_what_is_done("-INT");
}

#[test]
fn a_suite_that_is_asked_to_end_keeps_what_is_done() {
    keeps_what_is_done("-TERM");
}

fn keeps_what_is_done(signal: &str) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("some.json");
    let words = ["bench", "quick", "--repetitions", "50", "-o", file.to_str().unwrap()];
    let mut program = strait(&words).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(program.stderr.take().unwrap()).lines();
    // The program prints progress when the first step begins.
    assert!(said.any(|line| line.unwrap().trim_start().starts_with("0 %")));
    until(|| children(program.id()).first().copied());
    let sent = Command::new("kill").args([signal, &program.id().to_string()]).status().expect("kill");
    assert!(sent.success());
    let rest: Vec<String> = said.map_while(Result::ok).collect();
    program.wait().unwrap();
    assert!(rest.iter().any(|line| line.contains("what is done is kept")), "{rest:?}");

    let results: Value = serde_json::from_str(&fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(results["complete"], false);
    let states: Vec<&str> = results["figures"]
        .as_array()
        .unwrap()
        .iter()
        .map(|figure| figure["state"]["state"].as_str().unwrap())
        .collect();
    assert!(states.contains(&"not-reached"));
    assert!(states.iter().any(|state| ["measured", "disturbed"].contains(state)), "{states:?}");
    assert!(
        results["figures"]
            .as_array()
            .unwrap()
            .iter()
            .all(|figure| { (figure["state"]["state"] == "not-reached") == figure["summary"].is_null() })
    );
}
