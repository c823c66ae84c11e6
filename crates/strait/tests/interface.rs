//! Tests of the rules for the public interface, with its list in `docs/public-api.txt`.

use std::collections::BTreeSet;

/// The most names, besides modules, that the crate root may have. Further names belong in a module.
const MOST_IN_ROOT: usize = 30;

/// Returns the lines of the list of the public interface.
fn interface() -> impl Iterator<Item = &'static str> {
    include_str!("../../../docs/public-api.txt").lines()
}

#[test]
fn the_crate_root_has_few_names() {
    let roots: BTreeSet<_> = interface().filter_map(|line| line.strip_prefix("strait::")?.split([':', ' ']).next()).collect();
    // Only modules and types have further items; the name of a module is in lower case.
    let is_module = |name: &&str| {
        name.starts_with(char::is_lowercase) && interface().any(|line| line.starts_with(&format!("strait::{name}::")))
    };
    let (modules, names): (Vec<_>, Vec<_>) = roots.into_iter().partition(is_module);
    assert!(modules.contains(&"wait") && names.contains(&"Channel") && names.contains(&"MAX_MESSAGE"), "{names:?}");
    assert!(names.len() <= MOST_IN_ROOT, "the crate root has {} names: {names:?}", names.len());
}
