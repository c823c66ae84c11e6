//! The program as its users run it: real processes, real exit statuses.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn strait(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_strait")).args(words).stdin(Stdio::null()).output().expect("the program starts")
}

fn json(words: &[&str]) -> Value {
    let output = strait(words);
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{complaints}{}", String::from_utf8_lossy(&output.stdout));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn every_mechanism_carries_messages() {
    let output = strait(&["bench", "mechanisms"]);
    let said = String::from_utf8(output.stdout).expect("words");
    let here = said.lines().filter(|line| !line.contains("not here"));
    let names: Vec<&str> = here.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(names.len() > 8, "{said}");
    let words =
        ["bench", "table", "--mechanisms", &names.join(","), "--sizes", "8,56,4096", "--count", "200", "--json"];
    let results = json(&words);
    assert_eq!(results["complete"], true);
    for figure in results["figures"].as_array().expect("figures") {
        assert!(["measured", "disturbed"].contains(&figure["state"]["state"].as_str().unwrap()), "{figure}");
        assert!(figure["repetitions"][0]["count"].as_u64() >= Some(200), "{figure}");
        assert!(figure["summary"]["per_second"].as_f64() > Some(0.0), "{figure}");
    }
    for name in names {
        let of = |figure: &Value| figure["work"]["mechanism"] == name;
        assert!(results["figures"].as_array().unwrap().iter().any(of), "{name} was not measured");
    }
}

