//! Tests of the program `strait` as users run it: real processes and exit codes.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Runs the program with these arguments, and returns its output.
fn strait(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_strait")).args(words).stdin(Stdio::null()).output().expect("the program starts")
}

/// Runs the program, which must succeed, and returns its output as JSON.
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
    let directory = tempfile::tempdir().unwrap();
    let before = left();
    let mut figures = Vec::new();
    // Small messages are sent in every way, large ones only with blocking waits: on a busy machine each hop of a
    // spinning process costs a time slice.
    let several = "producers:2,shared-producers:2,fan-out:2,hop:direct,vectored:16";
    for more in [
        &["--sizes", "8"][..],
        &["--sizes", "8", "--waiting", "spin", "--shapes", "fan-out:1"],
        &["--sizes", "4096", "--waiting", "block", "--shapes", "ping-pong"],
        &["--sizes", "64", "--waiting", "block", "--shapes", several],
    ] {
        let all = ["bench", "table", "--cpus", "0", "--count", "32", "--json", "--mechanisms", &names.join(",")];
        let output = bench_in(directory.path(), &[&all[..], more].concat()).output().unwrap();
        let results: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(results["complete"], true);
        figures.extend(results["figures"].as_array().expect("figures").iter().cloned());
    }
    assert_nothing_stays(directory.path(), &before);
    for figure in &figures {
        assert!(["measured", "disturbed"].contains(&figure["state"]["state"].as_str().unwrap()), "{figure}");
        assert!(figure["repetitions"][0]["count"].as_u64() >= Some(32), "{figure}");
        assert!(figure["summary"]["per_second"].as_f64() > Some(0.0), "{figure}");
    }
    for name in names {
        let of = |figure: &Value| figure["work"]["mechanism"] == name;
        assert!(figures.iter().any(of), "{name} was not measured");
    }
}

/// Returns a command that runs the program with its own directory for temporary files.
fn bench_in(directory: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    command.args(words).env("TMPDIR", directory).stdin(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Returns the names of IPC objects with a life beyond their processes: System V objects and POSIX shared memory.
/// (POSIX queues cannot be listed everywhere; a test of `strait-lab` checks POSIX queues.)
fn left() -> BTreeSet<String> {
    let mut left = BTreeSet::new();
    for kind in ["msg", "sem", "shm"] {
        let table = std::fs::read_to_string(format!("/proc/sysvipc/{kind}")).unwrap_or_default();
        left.extend(
            table.lines().skip(1).filter_map(|line| Some(format!("{kind} {}", line.split_whitespace().nth(1)?))),
        );
    }
    let names = std::fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    left.extend(
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).filter(|name| name.starts_with("strait")),
    );
    left
}

/// Checks that no file and no new IPC object is left. Other tests may be using some objects meanwhile, so new ones have
/// a minute to disappear.
fn assert_nothing_stays(directory: &Path, before: &BTreeSet<String>) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let mut new: BTreeSet<String> = left().difference(before).cloned().collect();
    let files = || std::fs::read_dir(directory).unwrap().count();
    while !new.is_empty() || files() > 0 {
        assert!(Instant::now() < deadline, "left behind: {new:?} and {} files", files());
        std::thread::sleep(Duration::from_millis(5));
        let now = left();
        new.retain(|one| now.contains(one));
    }
}

/// Returns the running child processes of `parent`, with their first argument.
fn children(parent: u32) -> Vec<(u32, String)> {
    let numbers =
        std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |&number: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
        fields.split_whitespace().nth(1).and_then(|field| field.parse().ok()) == Some(parent)
    };
    let what = |number| {
        let words = std::fs::read_to_string(format!("/proc/{number}/cmdline")).unwrap_or_default();
        (number, words.split('\0').nth(2).unwrap_or_default().to_owned())
    };
    numbers.filter(is_child).map(what).collect()
}

