//! Checks that the modules of the library form layers: each module uses only modules of its own layer and of layers
//! below.

use std::fs;
use std::path::Path;

/// The layers, from the lowest to the highest. The modules of one layer may use each other.
const LAYERS: &[&[&str]] = &[
    &["sync", "peer", "deadline", "error", "blocked_on"],
    &["os"],
    &["ring"],
    &["deferred", "quota"],
    &["shm"],
    &["wake"],
    &["link", "region"],
    &["lane"],
    &["channel"],
    &["pipe", "call", "meet"],
    &["wait_set"],
    &["trap", "dispatcher", "task"],
    &["benchmarks", "fuzzing", "lib"],
];

/// Files, by the start of their paths, that may use a module above their own.
const EXCEPTIONS: &[(&str, &str)] = &[
    // These exceptions end when messages within a process use a mailbox in the lane in place of a link of the process
    // to itself.
    ("link/io.rs", "channel"),
    ("link/inbox.rs", "channel"),
    ("link/mod.rs", "channel"),
    // These exceptions end when only lanes know arenas and the retention of links.
    ("link/routes/arenas.rs", "lane"),
    ("link/routes/arenas.rs", "channel"),
    ("link/routes/retention.rs", "lane"),
    ("link/routes/retention.rs", "channel"),
    ("link/mod.rs", "lane"),
    ("lane/arena.rs", "channel"),
    // This exception ends when the public handle no longer has variants for data pipes.
    ("channel/handle.rs", "pipe"),
];

fn layer(module: &str) -> usize {
    let found = LAYERS.iter().position(|layer| layer.contains(&module));
    found.unwrap_or_else(|| panic!("the module {module} is in no layer"))
}

/// Returns the code of a file without comments and without items that are only built for tests.
fn code(text: &str) -> String {
    let (mut lines, mut code) = (text.lines(), String::new());
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("#[cfg(test)]") {
            let item = lines.by_ref().find(|line| !line.trim_start().starts_with("#[")).unwrap_or_default();
            let end = format!("{}}}", &item[..item.len() - item.trim_start().len()]);
            if item.ends_with('{') {
                lines.by_ref().find(|line| *line == end);
            }
        } else {
            code += line.split("//").next().unwrap_or_default();
            code.push('\n');
        }
    }
    code
}

/// Returns the top modules that the code of `file` uses by `crate::`, or by as many `super::` as lead to the crate.
fn uses(file: &str, code: &str) -> Vec<String> {
    let depth = file.split('/').count() - usize::from(file.ends_with("/mod.rs") || file == "lib.rs");
    let word =
        |rest: &str| rest.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().map(str::to_owned);
    let supers = "super::".repeat(depth);
    let by_super = code.split(supers.as_str()).skip(1).filter(|_| depth > 0);
    code.split("crate::")
        .skip(1)
        .chain(by_super)
        .filter_map(word)
        .filter(|name| name.starts_with(char::is_lowercase))
        .collect()
}

fn files(directory: &Path, root: &Path, found: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("tests") {
            files(&path, root, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            found.push((name, code(&fs::read_to_string(&path).unwrap())));
        }
    }
}

#[test]
fn no_module_uses_one_above_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut sources = Vec::new();
    files(&root, &root, &mut sources);
    let mut upward = Vec::new();
    for (file, code) in sources.iter().filter(|(file, _)| file != "lib.rs") {
        let own = file.split(['/', '.']).next().unwrap();
        let above = uses(file, code).into_iter().filter(|name| name != "super" && layer(name) > layer(own));
        upward.extend(above.map(|name| (file.as_str(), name)));
    }
    let is_excepted = |(file, module): &(&str, String)| {
        EXCEPTIONS.iter().any(|(prefix, name)| file.starts_with(prefix) && name == module)
    };
    let wrong: Vec<_> = upward.iter().filter(|arrow| !is_excepted(arrow)).collect();
    assert!(wrong.is_empty(), "these use a module above their own: {wrong:?}");
    for (prefix, module) in EXCEPTIONS {
        let is_used = upward.iter().any(|(file, name)| file.starts_with(prefix) && name == module);
        assert!(is_used, "{prefix} uses {module} no longer: take the exception out");
    }
}
