//! Checks that the modules of the laboratory stand one above the other, and that each uses only those below it: there
//! is no circle.

#[path = "../../strait/tests/sources/mod.rs"]
mod sources;

use sources::{files, uses};

/// The modules, from the lowest to the highest.
const LAYERS: &[&[&str]] = &[
    &["trouble"],
    &["stats"],
    &["table"],
    &["progress"],
    &["machine"],
    &["samples"],
    &["sys"],
    &["placement"],
    &["shape"],
    &["work"],
    &["process"],
    &["mechanism"],
    &["loops"],
    &["pair"],
    &["catalogue"],
    &["suite"],
    &["results"],
    &["runner"],
    &["compare"],
    &["peers"],
    &["bars"],
];

fn layer(module: &str) -> usize {
    let found = LAYERS.iter().position(|layer| layer.contains(&module));
    found.unwrap_or_else(|| panic!("the module {module} is in no layer"))
}

#[test]
fn no_module_uses_one_above_it() {
    let sources = files(env!("CARGO_MANIFEST_DIR"));
    assert!(sources.len() > 100, "only {} files were found", sources.len());
    for (file, code) in sources.iter().filter(|(file, _)| file != "lib.rs") {
        let own = file.split(['/', '.']).next().unwrap();
        let above: Vec<_> = uses(file, code).into_iter().filter(|name| layer(name) > layer(own)).collect();
        assert!(above.is_empty(), "{file} uses {above:?}, above its own module");
    }
}
