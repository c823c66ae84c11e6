//! Tests of the rules for the public interface, with its list in `docs/public-api.txt`.

use std::collections::{BTreeMap, BTreeSet};

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