/// Makes a program for `strait bench peers` from a shell script, which gets the command line without the name of the
/// program.
fn peer(directory: &Path, name: &str, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    let describe = r#"[ "$1" = describe ] && echo '{"title":"T","default":"d","tuned":null}' && exit"#;
    let path = directory.join(format!("peer-{name}"));
    std::fs::write(&path, format!("#!/bin/sh\n{describe}\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn peers_are_measured_on_one_processor_and_a_dead_one_has_no_figure() {
    let directory = tempfile::tempdir().unwrap();
    let figure = r#"echo '{"p50":7,"mean":7,"count":1}'"#;
    peer(directory.path(), "strait", figure);
    peer(directory.path(), "pipe", &format!("{figure}; kill -SEGV $$"));
    let file = directory.path().join("peers.json");
    let words =
        ["bench", "peers", "--cpus", "0", "--rows", "round-trip:64", "--repetitions", "1", "--commit", "c0ffee", "-o"];
    let words = [&words[..], &[file.to_str().unwrap(), "--programs", directory.path().to_str().unwrap()]].concat();
    let output = strait(&words);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let results: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!(results["commit"], "c0ffee");
    let shared = strait(&["bench", "peers", "--share", "--from", file.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&shared.stdout).contains(", commit c0ffee."), "{shared:?}");
    let figures: Vec<_> =
        results["figures"].as_array().unwrap().iter().filter(|figure| figure["form"] == "default").collect();
    let spots: BTreeSet<_> = figures.iter().map(|figure| figure["spot"].as_str().unwrap()).collect();
    assert_eq!(spots.len(), 2, "{results}");
    for figure in figures {
        let failed = figure["failed"].as_array().map_or(0, Vec::len);
        assert_eq!(failed, usize::from(figure["program"] == "pipe"), "{figure}");
        assert_eq!(figure["runs"].as_array().map_or(0, Vec::len), 1 - failed, "{figure}");
    }
}

/// Shows that the results are kept if programs cannot be started, here for lack of `timeout`.
#[test]
fn peers_that_cannot_be_started_are_figures_without_runs() {
    let directory = tempfile::tempdir().unwrap();
    peer(directory.path(), "strait", "exit 1");
    let file = directory.path().join("peers.json");
    let words = ["bench", "peers", "--rows", "round-trip:64", "--repetitions", "1", "--forms", "default", "-o"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    command.args(words).arg(&file).arg("--programs").arg(directory.path()).env("PATH", directory.path());
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    let results: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).expect("JSON");
    for figure in results["figures"].as_array().unwrap() {
        assert!(figure["failed"][0].as_str().is_some_and(|why| why.contains("timeout")), "{figure}");
    }
}

#[test]
fn the_load_of_the_placement_busy_ends_with_the_program() {
    let directory = tempfile::tempdir().unwrap();
    peer(directory.path(), "strait", "exec sleep 20");
    let words =
        ["bench", "peers", "--placements", "busy", "--rows", "round-trip:64", "--forms", "default", "--programs"];
    let mut bench = Command::new(env!("CARGO_BIN_EXE_strait"))
        .args(words)
        .arg(directory.path())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    let processors = std::thread::available_parallelism().unwrap().get();
    let is_load = |child: &(u32, String)| child.1.contains("while");
    let load = loop {
        let load: Vec<u32> = children(bench.id()).iter().filter(|child| is_load(child)).map(|child| child.0).collect();
        if load.len() >= processors || Instant::now() > deadline {
            break load;
        }
        std::thread::yield_now();
    };
    bench.kill().unwrap();
    bench.wait().unwrap();
    let runs = |process: &u32| {
        std::fs::read(format!("/proc/{process}/cmdline")).is_ok_and(|words| words.starts_with(b"sh\0-c\0while"))
    };
    while load.iter().any(runs) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    let left: Vec<&u32> = load.iter().filter(|process| runs(process)).collect();
    for process in &left {
        let process = rustix::process::Pid::from_raw(**process as i32).unwrap();
        rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
    }
    assert!(load.len() >= processors && left.is_empty(), "{load:?} of {processors} started, {left:?} go on");
}

#[test]
#[cfg_attr(not(feature = "suites"), ignore = "needs mechanisms of the feature `suites`")]
fn nothing_is_left_behind_when_processes_are_killed() {
    let mechanisms =
        ["fifo", "stream-named", "datagram-named", "sysv-queue", "posix-queue", "sysv-shm-sem", "posix-shm-sem"];
    for (mechanism, kill_all) in mechanisms.iter().flat_map(|mechanism| [(mechanism, false), (mechanism, true)]) {
        let directory = tempfile::tempdir().unwrap();
        let before = left();
        let words = ["bench", "-n", mechanism, "-i", "1000000000"];
        let mut bench = bench_in(directory.path(), &words).stdout(Stdio::null()).spawn().unwrap();
        // As soon as both processes run, the test kills the measuring process or its parent.
        let deadline = Instant::now() + Duration::from_secs(60);
        let first = loop {
            assert!(Instant::now() < deadline, "{mechanism} does not start");
            let first = children(bench.id()).into_iter().find(|(_, what)| what == "first");
            let of_first = first.as_ref().map(|(first, _)| children(*first)).unwrap_or_default();
            match first {
                Some((first, _)) if of_first.iter().any(|(_, what)| what == "second") => break first,
                _ => std::thread::yield_now(),
            }
        };
        if kill_all {
            bench.kill().unwrap();
        } else {
            let first = rustix::process::Pid::from_raw(first as i32).unwrap();
            rustix::process::kill_process(first, rustix::process::Signal::KILL).unwrap();
        }
        let output = bench.wait_with_output().unwrap();
        assert!(!output.status.success(), "{mechanism}");
        assert_nothing_stays(directory.path(), &before);
    }
}

#[test]
fn results_are_kept_and_compared() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let take = |name: &str, size: &str| {
        let words = ["bench", "table", "--mechanisms", "pipe", "--waiting", "block", "--cpus", "0", "--sizes", size];
        let output = strait(&[&words[..], &["--count", "100", "--repetitions", "3", "-o", &file(name)]].concat());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    take("a.json", "64");
    take("b.json", "64");
    let compared = strait(&["bench", "compare", &file("a.json"), &file("b.json")]);
    let said = String::from_utf8(compared.stdout).unwrap();
    assert!(said.contains("of 4 figures changed beyond noise"), "{said}");
    // A copy with times a hundred times as long is slower, and is reported so for each figure. (The copies are marked
    // as not disturbed.)
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
    // A figure that was taken once is not judged, however far apart the times are.
    let once = |name: &str| {
        let mut results: Value = serde_json::from_str(&std::fs::read_to_string(file(name)).unwrap()).unwrap();
        for figure in results["figures"].as_array_mut().unwrap() {
            figure["summary"]["confidence"] = 0.0.into();
        }
        std::fs::write(file(name), results.to_string()).unwrap();
    };
    once("slower.json");
    let compared = strait(&["bench", "compare", &file("calm.json"), &file("slower.json")]);
    let said = String::from_utf8(compared.stdout).unwrap();
    assert!(said.contains("\n0 of 4 figures changed") && said.contains("--repetitions"), "{said}");
    // A file other than a result file is refused with a reason.
    std::fs::write(file("old.json"), r#"{"format": 0}"#).unwrap();
    let compared = strait(&["bench", "compare", &file("old.json"), &file("a.json")]);
    assert!(!compared.status.success());
    assert!(String::from_utf8_lossy(&compared.stderr).contains("has form 0"));
}

/// Measures a table with one figure, in about 50 ms, with these further arguments.
fn short(more: &[&str]) -> Output {
    let table =
        "bench table --mechanisms pipe --shapes ping-pong --sizes 64 --waiting block --placements free --count 10";
    strait(&[&table.split(' ').collect::<Vec<_>>(), more].concat())
}

/// Shows that the results of every shape can be read again, and that `idle` shows its wake-ups.
#[test]
fn the_results_of_every_shape_can_be_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("a.json");
    let file = file.to_str().unwrap();
    let table = "bench table --sizes 16064 --placements free --mechanisms";
    let take = |more: &str| {
        let words = format!("{table} {more} -o {file}");
        let output = strait(&words.split(' ').collect::<Vec<_>>());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let compared = strait(&["bench", "compare", file, file]);
        assert!(compared.status.success(), "{}", String::from_utf8_lossy(&compared.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let shapes = "ping-pong,ack,stream:2,open-loop:50,paced:1000,producers:2,fan-out:2,mix,mix-stream,hop,descriptors:1,\
                  out-of-line:cold,in-place,vectored:2,linearised:2,fidl,wake:1,connect";
    take(&format!("strait --waiting block --count 1 --shapes {shapes}"));
    take("memcpy --waiting spin --count 1 --shapes encode:bytes,decode:vectors");
    let idle = take("strait --waiting block --shapes idle");
    assert!(idle.contains(" wake-ups ") && !idle.contains("/s"), "{idle}");
    // A shape whose length is a time takes no number of messages, and the other way round.
    for (more, reason) in [("idle --count 9", "leave out --count"), ("in-place", "give --count")] {
        let words = format!("{table} strait --waiting block --shapes {more}");
        let output = strait(&words.split(' ').collect::<Vec<_>>());
        let complaints = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1));
        assert!(complaints.contains(reason) && !complaints.contains("figures"), "{complaints}");
    }
}

#[test]
fn result_files_are_written_where_their_name_leads() {
    use std::os::unix::fs::{FileTypeExt, symlink};

    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let take = |file: &Path| short(&["-o", file.to_str().unwrap()]);
    let is_result = |text: &str| serde_json::from_str::<Value>(text).is_ok_and(|value| value["suite"] == "table");

    // The reader of a FIFO gets the results, and the FIFO stays.
    let fifo = path("fifo");
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    // A descriptor for reading and writing lets the program open the FIFO, and keeps what the program writes.
    let mut reader = std::fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
    let output = take(&fifo);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(std::fs::symlink_metadata(&fifo).unwrap().file_type().is_fifo());
    let mut text = vec![0; 1 << 16];
    let len = std::io::Read::read(&mut reader, &mut text).unwrap();
    assert!(is_result(str::from_utf8(&text[..len]).unwrap()));

    // The file that a symbolic link names is replaced, and the link stays.
    symlink("results.json", path("link")).unwrap();
    for _ in 0..2 {
        assert!(take(&path("link")).status.success());
        assert!(path("link").is_symlink());
        assert!(is_result(&std::fs::read_to_string(path("results.json")).unwrap()));
    }

    // If the file cannot be written, the figures are printed, and the program fails.
    symlink("/dev/full", path("full")).unwrap();
    let output = take(&path("full"));
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("No space left on device"));
    assert!(String::from_utf8_lossy(&output.stdout).contains("ping-pong of 64 B"));
    assert!(path("full").is_symlink());

    // A directory without room for a new file is noticed before anything is measured. No directory of `/proc` has room.
    let output = take(Path::new("/proc/self/comm"));
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(complaints.contains("/proc/") && !complaints.contains("figures"), "{complaints}");

    let mut names: Vec<_> = directory.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["fifo", "full", "link", "results.json"]);
}

#[test]
fn shells_and_man_know_every_subcommand() {
    for shell in ["bash", "zsh", "fish"] {
        let script = String::from_utf8(strait(&["completions", shell]).stdout).unwrap();
        for word in ["doctor", "bench", "completions"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let directory = tempfile::tempdir().unwrap();
    let pages = directory.path().join("pages");
    assert!(strait(&["man", pages.to_str().unwrap()]).status.success());
    for page in ["strait.1", "strait-doctor.1", "strait-ls.1", "strait-bench.1", "strait-bench-table.1"] {
        let text = std::fs::read_to_string(pages.join(page)).expect(page);
        assert!(text.contains(".SH NAME"), "{page}");
    }
    assert!(!pages.join("strait-companion.1").exists(), "a hidden subcommand has no page");
}

/// Returns the Markdown files below a directory.
fn pages(directory: &Path) -> Vec<std::path::PathBuf> {
    let paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let files = paths.flat_map(|path| if path.is_dir() { pages(&path) } else { vec![path] });
    files.filter(|path| path.extension().is_some_and(|extension| extension == "md")).collect()
}

/// Shows that the program knows each subcommand and option that a page names.
#[test]
fn every_command_on_the_pages_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = vec![root.join("README.md"), root.join("crates/strait-cli/README.md")];
    files.extend(pages(&root.join("docs")));
    files.extend(pages(&root.join("packaging")));
    let mut commands = BTreeSet::new();
    for file in files {
        let text = std::fs::read_to_string(file).unwrap();
        let lines = text.lines().filter_map(|line| line.strip_prefix("strait "));
        let code = text.split('`').filter_map(|code| code.strip_prefix("strait "));
        commands.extend(lines.chain(code).map(|command| command.split('#').next().unwrap().trim().to_owned()));
    }
    // The rest are patterns and other text.
    commands.retain(|command| {
        let is_plain =
            |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit() || " .,:/_-".contains(letter);
        command.chars().all(is_plain) && !command.contains("...")
    });
    assert!(commands.len() > 20, "{commands:?}");
    for command in commands {
        let words: Vec<&str> = command.split_whitespace().chain(["--help"]).collect();
        let output = strait(&words);
        assert!(output.status.success(), "strait {command}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Returns what `strait WORDS --help` prints.
fn help(words: &[String]) -> String {
    let words: Vec<&str> = words.iter().map(String::as_str).chain(["--help"]).collect();
    String::from_utf8(strait(&words).stdout).unwrap()
}

/// Shows that the help of the program and of each subcommand, as the help itself lists them, has examples.
#[test]
fn help_has_examples() {
    let mut left = vec![Vec::new()];
    let mut count = 0;
    while let Some(words) = left.pop() {
        let said = help(&words);
        let examples = said.split("Examples:\n").nth(1).unwrap_or_else(|| panic!("strait {words:?}: {said}"));
        assert!(examples.contains("  strait "), "strait {words:?}: {said}");
        assert!(said.lines().all(|line| line.chars().count() <= 100), "strait {words:?}: {said}");
        let listed = said.split("Commands:\n").nth(1).into_iter().flat_map(|rest| rest.split("\n\n").next());
        let commands = listed.flat_map(str::lines).filter(|line| line.starts_with("  ") && !line.starts_with("   "));
        for command in commands.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help") {
            left.push(words.iter().cloned().chain([command.to_owned()]).collect());
        }
        count += 1;
    }
    assert!(count >= 19, "{count}");
}

#[cfg(not(feature = "report"))]
#[test]
fn a_program_without_the_report_says_how_to_get_it() {
    let output = strait(&["bench", "report", "none.json"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("--features report"));
}

#[cfg(not(feature = "suites"))]
#[test]
fn a_program_without_the_suites_says_how_to_get_them() {
    for (mechanism, shape) in [("fidl,postcard", "encode:bytes"), ("pipe", "fidl:linear")] {
        let words = ["bench", "table", "--mechanisms", mechanism, "--shapes", shape, "--sizes", "256", "--count", "1"];
        let output = strait(&words);
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
        assert!(said.contains("not here:") && said.contains("--features suites"), "{said}");
    }
}

#[cfg(not(feature = "suites"))]
#[test]
fn a_mechanism_that_the_program_lacks_is_named() {
    let output = strait(&["bench", "-m", "64", "-i", "200", "-n", "posix-queue"]);
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("posix-queue: ") && said.contains("--features suites"), "{said}");
}

#[test]
fn every_name_of_the_older_program_is_measured() {
    for name in ["message_queue", "named_pipe", "pipe", "shm", "unix_socket"] {
        let output = strait(&["bench", "-m", "64", "-i", "200", "-n", name]);
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[cfg(feature = "report")]
#[test]
fn results_become_a_page() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (results, page) = (file("a.json"), file("page.html"));
    let table =
        ["bench", "table", "--mechanisms", "strait,pipe", "--sizes", "64,4096", "--waiting", "block", "--cpus", "0"];
    let take = [&table[..], &["--count", "100", "--repetitions", "2", "-o", &results]].concat();
    assert!(strait(&take).status.success());
    let output = strait(&["bench", "report", &results, "-o", &page]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let page = std::fs::read_to_string(page).unwrap();
    for words in ["<title>", "Where Strait loses", "--mechanisms pipe", "5.36 M/s", "blocking, same core", "</html>"] {
        assert!(page.contains(words), "{words}");
    }
    assert!(page.matches("<svg role=\"img\"").count() >= 8);
    // A file that does not exist makes no page.
    let output = strait(&["bench", "report", &file("none.json"), "-o", &file("none.html")]);
    assert!(!output.status.success() && !std::path::Path::new(&file("none.html")).exists());
    assert!(String::from_utf8_lossy(&output.stderr).contains("none.json"));
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

/// Shows that an interrupt ends a suite with targets after the current row, and that the measured rows are printed.
#[test]
fn a_suite_with_targets_that_is_interrupted_keeps_what_is_done() {
    use std::io::BufRead;
    let words = ["bench", "floors", "--only", "round trip", "--repetitions", "9", "--json"];
    let mut program = Command::new(env!("CARGO_BIN_EXE_strait"))
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The program prints a line of progress when the first row begins.
    let mut progress = std::io::BufReader::new(program.stderr.take().unwrap());
    progress.read_line(&mut String::new()).unwrap();
    let process = rustix::process::Pid::from_child(&program);
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    let output = program.wait_with_output().unwrap();
    let suite: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!((output.status.code(), &suite["complete"]), (Some(1), &false.into()), "{suite}");
    let note = |bar: &Value| bar["note"].as_str().unwrap_or_default().to_owned();
    let bars = suite["bars"].as_array().unwrap();
    assert!(bars.iter().any(|bar| note(bar) == "not reached"), "{suite}");
    assert!(bars.iter().all(|bar| bar["value"].is_number() || !note(bar).is_empty()), "{suite}");
}

#[test]
fn figures_that_are_not_reached_are_a_failure() {
    let output = short(&["--budget", "0", "--json"]);
    let results: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(results["figures"][0]["state"]["state"], "not-reached", "{results}");
    assert_eq!(output.status.code(), Some(1));
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
    // Counted values do not depend on the load of the machine.
    let row = |words: &str| bars.iter().find(|bar| bar["work"].as_str().is_some_and(|work| work.contains(words)));
    assert_eq!(row("descriptors that").expect("a row")["value"], 0.0);
    assert!(row("shared memory").expect("a row")["value"].as_f64() > Some(64.0));
}

#[test]
fn what_is_built_on_channels_is_measured() {
    let suite = json(&["bench", "toolbox", "--quick", "--repetitions", "1", "--json"]);
    let bars = suite["bars"].as_array().expect("bars");
    assert!(bars.len() > 40);
    for bar in bars {
        let note = bar["note"].as_str().unwrap_or_default();
        assert!(!note.contains("broken"), "{bar}");
        assert!(bar["value"].is_number() && bar["holds"].is_boolean() || note.contains("one processor"), "{bar}");
    }
    // Counts do not depend on the load of the machine.
    for bar in bars.iter().filter(|bar| bar["unit"] == "allocations") {
        assert!(bar["holds"] == true || bar["holds"].is_null(), "{bar}");
    }
}

#[test]
fn a_quiet_channel_is_measured_beside_busy_ones() {
    let suite = json(&["bench", "fairness", "--quick", "--repetitions", "1", "--json"]);
    let bars = suite["bars"].as_array().expect("bars");
    assert_eq!(bars.len(), 24, "{suite}");
    for bar in bars {
        let note = bar["note"].as_str().unwrap_or_default();
        assert!(!note.contains("broken") && bar["value"].is_number(), "{bar}");
    }
}

#[test]
fn what_one_more_costs_is_counted() {
    let suite = json(&["bench", "scale", "--quick", "--repetitions", "1", "--json"]);
    let bars = suite["bars"].as_array().expect("bars");
    assert!(bars.len() >= 25, "{suite}");
    let of_mesh = |bar: &&serde_json::Value| bar["work"].as_str().is_some_and(|work| work.contains("full mesh"));
    assert_eq!(bars.iter().filter(of_mesh).count(), 7, "{suite}");
    for bar in bars {
        let note = bar["note"].as_str().unwrap_or_default();
        assert!(!note.contains("broken"), "{bar}");
        assert!(bar["value"].is_number() || note.contains("cannot be counted"), "{bar}");
    }
}

/// Shows that no operation walks over all channels: with 100,000 channels, a message takes less than five times as long
/// as alone. A walk is not noticed among a thousand channels; among 100,000 the run takes too long or a message takes
/// many times as long, however busy the machine is.
#[test]
fn a_hundred_thousand_ends_are_no_burden() {
    let row = |only: &str| {
        let suite = json(&["bench", "ends", "--repetitions", "1", "--only", only, "--json"]);
        let bars = suite["bars"].as_array().expect("bars");
        assert_eq!(bars.len(), 1, "{suite}");
        assert!(bars[0]["value"].is_number(), "{suite}");
        bars[0].clone()
    };
    for alone in ["beside 100000 idle channels, blocking", "set of 100000, one of them active, same core"] {
        // Other processes can slow down a short run, but not three times in a row.
        let is_near = |_| row(alone)["ratio"].as_f64().expect("a ratio") < 5.0;
        assert!((0..3).any(is_near), "{alone}: more than five times as long, three times");
    }
    row("200000 ends sent back and forth, 64 in a message, 16 messages in flight, blocking");
}

#[test]
fn one_processor_is_said_and_not_faked() {
    let suite = json(&["bench", "floors", "--only", "12 B", "--repetitions", "1", "--cpus", "0", "--json"]);
    let bar = &suite["bars"][0];
    assert!(bar["value"].is_null() && bar["holds"].is_null(), "{bar}");
    assert!(bar["note"].as_str().is_some_and(|note| note.contains("one processor")), "{bar}");
}

#[test]
#[cfg_attr(not(feature = "suites"), ignore = "needs a mechanism of the feature `suites`")]
fn a_run_that_breaks_is_shown_and_fails() {
    let words = ["bench", "table", "--sizes", "64", "--mechanisms", "faulty-tears", "--waiting", "block"];
    let output = strait(&[&words[..], &["--count", "1000"]].concat());
    assert!(!output.status.success());
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(table.contains("broken: ") && table.contains("torn"), "{table}");
}

#[test]
fn a_known_limit_is_shown_and_is_no_failure() {
    // A seqpacket message of 64 MiB does not fit into the buffer of any socket.
    let words = ["bench", "table", "--sizes", "67108864", "--mechanisms", "seqpacket,pipe", "--waiting", "block"];
    let words = [&words[..], &["--shapes", "ping-pong", "--cpus", "0"]].concat();
    let output = strait(&[&words[..], &["--count", "1"]].concat());
    let table = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{table}");
    assert!(table.contains("not here: Unix seqpacket socket") && table.contains("64 MiB"), "{table}");
    assert!(!table.contains("not here: pipe"), "{table}");
}

#[test]
fn the_story_is_true() {
    let output = strait(&["demo", "--story"]);
    let story = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{story}{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(story.matches(": the same").count(), 3, "{story}");
    assert_eq!(story.matches("through that channel: \"Who reads this?\" came with it").count(), 1, "{story}");
    assert!(story.contains("1000 messages came, whole and in order. Then: peer closed."), "{story}");
    assert!(story.contains("signal: 9"), "{story}");
}

#[test]
fn what_cannot_be_done_is_said_before_anything_is_measured() {
    let begin = Instant::now();
    for (words, reason) in [
        (&["bench", "quick", "--cpus", "4095"][..], "4095"),
        (&["bench", "floors", "--only", "no row has this name"], "nothing of what was asked for"),
        (&["bench", "quick", "-o", "/no/such/directory/x.json"], "/no/such/directory/x.json"),
        (&["bench", "peers", "--programs", "/no/such/directory"], "tools/peers"),
        (&["bench", "peers", "--picture", "/no/such/directory/x.svg"], "/no/such/directory/x.svg"),
    ] {
        let output = strait(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(reason) && !said.contains("figures"), "{said}");
    }
    // A whole suite takes longer than this limit.
    assert!(begin.elapsed() < Duration::from_secs(20));
}

#[test]
fn tables_have_at_most_100_columns_and_can_be_shared() {
    let words = ["bench", "table", "--sizes", "64", "--mechanisms", "pipe,stream", "--waiting", "block"];
    let words = [&words[..], &["--shapes", "ping-pong", "--placements", "free", "--count", "10"]].concat();
    let plain = strait(&words);
    let table = String::from_utf8_lossy(&plain.stdout);
    assert!(plain.status.success(), "{table}");
    let mut rows =
        table.lines().filter(|line| ["waiting", "────", "blocking"].iter().any(|word| line.starts_with(word)));
    assert!(rows.all(|line| line.chars().count() <= 100), "{table}");
    assert!(!table.contains("p99.99") && !table.contains("probe"), "{table}");
    let wide = strait(&[&words[..], &["-v"]].concat());
    assert!(String::from_utf8_lossy(&wide.stdout).contains("probe"));
    let shared = strait(&[&words[..], &["--share"]].concat());
    let shared = String::from_utf8_lossy(&shared.stdout).into_owned();
    assert!(shared.contains("| waiting | placement |") && shared.matches("| **").count() == 1, "{shared}");
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
    let output = Command::new(env!("CARGO_BIN_EXE_strait")).arg("doctor").env("STRAIT_SPIN", "5 ms").output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.contains("set a whole number of microseconds, or off"), "{said}");
    let said = json(&["doctor", "--json"]);
    assert_eq!(said["works"], true, "{said}");
    assert!(said["findings"].as_array().unwrap().iter().any(|finding| finding["outcome"] == "good"), "{said}");

    let limited = "ulimit -n 40; exec \"$0\" doctor";
    let output = Command::new("sh").args(["-c", limited, env!("CARGO_BIN_EXE_strait")]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    // The line behind a problem says how to fix the problem.
    let mut lines = said.lines().skip_while(|line| !line.starts_with("limited  descriptors (RLIMIT_NOFILE)"));
    assert!(lines.next().is_some() && lines.next() == Some("      fix: ulimit -n 4096"), "{said}");

    // A low limit on the size of files is named as the cause of each failure: none, and a page.
    for blocks in ["0", "8"] {
        let limited = "ulimit -f \"$1\"; exec \"$0\" doctor";
        let output = Command::new("sh").args(["-c", limited, env!("CARGO_BIN_EXE_strait"), blocks]).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let lines: Vec<&str> = said.lines().collect();
        let fixes: Vec<&str> =
            lines.windows(2).filter(|pair| pair[0].starts_with("BROKEN")).map(|pair| pair[1].trim()).collect();
        assert!(fixes.len() >= 4 && fixes.iter().all(|fix| *fix == "fix: ulimit -f unlimited"), "{said}");
    }
}

/// Shows that the doctor knows a container by its namespaces, and says nothing of a `/proc` that is not mounted.
#[test]
fn the_doctor_knows_a_container() {
    let contained = |script: &str| {
        let unshare = ["--user", "--map-root-user", "--pid", "--mount", "--fork", "sh", "-c", script];
        let output = Command::new("unshare").args(unshare).arg(env!("CARGO_BIN_EXE_strait")).output();
        output.map(|output| String::from_utf8(output.stdout).unwrap()).unwrap_or_default()
    };
    let line = |said: &str, what: &str| said.lines().find(|line| line.contains(what)).map(str::to_owned);
    if !contained("mount -t proc proc /proc && echo yes").contains("yes") {
        eprintln!("SKIPPED: user namespaces are not allowed here");
        return;
    }
    let said = contained("mount -t proc proc /proc && exec \"$0\" doctor");
    assert!(line(&said, "namespaces").unwrap().contains("own user and PID namespaces"), "{said}");
    let said = contained("mount -t tmpfs none /proc && exec \"$0\" doctor");
    for what in ["namespaces", "vm.memfd_noexec"] {
        assert!(line(&said, what).unwrap().contains("not known"), "{said}");
    }
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
    let listed = json(&["ls", "--json", directory.to_str().unwrap()]);
    assert_eq!((&listed[0]["name"], &listed[0]["live"]), (&"some.service".into(), &true.into()), "{listed}");
    assert_eq!(listed[0]["pid"], std::process::id(), "{listed}");
    drop(listener);
    assert_eq!(ls(), format!("No listeners in {}.\n", directory.display()));
    std::fs::remove_dir(&directory).unwrap();
    let output = strait(&["ls", directory.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains(directory.to_str().unwrap()));
}

/// Shows that `ls --prune` removes only the names of dead listeners.
#[test]
fn ls_removes_the_names_of_dead_listeners() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let _live = strait::Listener::builder().directory(path).bind("live").unwrap();
    // The socket of a process that was killed: the socket has a name, and no process listens.
    drop(std::os::unix::net::UnixListener::bind(directory.path().join("dead")).unwrap());
    assert!(strait(&["ls", "--prune", path]).status.success());
    let listed = json(&["ls", "--json", path]);
    assert_eq!(listed.as_array().unwrap().len(), 1, "{listed}");
    assert_eq!(listed[0]["name"], "live", "{listed}");
}

#[test]
fn output_that_cannot_be_written_is_told_of() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let directory = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_strait"));
    let output = command.arg("ls").arg(directory.path()).stdout(full).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(text, "strait: writing the output: No space left on device (os error 28)\n");
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_reader_that_has_enough_is_no_fault_to_tell_of() {
    for words in [&["bench", "mechanisms"][..], &["completions", "zsh"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Command::new(env!("CARGO_BIN_EXE_strait")).args(words).stdout(writer).output().unwrap();
        assert!(!output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}