#[test]
fn results_are_kept_and_compared() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let take = |name: &str, size: &str| {
        let words = ["bench", "table", "--mechanisms", "pipe", "--waiting", "block", "--cpus", "0", "--sizes", size];
        let output = strait(&[&words[..], &["--count", "100", "--repetitions", "2", "-o", &file(name)]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    take("a.json", "64");
    take("b.json", "64");
    let compared = strait(&["bench", "compare", &file("a.json"), &file("b.json")]);
    let said = String::from_utf8(compared.stdout).unwrap();
    assert!(said.contains("of 4 figures changed beyond noise"), "{said}");
    // The same with every time a hundredfold is slower, and said so of each. (Whatever disturbed this test is forgotten.)
    let times = |name: &str, factor: f64| {
        let mut results: Value = serde_json::from_str(&std::fs::read_to_string(file("a.json")).unwrap()).unwrap();
        for figure in results["figures"].as_array_mut().unwrap() {
            figure["state"] = serde_json::json!({ "state": "measured" });
            let times = |value: &Value| Value::from(value.as_f64().unwrap() * factor);
            let summary = &mut figure["summary"];
            summary["median"] = times(&summary["median"]);
            summary["interval"] = summary["interval"].as_array().unwrap().iter().map(times).collect();
        }
        std::fs::write(file(name), results.to_string()).unwrap();
    };
    times("calm.json", 1.0);
    times("slower.json", 1e2);
    let compared = strait(&["bench", "compare", &file("calm.json"), &file("slower.json")]);
    let said = String::from_utf8(compared.stdout).unwrap();
    assert_eq!(said.matches(" slower").count(), 4, "{said}");
    // What is no such file is refused with a reason.
    std::fs::write(file("old.json"), r#"{"format": 0}"#).unwrap();
    let compared = strait(&["bench", "compare", &file("old.json"), &file("a.json")]);
    assert!(!compared.status.success());
    assert!(String::from_utf8_lossy(&compared.stderr).contains("has form 0"));
}

#[test]
fn one_mechanism_is_measured_as_it_always_was() {
    let output = strait(&["bench", "-m", "64", "-i", "200", "-n", "pipe"]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.contains("iterations       200"), "{said}");
}

#[test]
fn bars_have_the_agreed_form() {
    let suite = json(&["bench", "floors", "--only", "round trip 64 B, blocking", "--repetitions", "1", "--json"]);
    for bar in suite["bars"].as_array().expect("bars") {
        assert!(bar["work"].is_string() && bar["unit"].is_string() && bar["reference"].is_string());
        assert!(bar["bar"].is_number() && bar["repetitions"].is_number());
        if bar["repetitions"] == 1 {
            assert!(bar["value"].is_number() && bar["reference_value"].is_number() && bar["ratio"].is_number());
            assert!(bar["holds"].is_boolean());
        }
    }
}

#[test]
fn ends_travel_and_are_measured() {
    let suite = json(&["bench", "ends", "--quick", "--repetitions", "1", "--json"]);
    let bars = suite["bars"].as_array().expect("bars");
    assert!(bars.len() > 20);
    for bar in bars {
        let note = bar["note"].as_str().unwrap_or_default();
        assert!(!note.contains("broken"), "{bar}");
        assert!(bar["value"].is_number() || note.contains("one processor"), "{bar}");
        assert_eq!(bar["holds"].is_boolean(), bar["bar"].is_number() && bar["value"].is_number(), "{bar}");
    }
    // What is counted is the same however busy the machine is.
    let row = |words: &str| bars.iter().find(|bar| bar["work"].as_str().is_some_and(|work| work.contains(words)));
    assert_eq!(row("descriptors that").expect("a row")["value"], 0.0);
    assert!(row("shared memory").expect("a row")["value"].as_f64() > Some(64.0));
}

#[test]
fn one_processor_is_said_and_not_faked() {
    let suite = json(&["bench", "floors", "--only", "12 B", "--repetitions", "1", "--cpus", "0", "--json"]);
    let bar = &suite["bars"][0];
    assert!(bar["value"].is_null() && bar["holds"].is_null(), "{bar}");
    assert!(bar["note"].as_str().is_some_and(|note| note.contains("one processor")), "{bar}");
}

#[test]
fn a_run_that_breaks_is_shown_and_fails() {
    // A seqpacket message of 64 MiB fits into no socket's buffer.
    let words = ["bench", "table", "--sizes", "67108864", "--mechanisms", "seqpacket", "--waiting", "block"];
    let output = strait(&[&words[..], &["--count", "1"]].concat());
    assert!(!output.status.success());
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("broken: ") && table.contains("too large"), "{table}");
}

#[test]
fn the_story_is_true() {
    let output = strait(&["demo", "--story"]);
    let story = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{story}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(story.matches(": the same").count(), 3, "{story}");
    assert_eq!(story.matches("through that channel: \"Who reads this?\" came with it").count(), 1, "{story}");
}

#[test]
fn nonsense_is_refused_with_a_reason() {
    let output = strait(&["bench", "table", "--sizes", "seven"]);
    assert_eq!(output.status.code(), Some(2));
    let output = strait(&["peer", "first", "nonsense"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("reading the work"));
}

#[test]
fn the_doctor_says_what_works_and_what_mends_the_rest() {
    let output = Command::new(env!("CARGO_BIN_EXE_strait")).arg("doctor").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("Strait works here."), "{said}");
    assert!(!said.contains("BROKEN"), "{said}");

    let limited = "ulimit -n 40; exec \"$0\" doctor";
    let output = Command::new("sh").args(["-c", limited, env!("CARGO_BIN_EXE_strait")]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains("descriptors (RLIMIT_NOFILE): ulimit -n 4096"), "{said}");
}

#[test]
fn ls_says_who_listens() {
    let directory = std::env::temp_dir().join(format!("strait-ls-{}", std::process::id()));
    std::fs::create_dir(&directory).unwrap();
    let listener = strait::Listener::builder().directory(&directory).bind("some.service").unwrap();
    let ls = || {
        let output = Command::new(env!("CARGO_BIN_EXE_strait")).arg("ls").arg(&directory).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    let said = ls();
    assert!(said.contains("some.service") && said.contains(&std::process::id().to_string()), "{said}");
    drop(listener);
    assert_eq!(ls(), "Nobody listens.\n");
    std::fs::remove_dir(&directory).unwrap();
}
