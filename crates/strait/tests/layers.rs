//! Checks that the modules of the library form layers: each module uses only modules of its own layer and of layers
//! below.

mod sources;

use sources::{files, uses};

/// The layers, from the lowest to the highest. The modules of one layer may use each other. `ring` is the crate
/// `strait-ring`, below all others.
const LAYERS: &[&[&str]] = &[
    &["ring"],
    &["sync", "peer", "deadline", "error", "blocked_on", "kept", "wakers"],
    &["os", "signals"],
    &["deferred", "quota"],
    &["shm"],
    &["wake"],
    &["link", "region"],
    &["lane"],
    &["channel"],
    &["pipe", "call", "meet"],
    &["wait_set"],
    &["trap", "dispatcher", "task"],
    &["benchmarks", "fuzzing", "lib", "owned", "sandbox", "view", "wait"],
];

fn layer(module: &str) -> usize {
    let found = LAYERS.iter().position(|layer| layer.contains(&module));
    found.unwrap_or_else(|| panic!("the module {module} is in no layer"))
}

#[test]
fn no_module_uses_one_above_it() {
    let sources = files(env!("CARGO_MANIFEST_DIR"));
    let mut upward = Vec::new();
    for (file, code) in sources.iter().filter(|(file, _)| file != "lib.rs") {
        let own = file.split(['/', '.']).next().unwrap();
        let above = uses(file, code).into_iter().filter(|name| name != "super" && layer(name) > layer(own));
        upward.extend(above.map(|name| (file.as_str(), name)));
    }
    assert!(upward.is_empty(), "these use a module above their own: {upward:?}");
}

/// Shows that `strait-ring` needs no other crate, and that its ring uses neither the memory nor the waiting of the
/// crate.
#[test]
fn the_ring_depends_on_nothing() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../strait-ring");
    let manifest = std::fs::read_to_string(format!("{root}/Cargo.toml")).unwrap();
    assert!(!manifest.contains("\n[dependencies"), "the ring needs no other crate");
    let sources = files(root);
    let ring: Vec<_> = sources.iter().filter(|(file, _)| file.starts_with("ring/")).collect();
    assert!(ring.len() > 5, "the files of the ring are found");
    for (file, code) in ring {
        let others: Vec<_> = uses(file, code).into_iter().filter(|name| name != "ring" && name != "super").collect();
        assert!(others.is_empty(), "{file} uses {others:?}");
    }
}
