//! Tests of the rules for the public interface, with its list in `docs/public-api.txt`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The most names, besides modules, that the crate root may have. Further names belong in a module.
const MOST_IN_ROOT: usize = 30;

/// Returns the lines of the list of the public interface.
fn interface() -> impl Iterator<Item = &'static str> {
    include_str!("../../../docs/public-api.txt").lines()
}

#[test]
fn the_crate_root_has_few_names() {
    let roots: BTreeSet<_> =
        interface().filter_map(|line| line.strip_prefix("strait::")?.split([':', ' ']).next()).collect();
    // Only modules and types have further items; the name of a module is in lower case.
    let is_module = |name: &&str| {
        name.starts_with(char::is_lowercase) && interface().any(|line| line.starts_with(&format!("strait::{name}::")))
    };
    let (modules, names): (Vec<_>, Vec<_>) = roots.into_iter().partition(is_module);
    assert!(modules.contains(&"wait") && names.contains(&"Channel") && names.contains(&"MAX_MESSAGE"), "{names:?}");
    assert!(names.len() <= MOST_IN_ROOT, "the crate root has {} names: {names:?}", names.len());
}

/// Returns the names of the methods of the type `path`.
fn methods(path: &str) -> BTreeSet<&'static str> {
    let prefix = format!("strait::{path}::");
    interface().filter_map(|line| line.strip_prefix(&prefix)?.split_once(": pub fn ")).map(|(name, _)| name).collect()
}

/// Shows that the table of `Channel::split` has each call of a channel, and says which half has the call.
#[test]
fn the_table_of_halves_is_complete() {
    let source = include_str!("../src/channel/halves.rs");
    let rows = source.lines().filter_map(|line| line.trim().strip_prefix("/// | `")).map(|row| row.split('|'));
    let mut told: BTreeMap<&str, [bool; 2]> = BTreeMap::new();
    for mut row in rows {
        let calls = row.next().unwrap().split(", ").map(|name| name.trim_matches(['`', ' ']));
        let has: Vec<_> = row.map(|cell| cell.contains("yes")).collect();
        told.extend(calls.map(|call| (call, [has[0], has[1]])));
    }
    let mut halves = methods("Sender");
    assert!(halves.remove("join"));
    halves.extend(methods("Receiver"));
    // These make a channel.
    let calls = methods("Channel").into_iter().filter(|name| !["over", "pair"].contains(name));
    assert_eq!(told.keys().copied().collect::<BTreeSet<_>>(), calls.collect::<BTreeSet<_>>());
    assert!(halves.iter().all(|name| told.contains_key(name)), "{halves:?}");
    for (call, [sender, receiver]) in told {
        let has = [methods("Sender").contains(call), methods("Receiver").contains(call)];
        assert_eq!(has, [sender, receiver], "{call}");
    }
}

/// Returns the sources in a directory, without tests.
fn sources(directory: &Path) -> Vec<String> {
    let paths = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let paths = paths.filter(|path| path.file_stem().is_some_and(|name| name != "tests"));
    paths
        .flat_map(|path| if path.is_dir() { sources(&path) } else { vec![std::fs::read_to_string(path).unwrap()] })
        .collect()
}

/// Returns the public types, traits, type aliases and free functions of a crate, each with its documentation, from the
/// sources of the crate.
fn documented(krate: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for source in sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(krate).join("src")) {
        let mut documentation = String::new();
        for line in source.lines() {
            if let Some(text) = line.strip_prefix("///") {
                documentation.push_str(text);
                documentation.push('\n');
            } else if let Some(item) = line.strip_prefix("pub ") {
                let words = item.split(|letter: char| !letter.is_alphanumeric() && letter != '_');
                let mut words = words.skip_while(|word| ["unsafe", "async", "const"].contains(word));
                if ["struct", "enum", "trait", "type", "fn"].contains(&words.next().unwrap()) {
                    found.push((words.next().unwrap().to_owned(), std::mem::take(&mut documentation)));
                }
            }
            // The attributes of an item stand between its documentation and its name.
            if !line.starts_with(['/', '#', ' ', ')']) {
                documentation.clear();
            }
        }
    }
    found
}

/// Returns whether the item with this path and text in the list of the interface is a type, a trait, a type alias or a
/// free function.
fn needs_an_example(path: &str, text: &str) -> bool {
    let is_method = path.rsplit("::").nth(1).is_some_and(|of| of.starts_with(char::is_uppercase));
    let mut words = text.split(' ').skip_while(|word| ["pub", "unsafe", "async", "const"].contains(word));
    !is_method && ["struct", "enum", "trait", "type", "fn"].contains(&words.next().unwrap_or_default())
}

#[test]
fn each_type_and_free_function_has_an_example_or_a_link_to_one() {
    for (krate, prefix, least) in [("strait", "strait::", 90), ("strait-tokio", "strait_tokio::", 9)] {
        let documented = documented(krate);
        let listed = interface().filter(|line| line.starts_with(prefix)).filter_map(|line| line.split_once(": "));
        let items = listed.filter(|(path, text)| needs_an_example(path, text)).map(|(path, _)| path);
        let (mut count, mut lacking) = (0, Vec::new());
        for path in items {
            let name = path.rsplit("::").next().unwrap();
            let mut texts = documented.iter().filter(|(item, _)| item == name).map(|(_, text)| text).peekable();
            assert!(texts.peek().is_some(), "the sources of {krate} have no {name}");
            if !texts.all(|text| text.contains("```") || text.contains("\n Example: [")) {
                lacking.push(path);
            }
            count += 1;
        }
        assert!(count >= least, "the list has only {count} types and functions of {krate}");
        assert!(lacking.is_empty(), "these have neither an example nor a line `Example: [..](..)`: {lacking:?}");
    }
}
